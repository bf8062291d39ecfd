// Explains why a connection failed, from the text of gRPC's status: cause and remedy in the words of expertd's options. gRPC has
// no codes for this. The texts are those of gRPC 1.51 with OpenSSL 3; an unknown text is passed on as it is. Pure.
#ifndef EXPERTD_PROTO_TLS_TLS_FAILURE_H
#define EXPERTD_PROTO_TLS_TLS_FAILURE_H

#include <stdbool.h>
#include <stddef.h>

struct tls_failure_context {
    const char *address;
    bool tls;      // the connection was to be TLS
    bool has_cert; // with a certificate of this side
};

// Writes the explanation, or the text itself, to `out`. Returns whether the failure is one of TLS.
bool tls_failure_explain(const struct tls_failure_context *context, const char *text, char *out, size_t out_bytes);

#endif
