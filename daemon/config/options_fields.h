// struct options: the value of every option, without the code that parses it. The other headers of this folder build on it.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_FIELDS_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_FIELDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/base/dtype.h"

enum { OPTIONS_LISTEN_MAX = 8, OPTIONS_RPC_THREADS_MAX = 16, OPTIONS_FRONTS_MAX = 64 };

// Each field has the name of its flag. A comment gives the default, or explains the value.
struct options {
    char *model;                      // required
    char *role;                       // front or shard
    char *listen[OPTIONS_LISTEN_MAX]; // unix:PATH or HOST:PORT; the default depends on the environment
    size_t listen_count;
    char *http;               // HOST:PORT or "off"
    char *admin;              // unix:PATH, HOST:PORT or "off"
    char *tls_cert, *tls_key; // files of this daemon's certificate and key: TCP addresses of listen and admin are TLS
    char *tls_client_ca;      // file of the CA of clients, which then need a certificate
    char *tls_ca;             // file of the CA of servers that this daemon dials
    // Patterns of tls_identity.h, separated by commas; NULL: every certificate of the CA. admins: nobody.
    char *tls_allow_callers, *tls_allow_fronts, *tls_allow_shards, *tls_allow_admins;
    bool insecure;                    // allow plain TCP beyond the loopback
    uint32_t shards;                  // 1; of this process
    char *shard_hosts;                // HOST:PORT or dns:NAME:PORT, separated by commas; NULL: no shards in other processes
    uint32_t copies;                  // 1; shards that hold each expert, at least
    bool placement_owner;             // true; may place experts on the shards of shard_hosts
    uint32_t rereplicate_after;       // 30; seconds
    uint32_t heartbeat_ms;            // 25
    uint32_t threads;                 // over all shards; default: the CPUs that this process may use
    enum expertd_dtype compute_dtype; // BF16 or F32; EXPERTD_DTYPE_NONE: derived from the checkpoint
    bool widen;                       // dequantise weights to the compute dtype while loading
    char *quantize;                   // none, fp8, int8, int4 or mxfp4: quantise plain experts while loading
    char *device;                     // auto, cpu, cuda[:0,1], sim[:N], each with an optional /VARIANT
    bool have_layers;                 // --layers A-B; false: all layers
    uint32_t first_layer, last_layer;
    char *placement;               // contiguous or balanced
    char *placement_counts;        // JSON file of rows per expert, for balanced
    uint32_t replicas;             // 0; copies of experts beyond the first, per layer
    uint64_t move_bytes_max;       // 1 GiB; extra memory that a move of experts may use
    uint32_t exchange_timeout_ms;  // 10000; limit for one batch on devices or remote shards
    char *numerics;                // fastest or portable
    char *kernels;                 // auto, or the name of a backend of kernels/
    char *tuning;                  // heuristic, cached or tune
    char *tuning_cache;            // file of tuned schedules, for cached and tune
    char *hf_cache;                // default: by the variables of hub_cache.c
    uint64_t max_message_bytes;    // 64 MiB
    uint32_t max_batch_tokens;     // 4096
    uint32_t max_piece_tokens;     // 512; tokens of one request in one batch; at most max_batch_tokens
    uint32_t max_request_tokens;   // 65536
    uint32_t max_queue_delay_us;   // 0; time that a batch which is not full waits for more requests
    uint32_t max_top_k;            // 64
    uint32_t max_calls;            // 1024; open calls
    uint32_t max_streams;          // 64; open streams, each of which may be receiving one message
    uint32_t max_fronts;           // 8; of a shard
    uint32_t max_inflight;         // 16; unanswered requests of one stream
    uint32_t max_queue;            // 256; requests admitted and not yet answered
    uint64_t max_queue_bytes;      // 256 MiB; bytes of those requests; at least max_message_bytes
    uint32_t max_connection_share; // 50; percentage of calls, streams, read slots, regions and queue for one connection
    uint32_t max_connections;      // 1024; per address
    uint32_t read_slots;           // 8; unary messages being received at the same time
    uint64_t max_region_bytes;     // 256 MiB; size of one shared-memory region; 0: shared memory is off
    uint32_t max_regions;          // 64
    uint64_t memory_max;           // limit for the weights; 0: the available memory
    uint32_t rpc_threads;          // 1; completion-queue threads
    uint32_t spin_us;              // 50; time that an idle compute thread spins
    uint32_t drain_timeout_ms;     // 30000; from SIGTERM until running requests are cancelled
    uint32_t send_timeout_ms;      // 30000; a client that does not read its answers for so long loses its stream
    char *allow_uids;              // "self", "any" or comma-separated uids that may connect to a Unix socket
    char *log_level;               // error, warning, info or debug
    // Switches: main prints or checks something and exits.
    bool inspect, json;              // describe the model from the headers of its files
    bool verify;                     // load it, look for unsound values, print its digests
    char *digests, *compare_digests; // files, for verify
    bool check_config, print_config, version, help;
    char *config; // the YAML file
    bool journal; // standard error is connected to systemd's journal ($JOURNAL_STREAM is set)
    // [OPTION_COUNT] where each value came from: "default", "flag --model", "environment EXPERTD_MODEL", "file FILE:LINE".
    // An entry is NULL if parsing ended before that option.
    char **origins;
};

#endif
