// Selects the kernel of quantised weights for each AVX-512 backend. The AVX-512 kernels decode by VBMI's byte permutations
// (VPERMI2B), which Skylake and Cascade Lake lack; there AVX2's kernels are used, with equal bits.
#if defined(__x86_64__)
#include "expertd/kernels/quantised_format.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backend/backends.h"

static quantised_kernel *with_vbmi_or(quantised_kernel *vbmi, quantised_kernel *without) {
    return __builtin_cpu_supports("avx512vbmi") ? vbmi : without;
}

void avx512_quantised_bf16(const struct panel_args *args, const struct expertd_quantised_format *format) {
    with_vbmi_or(avx512vbmi_quantised_bf16, avx2_quantised_bf16)(args, format);
}

void avx512_quantised_macrokernel_bf16(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    bool vbmi = __builtin_cpu_supports("avx512vbmi");
    (vbmi ? avx512vbmi_quantised_macrokernel_bf16 : avx2_quantised_macrokernel_bf16)(macro, format);
}

void avx512_quantised_f32(const struct panel_args *args, const struct expertd_quantised_format *format) {
    with_vbmi_or(avx512vbmi_quantised_f32, avx2_quantised_f32)(args, format);
}

void avx512bf16_quantised_bf16(const struct panel_args *args, const struct expertd_quantised_format *format) {
    with_vbmi_or(avx512bf16vbmi_quantised_bf16, avx2_quantised_bf16)(args, format);
}

void avx512bf16_quantised_macrokernel_bf16(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    bool vbmi = __builtin_cpu_supports("avx512vbmi");
    (vbmi ? avx512bf16vbmi_quantised_macrokernel_bf16 : avx2_quantised_macrokernel_bf16)(macro, format);
}

void avx512bf16_quantised_f32(const struct panel_args *args, const struct expertd_quantised_format *format) {
    avx512_quantised_f32(args, format);
}

// VPOPCNTW comes with BITALG. Every known CPU with VNNI and VBMI has it.
static bool has_integer_kernels(void) {
    return __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bitalg");
}

// Rows of a call for which the kernels of exact integer arithmetic cache the digits of all of K; 0: they do not support the format
// or k.
static size_t integer_span_rows(const struct expertd_quantised_format *format, size_t k) {
    return has_integer_kernels() ? avx512vnni_integer_rows(format, k) : 0;
}

size_t avx512vnni_quantised_span(const struct expertd_quantised_format *format, size_t k) {
    const size_t rows = integer_span_rows(format, k);
    return rows ? rows : avx512vbmi_large_m_rows(k);
}

enum { TILES_ROWS_MIN = 12 }; // rows from which AMX's integer tiles are faster than FMA

size_t amx_quantised_span(const struct expertd_quantised_format *format, size_t k) {
    const size_t rows = has_integer_kernels() ? amx_integer_rows(format, k) : 0;
    return rows ? rows : avx512vnni_quantised_span(format, k);
}

void avx512vnni_quantised_macrokernel_bf16(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    if (integer_span_rows(format, macro->k) == 0) {
        avx512_quantised_macrokernel_bf16(macro, format);
    } else if (!avx512vnni_quantised_integer(macro, format)) { // the scratch keeps its digits for the next call with the same rows
        macrokernel_panel_by_panel(macro, format, avx512_quantised_bf16);
    }
}

// Multiplies by FMA. The first INTEGER_CACHED_BYTES of scratch belong to the tile kernels; the FMA kernels use the rest where there
// is enough of it.
static void multiply_by_fma(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    struct macrokernel_args rest = *macro;
    if (macro->scratch_more < INTEGER_CACHED_BYTES) {
        macrokernel_panel_by_panel(macro, format, avx512_quantised_bf16);
        return;
    }
    rest.scratch = (char *)macro->scratch + INTEGER_CACHED_BYTES;
    rest.scratch_more -= INTEGER_CACHED_BYTES;
    rest.rows_cached = false;
    avx512_quantised_macrokernel_bf16(&rest, format);
}

void amx_quantised_macrokernel_bf16(const struct macrokernel_args *macro, const struct expertd_quantised_format *format) {
    if (!has_integer_kernels() || amx_integer_rows(format, macro->k) == 0 || macro->rows < TILES_ROWS_MIN) {
        avx512vnni_quantised_macrokernel_bf16(macro, format);
    } else if (!amx_quantised_integer(macro, format)) {
        multiply_by_fma(macro, format);
    }
}
#endif
