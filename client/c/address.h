// A daemon's address as text: unix:PATH or HOST:PORT. Pure; any thread.
#ifndef EXPERTD_CLIENT_C_ADDRESS_H
#define EXPERTD_CLIENT_C_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum {
    ADDRESS_PATH_MAX = 108, // size of sun_path, with the terminator
    ADDRESS_HOST_MAX = 254, // 253 bytes of a DNS name, and the terminator
    ADDRESS_TEXT_MAX = 272,
    ADDRESS_TARGET_MAX = 3 * ADDRESS_TEXT_MAX + 16, // percent-encoding may triple each byte of a path
};

struct address {
    bool is_unix;
    char path[ADDRESS_PATH_MAX]; // is_unix: a file, or "@name" for an abstract socket
    char host[ADDRESS_HOST_MAX]; // not is_unix: a name, an IPv4 address, or an IPv6 address without brackets
    unsigned port;
    char text[ADDRESS_TEXT_MAX]; // for messages, in the form of expertd --listen
};

// "unix:PATH" (also unix:///PATH), "HOST:PORT", "[IPv6]:PORT". EXPERTD_ERR_USAGE names the text, the mistake and
// the accepted forms.
FALLIBLE address_parse(const char *text, struct address *out);

// The address as a gRPC target name.
void address_target(const struct address *address, char target[ADDRESS_TARGET_MAX]);

#endif
