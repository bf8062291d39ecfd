#include "proto/tls/tls_identity.h"

#include <ctype.h>
#include <string.h>

enum { DNS_LABEL_MAX = 63, DNS_NAME_MAX = 253, URI_MAX = 2048 };

struct span {
    const char *bytes;
    size_t length;
};

static struct span span_of(const char *bytes, size_t length) {
    return (struct span){bytes, length};
}

// Removes the part up to the first `separator` from *rest and returns it. Without a separator: all of it.
static struct span take_until(struct span *rest, char separator) {
    const char *found = rest->length ? memchr(rest->bytes, separator, rest->length) : NULL;
    struct span part = {rest->bytes, found ? (size_t)(found - rest->bytes) : rest->length};
    size_t used = part.length + (found != NULL);
    *rest = span_of(rest->bytes + used, rest->length - used);
    return part;
}

static bool is_wildcard(struct span part) {
    return part.length == 1 && part.bytes[0] == '*';
}

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

static bool equal_without_case(struct span a, struct span b) {
    if (a.length != b.length) {
        return false;
    }
    for (size_t i = 0; i < a.length; i++) {
        if (lower(a.bytes[i]) != lower(b.bytes[i])) {
            return false;
        }
    }
    return true;
}

static bool equal(struct span a, struct span b) {
    return a.length == b.length && (a.length == 0 || memcmp(a.bytes, b.bytes, a.length) == 0);
}

static bool is_label(struct span label) {
    for (size_t i = 0; i < label.length; i++) {
        if (!strchr("abcdefghijklmnopqrstuvwxyz0123456789-_", lower(label.bytes[i])) || label.bytes[i] == '\0') {
            return false;
        }
    }
    return label.length > 0 && label.length <= DNS_LABEL_MAX;
}

// A part of a path: RFC 3986's pchar without percent-encoding, which could stand for a slash, and without the parts that a parser
// of URIs may resolve.
static bool is_path_part(struct span part) {
    bool only_dots = true;
    for (size_t i = 0; i < part.length; i++) {
        char c = part.bytes[i];
        if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || (c && strchr("-._~!$&'()+;=:@", c)))) {
            return false;
        }
        only_dots = only_dots && c == '.';
    }
    return part.length > 0 && !only_dots;
}

// Where "://" is in a URI; NULL: nowhere.
static const char *find_authority(struct span uri) {
    return uri.length ? memmem(uri.bytes, uri.length, "://", 3) : NULL;
}

// Splits scheme://authority/path. False: there is no "://".
static bool split_uri(struct span uri, struct span *scheme, struct span *authority, struct span *path) {
    const char *colon = find_authority(uri);
    if (!colon) {
        return false;
    }
    *scheme = span_of(uri.bytes, (size_t)(colon - uri.bytes));
    struct span rest = span_of(colon + 3, uri.length - scheme->length - 3);
    const char *slash = rest.length ? memchr(rest.bytes, '/', rest.length) : NULL;
    *authority = span_of(rest.bytes, slash ? (size_t)(slash - rest.bytes) : rest.length);
    *path = span_of(rest.bytes + authority->length, rest.length - authority->length); // begins with the slash, or is empty
    return true;
}

// ---- the syntax of patterns

static FALLIBLE check_dns(struct span pattern, enum expertd_err_code code) {
    struct span rest = pattern;
    bool named = false, valid = pattern.length <= DNS_NAME_MAX && pattern.bytes[pattern.length - 1] != '.';
    while (rest.length > 0 && valid) {
        struct span label = take_until(&rest, '.');
        valid = is_wildcard(label) || is_label(label);
        named = named || !is_wildcard(label);
    }
    if (!valid) {
        FAIL(code,
             "\"%.*s\" is not an identity: write a DNS name of letters, digits, - and _, as in *.shards.example (* stands for one "
             "complete label), or a URI, as in spiffe://example/shard/*",
             (int)pattern.length, pattern.bytes);
    }
    if (!named) {
        FAIL(code, "\"%.*s\" names nobody: leave the option out to allow every certificate of the CA", (int)pattern.length,
             pattern.bytes);
    }
    return OK;
}

static bool is_scheme(struct span scheme) {
    for (size_t i = 0; i < scheme.length; i++) {
        char c = lower(scheme.bytes[i]);
        if (!((c >= 'a' && c <= 'z') || (i > 0 && c && strchr("0123456789+-.", c)))) {
            return false;
        }
    }
    return scheme.length > 0;
}

static bool is_authority(struct span authority) {
    for (size_t i = 0; i < authority.length; i++) {
        char c = lower(authority.bytes[i]);
        if (!((c >= 'a' && c <= 'z') || (c && strchr("0123456789-._:[]", c)))) {
            return false;
        }
    }
    return authority.length > 0;
}

static FALLIBLE check_uri(struct span pattern, enum expertd_err_code code) {
    struct span scheme, authority, path;
    bool split = split_uri(pattern, &scheme, &authority, &path);
    if (!split || !is_scheme(scheme) || !is_authority(authority) || pattern.length > URI_MAX) {
        FAIL(code, "\"%.*s\" is not a URI pattern: write SCHEME://HOST/PATH, as in spiffe://example/shard/* (no * in the host)",
             (int)(pattern.length > 200 ? 200 : pattern.length), pattern.bytes);
    }
    while (path.length > 0) {
        path = span_of(path.bytes + 1, path.length - 1); // the slash
        struct span rest = path, part = take_until(&rest, '/');
        if (!is_wildcard(part) && !is_path_part(part)) {
            FAIL(code,
                 "\"%.*s\" has the path part \"%.*s\": a part is * or has letters, digits and -._~!$&'()+;=:@ (no %%, no ? and no "
                 "#)",
                 (int)pattern.length, pattern.bytes, (int)part.length, part.bytes);
        }
        path = span_of(path.bytes + part.length, path.length - part.length);
    }
    return OK;
}

FALLIBLE tls_identity_check(const char *patterns, enum expertd_err_code code) {
    struct span rest = span_of(patterns, strlen(patterns));
    bool ends_with_comma = rest.length > 0 && patterns[rest.length - 1] == ',';
    do {
        struct span pattern = take_until(&rest, ',');
        if (pattern.length == 0) {
            FAIL(code, "\"%s\" has an empty identity: write names separated by single commas", patterns);
        }
        TRY(find_authority(pattern) ? check_uri(pattern, code) : check_dns(pattern, code));
    } while (rest.length > 0);
    if (ends_with_comma) {
        FAIL(code, "\"%s\" ends with a comma: write names separated by single commas", patterns);
    }
    return OK;
}

// ---- matching

// Compares parts between separators. A wildcard matches a part that `is_part` accepts.
static bool match_parts(struct span pattern, struct span name, char separator, bool (*is_part)(struct span),
                        bool (*same)(struct span, struct span)) {
    while (pattern.length > 0 && name.length > 0) {
        bool more = memchr(pattern.bytes, separator, pattern.length) != NULL;
        if (more != (memchr(name.bytes, separator, name.length) != NULL)) {
            return false;
        }
        struct span wanted = take_until(&pattern, separator), got = take_until(&name, separator);
        if (is_wildcard(wanted) ? !is_part(got) : !same(wanted, got)) {
            return false;
        }
    }
    return pattern.length == 0 && name.length == 0;
}

static bool match_dns(struct span pattern, struct span name) {
    bool ends_with_dot = name.length > 0 && name.bytes[name.length - 1] == '.';
    return name.length > 0 && name.length <= DNS_NAME_MAX && !ends_with_dot &&
           match_parts(pattern, name, '.', is_label, equal_without_case);
}

static bool match_uri(struct span pattern, struct span name) {
    struct span scheme, authority, path, its_scheme, its_authority, its_path;
    if (name.length > URI_MAX || !split_uri(pattern, &scheme, &authority, &path) ||
        !split_uri(name, &its_scheme, &its_authority, &its_path) || !equal_without_case(scheme, its_scheme) ||
        !equal_without_case(authority, its_authority) || (path.length == 0) != (its_path.length == 0)) {
        return false;
    }
    if (path.length == 0) {
        return true;
    }
    struct span parts = span_of(path.bytes + 1, path.length - 1), its_parts = span_of(its_path.bytes + 1, its_path.length - 1);
    bool ends_with_slash = its_parts.length > 0 && its_parts.bytes[its_parts.length - 1] == '/';
    return !ends_with_slash && match_parts(parts, its_parts, '/', is_path_part, equal);
}

bool tls_identity_matches(const char *patterns, const struct tls_name *name) {
    struct span rest = span_of(patterns, strlen(patterns)), got = span_of(name->bytes, name->length);
    while (rest.length > 0) {
        struct span pattern = take_until(&rest, ',');
        bool is_uri = find_authority(pattern) != NULL;
        if (is_uri == (name->kind == TLS_NAME_URI) && (is_uri ? match_uri(pattern, got) : match_dns(pattern, got))) {
            return true;
        }
    }
    return false;
}
