// The rows of one scale group: exact blocks are multiplied with TDPBSSD (one product of tiles is 16 digits by 16 columns over 64
// k), other blocks by fmas. docs/notes/quantised-cpu.md has the costs of both.
//
// Tiles of sums are stored to memory, and added from there while the next ones are multiplied.
#if defined(__x86_64__)
#include "kernels/cpu/amx/tile_scale_group.h"

#include <immintrin.h>

#include <string.h>

#include "base/sizes.h"
#include "kernels/cpu/amx/amx_config.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    LINE_K = 8,
    LINES = TILE_K / LINE_K,   // lines of a block
    HALF_VECS = TILE_VECS / 2, // vectors of columns for which codes are widened at a time
    WIDE_ROWS = 32,            // rows widened at a time
    FMA_ROWS = 8,              // rows multiplied at a time
    SMALL_M_ROWS = 4,          // up to this m codes are widened in registers
    M_TILES = 5,               // tiles with rows of m: 0 to 3 sums of each vector of columns, 4 digits. 5 to 7 hold codes
};

void tile_scales_begin(size_t rows) {
    amx_configure(M_TILES, TILE_DIGITS * (rows < TILE_UNIT_ROWS ? rows : TILE_UNIT_ROWS), AMX_STEP_WORDS);
}

void tile_scales_end(void) {
    _tile_release();
}

PANEL_INLINE void decode_line(const uint8_t *stored, bool zero_point, __m512i zero, void *low, void *high) {
    const __m512i nibble = _mm512_set1_epi8(15), line = _mm512_loadu_si512(stored);
    prefetch_line(stored, PREFETCH_CODES_INTEL);
    (void)zero_point;
    _mm512_store_si512(low, _mm512_sub_epi8(_mm512_and_si512(line, nibble), zero));
    _mm512_store_si512(high, _mm512_sub_epi8(_mm512_and_si512(_mm512_srli_epi16(line, 4), nibble), zero));
}

void tile_scale_decode(const struct tile_scale *s, digit_codes to) {
    const uint8_t *stored = s->stored;
    __m512i zero[TILE_VECS];
    PANEL_UNROLL for (size_t v = 0; v < TILE_VECS; v++) {
        const __m512i words =
            s->zero_point ? _mm512_cvtps_epi32(_mm512_load_ps(s->zeros + v * TILE_COLUMNS)) : _mm512_set1_epi32(8);
        zero[v] = _mm512_mullo_epi32(words, _mm512_set1_epi32(0x01010101));
    }
    for (size_t k = 0; k < s->depth; k += LINE_K) {
        const size_t block = k / TILE_K, word = k % TILE_K / 4;
        PANEL_UNROLL for (size_t v = 0; v < TILE_VECS; v++, stored += QUANTISED_LINE) {
            decode_line(stored, s->zero_point, zero[v], to[block][v][word], to[block][v][word + 1]);
        }
    }
}

// sum = fma(partial, scale, sum)
PANEL_INLINE void close_sum(const struct tile_scale *s, size_t row, size_t column, __m512 partial) {
    float *sum = s->sums[row] + column;
    _mm512_store_ps(sum, _mm512_fmadd_ps(partial, _mm512_load_ps(s->factors + column), _mm512_load_ps(sum)));
}

// Codes and rows widened to f32.
typedef float wide_codes[TILE_K][HALF_VECS * TILE_COLUMNS] __attribute__((aligned(64)));
typedef float wide_rows[WIDE_ROWS][TILE_K] __attribute__((aligned(64)));

// k of a block.
PANEL_INLINE size_t block_depth(const struct tile_scale *s, size_t block) {
    const size_t left = s->depth - block * TILE_K;
    return left < TILE_K ? left : TILE_K;
}

// A line of codes of 16 columns. Shifts by 8, 16 and 24 bits are loads from the next bytes; scales follow the last line, so that
// these loads stay inside the panel.
struct line {
    __m512i from[4];
};

PANEL_INLINE struct line line_load(const uint8_t *stored) {
    return (struct line){{_mm512_loadu_si512(stored), _mm512_loadu_si512(stored + 1), _mm512_loadu_si512(stored + 2),
                          _mm512_loadu_si512(stored + 3)}};
}

// The values of k: k = 2i is nibble i of the lower half of a column's word, k = 2i + 1 nibble i of the upper half.
PANEL_INLINE __m512 line_value(const struct line *line, size_t k, bool zero_point, __m512 values, __m512 zero) {
    const __m512i words = line->from[k % 2 * 2 + k / 4], index = k / 2 % 2 ? _mm512_srli_epi32(words, 4) : words;
    const __m512 value = _mm512_permutexvar_ps(index, values);
    return zero_point ? _mm512_sub_ps(value, zero) : value;
}

PANEL_INLINE __m512 code_values(bool zero_point) {
    static const float UINT4[TILE_COLUMNS] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    static const float INT4[TILE_COLUMNS] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    return _mm512_loadu_ps(zero_point ? UINT4 : INT4);
}

PANEL_INLINE void widen(const struct tile_scale *s, size_t block, size_t first, bool zero_point, wide_codes wide) {
    const __m512 values = code_values(zero_point);
    const uint8_t *stored = s->stored + (block * LINES * TILE_VECS + first) * QUANTISED_LINE;
    for (size_t i = 0; i < block_depth(s, block); i += LINE_K, stored += TILE_VECS * QUANTISED_LINE) {
        PANEL_UNROLL for (size_t v = 0; v < HALF_VECS; v++) {
            const __m512 zero = zero_point ? _mm512_load_ps(s->zeros + (first + v) * TILE_COLUMNS) : _mm512_setzero_ps();
            const struct line line = line_load(stored + v * QUANTISED_LINE);
            PANEL_UNROLL for (size_t k = 0; k < LINE_K; k++) {
                _mm512_store_ps(&wide[i + k][v * TILE_COLUMNS], line_value(&line, k, zero_point, values, zero));
            }
        }
    }
}

static void widen_codes(const struct tile_scale *s, size_t block, size_t first, wide_codes wide) {
    if (s->zero_point) {
        widen(s, block, first, true, wide);
    } else {
        widen(s, block, first, false, wide);
    }
}

// Widens a block of `rows` rows from `slot` on, padded with +0 to a complete line.
static void widen_rows(const struct tile_scale *s, size_t block, size_t slot, size_t rows, wide_rows wide) {
    const size_t depth = block_depth(s, block);
    for (size_t r = 0; r < rows; r++) {
        const uint16_t *x = (const uint16_t *)s->x[s->slots[slot + r].row] + s->k + block * TILE_K;
        for (size_t i = 0; i < depth; i += TILE_COLUMNS) {
            const __mmask16 valid = (__mmask16)(depth - i < TILE_COLUMNS ? (1u << (depth - i)) - 1 : UINT16_MAX);
            const __m512i words = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(valid, x + i));
            _mm512_store_si512(&wide[r][i], _mm512_slli_epi32(words, 16));
        }
    }
}

// a * b + c with VFMADD231PS, which overwrites c. gcc 12 often takes a form that overwrites a factor, and then copies sums between
// registers.
PANEL_INLINE __m512 fma_onto(__m512 a, __m512 b, __m512 c) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}

// The position of a tile of fmas: block of K, first column, first slot.
struct fma_at {
    size_t block, column, slot;
};
typedef __m512 fma_sums[FMA_ROWS][TILE_VECS];

PANEL_INLINE void fma_begin(size_t rows, size_t vecs, const struct tile_scale *s, const struct fma_at *at, fma_sums sums) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            const float *before = s->partials[at->slot + r] + at->column + v * TILE_COLUMNS;
            sums[r][v] = at->block == 0 ? _mm512_setzero_ps() : _mm512_load_ps(before);
        }
    }
}

PANEL_INLINE void fma_end(size_t rows, size_t vecs, const struct tile_scale *s, const struct fma_at *at, fma_sums sums) {
    const bool closes = (at->block + 1) * TILE_K >= s->depth;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            const size_t column = at->column + v * TILE_COLUMNS;
            if (closes) {
                close_sum(s, s->slots[at->slot + r].row, column, sums[r][v]);
            } else {
                _mm512_store_ps(s->partials[at->slot + r] + column, sums[r][v]);
            }
        }
    }
}

PANEL_INLINE void fma_step(size_t rows, size_t vecs, const wide_rows x, size_t k, const __m512 *code, size_t first, fma_sums sums) {
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        const __m512 factor = _mm512_set1_ps(x[r][k]);
        PANEL_UNROLL for (size_t v = 0; v < vecs; v++) {
            sums[r][first + v] = fma_onto(factor, code[v], sums[r][first + v]);
        }
    }
}

// A line of codes of two vectors of columns: pairs of k, the odd one first.
PANEL_INLINE void fma_line(size_t rows, bool zero_point, const uint8_t *stored, const wide_rows x, size_t k, __m512 values,
                           const __m512 *zero, size_t first, fma_sums sums) {
    const struct line line[HALF_VECS] = {line_load(stored), line_load(stored + QUANTISED_LINE)};
    PANEL_UNROLL for (size_t i = 0; i < LINE_K; i++) {
        const size_t odd = i ^ 1;
        __m512 code[HALF_VECS];
        PANEL_UNROLL for (size_t v = 0; v < HALF_VECS; v++) {
            code[v] = line_value(&line[v], odd, zero_point, values, zero[v]);
        }
        fma_step(rows, HALF_VECS, x, k + odd, code, first, sums);
    }
    __asm__ __volatile__("" ::: "memory"); // else gcc keeps elements of x in registers, and spills sums
}

// Up to SMALL_M_ROWS rows: codes are widened in registers.
PANEL_INLINE void fma_small_m(size_t rows, bool zero_point, const struct tile_scale *s, const struct fma_at *at,
                              const wide_rows x) {
    const __m512 values = code_values(zero_point);
    const uint8_t *stored = s->stored + at->block * LINES * TILE_VECS * QUANTISED_LINE;
    __m512 zero[TILE_VECS];
    fma_sums sums;
    PANEL_UNROLL for (size_t v = 0; v < TILE_VECS; v++) {
        zero[v] = zero_point ? _mm512_load_ps(s->zeros + v * TILE_COLUMNS) : _mm512_setzero_ps();
    }
    fma_begin(rows, TILE_VECS, s, at, sums);
    for (size_t k = 0; k < block_depth(s, at->block); k += LINE_K) {
        PANEL_UNROLL for (size_t v = 0; v < TILE_VECS; v += HALF_VECS, stored += HALF_VECS * QUANTISED_LINE) {
            fma_line(rows, zero_point, stored, x, k, values, zero + v, v, sums);
        }
    }
    fma_end(rows, TILE_VECS, s, at, sums);
}

// More rows: half of the columns' codes have been widened into L1.
PANEL_INLINE void fma_large_m(size_t rows, const struct tile_scale *s, const struct fma_at *at, const wide_rows x,
                              wide_codes codes) {
    fma_sums sums;
    fma_begin(rows, HALF_VECS, s, at, sums);
    for (size_t pair = 0; pair < block_depth(s, at->block); pair += 2) {
        PANEL_UNROLL for (size_t i = 0; i < 2; i++) {
            const size_t k = pair + 1 - i;
            __m512 code[HALF_VECS];
            PANEL_UNROLL for (size_t v = 0; v < HALF_VECS; v++) {
                code[v] = _mm512_load_ps(&codes[k][v * TILE_COLUMNS]);
            }
            fma_step(rows, HALF_VECS, x, k, code, 0, sums);
        }
    }
    fma_end(rows, HALF_VECS, s, at, sums);
}

// A copy of each function for each number of rows.
#define FMA_SMALL_M(rows)                                                                                                          \
    static void fma_small_m_##rows(const struct tile_scale *s, const struct fma_at *at, const wide_rows x) {                       \
        if (s->zero_point) {                                                                                                       \
            fma_small_m(rows, true, s, at, x);                                                                                     \
        } else {                                                                                                                   \
            fma_small_m(rows, false, s, at, x);                                                                                    \
        }                                                                                                                          \
    }
#define FMA_LARGE_M(rows)                                                                                                          \
    static void fma_large_m_##rows(const struct tile_scale *s, const struct fma_at *at, const wide_rows x, wide_codes codes) {     \
        fma_large_m(rows, s, at, x, codes);                                                                                        \
    }
FMA_SMALL_M(1)
FMA_SMALL_M(2)
FMA_SMALL_M(3)
FMA_SMALL_M(4)
FMA_LARGE_M(1)
FMA_LARGE_M(2)
FMA_LARGE_M(3)
FMA_LARGE_M(4)
FMA_LARGE_M(5)
FMA_LARGE_M(6)
FMA_LARGE_M(7)
FMA_LARGE_M(8)

typedef void fma_small_m_kernel(const struct tile_scale *s, const struct fma_at *at, const wide_rows x);
typedef void fma_large_m_kernel(const struct tile_scale *s, const struct fma_at *at, const wide_rows x, wide_codes codes);

// Up to WIDE_ROWS rows by one block.
static void fma_some(const struct tile_scale *s, size_t block, size_t slot, size_t count, const wide_rows x) {
    static fma_small_m_kernel *const SMALL_M[] = {fma_small_m_1, fma_small_m_2, fma_small_m_3, fma_small_m_4};
    static fma_large_m_kernel *const LARGE_M[] = {fma_large_m_1, fma_large_m_2, fma_large_m_3, fma_large_m_4,
                                                  fma_large_m_5, fma_large_m_6, fma_large_m_7, fma_large_m_8};
    wide_codes codes;
    if (count <= SMALL_M_ROWS) {
        const struct fma_at at = {block, 0, slot};
        SMALL_M[count - 1](s, &at, x);
        return;
    }
    for (size_t first = 0; first < TILE_VECS; first += HALF_VECS) {
        size_t parts = div_up(count, FMA_ROWS);
        widen_codes(s, block, first, codes);
        for (size_t done = 0, rows; done < count; done += rows, parts--) {
            rows = div_up(count - done, parts);
            const struct fma_at at = {block, first * TILE_COLUMNS, slot + done};
            LARGE_M[rows - 1](s, &at, x + done, codes);
        }
    }
}

// The rows of slots [slot, end) by one block.
static __attribute__((noinline)) void fma_slots(const struct tile_scale *s, size_t block, size_t slot, size_t end) {
    wide_rows x;
    for (size_t rows; slot < end; slot += rows) {
        rows = end - slot < WIDE_ROWS ? end - slot : WIDE_ROWS;
        widen_rows(s, block, slot, rows, x);
        fma_some(s, block, slot, rows, (const float(*)[TILE_K])x);
    }
}

PANEL_INLINE __m512 tile_value(int32_t (*sums)[TILE_SUMS][TILE_COLUMNS], size_t v, size_t row) {
    const int32_t(*digits)[TILE_COLUMNS] = (const int32_t(*)[TILE_COLUMNS])sums[v][row * TILE_DIGITS];
    __m512i sum = _mm512_slli_epi32(_mm512_load_si512(digits[2]), 8);
    sum = _mm512_slli_epi32(_mm512_add_epi32(sum, _mm512_load_si512(digits[1])), 8);
    return _mm512_cvtepi32_ps(_mm512_add_epi32(sum, _mm512_load_si512(digits[0])));
}

// A first block's sums are the partial sums. `closes`: the scale group has no second block, so they are closed.
PANEL_INLINE void finish_first_block(const struct tile_scale *s, const struct tile_unit *u, bool closes,
                                     int32_t (*sums)[TILE_SUMS][TILE_COLUMNS]) {
    const struct tile_slot *slots = s->slots + u->slot;
    for (size_t r = 0; r < u->rows; r++) {
        PANEL_UNROLL for (size_t v = 0; v < TILE_VECS; v++) {
            const __m512 partial = _mm512_mul_ps(tile_value(sums, v, r), _mm512_set1_ps(slots[r].unit[0]));
            if (closes) {
                close_sum(s, slots[r].row, v * TILE_COLUMNS, partial);
            } else {
                _mm512_store_ps(s->partials[u->slot + r] + v * TILE_COLUMNS, partial);
            }
        }
    }
}

// The one of a and b that has the greater magnitude; its sign is dropped.
PANEL_INLINE __m512 greater(__m512 a, __m512 b) {
    return _mm512_range_ps(a, b, 0xb);
}

// Adds a second block's sums and closes the partial sums. Rows with a partial sum that reaches the limit are computed by fmas
// instead, from the first block's partial sums on.
PANEL_INLINE void finish_second_block(const struct tile_scale *s, const struct tile_unit *u,
                                      int32_t (*sums)[TILE_SUMS][TILE_COLUMNS]) {
    const struct tile_slot *slots = s->slots + u->slot;
    for (size_t r = 0; r < u->rows; r++) {
        __m512 after[TILE_VECS], most[TILE_VECS];
        PANEL_UNROLL for (size_t v = 0; v < TILE_VECS; v++) {
            const __m512 before = _mm512_load_ps(s->partials[u->slot + r] + v * TILE_COLUMNS);
            after[v] = _mm512_fmadd_ps(tile_value(sums, v, r), _mm512_set1_ps(slots[r].unit[1]), before);
            most[v] = greater(before, after[v]);
        }
        const __m512 greatest = _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
        if (_mm512_cmp_ps_mask(greatest, _mm512_set1_ps(slots[r].limit), _CMP_NLT_UQ)) {
            fma_slots(s, 1, u->slot + r, u->slot + r + 1);
            continue;
        }
        PANEL_UNROLL for (size_t v = 0; v < TILE_VECS; v++) {
            close_sum(s, slots[r].row, v * TILE_COLUMNS, after[v]);
        }
    }
}

static void finish_pending(struct tile_pending *pending) {
    const struct tile_scale *s = pending->scale;
    if (!s) {
        return;
    }
    if (pending->unit.block > 0) {
        finish_second_block(s, &pending->unit, pending->sums);
    } else if (s->depth > TILE_K) {
        finish_first_block(s, &pending->unit, false, pending->sums);
    } else {
        finish_first_block(s, &pending->unit, true, pending->sums);
    }
    pending->scale = NULL;
}

PANEL_INLINE void multiply_unit(const struct tile_scale *s, const struct tile_unit *u, digit_codes codes) {
    const int8_t *x = s->digits + (u->block * s->rows + u->slot) * TILE_DIGITS * TILE_K;
    TILES_MEMORY_BARRIER;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_loadd(4, x, TILE_K);
    _tile_loadd(5, codes[u->block][0], AMX_STEP_BYTES);
    _tile_dpbssd(0, 4, 5);
    _tile_loadd(6, codes[u->block][1], AMX_STEP_BYTES);
    _tile_dpbssd(1, 4, 6);
    _tile_loadd(7, codes[u->block][2], AMX_STEP_BYTES);
    _tile_dpbssd(2, 4, 7);
    _tile_loadd(5, codes[u->block][3], AMX_STEP_BYTES);
    _tile_dpbssd(3, 4, 5);
    TILES_MEMORY_BARRIER;
}

PANEL_INLINE void store_unit(int32_t (*sums)[TILE_SUMS][TILE_COLUMNS]) {
    TILES_MEMORY_BARRIER;
    _tile_stored(0, sums[0], AMX_STEP_BYTES);
    _tile_stored(1, sums[1], AMX_STEP_BYTES);
    _tile_stored(2, sums[2], AMX_STEP_BYTES);
    _tile_stored(3, sums[3], AMX_STEP_BYTES);
    TILES_MEMORY_BARRIER;
}

// Whether codes minus these zero points are at most TILE_CODE_MAX_ZERO_POINT in magnitude, as tile_rows_make assumed.
PANEL_INLINE bool zeros_in_range(const struct tile_scale *s) {
    const __m512 most = _mm512_set1_ps(TILE_CODE_MAX_ZERO_POINT), least = _mm512_set1_ps(15 - TILE_CODE_MAX_ZERO_POINT);
    __mmask16 out = 0;
    PANEL_UNROLL for (size_t v = 0; v < TILE_VECS; v++) {
        const __m512 zero = _mm512_load_ps(s->zeros + v * TILE_COLUMNS);
        out |= _mm512_cmp_ps_mask(zero, most, _CMP_GT_OQ) | _mm512_cmp_ps_mask(zero, least, _CMP_LT_OQ);
    }
    return out == 0;
}

// Multiplies the exact blocks: both blocks of a unit's rows one after the other, so that partial sums are still in L1. A unit's
// sums are added while the next unit is multiplied. exact[b]: the number of slots whose block b is exact.
static void multiply_units(const struct tile_scale *s, const size_t exact[TILE_BLOCKS], digit_codes codes,
                           struct tile_pending *pending) {
    for (size_t slot = 0; slot < exact[0]; slot += TILE_UNIT_ROWS) {
        for (size_t b = 0; b < TILE_BLOCKS && slot < exact[b]; b++) {
            const size_t left = exact[b] - slot;
            const struct tile_unit u = {slot, left < TILE_UNIT_ROWS ? left : TILE_UNIT_ROWS, b};
            multiply_unit(s, &u, codes);
            finish_pending(pending);
            store_unit(pending->sums);
            pending->scale = s;
            pending->unit = u;
        }
    }
}

void tile_scale_multiply(const struct tile_scale *s, digit_codes codes, struct tile_pending *pending) {
    const bool use_tiles = !s->zero_point || zeros_in_range(s);
    const size_t exact[TILE_BLOCKS] = {use_tiles ? s->count[0] : 0, use_tiles ? s->count[1] : 0};
    multiply_units(s, exact, codes, pending);
    if (pending->scale != s) {
        finish_pending(pending); // of the previous scale group: sums are closed in ascending order
    }
    for (size_t b = 0; b < TILE_BLOCKS && b * TILE_K < s->depth; b++) {
        if (b > 0 && exact[b] < s->rows) {
            finish_pending(pending); // its partial sums may belong to rows whose second block is computed by fmas
        }
        fma_slots(s, b, exact[b], s->rows);
    }
}

void tile_scale_drain(struct tile_pending *pending) {
    finish_pending(pending);
}
#endif
