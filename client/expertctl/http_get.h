// One page of a daemon's HTTP address. Blocking; any thread.
#ifndef EXPERTD_CLIENT_EXPERTCTL_HTTP_GET_H
#define EXPERTD_CLIENT_EXPERTCTL_HTTP_GET_H

#include <stdint.h>

#include "client/c/address.h"

enum { HTTP_PAGE_MAX = 8 << 20 };

// *body is malloc'd, the caller's, and ends with '\0'. `address` is HOST:PORT. timeout_us, above 0, is of all from
// connecting to the page's end; a host's name is looked up for as long as that takes.
// EXPERTD_ERR_UNAVAILABLE where nothing answers there with a page, or with one larger than HTTP_PAGE_MAX; *body is NULL then.
FALLIBLE http_get(const struct address *address, const char *path, int64_t timeout_us, char **body);

#endif
