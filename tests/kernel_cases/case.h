// One golden case of a kernel: a safetensors file whose metadata holds the operation and its attributes
// (tests/goldens/kernels/README.md; quantised_grouped_matmul: README.md here), and what every operation's runner does with it.
// Errors say what is wrong with the file, or with the answer.
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
    const char *expected_error;                           // the argument that must be named; NULL: there is none
    double atol, rtol;
    bool interpret;
    struct expertd_team *team;  // of the second run
    struct case_device *device; // that both runs are on; NULL: the CPU
    bool has_twin;              // of the device, in the CPU's scalar kernels
};

FALLIBLE case_open(const char *path, struct kernel_case *out);
void case_close(struct kernel_case *c); // legal on a zeroed struct

// Says on stderr which attributes are none that any operation has: the case is judged without them.
void case_note_unknown(const struct kernel_case *c, const char *path);

// Attributes. EXPERTD_ERR_INVALID names the attribute where it is no such thing; absent ones give `absent`.
FALLIBLE case_integer(const struct kernel_case *c, const char *key, int64_t absent, int64_t *out);
FALLIBLE case_flag(const struct kernel_case *c, const char *key, bool *out);
FALLIBLE case_dtype(const struct kernel_case *c, const char *key, enum expertd_dtype *out);
FALLIBLE case_options(const struct kernel_case *c, struct expertd_matmul_options *out);
const char *case_text(const struct kernel_case *c, const char *key); // "" where it is absent

// A tensor by name, NULL where there is none.
const struct expertd_tensor_view *case_tensor(const struct kernel_case *c, const char *name);

// What a tensor of the answer is.
struct case_answer {
    enum expertd_dtype dtype;
    uint32_t rank;
    uint64_t shape[CASE_RANK_MAX];
};

// The expected tensor, which must be there and be of that dtype and shape.
FALLIBLE case_expected(const struct kernel_case *c, const char *name, const struct case_answer *answer,
                       const struct expertd_tensor_view **out);

// Is every element within the bounds? The error has the first that is not.
FALLIBLE case_compare(const struct kernel_case *c, const char *name, const struct expertd_tensor_view *expected, const void *got);

// Where an operation runs: on the device, on the team, or (both NULL) on the calling thread.
struct case_place {
    struct case_device *device;
    struct expertd_team *team;
};

// What an operation does into a poisoned buffer.
struct case_run {
    FALLIBLE (*run)(void *context, const struct case_place *place, void *out);
    void *context;
    struct case_answer answer;
};

// Runs twice, the second time on the case's team; the first answer must be within the bounds of tensor `out`, the second equal it
// bit for bit. On a device both times, and a third time on the CPU, where that has the device's twin: equal bits again.
FALLIBLE case_run_twice(const struct kernel_case *c, const struct case_run *run);

// The operations.
FALLIBLE run_grouped_matmul(const struct kernel_case *c);
FALLIBLE run_transposed_grouped_matmul(const struct kernel_case *c);
FALLIBLE run_group_metadata(const struct kernel_case *c);
FALLIBLE run_grouped_gemm(const struct kernel_case *c);
FALLIBLE run_quantised_grouped_matmul(const struct kernel_case *c);

#endif
