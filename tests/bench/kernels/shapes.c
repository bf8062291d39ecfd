#include "tests/bench/kernels/shapes.h"

#include <string.h>

#include "tests/flags/flags.h"

enum { A_GROUPS = 8, A_K = 4096, A_N = 14336, B_GROUPS = 128, B_K = 2048, B_N = 768, TOP_K = 8 };

#define SHAPE_A .groups = A_GROUPS, .k = A_K, .n = A_N
#define SHAPE_B .groups = B_GROUPS, .k = B_K, .n = B_N

static const struct bench_shape SHAPES[] = {
    {"a512", "Mixtral's gate, 512 rows", SHAPE_A, 512, SPREAD_EVEN, 8, 0, false},
    {"a512-zipf", "the same, uneven", SHAPE_A, 512, SPREAD_ZIPF, 0, 0, false},
    {"a2048", "Mixtral's gate, 2048 rows", SHAPE_A, 2048, SPREAD_EVEN, 8, 0, false},
    {"a2048-zipf", "the same, uneven", SHAPE_A, 2048, SPREAD_ZIPF, 0, 0, false},
    {"b2048", "Qwen3-30B-A3B's gate, 256 tokens x 8", SHAPE_B, 2048, SPREAD_TOP_K, 0, TOP_K, false},
    {"b2048-down", "its down", .groups = B_GROUPS, .k = B_N, .n = B_K, 2048, SPREAD_TOP_K, 0, TOP_K, true},
    {"c1", "b2048's, 1 token x 8", SHAPE_B, 8, SPREAD_TOP_K, 0, TOP_K, false},
    {"c8", "8 tokens x 8", SHAPE_B, 64, SPREAD_TOP_K, 0, TOP_K, false},
    {"cmix", "2 rows, each in a group of a512's", SHAPE_A, 2, SPREAD_EVEN, 2, 0, false},
    {"d64", "DeepSeek-V3's gate, 64 rows over 16 groups", .groups = 16, .k = 7168, .n = 2048, 64, SPREAD_EVEN, 16, 0, false},
    {"rows1", "b2048's matrices, 1 row in each of 64", SHAPE_B, 64, SPREAD_EVEN, 64, 0, false},
    {"rows2", "2 rows in each of 64", SHAPE_B, 128, SPREAD_EVEN, 64, 0, false},
    {"rows4", "4 rows in each of 64", SHAPE_B, 256, SPREAD_EVEN, 64, 0, false},
    {"rows8", "8 rows in each of 64", SHAPE_B, 512, SPREAD_EVEN, 64, 0, false},
    {"rows12", "12 rows in each of 64", SHAPE_B, 768, SPREAD_EVEN, 64, 0, true},
    {"rows16", "16 rows in each of 64", SHAPE_B, 1024, SPREAD_EVEN, 64, 0, true},
    {"rows24", "24 rows in each of 64", SHAPE_B, 1536, SPREAD_EVEN, 64, 0, true},
    {"rows32", "32 rows in each of 64", SHAPE_B, 2048, SPREAD_EVEN, 64, 0, true},
    {"rows64", "64 rows in each of 16", SHAPE_B, 1024, SPREAD_EVEN, 16, 0, false},
    {"router1", "a router: one group, 1 row", .groups = 1, .k = B_K, .n = 128, 1, SPREAD_EVEN, 1, 0, true},
    {"router64", "64 rows", .groups = 1, .k = B_K, .n = 128, 64, SPREAD_EVEN, 1, 0, true},
    {"router2048", "2048 rows", .groups = 1, .k = B_K, .n = 128, 2048, SPREAD_EVEN, 1, 0, true},
    {"tiny", "to check that the program works", .groups = 4, .k = 64, .n = 128, 8, SPREAD_TOP_K, 0, 2, true},
};
enum { SHAPE_COUNT = sizeof SHAPES / sizeof *SHAPES };

const struct bench_shape *shape_at(size_t i) {
    return i < SHAPE_COUNT ? &SHAPES[i] : NULL;
}

FALLIBLE shape_find(const char *name, size_t length, const struct bench_shape **out) {
    const char *names[SHAPE_COUNT];
    size_t found = 0;
    for (size_t i = 0; i < SHAPE_COUNT; i++) {
        names[i] = SHAPES[i].name;
    }
    TRY(flags_find("shape", name, length, names, SHAPE_COUNT, "--list names them", &found));
    *out = &SHAPES[found];
    return OK;
}

static void even_sizes(const struct bench_shape *shape, int32_t *sizes) {
    for (size_t g = 0; g < shape->active; g++) {
        sizes[g] = (int32_t)(shape->rows / shape->active + (g < shape->rows % shape->active));
    }
}

// Shares are rounded down; the first groups get the remaining rows.
static void zipf_sizes(const struct bench_shape *shape, int32_t *sizes) {
    double all = 0;
    for (size_t g = 0; g < shape->groups; g++) {
        all += 1.0 / (double)(g + 1);
    }
    size_t given = 0;
    for (size_t g = 0; g < shape->groups; g++) {
        sizes[g] = (int32_t)((double)shape->rows / ((double)(g + 1) * all));
        given += (size_t)sizes[g];
    }
    for (size_t g = 0; given < shape->rows; g = (g + 1) % shape->groups, given++) {
        sizes[g]++;
    }
}

// Knuth's 64-bit linear congruential generator: any distribution will do if it is always the same.
static uint32_t draw(uint64_t *state, uint32_t below) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % below);
}

static void top_k_sizes(const struct bench_shape *shape, int32_t *sizes) {
    uint64_t state = 1;
    for (size_t token = 0; token < shape->rows / shape->top_k; token++) {
        bool taken[SHAPE_GROUPS_MAX] = {0};
        for (size_t k = 0; k < shape->top_k; k++) {
            uint32_t g;
            do {
                g = draw(&state, (uint32_t)shape->groups);
            } while (taken[g]);
            taken[g] = true;
            sizes[g]++;
        }
    }
}

size_t shape_sizes(const struct bench_shape *shape, int32_t *sizes) {
    memset(sizes, 0, shape->groups * sizeof *sizes);
    switch (shape->spread) {
    case SPREAD_EVEN:
        even_sizes(shape, sizes);
        break;
    case SPREAD_ZIPF:
        zipf_sizes(shape, sizes);
        break;
    case SPREAD_TOP_K:
        top_k_sizes(shape, sizes);
        break;
    }
    size_t active = 0;
    for (size_t g = 0; g < shape->groups; g++) {
        active += sizes[g] > 0;
    }
    return active;
}
