// Reads and checks the PEM files of TLS: the own certificate with its key, the CA certificates that peers are checked against. The
// texts go to gRPC unchanged. Any thread. This folder is the only user of OpenSSL; gRPC does the
// handshakes.
#ifndef EXPERTD_PROTO_TLS_TLS_FILES_H
#define EXPERTD_PROTO_TLS_TLS_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

enum { TLS_NAMES_MAX = 512, TLS_FILE_BYTES_MAX = 1 << 20 };

struct tls_paths { // NULL: not given
    const char *cert, *key;
    const char *ca;        // of servers that this process dials
    const char *client_ca; // of clients that connect to this process
};

struct tls_texts { // PEM, NULL: not given; owned
    char *cert, *key, *ca, *client_ca;
    int64_t begins_s, expires_s; // validity of `cert` with the chain in its file; Unix time. 0: no cert
    char names[TLS_NAMES_MAX];   // of `cert`: its DNS names, URIs and IP addresses, separated by commas; truncated
};

enum tls_use { TLS_USE_SERVER, TLS_USE_CLIENT };

// Fails with `code` if a file cannot be read, is no PEM or ends in the middle of a block; if the key is encrypted, does not belong
// to the certificate, or is too short for OpenSSL; if the certificate has expired, is not valid yet, or is not for `use` (extended
// key usage); or if every certificate of a CA file has expired. `cert` and `key` are given together or not at all. The message
// names the file. EXPERTD_ERR_NOMEM. On error *out is zeroed.
FALLIBLE tls_texts_read(const struct tls_paths *paths, enum tls_use use, enum expertd_err_code code, struct tls_texts *out);
void tls_texts_deinit(struct tls_texts *texts); // erases the key; legal on a zeroed struct

#endif
