// The own certificate in an OpenSSL context. Private to proto/tls/.
#ifndef EXPERTD_PROTO_TLS_TLS_CONTEXT_H
#define EXPERTD_PROTO_TLS_TLS_CONTEXT_H

#include <openssl/ssl.h>
#include <stdbool.h>

// Whether the context takes the certificates (the own one first) and the key, both PEM. False: OpenSSL's error queue has the
// reason.
bool tls_context_use(SSL_CTX *context, const char *certificates, const char *key);

#endif
