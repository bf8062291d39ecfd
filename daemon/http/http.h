// A small HTTP/1.1 listener on the libuv loop, for operators and monitors: GET and HEAD only, no bodies in, bounded everything
// (connections, header bytes, time), parsed by a packaged library. Loop thread only.
//
// Where all connections are taken, one that for a second has sent no whole request, or has not read its
// answer, makes room: such ones keep no probe out.
#ifndef EXPERTD_DAEMON_HTTP_HTTP_H
#define EXPERTD_DAEMON_HTTP_HTTP_H

#include <stdio.h>

#include "base/err.h"

struct http_server;

// Writes the page for `path` ("/metrics") to body and sets status and content type; 404 for an unknown path.
struct http_answer {
    int status;
    const char *content_type;
};
typedef struct http_answer (*http_page)(void *context, const char *path, FILE *body);

struct http_options {
    void *loop;          // uv_loop_t *: the only place where a header names it, untyped so that libuv stays in .c files
    const char *address; // HOST:PORT: all addresses of the host
    http_page page;
    void *context;
    unsigned max_connections; // 64
    unsigned timeout_ms;      // 10000, of an idle or slow connection
};

// EXPERTD_ERR_UNAVAILABLE names the address and the cause. *port: where HOST:0 ended.
FALLIBLE http_start(const struct http_options *options, struct http_server **out, unsigned *port);
// Closes the listeners and every connection; the server is freed on the loop afterwards. NULL is legal.
void http_stop(struct http_server *server);

#endif
