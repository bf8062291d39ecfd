// The library as other programs use it: many threads at once, each with its own workspace and with a team or none, on threads with
// the least stack that kernels.h permits.
#include "tests/unit/kernels/quantised_case.h"

#include <pthread.h>

#include "expertd/kernels/kernels.h"

enum { M = 100, K = 160, N = 200, GROUPS = 3, CALLERS = 4 };

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) // sanitizers make frames larger
enum { STACK_FACTOR = 8, ROUNDS = 1 };
#elif defined(__aarch64__) // runs in an emulator
enum { STACK_FACTOR = 1, ROUNDS = 1 };
#else
enum { STACK_FACTOR = 1, ROUNDS = 5 };
#endif
enum { STACK_BYTES = 512 << 10, STACK_WITHOUT_TEAM_BYTES = 1 << 20 };

static float lhs[M * K], rhs[GROUPS * K * N];
static const int32_t SIZES[GROUPS] = {70, 0, 20};
static struct expertd_packed_weights packed[3]; // F32, BF16, and MXFP4 for rows of BF16
static struct quantised_case quantised;
static void *groups[3][GROUPS];

static int make_operands(void **state) {
    (void)state;
    struct random random = {77};
    for (size_t i = 0; i < M * K; i++) {
        lhs[i] = random_f32(&random, VALUES_PLAIN);
    }
    for (size_t i = 0; i < GROUPS * K * N; i++) {
        rhs[i] = random_f32(&random, VALUES_PLAIN);
    }
    quantised_case_init(&quantised, &FORMATS[8], K, N, VALUES_PLAIN, &random);
    static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_BF16};
    for (size_t w = 0; w < COUNT_OF(packed); w++) {
        bool codes = w == 2;
        size_t bytes = codes ? expertd_quantised_group_bytes(&quantised.format, K, N) : expertd_packed_group_bytes(DTYPES[w], K, N);
        packed[w] = (struct expertd_packed_weights){
            .dtype = DTYPES[w], .groups = GROUPS, .k = K, .n = N, .group_bytes = bytes, .data = groups[w]};
        packed[w].format = codes ? &quantised.format : NULL;
        for (size_t g = 0; g < GROUPS; g++) {
            struct expertd_weight_source source = {rhs + g * K * N, EXPERTD_DTYPE_F32, 1, N};
            groups[w][g] = codes ? quantised.packed : test_alloc(bytes);
            if (!codes) {
                expertd_pack_weights(&source, K, N, DTYPES[w], EXPERTD_PACKED_PANELS, groups[w][g]);
            }
        }
    }
    return 0;
}

static int free_operands(void **state) {
    (void)state;
    for (size_t g = 0; g < GROUPS; g++) {
        free(groups[0][g]), free(groups[1][g]);
    }
    quantised_case_deinit(&quantised);
    return 0;
}

// A thread that calls the library.
struct caller {
    bool has_team;
    uint64_t digest; // of all its results
    char failure[256];
};

static void add_digest(struct caller *caller, const float *out, size_t count) {
    for (size_t i = 0; i < count; i++) {
        caller->digest = (caller->digest ^ expertd_f32_bits(out[i])) * 0x100000001b3;
    }
}

static void note(struct caller *caller, err_t e, float *out, size_t count) {
    if (err_is(e)) {
        snprintf(caller->failure, sizeof caller->failure, "%s", expertd_err_message());
    }
    add_digest(caller, out, count);
}

static void multiply(struct caller *caller, const struct expertd_grouped_matmul_args *given, struct expertd_team *team) {
    struct expertd_grouped_matmul_args args = *given;
    float *out = test_alloc(M * N * sizeof *out);
    args.lhs = lhs, args.lhs_stride = K, args.group_sizes = SIZES, args.num_groups = args.num_actual_groups = GROUPS;
    args.m = M, args.out = out, args.out_stride = N;
    void *workspace = test_alloc(expertd_grouped_matmul_workspace_bytes(&args, team) + 1);
    note(caller, expertd_grouped_matmul(&args, team, workspace), out, M * N);
    free(workspace), free(out);
}

static void multiply_all(struct caller *caller, struct expertd_team *team) {
    struct expertd_plain_weights plain = {.dtype = EXPERTD_DTYPE_F32, .groups = GROUPS, .k = K, .n = N, .data = rhs};
    struct expertd_plain_weights transposed = {
        .dtype = EXPERTD_DTYPE_F16, .groups = GROUPS, .k = K, .n = N, .transposed = true, .data = rhs};
    multiply(caller, &(struct expertd_grouped_matmul_args){.rhs = expertd_rhs_plain(&plain)}, team);
    multiply(caller,
             &(struct expertd_grouped_matmul_args){
                 .rhs = expertd_rhs_plain(&transposed), .lhs_dtype = EXPERTD_DTYPE_BF16, .out_dtype = EXPERTD_DTYPE_F32},
             team);
    for (size_t w = 0; w < COUNT_OF(packed); w++) {
        multiply(caller, &(struct expertd_grouped_matmul_args){.rhs = expertd_rhs_packed(&packed[w])}, team);
    }
    float *out = test_alloc(GROUPS * K * N * sizeof *out);
    struct expertd_transposed_grouped_matmul_args args = {.lhs = lhs,
                                                          .lhs_transposed = true,
                                                          .rhs = lhs,
                                                          .rhs_stride = K,
                                                          .lhs_dtype = EXPERTD_DTYPE_F32,
                                                          .rhs_dtype = EXPERTD_DTYPE_F32,
                                                          .k = K,
                                                          .m = M,
                                                          .n = K,
                                                          .group_sizes = SIZES,
                                                          .num_groups = GROUPS,
                                                          .num_actual_groups = GROUPS,
                                                          .out = out};
    void *workspace = test_alloc(expertd_transposed_grouped_matmul_workspace_bytes(&args, team) + 1);
    note(caller, expertd_transposed_grouped_matmul(&args, team, workspace), out, GROUPS * K * K);
    free(workspace), free(out);
}

static void *call(void *context) {
    struct caller *caller = context;
    struct expertd_team *team = NULL;
    if (caller->has_team && err_is(expertd_team_create(&(struct expertd_team_options){2, 20}, &team))) {
        snprintf(caller->failure, sizeof caller->failure, "%s", expertd_err_message());
        return NULL;
    }
    caller->digest = 0;
    for (int i = 0; i < ROUNDS; i++) {
        multiply_all(caller, team);
    }
    expertd_team_destroy(team);
    return NULL;
}

static void run_callers(struct caller *callers, size_t count, size_t stack_bytes) {
    pthread_t threads[CALLERS];
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    assert_int_equal(pthread_attr_setstacksize(&attributes, stack_bytes * STACK_FACTOR), 0);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(pthread_create(&threads[i], &attributes, call, &callers[i]), 0);
    }
    for (size_t i = 0; i < count; i++) {
        pthread_join(threads[i], NULL);
        assert_string_equal(callers[i].failure, "");
        assert_true(callers[i].digest == callers[0].digest);
    }
    pthread_attr_destroy(&attributes);
}

static void on_every_backend(const struct kernel_backend *backend) {
    if (!takes_case()) {
        return;
    }
    assert_false(err_is(expertd_kernel_select(backend->name)));
    struct caller with[CALLERS] = {{.has_team = true}, {.has_team = true}, {.has_team = true}, {.has_team = true}};
    struct caller without[CALLERS] = {0};
    run_callers(with, CALLERS, STACK_BYTES);
    run_callers(without, CALLERS, STACK_WITHOUT_TEAM_BYTES);
    assert_true(with[0].digest == without[0].digest);
}

static void callers_at_once_with_little_stack_get_one_answer(void **state) {
    (void)state;
    for_each_backend(on_every_backend);
    assert_false(err_is(expertd_kernel_select("auto")));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(callers_at_once_with_little_stack_get_one_answer),
    };
    return cmocka_run_group_tests(tests, make_operands, free_operands);
}
