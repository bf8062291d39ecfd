// Where a daemon listens, as people write it: unix:PATH or HOST:PORT. Pure; any thread.
#ifndef EXPERTD_CLIENT_C_ADDRESS_H
#define EXPERTD_CLIENT_C_ADDRESS_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum {
    ADDRESS_PATH_MAX = 108, // sun_path's, the terminator counted
    ADDRESS_HOST_MAX = 254, // a DNS name's 253
    ADDRESS_TEXT_MAX = 272,
    ADDRESS_TARGET_MAX = 3 * ADDRESS_TEXT_MAX + 16, // each byte of a path may need three
};

struct address {
    bool is_unix;
    char path[ADDRESS_PATH_MAX]; // is_unix: a file, or "@name" for an abstract socket
    char host[ADDRESS_HOST_MAX]; // else: a name, an IPv4 address, or an IPv6 address without its brackets
    unsigned port;
    char text[ADDRESS_TEXT_MAX]; // for messages, as expertd --listen takes it
};

// "unix:PATH" (also unix:///PATH), "HOST:PORT", "[IPv6]:PORT". EXPERTD_ERR_USAGE names the text, what is wrong with it and the
// forms.
FALLIBLE address_parse(const char *text, struct address *out);

// The same as a gRPC target name.
void address_target(const struct address *address, char target[ADDRESS_TARGET_MAX]);

#endif
