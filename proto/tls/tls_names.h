// The names of a certificate, for messages. Private to proto/tls/.
#ifndef EXPERTD_PROTO_TLS_TLS_NAMES_H
#define EXPERTD_PROTO_TLS_TLS_NAMES_H

#include <openssl/x509v3.h>
#include <stddef.h>

// Appends the DNS names, URIs and IP addresses to `out`, separated by commas and without control characters, as far as they fit.
void tls_names_collect(const X509 *certificate, char *out, size_t size);

#endif
