// One scale group of a panel of 4-bit codes against rows that integer_rows.h has converted. Private to kernels/cpu/avx512.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_INTEGER_INTEGER_SCALE_GROUP_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_INTEGER_INTEGER_SCALE_GROUP_H

#include "kernels/cpu/avx512/quantised_integer/integer_rows.h"
#include "kernels/layout/quantised_layout.h"

enum {
    VNNI_LINES = EXPERTD_KERNEL_PANEL / QUANTISED_COLUMNS, // lines of codes side by side
    VNNI_LINE_K = 8,                                       // k of a line
    VNNI_SCALE_LINES = VNNI_SCALE_K / VNNI_LINE_K,
    VNNI_WORDS = 2, // words of 4 digits that multiply a line of codes: one its lower nibbles, one its upper nibbles
};

// How codes become bytes in units of struct integer_code_range, and f32: a constant in each copy.
enum integer_decode { INTEGER_E2M1, INTEGER_INT4, INTEGER_INT4_ZERO_POINT, INTEGER_DECODES };

// One scale group and the rows. The fields rows to digits are those of struct integer_rows for this scale group.
struct integer_scale_group {
    enum integer_decode decode;
    bool amx_order;       // the FMAs sum even and odd k separately, as ARITHMETIC_CPU_AMX does; a scale group is one step of K
    size_t lines;         // lines of codes along K: 2 or 4
    const uint8_t *codes; // of the first line
    const float *factors, *zeros; // [EXPERTD_KERNEL_PANEL]: scales, zero points; 64-byte aligned
    size_t rows;
    const uint8_t *count, *inexact_rows;
    const struct integer_slot *slots;
    const int8_t *digits;
    const void *const *x;              // [rows]
    size_t k;                          // the scale group's first k in x
    float (*to)[EXPERTD_KERNEL_PANEL]; // [rows], 64-byte aligned: sum = fma(partial, scale, sum)
};
typedef void integer_scale_group_kernel(const struct integer_scale_group *scale);

// The exact rows, and the inexact ones.
integer_scale_group_kernel integer_scale_group_exact, integer_scale_group_fma;

// A copy for each way of decoding and each number of lines.
#define INTEGER_COPIES(kernel)                                                                                                     \
    kernel(INTEGER_E2M1, 2) kernel(INTEGER_E2M1, 4) kernel(INTEGER_INT4, 2) kernel(INTEGER_INT4, 4)                                \
        kernel(INTEGER_INT4_ZERO_POINT, 2) kernel(INTEGER_INT4_ZERO_POINT, 4)
#define INTEGER_TABLE(name)                                                                                                        \
    {                                                                                                                              \
        [INTEGER_E2M1] = {name##_INTEGER_E2M1_2, name##_INTEGER_E2M1_4},                                                           \
        [INTEGER_INT4] = {name##_INTEGER_INT4_2, name##_INTEGER_INT4_4},                                                           \
        [INTEGER_INT4_ZERO_POINT] = {name##_INTEGER_INT4_ZERO_POINT_2, name##_INTEGER_INT4_ZERO_POINT_4},                          \
    }

#endif
