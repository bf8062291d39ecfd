// Explains why a connection failed: cause and remedy, in the words of the options. Pure.
#ifndef EXPERTD_PROTO_TLS_TLS_FAILURE_H
#define EXPERTD_PROTO_TLS_TLS_FAILURE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/tls/tls_probe.h"

struct tls_failure_context {
    const char *address;
    bool tls;                // the connection was to be TLS
    const char *server_name; // the name that the certificate must have; NULL: the host of the address
    bool has_answered;       // the server answered on this connection before it failed: plain text and TLS do not meet here
};

// From the text of gRPC's status, which has no codes for this; the texts are those of gRPC 1.51 with OpenSSL 3. Writes the
// explanation, or a text that it does not know as it is, to `out`. Returns whether the failure is one of TLS.
bool tls_failure_explain(const struct tls_failure_context *context, const char *text, char *out, size_t out_bytes);

// From a probe. False: the probe found nothing that explains a failure, and `out` is "".
bool tls_failure_of_probe(const struct tls_failure_context *context, const struct tls_probe_result *result, char *out,
                          size_t out_bytes);

#endif
