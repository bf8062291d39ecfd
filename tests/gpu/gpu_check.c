// What only a GPU can answer, in one program: do the kernels compute there what they compute in simulation, do the variants of a
// product agree bit for bit, do a row's bits depend on its neighbours, and how fast is it. tests/gpu/run keeps the output.
//   gpu-check --device cuda|sim [--tiny]
// A line per finding; closes with "N passed, N failed". In simulation shapes are tiny and nothing is timed.
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
    uint32_t groups, rows_of_group, n, k; // the second group is empty; others have up to 30 % more or fewer rows
};

static const struct shape TINY[] = {{4, 5, 72, 80}, {3, 70, 136, 200}};
static const struct shape SMALL[] = {{8, 37, 512, 1024}, {4, 200, 768, 2048}};
static const struct shape TIMED[] = {
    {16, 512, 4096, 7168}, {16, 2048, 4096, 7168}, {128, 8, 1536, 2048}, {128, 1, 2048, 768}, {32, 20, 4096, 7168}};

// A product on the device, its arrays here and there. Host memory is pinned.
struct trial {
    struct expertd_devices *devices;
    struct arena host;
    void *there[ARRAYS_MAX];
    int arrays;
    enum expertd_dtype dtype;
    uint32_t groups, rows, n, k;
    char *a, *b, *d; // on the host: [rows, k], [groups, n, k], [rows, n]
    int32_t *sizes;
    struct expertd_device_tile *tiles; // as the last variant cut them
    uint32_t tile_count;
    void *a_there, *b_there, *d_there, *tiles_there;
};

static int passed, failed;

static void tell(bool good, const char *what) {
    printf("%s: %s\n", good ? "ok" : "FAILED", what);
    *(good ? &passed : &failed) += 1;
}

static void must(err_t e) {
    if (err_is(e)) {
        printf("FAILED: %s\n%d passed, %d failed\n", expertd_err_message(), passed, failed + 1);
        exit(err_exit_code(e.code));
    }
}

#define CALL(t, call, ...)                                                                                                         \
    do {                                                                                                                           \
        struct expertd_device_error call_error_;                                                                                   \
        must(expertd_devices_check((t)->devices, 0, (t)->devices->table->call((t)->devices->all[0], __VA_ARGS__, &call_error_),    \
                                   &call_error_));                                                                                 \
    } while (0)

static void await(const struct trial *t) {
    struct expertd_device_error error;
    must(expertd_devices_check(t->devices, 0, t->devices->table->wait(t->devices->all[0], &error), &error));
}

// The next array: `bytes` of pinned memory, and as many on the device.
static void *array(struct trial *t, size_t bytes, void **there) {
    void *here;
    must(arena_take(&t->host, bytes, &here));
    CALL(t, reserve, bytes, there);
    t->there[t->arrays++] = *there;
    return here;
}

static void send(const struct trial *t, const void *here, void *there, size_t bytes) {
    CALL(t, copy, EXPERTD_DEVICE_UPLOAD, there, here, bytes);
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
    must(arena_init(&t->host,
                    a + b + d + GROUPS_MAX * sizeof(int32_t) + most_tiles * sizeof(struct expertd_device_tile) + ARRAYS_MAX * 64));
    CALL(t, pin, t->host.base, t->host.bytes);
    t->a = array(t, a, &t->a_there);
    t->b = array(t, b, &t->b_there);
    t->d = array(t, d, &t->d_there);
    void *unused; // the kernels know groups by their tiles
    t->sizes = array(t, shape->groups * sizeof(int32_t), &unused);
    t->tiles = array(t, most_tiles * sizeof(struct expertd_device_tile), &t->tiles_there);
    size_groups(t, shape);
    fill(dtype, t->a, a / size, 1);
    fill(dtype, t->b, b / size, 2);
    memset(t->d, 0xff, d);
    send(t, t->a, t->a_there, a);
    send(t, t->b, t->b_there, b);
    send(t, t->d, t->d_there, d);
    await(t);
}

static void trial_deinit(struct trial *t) {
    const struct expertd_device_table *table = t->devices->table;
    for (int i = 0; i < t->arrays; i++) {
        table->release(t->devices->all[0], t->there[i]);
    }
    table->unpin(t->devices->all[0], t->host.base);
    arena_deinit(&t->host);
}

// ---- the kernels that make this product

static uint32_t variants_of(const struct trial *t) {
    const struct expertd_device_facts *facts = &t->devices->facts;
    return t->dtype == EXPERTD_DTYPE_F32 ? facts->f32.has : facts->bf16.has;
}

#define EACH_VARIANT(t, variant)                                                                                                   \
    for (enum expertd_device_variant variant = 0; variant < EXPERTD_DEVICE_VARIANTS; variant++)                                    \
        if (variants_of(t) >> variant & 1)

static void send_tiles(const struct trial *t) {
    send(t, t->tiles, t->tiles_there, t->tile_count * sizeof(struct expertd_device_tile));
}

static void start(const struct trial *t, enum expertd_device_variant variant) {
    size_t size = expertd_dtype_size(t->dtype);
    struct expertd_device_grouped_gemm gemm = {
        .rows = {.dtype = t->dtype,
                 .data = t->a_there,
                 .stride = t->k * size,
                 .variant = variant,
                 .tiles = t->tiles_there,
                 .tile_count = t->tile_count,
                 .rows = t->rows},
        .b = {.dtype = t->dtype, .groups = t->groups, .n = t->n, .k = t->k, .data = t->b_there},
        .out = t->d_there,
        .out_stride = t->n * size,
    };
    CALL(t, grouped_gemm, &gemm);
}

// Into a poisoned output, and back. The tiles are the variant's; there.
static void run(const struct trial *t, enum expertd_device_variant variant) {
    size_t bytes = (size_t)t->rows * t->n * expertd_dtype_size(t->dtype);
    memset(t->d, 0xff, bytes);
    send(t, t->d, t->d_there, bytes);
    start(t, variant);
    CALL(t, copy, EXPERTD_DEVICE_DOWNLOAD, t->d, t->d_there, bytes);
    await(t);
}

static void cut_and_run(struct trial *t, enum expertd_device_variant variant) {
    t->tile_count = device_cut_tiles(t->sizes, t->groups, 0, device_variant_rows(variant), t->tiles);
    send_tiles(t);
    run(t, variant);
}

// ---- what is found

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

// As a Hopper GPU's tensor cores add, or, in fp32, one fma per k.
static float dot_sm90(const struct trial *t, const void *x, const void *w) {
    if (t->dtype == EXPERTD_DTYPE_F32) {
        return expertd_dot_f32_reference(x, w, 1, t->k);
    }
    return tensor_core_dot(t->dtype == EXPERTD_DTYPE_F16 ? &TENSOR_CORE_SM90_F16 : &TENSOR_CORE_SM90_BF16, t->dtype, x, w, t->k);
}

struct agreement {
    uint32_t sm_90, cpu; // of SAMPLES outputs, those with the bits of the scalar twin, and of the CPU's kernels
    double worst;        // distance from the former, of sqrt(k)
};

static struct agreement compare_with_twins(const struct trial *t) {
    struct agreement found = {0};
    for (uint32_t s = 0; s < SAMPLES; s++) {
        uint32_t row = scramble(s) % t->rows, column = scramble(s + 77777) % t->n;
        size_t size = expertd_dtype_size(t->dtype), w_at = ((size_t)group_of(t, row) * t->n + column) * t->k * size;
        const void *x = t->a + (size_t)row * t->k * size, *w = t->b + w_at;
        float got = element(t, (size_t)row * t->n + column), want[2];
        want[0] = dot_sm90(t, x, w);
        want[1] = t->dtype == EXPERTD_DTYPE_BF16 ? expertd_dot_bf16_reference(x, w, 1, t->k) : want[0];
        for (int i = 0; i < 2; i++) {
            char narrow[4];
            expertd_dtype_narrow(&want[i], 1, t->dtype, narrow);
            expertd_dtype_widen(t->dtype, narrow, 1, &want[i]);
        }
        found.sm_90 += expertd_f32_bits(got) == expertd_f32_bits(want[0]);
        found.cpu += expertd_f32_bits(got) == expertd_f32_bits(want[1]);
        double distance = fabs((double)got - (double)want[0]) / sqrt(t->k);
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
        must(err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for %zu bytes of outputs", bytes));
    }
    memcpy(copy, t->d, bytes);
    return copy;
}

// Each variant against the twins, and all against the first one. What is equal here may be listed as equal in device.cu.
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
        // fmas are IEEE's on every GPU. Else products are about 1/3, and bf16 has 8 bits.
        bool exact = dtype == EXPERTD_DTYPE_F32 || strcmp(devices->facts.arithmetic, "sm_90") == 0;
        tell(exact ? found.sm_90 == SAMPLES : found.worst < 0.01, text);
        if (!first) {
            first = copy_of(&t, count * expertd_dtype_size(dtype));
            first_variant = variant;
            continue;
        }
        size_t differ = count_differing(&t, first, count);
        snprintf(text, sizeof text, "%s by %s and by %s: %zu of %zu outputs differ (n %u, k %u)", expertd_dtype_name(dtype),
                 device_variant_name(variant), device_variant_name(first_variant), differ, count, t.n, t.k);
        tell(differ == 0, text);
    }
    free(first);
    trial_deinit(&t);
}

// The first row of each tile alone, by itself, against the same row among all.
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
        send_tiles(&t);
        run(&t, variant);
        uint32_t differ = 0;
        for (uint32_t i = 0; i < t.tile_count; i++) {
            size_t at = t.tiles[i].row * row_bytes;
            differ += memcmp(all + at, t.d + at, row_bytes) != 0;
        }
        snprintf(text, sizeof text, "%s: %u of %u rows have other bits alone than among others", device_variant_name(variant),
                 differ, t.tile_count);
        tell(differ == 0, text);
        free(all);
    }
    trial_deinit(&t);
}

static void time_variants(struct expertd_devices *devices, const struct shape *shape) {
    struct trial t;
    trial_init(&t, devices, shape, EXPERTD_DTYPE_BF16);
    EACH_VARIANT(&t, variant) {
        cut_and_run(&t, variant); // warm
        int64_t begun = clock_now_ns();
        for (int i = 0; i < TIMED_CALLS; i++) {
            start(&t, variant);
        }
        await(&t);
        double seconds = (double)(clock_now_ns() - begun) / NS_PER_S / TIMED_CALLS;
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
    must(expertd_devices_parse(argv[2], &request));
    must(expertd_devices_open(&request, &devices));
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
