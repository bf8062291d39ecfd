#include "tests/bench/kernels/measure/pool.h"

#include <stdlib.h>
#include <string.h>

enum { SOURCE_ROWS = 64, TABLE_VALUES = 251, TABLE_MIDDLE = 125, SCALE_K_MIN = 16, CODES_USED = 119, CODES_NEGATIVE = 0x80 };

static size_t group_bytes(const struct pool_options *o, size_t n) {
    return o->format ? expertd_quantised_group_bytes(o->format, o->k, n) : expertd_packed_group_bytes(o->dtype, o->k, n);
}

static size_t block_count(const struct pool_options *options) {
    size_t wanted = (size_t)(options->all_bytes / group_bytes(options, options->n)) + 1;
    return wanted > options->active ? wanted : options->active;
}

uint64_t pool_bytes(const struct pool_options *options) {
    return (uint64_t)block_count(options) * group_bytes(options, options->n);
}

// Numbers of both signs of about 1 / 32, whose products and sums neither overflow nor become subnormal.
static FALLIBLE pack_plain(const struct pool_options *o, char *block) {
    float *rows = malloc(SOURCE_ROWS * o->k * sizeof *rows);
    if (!rows) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %d rows of %zu weights", SOURCE_ROWS, o->k);
    }
    bool integers = o->dtype == EXPERTD_DTYPE_I8;
    for (size_t i = 0; i < SOURCE_ROWS * o->k; i++) {
        int number = (int)(i % TABLE_VALUES) - TABLE_MIDDLE;
        if (integers) {
            ((int8_t *)rows)[i] = (int8_t)number;
        } else {
            rows[i] = (float)number * 0x1p-12f;
        }
    }
    struct expertd_weight_source source = {
        .data = rows, .dtype = integers ? EXPERTD_DTYPE_I8 : EXPERTD_DTYPE_F32, .n_stride = o->k, .k_stride = 1};
    for (size_t n = 0; n < o->n; n += SOURCE_ROWS) {
        size_t columns = o->n - n < SOURCE_ROWS ? o->n - n : SOURCE_ROWS;
        expertd_pack_weights(&source, o->k, columns, o->dtype, o->layout, block + group_bytes(o, n));
    }
    free(rows);
    return OK;
}

static void fill_scale(enum expertd_dtype dtype, uint8_t *scales, size_t i) {
    float value = 0x1p-7f;
    switch (dtype) {
    case EXPERTD_DTYPE_F8_E8M0:
        scales[i] = 127 - 7;
        break;
    case EXPERTD_DTYPE_F8_E4M3:
        scales[i] = 1 << 3; // 2^(1 - 7)
        break;
    case EXPERTD_DTYPE_I8:
        scales[i] = 1; // the super scale is 1 / 128
        break;
    default:
        expertd_dtype_narrow(&value, 1, dtype, scales + i * expertd_dtype_size(dtype));
    }
}

// Codes of every value but NaN. All scales are 1 / 128 in their dtype, or 1 / 64 in E4M3, which cannot represent 1 / 128.
static FALLIBLE pack_codes(const struct pool_options *o, char *block) {
    const enum expertd_weight_code kind = o->format->code;
    unsigned bits = kind == EXPERTD_CODE_E4M3 || kind == EXPERTD_CODE_E5M2 || kind == EXPERTD_CODE_INT8 ? 8 : 4;
    size_t codes = SOURCE_ROWS * o->k * bits / 8, scales = SOURCE_ROWS * (o->k / SCALE_K_MIN + 1);
    uint8_t *code = malloc(codes), *scale = malloc(scales * sizeof(float));
    const bool supers = o->format->scale == EXPERTD_DTYPE_I8;
    uint16_t super[1]; // one for all columns and k
    fill_scale(EXPERTD_DTYPE_F16, (uint8_t *)super, 0);
    err_t e = OK;
    if (!code || !scale) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %d rows of %zu codes", SOURCE_ROWS, o->k);
    }
    for (size_t i = 0; i < codes && !err_is(e); i++) {
        code[i] = (uint8_t)(i % CODES_USED + (i % 2 ? CODES_NEGATIVE : 0));
    }
    for (size_t i = 0; i < scales && !err_is(e); i++) {
        fill_scale(o->format->scale, scale, i);
    }
    struct expertd_quantised_source source = {
        .codes = {code, bits, 8, o->k, 8 * o->k, 1, 8, NULL, 0, 0},
        .scales = scale,
        .scale_columns = o->format->scale_of_panel ? SOURCE_ROWS : 1,
        .scale_n_stride = o->format->scale_k ? (o->k + o->format->scale_k - 1) / o->format->scale_k : 1,
        .scale_g_stride = 1,
        .minima = o->format->minima ? scale : NULL,
        .super_scales = supers ? super : NULL,
        .super_minima = supers && o->format->minima ? super : NULL,
        .global = 1,
    };
    for (size_t n = 0; n < o->n && !err_is(e); n += SOURCE_ROWS) {
        size_t columns = o->n - n < SOURCE_ROWS ? o->n - n : SOURCE_ROWS;
        e = expertd_pack_quantised(&source, o->format, o->k, columns, block + group_bytes(o, n));
    }
    free(code);
    free(scale);
    return e;
}

static void copy_block(void *context, size_t task, unsigned thread) {
    (void)thread;
    const struct pool *pool = context;
    memcpy(pool->blocks + (task + 1) * pool->weights.group_bytes, pool->blocks, pool->weights.group_bytes);
}

FALLIBLE pool_create(const struct pool_options *options, struct expertd_team *team, struct pool *out) {
    *out = (struct pool){.count = block_count(options),
                         .weights = {.dtype = options->dtype,
                                     .groups = options->groups,
                                     .k = options->k,
                                     .n = options->n,
                                     .group_bytes = group_bytes(options, options->n),
                                     .format = options->format,
                                     .layout = options->layout}};
    err_t e;
    out->table = calloc(options->groups, sizeof *out->table);
    if (!out->table) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a table of %zu groups", options->groups);
    }
    out->weights.data = out->table;
    void *blocks;
    TRY_OUT(e, arena_init(&out->memory, out->count * out->weights.group_bytes));
    TRY_OUT(e, arena_take(&out->memory, out->count * out->weights.group_bytes, &blocks));
    out->blocks = blocks;
    TRY_OUT(e, options->format ? pack_codes(options, out->blocks) : pack_plain(options, out->blocks));
    expertd_team_run(team, out->count - 1, copy_block, out);
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

void pool_advance(struct pool *pool, const int32_t *group_sizes) {
    for (size_t g = 0; g < pool->weights.groups; g++) {
        pool->table[g] = pool->blocks;
        if (group_sizes[g] > 0) {
            pool->table[g] = pool->blocks + pool->next * pool->weights.group_bytes;
            pool->next = (pool->next + 1) % pool->count;
        }
    }
}
