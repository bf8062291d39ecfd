// Our side of tests/bench/peers/run and tests/bench/builds/run: a product or a layer on data that the other process has written to
// a file. Computes it once for each line on standard input and prints the time in nanoseconds. It is a separate process, so that
// other libraries' threads are not in ours.
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mapped.h"
#include "expert/engine/engine.h"
#include "expert/layer/layer.h"
#include "expert/loader/model_load.h"
#include "expert/quantised/ggml_blocks.h"
#include "expertd/kernels/grouped_matmul.h"
#include "expertd/kernels/kernel_select.h"
#include "expertd/kernels/quantised.h"

enum { PAGE = 4096, SPIN_US = 50, LINE_BYTES = 64 };

// The values of --dtype: the dtype of the rows, and the format of the weights if they are quantised.
struct product_dtype {
    const char *name;
    enum expertd_dtype rows;
    bool coded;
    struct expertd_quantised_format format;
    unsigned bits;                    // per code
    size_t scale_columns;             // columns per scale; 0: 1
    const struct ggml_format *blocks; // not NULL: the file has the weights in GGUF's blocks
};
static const struct product_dtype PRODUCT_DTYPES[] = {
    {"f32", .rows = EXPERTD_DTYPE_F32},
    {"bf16", .rows = EXPERTD_DTYPE_BF16},
    {"i8", .rows = EXPERTD_DTYPE_I8}, // with int32 results
    {"mxfp4", EXPERTD_DTYPE_BF16, true, {.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32}, .bits = 4},
    {"nvfp4", EXPERTD_DTYPE_BF16, true, {.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E4M3, .scale_k = 16}, .bits = 4},
    // from here on only int4-32 and int8-32 have peers
    {"mxfp8", EXPERTD_DTYPE_BF16, true, {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32}, .bits = 8},
    {"e4m3-128x128",
     EXPERTD_DTYPE_BF16,
     true,
     {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32, .scale_of_panel = true, .scale_k = 128},
     .bits = 8,
     .scale_columns = 128},
    {"e4m3-row", EXPERTD_DTYPE_BF16, true, {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32}, .bits = 8},
    {"int4-32", EXPERTD_DTYPE_BF16, true, {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_F16, .scale_k = 32}, .bits = 4},
    {"int4-64", EXPERTD_DTYPE_BF16, true, {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_F16, .scale_k = 64}, .bits = 4},
    {"int4-128", EXPERTD_DTYPE_BF16, true, {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_F16, .scale_k = 128}, .bits = 4},
    {"int8-32", EXPERTD_DTYPE_BF16, true, {.code = EXPERTD_CODE_INT8, .scale = EXPERTD_DTYPE_F16, .scale_k = 32}, .bits = 8},
};
enum { PRODUCT_DTYPES_COUNT = sizeof PRODUCT_DTYPES / sizeof *PRODUCT_DTYPES };

// A block type of GGUF: "q4_k".
static bool find_blocks(const char *name, struct product_dtype *out) {
    for (uint32_t id = 0; id < GGML_TYPE_IDS; id++) {
        const struct ggml_type *type = ggml_type_of(id);
        const struct ggml_format *blocks = type && strcasecmp(type->name, name) == 0 ? ggml_format_of(type) : NULL;
        if (blocks) {
            *out = (struct product_dtype){name, EXPERTD_DTYPE_BF16, true, blocks->format, .blocks = blocks};
            return true;
        }
    }
    return false;
}

static FALLIBLE find_dtype(const char *name, struct product_dtype *out) {
    for (size_t i = 0; i < PRODUCT_DTYPES_COUNT; i++) {
        if (strcmp(name, PRODUCT_DTYPES[i].name) == 0) {
            *out = PRODUCT_DTYPES[i];
            return OK;
        }
    }
    if (find_blocks(name, out)) {
        return OK;
    }
    FAIL(EXPERTD_ERR_USAGE, "unknown dtype %s of a product", name);
}

// The parts of the file follow each other, each at a multiple of a page.
struct shared_file {
    char *base;
    size_t bytes, used;
};

static FALLIBLE open_shared(const char *path, struct shared_file *out) {
    struct stat status;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &status) != 0) {
        FAIL(EXPERTD_ERR_IO, "cannot open %s", path);
    }
    out->bytes = (size_t)status.st_size;
    void *base = mmap(NULL, out->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (base == MAP_FAILED) {
        FAIL(EXPERTD_ERR_IO, "cannot map %s", path);
    }
    out->base = base;
    return OK;
}

static FALLIBLE take_part(struct shared_file *file, size_t bytes, void *out) {
    if (bytes > file->bytes - file->used) {
        FAIL(EXPERTD_ERR_INVALID, "the file has only %zu bytes: too few for the shape", file->bytes);
    }
    void *at = file->base + file->used;
    memcpy(out, &at, sizeof at);
    file->used += (bytes + PAGE - 1) / PAGE * PAGE;
    return OK;
}

// For each input line: calls run(context, the number in the line) and prints its time.
static FALLIBLE serve(err_t (*run)(void *context, unsigned long number), void *context) {
    char line[LINE_BYTES];
    printf("ready\n");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        unsigned long number = strtoul(line, NULL, 10);
        int64_t start_ns = clock_now_ns();
        TRY(run(context, number));
        printf("%" PRId64 "\n", clock_now_ns() - start_ns);
        fflush(stdout);
    }
    return OK;
}

// ---- peer-ours product DTYPE GROUPS ROWS K N SETS THREADS FILE

struct product {
    struct product_dtype dtype;
    struct expertd_grouped_matmul_args args;
    struct expertd_packed_weights weights;
    void **tables; // [sets][groups]
    size_t sets;
    struct expertd_team *team;
    void *scratch;
};

static err_t run_product(void *context, unsigned long number) {
    struct product *p = context;
    p->weights.data = p->tables + number % p->sets * p->weights.groups;
    return expertd_grouped_matmul(&p->args, p->team, p->scratch);
}

// The weights in the file: elements, or the codes of all rows followed by the scales of all rows.
struct weights_of_file {
    const char *elements, *scales;
};

// The number of scales of a column.
static size_t scales_along_k(const struct product_dtype *d, size_t k) {
    return d->format.scale_k ? k / d->format.scale_k : 1;
}

static size_t columns_of_scale(const struct product_dtype *d) {
    return d->scale_columns ? d->scale_columns : 1;
}

// Where the parts of a group's blocks begin, in bytes; the order is that of struct ggml_parts.
struct block_layout {
    size_t scales, minima, super_scales, super_minima, end;
};

static struct block_layout layout_of_blocks(const struct ggml_format *f, size_t n, size_t k) {
    size_t scales = n * (k / f->format.scale_k) * expertd_dtype_size(f->format.scale);
    size_t supers = f->format.scale == EXPERTD_DTYPE_I8 ? n * (k / EXPERTD_SUPER_K) * sizeof(uint16_t) : 0;
    struct block_layout at = {.scales = n * k * ggml_code_bits(f) / 8};
    at.minima = at.scales + scales;
    at.super_scales = at.minima + scales;
    at.super_minima = at.super_scales + supers;
    at.end = at.super_minima + supers;
    return at;
}

// Decodes a group's blocks to rows of codes, scales and minima, and packs them, as the loader does.
static FALLIBLE pack_blocks(const struct product *p, const char *blocks, void *dst) {
    const struct expertd_packed_weights *w = &p->weights;
    const struct ggml_format *f = p->dtype.blocks;
    const struct block_layout at = layout_of_blocks(f, w->n, w->k);
    const bool minima = f->format.minima, supers = f->format.scale == EXPERTD_DTYPE_I8;
    uint8_t *memory = malloc(at.end);
    if (!memory) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a group's codes");
    }
    const struct ggml_parts parts = {.codes = memory,
                                     .scales = memory + at.scales,
                                     .minima = minima ? memory + at.minima : NULL,
                                     .super_scales = supers ? memory + at.super_scales : NULL,
                                     .super_minima = supers && minima ? memory + at.super_minima : NULL};
    ggml_blocks_decode(f, blocks, w->n, w->k, &parts);
    struct expertd_quantised_source source = {
        .codes = {.data = parts.codes, .bits = ggml_code_bits(f), .word = 1, .n_word_stride = w->k, .k_word_stride = 1},
        .scales = parts.scales,
        .minima = parts.minima,
        .super_scales = parts.super_scales,
        .super_minima = parts.super_minima,
        .scale_columns = 1,
        .scale_n_stride = w->k / f->format.scale_k,
        .scale_g_stride = 1,
        .super_n_stride = w->k / EXPERTD_SUPER_K,
        .super_g_stride = 1,
    };
    err_t e = expertd_pack_quantised(&source, &f->format, w->k, w->n, dst);
    free(memory);
    return e;
}

static FALLIBLE pack_group(const struct product *p, struct weights_of_file file, size_t group, void *dst) {
    const struct expertd_packed_weights *w = &p->weights;
    const struct product_dtype *d = &p->dtype;
    size_t first = group * w->n * w->k;
    if (d->blocks) {
        return pack_blocks(p, file.elements + group * w->n * ggml_row_bytes(d->blocks, w->k), dst);
    }
    if (!d->coded) {
        const char *elements = file.elements + first * expertd_dtype_size(d->rows);
        struct expertd_weight_source source = {.data = elements, .dtype = d->rows, .n_stride = w->k, .k_stride = 1};
        expertd_pack_weights(&source, w->k, w->n, d->rows, w->layout, dst);
        return OK;
    }
    size_t scales = scales_along_k(d, w->k), columns = columns_of_scale(d);
    struct expertd_code_words codes = {
        .data = file.elements + first * d->bits / 8, .bits = d->bits, .word = 1, .n_word_stride = w->k, .k_word_stride = 1};
    struct expertd_quantised_source source = {
        .codes = codes,
        .scales = file.scales + group * (w->n / columns) * scales * expertd_dtype_size(d->format.scale),
        .scale_columns = columns,
        .scale_n_stride = scales,
        .scale_g_stride = 1,
    };
    return expertd_pack_quantised(&source, &d->format, w->k, w->n, dst);
}

static FALLIBLE pack_sets(struct product *p, struct weights_of_file file, struct arena *memory) {
    const struct expertd_packed_weights *w = &p->weights;
    TRY(arena_init(memory, p->sets * w->groups * w->group_bytes));
    p->tables = calloc(p->sets * w->groups, sizeof *p->tables);
    if (!p->tables) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu groups", p->sets * w->groups);
    }
    for (size_t i = 0; i < p->sets * w->groups; i++) {
        TRY(arena_take(memory, w->group_bytes, &p->tables[i]));
        if (i < w->groups) {
            TRY(pack_group(p, file, i, p->tables[i]));
        } else {
            memcpy(p->tables[i], p->tables[i - w->groups], w->group_bytes);
        }
    }
    return OK;
}

static size_t number_at(char **argv, int i) {
    return strtoull(argv[i], NULL, 10);
}

static FALLIBLE take_operands(struct product *p, const int32_t **sizes, struct shared_file *file, struct weights_of_file *weights) {
    const struct product_dtype *d = &p->dtype;
    size_t lines = p->weights.groups * p->weights.n, elements = lines * p->weights.k,
           bits = d->coded ? d->bits : 8 * expertd_dtype_size(d->rows);
    size_t bytes = d->blocks ? lines * ggml_row_bytes(d->blocks, p->weights.k) : elements * bits / 8;
    TRY(take_part(file, p->weights.groups * sizeof **sizes, sizes));
    TRY(take_part(file, p->args.m * p->weights.k * expertd_dtype_size(d->rows), &p->args.lhs));
    TRY(take_part(file, bytes, &weights->elements));
    if (d->coded && !d->blocks) {
        size_t scales = lines / columns_of_scale(d) * scales_along_k(d, p->weights.k);
        TRY(take_part(file, scales * expertd_dtype_size(d->format.scale), &weights->scales));
    }
    return take_part(file, p->args.m * p->weights.n * sizeof(float), &p->args.out);
}

static FALLIBLE product_main(char **argv) {
    size_t groups = number_at(argv, 3), rows = number_at(argv, 4), k = number_at(argv, 5), n = number_at(argv, 6);
    struct product p = {.args = {.m = rows}, .sets = number_at(argv, 7)};
    TRY(find_dtype(argv[2], &p.dtype));
    const struct expertd_quantised_format *format = p.dtype.coded ? &p.dtype.format : NULL;
    p.weights = (struct expertd_packed_weights){.dtype = p.dtype.rows, .format = format, .groups = groups, .k = k, .n = n};
    p.weights.layout = format ? EXPERTD_PACKED_PANELS : expertd_packed_layout_best(p.dtype.rows);
    p.weights.group_bytes = format ? expertd_quantised_group_bytes(format, k, n) : expertd_packed_group_bytes(p.dtype.rows, k, n);
    struct expertd_team_options team = {.threads = (unsigned)number_at(argv, 8), .spin_us = SPIN_US};
    struct shared_file file = {0};
    struct weights_of_file weights;
    struct arena memory;
    TRY(open_shared(argv[9], &file));
    TRY(take_operands(&p, &p.args.group_sizes, &file, &weights));
    TRY(pack_sets(&p, weights, &memory));
    TRY(expertd_team_create(&team, &p.team));
    p.args.lhs_stride = k;
    p.args.rhs = expertd_rhs_packed(&p.weights);
    p.args.num_groups = p.args.num_actual_groups = groups;
    p.args.out_stride = n;
    p.scratch = aligned_alloc(64, (expertd_grouped_matmul_workspace_bytes(&p.args, p.team) + 63) / 64 * 64);
    err_t e = serve(run_product, &p);
    expertd_team_destroy(p.team);
    free(p.scratch);
    free(p.tables);
    arena_deinit(&memory);
    return e;
}

// ---- peer-ours layer DIR TOKENS_MAX THREADS FILE

struct layer {
    struct model model;
    struct engine *engine;
    struct layer_request request;
};

static err_t run_layer(void *context, unsigned long tokens) {
    struct layer *l = context;
    size_t bytes = tokens * l->model.max_hidden_size * sizeof(uint16_t);
    l->request.tokens = tokens;
    l->request.hidden.shape[0] = tokens;
    l->request.hidden.bytes = bytes;
    return layer_forward(l->engine, &l->model.layers[0], &l->request, 1, NULL, NULL);
}

static FALLIBLE layer_main(char **argv) {
    struct layer l = {0};
    struct expertd_team *team;
    struct expertd_team_options options = {.threads = (unsigned)number_at(argv, 4), .spin_us = SPIN_US};
    uint32_t tokens = (uint32_t)number_at(argv, 3);
    struct shared_file file = {0};
    TRY(expertd_team_create(&options, &team));
    TRY(mapped_install_handler());
    struct model_options load = {.model = argv[2], .compute_dtype = EXPERTD_DTYPE_BF16, .ranks = 1, .team = team};
    TRY(model_load(&load, &l.model));
    struct engine_options engine = {.model = &l.model, .limits = layer_limits_for(&l.model, tokens, 0), .team = team};
    TRY(engine_create(&engine, &l.engine));
    size_t row_bytes = l.model.max_hidden_size * sizeof(uint16_t);
    TRY(open_shared(argv[5], &file));
    l.request = (struct layer_request){.hidden = {.dtype = EXPERTD_DTYPE_BF16, .rank = 2, .shape = {0, l.model.max_hidden_size}},
                                       .source = ROUTING_OWN,
                                       .output_dtype = EXPERTD_DTYPE_BF16};
    TRY(take_part(&file, tokens * row_bytes, &l.request.hidden.data));
    TRY(take_part(&file, tokens * row_bytes, &l.request.output));
    err_t e = serve(run_layer, &l);
    engine_destroy(l.engine);
    model_deinit(&l.model);
    expertd_team_destroy(team);
    return e;
}

int main(int argc, char **argv) {
    const char *kernels = getenv("EXPERTD_KERNELS");
    err_t e = expertd_kernel_select(kernels ? kernels : "auto");
    if (err_is(e)) {
        fprintf(stderr, "peer-ours: %s\n", expertd_err_message());
        return err_exit_code(e.code);
    }
    if (argc == 10 && strcmp(argv[1], "product") == 0) {
        e = product_main(argv);
    } else if (argc == 6 && strcmp(argv[1], "layer") == 0) {
        e = layer_main(argv);
    } else {
        fprintf(stderr, "peer-ours: to be started by tests/bench/peers/run only\n");
        return err_exit_code(EXPERTD_ERR_USAGE);
    }
    if (err_is(e)) {
        fprintf(stderr, "peer-ours: %s\n", expertd_err_message());
        return err_exit_code(e.code);
    }
    return 0;
}
