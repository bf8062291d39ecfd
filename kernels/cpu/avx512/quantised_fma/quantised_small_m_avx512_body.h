// The kernels of one way of decoding, written once. The including file defines:
//   FEW_LINE_K               k of a line of codes: 8 or 4
//   FEW_FOLD                 struct few_decoder's
//   struct tables, tables_load(format)
//   struct zero, zero_load(zeros)  the zero points of 16 columns as its lines want them; zeros is not read where there are none
//   struct line, line_open(codes, tables)
//   line_value(line, tables, zero, k)   element k of the line times 1 / fold: 16 columns
//   FEW_HAS_PLAIN            where lines of normal codes (quantised_plain_shift) are widened by plain_open(codes, tables) and
//                            plain_value(line, k)
//   FEW_DECODER              the name of the result
//
// On Intel two vectors of 512 bits start in a cycle, of which shifts are one and permutations the other at most, so that widening
// takes its instructions from the fmas': 8 for 64 codes of 8 bits, 12 for 128 of 4, beside 4 or 8 fmas a row.
#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    LANES = 16,
    LINES = EXPERTD_KERNEL_PANEL / LANES,
    LINES_BYTES = LINES * QUANTISED_LINE,
    FEW_FAR = 12288, // 8 rows of INT8 and E4M3: 1.02 times as fast as 8 KiB ahead, 16 no faster
    PIECE_K = 64,    // of codes that are read again for other columns: 4 KiB at most, which stay in L1 beside the rows
};

// Constants in each copy.
struct few_shape {
    size_t rows;
    size_t side; // blocks of 16 columns of a pass over the codes
    size_t with; // of those, so many share a broadcast element
    bool apart;  // even and odd k are summed apart, as tiles do
};

// Partial sums: of ARITHMETIC_CPU_AMX's those of the step at hand stand by themselves.
struct few_sums {
    __m512 partial[KERNEL_QUANTISED_ROWS][LINES], part[2][KERNEL_QUANTISED_ROWS][LINES]; // part: of even and of odd k
};

// Codes are read once, in the order of memory, while the registers have room for all columns' sums.
#define FEW_SHAPE(rows) ((struct few_shape){rows, (rows) > 5 ? LINES / 2 : LINES, (rows) > 2 ? 2 : 4, false})
#define FEW_SHAPE_APART(rows) ((struct few_shape){rows, (rows) > 1 ? LINES / 2 : LINES, (rows) > 1 ? 2 : 4, true})

// Keeps rows' elements from being held in registers over the lines: the sums and what is widened need them.
PANEL_INLINE void few_forget(void) {
    __asm__ __volatile__("" ::: "memory");
}

// a * b + c in the form that overwrites c: gcc 12 takes one that overwrites a factor for many, and moves sums to and fro.
PANEL_INLINE __m512 few_fma(__m512 a, __m512 b, __m512 c) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}

#ifdef FEW_HAS_PLAIN
// How many lines from `line` on are plain, or are not.
PANEL_INLINE size_t few_run(const uint8_t *panel, unsigned plain_shift, size_t line, bool *plain) {
    enum { BITS_SURE = 57 }; // of 64 from any bit of a byte on
    const size_t bit = line >> plain_shift;
    uint64_t bits;
    memcpy(&bits, panel + QUANTISED_PLAIN_AT + bit / 8, sizeof bits); // codes follow the header
    bits >>= bit % 8;
    *plain = bits & 1;
    const uint64_t ends = (*plain ? ~bits : bits) | 1ull << BITS_SURE;
    return ((bit + (size_t)__builtin_ctzll(ends)) << plain_shift) - line;
}
#else
#define plain_open(codes, t) line_open(codes, t)
#define plain_value(line, k) _mm512_setzero_ps()
#endif

// `with` lines' codes against all rows, of each pair the odd k first.
PANEL_INLINE void few_line(struct few_shape shape, bool plain, const struct tables *t, const struct zero *zero,
                           const uint8_t *codes, const float *x, struct few_sums *s, size_t first) {
    struct line line[LINES];
    PANEL_UNROLL for (size_t j = 0; j < shape.with; j++) {
        line[j] = plain ? plain_open(codes + j * QUANTISED_LINE, t) : line_open(codes + j * QUANTISED_LINE, t);
    }
    PANEL_UNROLL for (size_t i = 0; i < FEW_LINE_K; i++) {
        const size_t k = i ^ 1;
        __m512 w[LINES];
        PANEL_UNROLL for (size_t j = 0; j < shape.with; j++) {
            w[j] = plain ? plain_value(&line[j], k) : line_value(&line[j], t, &zero[first + j], k);
        }
        PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
            const __m512 factor = _mm512_set1_ps(x[r * FEW_ROW_UNIT + k]);
            PANEL_UNROLL for (size_t j = 0; j < shape.with; j++) {
                __m512 *sum = shape.apart ? &s->part[k % 2][r][first + j] : &s->partial[r][first + j];
                *sum = few_fma(factor, w[j], *sum);
            }
        }
    }
}

// A step of K ends: its parts are added to each other, then to the partial sums.
PANEL_INLINE void few_add_step(struct few_shape shape, struct few_sums *s) {
    PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
        PANEL_UNROLL for (size_t j = 0; j < shape.side; j++) {
            s->partial[r][j] = _mm512_add_ps(s->partial[r][j], _mm512_add_ps(s->part[0][r][j], s->part[1][r][j]));
            s->part[0][r][j] = s->part[1][r][j] = _mm512_setzero_ps();
        }
    }
}

// Where codes are read once for each half of the columns, the first pass asks for all lines of L1, and each for half of those of
// L2, so that memory is busy in both.
PANEL_INLINE void few_fetch(struct few_shape shape, const uint8_t *codes, bool first) {
    const struct fetch_distance ahead = FETCH_CODES_INTEL;
    const size_t far = shape.side == LINES ? ahead.far : FEW_FAR;
    PANEL_UNROLL for (size_t j = 0; first && j < LINES; j++) {
        fetch_into(codes + j * QUANTISED_LINE + ahead.near, false);
    }
    PANEL_UNROLL for (size_t j = 0; j < shape.side; j++) {
        fetch_into(codes + j * QUANTISED_LINE + far, true);
    }
}

// Lines [line, line + lines) of those that x begins with, from `codes` on: `side` blocks of 16 columns.
PANEL_INLINE void few_lines(struct few_shape shape, bool plain, const struct tables *t, const struct zero *zero,
                            const uint8_t *codes, const float *x, size_t line, size_t lines, size_t step_lines, bool fetches,
                            struct few_sums *sums) {
    enum { UNIT_LINES = FEW_ROW_UNIT / FEW_LINE_K };
    const float *at = x + line / UNIT_LINES * shape.rows * FEW_ROW_UNIT + line % UNIT_LINES * FEW_LINE_K;
    for (const uint8_t *end = codes + lines * LINES_BYTES; codes != end; codes += LINES_BYTES) {
        few_fetch(shape, codes, fetches);
        PANEL_UNROLL for (size_t j = 0; j < shape.side; j += shape.with) {
            few_line(shape, plain, t, zero, codes + j * QUANTISED_LINE, at, sums, j);
            few_forget();
        }
        at += FEW_LINE_K + (++line % UNIT_LINES ? 0 : (shape.rows - 1) * FEW_ROW_UNIT);
        if (shape.apart && line % step_lines == 0) {
            few_add_step(shape, sums);
        }
    }
}

// Lines of a scale, all of them or a part.
struct piece {
    const uint8_t *codes, *stored; // the scale's scales, and behind them its zero points
    size_t line, lines;            // which of the chunk's the first one is
    bool starts, ends;
};

#ifdef FEW_HAS_PLAIN
PANEL_INLINE void few_piece(const struct few_args *a, struct few_shape shape, const struct tables *t, const struct zero *zero,
                            const struct piece *p, size_t block, struct few_sums *sums) {
    const uint8_t *codes = p->codes + block * QUANTISED_LINE;
    for (size_t done = 0, now; done < p->lines; done += now) {
        bool plain;
        const size_t run = few_run(a->panel, a->plain_shift, a->line + p->line + done, &plain);
        now = p->lines - done < run ? p->lines - done : run;
        if (plain) {
            few_lines(shape, true, t, zero, codes, a->x, p->line + done, now, a->step_lines, block == 0, sums);
        } else {
            few_lines(shape, false, t, zero, codes, a->x, p->line + done, now, a->step_lines, block == 0, sums);
        }
        codes += now * LINES_BYTES;
    }
}
#else
PANEL_INLINE void few_piece(const struct few_args *a, struct few_shape shape, const struct tables *t, const struct zero *zero,
                            const struct piece *p, size_t block, struct few_sums *sums) {
    few_lines(shape, false, t, zero, p->codes + block * QUANTISED_LINE, a->x, p->line, p->lines, a->step_lines, block == 0, sums);
}
#endif

PANEL_INLINE void few_close(const struct few_args *a, struct few_shape shape, size_t block, const float *factors,
                            __m512 partials[][LINES]) {
    PANEL_UNROLL for (size_t j = 0; j < shape.side; j++) {
        const __m512 factor = _mm512_load_ps(factors + (block + j) * LANES);
        PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
            float *sum = a->sums + r * KERNEL_SUMS + (block + j) * LANES;
            _mm512_store_ps(sum, _mm512_fmadd_ps(partials[r][j], factor, _mm512_load_ps(sum)));
        }
    }
}

// Along `side` blocks of 16 columns. Scales are widened behind the codes before them, when they have been fetched.
PANEL_INLINE void few_columns(const struct few_args *a, struct few_shape shape, const struct tables *t, const struct piece *p,
                              size_t block, __m512 global, float *factors) {
    struct few_sums sums;
    struct zero zero[LINES];
    PANEL_UNROLL for (size_t j = 0; j < shape.side; j++) {
        zero[j] = zero_load(p->stored + a->scale_bytes + (block + j) * LANES);
        PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
            const float *partial = a->partials + r * KERNEL_SUMS + (block + j) * LANES;
            sums.partial[r][j] = p->starts ? _mm512_setzero_ps() : _mm512_load_ps(partial);
            sums.part[0][r][j] = sums.part[1][r][j] = _mm512_setzero_ps();
        }
    }
    few_piece(a, shape, t, zero, p, block, &sums);
    if (shape.apart && p->ends) {
        few_add_step(shape, &sums); // one that is not whole
    }
    if (p->ends) {
        if (block == 0) {
            panel_scales_to(a->format, p->stored, global, factors);
        }
        few_close(a, shape, block, factors, sums.partial);
        return;
    }
    PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
        PANEL_UNROLL for (size_t j = 0; j < shape.side; j++) {
            _mm512_store_ps(a->partials + r * KERNEL_SUMS + (block + j) * LANES, sums.partial[r][j]);
        }
    }
}

// A scale's codes: in pieces where they are read more than once.
PANEL_INLINE void few_scale(const struct few_args *a, struct few_shape shape, const struct tables *t, const uint8_t *codes,
                            size_t line, size_t lines, const uint8_t *stored, __m512 global) {
    const size_t most = shape.side == LINES ? lines : PIECE_K / FEW_LINE_K;
    float factors[EXPERTD_KERNEL_PANEL] __attribute__((aligned(64)));
    for (size_t done = 0, now; done < lines; done += now) {
        now = lines - done < most ? lines - done : most;
        const struct piece piece = {
            .codes = codes + done * LINES_BYTES,
            .stored = stored,
            .line = line + done,
            .lines = now,
            .starts = done == 0 && a->starts,
            .ends = done + now == lines && a->ends,
        };
        PANEL_UNROLL for (size_t block = 0; block < LINES; block += shape.side) {
            few_columns(a, shape, t, &piece, block, global, factors);
        }
    }
}

// Scale by scale.
PANEL_INLINE void few_multiply(const struct few_args *a, struct few_shape shape) {
    const struct tables t = tables_load(a->format);
    const __m512 global = panel_global(a->format, a->panel);
    const uint8_t *codes = a->codes;
    size_t line = 0;
    for (size_t s = 0; s < a->scales; s++, codes += a->stride) {
        const bool last = s + 1 == a->scales;
        const size_t lines = (last ? a->last_k : a->scale_k) / FEW_LINE_K;
        const uint8_t *stored = last ? a->last : codes + lines * LINES_BYTES;
        for (size_t at = 0; at < a->scale_bytes; at += QUANTISED_LINE) {
            fetch_line(stored + at, FETCH_CODES_INTEL);
        }
        few_scale(a, shape, &t, codes, line, lines, stored, global);
        line += lines;
    }
}

#define FEW_FUNCTION(rows)                                                                                                         \
    static void multiply_##rows(const struct few_args *args) {                                                                     \
        few_multiply(args, FEW_SHAPE(rows));                                                                                       \
    }

#define FEW_FUNCTION_APART(rows)                                                                                                   \
    static void multiply_apart_##rows(const struct few_args *args) {                                                               \
        few_multiply(args, FEW_SHAPE_APART(rows));                                                                                 \
    }

FEW_FUNCTION_APART(1)
FEW_FUNCTION_APART(2)
FEW_FUNCTION_APART(3)
FEW_FUNCTION_APART(4)
FEW_FUNCTION(1)
FEW_FUNCTION(2)
FEW_FUNCTION(3)
FEW_FUNCTION(4)
FEW_FUNCTION(5)
FEW_FUNCTION(6)
FEW_FUNCTION(7)
FEW_FUNCTION(8)

PANEL_INLINE void widen_lines(bool plain, const struct tables *t, const struct zero *zero, const uint8_t *codes, size_t lines,
                              few_half_row *wide) {
    for (const uint8_t *end = codes + lines * LINES_BYTES; codes != end; codes += LINES_BYTES, wide += FEW_LINE_K) {
        PANEL_UNROLL for (size_t j = 0; j < LINES / 2; j++) {
            const uint8_t *at = codes + j * QUANTISED_LINE;
            const struct line line = plain ? plain_open(at, t) : line_open(at, t);
            PANEL_UNROLL for (size_t k = 0; k < FEW_LINE_K; k++) {
                const __m512 value = plain ? plain_value(&line, k) : line_value(&line, t, &zero[j], k);
                _mm512_store_ps(&wide[k][j * LANES], value);
            }
        }
    }
}

#ifdef FEW_HAS_PLAIN
PANEL_INLINE void widen_scale(const struct few_codes *c, const struct tables *t, const struct zero *zero, const uint8_t *codes,
                              size_t line, size_t lines, few_half_row *wide) {
    for (size_t done = 0, now; done < lines; done += now) {
        bool plain;
        const size_t run = few_run(c->panel, c->plain_shift, line + done, &plain);
        now = lines - done < run ? lines - done : run;
        if (plain) {
            widen_lines(true, t, zero, codes + done * LINES_BYTES, now, wide + done * FEW_LINE_K);
        } else {
            widen_lines(false, t, zero, codes + done * LINES_BYTES, now, wide + done * FEW_LINE_K);
        }
    }
}
#else
PANEL_INLINE void widen_scale(const struct few_codes *c, const struct tables *t, const struct zero *zero, const uint8_t *codes,
                              size_t line, size_t lines, few_half_row *wide) {
    (void)c, (void)line;
    widen_lines(false, t, zero, codes, lines, wide);
}
#endif

static void widen(const struct few_codes *c, few_half_row *wide) {
    const struct tables t = tables_load(c->format);
    const uint8_t *codes = c->codes;
    for (size_t s = 0, line = c->line, lines; s < c->scales; s++, codes += c->stride, line += lines, wide += lines * FEW_LINE_K) {
        const bool last = s + 1 == c->scales;
        const uint8_t *zeros = last ? c->last_zeros : c->zeros + s * c->stride;
        struct zero zero[LINES / 2];
        PANEL_UNROLL for (size_t j = 0; j < LINES / 2; j++) {
            zero[j] = zero_load(zeros + j * LANES);
        }
        lines = last ? c->last_lines : c->lines;
        widen_scale(c, &t, zero, codes, line, lines, wide);
    }
}

const struct few_decoder FEW_DECODER = {
    .line_k = FEW_LINE_K,
    .fold = FEW_FOLD,
    .multiply = {multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6, multiply_7, multiply_8},
    .multiply_apart = {multiply_apart_1, multiply_apart_2, multiply_apart_3, multiply_apart_4},
    .widen = widen,
};
