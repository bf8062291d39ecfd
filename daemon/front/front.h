// The shards of a front: its own in this process, and those in other processes (--shard-hosts). Connects to the others, follows and
// assigns what they hold (shard/membership/), and gives the layers placements over them. Batches reach them by the links of
// front_links.
//
// Order: front_create with the open model, engine_create with front_links, front_start, front_wait. Then batches may be computed.
// To end: no batch is computed any more, front_stop, engine_destroy, front_destroy, expert_store_close.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_H
#define EXPERTD_DAEMON_FRONT_FRONT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "daemon/front/front_options.h"

struct front;
struct metrics;
struct remote_links;

// The shards of this process, and slots for those in other processes: more than are listed, because others may be added later.
uint32_t front_ranks(const struct options *options);

// EXPERTD_ERR_NOMEM, EXPERTD_ERR_UNAVAILABLE (threads).
FALLIBLE front_create(const struct front_options *options, struct front **out);
const struct remote_links *front_links(struct front *front); // for struct engine_options
// Starts to connect and to load. EXPERTD_ERR_UNAVAILABLE: a thread cannot be started. EXPERTD_ERR_NOMEM, EXPERTD_ERR_CONFIG
// (limits).
FALLIBLE front_start(struct front *front);

// Waits at most wait_ms until each expert is ready on a shard that can be reached, and has been once since front_start. True: every
// layer of the model has a placement, and its digests and weights_ids are set. One thread.
bool front_wait(struct front *front, unsigned wait_ms);
// What front_wait waits for: "96 of 256 experts have no shard yet; 127.0.0.1:7421 joining (connect_failed: ...)". Cut to fit.
enum { FRONT_TEXT_MAX = 512 };
const char *front_waits_for(struct front *front, char text[FRONT_TEXT_MAX]);

// From here on experts are also placed by the load that these metrics have counted. At most once, after front_wait.
void front_use_metrics(struct front *front, struct metrics *metrics);

// Ends all connections and threads. No batch is computed any more.
void front_stop(struct front *front);
void front_destroy(struct front *front); // NULL is legal

#endif
