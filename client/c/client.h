// The C client of expertd: blocking calls over gRPC, one at a time.
//
// It does not choose an address, read the environment, retry, split or log: its caller does. A client is one connection, opened by
// its first call and opened anew after a loss; it belongs to one thread (make one per thread). Deadlines travel with the call, so
// the daemon drops what nobody waits for any longer. gRPC is inside client.c alone.
//
// Errors are the daemon's own where it answered: the err_code of its reason, its message, and the request field at fault in
// expertd_err_field(). EXPERTD_ERR_UNAVAILABLE without an answer means that nothing was reached: the message names the address, the
// cause and the mend.
#ifndef EXPERTD_CLIENT_C_CLIENT_H
#define EXPERTD_CLIENT_C_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/control/control.h"
#include "proto/wire/client_wire.h"

struct client;

// Sets what gRPC and malloc should know for large messages. Process-wide and through the environment, so it is for a program's
// main, once, before its threads and its first client; a library that embeds the client leaves it out and only loses speed.
void client_tune_process(void);

// `address`: unix:PATH or HOST:PORT, copied. Reaches nobody yet. EXPERTD_ERR_USAGE where it is no address; out is NULL then.
FALLIBLE client_create(const char *address, struct client **out);
void client_destroy(struct client *client);              // NULL is legal
const char *client_address(const struct client *client); // for messages; borrowed from the client

// timeout_us of every call: from here to its whole answer; 0: as long as it takes. EXPERTD_ERR_DEADLINE when it has passed.

struct client_description {
    struct describe_response response; // views into the two below
    struct describe_reply *owner;
    struct proto_bytes bytes;
};

// What is served. `model` "" : all models. On error *out is zeroed.
FALLIBLE client_describe(struct client *client, const char *model, int64_t timeout_us, struct client_description *out);
void client_description_deinit(struct client_description *description); // legal on a zeroed struct

// grpc.health.v1 Check. `service`: "", "expertd.v1.Experts", or a model's name; an unknown one gives SERVICE_UNKNOWN.
FALLIBLE client_health(struct client *client, const char *service, int64_t timeout_us, enum proto_serving *out);

struct client_reply {
    struct wire_reply wire; // output: [T, H], a view into bytes
    struct proto_bytes bytes;
};

// One layer, once. The request's tensors are borrowed until the call returns; they are copied once, into the message, of up to
// 4 GiB. timeout_us is the call's, apart from request->timeout_us, which the daemon counts from receipt. On error *out is zeroed.
FALLIBLE client_forward(struct client *client, const struct wire_request *request, int64_t timeout_us, struct client_reply *out);
void client_reply_deinit(struct client_reply *reply); // legal on a zeroed struct

// OpenRegion: region.h makes a region of the offer.
FALLIBLE client_offer_region(struct client *client, uint64_t bytes, int64_t timeout_us, struct open_region_response *out);

// A method by its path, such as "/expertd.admin.v1.Admin/Drain". Takes request.data, also on error; answer->data is the caller's.
FALLIBLE client_unary_take(struct client *client, const char *method, struct proto_bytes request, int64_t timeout_us,
                           struct proto_bytes *answer);
// The same where the answer is a stream: `message` gets each message, borrowed until it returns, on the calling thread. Its own
// error hangs up, and is returned.
FALLIBLE client_stream_take(struct client *client, const char *method, struct proto_bytes request, int64_t timeout_us,
                            err_t (*message)(void *context, const uint8_t *bytes, size_t length), void *context);

// What the daemon said when the last call failed: gRPC status, reason, field, message, when to try again. NULL where the last call
// went well or no daemon answered. Until the next call.
const struct proto_error_text *client_refusal(const struct client *client);

#endif
