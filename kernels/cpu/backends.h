// The backends of this build and the loops they share. Private to kernels/.
#ifndef EXPERTD_KERNELS_CPU_BACKENDS_H
#define EXPERTD_KERNELS_CPU_BACKENDS_H

#include <stdbool.h>

#include "kernels/cpu/backend.h"

// For loops over rows and vectors, whose bodies must become straight code for the accumulators to be registers.
#define PANEL_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define PANEL_UNROLL _Pragma("clang loop unroll(full)")
#define PANEL_UNROLL_16 PANEL_UNROLL
#else
#define PANEL_UNROLL _Pragma("GCC unroll 8")
#define PANEL_UNROLL_16 _Pragma("GCC unroll 16")
#endif

enum { PANEL_TILE = 6 }; // rows that a microkernel takes: with 64 columns, 24 accumulators of 16 floats

// Rows are cut into tiles as even as can be: 7 rows are 4 and 3, not 6 and 1. The rows of the tile that begins at `row`.
static inline size_t panel_tile_rows(size_t rows, size_t row) {
    size_t tiles = (rows - row + PANEL_TILE - 1) / PANEL_TILE;
    return (rows - row + tiles - 1) / tiles;
}

// run(..., rows) by one of its copies, in each of which `rows` is a constant, so that sums are registers.
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

// A group call's panels one by one, by the kernel of a single one.
static inline void macrokernel_panel_by_panel(const struct macrokernel_args *group, const struct expertd_quantised_format *format,
                                              quantised_kernel *kernel) {
    for (size_t p = 0; p < group->count; p++) {
        struct panel_args args = {.x = group->x,
                                  .rows = group->rows,
                                  .panel = group->panels[p],
                                  .k = group->k,
                                  .out = group->sums + p * EXPERTD_KERNEL_PANEL,
                                  .out_stride = KERNEL_SUMS,
                                  .columns = EXPERTD_KERNEL_PANEL};
        kernel(&args, format);
    }
}

// row_body.h's, pack_body.h's and unpacked_n_major_body.h's functions in an instruction set's copy.
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

// Those of panel_body.h or panel_small_m_avx2.h, of the quantised kernels, and of macrokernel_neon.h or macrokernel_avx2.h.
#define BACKEND_DECLARE_PANELS(target)                                                                                             \
    panel_kernel target##_panel_f32, target##_panel_bf16;                                                                          \
    panel_kernel target##_panel_i8;                                                                                                \
    quantised_kernel target##_quantised_f32, target##_quantised_bf16
#define BACKEND_DECLARE_GROUPS(target) macrokernel target##_macrokernel_f32, target##_macrokernel_bf16, target##_macrokernel_i8

BACKEND_DECLARE_ROWS(scalar);
BACKEND_DECLARE_PANELS(scalar);
panel_kernel scalar_amx_panel_bf16, scalar_sm90_panel_bf16;
quantised_kernel scalar_amx_quantised_bf16, scalar_sm90_quantised_bf16;
extern const struct kernel_backend backend_scalar, backend_scalar_amx, backend_scalar_sm90;

#if defined(__x86_64__)
BACKEND_DECLARE_ROWS(avx2);
BACKEND_DECLARE_PANELS(avx2);
BACKEND_DECLARE_GROUPS(avx2);
macrokernel avx2_large_m_macrokernel_i8; // avx2_macrokernel_i8's
n_major_kernel avx2_n_major_i8;
quantised_macrokernel avx2_quantised_macrokernel_bf16;
k_major_kernel avx2_k_major_f32, avx2_k_major_bf16, avx2_k_major_i8;

BACKEND_DECLARE_ROWS(avx512);
BACKEND_DECLARE_PANELS(avx512);
BACKEND_DECLARE_GROUPS(avx512);
k_major_kernel avx512_k_major_f32;
enum { AVX512_ROWS_CACHED = 1100 << 10 }; // bytes of rows, as f32, that a thread keeps in L2
macrokernel avx2_slices_f32, avx2_slices_bf16;
panel_kernel avx2_slices_panel_f32, avx2_slices_panel_bf16;
macrokernel avx512_slices_f32, avx512_wide_slices_f32;
panel_kernel avx512_slices_panel_f32, avx512_wide_slices_panel_f32;
quantised_macrokernel avx512_quantised_macrokernel_bf16;
quantised_kernel avx512vbmi_quantised_f32, avx512vbmi_quantised_bf16; // avx512's, where the CPU has VBMI
quantised_macrokernel avx512vbmi_quantised_macrokernel_bf16;

panel_kernel avx512vnni_panel_i8;
macrokernel avx512vnni_macrokernel_i8;
n_major_kernel avx512vnni_n_major_i8;
k_major_kernel avx512vnni_k_major_i8;

panel_kernel avx512bf16_panel_bf16;
macrokernel avx512bf16_macrokernel_bf16;
quantised_kernel avx512bf16_quantised_f32, avx512bf16_quantised_bf16;
quantised_macrokernel avx512bf16_quantised_macrokernel_bf16;
quantised_kernel avx512bf16vbmi_quantised_bf16; // avx512bf16's by VDPBF16PS, where the CPU has VBMI
quantised_macrokernel avx512bf16vbmi_quantised_macrokernel_bf16;
n_major_kernel avx512bf16_n_major_bf16;
k_major_kernel avx512bf16_k_major_bf16;
macrokernel avx512bf16_slices_bf16, avx512bf16_wide_slices_bf16;
panel_kernel avx512bf16_slices_panel_bf16, avx512bf16_wide_slices_panel_bf16;

enum { AMX_ROWS_CACHED = KERNEL_DIGITS_CACHED }; // bytes of rows that amx_macrokernel_bf16 and _i8 keep at most, beside their sums
panel_kernel amx_panel_bf16;
macrokernel amx_macrokernel_bf16, amx_macrokernel_i8;
quantised_kernel amxvbmi_quantised_bf16;
quantised_macrokernel amxvbmi_quantised_macrokernel_bf16;
quantised_span_rows amxvbmi_quantised_span;

quantised_macrokernel avx512vnni_quantised_macrokernel_bf16;
quantised_span_rows avx512vnni_quantised_span;

// Those of 4-bit codes in whole numbers, with VNNI, VBMI and BITALG: as many rows as are kept, 0 where format or k are not of those
// that they take. False where a row is not: sums are nothing then.
quantised_span_rows avx512vnni_integer_rows;
bool avx512vnni_quantised_integer(const struct macrokernel_args *group, const struct expertd_quantised_format *format);
bool avx512vnni_quantised_integer_apart(const struct macrokernel_args *group,
                                        const struct expertd_quantised_format *format); // cpu_amx's bits
// The same of INT4 with coarser scales, with AMX besides, of a call whose blocks are whole for the most part. Where that is false
// the first INTEGER_CACHED_BYTES of scratch must stay for the next call with the same rows.
enum { INTEGER_CACHED_BYTES = 128 };
quantised_span_rows amx_integer_rows;
bool amx_quantised_integer(const struct macrokernel_args *group, const struct expertd_quantised_format *format);
quantised_macrokernel amx_quantised_macrokernel_bf16;
quantised_span_rows amx_quantised_span;

extern const struct kernel_backend backend_avx2, backend_avx512, backend_avx512vnni, backend_avx512bf16, backend_amxint8,
    backend_amx;
#endif

#if defined(__aarch64__)
BACKEND_DECLARE_ROWS(neon);
BACKEND_DECLARE_PANELS(neon);
BACKEND_DECLARE_GROUPS(neon);
panel_kernel neondot_panel_i8;
macrokernel neondot_macrokernel_i8;
panel_kernel neonbf16_panel_bf16;
macrokernel neonbf16_macrokernel_bf16;
extern const struct kernel_backend backend_neon, backend_neondot, backend_neonbf16;
#endif

// The scalar backend of the same arithmetic: what every bit of `backend` is compared with.
const struct kernel_backend *backend_twin(const struct kernel_backend *backend);

// Boundary vectors through every function of a backend and of its scalar twin: NULL where every bit agrees, else the name of the
// first kernel that does not. Some milliseconds; any thread, in any floating-point mode.
const char *backend_self_check(const struct kernel_backend *backend);

// The parts of it that are about quantised weights, and about decoding and packing.
bool quantised_self_check(const struct kernel_backend *backend);
bool packing_self_check(const struct kernel_backend *backend);

#endif
