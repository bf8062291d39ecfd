// Everything that can be configured, from one option table: flag > environment > file > default.
// The only module that reads the environment. Owned by main; read-only afterwards.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/err.h"
#include "expertd/base/dtype.h"

enum { OPTIONS_LISTEN_MAX = 8 };

struct options {
    char *model;                      // --model
    char *listen[OPTIONS_LISTEN_MAX]; // --listen unix:PATH | HOST:PORT, repeatable
    size_t listen_count;
    char *http;                       // --http HOST:PORT, "off" for none
    char *admin;                      // --admin unix:PATH, "off" for none
    uint32_t shards;                  // --shards
    uint32_t threads;                 // --threads, in all
    enum expertd_dtype compute_dtype; // --compute-dtype bf16|f32; EXPERTD_DTYPE_NONE: as the checkpoint says
    bool widen;                       // --widen: quantised weights become elements of the compute dtype
    char *device;                     // --device auto|cpu|cuda[:0,1]|sim[:N]
    bool have_layers;                 // --layers A-B
    uint32_t first_layer, last_layer;
    char *placement;               // --placement contiguous|balanced
    char *placement_counts;        // --placement-counts FILE.json: rows per expert, for balanced
    uint32_t replicas;             // --replicas: of each layer's experts, beyond one copy each
    uint64_t move_bytes_max;       // memory that moving experts may take for a while, 1 GiB
    uint32_t exchange_timeout_ms;  // of a batch on several devices, 10000
    char *kernels;                 // --kernels auto|scalar|avx2|...: a backend of kernels/
    char *tuning;                  // --tuning heuristic|cached|tune
    char *tuning_cache;            // --tuning-cache FILE: of schedules; for cached and tune
    char *hf_cache;                // --hf-cache: from HF_HUB_CACHE, HF_HOME, HOME where not given
    uint64_t max_message_bytes;    // 64 MiB
    uint32_t max_batch_tokens;     // 4096
    uint32_t max_piece_tokens;     // of one request in a batch, 512; at most max_batch_tokens
    uint32_t max_request_tokens;   // 65536
    uint32_t max_queue_delay_us;   // a batch that is not full waits for company, 0
    uint32_t max_top_k;            // 64
    uint32_t max_calls;            // calls open at once, 1024
    uint32_t max_streams;          // streams open at once, 64: each may hold one message that is being read
    uint32_t max_inflight;         // unanswered requests of one stream, 16
    uint32_t max_queue;            // requests admitted and not answered, 256
    uint64_t max_queue_bytes;      // their bytes in all, 256 MiB; at least max_message_bytes
    uint32_t max_connection_share; // percent of calls, streams, slots, regions and queue that one connection may hold, 50
    uint32_t max_connections;      // of each address, 1024
    uint32_t read_slots;           // messages being read at once, 8
    uint64_t max_region_bytes;     // of one shared-memory region, 256 MiB; 0: none are shared
    uint32_t max_regions;          // regions held at once, 64
    uint64_t memory_max;           // of weights; 0: what is available
    uint32_t rpc_threads;          // completion-queue threads, 1
    uint32_t spin_us;              // of an idle team, 50
    uint32_t drain_timeout_ms;     // SIGTERM to cancelling what still runs, 30000
    uint32_t send_timeout_ms;      // a reader that does not read loses its stream, 30000
    char *allow_uids;              // who may connect to a Unix socket: "any", "self", or uids, comma-separated; default self
    char *log_level;               // error|warning|info|debug
    // what main does instead of serving
    bool check_config, print_config, version, help;
    char *config; // --config FILE.yaml
    bool journal; // standard error is systemd's journal ($JOURNAL_STREAM)
    // [a row of the option table each] where the value came from: "default", "flag --model", "environment EXPERTD_MODEL",
    // "file FILE:line". NULL where the parse ended before it.
    char **origins;
};

// Parses all sources. `environment` is NULL-terminated, "NAME=value". EXPERTD_ERR_USAGE (a flag; suggests the nearest),
// EXPERTD_ERR_CONFIG (a variable or the file, with line and the nearest key). Cross-checks values. out must be deinit'ed also on
// error.
FALLIBLE options_parse(int argc, char *const *argv, char *const *environment, struct options *out);
void options_deinit(struct options *options); // legal on a zeroed struct

void options_print_help(FILE *out);
// Effective configuration as YAML with each value's origin as a comment; loads again to the same.
void options_print(const struct options *options, FILE *out);
// "key=value ..." pairs for the start-up log, one call per option.
void options_each(const struct options *options,
                  void (*visit)(void *context, const char *key, const char *value, const char *origin), void *context);

#endif
