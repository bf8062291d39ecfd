// Declares every kernel function that the tables in backends.c contain, and definitions that the kernels' sources share: unrolling
// macros, the cut of rows into tiles, the self-check. backends.c explains which file defines which function. Private to kernels/.
#ifndef EXPERTD_KERNELS_CPU_BACKEND_BACKENDS_H
#define EXPERTD_KERNELS_CPU_BACKEND_BACKENDS_H

#include <stdbool.h>

#include "kernels/cpu/backend/backend.h"

// For loops over rows and vectors of a tile: they must be unrolled completely, or the compiler would spill accumulators.
#define PANEL_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define PANEL_UNROLL _Pragma("clang loop unroll(full)")
#define PANEL_UNROLL_16 PANEL_UNROLL
#else
#define PANEL_UNROLL _Pragma("GCC unroll 8")
#define PANEL_UNROLL_16 _Pragma("GCC unroll 16")
#endif

enum { PANEL_TILE = 6 }; // most rows of a microkernel's tile: by 64 columns they are 24 accumulators of 16 floats

// Rows of the tile that begins at `row`. Tiles are as even as possible: 7 rows are 4 and 3, not 6 and 1.
static inline size_t panel_tile_rows(size_t rows, size_t row) {
    size_t tiles = (rows - row + PANEL_TILE - 1) / PANEL_TILE;
    return (rows - row + tiles - 1) / tiles;
}

// Calls run(..., rows) with `rows` as a compile-time constant, so that the accumulators of the inlined copy are registers.
#define PANEL_BY_ROWS(rows, run, ...)                                                                                              \
    switch (rows) {                                                                                                                \
    case 1:                                                                                                                        \
        run(__VA_ARGS__, 1);                                                                                                       \
        break;                                                                                                                     \
    case 2:                                                                                                                        \
        run(__VA_ARGS__, 2);                                                                                                       \
        break;                                                                                                                     \
    case 3:                                                                                                                        \
        run(__VA_ARGS__, 3);                                                                                                       \
        break;                                                                                                                     \
    case 4:                                                                                                                        \
        run(__VA_ARGS__, 4);                                                                                                       \
        break;                                                                                                                     \
    case 5:                                                                                                                        \
        run(__VA_ARGS__, 5);                                                                                                       \
        break;                                                                                                                     \
    default:                                                                                                                       \
        run(__VA_ARGS__, PANEL_TILE);                                                                                              \
        break;                                                                                                                     \
    }

// Computes a macrokernel call with a kernel of single panels.
static inline void macrokernel_panel_by_panel(const struct macrokernel_args *macro, const struct expertd_quantised_format *format,
                                              quantised_kernel *kernel) {
    for (size_t p = 0; p < macro->count; p++) {
        struct panel_args args = {.x = macro->x,
                                  .rows = macro->rows,
                                  .panel = macro->panels[p],
                                  .k = macro->k,
                                  .out = macro->sums + p * EXPERTD_KERNEL_PANEL,
                                  .out_stride = KERNEL_SUMS,
                                  .columns = EXPERTD_KERNEL_PANEL};
        kernel(&args, format);
    }
}

// The functions that row_body.h, pack_body.h and unpacked_n_major_body.h define for each instruction set.
#define BACKEND_DECLARE_ROWS(target)                                                                                               \
    void target##_widen(enum expertd_dtype dtype, const void *src, size_t count, float *dst);                                      \
    void target##_narrow(const float *src, size_t count, enum expertd_dtype dtype, void *dst);                                     \
    void target##_from_i32(float *sums, size_t count, enum expertd_dtype to);                                                      \
    void target##_activation(const struct expertd_activation_args *args);                                                          \
    void target##_combine(const struct expertd_combine_args *args);                                                                \
    void target##_exp_minus(const float *x, float shift, size_t count, float *out);                                                \
    void target##_sigmoid(const float *x, size_t count, float *out);                                                               \
    void target##_sqrt_softplus(const float *x, size_t count, float *out);                                                         \
    void target##_softcap(const float *x, float cap, size_t count, float *out);                                                    \
    void target##_add_scaled(const struct add_scaled_args *args);                                                                  \
    void target##_epilogue(const struct epilogue_args *args);                                                                      \
    void target##_decode(const struct decode_args *args);                                                                          \
    void target##_pack_k_major(const struct pack_args *args);                                                                      \
    void target##_pack_n_major(const struct pack_args *args);                                                                      \
    void target##_quad_offsets(const struct offsets_args *args);                                                                   \
    void target##_place_codes(const struct place_args *args);                                                                      \
    n_major_kernel target##_n_major_f32, target##_n_major_bf16

// The panel kernels and the quantised kernels of one instruction set, then its macrokernels.
#define BACKEND_DECLARE_PANELS(target)                                                                                             \
    panel_kernel target##_panel_f32, target##_panel_bf16;                                                                          \
    panel_kernel target##_panel_i8;                                                                                                \
    quantised_kernel target##_quantised_f32, target##_quantised_bf16
#define BACKEND_DECLARE_MACROKERNELS(target)                                                                                       \
    macrokernel target##_macrokernel_f32, target##_macrokernel_bf16, target##_macrokernel_i8

BACKEND_DECLARE_ROWS(scalar);
BACKEND_DECLARE_PANELS(scalar);
panel_kernel scalar_amx_panel_bf16, scalar_sm90_panel_bf16;
quantised_kernel scalar_amx_quantised_bf16, scalar_sm90_quantised_bf16;
extern const struct kernel_backend backend_scalar, backend_scalar_amx, backend_scalar_sm90;

#if defined(__x86_64__)
BACKEND_DECLARE_ROWS(avx2);
BACKEND_DECLARE_PANELS(avx2);
BACKEND_DECLARE_MACROKERNELS(avx2);
macrokernel avx2_large_m_macrokernel_i8; // called by avx2_macrokernel_i8
n_major_kernel avx2_n_major_i8;
quantised_macrokernel avx2_quantised_macrokernel_bf16;
k_major_kernel avx2_k_major_f32, avx2_k_major_bf16, avx2_k_major_i8;

BACKEND_DECLARE_ROWS(avx512);
BACKEND_DECLARE_PANELS(avx512);
BACKEND_DECLARE_MACROKERNELS(avx512);
k_major_kernel avx512_k_major_f32;
enum { AVX512_ROWS_CACHED = 1100 << 10 }; // bytes of rows widened to f32 that a thread caches in L2
macrokernel avx2_slices_f32, avx2_slices_bf16;
panel_kernel avx2_slices_panel_f32, avx2_slices_panel_bf16;
macrokernel avx512_slices_f32, avx512_wide_slices_f32;
panel_kernel avx512_slices_panel_f32, avx512_wide_slices_panel_f32;
quantised_macrokernel avx512_quantised_macrokernel_bf16;
quantised_kernel avx512vbmi_quantised_f32, avx512vbmi_quantised_bf16; // used by backend avx512 if the CPU has VBMI
quantised_macrokernel avx512vbmi_quantised_macrokernel_bf16;

panel_kernel avx512vnni_panel_i8;
macrokernel avx512vnni_macrokernel_i8;
n_major_kernel avx512vnni_n_major_i8;
k_major_kernel avx512vnni_k_major_i8;

panel_kernel avx512bf16_panel_bf16;
macrokernel avx512bf16_macrokernel_bf16;
quantised_kernel avx512bf16_quantised_f32, avx512bf16_quantised_bf16;
quantised_macrokernel avx512bf16_quantised_macrokernel_bf16;
quantised_kernel avx512bf16vbmi_quantised_bf16; // VDPBF16PS; used by backend avx512bf16 if the CPU has VBMI
quantised_macrokernel avx512bf16vbmi_quantised_macrokernel_bf16;
n_major_kernel avx512bf16_n_major_bf16;
k_major_kernel avx512bf16_k_major_bf16;
macrokernel avx512bf16_slices_bf16, avx512bf16_wide_slices_bf16;
panel_kernel avx512bf16_slices_panel_bf16, avx512bf16_wide_slices_panel_bf16;

enum { AMX_ROWS_CACHED = KERNEL_DIGITS_CACHED }; // most bytes of rows that amx_macrokernel_bf16 and _i8 cache, without their sums
panel_kernel amx_panel_bf16;
macrokernel amx_macrokernel_bf16, amx_macrokernel_i8;
quantised_kernel amxvbmi_quantised_bf16;
quantised_macrokernel amxvbmi_quantised_macrokernel_bf16;
quantised_span_rows amxvbmi_quantised_span;

quantised_macrokernel avx512vnni_quantised_macrokernel_bf16;
quantised_span_rows avx512vnni_quantised_span;

// Macrokernels for 4-bit codes in exact integer arithmetic, which need VNNI, VBMI and BITALG. avx512vnni_integer_rows: the rows
// that they cache; 0: they do not take this format and k. The other two return false, and leave the sums undefined, if a row cannot
// be computed exactly.
quantised_span_rows avx512vnni_integer_rows;
bool avx512vnni_quantised_integer(const struct macrokernel_args *macro, const struct expertd_quantised_format *format);
bool avx512vnni_quantised_integer_amx_order(const struct macrokernel_args *macro,
                                            const struct expertd_quantised_format *format); // the bits of ARITHMETIC_CPU_AMX
// The same for INT4 with coarser scales, by AMX. amx_quantised_integer returns false if too few of the rows' blocks are exact; the
// first INTEGER_CACHED_BYTES of scratch must then stay as they are until the next call with the same rows.
enum { INTEGER_CACHED_BYTES = 128 };
quantised_span_rows amx_integer_rows;
bool amx_quantised_integer(const struct macrokernel_args *macro, const struct expertd_quantised_format *format);
quantised_macrokernel amx_quantised_macrokernel_bf16;
quantised_span_rows amx_quantised_span;

extern const struct kernel_backend backend_avx2, backend_avx512, backend_avx512vnni, backend_avx512bf16, backend_amxint8,
    backend_amx;
#endif

#if defined(__aarch64__)
BACKEND_DECLARE_ROWS(neon);
BACKEND_DECLARE_PANELS(neon);
BACKEND_DECLARE_MACROKERNELS(neon);
panel_kernel neondot_panel_i8;
macrokernel neondot_macrokernel_i8;
panel_kernel neonbf16_panel_bf16;
macrokernel neonbf16_macrokernel_bf16;
extern const struct kernel_backend backend_neon, backend_neondot, backend_neonbf16;
#endif

// The scalar twin: the scalar backend of the same arithmetic, which defines every bit of `backend`'s results.
const struct kernel_backend *backend_twin(const struct kernel_backend *backend);

// Runs every function of a backend and of its scalar twin on boundary values. NULL: all bits agree; else the name of the first
// kernel that differs. Takes some milliseconds. Any thread, in any floating-point mode.
const char *backend_self_check(const struct kernel_backend *backend);

// The parts of the self-check for quantised weights, and for decoding and packing. true: all bits agree.
bool quantised_self_check(const struct kernel_backend *backend);
bool packing_self_check(const struct kernel_backend *backend);

#endif
