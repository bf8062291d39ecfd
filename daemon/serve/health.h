// grpc.health.v1: Check and Watch for the services "", "expertd.v1.Experts" and one per model, on top of daemon/grpc/rpc.h.
//
// The owner of the rpc_handler forwards the callbacks of RPC_HEALTH_CHECK and RPC_HEALTH_WATCH calls. The result of health_opened
// is the first argument of the other functions, on the call's thread; NULL is legal there. Any thread may set the state.
#ifndef EXPERTD_DAEMON_SERVE_HEALTH_H
#define EXPERTD_DAEMON_SERVE_HEALTH_H

#include <stdbool.h>

#include "base/err.h"
#include "daemon/grpc/rpc.h"

struct health;

enum { HEALTH_MODELS_MAX = 16 };

// Every service is NOT_SERVING at first. The server is borrowed, and may be destroyed before the health service.
FALLIBLE health_create(struct rpc_server *server, unsigned threads, struct health **out);
void health_destroy(struct health *health); // after the server; NULL is legal

// Any thread. Adds a service with the model's name (copied), in the state of the others. A second call with one name does nothing.
// Without memory the name stays an unknown service, which is no reason to stop the daemon.
void health_set_model(struct health *health, const char *name);
void health_set_serving(struct health *health, bool serving);
// Ends every watch, including later ones, after each has sent its last state.
void health_end_watches(struct health *health);

void *health_opened(struct health *health, struct rpc_call *call, enum rpc_method method, unsigned thread);
void health_message(void *opened, const struct rpc_buffer *message, err_t error); // message borrowed
void health_written(void *opened, bool ok);
void health_closed(void *opened, bool cancelled);
void health_released(void *opened);
void health_tick(struct health *health, unsigned thread); // sends a changed state to the watches of this thread

#endif
