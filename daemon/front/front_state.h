// The state of a front, shared by the files of this folder. Private to daemon/front/.
//
// One mutex guards all of it but the fields that are marked otherwise. The threads that take it: the dialler's, for what arrives
// and for the heartbeats; the loaders'; the one that puts placements in force; and those that ask for the status or for a drain. It
// is never held while a thread loads, waits for a batch or for a name server. The links' and the dialler's functions are called
// with it held; their callbacks take it.
#ifndef EXPERTD_DAEMON_FRONT_FRONT_STATE_H
#define EXPERTD_DAEMON_FRONT_FRONT_STATE_H

#include <pthread.h>
#include <sys/queue.h>

#include "base/clock.h"
#include "daemon/config/options_hosts.h"
#include "daemon/front/front_options.h"
#include "daemon/grpc/dial.h"
#include "daemon/log/log_limit.h"
#include "daemon/rows/row_links.h"
#include "expert/store/holdings.h"
#include "proto/shard/shard_control.h"
#include "shard/membership/holder.h"
#include "shard/membership/membership.h"
#include "shard/membership/membership_status.h"

struct front;

// What front_step.c calls, so that the files below it need not know those above (front_loop.c).
struct front_steps {
    void (*carry_out)(struct front *front, const struct membership_action *action);
    bool (*next)(struct front *front, struct membership_event *event); // an event that this process itself has caused. False: none
    void (*settled)(struct front *front);                              // nothing is left to be done
};

enum {
    FRONT_LOADERS_MAX = 16,
    FRONT_WHY_MAX = 512,
    FRONT_CONTROL_THREAD = 0,          // of the dialler; the others carry rows
    FRONT_OUTBOX_BYTES_MAX = 16 << 20, // of messages to one shard that have not left; a shard that does not read is closed
};

// A message to a shard.
struct front_message {
    STAILQ_ENTRY(front_message) link;
    size_t length;
    uint8_t bytes[];
};

// One connection to a shard, from the dial to the end of both streams.
struct front_connection {
    LIST_ENTRY(front_connection) link;
    struct front *front;
    uint32_t member, number; // of MEMBERSHIP_DIAL
    struct dial_channel *control_channel, *rows_channel;
    struct dial_stream *control; // NULL: has ended
    bool never_opened;           // it has no streams: creating them failed
    bool is_greeted;             // the shard's hello was accepted
    bool wants_rows;             // it was, and the member's earlier rows stream has not ended yet
    bool has_rows;               // row_links_open has succeeded, and its `ended` has not come
    bool was_refused;            // the shard has ended the connection with an error about the hello
    bool is_closing;             // the membership knows that it ends
    bool is_writing;             // a message is leaving
    bool heartbeat_is_due;       // takes precedence of the outbox
    unsigned messages;           // taken since the last tick
    bool is_paced;               // it has sent too many: the next one is read after the tick
    int64_t dialled_ns;
    uint8_t token[SHARD_TOKEN_LENGTH];
    STAILQ_HEAD(, front_message) outbox;
    size_t outbox_bytes;
};

// A shard of this process.
struct front_local {
    struct holder holder;
    void *holder_memory;
    struct holdings *holdings;
};

enum front_loader_state { LOADER_IDLE, LOADER_HAS_WORK };

// A thread that loads one expert at a time.
struct front_loader {
    struct front *front;
    pthread_t thread;
    unsigned index; // of the team's staging memory
    enum front_loader_state state;
    uint32_t rank;
    struct expert_id expert;
};

// What the shard in a slot said last, for the log and the status.
struct front_note {
    char why[FRONT_WHY_MAX]; // of the last lost or failed connection; "": none
    uint32_t loading;        // LoadProgress
    uint64_t bytes_left, bytes_per_second;
    uint64_t rows_counted;  // at front.rates_ns
    double rows_per_second; // in the second before
    struct log_limit log;   // of lines that the shard causes
    int16_t host;           // index into the entries of --shard-hosts that listed it; -1: an operator
};

struct front {
    struct front_options options;
    uint32_t local, ranks;
    uint64_t instance; // random, of this process
    struct dialler *dialler;
    struct row_links *links;

    pthread_mutex_t mutex;
    const struct front_steps *steps;
    struct membership membership;
    void *membership_memory;
    struct catalogue catalogue;
    uint32_t *layer_numbers, *layer_experts; // [L]
    uint64_t *expert_bytes;                  // [L]
    uint64_t *local_bytes_max;               // [local]
    struct front_local *locals;              // [local]
    struct front_note *notes;                // [ranks]
    LIST_HEAD(, front_connection) connections;
    pthread_cond_t unconnected; // signalled when `connections` becomes empty
    bool is_stopping;

    pthread_cond_t work; // for the loaders
    struct front_loader loaders[FRONT_LOADERS_MAX];
    unsigned loader_count;

    // front_tables.c
    pthread_t placer;
    bool has_placer;
    pthread_cond_t tables;  // signalled when a table waits
    uint64_t *table_epochs; // [L] 0: no table waits

    struct options_host *hosts; // [host_count] the entries of --shard-hosts
    uint32_t host_count;
    bool hosts_are_listed;
    pthread_t resolver;
    bool has_resolver;
    pthread_cond_t resolve; // signalled at the end

    pthread_cond_t ready; // signalled when is_complete becomes true
    bool is_complete;     // each expert has been ready once, and every layer has its placement
    bool is_identified;   // only the thread of front_wait

    struct metrics *metrics; // NULL: not yet
    uint64_t *load_rows;     // [cells] as counted at the last measurement
    int64_t load_ns;         // of the next measurement
    int64_t rates_ns;        // when the rows per second were measured last

    struct log_limit owner_log; // of changes of the placement owner

    bool mends;             // front_mends
    int64_t mends_until_ns; // asked again from then on

    int64_t tick_ns;             // of the next tick
    struct copy_report *reports; // [REPORTS_MAX] of one inventory message
    uint32_t *first, *holders;   // scratch of the placer's thread: [E + 1], [E * ranks]
};

// The threads of the dialler: one for control streams, the others for rows.
static inline unsigned front_dial_threads(const struct front *front) {
    return front->ranks - front->local > 8 ? 4 : 2;
}

static inline void front_lock(struct front *front) {
    pthread_mutex_lock(&front->mutex);
}

static inline void front_unlock(struct front *front) {
    pthread_mutex_unlock(&front->mutex);
}

#endif
