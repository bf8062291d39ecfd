// Parses one HTTP/1.x request incrementally: its method, its path and whether the connection is kept alive. Other headers are
// counted against a limit and ignored. Wraps libhttp-parser. No sockets; one owner.
#ifndef EXPERTD_DAEMON_HTTP_HTTP_REQUEST_H
#define EXPERTD_DAEMON_HTTP_HTTP_REQUEST_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"

enum {
    HTTP_HEAD_MAX = 8192, // bytes of a request line and its headers
    HTTP_PATH_MAX = 1024  // bytes of the path, including the terminator
};

struct http_request;

FALLIBLE http_request_create(struct http_request **out); // EXPERTD_ERR_NOMEM
void http_request_destroy(struct http_request *request); // NULL is legal
void http_request_reset(struct http_request *request);   // prepares for the connection's next request

// Consumes bytes until the request is complete and returns their number. The remaining bytes belong to the next request.
size_t http_request_feed(struct http_request *request, const char *bytes, size_t length);

struct http_request_state {
    bool done;        // the request is complete or refused; the other members are valid
    int refused;      // the status of a refused request (400 or more), otherwise 0
    bool head;        // answer without a body, also if refused
    bool keep_alive;  // false if refused
    const char *path; // without host, query and fragment; borrowed until the next reset
};
struct http_request_state http_request_state(const struct http_request *request);

const char *http_status_text(int status); // "Not Found"

#endif
