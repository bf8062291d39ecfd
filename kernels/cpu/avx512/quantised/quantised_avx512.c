// Which kernels of quantised weights serve which of the AVX-512 backends: VPERMI2B, by which bytes are widened, is not in all of
// them. Skylake's and Cascade Lake's lack it, and AVX2's kernels stand in there, with equal bits.
#if defined(__x86_64__)
#include "expertd/kernels/quantised_format.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backends.h"

static quantised_kernel *choose(quantised_kernel *vbmi, quantised_kernel *without) {
    return __builtin_cpu_supports("avx512vbmi") ? vbmi : without;
}

void avx512_quantised_bf16(const struct panel_args *args, const struct expertd_quantised_format *format) {
    choose(avx512vbmi_quantised_bf16, avx2_quantised_bf16)(args, format);
}

void avx512_quantised_macrokernel_bf16(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    bool vbmi = __builtin_cpu_supports("avx512vbmi");
    (vbmi ? avx512vbmi_quantised_macrokernel_bf16 : avx2_quantised_macrokernel_bf16)(group, format);
}

void avx512_quantised_f32(const struct panel_args *args, const struct expertd_quantised_format *format) {
    choose(avx512vbmi_quantised_f32, avx2_quantised_f32)(args, format);
}

void avx512bf16_quantised_bf16(const struct panel_args *args, const struct expertd_quantised_format *format) {
    choose(avx512bf16vbmi_quantised_bf16, avx2_quantised_bf16)(args, format);
}

void avx512bf16_quantised_macrokernel_bf16(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    bool vbmi = __builtin_cpu_supports("avx512vbmi");
    (vbmi ? avx512bf16vbmi_quantised_macrokernel_bf16 : avx2_quantised_macrokernel_bf16)(group, format);
}

void avx512bf16_quantised_f32(const struct panel_args *args, const struct expertd_quantised_format *format) {
    avx512_quantised_f32(args, format);
}

// No CPU with VNNI and VBMI is known to lack VPOPCNTW.
static bool makes_digits(void) {
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bitalg");
}

// Where whole numbers are the faster: see MEASUREMENTS.md.
static size_t integer_rows(const struct expertd_quantised_format *format, size_t k) {
    return makes_digits() ? avx512vnni_integer_rows(format, k) : 0;
}

size_t avx512vnni_quantised_span(const struct expertd_quantised_format *format, size_t k) {
    const size_t rows = integer_rows(format, k);
    return rows ? rows : avx512vbmi_large_m_rows(k);
}

enum { INTEGER_ROWS_MIN = 12 }; // by tiles: fewer are as fast by fmas, or faster

size_t amx_quantised_span(const struct expertd_quantised_format *format, size_t k) {
    const size_t rows = makes_digits() ? amx_integer_rows(format, k) : 0;
    return rows ? rows : avx512vnni_quantised_span(format, k);
}

void avx512vnni_quantised_macrokernel_bf16(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    if (integer_rows(format, group->k) == 0) {
        avx512_quantised_macrokernel_bf16(group, format);
    } else if (!avx512vnni_quantised_integer(group, format)) { // scratch stays what it was made, for a call with the same rows
        macrokernel_panel_by_panel(group, format, avx512_quantised_bf16);
    }
}

// Behind what tiles have left in scratch, where there is room for that.
static void by_fmas(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    struct macrokernel_args behind = *group;
    if (group->scratch_more < INTEGER_CACHED_BYTES) {
        macrokernel_panel_by_panel(group, format, avx512_quantised_bf16);
        return;
    }
    behind.scratch = (char *)group->scratch + INTEGER_CACHED_BYTES;
    behind.scratch_more -= INTEGER_CACHED_BYTES;
    behind.rows_cached = false;
    avx512_quantised_macrokernel_bf16(&behind, format);
}

void amx_quantised_macrokernel_bf16(const struct macrokernel_args *group, const struct expertd_quantised_format *format) {
    if (!makes_digits() || amx_integer_rows(format, group->k) == 0 || group->rows < INTEGER_ROWS_MIN) {
        avx512vnni_quantised_macrokernel_bf16(group, format);
    } else if (!amx_quantised_integer(group, format)) {
        by_fmas(group, format);
    }
}
#endif
