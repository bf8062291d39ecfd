#include "client/expertctl/bench/load/bench_pool.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "base/clock.h"

enum { STREAM_OF_ROWS = 3 << 20, SEND_TRIES = 50, RETRY_PAUSE_MS = 100, REQUEST_OVERHEAD_BYTES = 1024 };

// ---- rows and routes

static bool is_f8(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_F8_E4M3 || dtype == EXPERTD_DTYPE_F8_E5M2;
}

static uint64_t bytes_of_token(const struct bench_pool *pool) {
    uint64_t scale = is_f8(pool->dtype) ? sizeof(float) : 0, route = pool->routed ? sizeof(int32_t) + sizeof(float) : 0;
    return pool->row_bytes + scale + pool->choices * route;
}

static uint64_t rows_of_group(const struct bench_pool *pool, const struct bench_options *o) {
    return pool->rows / routing_phases(&o->routing);
}

uint32_t pool_max_tokens(const struct bench_pool *pool, const struct bench_target *target, const struct bench_options *o) {
    uint64_t most = target->max_tokens, message = target->max_message_bytes;
    uint64_t in_message = message > REQUEST_OVERHEAD_BYTES ? (message - REQUEST_OVERHEAD_BYTES) / bytes_of_token(pool) : 0;
    uint64_t in_pieces = (CALLS_PIECES_MAX - 1) * rows_of_group(pool, o) - 1;
    most = !o->region && in_message < most ? in_message : most;
    return (uint32_t)(in_pieces < most ? in_pieces : most);
}

FALLIBLE pool_check(const struct bench_pool *pool, const struct bench_target *target, const struct bench_options *o) {
    uint64_t most = o->tokens.high, bytes = most * bytes_of_token(pool);
    if (!o->region && bytes + REQUEST_OVERHEAD_BYTES > target->max_message_bytes) {
        FAIL(EXPERTD_ERR_USAGE,
             "calls of up to %u tokens are messages of %llu bytes, and the daemon takes %llu: give fewer --tokens", o->tokens.high,
             (unsigned long long)bytes, (unsigned long long)target->max_message_bytes);
    }
    if (most / rows_of_group(pool, o) + 2 > CALLS_PIECES_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "calls of up to %u tokens from a pool of %u rows have too many pieces: give a larger --pool",
             o->tokens.high, pool->rows);
    }
    return OK;
}

// Random codes of every magnitude, without NaN and infinity, and scales from 0.001 to 0.1.
static FALLIBLE fill_f8(struct bench_pool *pool, uint64_t seed) {
    struct bench_random random = bench_random_seeded(seed, STREAM_OF_ROWS);
    pool->scales = calloc(pool->rows, sizeof *pool->scales);
    if (!pool->scales) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the scales of %u rows: give a smaller --pool", pool->rows);
    }
    for (uint32_t r = 0; r < pool->rows; r++) {
        pool->scales[r] = (float)(1 + bench_random_below(&random, 100)) / 1000;
        for (uint32_t h = 0; h < pool->hidden_size; h++) {
            uint8_t *code = &pool->hidden[r * pool->row_bytes + h];
            float value;
            do {
                *code = (uint8_t)bench_random_below(&random, 256);
                expertd_dtype_widen(pool->dtype, code, 1, &value);
            } while (!isfinite(value));
        }
    }
    return OK;
}

static FALLIBLE fill_hidden(struct bench_pool *pool, uint64_t seed) {
    if (is_f8(pool->dtype)) {
        return fill_f8(pool, seed);
    }
    float *row = calloc(pool->hidden_size, sizeof *row);
    if (!row) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a row of %u", pool->hidden_size);
    }
    struct bench_random random = bench_random_seeded(seed, STREAM_OF_ROWS);
    for (uint32_t r = 0; r < pool->rows; r++) {
        for (uint32_t h = 0; h < pool->hidden_size; h++) {
            row[h] = (float)bench_random_normal(&random);
        }
        expertd_dtype_narrow(row, pool->hidden_size, pool->dtype, pool->hidden + r * pool->row_bytes);
    }
    free(row);
    return OK;
}

static FALLIBLE reserve_expected(const struct bench_target *target, struct bench_pool *pool) {
    size_t bytes = (size_t)target->num_layers * pool->rows * pool->answer_bytes;
    void *mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the answers of %u rows in %u layers (%zu bytes): give a smaller --pool", pool->rows,
             target->num_layers, bytes);
    }
    pool->expected = mapped;
    pool->expected_bytes = bytes;
    return OK;
}

FALLIBLE pool_init(const struct bench_target *target, const struct bench_options *o, enum expertd_dtype dtype,
                   struct bench_pool *pool) {
    *pool = (struct bench_pool){
        .rows = o->pool_rows,
        .hidden_size = target->hidden_size,
        .choices = target->choices,
        .dtype = dtype,
        .answer = is_f8(dtype) ? EXPERTD_DTYPE_BF16 : dtype,
        .row_bytes = target->hidden_size * expertd_dtype_size(dtype),
        .answer_bytes = target->hidden_size * expertd_dtype_size(is_f8(dtype) ? EXPERTD_DTYPE_BF16 : dtype),
        .routed = o->routing.kind != ROUTING_OWN,
    };
    size_t slots = (size_t)pool->rows * pool->choices;
    pool->hidden = calloc(pool->rows, pool->row_bytes);
    pool->ids = calloc(slots, sizeof *pool->ids);
    pool->weights = calloc(slots, sizeof *pool->weights);
    if (!pool->hidden || !pool->ids || !pool->weights) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u rows: give a smaller --pool", pool->rows);
    }
    TRY(fill_hidden(pool, o->seed));
    if (pool->routed) {
        TRY_IN(bench_routing_check(&o->routing, target->experts, pool->choices), "--routing %s", o->routing_text);
        TRY(routing_fill(&o->routing, pool->rows, target->experts, pool->choices, o->seed, pool->ids, pool->weights));
    }
    return o->check_every ? reserve_expected(target, pool) : OK;
}

void pool_deinit(struct bench_pool *pool) {
    if (pool->expected) {
        munmap(pool->expected, pool->expected_bytes);
    }
    free(pool->hidden);
    free(pool->scales);
    free(pool->ids);
    free(pool->weights);
    *pool = (struct bench_pool){0};
}

// ---- windows

struct pool_window pool_group(const struct bench_pool *pool, uint32_t phases, uint32_t phase) {
    uint32_t first = (uint32_t)((uint64_t)phase * pool->rows / phases);
    return (struct pool_window){.first = first, .count = (uint32_t)((phase + 1) * (uint64_t)pool->rows / phases) - first};
}

// The longest run of consecutive pool rows that begins at the window's token `token`.
static uint32_t run_at(const struct pool_window *w, uint32_t token, uint32_t *row) {
    uint32_t at = (uint32_t)(((uint64_t)w->start + token) % w->count);
    *row = w->first + at;
    return w->count - at < w->tokens - token ? w->count - at : w->tokens - token;
}

size_t pool_pieces(const struct bench_pool *pool, const struct pool_window *w, struct calls_piece pieces[CALLS_PIECES_MAX]) {
    size_t count = 0;
    for (uint32_t token = 0, row, run; token < w->tokens; token += run) {
        run = run_at(w, token, &row);
        pieces[count++] = (struct calls_piece){pool->hidden + row * pool->row_bytes, run * pool->row_bytes};
    }
    return count;
}

void pool_scales(const struct bench_pool *pool, const struct pool_window *w, float *scales) {
    for (uint32_t token = 0, row, run; token < w->tokens; token += run) {
        run = run_at(w, token, &row);
        memcpy(scales + token, pool->scales + row, run * sizeof *scales);
    }
}

void pool_routes(const struct bench_pool *pool, const struct pool_window *w, int32_t *ids, float *weights) {
    size_t k = pool->choices;
    for (uint32_t token = 0, row, run; token < w->tokens; token += run) {
        run = run_at(w, token, &row);
        memcpy(ids + token * k, pool->ids + row * k, run * k * sizeof *ids);
        memcpy(weights + token * k, pool->weights + row * k, run * k * sizeof *weights);
    }
}

bool pool_agrees(const struct bench_pool *pool, uint32_t layer_index, const struct pool_window *w,
                 const struct wire_tensor *answer) {
    const struct expertd_tensor_view *view = &answer->view;
    if (!answer->present || view->rank != 2 || view->dtype != pool->answer || view->shape[0] != w->tokens ||
        view->shape[1] != pool->hidden_size || view->bytes != w->tokens * pool->answer_bytes) {
        return false;
    }
    const uint8_t *expected = pool->expected + (size_t)layer_index * pool->rows * pool->answer_bytes, *got = view->data;
    for (uint32_t token = 0, row, run; token < w->tokens; token += run) {
        run = run_at(w, token, &row);
        if (memcmp(got + token * pool->answer_bytes, expected + row * pool->answer_bytes, run * pool->answer_bytes) != 0) {
            return false;
        }
    }
    return true;
}

// ---- sending rows alone

static struct wire_tensor one_row(enum expertd_dtype dtype, uint64_t width, const void *data, size_t bytes) {
    return (struct wire_tensor){
        .present = true,
        .view = {.dtype = dtype, .rank = 2, .shape = {1, width}, .data = (void *)data, .bytes = bytes},
    };
}

static FALLIBLE forward_with_retries(struct client *client, const struct wire_request *request, int64_t timeout_us,
                                     struct client_reply *reply) {
    for (int tries = 1;; tries++) {
        err_t e = client_forward(client, request, timeout_us, reply);
        if (e.code != EXPERTD_ERR_QUEUE_FULL || tries == SEND_TRIES) {
            return e;
        }
        const struct proto_error_text *refusal = client_refusal(client);
        int64_t wait_ms = refusal && refusal->retry_after_ms > 0 ? refusal->retry_after_ms : RETRY_PAUSE_MS;
        wait_ms = wait_ms < NS_PER_S / NS_PER_MS ? wait_ms : NS_PER_S / NS_PER_MS;
        struct timespec pause = {wait_ms / 1000, wait_ms % 1000 * NS_PER_MS};
        nanosleep(&pause, NULL);
    }
}

static FALLIBLE send_row_alone(struct client *client, const struct bench_target *target, const struct bench_pool *pool,
                               uint32_t layer_index, uint32_t row, int64_t timeout_us) {
    size_t k = pool->choices;
    struct wire_request request = {
        .id = row + 1,
        .layer = target->layers[layer_index].layer,
        .weights_id = target->layers[layer_index].weights_id,
        .routing = pool->routed ? WIRE_ROUTING_ROUTES : WIRE_ROUTING_NONE,
        .hidden = one_row(pool->dtype, pool->hidden_size, pool->hidden + row * pool->row_bytes, pool->row_bytes),
    };
    if (pool->scales) {
        request.hidden_scale = one_row(EXPERTD_DTYPE_F32, 1, &pool->scales[row], sizeof(float));
    }
    if (pool->routed) {
        request.ids = one_row(EXPERTD_DTYPE_I32, k, pool->ids + row * k, k * sizeof(int32_t));
        request.weights = one_row(EXPERTD_DTYPE_F32, k, pool->weights + row * k, k * sizeof(float));
    }
    snprintf(request.model, sizeof request.model, "%s", target->model);
    struct client_reply reply;
    TRY(forward_with_retries(client, &request, timeout_us, &reply));
    const struct expertd_tensor_view *answer = &reply.wire.output.view;
    bool fits = reply.wire.output.present && answer->bytes == pool->answer_bytes && answer->dtype == pool->answer;
    if (fits) {
        memcpy(pool->expected + ((size_t)layer_index * pool->rows + row) * pool->answer_bytes, answer->data, pool->answer_bytes);
    }
    client_reply_deinit(&reply);
    if (!fits) {
        FAIL(EXPERTD_ERR_MALFORMED, "the daemon's answer is not a row of %u %s", pool->hidden_size,
             expertd_dtype_name(pool->answer));
    }
    return OK;
}

FALLIBLE pool_ask(struct client *client, const struct bench_target *target, const struct bench_pool *pool, int64_t timeout_us) {
    for (uint32_t l = 0; l < target->num_layers; l++) {
        for (uint32_t row = 0; row < pool->rows; row++) {
            TRY_IN(send_row_alone(client, target, pool, l, row, timeout_us), "layer %u, row %u alone", target->layers[l].layer,
                   row);
        }
    }
    return OK;
}
