// Finds out why a connection failed, with a TLS handshake of its own: gRPC does not tell an unknown CA from an expired certificate,
// nor a server that demands a certificate from one that is gone. For programs after a failure; blocks. Any thread.
#ifndef EXPERTD_PROTO_TLS_TLS_PROBE_H
#define EXPERTD_PROTO_TLS_TLS_PROBE_H

#include "proto/tls/tls_files.h"

enum tls_finding {
    TLS_FINDING_NONE,          // nobody listens, the address does not resolve, or no answer came in time
    TLS_FINDING_NO_TLS,        // the server answered, but not in TLS
    TLS_FINDING_OK,            // the handshake succeeds
    TLS_FINDING_UNKNOWN_CA,    // no given CA issued the server's certificate
    TLS_FINDING_EXPIRED,       // the server's certificate, or one that leads to its CA
    TLS_FINDING_NOT_YET_VALID, // the same
    TLS_FINDING_WRONG_NAME,
    TLS_FINDING_NO_CERT,      // the server demands a client certificate, and there is none
    TLS_FINDING_CERT_REFUSED, // the server closed the connection after it got the client's certificate
    TLS_FINDING_OTHER         // another failure of the handshake
};

struct tls_probe {
    const char *host; // without brackets
    unsigned port;
    const char *server_name;       // that the certificate must have; NULL: host
    const struct tls_texts *texts; // NULL or without a CA: the system's CAs
    int64_t timeout_us;
};

// names: of the server's certificate, "" if none came. detail: OpenSSL's words for TLS_FINDING_OTHER and the unknown CA.
struct tls_probe_result {
    enum tls_finding finding;
    char names[TLS_NAMES_MAX];
    char detail[256];
};
void tls_probe_run(const struct tls_probe *probe, struct tls_probe_result *out);

#endif
