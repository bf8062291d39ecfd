// The material of a load: the daemon's layers (bench_target), a pool of distinct rows with their routes (bench_pool), and the
// answer that each row gets when it is sent alone. It is built once, in memory shared with the forked processes, and then only
// read.
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

// The layers that the load calls, all of one shape, and the daemon's limits. Plain data.
struct bench_target {
    char model[WIRE_STRING_MAX];
    char server_version[TARGET_TEXT_MAX], numerics_id[TARGET_TEXT_MAX];
    uint32_t hidden_size;
    uint32_t experts; // including identity experts
    uint32_t choices; // per row, in generated routes
    uint32_t max_tokens;
    uint64_t max_message_bytes, max_region_bytes; // max_region_bytes 0: the daemon shares no memory
    uint32_t num_layers;
    struct target_layer layers[TARGET_LAYERS_MAX];
};

// The user's choice of model and layers. Strings are borrowed.
struct target_selection {
    const char *model;  // "": the only served model
    const char *layers; // "3,5-7", "all", or NULL: the first ready layer
    const char *flag;   // the flag that named the layers, for messages
};
// Calls Describe. EXPERTD_ERR_USAGE: a layer is not served, or shapes differ; also the client's errors.
FALLIBLE target_describe(struct client *client, const struct target_selection *selection, int64_t timeout_us,
                         struct bench_target *out);
// Index of a layer in target->layers; TARGET_LAYERS_MAX if it is not there.
uint32_t target_find_layer(const struct bench_target *target, uint32_t layer);

struct bench_pool {
    uint32_t rows, hidden_size, choices;
    enum expertd_dtype dtype;  // of hidden states
    enum expertd_dtype answer; // of answers: the same, or BF16 for F8
    size_t row_bytes;          // of a row of hidden states
    size_t answer_bytes;       // of a row of an answer
    bool routed;               // requests carry ids and weights
    uint8_t *hidden;           // [rows, H]
    float *scales;             // [rows] of F8 hidden states, else NULL
    int32_t *ids;              // [rows, choices]
    float *weights;            // [rows, choices]
    uint8_t *expected;         // [layers][rows, H] in the answer's dtype, filled by pool_ask; NULL: answers are not compared
    size_t expected_bytes;     // of the mapping
};

// Generates rows and routes from the seed; reserves `expected`. EXPERTD_ERR_USAGE, EXPERTD_ERR_NOMEM. Call pool_deinit also on
// error.
FALLIBLE pool_init(const struct bench_target *target, const struct bench_options *options, enum expertd_dtype dtype,
                   struct bench_pool *out);
void pool_deinit(struct bench_pool *pool); // legal on a zeroed struct
// The most tokens that a call can carry within the daemon's limits and CALLS_PIECES_MAX.
uint32_t pool_max_tokens(const struct bench_pool *pool, const struct bench_target *target, const struct bench_options *options);
// EXPERTD_ERR_USAGE if the options ask for more tokens than that.
FALLIBLE pool_check(const struct bench_pool *pool, const struct bench_target *target, const struct bench_options *options);
// Sends every row to every layer alone, one request at a time, and stores the answers in `expected`. Retries QUEUE_FULL for a
// while. The client's errors.
FALLIBLE pool_ask(struct client *client, const struct bench_target *target, const struct bench_pool *pool, int64_t timeout_us);

// The rows of a request: `tokens` consecutive rows of the group [first, first + count), from first + start on, wrapping around.
struct pool_window {
    uint32_t first, count, start, tokens;
};
// The group of rows of one phase of routing_phases.
struct pool_window pool_group(const struct bench_pool *pool, uint32_t phases, uint32_t phase);
// The window's hidden states as pieces of the pool. Returns their number, at most CALLS_PIECES_MAX (pool_check).
size_t pool_pieces(const struct bench_pool *pool, const struct pool_window *window, struct calls_piece pieces[CALLS_PIECES_MAX]);
// Copies the window's scales: [tokens, 1].
void pool_scales(const struct bench_pool *pool, const struct pool_window *window, float *scales);
// Copies the window's routes: ids and weights [tokens, choices].
void pool_routes(const struct bench_pool *pool, const struct pool_window *window, int32_t *ids, float *weights);
// True if the answer has the bytes that the rows got alone.
bool pool_agrees(const struct bench_pool *pool, uint32_t layer_index, const struct pool_window *window,
                 const struct wire_tensor *answer);

#endif
