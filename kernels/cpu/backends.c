// The tables: for each backend, the function of every operation.
//
// A function's name is TARGET_OPERATION[_ELEMENT]. TARGET is the instruction set that it is compiled for: scalar, avx2, avx512,
// avx512vnni, avx512bf16, amx, neon, neondot, neonbf16. Its file ends in _TARGET.c and lies in the folder of the architecture
// (scalar/, avx2/, avx512/, amx/, neon/) or in a folder below it. Many of these files define a vector type and include a *_body.h,
// which defines the function by a macro such as PANEL_TARGET(panel_f32): a search for the full name then finds only the tables.
//
//   OPERATION                    file                            defined in
//   panel_f32, panel_bf16        panel_TARGET.c                  common/panel_body.h; avx2/panel_small_m_avx2.h; avx512bf16's and
//                                                                neonbf16's bf16: the file itself
//   panel_i8                     panel_i8_TARGET.c               common/panel_i8_body.h; avx2's: panel_avx2.c
//   macrokernel_f32, _bf16       panel_TARGET.c                  common/macrokernel_words_body.h, avx2/macrokernel_avx2.h,
//                                                                neon/macrokernel_neon.h; avx512's bf16:
//                                                                macrokernel_bf16_widening_avx512.c
//   macrokernel_i8               panel_i8_TARGET.c               common/macrokernel_i8_body.h; avx512vnni's:
//                                                                macrokernel_i8_avx512vnni.c; avx2's: panel_avx2.c (small m),
//                                                                panel_i8_avx2.c (large m)
//   slices_ELEMENT,              slices_ELEMENT_TARGET.c         common/slices_body.h over slice_tile_*.h
//   wide_slices_ELEMENT          wide_slices_ELEMENT_TARGET.c    the same
//   quantised_ELEMENT,           quantised_TARGET.c (all AVX-512 and amxint8: quantised_select_avx512.c; amx:
//   quantised_macrokernel_bf16   quantised_amxvbmi.c), which calls the kernel for the format and m: see README.md
//   n_major_f32, n_major_bf16    rows_TARGET.c                   common/unpacked_n_major_body.h
//   n_major_i8; avx512bf16's     unpacked_n_major_ELEMENT_TARGET.c
//   n_major_bf16
//   k_major_ELEMENT              unpacked_k_major_*TARGET.c      avx512/unpacked_k_major_avx512_body.h; avx2's: panel_avx2.c
//                                                                with avx2/unpacked_k_major_avx2.h
//   decode, pack_k_major,        pack_TARGET.c                   common/pack_body.h
//   pack_n_major, quad_offsets,
//   place_codes
//   all other operations         rows_TARGET.c                   common/row_body.h
//   amx_panel_*, amx_macrokernel_*  amx/panel_amx.c
//   scalar_amx_*, scalar_sm90_*  scalar/panel_amx_scalar.c, panel_sm90_scalar.c, quantised_scalar.c
#include "kernels/cpu/backend/backends.h"

#define BACKEND_ROWS(target)                                                                                                       \
    .widen = target##_widen, .narrow = target##_narrow, .from_i32 = target##_from_i32, .activation = target##_activation,          \
    .combine = target##_combine, .exp_minus = target##_exp_minus, .sigmoid = target##_sigmoid,                                     \
    .sqrt_softplus = target##_sqrt_softplus, .softcap = target##_softcap, .add_scaled = target##_add_scaled,                       \
    .epilogue = target##_epilogue, .decode = target##_decode, .pack_k_major = target##_pack_k_major,                               \
    .pack_n_major = target##_pack_n_major, .quad_offsets = target##_quad_offsets, .place_codes = target##_place_codes

// The kernels of one element type, as macros, because several backends share them. A shared kernel bears the name of the target
// that it is compiled for.
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
            .macrokernel = avx2_macrokernel_f32,
            .slices = {[EXPERTD_PACKED_SLICES] = {.macrokernel = avx2_slices_f32, .panel = avx2_slices_panel_f32}},
            .quantised = avx2_quantised_f32,
            .n_major = avx2_n_major_f32,
            .k_major = avx2_k_major_f32,
            .k_major_rows = 16,
            .k_major_widened_rows = 16},
    .bf16 = {.panel = avx2_panel_bf16,
             .macrokernel = avx2_macrokernel_bf16,
             .slices = {[EXPERTD_PACKED_SLICES] = {.macrokernel = avx2_slices_bf16, .panel = avx2_slices_panel_bf16, .widened = 2}},
             .quantised = avx2_quantised_bf16,
             .quantised_large_m = avx2_quantised_macrokernel_bf16,
             .n_major = avx2_n_major_bf16,
             .k_major = avx2_k_major_bf16,
             .k_major_rows = 16},
    .i8 = {.panel = avx2_panel_i8,
           .macrokernel = avx2_macrokernel_i8,
           .n_major = avx2_n_major_i8,
           .n_major_rows = 8,
           .k_major = avx2_k_major_i8,
           .k_major_rows = 16},
    BACKEND_ROWS(avx2),
};

#define AVX512_SLICES_F32                                                                                                          \
    {                                                                                                                              \
        [EXPERTD_PACKED_SLICES] = {.macrokernel = avx512_slices_f32, .panel = avx512_slices_panel_f32},                            \
        [EXPERTD_PACKED_WIDE_SLICES] = {.macrokernel = avx512_wide_slices_f32, .panel = avx512_wide_slices_panel_f32},             \
    }
// `quantised_target` is the prefix of the kernel for quantised weights.
#define AVX512_F32(quantised_target)                                                                                               \
    {                                                                                                                              \
        .panel = avx512_panel_f32, .macrokernel = avx512_macrokernel_f32, .caches = {AVX512_ROWS_CACHED, 1},                       \
        .small_m = PANEL_TILE, .slices = AVX512_SLICES_F32, .quantised = quantised_target##_quantised_f32,                         \
        .n_major = avx512_n_major_f32, .k_major = avx512_k_major_f32, .k_major_rows = 8, .k_major_widened_rows = 32                \
    }
#define AVX512_BF16(...)                                                                                                           \
    {                                                                                                                              \
        .panel = avx512_panel_bf16, .macrokernel = avx512_macrokernel_bf16, .all_scratch = true,                                   \
        .caches = {AVX512_ROWS_CACHED, sizeof(float) / sizeof(uint16_t)}, .small_m = PANEL_TILE,                                   \
        .quantised = avx512_quantised_bf16, .n_major = avx512_n_major_bf16, __VA_ARGS__                                            \
    }
#define AVX512VNNI_CODES                                                                                                           \
    .quantised_large_m = avx512vnni_quantised_macrokernel_bf16, .quantised_cached = KERNEL_CALL_ROWS,                              \
    .quantised_span = avx512vnni_quantised_span
#define AMX_CODES                                                                                                                  \
    .quantised_large_m = amx_quantised_macrokernel_bf16, .quantised_cached = KERNEL_CALL_ROWS, .quantised_span = amx_quantised_span
#define AVX512VNNI_I8                                                                                                              \
    {                                                                                                                              \
        .panel = avx512vnni_panel_i8, .macrokernel = avx512vnni_macrokernel_i8, .small_m = PANEL_TILE,                             \
        .n_major = avx512vnni_n_major_i8, .n_major_rows = 2 * PANEL_TILE, .k_major = avx512vnni_k_major_i8, .k_major_rows = 32     \
    }
#define AMX_I8                                                                                                                     \
    {                                                                                                                              \
        .panel = avx512vnni_panel_i8, .macrokernel = amx_macrokernel_i8, .all_scratch = true, .caches = {AMX_ROWS_CACHED, 1},      \
        .small_m = 2, .n_major = avx512vnni_n_major_i8, .n_major_rows = 8, .k_major = avx512vnni_k_major_i8, .k_major_rows = 8     \
    } // every CPU with AMX has VNNI

const struct kernel_backend backend_avx512 = {
    .name = "avx512",
    .f32 = AVX512_F32(avx512),
    .bf16 = AVX512_BF16(.quantised_large_m = avx512_quantised_macrokernel_bf16),
    .i8 = {.panel = avx512_panel_i8, .macrokernel = avx512_macrokernel_i8, .small_m = PANEL_TILE},
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
             .macrokernel = avx512bf16_macrokernel_bf16,
             .small_m = PANEL_TILE,
             .slices = {[EXPERTD_PACKED_SLICES] = {.macrokernel = avx512bf16_slices_bf16, .panel = avx512bf16_slices_panel_bf16},
                        [EXPERTD_PACKED_WIDE_SLICES] = {.macrokernel = avx512bf16_wide_slices_bf16,
                                                        .panel = avx512bf16_wide_slices_panel_bf16}},
             .quantised = avx512bf16_quantised_bf16,
             .quantised_large_m = avx512bf16_quantised_macrokernel_bf16,
             .quantised_cached = KERNEL_CODED_ROWS, // with VBMI; AVX2's kernels, used without it, cache and prefetch no rows
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
             .macrokernel = amx_macrokernel_bf16,
             .all_scratch = true,
             .caches = {AMX_ROWS_CACHED, 1},
             .quantised = amxvbmi_quantised_bf16,
             .quantised_large_m = amxvbmi_quantised_macrokernel_bf16,
             .quantised_cached = KERNEL_CALL_ROWS,
             .quantised_span = amxvbmi_quantised_span},
    .i8 = AMX_I8,
    BACKEND_ROWS(avx512),
};
#endif

#if defined(__aarch64__)
#define NEON_F32                                                                                                                   \
    {                                                                                                                              \
        .panel = neon_panel_f32, .macrokernel = neon_macrokernel_f32, .small_m = PANEL_TILE, .quantised = neon_quantised_f32,      \
        .n_major = neon_n_major_f32                                                                                                \
    }
#define NEON_BF16                                                                                                                  \
    { .panel = neon_panel_bf16, .macrokernel = neon_macrokernel_bf16, .small_m = 2 * PANEL_TILE, .quantised = neon_quantised_bf16 }
#define NEONDOT_I8                                                                                                                 \
    { .panel = neondot_panel_i8, .macrokernel = neondot_macrokernel_i8, .small_m = PANEL_TILE }

const struct kernel_backend backend_neon = {
    .name = "neon",
    .f32 = NEON_F32,
    .bf16 = NEON_BF16,
    .i8 = {.panel = neon_panel_i8, .macrokernel = neon_macrokernel_i8, .small_m = PANEL_TILE},
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
             .macrokernel = neonbf16_macrokernel_bf16,
             .small_m = PANEL_TILE,
             .quantised = neon_quantised_bf16},
    .i8 = NEONDOT_I8,
    BACKEND_ROWS(neon),
};
#endif
