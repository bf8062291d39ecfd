#include "client/c/address.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

static const char FORMS[] = "expected unix:PATH or HOST:PORT";

enum { PORT_MAX = 65535, PORT_DIGITS_MAX = 5 };

static FALLIBLE parse_unix(const char *text, const char *path, struct address *out) {
    if (strncmp(path, "//", 2) == 0) { // gRPC's form, unix:///absolute/path
        path += 2;
    }
    size_t length = strlen(path);
    if (length == 0) {
        FAIL(EXPERTD_ERR_USAGE, "address '%s': the path is missing; %s", text, FORMS);
    }
    if (length >= ADDRESS_PATH_MAX) {
        FAIL(EXPERTD_ERR_USAGE,
             "address '%.40s...': the path of a socket has at most %zu bytes, this one has %zu; use a shorter folder", text,
             (size_t)ADDRESS_PATH_MAX - 1, length);
    }
    out->is_unix = true;
    memcpy(out->path, path, length + 1);
    snprintf(out->text, sizeof out->text, "unix:%s", path);
    return OK;
}

static FALLIBLE parse_port(const char *text, const char *digits, unsigned *out) {
    size_t length = strlen(digits);
    unsigned port = 0;
    if (length == 0 || length > PORT_DIGITS_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "address '%s': the port is not a number from 1 to %d; %s", text, PORT_MAX, FORMS);
    }
    for (size_t i = 0; i < length; i++) {
        if (!isdigit((unsigned char)digits[i])) {
            FAIL(EXPERTD_ERR_USAGE, "address '%s': the port is not a number from 1 to %d; %s", text, PORT_MAX, FORMS);
        }
        port = port * 10 + (unsigned)(digits[i] - '0');
    }
    if (port == 0 || port > PORT_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "address '%s': port %u is not in 1 to %d", text, port, PORT_MAX);
    }
    *out = port;
    return OK;
}

static FALLIBLE parse_tcp(const char *text, struct address *out) {
    const char *colon = strrchr(text, ':');
    if (!colon) {
        FAIL(EXPERTD_ERR_USAGE, "address '%s': the port is missing; %s, such as %s:7411", text, FORMS, *text ? text : "127.0.0.1");
    }
    const char *host = text;
    size_t length = (size_t)(colon - text);
    bool bracketed = length >= 2 && host[0] == '[' && host[length - 1] == ']';
    if (bracketed) {
        host++;
        length -= 2;
    } else if (memchr(text, ':', length)) {
        FAIL(EXPERTD_ERR_USAGE, "address '%s': write an IPv6 address in brackets, such as [::1]:7411", text);
    }
    if (length == 0 || length >= ADDRESS_HOST_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "address '%.40s': the host %s; %s", text, length ? "is too long" : "is missing", FORMS);
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char byte = (unsigned char)host[i];
        if (!isalnum(byte) && !strchr(bracketed ? ":.%" : "-._", byte)) {
            FAIL(EXPERTD_ERR_USAGE, "address '%s': '%c' does not belong in a host name; %s", text, isprint(byte) ? byte : '?',
                 FORMS);
        }
    }
    TRY(parse_port(text, colon + 1, &out->port));
    memcpy(out->host, host, length);
    out->host[length] = '\0';
    snprintf(out->text, sizeof out->text, bracketed ? "[%s]:%u" : "%s:%u", out->host, out->port);
    return OK;
}

FALLIBLE address_parse(const char *text, struct address *out) {
    *out = (struct address){0};
    if (strncmp(text, "unix:", 5) == 0) {
        return parse_unix(text, text + 5, out);
    }
    if (strncmp(text, "http://", 7) == 0 || strncmp(text, "https://", 8) == 0 || strncmp(text, "tcp://", 6) == 0) {
        FAIL(EXPERTD_ERR_USAGE, "address '%s': leave out the scheme; %s", text, FORMS);
    }
    if (strchr(text, '/')) {
        FAIL(EXPERTD_ERR_USAGE, "address '%s': for a socket's path write unix:%s", text, text);
    }
    return parse_tcp(text, out);
}

// Percent-encodes the path, which is arbitrary bytes: a target is a URI.
static void append_path(char *target, size_t used, const char *path) {
    for (const char *at = path; *at; at++) {
        unsigned char byte = (unsigned char)*at;
        bool plain = isalnum(byte) || strchr("/._-~@", byte);
        used += (size_t)snprintf(target + used, ADDRESS_TARGET_MAX - used, plain ? "%c" : "%%%02X", byte);
    }
}

void address_target(const struct address *address, char target[ADDRESS_TARGET_MAX]) {
    if (!address->is_unix) {
        snprintf(target, ADDRESS_TARGET_MAX, "%s", address->text);
        return;
    }
    bool abstract = address->path[0] == '@';
    int used = snprintf(target, ADDRESS_TARGET_MAX, "%s", abstract ? "unix-abstract:" : "unix:");
    append_path(target, (size_t)used, address->path + abstract);
}
