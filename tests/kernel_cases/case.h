// One golden case: a safetensors file whose metadata holds the operation and its attributes (tests/goldens/kernels/README.md;
// quantised_grouped_matmul: README.md in this folder), and the functions that the runners of all operations share. An error
// names the fault of the file or of the answer.
#ifndef EXPERTD_TESTS_KERNEL_CASES_CASE_H
#define EXPERTD_TESTS_KERNEL_CASES_CASE_H

#include "base/safetensors.h"
#include "expertd/kernels/options.h"
#include "expertd/kernels/team.h"

enum { CASE_TENSORS_MAX = 32, CASE_RANK_MAX = 3 };

struct case_device;

struct kernel_case {
    struct safetensors file;
    struct expertd_tensor_view tensors[CASE_TENSORS_MAX]; // aligned copies, in the order of the file's entries
    const char *expected_error;                           // the argument that the error must name; NULL: no error expected
    double atol, rtol;
    bool interpret;
    struct expertd_team *team;  // for the second run
    struct case_device *device; // for both runs; NULL: the CPU
    bool has_twin;              // the CPU has a scalar twin of the device's arithmetic
};

FALLIBLE case_open(const char *path, struct kernel_case *out);
void case_close(struct kernel_case *c); // legal on a zeroed struct

// Reports attributes that no operation has on stderr; the case runs without them.
void case_note_unknown(const struct kernel_case *c, const char *path);

// Attributes. EXPERTD_ERR_INVALID names a malformed attribute; missing ones give `absent`.
FALLIBLE case_integer(const struct kernel_case *c, const char *key, int64_t absent, int64_t *out);
FALLIBLE case_flag(const struct kernel_case *c, const char *key, bool *out);
FALLIBLE case_dtype(const struct kernel_case *c, const char *key, enum expertd_dtype *out);
FALLIBLE case_options(const struct kernel_case *c, struct expertd_matmul_options *out);
const char *case_text(const struct kernel_case *c, const char *key); // "" where it is absent

// A tensor by name, NULL where there is none.
const struct expertd_tensor_view *case_tensor(const struct kernel_case *c, const char *name);

// Dtype and shape of a tensor of the answer.
struct case_answer {
    enum expertd_dtype dtype;
    uint32_t rank;
    uint64_t shape[CASE_RANK_MAX];
};

// The expected tensor; an error where it is missing or has another dtype or shape.
FALLIBLE case_expected(const struct kernel_case *c, const char *name, const struct case_answer *answer,
                       const struct expertd_tensor_view **out);

// Compares within the case's tolerances. The error shows the first element outside.
FALLIBLE case_compare(const struct kernel_case *c, const char *name, const struct expertd_tensor_view *expected, const void *got);

// Where an operation runs: on the device, on the team, or (both NULL) on the calling thread.
struct case_target {
    struct case_device *device;
    struct expertd_team *team;
};

// One run of an operation into a poisoned buffer.
struct case_run {
    FALLIBLE (*run)(void *context, const struct case_target *target, void *out);
    void *context;
    struct case_answer answer;
};

// Runs twice, the second time on the case's team. The first answer must be within the tolerances of tensor `out`; the second must
// have the same bits. With a device, both runs are on it, and a third on the CPU, where it has a scalar twin: equal bits again.
FALLIBLE case_run_twice(const struct kernel_case *c, const struct case_run *run);

// Runners of the operations.
FALLIBLE run_grouped_matmul(const struct kernel_case *c);
FALLIBLE run_transposed_grouped_matmul(const struct kernel_case *c);
FALLIBLE run_group_metadata(const struct kernel_case *c);
FALLIBLE run_grouped_gemm(const struct kernel_case *c);
FALLIBLE run_quantised_grouped_matmul(const struct kernel_case *c);

#endif
