// grpc.health.v1: Check and Watch for the services "", "expertd.v1.Experts" and one per model, on top of daemon/grpc/rpc.h.
//
// The owner of the rpc_handler forwards what belongs to RPC_HEALTH_CHECK and RPC_HEALTH_WATCH calls: health_opened's result is the
// `opened` of the functions after it, all on the call's thread; NULL is legal there. The state may be set from any thread.
#ifndef EXPERTD_DAEMON_SERVE_HEALTH_H
#define EXPERTD_DAEMON_SERVE_HEALTH_H

#include <stdbool.h>

#include "base/err.h"
#include "daemon/grpc/rpc.h"

struct health;

enum { HEALTH_MODELS_MAX = 16 };

// Every service is NOT_SERVING at first. The server is borrowed; it may be destroyed before the health is.
FALLIBLE health_create(struct rpc_server *server, unsigned threads, struct health **out);
void health_destroy(struct health *health); // after the server; NULL is legal

// Any thread. A model's name becomes a service, in the state of the others; copied, and nothing where it is one already.
// EXPERTD_ERR_NOMEM is not worth a start: a model without a name here is an unknown service.
void health_set_model(struct health *health, const char *name);
void health_set_serving(struct health *health, bool serving);
// Ends every watch, those still to come too; each sends its last state first.
void health_end_watches(struct health *health);

void *health_opened(struct health *health, struct rpc_call *call, enum rpc_method method, unsigned thread);
void health_message(void *opened, const struct rpc_buffer *message, err_t error); // message borrowed
void health_written(void *opened, bool ok);
void health_closed(void *opened, bool cancelled);
void health_released(void *opened);
void health_tick(struct health *health, unsigned thread); // sends what changed to the thread's watches

#endif
