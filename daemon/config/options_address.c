#include "daemon/config/options_address.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char UNIX[] = "unix:";
enum { UNIX_LENGTH = sizeof UNIX - 1, HOST_MAX = 253, PORT_GREATEST = 65535, PORT_DIGITS = 5 };

const char *options_unix_path(const char *address) {
    return strncmp(address, UNIX, UNIX_LENGTH) == 0 ? address + UNIX_LENGTH : NULL;
}

static FALLIBLE check_path(const char *address, const char *path, enum expertd_err_code code) {
    size_t length = strlen(path);
    if (length == 0 || path[length - 1] == '/') {
        FAIL(code, "\"%s\" has no file name: write unix:PATH, as in unix:/run/expertd/expertd.sock", address);
    }
    if (length > UNIX_PATH_MAX) {
        FAIL(code, "\"%s\" is too long: the path of a Unix socket has at most %d bytes, this one has %zu", address, UNIX_PATH_MAX,
             length);
    }
    if (path[0] == '@') {
        FAIL(code, "\"%s\" is an abstract socket, which any user could bind first: write unix:PATH", address);
    }
    return OK;
}

static FALLIBLE check_port(const char *address, const char *port, enum expertd_err_code code) {
    size_t digits = strspn(port, "0123456789");
    if (digits == 0 || port[digits] || digits > PORT_DIGITS || strtoul(port, NULL, 10) > PORT_GREATEST) {
        FAIL(code, "\"%s\" has no port from 0 to %d after its host: write HOST:PORT, as in 127.0.0.1:7411", address, PORT_GREATEST);
    }
    return OK;
}

static bool is_host_name(const char *host, size_t length) {
    for (size_t i = 0; i < length; i++) {
        if (!isalnum((unsigned char)host[i]) && !strchr(".-_", host[i])) {
            return false;
        }
    }
    return length > 0 && length <= HOST_MAX;
}

static FALLIBLE check_bracketed(const char *address, enum expertd_err_code code) {
    char host[INET6_ADDRSTRLEN] = "";
    struct in6_addr parsed;
    const char *end = strchr(address, ']');
    size_t length = end ? (size_t)(end - address) - 1 : 0;
    if (length > 0 && length < sizeof host) {
        memcpy(host, address + 1, length);
    }
    if (!end || inet_pton(AF_INET6, host, &parsed) != 1) {
        FAIL(code, "\"%s\" has no valid IPv6 address in its brackets: write [::1]:7411", address);
    }
    return check_port(address, end[1] == ':' ? end + 2 : "", code);
}

FALLIBLE options_address_check(const char *address, bool unix_too, enum expertd_err_code code) {
    const char *path = options_unix_path(address);
    if (path && unix_too) {
        return check_path(address, path, code);
    }
    if (address[0] == '[') {
        return check_bracketed(address, code);
    }
    const char *colon = strchr(address, ':');
    if (colon && strchr(colon + 1, ':')) {
        FAIL(code, "\"%s\" has several colons: write an IPv6 address in brackets, as in [::1]:7411", address);
    }
    if (!is_host_name(address, colon ? (size_t)(colon - address) : strlen(address))) {
        FAIL(code, "\"%s\" has no valid host: write %sHOST:PORT, as in 127.0.0.1:7411 (every interface: 0.0.0.0 or [::])", address,
             unix_too ? "unix:PATH or " : "");
    }
    return check_port(address, colon ? colon + 1 : "", code);
}

static bool is_local_name(const char *host) {
    static const char NAME[] = "localhost";
    size_t length = strlen(host), name = sizeof NAME - 1;
    return length >= name && strcasecmp(host + length - name, NAME) == 0 && (length == name || host[length - name - 1] == '.');
}

bool options_address_is_local(const char *address) {
    if (options_unix_path(address)) {
        return true;
    }
    char host[HOST_MAX + 1];
    const bool bracketed = address[0] == '[';
    const char *end = strrchr(address, ':');
    const size_t length = (size_t)(end - address) - (bracketed ? 2 : 0);
    if (length > HOST_MAX) {
        return false;
    }
    memcpy(host, address + bracketed, length);
    host[length] = '\0';
    struct in6_addr v6;
    struct in_addr v4;
    if (bracketed) {
        return inet_pton(AF_INET6, host, &v6) == 1 &&
               (IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == IN_LOOPBACKNET));
    }
    // Only the usual form with four numbers: others ("127.1") are left to the resolver, and so count as names.
    return inet_pton(AF_INET, host, &v4) == 1 ? ntohl(v4.s_addr) >> 24 == IN_LOOPBACKNET : is_local_name(host);
}

unsigned options_address_port(const char *address) {
    const char *colon = strrchr(address, ':');
    return options_unix_path(address) || !colon ? 0 : (unsigned)strtoul(colon + 1, NULL, 10);
}
