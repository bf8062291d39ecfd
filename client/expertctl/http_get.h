// Gets one page from a daemon's HTTP address. Blocking; any thread.
#ifndef EXPERTD_CLIENT_EXPERTCTL_HTTP_GET_H
#define EXPERTD_CLIENT_EXPERTCTL_HTTP_GET_H

#include <stdint.h>

#include "client/c/address.h"

enum { HTTP_PAGE_MAX = 8 << 20 };

// `address` is HOST:PORT. *body is allocated, ends with '\0', and is the caller's to free. timeout_us > 0 covers everything from
// connecting to the end of the page, but not the lookup of the host's name. EXPERTD_ERR_UNAVAILABLE: no page came, or one larger
// than HTTP_PAGE_MAX; *body is NULL then.
FALLIBLE http_get(const struct address *address, const char *path, int64_t timeout_us, char **body);

#endif
