// The wgmma kernels, unchanged, on simulated GPUs: ragged groups against the scalar twin of their arithmetic, bit for bit, into a
// poisoned output; and what the simulation must notice.
#include "kernel_test.h"

#include "kernels/cuda/grouped_gemm.h"
#include "kernels/cuda/sim/runtime.h"
#include "kernels/grouped_matmul.h"

enum { GROUPS_MAX = 8, POISON = 0xffff };

typedef int gemm(const struct cuda_grouped_gemm *args, struct CUstream_st *stream);

struct gemm_case {
    int sizes[GROUPS_MAX];
    int groups, extra; // rows past the sizes' sum
    int n, k, blocks;
};

// A, B, D and the sizes: pinned here, and on the device.
enum { A, B, D, SIZES, ARRAYS };

struct arrays {
    size_t bytes[ARRAYS];
    void *host[ARRAYS], *device[ARRAYS];
    cudaStream_t stream;
};

static int rows_of(const struct gemm_case *c) {
    int rows = c->extra;
    for (int g = 0; g < c->groups; g++) {
        rows += c->sizes[g];
    }
    return rows;
}

static void check(cudaError_t error) {
    if (error != cudaSuccess) {
        fail_msg("%s: %s", cudaGetErrorString(error), sim_fault());
    }
}

static void arrays_init(struct arrays *a, const struct gemm_case *c, enum values values) {
    struct random random = {0x9e3779b97f4a7c15u};
    size_t m = (size_t)rows_of(c), n = (size_t)c->n, k = (size_t)c->k, groups = (size_t)c->groups;
    *a = (struct arrays){.bytes = {[A] = m * k * 2, [B] = groups * n * k * 2, [D] = m * n * 2, [SIZES] = groups * 4}};
    check(cudaStreamCreateWithFlags(&a->stream, cudaStreamNonBlocking));
    for (int i = 0; i < ARRAYS; i++) {
        check(cudaHostAlloc(&a->host[i], a->bytes[i], cudaHostAllocDefault));
        check(cudaMalloc(&a->device[i], a->bytes[i]));
    }
    for (int i = A; i <= B; i++) {
        for (size_t e = 0; e < a->bytes[i] / 2; e++) {
            ((uint16_t *)a->host[i])[e] = random_bf16(&random, values);
        }
        check(cudaMemcpyAsync(a->device[i], a->host[i], a->bytes[i], cudaMemcpyHostToDevice, a->stream));
    }
    memcpy(a->host[SIZES], c->sizes, a->bytes[SIZES]);
    check(cudaMemcpyAsync(a->device[SIZES], a->host[SIZES], a->bytes[SIZES], cudaMemcpyHostToDevice, a->stream));
}

static void arrays_deinit(struct arrays *a) {
    for (int i = 0; i < ARRAYS; i++) {
        check(cudaFreeHost(a->host[i]));
        check(cudaFree(a->device[i]));
    }
    check(cudaStreamDestroy(a->stream));
    assert_int_equal(sim_allocations(), 0);
}

static void check_rows(const struct gemm_case *c, const struct arrays *a) {
    const uint16_t *x = a->host[A], *w = a->host[B], *d = a->host[D];
    size_t n = (size_t)c->n, k = (size_t)c->k, row = 0;
    for (size_t g = 0; g <= (size_t)c->groups; g++) {
        size_t end = g < (size_t)c->groups ? row + (size_t)c->sizes[g] : row + (size_t)c->extra;
        for (; row < end; row++) {
            for (size_t i = 0; i < n; i++) {
                uint16_t got = d[row * n + i];
                if (g == (size_t)c->groups) {
                    assert_int_equal(got, POISON); // of no group: left alone
                    continue;
                }
                uint16_t want = bf16_from_f32(dot_bf16_sim90_reference(x + row * k, w + (g * n + i) * k, 1, k));
                float got_f32 = f32_from_bf16(got), want_f32 = f32_from_bf16(want);
                if (!same_f32(got_f32, want_f32)) {
                    fail_msg("row %zu of group %zu, column %zu: %a, not %a", row, g, i, (double)got_f32, (double)want_f32);
                }
            }
        }
    }
}

static void run(gemm *kernel, const struct gemm_case *c, enum values values) {
    struct arrays a;
    arrays_init(&a, c, values);
    struct cuda_grouped_gemm args = {a.device[A], a.device[B], a.device[D], a.device[SIZES], rows_of(c),
                                     c->groups,   c->n,        c->k,        c->blocks};
    check((cudaError_t)kernel(&args, a.stream));
    check(cudaMemcpyAsync(a.host[D], a.device[D], a.bytes[D], cudaMemcpyDeviceToHost, a.stream));
    check(cudaStreamSynchronize(a.stream));
    check_rows(c, &a);
    arrays_deinit(&a);
}

static void ragged_groups_give_the_twins_bits(void **state) {
    (void)state;
    run(grouped_gemm_bf16_sm90_64x128, &(struct gemm_case){{5, 0, 64, 70, 1}, 5, 3, 136, 200, 2}, VALUES_PLAIN);
    run(grouped_gemm_bf16_sm90_64x128, &(struct gemm_case){{0, 0, 193}, 3, 0, 128, 512, 1}, VALUES_PLAIN);
    run(grouped_gemm_bf16_sm90_128x256, &(struct gemm_case){{100, 0, 156, 44}, 4, 84, 264, 72, 3}, VALUES_PLAIN);
    run(grouped_gemm_bf16_sm90_128x256, &(struct gemm_case){{128, 1, 65}, 3, 0, 256, 320, 2}, VALUES_PLAIN);
}

static void delicate_values_give_the_twins_bits(void **state) {
    (void)state;
    for (enum values values = VALUES_FLUSH; values < VALUES_COUNT; values++) {
        run(grouped_gemm_bf16_sm90_64x128, &(struct gemm_case){{3, 9}, 2, 1, 72, 72, 2}, values);
    }
}

static void no_rows_and_no_groups_write_nothing(void **state) {
    (void)state;
    run(grouped_gemm_bf16_sm90_64x128, &(struct gemm_case){{0, 0}, 2, 4, 128, 64, 1}, VALUES_PLAIN);
    run(grouped_gemm_bf16_sm90_128x256, &(struct gemm_case){{0}, 1, 0, 128, 64, 2}, VALUES_PLAIN);
}

static void shapes_that_the_copy_engine_cannot_take_are_refused(void **state) {
    (void)state;
    struct gemm_case c = {{4}, 1, 0, 128, 64, 1};
    struct arrays a;
    arrays_init(&a, &c, VALUES_PLAIN);
    struct cuda_grouped_gemm args = {a.device[A], a.device[B], a.device[D], a.device[SIZES], 4, 1, 128, 60, 1};
    assert_int_equal(grouped_gemm_bf16_sm90_64x128(&args, a.stream), cudaErrorInvalidValue);
    args.k = 64, args.groups = CUDA_GROUPS_MAX + 1;
    assert_int_equal(grouped_gemm_bf16_sm90_64x128(&args, a.stream), cudaErrorInvalidValue);
    arrays_deinit(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ragged_groups_give_the_twins_bits),
        cmocka_unit_test(delicate_values_give_the_twins_bits),
        cmocka_unit_test(no_rows_and_no_groups_write_nothing),
        cmocka_unit_test(shapes_that_the_copy_engine_cannot_take_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
