// The table of each instruction set: where a function is called by way of the backend, this is what it comes to. By the middle of
// its name one finds where it is written; the first part is the file's last.
//
//   avx512_panel_f32, _bf16       panel_TARGET.c, over panel_body.h; avx2's over panel_small_m_avx2.h; avx512bf16's, neonbf16's
//   their own avx512_panel_i8               panel_i8_TARGET.c, over panel_i8_body.h; avx2's panel_avx2.c, over panel_small_m_avx2.h
//   avx512_macrokernel_f32, _bf16       panel_TARGET.c, over macrokernel_words_body.h, neon's over macrokernel_neon.h, avx2's over
//   macrokernel_avx2.h avx512_macrokernel_bf16             macrokernel_bf16_widening_avx512.c avx512_macrokernel_i8
//   panel_i8_TARGET.c, over macrokernel_i8_body.h; avx512vnni's macrokernel_i8_avx512vnni.c, over macrokernel_words_body.h
//   avx2_macrokernel_i8 panel_avx2.c: few rows over panel_small_m_avx2.h, more by avx2_large_m_macrokernel_i8, as above
//   avx512_slices_…               slices_TARGET.c, over slices_body.h; avx512_wide_slices_… wide_slices_TARGET.c amx_… panel_amx.c
//   avx512_quantised_… quantised_TARGET.c, which says by whom avx512_across_…               rows_TARGET.c, over
//   unpacked_n_major_body.h; avx512bf16's, avx512vnni's and avx2's int8 across_TARGET.c avx512_along_… along_TARGET.c, over
//   unpacked_k_major_avx512_body.h; avx2's panel_avx2.c, over unpacked_k_major_avx2.h avx512_decode, _pack_…        pack_TARGET.c,
//   over pack_body.h; also _quad_offsets, _place_codes avx512_widen, …               rows_TARGET.c, over row_body.h
#include "kernels/cpu/backends.h"

#define BACKEND_ROWS(target)                                                                                                       \
    .widen = target##_widen, .narrow = target##_narrow, .from_i32 = target##_from_i32, .activation = target##_activation,          \
    .combine = target##_combine, .exp_minus = target##_exp_minus, .sigmoid = target##_sigmoid,                                     \
    .sqrt_softplus = target##_sqrt_softplus, .softcap = target##_softcap, .add_scaled = target##_add_scaled,                       \
    .epilogue = target##_epilogue, .decode = target##_decode, .pack_k_major = target##_pack_k_major,                               \
    .pack_n_major = target##_pack_n_major, .quad_offsets = target##_quad_offsets, .place_codes = target##_place_codes

// The kernels of one element, by whom: those of most sets are of one target, `panel` and `group`, `quantised`, `across` alike. A
// kernel that another set shares is named by the target that it is compiled for.
#define SCALAR_F32                                                                                                                 \
    { .panel = scalar_panel_f32, .quantised = scalar_quantised_f32 }
#define SCALAR_I8                                                                                                                  \
    { .panel = scalar_panel_i8 }

const struct kernel_backend backend_scalar = {
    .name = "scalar",
    .f32 = SCALAR_F32,
    .bf16 = {.panel = scalar_panel_bf16, .quantised = scalar_quantised_bf16},
    .i8 = SCALAR_I8,
    BACKEND_ROWS(scalar),
};

const struct kernel_backend backend_scalar_amx = {
    .name = "scalar_amx",
    .arithmetic = ARITHMETIC_CPU_AMX,
    .f32 = SCALAR_F32,
    .bf16 = {.panel = scalar_amx_panel_bf16, .quantised = scalar_amx_quantised_bf16},
    .i8 = SCALAR_I8,
    BACKEND_ROWS(scalar),
};

const struct kernel_backend backend_scalar_sm90 = {
    .name = "scalar_sm90",
    .arithmetic = ARITHMETIC_SM_90,
    .f32 = SCALAR_F32,
    .bf16 = {.panel = scalar_sm90_panel_bf16, .quantised = scalar_sm90_quantised_bf16},
    .i8 = SCALAR_I8,
    BACKEND_ROWS(scalar),
};

#if defined(__x86_64__)
const struct kernel_backend backend_avx2 = {
    .name = "avx2",
    .f32 = {.panel = avx2_panel_f32,
            .group = avx2_macrokernel_f32,
            .slices = {[EXPERTD_PACKED_SLICES] = {.group = avx2_slices_f32, .panel = avx2_slices_panel_f32}},
            .quantised = avx2_quantised_f32,
            .n_major = avx2_n_major_f32,
            .k_major = avx2_k_major_f32,
            .k_major_rows = 16,
            .k_major_widened_rows = 16},
    .bf16 = {.panel = avx2_panel_bf16,
             .group = avx2_macrokernel_bf16,
             .slices = {[EXPERTD_PACKED_SLICES] = {.group = avx2_slices_bf16, .panel = avx2_slices_panel_bf16, .widened = 2}},
             .quantised = avx2_quantised_bf16,
             .quantised_macrokernel_of = avx2_quantised_macrokernel_bf16,
             .n_major = avx2_n_major_bf16,
             .k_major = avx2_k_major_bf16,
             .k_major_rows = 16},
    .i8 = {.panel = avx2_panel_i8,
           .group = avx2_macrokernel_i8,
           .n_major = avx2_n_major_i8,
           .n_major_rows = 8,
           .k_major = avx2_k_major_i8,
           .k_major_rows = 16},
    BACKEND_ROWS(avx2),
};

#define AVX512_SLICES_F32                                                                                                          \
    {                                                                                                                              \
        [EXPERTD_PACKED_SLICES] = {.group = avx512_slices_f32, .panel = avx512_slices_panel_f32},                                  \
        [EXPERTD_PACKED_WIDE_SLICES] = {.group = avx512_wide_slices_f32, .panel = avx512_wide_slices_panel_f32},                   \
    }
// Of f32, and of bf16 that is widened to it.
#define AVX512_F32(by)                                                                                                             \
    {                                                                                                                              \
        .panel = avx512_panel_f32, .group = avx512_macrokernel_f32, .caches = {AVX512_ROWS_CACHED, 1}, .small_m = PANEL_TILE,      \
        .slices = AVX512_SLICES_F32, .quantised = by##_quantised_f32, .n_major = avx512_n_major_f32,                               \
        .k_major = avx512_k_major_f32, .k_major_rows = 8, .k_major_widened_rows = 32                                               \
    }
#define AVX512_BF16(...)                                                                                                           \
    {                                                                                                                              \
        .panel = avx512_panel_bf16, .group = avx512_macrokernel_bf16, .all_scratch = true,                                         \
        .caches = {AVX512_ROWS_CACHED, sizeof(float) / sizeof(uint16_t)}, .small_m = PANEL_TILE,                                   \
        .quantised = avx512_quantised_bf16, .n_major = avx512_n_major_bf16, __VA_ARGS__                                            \
    }
#define AVX512VNNI_CODES                                                                                                           \
    .quantised_macrokernel_of = avx512vnni_quantised_macrokernel_bf16, .quantised_cached = KERNEL_CALL_ROWS,                       \
    .quantised_span = avx512vnni_quantised_span
#define AMX_CODES                                                                                                                  \
    .quantised_macrokernel_of = amx_quantised_macrokernel_bf16, .quantised_cached = KERNEL_CALL_ROWS,                              \
    .quantised_span = amx_quantised_span
#define AVX512VNNI_I8                                                                                                              \
    {                                                                                                                              \
        .panel = avx512vnni_panel_i8, .group = avx512vnni_macrokernel_i8, .small_m = PANEL_TILE, .n_major = avx512vnni_n_major_i8, \
        .n_major_rows = 2 * PANEL_TILE, .k_major = avx512vnni_k_major_i8, .k_major_rows = 32                                       \
    }
#define AMX_I8                                                                                                                     \
    {                                                                                                                              \
        .panel = avx512vnni_panel_i8, .group = amx_macrokernel_i8, .all_scratch = true, .caches = {AMX_ROWS_CACHED, 1},            \
        .small_m = 2, .n_major = avx512vnni_n_major_i8, .n_major_rows = 8, .k_major = avx512vnni_k_major_i8, .k_major_rows = 8     \
    } // every CPU with tiles has VNNI

const struct kernel_backend backend_avx512 = {
    .name = "avx512",
    .f32 = AVX512_F32(avx512),
    .bf16 = AVX512_BF16(.quantised_macrokernel_of = avx512_quantised_macrokernel_bf16),
    .i8 = {.panel = avx512_panel_i8, .group = avx512_macrokernel_i8, .small_m = PANEL_TILE},
    BACKEND_ROWS(avx512),
};

const struct kernel_backend backend_avx512vnni = {
    .name = "avx512vnni",
    .f32 = AVX512_F32(avx512),
    .bf16 = AVX512_BF16(AVX512VNNI_CODES),
    .i8 = AVX512VNNI_I8,
    BACKEND_ROWS(avx512),
};

const struct kernel_backend backend_avx512bf16 = {
    .name = "avx512bf16",
    .f32 = AVX512_F32(avx512bf16),
    .bf16 = {.panel = avx512bf16_panel_bf16,
             .group = avx512bf16_macrokernel_bf16,
             .small_m = PANEL_TILE,
             .slices = {[EXPERTD_PACKED_SLICES] = {.group = avx512bf16_slices_bf16, .panel = avx512bf16_slices_panel_bf16},
                        [EXPERTD_PACKED_WIDE_SLICES] = {.group = avx512bf16_wide_slices_bf16,
                                                        .panel = avx512bf16_wide_slices_panel_bf16}},
             .quantised = avx512bf16_quantised_bf16,
             .quantised_macrokernel_of = avx512bf16_quantised_macrokernel_bf16,
             .quantised_cached = KERNEL_CODED_ROWS, // where the CPU has VBMI; else nothing is, and nobody fetches
             .n_major = avx512bf16_n_major_bf16,
             .n_major_rows = 2 * PANEL_TILE,
             .k_major = avx512bf16_k_major_bf16,
             .k_major_rows = 32},
    .i8 = AVX512VNNI_I8,
    BACKEND_ROWS(avx512),
};

const struct kernel_backend backend_amxint8 = {
    .name = "amxint8",
    .f32 = AVX512_F32(avx512),
    .bf16 = AVX512_BF16(AMX_CODES),
    .i8 = AMX_I8,
    BACKEND_ROWS(avx512),
};

const struct kernel_backend backend_amx = {
    .name = "amx",
    .arithmetic = ARITHMETIC_CPU_AMX,
    .f32 = AVX512_F32(avx512),
    .bf16 = {.panel = amx_panel_bf16,
             .group = amx_macrokernel_bf16,
             .all_scratch = true,
             .caches = {AMX_ROWS_CACHED, 1},
             .quantised = amxvbmi_quantised_bf16,
             .quantised_macrokernel_of = amxvbmi_quantised_macrokernel_bf16,
             .quantised_cached = KERNEL_CALL_ROWS,
             .quantised_span = amxvbmi_quantised_span},
    .i8 = AMX_I8,
    BACKEND_ROWS(avx512),
};
#endif

#if defined(__aarch64__)
#define NEON_F32                                                                                                                   \
    {                                                                                                                              \
        .panel = neon_panel_f32, .group = neon_macrokernel_f32, .small_m = PANEL_TILE, .quantised = neon_quantised_f32,            \
        .n_major = neon_n_major_f32                                                                                                \
    }
#define NEON_BF16                                                                                                                  \
    { .panel = neon_panel_bf16, .group = neon_macrokernel_bf16, .small_m = 2 * PANEL_TILE, .quantised = neon_quantised_bf16 }
#define NEONDOT_I8                                                                                                                 \
    { .panel = neondot_panel_i8, .group = neondot_macrokernel_i8, .small_m = PANEL_TILE }

const struct kernel_backend backend_neon = {
    .name = "neon",
    .f32 = NEON_F32,
    .bf16 = NEON_BF16,
    .i8 = {.panel = neon_panel_i8, .group = neon_macrokernel_i8, .small_m = PANEL_TILE},
    BACKEND_ROWS(neon),
};

const struct kernel_backend backend_neondot = {
    .name = "neondot",
    .f32 = NEON_F32,
    .bf16 = NEON_BF16,
    .i8 = NEONDOT_I8,
    BACKEND_ROWS(neon),
};

const struct kernel_backend backend_neonbf16 = {
    .name = "neonbf16",
    .f32 = NEON_F32,
    .bf16 = {.panel = neonbf16_panel_bf16,
             .group = neonbf16_macrokernel_bf16,
             .small_m = PANEL_TILE,
             .quantised = neon_quantised_bf16},
    .i8 = NEONDOT_I8,
    BACKEND_ROWS(neon),
};
#endif
