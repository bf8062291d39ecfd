// One scale of a panel of 4-bit codes against rows that integer_rows.h has made ready. Private to cpu/quantised_*.
#ifndef EXPERTD_KERNELS_CPU_AVX512_QUANTISED_INTEGER_INTEGER_SCALE_GROUP_H
#define EXPERTD_KERNELS_CPU_AVX512_QUANTISED_INTEGER_INTEGER_SCALE_GROUP_H

#include "kernels/cpu/avx512/quantised_integer/integer_rows.h"
#include "kernels/layout/quantised_layout.h"

enum {
    VNNI_LINES = EXPERTD_KERNEL_PANEL / QUANTISED_COLUMNS, // of codes side by side
    VNNI_LINE_K = 8,                                       // of one
    VNNI_SCALE_LINES = VNNI_SCALE_K / VNNI_LINE_K,
    VNNI_WORDS = 2, // of 4 digits that a line of codes takes: its lower nibbles', its upper ones'
};

// How codes become bytes that are multiplied, in units of struct integer_kind, and f32: a constant in each copy.
enum integer_decode { INTEGER_E2M1, INTEGER_INT4, INTEGER_INT4_ZERO_POINT, INTEGER_DECODES };

// Rows are those of struct integer_rows, from the scale on.
struct integer_scale {
    enum integer_decode decode;
    bool apart;                         // fmas sum even and odd k apart, as ARITHMETIC_CPU_AMX does: a scale is one of its steps
    size_t lines;                       // of codes along K: 2 or 4
    const uint8_t *codes;               // of the first
    const float *factors, *zeros;       // [EXPERTD_KERNEL_PANEL]: scales, zero points; 64-byte aligned
    size_t rows;                        //
    const uint8_t *count, *not_whole;   //
    const struct integer_place *places; //
    const int8_t *digits;               //
    const void *const *x;               // [rows]
    size_t k;                           // of x, that the scale begins at
    float (*to)[EXPERTD_KERNEL_PANEL];  // [rows], 64-byte aligned: sum = fma(partial, scale, sum)
};
typedef void integer_scale_kernel(const struct integer_scale *scale);

// Those that are whole, and those that are not.
integer_scale_kernel integer_scale_words, integer_scale_fmas;

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
