// gpu-check --device cuda|sim [--tiny]: checks plain products on a GPU. Do the kernels compute the same as in simulation, do the
// variants of a product agree bit for bit, do a row's bits depend on its neighbours, and how fast are they? tests/gpu/run records
// the output. One line per check; the last line is "N passed, N failed". In simulation, and with --tiny, shapes are tiny and
// nothing is timed.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "expertd/kernels/devices.h"
#include "expertd/kernels/grouped_matmul.h"
#include "kernels/cpu/common/tensor_core.h"
#include "kernels/device/device_plan.h"

enum { GROUPS_MAX = 256, ARRAYS_MAX = 8, SAMPLES = 4096, TIMED_CALLS = 20 };

struct shape {
    uint32_t groups, rows_of_group, n, k; // the second group is empty; the others have up to 30 % more or fewer rows
};

static const struct shape TINY[] = {{4, 5, 72, 80}, {3, 70, 136, 200}};
static const struct shape SMALL[] = {{8, 37, 512, 1024}, {4, 200, 768, 2048}};
static const struct shape TIMED[] = {
    {16, 512, 4096, 7168}, {16, 2048, 4096, 7168}, {128, 8, 1536, 2048}, {128, 1, 2048, 768}, {32, 20, 4096, 7168}};

// A product with its arrays on the host, in pinned memory, and on the device.
struct trial {
    struct expertd_devices *devices;
    struct arena host;
    void *allocated[ARRAYS_MAX]; // on the device
    int arrays;
    enum expertd_dtype dtype;
    uint32_t groups, rows, n, k;
    char *a, *b, *d; // on the host: [rows, k], [groups, n, k], [rows, n]
    int32_t *sizes;
    struct expertd_device_tile *tiles; // as cut for the last variant
    uint32_t tile_count;
    void *device_a, *device_b, *device_d, *device_tiles;
};

static int passed, failed;

static void report(bool good, const char *finding) {
    printf("%s: %s\n", good ? "ok" : "FAILED", finding);
    *(good ? &passed : &failed) += 1;
}

static void must_succeed(err_t e) {
    if (err_is(e)) {
        printf("FAILED: %s\n%d passed, %d failed\n", expertd_err_message(), passed, failed + 1);
        exit(err_exit_code(e.code));
    }
}

#define CALL(t, call, ...)                                                                                                         \
    do {                                                                                                                           \
        struct expertd_device_error call_error_;                                                                                   \
        must_succeed(expertd_devices_check(                                                                                        \
            (t)->devices, 0, (t)->devices->table->call((t)->devices->all[0], __VA_ARGS__, &call_error_), &call_error_));           \
    } while (0)

static void await(const struct trial *t) {
    struct expertd_device_error error;
    must_succeed(expertd_devices_check(t->devices, 0, t->devices->table->wait(t->devices->all[0], &error), &error));
}

// Allocates an array: `bytes` of pinned memory, and as many on the device.
static void *array(struct trial *t, size_t bytes, void **on_device) {
    void *on_host;
    must_succeed(arena_take(&t->host, bytes, &on_host));
    CALL(t, reserve, bytes, on_device);
    t->allocated[t->arrays++] = *on_device;
    return on_host;
}

static void upload(const struct trial *t, const void *on_host, void *on_device, size_t bytes) {
    CALL(t, copy, EXPERTD_DEVICE_UPLOAD, on_device, on_host, bytes);
}

static uint32_t scramble(uint32_t i) {
    i = (i ^ i >> 16) * 0x7feb352du;
    i = (i ^ i >> 15) * 0x846ca68bu;
    return i ^ i >> 16;
}

static void fill(enum expertd_dtype dtype, char *out, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        float value = (float)(int32_t)scramble((uint32_t)i ^ seed) * 0x1p-31f;
        expertd_dtype_narrow(&value, 1, dtype, out + i * expertd_dtype_size(dtype));
    }
}

static void size_groups(struct trial *t, const struct shape *shape) {
    for (uint32_t g = 0; g < t->groups; g++) {
        uint32_t spread = shape->rows_of_group * 3 / 10;
        t->sizes[g] = g == 1 ? 0 : (int32_t)(shape->rows_of_group - spread + scramble(g) % (2 * spread + 1));
        t->rows += (uint32_t)t->sizes[g];
    }
}

static void trial_init(struct trial *t, struct expertd_devices *devices, const struct shape *shape, enum expertd_dtype dtype) {
    size_t size = expertd_dtype_size(dtype), rows = (size_t)shape->groups * (shape->rows_of_group * 13 / 10 + 2);
    size_t most_tiles = rows / DEVICE_TILE_ROWS_LEAST + shape->groups;
    size_t a = rows * shape->k * size, b = (size_t)shape->groups * shape->n * shape->k * size, d = rows * shape->n * size;
    *t = (struct trial){.devices = devices, .dtype = dtype, .groups = shape->groups, .n = shape->n, .k = shape->k};
    must_succeed(arena_init(&t->host, a + b + d + GROUPS_MAX * sizeof(int32_t) + most_tiles * sizeof(struct expertd_device_tile) +
                                          ARRAYS_MAX * 64));
    CALL(t, pin, t->host.base, t->host.bytes);
    t->a = array(t, a, &t->device_a);
    t->b = array(t, b, &t->device_b);
    t->d = array(t, d, &t->device_d);
    void *unused; // the kernels find groups by their tiles
    t->sizes = array(t, shape->groups * sizeof(int32_t), &unused);
    t->tiles = array(t, most_tiles * sizeof(struct expertd_device_tile), &t->device_tiles);
    size_groups(t, shape);
    fill(dtype, t->a, a / size, 1);
    fill(dtype, t->b, b / size, 2);
    memset(t->d, 0xff, d);
    upload(t, t->a, t->device_a, a);
    upload(t, t->b, t->device_b, b);
    upload(t, t->d, t->device_d, d);
    await(t);
}

static void trial_deinit(struct trial *t) {
    const struct expertd_device_table *table = t->devices->table;
    for (int i = 0; i < t->arrays; i++) {
        table->release(t->devices->all[0], t->allocated[i]);
    }
    table->unpin(t->devices->all[0], t->host.base);
    arena_deinit(&t->host);
}

// ---- running the variants

static uint32_t variants_of(const struct trial *t) {
    const struct expertd_device_facts *facts = &t->devices->facts;
    return t->dtype == EXPERTD_DTYPE_F32 ? facts->f32.has : facts->bf16.has;
}

#define EACH_VARIANT(t, variant)                                                                                                   \
    for (enum expertd_device_variant variant = 0; variant < EXPERTD_DEVICE_VARIANTS; variant++)                                    \
        if (variants_of(t) >> variant & 1)

static void upload_tiles(const struct trial *t) {
    upload(t, t->tiles, t->device_tiles, t->tile_count * sizeof(struct expertd_device_tile));
}

static void start(const struct trial *t, enum expertd_device_variant variant) {
    size_t size = expertd_dtype_size(t->dtype);
    struct expertd_device_grouped_gemm gemm = {
        .rows = {.dtype = t->dtype,
                 .data = t->device_a,
                 .stride = t->k * size,
                 .variant = variant,
                 .tiles = t->device_tiles,
                 .tile_count = t->tile_count,
                 .rows = t->rows},
        .b = {.dtype = t->dtype, .groups = t->groups, .n = t->n, .k = t->k, .data = t->device_b},
        .out = t->device_d,
        .out_stride = t->n * size,
    };
    CALL(t, grouped_gemm, &gemm);
}

// Runs the variant, whose tiles are on the device, into a poisoned output and downloads the output.
static void run(const struct trial *t, enum expertd_device_variant variant) {
    size_t bytes = (size_t)t->rows * t->n * expertd_dtype_size(t->dtype);
    memset(t->d, 0xff, bytes);
    upload(t, t->d, t->device_d, bytes);
    start(t, variant);
    CALL(t, copy, EXPERTD_DEVICE_DOWNLOAD, t->d, t->device_d, bytes);
    await(t);
}

static void cut_and_run(struct trial *t, enum expertd_device_variant variant) {
    t->tile_count = device_cut_tiles(t->sizes, t->groups, 0, device_variant_rows(variant), t->tiles);
    upload_tiles(t);
    run(t, variant);
}

// ---- checks

static uint32_t group_of(const struct trial *t, uint32_t row) {
    uint32_t group = 0, end = (uint32_t)t->sizes[0];
    while (row >= end) {
        end += (uint32_t)t->sizes[++group];
    }
    return group;
}

static float element(const struct trial *t, size_t index) {
    float value;
    expertd_dtype_widen(t->dtype, t->d + index * expertd_dtype_size(t->dtype), 1, &value);
    return value;
}

// The sum as a Hopper GPU's tensor cores compute it; in fp32, one fma per k.
static float dot_sm90(const struct trial *t, const void *x, const void *w) {
    if (t->dtype == EXPERTD_DTYPE_F32) {
        return expertd_dot_f32_reference(x, w, 1, t->k);
    }
    return tensor_core_dot(t->dtype == EXPERTD_DTYPE_F16 ? &TENSOR_CORE_SM90_F16 : &TENSOR_CORE_SM90_BF16, t->dtype, x, w, t->k);
}

struct agreement {
    uint32_t sm_90, cpu; // number of SAMPLES outputs with the bits of the scalar twin, and of the CPU's kernels
    double worst;        // largest difference from the scalar twin, divided by sqrt(k)
};

static struct agreement compare_with_twins(const struct trial *t) {
    struct agreement found = {0};
    for (uint32_t s = 0; s < SAMPLES; s++) {
        uint32_t row = scramble(s) % t->rows, column = scramble(s + 77777) % t->n;
        size_t size = expertd_dtype_size(t->dtype), w_at = ((size_t)group_of(t, row) * t->n + column) * t->k * size;
        const void *x = t->a + (size_t)row * t->k * size, *w = t->b + w_at;
        float got = element(t, (size_t)row * t->n + column), expected[2];
        expected[0] = dot_sm90(t, x, w);
        expected[1] = t->dtype == EXPERTD_DTYPE_BF16 ? expertd_dot_bf16_reference(x, w, 1, t->k) : expected[0];
        for (int i = 0; i < 2; i++) {
            char narrow[4];
            expertd_dtype_narrow(&expected[i], 1, t->dtype, narrow);
            expertd_dtype_widen(t->dtype, narrow, 1, &expected[i]);
        }
        found.sm_90 += expertd_f32_bits(got) == expertd_f32_bits(expected[0]);
        found.cpu += expertd_f32_bits(got) == expertd_f32_bits(expected[1]);
        double distance = fabs((double)got - (double)expected[0]) / sqrt(t->k);
        found.worst = distance > found.worst || distance != distance ? distance : found.worst;
    }
    return found;
}

static size_t count_differing(const struct trial *t, const char *first, size_t count) {
    size_t differ = 0, size = expertd_dtype_size(t->dtype);
    for (size_t i = 0; i < count; i++) {
        differ += memcmp(t->d + i * size, first + i * size, size) != 0;
    }
    return differ;
}

static char *copy_of(const struct trial *t, size_t bytes) {
    char *copy = malloc(bytes);
    if (!copy) {
        must_succeed(err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu bytes of outputs", bytes));
    }
    memcpy(copy, t->d, bytes);
    return copy;
}

// Compares each variant with the twins and with the first variant. Variants that are equal here may be listed as
// equal in device.cu.
static void check_variants(struct expertd_devices *devices, const struct shape *shape, enum expertd_dtype dtype) {
    struct trial t;
    char text[320], *first = NULL;
    enum expertd_device_variant first_variant = EXPERTD_DEVICE_VARIANTS;
    trial_init(&t, devices, shape, dtype);
    size_t count = (size_t)t.rows * t.n;
    EACH_VARIANT(&t, variant) {
        cut_and_run(&t, variant);
        struct agreement found = compare_with_twins(&t);
        snprintf(text, sizeof text,
                 "%s by %s, %u x %u rows, n %u, k %u: of %d samples %u have sm_90's bits, %u the CPU's; worst distance "
                 "%.2g of sqrt(k)",
                 expertd_dtype_name(dtype), device_variant_name(variant), shape->groups, shape->rows_of_group, t.n, t.k, SAMPLES,
                 found.sm_90, found.cpu, found.worst);
        // FMA is IEEE on every GPU. Otherwise allow for products of about 1/3 in bf16, which has 8 bits.
        bool exact = dtype == EXPERTD_DTYPE_F32 || strcmp(devices->facts.arithmetic, "sm_90") == 0;
        report(exact ? found.sm_90 == SAMPLES : found.worst < 0.01, text);
        if (!first) {
            first = copy_of(&t, count * expertd_dtype_size(dtype));
            first_variant = variant;
            continue;
        }
        size_t differ = count_differing(&t, first, count);
        snprintf(text, sizeof text, "%s by %s and by %s: %zu of %zu outputs differ (n %u, k %u)", expertd_dtype_name(dtype),
                 device_variant_name(variant), device_variant_name(first_variant), differ, count, t.n, t.k);
        report(differ == 0, text);
    }
    free(first);
    trial_deinit(&t);
}

// Compares the first row of each tile, computed alone, with the same row among others.
static void check_neighbours(struct expertd_devices *devices, const struct shape *shape) {
    struct trial t;
    trial_init(&t, devices, shape, EXPERTD_DTYPE_BF16);
    EACH_VARIANT(&t, variant) {
        cut_and_run(&t, variant);
        size_t row_bytes = (size_t)t.n * 2;
        char text[160], *all = copy_of(&t, t.rows * row_bytes);
        for (uint32_t i = 0; i < t.tile_count; i++) {
            t.tiles[i].rows = 1;
        }
        upload_tiles(&t);
        run(&t, variant);
        uint32_t differ = 0;
        for (uint32_t i = 0; i < t.tile_count; i++) {
            size_t at = t.tiles[i].row * row_bytes;
            differ += memcmp(all + at, t.d + at, row_bytes) != 0;
        }
        snprintf(text, sizeof text, "%s: %u of %u rows have other bits alone than among others", device_variant_name(variant),
                 differ, t.tile_count);
        report(differ == 0, text);
        free(all);
    }
    trial_deinit(&t);
}

static void time_variants(struct expertd_devices *devices, const struct shape *shape) {
    struct trial t;
    trial_init(&t, devices, shape, EXPERTD_DTYPE_BF16);
    EACH_VARIANT(&t, variant) {
        cut_and_run(&t, variant); // warm-up
        int64_t begin_ns = clock_now_ns();
        for (int i = 0; i < TIMED_CALLS; i++) {
            start(&t, variant);
        }
        await(&t);
        double seconds = (double)(clock_now_ns() - begin_ns) / NS_PER_S / TIMED_CALLS;
        double bytes = 2.0 * ((double)t.rows * t.k + (double)t.groups * t.n * t.k + (double)t.rows * t.n);
        printf("time: %-10s %3u groups, %6u rows, n %5u, k %5u: %9.1f us %7.1f TFLOP/s %6.2f TB/s\n", device_variant_name(variant),
               t.groups, t.rows, t.n, t.k, seconds * 1e6, 2.0 * t.rows * t.n * t.k / seconds * 1e-12, bytes / seconds * 1e-12);
    }
    trial_deinit(&t);
}

int main(int argc, char **argv) {
    struct expertd_devices_request request;
    struct expertd_devices *devices;
    bool tiny = argc == 4 && strcmp(argv[3], "--tiny") == 0;
    if ((argc != 3 && !tiny) || strcmp(argv[1], "--device") != 0) {
        fprintf(stderr, "usage: gpu-check --device cuda|cuda:N|sim [--tiny]\n");
        return 64;
    }
    must_succeed(expertd_devices_parse(argv[2], &request));
    must_succeed(expertd_devices_open(&request, &devices));
    const struct expertd_device_facts *facts = &devices->facts;
    bool simulated = strcmp(devices->table->kind, "sim") == 0;
    printf("device: %s, bf16 %s, f32 %s, %.1f GiB\n", facts->name, facts->arithmetic, facts->arithmetic_f32,
           (double)facts->memory_bytes / (double)(1ull << 30));
    const struct shape *shapes = simulated || tiny ? TINY : SMALL;
    for (size_t i = 0; i < 2; i++) {
        static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16, EXPERTD_DTYPE_F32};
        for (size_t d = 0; d < sizeof DTYPES / sizeof *DTYPES; d++) {
            check_variants(devices, &shapes[i], DTYPES[d]);
        }
        check_neighbours(devices, &shapes[i]);
    }
    for (size_t i = 0; !simulated && !tiny && i < sizeof TIMED / sizeof *TIMED; i++) {
        time_variants(devices, &TIMED[i]);
    }
    expertd_devices_close(devices);
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
