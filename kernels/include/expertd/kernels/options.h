// How a grouped operation is carried out: hints and limits that every operation of the contract takes. None of them can change a
// bit of a result. A zeroed `struct expertd_matmul_options` is not the default: begin with expertd_matmul_options_default().
//
// The fields of the Pallas TPU kernels' CompilerParams, and what each is here:
//
//   dimension_semantics            of (n, m tiles, k): parallel = threads may take them in any order; arbitrary = one after
//                                  another. k is always arbitrary: its order is the contract's, and "parallel" is refused
//   allow_input_fusion             per operand (lhs, rhs): gather, cast and packing are part of the load. There is no separate
//                                  pass, so false is refused for an operand that needs one of them
//   vmem_limit_bytes               cap on the scratch of one thread; refused, with the bytes that are needed, where a row, a panel
//                                  and what kernels keep themselves do not fit
//   internal_scratch_in_bytes      bytes of workspace that the caller gives; refused where they are too few. 0: as many as
//                                  ..._workspace_bytes said
//   shape_invariant_numerics       always kept; false permits what is never done
//   fuse_transposed_lhs_in_matmul  tgmm reads its lhs where it lies; false: by way of the thread's scratch
//   disable_bounds_checks          the arguments are not validated: what does not fit is then undefined behaviour
//   flags                          "kernels=NAME": refused unless that instruction set is selected. Other keys are refused
//   collective_id, skip_device_barrier, disable_semaphore_checks
//                                  refused: an operation here is one process's and meets no other; exchanges between shards
//                                  are not the kernels' business
//   has_side_effects, serialization_format, kernel_type, allow_collective_id_without_custom_barrier, use_tc_tiling_on_sc,
//   needs_layout_passes            refused: of the TPU's compiler alone
#ifndef EXPERTD_KERNELS_OPTIONS_H
#define EXPERTD_KERNELS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "expertd/base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

enum expertd_dimension_semantics { EXPERTD_DIMENSION_PARALLEL, EXPERTD_DIMENSION_ARBITRARY };

struct expertd_compiler_params {
    enum expertd_dimension_semantics dimension_semantics[3]; // n, m tiles, k
    bool allow_input_fusion[2];                              // lhs, rhs
    size_t vmem_limit_bytes;                                 // of one thread; 0: none
    size_t internal_scratch_in_bytes;                        // 0: what ..._workspace_bytes said
    bool shape_invariant_numerics;
    bool fuse_transposed_lhs_in_matmul;
    bool disable_bounds_checks;
    const char *kernels; // the backend that must be selected, or NULL: any. Borrowed
};

// How an operation's own m, k and n are cut; rounded to what the kernels take. The rows of the output (m, of the transposed one k)
// by calls of the kernels; what sums run along (k, of the transposed one m) by blocks of panels that a thread packs: sums of a
// block are where those of the next begin, so nothing is reordered, and it is without effect on weights packed at load; columns (n)
// by tasks.
struct expertd_matmul_tiling {
    size_t tm, tk, tn; // all 0: tuned
};

struct expertd_matmul_options {
    struct expertd_matmul_tiling tiling;
    // Stands for `tiling`; NULL: none. Asked once by an operation, and once by its ..._workspace_bytes, in the calling thread, with
    // its m, k and n (of grouped_gemm the greatest of its groups): the same for the same sizes, else the workspace may be too
    // small.
    struct expertd_matmul_tiling (*tiling_of)(void *context, size_t m, size_t k, size_t n);
    void *tiling_context;
    unsigned input_buffer_count; // panels of rhs that a thread takes at a time; 0: tuned; more than 4, which kernels take, are 4
    bool interpret;              // the scalar twin, on the calling thread
    struct expertd_compiler_params compiler;
};

struct expertd_matmul_options expertd_matmul_options_default(void);

// One field of CompilerParams by name, as text: "vmem_limit_bytes" "65536", "dimension_semantics" "parallel,arbitrary,arbitrary",
// "disable_bounds_checks" "true", "flags" "kernels=avx2". `value` is kept by reference for flags.
// EXPERTD_ERR_INVALID with the key as the field: unknown, refused (the message says why), or a value that is none.
EXPERTD_FALLIBLE expertd_compiler_params_set(struct expertd_compiler_params *params, const char *key, const char *value);

// Do they hold for an operation at all? EXPERTD_ERR_INVALID names the field. The operations ask it first.
EXPERTD_FALLIBLE expertd_matmul_options_check(const struct expertd_matmul_options *options);

#ifdef __cplusplus
}
#endif

#endif
