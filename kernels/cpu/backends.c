// The table of each instruction set: where a function is called by way of the backend, this is what it comes to. By the middle of
// its name one finds where it is written; the first part is the file's last.
//
//   avx512_panel_f32, _bf16       panel_TARGET.c, over panel_body.h; avx2's over panel_few.h; avx512bf16's, neonbf16's their own
//   avx512_panel_i8               panel_i8_TARGET.c, over panel_i8_body.h
//   avx512_group_f32, _bf16       panel_TARGET.c, over group_body.h and group_words.h; avx2's over group_widened.h
//   avx512_group_i8               panel_i8_TARGET.c, over group_i8_body.h; avx512vnni's group_i8_avx512vnni.c, over group_words.h
//   amx_…                         panel_amx.c
//   avx512_quantised_…            quantised_TARGET.c, which says by whom
//   avx512_across_…, _along_…     rows_TARGET.c, over across_body.h; avx2's along panel_avx2.c, over along_body.h; avx512bf16's
//                                 across_TARGET.c, along_TARGET.c
//   avx512_decode, _pack_…        pack_TARGET.c, over pack_body.h; also _quad_offsets, _place_codes
//   avx512_widen, …               rows_TARGET.c, over row_body.h
#include "kernels/cpu/backends.h"

#define BACKEND_ROWS(target)                                                                                                       \
    .widen = target##_widen, .narrow = target##_narrow, .from_i32 = target##_from_i32, .activation = target##_activation,          \
    .combine = target##_combine, .exp_minus = target##_exp_minus, .sigmoid = target##_sigmoid,                                     \
    .sqrt_softplus = target##_sqrt_softplus, .add_scaled = target##_add_scaled, .finish = target##_finish,                         \
    .decode = target##_decode, .pack_along = target##_pack_along, .pack_across = target##_pack_across,                             \
    .quad_offsets = target##_quad_offsets, .place_codes = target##_place_codes

#define BACKEND_ACROSS(target) .across_f32 = target##_across_f32, .across_bf16 = target##_across_bf16
#define BACKEND_QUANTISED(target) .quantised_f32 = target##_quantised_f32, .quantised_bf16 = target##_quantised_bf16
#define BACKEND_PANELS(target)                                                                                                     \
    .panel_f32 = target##_panel_f32, .panel_bf16 = target##_panel_bf16, .panel_i8 = target##_panel_i8, BACKEND_QUANTISED(target)
#define BACKEND_ALL_BY_GROUPS(target)                                                                                              \
    .group_f32 = target##_group_f32, .group_bf16 = target##_group_bf16, .group_i8 = target##_group_i8
#define BACKEND_GROUPS(target)                                                                                                     \
    BACKEND_ALL_BY_GROUPS(target), .few_f32 = PANEL_TILE, .few_bf16 = 2 * PANEL_TILE, .few_i8 = PANEL_TILE

const struct kernel_backend backend_scalar = {.name = "scalar", BACKEND_PANELS(scalar), BACKEND_ROWS(scalar)};

const struct kernel_backend backend_scalar_amx = {.name = "scalar_amx",
                                                  .arithmetic = ARITHMETIC_CPU_AMX,
                                                  .panel_f32 = scalar_panel_f32,
                                                  .panel_bf16 = scalar_amx_panel_bf16,
                                                  .panel_i8 = scalar_panel_i8,
                                                  BACKEND_QUANTISED(scalar),
                                                  BACKEND_ROWS(scalar)};

const struct kernel_backend backend_scalar_sim90 = {.name = "scalar_sim90",
                                                    .arithmetic = ARITHMETIC_SIM_90,
                                                    .panel_f32 = scalar_panel_f32,
                                                    .panel_bf16 = scalar_sim90_panel_bf16,
                                                    .panel_i8 = scalar_panel_i8,
                                                    .quantised_f32 = scalar_quantised_f32,
                                                    .quantised_bf16 = scalar_sim90_quantised_bf16,
                                                    BACKEND_ROWS(scalar)};

#if defined(__x86_64__)
const struct kernel_backend backend_avx2 = {.name = "avx2",
                                            BACKEND_PANELS(avx2),
                                            .quantised_group_bf16 = avx2_quantised_group_bf16,
                                            BACKEND_ALL_BY_GROUPS(avx2),
                                            .few_i8 = PANEL_TILE,
                                            BACKEND_ACROSS(avx2),
                                            .along_f32 = avx2_along_f32,
                                            .along_bf16 = avx2_along_bf16,
                                            .along_rows_f32 = 16,
                                            .along_rows_bf16 = 16,
                                            BACKEND_ROWS(avx2)};

const struct kernel_backend backend_avx512 = {.name = "avx512",
                                              BACKEND_PANELS(avx512),
                                              BACKEND_GROUPS(avx512),
                                              BACKEND_ACROSS(avx512),
                                              .along_f32 = avx2_along_f32,
                                              .along_rows_f32 = 8,
                                              BACKEND_ROWS(avx512)};

const struct kernel_backend backend_avx512vnni = {.name = "avx512vnni",
                                                  .panel_f32 = avx512_panel_f32,
                                                  .panel_bf16 = avx512_panel_bf16,
                                                  .panel_i8 = avx512vnni_panel_i8,
                                                  .group_i8 = avx512vnni_group_i8,
                                                  .few_i8 = PANEL_TILE,
                                                  BACKEND_QUANTISED(avx512),
                                                  .group_f32 = avx512_group_f32,
                                                  .group_bf16 = avx512_group_bf16,
                                                  .few_f32 = PANEL_TILE,
                                                  .few_bf16 = 2 * PANEL_TILE,
                                                  BACKEND_ACROSS(avx512),
                                                  .along_f32 = avx2_along_f32,
                                                  .along_rows_f32 = 8,
                                                  BACKEND_ROWS(avx512)};

const struct kernel_backend backend_avx512bf16 = {.name = "avx512bf16",
                                                  .panel_f32 = avx512_panel_f32,
                                                  .panel_bf16 = avx512bf16_panel_bf16,
                                                  .group_f32 = avx512_group_f32,
                                                  .group_bf16 = avx512bf16_group_bf16,
                                                  .few_f32 = PANEL_TILE,
                                                  .few_bf16 = PANEL_TILE,
                                                  .panel_i8 = avx512vnni_panel_i8,
                                                  .group_i8 = avx512vnni_group_i8,
                                                  .few_i8 = PANEL_TILE,
                                                  BACKEND_QUANTISED(avx512bf16),
                                                  .quantised_group_bf16 = avx512bf16_quantised_group_bf16,
                                                  .across_f32 = avx512_across_f32,
                                                  .across_bf16 = avx512bf16_across_bf16,
                                                  .across_rows_bf16 = 2 * PANEL_TILE,
                                                  .along_f32 = avx2_along_f32,
                                                  .along_rows_f32 = 8,
                                                  .along_bf16 = avx512bf16_along_bf16,
                                                  .along_rows_bf16 = 32,
                                                  BACKEND_ROWS(avx512)};

const struct kernel_backend backend_amxint8 = {.name = "amxint8",
                                               .panel_f32 = avx512_panel_f32,
                                               .panel_bf16 = avx512_panel_bf16,
                                               .panel_i8 = avx512vnni_panel_i8, // every CPU with tiles has VNNI
                                               .few_i8 = 2,
                                               .group_i8 = amx_group_i8,
                                               .group_f32 = avx512_group_f32,
                                               .group_bf16 = avx512_group_bf16,
                                               .few_f32 = PANEL_TILE,
                                               .few_bf16 = 2 * PANEL_TILE,
                                               .quantised_f32 = avx512_quantised_f32,
                                               .quantised_bf16 = amx_quantised_bf16,
                                               BACKEND_ACROSS(avx512),
                                               .along_f32 = avx2_along_f32,
                                               .along_rows_f32 = 8,
                                               BACKEND_ROWS(avx512)};

const struct kernel_backend backend_amx = {.name = "amx",
                                           .arithmetic = ARITHMETIC_CPU_AMX,
                                           .panel_f32 = avx512_panel_f32,
                                           .panel_bf16 = amx_panel_bf16,
                                           .group_f32 = avx512_group_f32,
                                           .group_bf16 = amx_group_bf16,
                                           .few_f32 = PANEL_TILE,
                                           .panel_i8 = avx512vnni_panel_i8, // every CPU with tiles has VNNI
                                           .few_i8 = 2,
                                           .group_i8 = amx_group_i8,
                                           .quantised_f32 = avx512_quantised_f32,
                                           .quantised_bf16 = amx_quantised_bf16,
                                           .across_f32 = avx512_across_f32,
                                           .along_f32 = avx2_along_f32,
                                           .along_rows_f32 = 8,
                                           BACKEND_ROWS(avx512)};
#endif

#if defined(__aarch64__)
const struct kernel_backend backend_neon = {
    .name = "neon", BACKEND_PANELS(neon), BACKEND_GROUPS(neon), .across_f32 = neon_across_f32, BACKEND_ROWS(neon)};

const struct kernel_backend backend_neondot = {.name = "neondot",
                                               .panel_f32 = neon_panel_f32,
                                               .panel_bf16 = neon_panel_bf16,
                                               .panel_i8 = neondot_panel_i8,
                                               .group_i8 = neondot_group_i8,
                                               .few_i8 = PANEL_TILE,
                                               BACKEND_QUANTISED(neon),
                                               .group_f32 = neon_group_f32,
                                               .group_bf16 = neon_group_bf16,
                                               .few_f32 = PANEL_TILE,
                                               .few_bf16 = 2 * PANEL_TILE,
                                               .across_f32 = neon_across_f32,
                                               BACKEND_ROWS(neon)};

const struct kernel_backend backend_neonbf16 = {.name = "neonbf16",
                                                .panel_f32 = neon_panel_f32,
                                                .panel_bf16 = neonbf16_panel_bf16,
                                                .group_f32 = neon_group_f32,
                                                .group_bf16 = neonbf16_group_bf16,
                                                .few_f32 = PANEL_TILE,
                                                .few_bf16 = PANEL_TILE,
                                                .panel_i8 = neondot_panel_i8,
                                                .group_i8 = neondot_group_i8,
                                                .few_i8 = PANEL_TILE,
                                                BACKEND_QUANTISED(neon),
                                                .across_f32 = neon_across_f32,
                                                BACKEND_ROWS(neon)};
#endif
