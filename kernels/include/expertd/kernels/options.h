// Options of grouped_matmul, transposed_grouped_matmul and grouped_gemm: hints and limits for speed and memory. None changes a bit
// of a result. A zeroed `struct expertd_matmul_options` is not the default: start from expertd_matmul_options_default().
//
// The fields of the Pallas TPU kernels' CompilerParams, and their effect here:
//
//   dimension_semantics            of (n, m tiles, k). parallel: threads take them in any order; arbitrary: in sequence. k must be
//                                  arbitrary, since the order of its sums is part of the contract; "parallel" is refused
//   allow_input_fusion             for (lhs, rhs). Gather, cast and packing are part of the load, not a separate pass, so false is
//                                  refused for an operand that needs one of them
//   vmem_limit_bytes               limit on one thread's scratch. Refused, with the bytes needed, where a row, a panel and the
//                                  kernels' own scratch do not fit
//   internal_scratch_in_bytes      bytes of the workspace that the caller passes; refused where they are too few. 0: as many as
//                                  ..._workspace_bytes returned
//   shape_invariant_numerics       always true in effect: bits never depend on shapes, and false changes nothing
//   fuse_transposed_lhs_in_matmul  true: tgmm reads its lhs in place; false: through the thread's scratch
//   disable_bounds_checks          the arguments are not checked; invalid arguments are then undefined behaviour
//   flags                          "kernels=NAME": refused unless that backend is selected. Other flags are refused
//   collective_id, skip_device_barrier, disable_semaphore_checks
//                                  refused: an operation runs in one process and communicates with no other
//   has_side_effects, serialization_format, kernel_type, allow_collective_id_without_custom_barrier, use_tc_tiling_on_sc,
//   needs_layout_passes            refused: they concern the TPU's compiler alone
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
    size_t vmem_limit_bytes;                                 // of one thread; 0: no limit
    size_t internal_scratch_in_bytes;                        // 0: as ..._workspace_bytes returned
    bool shape_invariant_numerics;
    bool fuse_transposed_lhs_in_matmul;
    bool disable_bounds_checks;
    const char *kernels; // name of the backend that must be selected; NULL: any. Borrowed
};

// Tile sizes in an operation's own m, k and n, rounded to what the kernels support. Either all three are given or all are 0.
// Output rows (tm; of the transposed matmul tk) are cut by kernel call, columns (tn) by task. The summed dimension (tk; of the
// transposed matmul tm) is cut into the blocks that a thread packs; each block continues the sums of the one before, so their order
// does not change. On packed weights that cut has no effect.
struct expertd_matmul_tiling {
    size_t tm, tk, tn; // all 0: chosen by the library
};

struct expertd_matmul_options {
    struct expertd_matmul_tiling tiling;
    // Replaces `tiling` where it is not NULL. Each operation and each ..._workspace_bytes calls it once, in the calling thread,
    // with the operation's m, k and n (of grouped_gemm: the greatest of its groups). It must return equal tilings for equal sizes,
    // else the workspace may be too small.
    struct expertd_matmul_tiling (*tiling_of)(void *context, size_t m, size_t k, size_t n);
    void *tiling_context;
    unsigned input_buffer_count; // panels of rhs per kernel call, at most 4 (larger values count as 4); 0: chosen by the library
    bool interpret;              // compute with the scalar twin, on the calling thread
    struct expertd_compiler_params compiler;
};

// The options in use where an operation's `options` is NULL: tiles and buffers chosen by the library, no limit on scratch, any
// backend, arguments checked. The structure owns nothing. Any thread.
struct expertd_matmul_options expertd_matmul_options_default(void);

// Sets one field of CompilerParams by name, from text: "vmem_limit_bytes" "65536", "dimension_semantics"
// "parallel,arbitrary,arbitrary", "disable_bounds_checks" "true", "flags" "kernels=avx2". For "flags", `value` is borrowed as long
// as the params are used. EXPERTD_ERR_INVALID with the key as the field: the key is unknown or refused, or the value is malformed.
EXPERTD_FALLIBLE expertd_compiler_params_set(struct expertd_compiler_params *params, const char *key, const char *value);

// Checks what can be checked without an operation's arguments. EXPERTD_ERR_INVALID names the field. Every operation calls it first.
EXPERTD_FALLIBLE expertd_matmul_options_check(const struct expertd_matmul_options *options);

#ifdef __cplusplus
}
#endif

#endif
