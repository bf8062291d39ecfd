#include "tests/bench/kernels/device/device_bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "kernels/device/device_codes.h"
#include "kernels/device/device_plan.h"
#include "tests/bench/kernels/shapes.h"
#include "tests/flags/flags.h"

enum {
    SHAPES_MAX = 32,
    FORMATS_MAX = 8,
    POOL_GROUPS_MAX = 512, // the kernels' maximum
    ROTATIONS_MAX = 32,
    CALLS_MAX = 256,
    PAGE = 4096,
    PATTERN_BYTES = 1 << 20,
};
static const size_t POOL_BYTES = 1200000000; // several times a GPU's L2 cache
static const int64_t REPETITION_NS = 2 * NS_PER_MS;

// ---- shapes and dtypes

#define PREFILL(rows_, k_, n_, text_)                                                                                              \
    {                                                                                                                              \
        .name = "g16-" #rows_ "-" #k_ "x" #n_, .text = text_, .groups = 16, .k = k_, .n = n_, .rows = 16 * (rows_),                \
        .spread = SPREAD_EVEN, .active = 16                                                                                        \
    }
static const struct bench_shape PREFILLS[] = {
    PREFILL(512, 7168, 2048, "16 groups of DeepSeek-V3's gate, 512 rows each"),
    PREFILL(1024, 7168, 2048, "1024 rows"),
    PREFILL(2048, 7168, 2048, "2048 rows"),
    PREFILL(4096, 7168, 2048, "4096 rows"),
    PREFILL(8192, 7168, 2048, "8192 rows"),
    PREFILL(512, 4096, 14336, "16 groups of Mixtral's gate, 512 rows each"),
    PREFILL(1024, 4096, 14336, "1024 rows"),
    PREFILL(2048, 4096, 14336, "2048 rows"),
    PREFILL(4096, 4096, 14336, "4096 rows"),
    PREFILL(8192, 4096, 14336, "8192 rows"),
};
enum { PREFILL_COUNT = sizeof PREFILLS / sizeof *PREFILLS };
static const char DECODES[] = "c1,c8,b2048,rows1,rows8,rows64,d64"; // shapes of shapes.h

struct device_format {
    const char *name;
    enum expertd_dtype dtype; // of the rows; of the results if both operands are codes
    bool quantised;
    struct expertd_quantised_format format;
    bool both; // both operands are E4M3 with block scales: wgmma on sm_90 only; no layer uses it
};
static const struct device_format FORMATS[] = {
    {.name = "bf16", .dtype = EXPERTD_DTYPE_BF16},
    {.name = "f32", .dtype = EXPERTD_DTYPE_F32},
    {.name = "e4m3-128x128",
     .dtype = EXPERTD_DTYPE_BF16,
     .quantised = true,
     .format = {.code = EXPERTD_CODE_E4M3, .scale = EXPERTD_DTYPE_F32, .scale_of_panel = true, .scale_k = 128}},
    {.name = "mxfp4",
     .dtype = EXPERTD_DTYPE_BF16,
     .quantised = true,
     .format = {.code = EXPERTD_CODE_E2M1, .scale = EXPERTD_DTYPE_F8_E8M0, .scale_k = 32}},
    {.name = "int4-32",
     .dtype = EXPERTD_DTYPE_BF16,
     .quantised = true,
     .format = {.code = EXPERTD_CODE_INT4, .scale = EXPERTD_DTYPE_BF16, .scale_k = 32}},
    {.name = "e4m3-by-e4m3", .dtype = EXPERTD_DTYPE_BF16, .format = {.scale = EXPERTD_DTYPE_F32}, .both = true},
};
enum { FP8_BLOCK = 128 };
enum { FORMAT_COUNT = sizeof FORMATS / sizeof *FORMATS };

struct device_selection {
    const struct bench_shape *shapes[SHAPES_MAX];
    size_t num_shapes;
    const struct device_format *formats[FORMATS_MAX];
    size_t num_formats;
};

static err_t take_shape(void *context, const char *name, size_t length) {
    struct device_selection *s = context;
    if (s->num_shapes == SHAPES_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "--shape names more than %d shapes", SHAPES_MAX);
    }
    for (size_t i = 0; i < PREFILL_COUNT; i++) {
        if (strlen(PREFILLS[i].name) == length && memcmp(PREFILLS[i].name, name, length) == 0) {
            s->shapes[s->num_shapes++] = &PREFILLS[i];
            return OK;
        }
    }
    TRY(shape_find(name, length, &s->shapes[s->num_shapes]));
    s->num_shapes++;
    return OK;
}

static err_t take_format(void *context, const char *name, size_t length) {
    struct device_selection *s = context;
    const char *names[FORMAT_COUNT];
    size_t found = 0;
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        names[i] = FORMATS[i].name;
    }
    TRY(flags_find("dtype", name, length, names, FORMAT_COUNT, "these are all dtypes with --device", &found));
    if (s->num_formats == FORMATS_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "--dtype names more than %d dtypes", FORMATS_MAX);
    }
    s->formats[s->num_formats++] = &FORMATS[found];
    return OK;
}

static FALLIBLE select_rows(const struct bench_options *o, bool simulated, struct device_selection *s) {
    *s = (struct device_selection){0};
    if (o->op != OP_GMM) {
        FAIL(EXPERTD_ERR_USAGE, "--op applies to the CPU only: --device measures the products of layers");
    }
    const char *shapes = o->shapes ? o->shapes : simulated ? "tiny" : DECODES;
    for (size_t i = 0; !o->shapes && !simulated && i < PREFILL_COUNT; i++) {
        s->shapes[s->num_shapes++] = &PREFILLS[i];
    }
    TRY(flags_names("--shape", shapes, take_shape, s));
    for (size_t i = 0; simulated && i < s->num_shapes; i++) {
        if (strcmp(s->shapes[i]->name, "tiny") != 0) {
            FAIL(EXPERTD_ERR_USAGE, "--shape %s: a simulated device would take hours; use --shape tiny", s->shapes[i]->name);
        }
    }
    return flags_names("--dtype", o->dtypes ? o->dtypes : "bf16", take_format, s);
}

// ---- one shape on the device; its groups rotate over a larger pool of weights

struct timed_product {
    struct device_rig *rig;
    const struct bench_shape *shape;
    const struct device_format *format;
    int32_t sizes[SHAPE_GROUPS_MAX];
    size_t active, pool_groups, group_bytes; // bytes of a group's elements, or of its codes and scales
    enum expertd_device_variant variant;
    void *memory[7]; // indexed by MEMORY_...
    size_t tile_count, rotations, repetition, calls;
    void *pattern; // pinned
    struct expertd_device_tile *tiles;
    size_t tiles_bytes; // of all rotations
};

enum { MEMORY_A, MEMORY_WEIGHTS, MEMORY_SCALES, MEMORY_D, MEMORY_TILES, MEMORY_A_SCALES, MEMORY_SIZES, MEMORY_COUNT };

static size_t fp8_blocks(size_t size) {
    return (size + FP8_BLOCK - 1) / FP8_BLOCK;
}

static size_t page_rounded(size_t bytes) {
    return (bytes + PAGE - 1) / PAGE * PAGE;
}

static FALLIBLE allocate_pinned(struct device_rig *rig, size_t bytes, void **out) {
    *out = aligned_alloc(PAGE, page_rounded(bytes));
    if (!*out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu bytes of a device's copies", bytes);
    }
    struct expertd_device_error error;
    err_t e = expertd_devices_check(rig->devices, 0,
                                    rig->devices->table->pin(rig->devices->all[0], *out, page_rounded(bytes), &error), &error);
    if (err_is(e)) {
        free(*out);
        *out = NULL;
    }
    return e;
}

static void free_pinned(struct device_rig *rig, void *memory) {
    if (memory) {
        rig->devices->table->unpin(rig->devices->all[0], memory);
        free(memory);
    }
}

// Fills device memory with the pattern, repeatedly, and waits.
static FALLIBLE fill(const struct timed_product *p, void *device_memory, size_t bytes) {
    for (size_t at = 0; at < bytes; at += PATTERN_BYTES) {
        size_t part = bytes - at < PATTERN_BYTES ? bytes - at : PATTERN_BYTES;
        EXPERTD_DEVICES_CALL(p->rig->devices, 0, copy, EXPERTD_DEVICE_UPLOAD, (char *)device_memory + at, p->pattern, part);
    }
    return device_rig_wait(p->rig);
}

// A pattern of values of both signs around 1 in any dtype; 8-bit codes are never NaN.
static void pattern_of_elements(const struct timed_product *p, bool codes) {
    uint32_t *words = p->pattern, state = 1;
    for (size_t i = 0; i < PATTERN_BYTES / sizeof *words; i++) {
        state = state * 1664525u + 1013904223u;
        words[i] = codes ? state & 0xbfbfbfbfu : (state & 0x807f807fu) | 0x3f003f00u;
    }
}

// A pattern of 1 in the scales' dtype.
static void pattern_of_scales(const struct timed_product *p) {
    uint32_t one = p->format->format.scale == EXPERTD_DTYPE_F32    ? 0x3f800000u
                   : p->format->format.scale == EXPERTD_DTYPE_BF16 ? 0x3f803f80u
                                                                   : 0x7f7f7f7fu;
    for (size_t i = 0; i < PATTERN_BYTES / sizeof one; i++) {
        ((uint32_t *)p->pattern)[i] = one;
    }
}

static FALLIBLE reserve_and_fill(struct timed_product *p) {
    const struct bench_shape *s = p->shape;
    size_t size = expertd_dtype_size(p->format->dtype), scales = 0, weights = s->n * s->k * size;
    if (p->format->quantised) {
        struct device_codes_size bytes = device_codes_bytes(&p->format->format, s->n, s->k);
        weights = bytes.codes;
        scales = bytes.scales;
    }
    if (p->format->both) {
        weights = s->n * s->k;
        scales = fp8_blocks(s->n) * fp8_blocks(s->k) * sizeof(float);
    }
    p->group_bytes = weights + scales;
    size_t wanted = p->rig->simulated ? 1 : POOL_BYTES / p->group_bytes;
    p->pool_groups = wanted > POOL_GROUPS_MAX ? POOL_GROUPS_MAX : wanted;
    p->pool_groups = p->pool_groups < s->groups ? s->groups : p->pool_groups;
    size_t a_scales = p->format->both ? s->rows * fp8_blocks(s->k) * sizeof(float) : 0;
    const size_t bytes[] = {[MEMORY_A] = s->rows * s->k * (p->format->both ? 1 : size),
                            [MEMORY_WEIGHTS] = p->pool_groups * weights,
                            [MEMORY_SCALES] = p->pool_groups * scales,
                            [MEMORY_D] = s->rows * s->n * size,
                            [MEMORY_TILES] = p->tiles_bytes,
                            [MEMORY_A_SCALES] = a_scales,
                            [MEMORY_SIZES] = p->format->both ? s->groups * sizeof *p->sizes : 0};
    for (int i = 0; i < MEMORY_COUNT; i++) {
        if (bytes[i]) {
            EXPERTD_DEVICES_CALL(p->rig->devices, 0, reserve, bytes[i], &p->memory[i]);
        }
    }
    pattern_of_elements(p, p->format->both);
    TRY(fill(p, p->memory[MEMORY_A], bytes[MEMORY_A]));
    pattern_of_elements(p, p->format->quantised || p->format->both);
    TRY(fill(p, p->memory[MEMORY_WEIGHTS], bytes[MEMORY_WEIGHTS]));
    pattern_of_scales(p);
    TRY(fill(p, p->memory[MEMORY_A_SCALES], bytes[MEMORY_A_SCALES]));
    return fill(p, p->memory[MEMORY_SCALES], bytes[MEMORY_SCALES]);
}

// The forced variant, or the variant that a layer would choose for these rows.
static FALLIBLE choose_variant(struct timed_product *p) {
    const struct expertd_device_facts *facts = &p->rig->devices->facts;
    const struct expertd_quantised_format *format = p->format->quantised ? &p->format->format : NULL;
    struct device_network_shape shape = {(uint32_t)p->shape->k, (uint32_t)p->shape->n, format, format, false};
    struct expertd_device_variants variants;
    const struct expertd_device_variants *all = p->format->dtype == EXPERTD_DTYPE_F32 ? &facts->f32 : &facts->bf16;
    if (p->format->both && !(facts->bf16.has >> EXPERTD_DEVICE_WGMMA_128 & 1)) {
        FAIL(EXPERTD_ERR_USAGE, "%s has no wgmma, which products of %s need", facts->name, p->format->name);
    }
    TRY(device_variants_of(all, &shape, p->format->dtype, p->rig->devices->forced, &variants));
    p->variant = device_variant_for(&variants, p->sizes, p->shape->groups);
    return OK;
}

// Cuts the tiles and allocates a list of them for each rotation.
static FALLIBLE cut_tiles(struct timed_product *p) {
    uint32_t rows = device_variant_rows(p->variant);
    size_t tiles_max = p->shape->rows / rows + p->shape->groups;
    p->rotations = p->rig->simulated ? 1 : ROTATIONS_MAX;
    p->tiles_bytes = p->rotations * tiles_max * sizeof *p->tiles;
    TRY(allocate_pinned(p->rig, p->tiles_bytes, (void **)&p->tiles));
    p->tile_count = device_cut_tiles(p->sizes, p->shape->groups, 0, rows, p->tiles);
    return OK;
}

// Fills in the lists: each rotation uses the next groups of the pool.
static FALLIBLE rotate_tiles(struct timed_product *p) {
    for (size_t r = 1; r < p->rotations; r++) {
        for (size_t i = 0; i < p->tile_count; i++) {
            struct expertd_device_tile tile = p->tiles[i];
            tile.group = (uint32_t)((tile.group + r * p->shape->groups) % p->pool_groups);
            p->tiles[r * p->tile_count + i] = tile;
        }
    }
    EXPERTD_DEVICES_CALL(p->rig->devices, 0, copy, EXPERTD_DEVICE_UPLOAD, p->memory[MEMORY_TILES], p->tiles,
                         p->rotations * p->tile_count * sizeof *p->tiles);
    return device_rig_wait(p->rig);
}

// Uses the next consecutive groups of the pool.
static FALLIBLE start_fp8(struct timed_product *p) {
    const struct bench_shape *s = p->shape;
    size_t group = p->repetition++ % (p->pool_groups / s->groups) * s->groups;
    struct expertd_device_fp8_gemm gemm = {
        .a = p->memory[MEMORY_A],
        .a_scales = p->memory[MEMORY_A_SCALES],
        .b = (const char *)p->memory[MEMORY_WEIGHTS] + group * s->n * s->k,
        .b_scales = (const float *)p->memory[MEMORY_SCALES] + group * fp8_blocks(s->n) * fp8_blocks(s->k),
        .d = p->memory[MEMORY_D],
        .sizes = p->memory[MEMORY_SIZES],
        .rows = (uint32_t)s->rows,
        .groups = (uint32_t)s->groups,
        .n = (uint32_t)s->n,
        .k = (uint32_t)s->k,
    };
    EXPERTD_DEVICES_CALL(p->rig->devices, 0, fp8_gemm, &gemm);
    return OK;
}

static FALLIBLE start(struct timed_product *p) {
    if (p->format->both) {
        return start_fp8(p);
    }
    const struct bench_shape *s = p->shape;
    size_t size = expertd_dtype_size(p->format->dtype), rotation = p->repetition++ % p->rotations;
    struct expertd_device_down down = {
        .rows = {.dtype = p->format->dtype,
                 .data = p->memory[MEMORY_A],
                 .stride = s->k * size,
                 .variant = p->variant,
                 .tiles = (const struct expertd_device_tile *)p->memory[MEMORY_TILES] + rotation * p->tile_count,
                 .tile_count = (uint32_t)p->tile_count,
                 .rows = (uint32_t)s->rows},
        .down = {.dtype = p->format->dtype,
                 .groups = (uint32_t)p->pool_groups,
                 .n = (uint32_t)s->n,
                 .k = (uint32_t)s->k,
                 .data = p->memory[MEMORY_WEIGHTS],
                 .quantised = {.format = p->format->format, .scales = p->memory[MEMORY_SCALES]}},
        .out = p->memory[MEMORY_D],
        .out_stride = s->n * size,
    };
    EXPERTD_DEVICES_CALL(p->rig->devices, 0, down, &down);
    return OK;
}

// Makes p->calls calls in a row, so that the start of a call has little weight: the stream has the next one while one computes.
static err_t run_ns(void *context, int64_t *span_ns) {
    struct timed_product *p = context;
    int64_t begin_ns = clock_now_ns();
    for (size_t i = 0; i < p->calls; i++) {
        TRY(start(p));
    }
    TRY(device_rig_wait(p->rig));
    *span_ns = clock_now_ns() - begin_ns;
    return OK;
}

static FALLIBLE count_calls(struct timed_product *p) {
    int64_t span_ns = 0;
    p->calls = 1;
    for (int warm = 0; warm < 2 && !p->rig->simulated; warm++) {
        TRY(run_ns(p, &span_ns));
        p->calls = warm == 0 || span_ns >= REPETITION_NS ? 1 : (size_t)(REPETITION_NS / (span_ns + 1)) + 1;
    }
    p->calls = p->calls > CALLS_MAX ? CALLS_MAX : p->calls;
    return OK;
}

static double bytes_of_run(void *context) {
    const struct timed_product *p = context;
    return (double)p->calls * (double)p->active * (double)p->group_bytes;
}

static int64_t read_ns(void *context, enum plain_read_way way) {
    (void)way; // there is only one kind of read on a device
    struct timed_product *p = context;
    return device_rig_read_ns(p->rig, bytes_of_run(p));
}

static void product_deinit(struct timed_product *p) {
    for (int i = 0; i < MEMORY_COUNT; i++) {
        p->rig->devices->table->release(p->rig->devices->all[0], p->memory[i]);
    }
    free_pinned(p->rig, p->tiles);
    free_pinned(p->rig, p->pattern);
}

static FALLIBLE product_init(struct timed_product *p) {
    p->active = shape_sizes(p->shape, p->sizes);
    TRY(allocate_pinned(p->rig, PATTERN_BYTES, &p->pattern));
    TRY(choose_variant(p));
    TRY(cut_tiles(p));
    TRY(reserve_and_fill(p));
    TRY(rotate_tiles(p));
    if (p->format->both) {
        memcpy(p->pattern, p->sizes, p->shape->groups * sizeof *p->sizes);
        TRY(fill(p, p->memory[MEMORY_SIZES], p->shape->groups * sizeof *p->sizes));
    }
    return count_calls(p);
}

static FALLIBLE measure_product(struct timed_product *p, double seconds, struct measurement *out) {
    TRY(product_init(p));
    struct measured work = {
        .context = p,
        .run_ns = run_ns,
        .read_ns = read_ns,
        .bytes = bytes_of_run,
        .flops = 2.0 * (double)p->calls * (double)p->shape->rows * (double)p->shape->k * (double)p->shape->n,
        .peak_rate = p->format->both                         ? device_rig_peak_fp8
                     : p->format->dtype == EXPERTD_DTYPE_F32 ? device_rig_peak_f32
                                                             : device_rig_peak_bf16,
        .peak_context = p->rig,
        .peak_name = p->format->both ? "WGMMA FP8" : device_rig_peak_name(p->rig, p->format->dtype),
    };
    TRY(measure(&work, NULL, seconds, out));
    out->seconds /= (double)p->calls;
    out->flops /= (double)p->calls;
    out->bytes /= (double)p->calls;
    return OK;
}

static FALLIBLE bench_row(struct device_rig *rig, const struct bench_shape *shape, const struct device_format *format,
                          double seconds, struct report *report) {
    struct report_row row = {.dtype = format->name, .threads = 1, .dealt = shape};
    struct timed_product product = {.rig = rig, .shape = shape, .format = format};
    err_t e = measure_product(&product, seconds, &row.measured);
    snprintf(row.shape, sizeof row.shape, "%s %s", shape->name, format->both ? "wgmma" : device_variant_name(product.variant));
    fprintf(stderr, "%s %s on a device\n", row.shape, row.dtype);
    if (!err_is(e)) {
        e = report_add(report, &row);
    }
    product_deinit(&product);
    return err_is(e) ? err_context(e, "shape %s, %s", shape->name, format->name) : OK;
}

FALLIBLE device_bench(const struct bench_options *options, struct device_rig *rig, struct report *report) {
    struct device_selection s;
    TRY(select_rows(options, rig->simulated, &s));
    for (size_t i = 0; i < s.num_shapes; i++) {
        for (size_t f = 0; f < s.num_formats; f++) {
            TRY(bench_row(rig, s.shapes[i], s.formats[f], options->seconds, report));
        }
    }
    return OK;
}

void device_bench_list(FILE *out) {
    fprintf(out, "with --device, also:\n");
    for (size_t i = 0; i < PREFILL_COUNT; i++) {
        const struct bench_shape *s = &PREFILLS[i];
        fprintf(out, "%-20s%8zu%8zu%8zu   %s\n", s->name, s->k, s->n, s->rows, s->text);
    }
    fprintf(out, "dtypes with --device:");
    for (size_t i = 0; i < FORMAT_COUNT; i++) {
        fprintf(out, " %s", FORMATS[i].name);
    }
    fprintf(out, "\ne4m3-by-e4m3: both operands FP8 with scales of 1 x 128 by 128 x 128. No layer uses this product; it needs\n"
                 "wgmma of sm_90 and is compared with that instruction's own rate\n");
}
