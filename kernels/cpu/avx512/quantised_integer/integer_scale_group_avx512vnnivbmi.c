// Exact rows by VPDPBUSD: one instruction multiplies four k of 16 columns for one digit, where FMAs take four; a row has two or
// three digits. Inexact rows by FMA.
#if defined(__x86_64__)
#include "kernels/cpu/avx512/quantised_integer/integer_scale_group.h"

#include <immintrin.h>

#include <string.h>

#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    LANES = 16,
    VECS = 2,     // vectors of columns at a time
    TWO_ROWS = 2, // rows of two digits at a time: a single one would wait for its own sums
    FMA_ROWS = 4, // inexact rows at a time
};

// The codes of VECS vectors of columns as bytes, plus max of struct integer_code_range. Word 2i holds the lower nibbles of line i,
// word 2i + 1 the upper ones.
struct codes {
    __m512i bytes[VECS][VNNI_WORDS * VNNI_SCALE_LINES];
};

// The values to add to the codes of 16 columns instead of subtracting their zero points, in each byte of a column's word.
PANEL_INLINE __m512i zero_point_offsets(const float *zeros) {
    const __m512i above = _mm512_sub_epi32(_mm512_set1_epi32(EXPERTD_INT4_ZERO_MAX), _mm512_cvtps_epi32(_mm512_load_ps(zeros)));
    return _mm512_mullo_epi32(above, _mm512_set1_epi32(0x01010101));
}

PANEL_INLINE struct codes load_code_bytes(enum integer_decode decode, const struct integer_scale_group *s, size_t lines,
                                          size_t column) {
    const uint8_t *codes = s->codes + column * (QUANTISED_LINE / QUANTISED_COLUMNS);
    const __m512i nibble = _mm512_set1_epi8(15);
    // Code value in halves plus 12; VPERMB uses the lowest 6 bits, of which the table repeats the lowest 4.
    const __m512i table = _mm512_broadcast_i32x4(_mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    struct codes c;
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        const __m512i above =
            decode == INTEGER_INT4_ZERO_POINT ? zero_point_offsets(s->zeros + column + v * LANES) : _mm512_setzero_si512();
        PANEL_UNROLL for (size_t i = 0; i < lines; i++) {
            const uint8_t *line = codes + (i * VNNI_LINES + v) * QUANTISED_LINE;
            const __m512i low = _mm512_loadu_si512(line), high = _mm512_srli_epi16(low, 4);
            prefetch_line(line, PREFETCH_CODES_INTEL);
            PANEL_UNROLL for (size_t w = 0; w < VNNI_WORDS; w++) {
                const __m512i words = w ? high : low;
                __m512i bytes = decode == INTEGER_E2M1 ? _mm512_permutexvar_epi8(words, table) : _mm512_and_si512(words, nibble);
                c.bytes[v][VNNI_WORDS * i + w] = decode == INTEGER_INT4_ZERO_POINT ? _mm512_add_epi8(bytes, above) : bytes;
            }
        }
    }
    return c;
}

PANEL_INLINE __m512i digits_word(const int8_t *digits) {
    int32_t word;
    memcpy(&word, digits, sizeof word);
    return _mm512_set1_epi32(word);
}

// sum = fma(partial, scale, sum)
PANEL_INLINE void close_sum(const struct integer_scale_group *s, size_t column, __m512 partial, size_t row) {
    float *sum = s->to[row] + column;
    _mm512_store_ps(sum, _mm512_fmadd_ps(partial, _mm512_load_ps(s->factors + column), _mm512_load_ps(sum)));
}

// Values of the 16 codes: as f32 for even k, and their upper halves, twice because VPERMW's index has 5 bits, for odd k.
struct code_values {
    __m512i even, odd;
};

PANEL_INLINE struct code_values code_values(enum integer_decode decode) {
    static const float E2M1[LANES] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    static const float UINT4[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const float INT4[LANES] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    const __m512i even = _mm512_loadu_si512(decode == INTEGER_E2M1 ? E2M1 : decode == INTEGER_INT4 ? INT4 : UINT4);
    return (struct code_values){even, _mm512_broadcast_i64x4(_mm512_cvtepi32_epi16(_mm512_srli_epi32(even, 16)))};
}

// f32 of the codes in the lowest nibbles: of the words for an even k, of their upper halves for an odd k.
PANEL_INLINE __m512 code_value(__m512i index, const struct code_values *values, bool odd) {
    return odd ? _mm512_castsi512_ps(_mm512_maskz_permutexvar_epi16(0xaaaaaaaau, index, values->odd))
               : _mm512_castsi512_ps(_mm512_permutexvar_epi32(index, values->even));
}

// The scale group of inexact rows, widened.
typedef float wide_rows[FMA_ROWS][VNNI_SCALE_K] __attribute__((aligned(64)));

PANEL_INLINE void widen_rows(const struct integer_scale_group *s, const uint8_t *row_numbers, size_t rows, size_t lines,
                             wide_rows wide) {
    for (size_t r = 0; r < rows; r++) {
        const uint16_t *x = (const uint16_t *)s->x[row_numbers[r]] + s->k;
        PANEL_UNROLL for (size_t i = 0; i < lines * VNNI_LINE_K; i += LANES) {
            const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(x + i)));
            _mm512_store_si512(&wide[r][i], _mm512_slli_epi32(words, 16));
        }
    }
}

// Pairs of k, the odd one first; or with separate sums of even and odd k.
PANEL_INLINE void fma_columns(enum integer_decode decode, bool amx_order, size_t rows, size_t lines,
                              const struct integer_scale_group *s, const uint8_t *row_numbers, wide_rows x, size_t column) {
    const uint8_t *codes = s->codes + column * (QUANTISED_LINE / QUANTISED_COLUMNS);
    const struct code_values values = code_values(decode);
    __m512 partials[2][FMA_ROWS][VECS], zero[VECS]; // the second: of odd k, if they are summed separately
    PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
        zero[v] = decode == INTEGER_INT4_ZERO_POINT ? _mm512_load_ps(s->zeros + column + v * LANES) : _mm512_setzero_ps();
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            partials[0][r][v] = partials[1][r][v] = _mm512_setzero_ps();
        }
    }
    for (size_t i = 0; i < lines; i++) {
        __m512i line[VECS];
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            line[v] = _mm512_loadu_si512(codes + (i * VNNI_LINES + v) * QUANTISED_LINE);
        }
        PANEL_UNROLL for (size_t k = 0; k < VNNI_LINE_K; k++) {
            const bool odd = k % 2 == 0;
            __m512 w[VECS];
            PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
                line[v] = k > 0 && odd ? _mm512_srli_epi32(line[v], 4) : line[v];
                w[v] = code_value(line[v], &values, odd);
                w[v] = decode == INTEGER_INT4_ZERO_POINT ? _mm512_sub_ps(w[v], zero[v]) : w[v];
            }
            PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
                const __m512 factor = _mm512_set1_ps(x[r][i * VNNI_LINE_K + (k ^ 1)]);
                PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
                    __m512 *partial = &partials[amx_order && odd][r][v];
                    *partial = _mm512_fmadd_ps(factor, w[v], *partial);
                }
            }
        }
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            const __m512 partial = amx_order ? _mm512_add_ps(partials[0][r][v], partials[1][r][v]) : partials[0][r][v];
            close_sum(s, column + v * LANES, partial, row_numbers[r]);
        }
    }
}

// Up to FMA_ROWS rows by VECS vectors of columns.
typedef void integer_columns_kernel(const struct integer_scale_group *s, const uint8_t *row_numbers, size_t rows, size_t column);

PANEL_INLINE void fma_rows(enum integer_decode decode, bool amx_order, size_t lines, const struct integer_scale_group *s,
                           const uint8_t *row_numbers, size_t rows, size_t column) {
    wide_rows x;
    widen_rows(s, row_numbers, rows, lines, x);
    switch (rows) {
    case 1:
        fma_columns(decode, amx_order, 1, lines, s, row_numbers, x, column);
        break;
    case 2:
        fma_columns(decode, amx_order, 2, lines, s, row_numbers, x, column);
        break;
    case 3:
        fma_columns(decode, amx_order, 3, lines, s, row_numbers, x, column);
        break;
    default:
        fma_columns(decode, amx_order, FMA_ROWS, lines, s, row_numbers, x, column);
        break;
    }
}

static void fma_all_rows(const struct integer_scale_group *s, integer_columns_kernel *fmas) {
    const uint8_t *row_numbers = s->inexact_rows;
    for (size_t left = s->count[INTEGER_INEXACT], rows; left > 0; left -= rows, row_numbers += rows) {
        rows = left < FMA_ROWS ? left : FMA_ROWS;
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += VECS * LANES) {
            fmas(s, row_numbers, rows, column);
        }
    }
}

PANEL_INLINE bool over_limit(const __m512i *sum, int32_t limit) {
    __m512i max = _mm512_abs_epi32(sum[0]);
    PANEL_UNROLL for (size_t v = 1; v < VECS; v++) {
        max = _mm512_max_epi32(max, _mm512_abs_epi32(sum[v]));
    }
    return _mm512_cmpge_epi32_mask(max, _mm512_set1_epi32(limit)) != 0;
}

// `rows` rows from a slot on by VECS vectors of columns. False if a sum of three digits may have been rounded; nothing is closed
// then.
PANEL_INLINE bool multiply_slots(size_t rows, size_t digits, const struct integer_scale_group *s, size_t slot, size_t lines,
                                 size_t column, const struct codes *codes) {
    const size_t words = VNNI_WORDS * lines, plane = s->rows * words * 4;
    const int8_t *x = s->digits + slot * words * 4;
    const struct integer_slot *at = s->slots + slot;
    __m512i sum[TWO_ROWS][VNNI_DIGITS][VECS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            PANEL_UNROLL for (size_t d = 0; d < digits; d++) {
                sum[r][d][v] = d == 0 ? _mm512_set1_epi32(at[r].offset) : _mm512_setzero_si512();
            }
        }
    }
    PANEL_UNROLL for (size_t i = 0; i < words; i++) {
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t d = 0; d < digits; d++) {
                const __m512i word = digits_word(x + d * plane + (r * words + i) * 4);
                PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
                    sum[r][d][v] = _mm512_dpbusd_epi32(sum[r][d][v], codes->bytes[v][i], word);
                }
            }
        }
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            PANEL_UNROLL for (size_t d = digits - 1; d > 0; d--) {
                sum[r][d - 1][v] = _mm512_add_epi32(_mm512_slli_epi32(sum[r][d][v], 8), sum[r][d - 1][v]);
            }
        }
    }
    if (digits == VNNI_DIGITS && over_limit(sum[0][0], at->limit)) {
        return false;
    }
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < VECS; v++) {
            const __m512 partial = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[r][0][v]), _mm512_set1_ps(at[r].unit));
            close_sum(s, column + v * LANES, partial, at[r].row);
        }
    }
    return true;
}

PANEL_INLINE void exact_columns(enum integer_decode decode, size_t lines, const struct integer_scale_group *s, size_t column,
                                integer_columns_kernel *fmas) {
    const struct codes codes = load_code_bytes(decode, s, lines, column);
    size_t slot = 0, two = s->count[INTEGER_TWO_DIGITS];
    for (; slot + TWO_ROWS <= two; slot += TWO_ROWS) {
        multiply_slots(TWO_ROWS, 2, s, slot, lines, column, &codes);
    }
    if (slot < two) {
        multiply_slots(1, 2, s, slot, lines, column, &codes);
    }
    for (slot = s->rows - s->count[INTEGER_THREE_DIGITS]; slot < s->rows; slot++) {
        if (!multiply_slots(1, VNNI_DIGITS, s, slot, lines, column, &codes)) {
            const uint8_t row = (uint8_t)s->slots[slot].row;
            fmas(s, &row, 1, column);
        }
    }
}

// noinline: the FMAs would take registers from the exact rows.
#define SCALE_GROUP_FUNCTIONS(decode, lines)                                                                                       \
    static __attribute__((noinline)) void columns_##decode##_##lines(const struct integer_scale_group *s,                          \
                                                                     const uint8_t *row_numbers, size_t rows, size_t column) {     \
        if (s->amx_order) {                                                                                                        \
            fma_rows(decode, true, lines, s, row_numbers, rows, column);                                                           \
        } else {                                                                                                                   \
            fma_rows(decode, false, lines, s, row_numbers, rows, column);                                                          \
        }                                                                                                                          \
    }                                                                                                                              \
    static void exact_##decode##_##lines(const struct integer_scale_group *s) {                                                    \
        for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += VECS * LANES) {                                           \
            exact_columns(decode, lines, s, column, columns_##decode##_##lines);                                                   \
        }                                                                                                                          \
    }                                                                                                                              \
    static void fma_##decode##_##lines(const struct integer_scale_group *s) {                                                      \
        fma_all_rows(s, columns_##decode##_##lines);                                                                               \
    }
INTEGER_COPIES(SCALE_GROUP_FUNCTIONS)

void integer_scale_group_exact(const struct integer_scale_group *s) {
    static integer_scale_group_kernel *const KERNELS[INTEGER_DECODES][2] = INTEGER_TABLE(exact);
    KERNELS[s->decode][s->lines == VNNI_SCALE_LINES](s);
}

void integer_scale_group_fma(const struct integer_scale_group *s) {
    static integer_scale_group_kernel *const KERNELS[INTEGER_DECODES][2] = INTEGER_TABLE(fma);
    KERNELS[s->decode][s->lines == VNNI_SCALE_LINES](s);
}
#endif
