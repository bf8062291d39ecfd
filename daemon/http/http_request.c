#include "daemon/http/http_request.h"

#include <http_parser.h>
#include <stdlib.h>
#include <string.h>

struct http_request {
    http_parser parser;
    size_t consumed; // bytes of this request so far
    size_t url_length;
    char url[HTTP_PATH_MAX]; // the request target; only its path once the headers are complete
    bool done, keep_alive;
    int refused;
};

// Non-zero stops the parser.
static int refuse(struct http_request *request, int status) {
    request->refused = status;
    request->done = true;
    return 1;
}

static int on_url(http_parser *parser, const char *at, size_t length) {
    struct http_request *request = parser->data;
    if (length >= sizeof request->url - request->url_length) {
        return refuse(request, HTTP_STATUS_URI_TOO_LONG);
    }
    memcpy(request->url + request->url_length, at, length);
    request->url_length += length;
    request->url[request->url_length] = '\0';
    return 0;
}

// Reduces the target to its path. The target may be an absolute URL (RFC 9112, 3.2.2).
static bool extract_path(struct http_request *request) {
    struct http_parser_url parts;
    http_parser_url_init(&parts);
    if (http_parser_parse_url(request->url, request->url_length, 0, &parts) != 0) {
        return false;
    }
    bool has_path = parts.field_set & (1 << UF_PATH);
    size_t length = has_path ? parts.field_data[UF_PATH].len : 0;
    if (!has_path) {
        memcpy(request->url, "/", 2);
        return true;
    }
    memmove(request->url, request->url + parts.field_data[UF_PATH].off, length);
    request->url[length] = '\0';
    return true;
}

static int on_headers_complete(http_parser *parser) {
    struct http_request *request = parser->data;
    bool has_body = (parser->flags & F_CHUNKED) || parser->uses_transfer_encoding ||
                    ((parser->flags & F_CONTENTLENGTH) && parser->content_length > 0);
    if (parser->http_major != 1) {
        return refuse(request, HTTP_STATUS_HTTP_VERSION_NOT_SUPPORTED);
    }
    if (parser->method != HTTP_GET && parser->method != HTTP_HEAD) {
        return refuse(request, HTTP_STATUS_METHOD_NOT_ALLOWED);
    }
    if (has_body) {
        return refuse(request, HTTP_STATUS_PAYLOAD_TOO_LARGE);
    }
    if (!extract_path(request)) {
        return refuse(request, HTTP_STATUS_BAD_REQUEST);
    }
    request->keep_alive = http_should_keep_alive(parser);
    return 0;
}

static int on_message_complete(http_parser *parser) {
    struct http_request *request = parser->data;
    request->done = true;
    http_parser_pause(parser, 1); // further bytes belong to the next request
    return 0;
}

static const http_parser_settings SETTINGS = {
    .on_url = on_url, .on_headers_complete = on_headers_complete, .on_message_complete = on_message_complete};

FALLIBLE http_request_create(struct http_request **out) {
    *out = calloc(1, sizeof **out);
    if (!*out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a connection");
    }
    http_request_reset(*out);
    return OK;
}

void http_request_destroy(struct http_request *request) {
    free(request);
}

void http_request_reset(struct http_request *request) {
    memset(request, 0, sizeof *request);
    http_parser_init(&request->parser, HTTP_REQUEST);
    request->parser.data = request;
}

size_t http_request_feed(struct http_request *request, const char *bytes, size_t length) {
    if (request->done || length == 0) {
        return 0; // zero bytes would signal the end of the stream to the parser
    }
    size_t space = HTTP_HEAD_MAX - request->consumed;
    size_t offered = length < space ? length : space;
    if (!space) {
        refuse(request, HTTP_STATUS_REQUEST_HEADER_FIELDS_TOO_LARGE);
        return 0;
    }
    size_t consumed = http_parser_execute(&request->parser, &SETTINGS, bytes, offered);
    request->consumed += consumed;
    enum http_errno problem = HTTP_PARSER_ERRNO(&request->parser);
    if (!request->done && problem != HPE_OK) {
        bool overflow = problem == HPE_HEADER_OVERFLOW;
        refuse(request, overflow ? HTTP_STATUS_REQUEST_HEADER_FIELDS_TOO_LARGE : HTTP_STATUS_BAD_REQUEST);
    }
    if (!request->done && offered < length) {
        refuse(request, HTTP_STATUS_REQUEST_HEADER_FIELDS_TOO_LARGE);
    }
    return consumed;
}

// The method is known as soon as its word is complete, even if the rest of the request is wrong.
static bool is_head(const http_parser *parser) {
    return parser->method == HTTP_HEAD && HTTP_PARSER_ERRNO(parser) != HPE_INVALID_METHOD;
}

struct http_request_state http_request_state(const struct http_request *request) {
    return (struct http_request_state){.done = request->done,
                                       .refused = request->refused,
                                       .head = is_head(&request->parser),
                                       .keep_alive = request->keep_alive && !request->refused,
                                       .path = request->url};
}

const char *http_status_text(int status) {
    return http_status_str((enum http_status)status);
}
