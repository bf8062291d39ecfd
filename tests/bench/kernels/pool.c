#include "tests/bench/kernels/pool.h"

#include <stdlib.h>
#include <string.h>

enum { SOURCE_ROWS = 64, TABLE_VALUES = 251 };

static size_t block_count(const struct pool_options *options) {
    size_t wanted = (size_t)(options->all_bytes / packed_group_bytes(options->dtype, options->k, options->n)) + 1;
    return wanted > options->active ? wanted : options->active;
}

uint64_t pool_bytes(const struct pool_options *options) {
    return (uint64_t)block_count(options) * packed_group_bytes(options->dtype, options->k, options->n);
}

// Numbers of both signs around 1 / 32, whose products and sums neither overflow nor flush.
static FALLIBLE pack_first(const struct pool *pool) {
    const struct packed_weights *w = &pool->weights;
    float *rows = malloc(SOURCE_ROWS * w->k * sizeof *rows);
    if (!rows) {
        FAIL(ERR_NOMEM, "no memory for %d rows of %zu weights", SOURCE_ROWS, w->k);
    }
    for (size_t i = 0; i < SOURCE_ROWS * w->k; i++) {
        rows[i] = ((float)(i % TABLE_VALUES) - TABLE_VALUES / 2) * 0x1p-12f;
    }
    struct weight_source source = {.data = rows, .dtype = DTYPE_F32, .n_stride = w->k, .k_stride = 1};
    size_t run_bytes = packed_group_bytes(w->dtype, w->k, SOURCE_ROWS);
    for (size_t at = 0; at < w->group_bytes; at += run_bytes) {
        size_t columns = w->n - at / run_bytes * SOURCE_ROWS;
        pack_weights(&source, w->k, columns < SOURCE_ROWS ? columns : SOURCE_ROWS, w->dtype, pool->blocks + at);
    }
    free(rows);
    return OK;
}

static void copy_block(void *context, size_t task, unsigned thread) {
    (void)thread;
    const struct pool *pool = context;
    memcpy(pool->blocks + (task + 1) * pool->weights.group_bytes, pool->blocks, pool->weights.group_bytes);
}

FALLIBLE pool_create(const struct pool_options *options, struct team *team, struct pool *out) {
    *out = (struct pool){.count = block_count(options),
                         .weights = {.dtype = options->dtype,
                                     .groups = options->groups,
                                     .k = options->k,
                                     .n = options->n,
                                     .group_bytes = packed_group_bytes(options->dtype, options->k, options->n)}};
    err_t e;
    out->table = calloc(options->groups, sizeof *out->table);
    if (!out->table) {
        FAIL(ERR_NOMEM, "no memory for a table of %zu groups", options->groups);
    }
    out->weights.data = out->table;
    void *blocks;
    TRY_OUT(e, arena_init(&out->memory, out->count * out->weights.group_bytes));
    TRY_OUT(e, arena_take(&out->memory, out->count * out->weights.group_bytes, &blocks));
    out->blocks = blocks;
    TRY_OUT(e, pack_first(out));
    team_run(team, out->count - 1, copy_block, out);
    return OK;
out:
    pool_destroy(out);
    return e;
}

void pool_destroy(struct pool *pool) {
    free(pool->table);
    arena_deinit(&pool->memory);
    *pool = (struct pool){0};
}

void pool_deal(struct pool *pool, const int32_t *group_sizes) {
    for (size_t g = 0; g < pool->weights.groups; g++) {
        pool->table[g] = pool->blocks;
        if (group_sizes[g] > 0) {
            pool->table[g] = pool->blocks + pool->next * pool->weights.group_bytes;
            pool->next = (pool->next + 1) % pool->count;
        }
    }
}
