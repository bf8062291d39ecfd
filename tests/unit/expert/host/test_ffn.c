// Networks of experts over rows grouped by expert: the cut into runs and chunks changes no bit.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "expert/host/ffn.h"
#include "expertd/base/dtype.h"
#include "expertd/kernels/weights.h"

enum { E = 5, H = 72, I = 40, ROWS = 700, ROWS_OF_A_CHUNK = 256 };

struct fixture {
    struct expert_weights all;
    void *table[3][E]; // of gate, up and down
    uint16_t hidden[ROWS * H], results[2][ROWS * H];
    uint32_t rows[ROWS]; // gathered from `hidden`
    struct ffn_scratch scratch;
    void *memory;
};

static void fill(uint16_t *values, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = expertd_bf16_from_f32((float)(seed >> 16) / 65536.0f - 0.5f);
    }
}

static struct expertd_packed_weights pack(void **table, size_t k, size_t n, uint32_t seed) {
    const enum expertd_packed_layout layout = expertd_packed_layout_best(EXPERTD_DTYPE_BF16);
    struct expertd_packed_weights packed = {
        .dtype = EXPERTD_DTYPE_BF16, .groups = E, .k = k, .n = n, .data = table, .layout = layout};
    uint16_t *values = malloc(n * k * sizeof *values);
    packed.group_bytes = expertd_packed_group_bytes(packed.dtype, k, n);
    for (size_t e = 0; e < E; e++) {
        fill(values, n * k, seed + (uint32_t)e);
        table[e] = aligned_alloc(64, packed.group_bytes);
        struct expertd_weight_source source = {.data = values, .dtype = packed.dtype, .n_stride = k, .k_stride = 1};
        expertd_pack_weights(&source, k, n, packed.dtype, layout, table[e]);
    }
    free(values);
    return packed;
}

static int begin(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    f->all = (struct expert_weights){
        .gate = pack(f->table[0], H, I, 1), .up = pack(f->table[1], H, I, 100), .down = pack(f->table[2], I, H, 200)};
    fill(f->hidden, ROWS * H, 7);
    for (uint32_t r = 0; r < ROWS; r++) {
        f->rows[r] = r * 13 % ROWS;
    }
    // So wide that a chunk has the fewest rows.
    struct ffn_sizes sizes = {
        .max_hidden_size = H, .max_intermediate_size = 1 << 18, .max_experts = E, .max_rows = ROWS, .dtype = EXPERTD_DTYPE_BF16};
    f->memory = aligned_alloc(64, ffn_scratch_bytes(&sizes));
    ffn_scratch_init(&f->scratch, &sizes, f->memory);
    assert_int_equal(f->scratch.chunk_rows, ROWS_OF_A_CHUNK);
    *state = f;
    return 0;
}

static int end(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < 3 * E; i++) {
        free(f->table[i / E][i % E]);
    }
    free(f->memory);
    free(f);
    return 0;
}

// The experts [first, first + count) as a run.
static struct expert_weights run_of(const struct expert_weights *all, size_t first, size_t count) {
    struct expert_weights run = *all;
    struct expertd_packed_weights *matrices[] = {&run.gate, &run.up, &run.down};
    for (size_t i = 0; i < 3; i++) {
        matrices[i]->data += first;
        matrices[i]->groups = count;
    }
    return run;
}

static void forward(struct fixture *f, const struct expert_weights *runs, size_t num_runs, const int32_t *sizes,
                    uint16_t *results) {
    static const struct expertd_activation SILU = {.kind = EXPERTD_ACTIVATION_SILU};
    struct ffn_args args = {
        .runs = runs,
        .num_runs = num_runs,
        .activation = &SILU,
        .hidden_size = H,
        .intermediate_size = I,
        .dtype = EXPERTD_DTYPE_BF16,
        .group_sizes = sizes,
        .hidden = f->hidden,
        .hidden_stride = H * sizeof *f->hidden,
        .hidden_rows = f->rows,
        .results = results,
        .results_stride = H * sizeof *results,
    };
    for (size_t e = 0; e < E; e++) {
        args.rows += (size_t)sizes[e];
    }
    memset(results, 0xff, sizeof f->results[0]);
    assert_false(err_is(ffn_forward(&args, &f->scratch, NULL)));
}

static void runs_have_the_bits_of_one_run(void **state) {
    struct fixture *f = *state;
    static const int32_t SIZES[][E] = {
        {1, 0, 2, 3, 1}, {0, 0, 0, 9, 0}, {300, 100, 0, 255, 45}, {1, 257, 256, 0, 1}, {0, 0, 0, 0, 0}};
    static const size_t CUTS[][E] = {{1, 1, 1, 1, 1}, {2, 3}, {1, 3, 1}, {4, 1}}; // experts of each run
    for (size_t s = 0; s < sizeof SIZES / sizeof *SIZES; s++) {
        forward(f, &f->all, 1, SIZES[s], f->results[0]);
        for (size_t c = 0; c < sizeof CUTS / sizeof *CUTS; c++) {
            struct expert_weights runs[E];
            size_t count = 0;
            for (size_t first = 0; first < E; first += CUTS[c][count++]) {
                runs[count] = run_of(&f->all, first, CUTS[c][count]);
            }
            forward(f, runs, count, SIZES[s], f->results[1]);
            assert_memory_equal(f->results[0], f->results[1], sizeof f->results[0]);
        }
    }
}

// Each row is that of its expert alone.
static void a_row_belongs_to_its_expert(void **state) {
    struct fixture *f = *state;
    static const int32_t SIZES[E] = {2, 300, 0, 3, 1};
    forward(f, &f->all, 1, SIZES, f->results[0]);
    size_t row = 0;
    for (size_t e = 0; e < E; e++) {
        for (int32_t i = 0; i < SIZES[e]; i++, row++) {
            int32_t one[E] = {0};
            uint32_t first = f->rows[0];
            one[e] = 1;
            f->rows[0] = f->rows[row];
            forward(f, &f->all, 1, one, f->results[1]);
            f->rows[0] = first;
            assert_memory_equal(f->results[0] + row * H, f->results[1], H * sizeof *f->results[1]);
        }
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, begin, end)
    const struct CMUnitTest tests[] = {
        TEST(runs_have_the_bits_of_one_run),
        TEST(a_row_belongs_to_its_expert),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
