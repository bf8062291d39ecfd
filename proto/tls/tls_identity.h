// Patterns of allowed identities. An identity is a DNS name or a URI among the subject alternative names of a checked certificate;
// the common name, addresses and e-mail names are none. Pure functions; no argument is trusted except the patterns.
//
// A list has patterns separated by commas:
//   - A DNS pattern has labels separated by dots. The label "*" stands for exactly one label, in any position: "*.shards.example"
//     matches "3.shards.example", not "shards.example" and not "a.b.shards.example". Case is ignored.
//   - A URI pattern contains "://": scheme, authority and path. The path part "*" stands for exactly one part:
//   "spiffe://example/*/7"
//     matches "spiffe://example/shard/7". The path is compared byte for byte, without percent-decoding; case is ignored in the
//     scheme and the authority.
// A wildcard covers no character that has a meaning in a pattern or a path (the part ".." for example), and no certificate's name
// with a wildcard of its own.
#ifndef EXPERTD_PROTO_TLS_TLS_IDENTITY_H
#define EXPERTD_PROTO_TLS_TLS_IDENTITY_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum tls_name_kind { TLS_NAME_DNS, TLS_NAME_URI };

struct tls_name {
    enum tls_name_kind kind;
    const char *bytes; // not terminated; may have any bytes
    size_t length;
};

// Fails with `code` unless `patterns` is a list of valid patterns. The message quotes the pattern.
FALLIBLE tls_identity_check(const char *patterns, enum expertd_err_code code);

// Whether a pattern of the checked list matches the name.
bool tls_identity_matches(const char *patterns, const struct tls_name *name);

#endif
