// 6 x 16 columns at a time: 24 accumulators, 4 of weights and 1 broadcast of 32 registers.
#if defined(__aarch64__)
#include "kernels/cpu/neon_vec.h"

#define PANEL_TARGET(name) neon_##name
#include "kernels/cpu/panel_body.h"

#include "kernels/cpu/group_body.h"

const struct kernel_backend backend_neon = {
    .name = "neon", BACKEND_PANELS(neon), BACKEND_GROUPS(neon), .across_f32 = neon_across_f32, BACKEND_ROWS(neon)};
#endif
