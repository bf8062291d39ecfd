#include "daemon/listen/resolve.h"

#include <stdio.h>
#include <string.h>

#include "daemon/config/options_address.h"

enum { HOST_MAX = 256 };

FALLIBLE resolve_address(const char *address, struct addrinfo **out) {
    char host[HOST_MAX];
    *out = NULL;
    TRY(options_address_check(address, false, EXPERTD_ERR_CONFIG));
    const char *colon = strrchr(address, ':');
    size_t length = (size_t)(colon - address);
    bool brackets = address[0] == '[';
    snprintf(host, sizeof host, "%.*s", (int)(length - 2 * brackets), address + brackets);
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    int result = getaddrinfo(host, colon + 1, &hints, out);
    if (result != 0) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot resolve the host of %s: %s", address, gai_strerror(result));
    }
    return OK;
}
