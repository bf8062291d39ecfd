// What a load is made of: the layers of a daemon, a pool of distinct rows with their routes, and the answer that each row gets when
// it is asked alone. Made once, in memory that forked processes share; afterwards nobody writes.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_POOL_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_POOL_H

#include "client/c/calls.h"
#include "client/c/client.h"
#include "client/expertctl/bench/load/bench_options.h"

enum { TARGET_LAYERS_MAX = 1024, TARGET_TEXT_MAX = 128 };

struct target_layer {
    uint32_t layer;
    uint64_t weights_id;
};

// The part of a daemon that is asked: layers of one shape. Plain data.
struct bench_target {
    char model[WIRE_STRING_MAX];
    char server_version[TARGET_TEXT_MAX], numerics_id[TARGET_TEXT_MAX];
    uint32_t hidden_size;
    uint32_t experts; // identity experts counted
    uint32_t choices; // per row, of routes made here
    uint32_t max_tokens;
    uint64_t max_message_bytes, max_region_bytes; // max_region_bytes 0: no memory is shared
    uint32_t num_layers;
    struct target_layer layers[TARGET_LAYERS_MAX];
};

// What of a daemon is meant; borrowed.
struct target_wish {
    const char *model;  // "": the only one
    const char *layers; // "3,5-7", "all", or NULL for the first that is ready
    const char *flag;   // that named the layers
};
// Asks the daemon. EXPERTD_ERR_USAGE where the layers are not served or of different shapes; the client's own errors.
FALLIBLE target_describe(struct client *client, const struct target_wish *wish, int64_t timeout_us, struct bench_target *out);
// TARGET_LAYERS_MAX where it is not among the target's.
uint32_t target_find_layer(const struct bench_target *target, uint32_t layer);

struct bench_pool {
    uint32_t rows, hidden_size, choices;
    enum expertd_dtype dtype;  // of hidden states
    enum expertd_dtype answer; // theirs, or BF16 for F8
    size_t row_bytes;          // of hidden states
    size_t answer_bytes;       // of a row
    bool routed;               // ids and weights are sent
    uint8_t *hidden;           // [rows, H]
    float *scales;             // [rows], of F8 hidden states; NULL: others
    int32_t *ids;              // [rows, choices]
    float *weights;            // [rows, choices]
    uint8_t *expected;         // [layers][rows, H] of the answer's dtype, once pool_ask filled them; NULL: nothing is compared
    size_t expected_bytes;     // of the mapping
};

// Rows and routes from the seed; `expected` is reserved, not filled. EXPERTD_ERR_USAGE, EXPERTD_ERR_NOMEM. pool_deinit in any case.
FALLIBLE pool_init(const struct bench_target *target, const struct bench_options *options, enum expertd_dtype dtype,
                   struct bench_pool *out);
void pool_deinit(struct bench_pool *pool); // legal on a zeroed struct
// Tokens that a call can carry by the daemon's limits and by the pool's pieces.
uint32_t pool_tokens_most(const struct bench_pool *pool, const struct bench_target *target, const struct bench_options *options);
// EXPERTD_ERR_USAGE where the options' tokens are more.
FALLIBLE pool_check(const struct bench_pool *pool, const struct bench_target *target, const struct bench_options *options);
// Asks for every row of every layer alone: one row in the request, one request at a time. A refusal for lack of room is tried again
// for a while. The client's own errors.
FALLIBLE pool_ask(struct client *client, const struct bench_target *target, const struct bench_pool *pool, int64_t timeout_us);

// A request's rows: `tokens` of the group [first, first + count), from `start` on and around.
struct pool_window {
    uint32_t first, count, start, tokens;
};
// The group of a phase (routing_phases of them).
struct pool_window pool_group(const struct bench_pool *pool, uint32_t phases, uint32_t phase);
// The window's hidden states where they lie. Returns the number of pieces, at most CALLS_PIECES_MAX by pool_init.
size_t pool_pieces(const struct bench_pool *pool, const struct pool_window *window, struct calls_piece pieces[CALLS_PIECES_MAX]);
// The window's scales, copied: [tokens, 1].
void pool_scales(const struct bench_pool *pool, const struct pool_window *window, float *scales);
// The window's routes, copied: ids and weights [tokens, choices].
void pool_routes(const struct bench_pool *pool, const struct pool_window *window, int32_t *ids, float *weights);
// Are these the bytes that the rows got alone?
bool pool_agrees(const struct bench_pool *pool, uint32_t layer_index, const struct pool_window *window,
                 const struct wire_tensor *answer);

#endif
