// One HTTP/1.x request read from bytes as they come: method, path and whether the connection lives on; everything else is bounded
// and forgotten. The parser is libhttp-parser, and this the only file that knows it. No sockets; one owner.
#ifndef EXPERTD_DAEMON_HTTP_HTTP_REQUEST_H
#define EXPERTD_DAEMON_HTTP_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum {
    HTTP_HEAD_MAX = 8192, // bytes of a request line and its headers
    HTTP_PATH_MAX = 1024  // of the path with its terminator
};

struct http_request;

FALLIBLE http_request_create(struct http_request **out); // EXPERTD_ERR_NOMEM
void http_request_destroy(struct http_request *request); // NULL is legal
void http_request_reset(struct http_request *request);   // for the connection's next one

// Takes bytes until the request is whole; returns how many it took: those after it belong to the next.
size_t http_request_feed(struct http_request *request, const char *bytes, size_t length);

struct http_request_state {
    bool done;        // nothing more is taken; what follows holds
    int refused;      // a status from 400 on where the request is not to be served, else 0
    bool head;        // answer without a body, also where refused
    bool keep_alive;  // false where refused
    const char *path; // without host, query and fragment; borrowed until the next reset
};
struct http_request_state http_request_state(const struct http_request *request);

const char *http_status_text(int status); // "Not Found"

#endif
