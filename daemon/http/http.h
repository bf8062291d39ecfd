// A small HTTP/1.1 server on the libuv loop, for operators and monitoring. It serves GET and HEAD without request bodies, and
// limits connections, header bytes and time. Loop thread only.
//
// At the connection limit, a new connection replaces the connection that has been idle longest, if that is a second or more. Idle
// means: it has sent no complete request, or has not read its answer. So idle clients cannot keep health probes out.
#ifndef EXPERTD_DAEMON_HTTP_HTTP_H
#define EXPERTD_DAEMON_HTTP_HTTP_H

#include <stdio.h>

#include "base/err.h"

struct http_server;

struct http_answer {
    int status;
    const char *content_type;
};
// Writes the page for `path` ("/metrics") to `body` and returns its status and content type; 404 for an unknown path.
typedef struct http_answer (*http_page)(void *context, const char *path, FILE *body);

struct http_options {
    void *loop;          // uv_loop_t *, untyped so that libuv stays in .c files
    const char *address; // HOST:PORT; listens on all addresses of the host
    http_page page;
    void *context;
    unsigned max_connections;
    unsigned timeout_ms; // for a complete request to arrive, and for its answer to be read
};

// *port: the bound port. EXPERTD_ERR_UNAVAILABLE: the address cannot be bound.
FALLIBLE http_start(const struct http_options *options, struct http_server **out, unsigned *port);
// Closes the listeners and all connections; then the loop frees the server. NULL is legal.
void http_stop(struct http_server *server);

#endif
