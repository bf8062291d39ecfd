// The C client of expertd: blocking calls over gRPC, one at a time.
//
// It does not choose an address, read the environment, retry, split requests or log. A client is one connection, opened by the
// first call and reopened after a loss. It belongs to one thread; create one client per thread. The deadline is sent with the call,
// so the daemon does not compute requests whose caller has given up. gRPC types appear only in client/c/grpc/.
//
// If the daemon answered with an error, that error is returned: the code of its reason, its message, and the request field at fault
// in expertd_err_field(). EXPERTD_ERR_UNAVAILABLE without an answer (client_refusal is NULL) means that no daemon was reached; the
// message names the address, the cause and the remedy.
#ifndef EXPERTD_CLIENT_C_CLIENT_H
#define EXPERTD_CLIENT_C_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "client/c/tls.h"
#include "proto/client/client_wire.h"
#include "proto/control/control.h"

struct client;

// Tunes gRPC and malloc for large messages. It changes the environment and the whole process, so call it once at the start of main,
// before threads and clients are created. A library that embeds the client should not call it; it only loses speed.
void client_tune_process(void);

// `address`: unix:PATH or HOST:PORT, copied. Does not connect yet. EXPERTD_ERR_USAGE: not an address; *out is NULL then.
FALLIBLE client_create(const char *address, struct client **out);
// The same with TLS, if the address is TCP. The files are read here. EXPERTD_ERR_CONFIG: a file is wrong; the message names it.
FALLIBLE client_create_tls(const char *address, const struct client_tls *tls, struct client **out);
void client_destroy(struct client *client);              // NULL is legal
const char *client_address(const struct client *client); // for messages; borrowed from the client

// timeout_us of every call: until the complete answer has arrived; 0: no limit. EXPERTD_ERR_DEADLINE when it has passed.

struct client_description {
    struct describe_response response; // views into `owner` and `bytes`
    struct describe_reply *owner;
    struct proto_bytes bytes;
};

// Calls Describe. `model` "": all models. On error *out is zeroed.
FALLIBLE client_describe(struct client *client, const char *model, int64_t timeout_us, struct client_description *out);
void client_description_deinit(struct client_description *description); // legal on a zeroed struct

// grpc.health.v1 Check. `service`: "", "expertd.v1.Experts", or a model's name; an unknown one gives SERVICE_UNKNOWN.
FALLIBLE client_health(struct client *client, const char *service, int64_t timeout_us, enum proto_serving *out);

struct client_reply {
    struct wire_reply wire; // output: [T, H], a view into bytes
    struct proto_bytes bytes;
};

// Calls Forward. The request's tensors are borrowed until the call returns and copied once, into the message of at most 4 GiB.
// timeout_us is the call's; request->timeout_us is separate, and the daemon counts it from receipt. On error *out is zeroed.
FALLIBLE client_forward(struct client *client, const struct wire_request *request, int64_t timeout_us, struct client_reply *out);
void client_reply_deinit(struct client_reply *reply); // legal on a zeroed struct

// Calls OpenRegion. client_region_open (region.h) uses it.
FALLIBLE client_offer_region(struct client *client, uint64_t bytes, int64_t timeout_us, struct open_region_response *out);

// Calls a method by its path, such as "/expertd.admin.v1.Admin/Drain". Takes ownership of request.data, also on error. The caller
// frees answer->data.
FALLIBLE client_unary_take(struct client *client, const char *method, struct proto_bytes request, int64_t timeout_us,
                           struct proto_bytes *answer);
// The same for a method that answers with a stream: `message` is called on the calling thread with each message, borrowed until it
// returns. An error from it cancels the call and is returned.
FALLIBLE client_stream_take(struct client *client, const char *method, struct proto_bytes request, int64_t timeout_us,
                            err_t (*message)(void *context, const uint8_t *bytes, size_t length), void *context);

// The daemon's error of the last call: gRPC status, reason, field, message, when to try again. NULL if the last call succeeded or
// no daemon answered. Valid until the next call.
const struct proto_error_text *client_refusal(const struct client *client);

#endif
