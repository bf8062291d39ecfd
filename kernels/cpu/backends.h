// The backends of this build and the loops they share. Private to kernels/.
#ifndef EXPERTD_KERNELS_CPU_BACKENDS_H
#define EXPERTD_KERNELS_CPU_BACKENDS_H

#include <stdbool.h>

#include "kernels/backend.h"

// For loops over rows and vectors, whose bodies must become straight code for the accumulators to be registers.
#define PANEL_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define PANEL_UNROLL _Pragma("clang loop unroll(full)")
#else
#define PANEL_UNROLL _Pragma("GCC unroll 8")
#endif

enum { PANEL_TILE = 6 }; // rows that a microkernel takes: with 64 columns, 24 accumulators of 16 floats

// Rows are cut into tiles as even as can be: 7 rows are 4 and 3, not 6 and 1. The rows of the tile that begins at `row`.
static inline size_t panel_tile_rows(size_t rows, size_t row) {
    size_t tiles = (rows - row + PANEL_TILE - 1) / PANEL_TILE;
    return (rows - row + tiles - 1) / tiles;
}

// A group call's panels one by one, by the kernel of a single one.
static inline void group_panel_by_panel(const struct panel_group_args *group, const struct quantised_format *format,
                                        quantised_kernel *kernel) {
    for (size_t p = 0; p < group->count; p++) {
        struct panel_args args = {.x = group->x,
                                  .rows = group->rows,
                                  .panel = group->panels[p],
                                  .k = group->k,
                                  .out = group->sums + p * KERNEL_PANEL,
                                  .out_stride = KERNEL_SUMS,
                                  .columns = KERNEL_PANEL};
        kernel(&args, format);
    }
}

// row_body.h's and pack_body.h's functions in an instruction set's copy, and their places in its table.
#define BACKEND_DECLARE_ROWS(target)                                                                                               \
    void target##_widen(enum dtype dtype, const void *src, size_t count, float *dst);                                              \
    void target##_narrow(const float *src, size_t count, enum dtype dtype, void *dst);                                             \
    void target##_activation(const struct activation_args *args);                                                                  \
    void target##_combine(const struct combine_args *args);                                                                        \
    void target##_exp_minus(const float *x, float shift, size_t count, float *out);                                                \
    void target##_sigmoid(const float *x, size_t count, float *out);                                                               \
    void target##_sqrt_softplus(const float *x, size_t count, float *out);                                                         \
    void target##_add_scaled(const struct add_scaled_args *args);                                                                  \
    void target##_finish(const struct finish_args *args);                                                                          \
    void target##_decode(const struct decode_args *args);                                                                          \
    void target##_pack_along(const struct pack_args *args);                                                                        \
    void target##_pack_across(const struct pack_args *args);                                                                       \
    void target##_quad_offsets(const struct offsets_args *args);                                                                   \
    void target##_place_codes(const struct place_args *args);                                                                      \
    void target##_across_f32(const struct across_args *args);                                                                      \
    void target##_across_bf16(const struct across_args *args)
#define BACKEND_ROWS(target)                                                                                                       \
    .widen = target##_widen, .narrow = target##_narrow, .activation = target##_activation, .combine = target##_combine,            \
    .exp_minus = target##_exp_minus, .sigmoid = target##_sigmoid, .sqrt_softplus = target##_sqrt_softplus,                         \
    .add_scaled = target##_add_scaled, .finish = target##_finish, .decode = target##_decode, .pack_along = target##_pack_along,    \
    .pack_across = target##_pack_across, .quad_offsets = target##_quad_offsets, .place_codes = target##_place_codes

// across_body.h's.
#define BACKEND_ACROSS(target) .across_f32 = target##_across_f32, .across_bf16 = target##_across_bf16

// The functions of panel_body.h or panel_few.h likewise, and of group_body.h or group_widened.h.
#define BACKEND_DECLARE_PANELS(target)                                                                                             \
    panel_kernel target##_panel_f32, target##_panel_bf16;                                                                          \
    quantised_kernel target##_quantised_f32, target##_quantised_bf16;                                                              \
    panel_i8_kernel target##_panel_i8
#define BACKEND_QUANTISED(target) .quantised_f32 = target##_quantised_f32, .quantised_bf16 = target##_quantised_bf16
#define BACKEND_PANELS(target)                                                                                                     \
    .panel_f32 = target##_panel_f32, .panel_bf16 = target##_panel_bf16, .panel_i8 = target##_panel_i8, BACKEND_QUANTISED(target)
#define BACKEND_DECLARE_GROUPS(target) panel_group_kernel target##_group_f32, target##_group_bf16, target##_group_i8
#define BACKEND_ALL_BY_GROUPS(target)                                                                                              \
    .group_f32 = target##_group_f32, .group_bf16 = target##_group_bf16, .group_i8 = target##_group_i8
#define BACKEND_GROUPS(target)                                                                                                     \
    BACKEND_ALL_BY_GROUPS(target), .few_f32 = PANEL_TILE, .few_bf16 = 2 * PANEL_TILE, .few_i8 = PANEL_TILE

BACKEND_DECLARE_ROWS(scalar);
BACKEND_DECLARE_PANELS(scalar);
extern const struct kernel_backend backend_scalar;
extern const struct kernel_backend backend_scalar_amx;   // backend_scalar but for the bf16 sums
extern const struct kernel_backend backend_scalar_sim90; // the same, and for those of quantised weights
quantised_kernel scalar_sim90_quantised_bf16;

#if defined(__x86_64__)
BACKEND_DECLARE_ROWS(avx2);
BACKEND_DECLARE_ROWS(avx512);
BACKEND_DECLARE_PANELS(avx2);
BACKEND_DECLARE_PANELS(avx512);
BACKEND_DECLARE_GROUPS(avx2);
BACKEND_DECLARE_GROUPS(avx512);
quantised_group_kernel avx2_quantised_group_bf16;
void avx512bf16_across_bf16(const struct across_args *args);
void avx2_along_f32(const struct along_args *args);
void avx2_along_bf16(const struct along_args *args);
void avx512bf16_along_bf16(const struct along_args *args);
extern const struct kernel_backend backend_avx2;
panel_i8_kernel avx512vnni_panel_i8;
panel_group_kernel avx512vnni_group_i8;
quantised_kernel avx512vbmi_quantised_f32, avx512vbmi_quantised_bf16;                        // avx512's, where the CPU has VBMI
quantised_kernel amx_quantised_bf16;                                                         // the other sets' kernels
quantised_kernel avx512bf16_quantised_f32, avx512bf16_quantised_bf16;                        // the latter by VDPBF16PS:
quantised_kernel avx512bf16vbmi_quantised_bf16;                                              // where the CPU has VBMI
quantised_group_kernel avx512bf16_quantised_group_bf16, avx512bf16vbmi_quantised_group_bf16; // likewise
extern const struct kernel_backend backend_avx512;
extern const struct kernel_backend backend_avx512vnni; // avx512's but for the int8 sums
extern const struct kernel_backend backend_avx512bf16; // avx512vnni's but for the bf16 sums
extern const struct kernel_backend backend_amxint8;    // avx512's but for the int8 sums
extern const struct kernel_backend backend_amx;        // amxint8's but for the bf16 sums, which have an arithmetic of their own
#endif

#if defined(__aarch64__)
BACKEND_DECLARE_ROWS(neon);
BACKEND_DECLARE_PANELS(neon);
BACKEND_DECLARE_GROUPS(neon);
extern const struct kernel_backend backend_neon;
panel_i8_kernel neondot_panel_i8;
panel_group_kernel neondot_group_i8;
extern const struct kernel_backend backend_neondot;  // neon's but for the int8 sums
extern const struct kernel_backend backend_neonbf16; // neondot's but for the bf16 sums
#endif

// The scalar backend of the same arithmetic: what every bit of `backend` is compared with.
const struct kernel_backend *backend_twin(const struct kernel_backend *backend);

// Boundary vectors of a backend against its scalar twin: NULL where every bit agrees, else the name of the first kernel that does
// not. Under a millisecond; any thread.
const char *backend_self_check(const struct kernel_backend *backend);

// The part of it that is about quantised weights.
bool quantised_self_check(const struct kernel_backend *backend);

#endif
