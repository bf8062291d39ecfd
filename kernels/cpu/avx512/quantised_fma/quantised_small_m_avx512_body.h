// The FMA kernels over one decoder. The including file defines:
//   FMA_LINE_K           k of a line of codes: 8 or 4
//   FMA_ROW_FACTORS      row_factors of struct fma_decoder
//   struct tables, tables_load(format)
//   struct zero, zero_load(zeros)  the zero points of 16 columns as line_value needs them; `zeros` is not read if there are none
//   struct line, line_open(codes, tables)
//   line_value(line, tables, zero, k)   element k of the line divided by its row factor: 16 columns
//   FMA_HAS_PLAIN        if lines of normal codes (quantised_plain_shift) are decoded by plain_open(codes, tables) and
//                          plain_value(line, k)
//   FMA_DECODER          the name of the resulting struct fma_decoder
//
// Intel starts two 512-bit instructions a cycle, at most one of them a shift and at most one a permutation, so decoding takes slots
// from the FMAs: 8 for 64 8-bit codes, 12 for 128 4-bit codes, in addition to 4 or 8 FMAs a row.
#include "kernels/cpu/avx512/quantised/panel_scales_avx512.h"
#include "kernels/cpu/avx512/quantised_fma/quantised_small_m_avx512.h"
#include "kernels/cpu/backend/backends.h"
#include "kernels/cpu/common/prefetch_distance.h"

enum {
    LANES = 16,
    LINES = EXPERTD_KERNEL_PANEL / LANES,
    LINES_BYTES = LINES * QUANTISED_LINE,
    SMALL_M_L2_DISTANCE = 12288, // 8 rows of INT8 and E4M3: 1.02 times as fast as 8 KiB ahead; 16 KiB is no faster
    PIECE_K = 64, // k of codes that are decoded again for other columns: at most 4 KiB, which stay in L1 with the rows
};

// Constants in each copy.
struct small_m_shape {
    size_t rows;
    size_t blocks;  // blocks of 16 columns in a pass over the codes
    size_t shared;  // blocks that share a broadcast element
    bool amx_order; // sum even and odd k separately, as ARITHMETIC_CPU_AMX does
};

// Partial sums. With amx_order, those of the current step of K are separate.
struct small_m_sums {
    __m512 partial[KERNEL_QUANTISED_ROWS][LINES], step[2][KERNEL_QUANTISED_ROWS][LINES]; // step: of even and of odd k
};

// While the registers hold the sums of all columns, codes are read once, in memory order.
#define SMALL_M_SHAPE(rows) ((struct small_m_shape){rows, (rows) > 5 ? LINES / 2 : LINES, (rows) > 2 ? 2 : 4, false})
#define SMALL_M_SHAPE_AMX_ORDER(rows) ((struct small_m_shape){rows, (rows) > 1 ? LINES / 2 : LINES, (rows) > 1 ? 2 : 4, true})

// A compiler barrier: the rows' elements are loaded again for each line, because the sums and decoded values need the registers.
PANEL_INLINE void compiler_barrier(void) {
    __asm__ __volatile__("" ::: "memory");
}

// a * b + c in the form that overwrites c. gcc 12 often picks one that overwrites a factor, and copies sums back and forth.
PANEL_INLINE __m512 small_m_fma(__m512 a, __m512 b, __m512 c) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
    return c;
}

#ifdef FMA_HAS_PLAIN
// The number of consecutive lines from `line` on that are all plain, or all not plain.
PANEL_INLINE size_t plain_run_length(const uint8_t *panel, unsigned plain_shift, size_t line, bool *plain) {
    enum { BITS_SURE = 57 }; // valid bits of a 64-bit load that starts at any bit of a byte
    const size_t bit = line >> plain_shift;
    uint64_t bits;
    memcpy(&bits, panel + QUANTISED_PLAIN_AT + bit / 8, sizeof bits); // may read past the header: codes follow
    bits >>= bit % 8;
    *plain = bits & 1;
    const uint64_t ends = (*plain ? ~bits : bits) | 1ull << BITS_SURE;
    return ((bit + (size_t)__builtin_ctzll(ends)) << plain_shift) - line;
}
#else
#define plain_open(codes, t) line_open(codes, t)
#define plain_value(line, k) _mm512_setzero_ps()
#endif

// The codes of `shared` lines against all rows, the odd k of each pair first.
PANEL_INLINE void small_m_line(struct small_m_shape shape, bool plain, const struct tables *t, const struct zero *zero,
                               const uint8_t *codes, const float *x, struct small_m_sums *s, size_t first) {
    struct line line[LINES];
    PANEL_UNROLL for (size_t j = 0; j < shape.shared; j++) {
        line[j] = plain ? plain_open(codes + j * QUANTISED_LINE, t) : line_open(codes + j * QUANTISED_LINE, t);
    }
    PANEL_UNROLL for (size_t i = 0; i < FMA_LINE_K; i++) {
        const size_t k = i ^ 1;
        __m512 w[LINES];
        PANEL_UNROLL for (size_t j = 0; j < shape.shared; j++) {
            w[j] = plain ? plain_value(&line[j], k) : line_value(&line[j], t, &zero[first + j], k);
        }
        PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
            const __m512 factor = _mm512_set1_ps(x[r * FMA_ROW_UNIT + k]);
            PANEL_UNROLL for (size_t j = 0; j < shape.shared; j++) {
                __m512 *sum = shape.amx_order ? &s->step[k % 2][r][first + j] : &s->partial[r][first + j];
                *sum = small_m_fma(factor, w[j], *sum);
            }
        }
    }
}

// The end of a step of K: its sums of even and odd k are added to each other, then to the partial sum.
PANEL_INLINE void small_m_add_step(struct small_m_shape shape, struct small_m_sums *s) {
    PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
        PANEL_UNROLL for (size_t j = 0; j < shape.blocks; j++) {
            s->partial[r][j] = _mm512_add_ps(s->partial[r][j], _mm512_add_ps(s->step[0][r][j], s->step[1][r][j]));
            s->step[0][r][j] = s->step[1][r][j] = _mm512_setzero_ps();
        }
    }
}

// Where codes are read once for each half of the columns, the first pass prefetches all lines into L1, and each pass half of the
// lines into L2, so that memory is busy in both.
PANEL_INLINE void small_m_prefetch(struct small_m_shape shape, const uint8_t *codes, bool prefetch_l1) {
    const struct prefetch_distance ahead = PREFETCH_CODES_INTEL;
    const size_t far = shape.blocks == LINES ? ahead.far : SMALL_M_L2_DISTANCE;
    PANEL_UNROLL for (size_t j = 0; prefetch_l1 && j < LINES; j++) {
        prefetch_into(codes + j * QUANTISED_LINE + ahead.near, false);
    }
    PANEL_UNROLL for (size_t j = 0; j < shape.blocks; j++) {
        prefetch_into(codes + j * QUANTISED_LINE + far, true);
    }
}

// Lines [line, line + lines) of the chunk, whose codes begin at `codes`, by `blocks` blocks of 16 columns.
PANEL_INLINE void small_m_lines(struct small_m_shape shape, bool plain, const struct tables *t, const struct zero *zero,
                                const uint8_t *codes, const float *x, size_t line, size_t lines, size_t step_lines,
                                bool prefetch_l1, struct small_m_sums *sums) {
    enum { UNIT_LINES = FMA_ROW_UNIT / FMA_LINE_K };
    const float *at = x + line / UNIT_LINES * shape.rows * FMA_ROW_UNIT + line % UNIT_LINES * FMA_LINE_K;
    for (const uint8_t *end = codes + lines * LINES_BYTES; codes != end; codes += LINES_BYTES) {
        small_m_prefetch(shape, codes, prefetch_l1);
        PANEL_UNROLL for (size_t j = 0; j < shape.blocks; j += shape.shared) {
            small_m_line(shape, plain, t, zero, codes + j * QUANTISED_LINE, at, sums, j);
            compiler_barrier();
        }
        at += FMA_LINE_K + (++line % UNIT_LINES ? 0 : (shape.rows - 1) * FMA_ROW_UNIT);
        if (shape.amx_order && line % step_lines == 0) {
            small_m_add_step(shape, sums);
        }
    }
}

// Lines of a scale group, all of them or a part.
struct piece {
    const uint8_t *codes, *stored; // stored: the scale group's scales, followed by its zero points or minima
    size_t scale;                  // index of the scale group within the chunk
    size_t line, lines;            // line: index of the first one within the chunk
    bool starts, ends;
};

#ifdef FMA_HAS_PLAIN
PANEL_INLINE void small_m_piece(const struct small_m_args *a, struct small_m_shape shape, const struct tables *t,
                                const struct zero *zero, const struct piece *p, size_t block, struct small_m_sums *sums) {
    const uint8_t *codes = p->codes + block * QUANTISED_LINE;
    for (size_t done = 0, now; done < p->lines; done += now) {
        bool plain;
        const size_t run = plain_run_length(a->panel, a->plain_shift, a->line + p->line + done, &plain);
        now = p->lines - done < run ? p->lines - done : run;
        if (plain) {
            small_m_lines(shape, true, t, zero, codes, a->x, p->line + done, now, a->step_lines, block == 0, sums);
        } else {
            small_m_lines(shape, false, t, zero, codes, a->x, p->line + done, now, a->step_lines, block == 0, sums);
        }
        codes += now * LINES_BYTES;
    }
}
#else
PANEL_INLINE void small_m_piece(const struct small_m_args *a, struct small_m_shape shape, const struct tables *t,
                                const struct zero *zero, const struct piece *p, size_t block, struct small_m_sums *sums) {
    small_m_lines(shape, false, t, zero, p->codes + block * QUANTISED_LINE, a->x, p->line, p->lines, a->step_lines, block == 0,
                  sums);
}
#endif

PANEL_INLINE void small_m_close(const struct small_m_args *a, struct small_m_shape shape, size_t block, const float *factors,
                                __m512 partials[][LINES]) {
    PANEL_UNROLL for (size_t j = 0; j < shape.blocks; j++) {
        const __m512 factor = _mm512_load_ps(factors + (block + j) * LANES);
        PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
            float *sum = a->sums + r * KERNEL_SUMS + (block + j) * LANES;
            _mm512_store_ps(sum, _mm512_fmadd_ps(partials[r][j], factor, _mm512_load_ps(sum)));
        }
    }
}

// With minima, after small_m_close: sum = fma(minus, minimum, sum).
PANEL_INLINE void small_m_subtract(const struct small_m_args *a, struct small_m_shape shape, const struct piece *p, size_t block) {
    const size_t vector_bytes = a->scale_bytes / LINES;
    const uint8_t *supers =
        a->layout->super_size ? a->panel + quantised_supers_at(a->layout, a->first + p->scale) + QUANTISED_SUPER : NULL;
    PANEL_UNROLL for (size_t j = 0; j < shape.blocks; j++) {
        __m512 minimum = vec_scale(a->format->scale, p->stored + a->scale_bytes + (block + j) * vector_bytes);
        minimum = supers ? _mm512_mul_ps(minimum, scale_f16(supers + 2 * (block + j) * LANES)) : minimum;
        PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
            float *sum = a->sums + r * KERNEL_SUMS + (block + j) * LANES;
            const __m512 minus = _mm512_set1_ps(a->minus[r * a->minus_stride + p->scale]);
            _mm512_store_ps(sum, _mm512_fmadd_ps(minus, minimum, _mm512_load_ps(sum)));
        }
    }
}

// One piece by `blocks` blocks of 16 columns. Scales are widened after the codes, when the prefetched lines have arrived.
PANEL_INLINE void small_m_columns(const struct small_m_args *a, struct small_m_shape shape, const struct tables *t,
                                  const struct piece *p, size_t block, __m512 global, float *factors) {
    struct small_m_sums sums;
    struct zero zero[LINES];
    PANEL_UNROLL for (size_t j = 0; j < shape.blocks; j++) {
        zero[j] = zero_load(p->stored + a->scale_bytes + (block + j) * LANES);
        PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
            const float *partial = a->partials + r * KERNEL_SUMS + (block + j) * LANES;
            sums.partial[r][j] = p->starts ? _mm512_setzero_ps() : _mm512_load_ps(partial);
            sums.step[0][r][j] = sums.step[1][r][j] = _mm512_setzero_ps();
        }
    }
    small_m_piece(a, shape, t, zero, p, block, &sums);
    if (shape.amx_order && p->ends) {
        small_m_add_step(shape, &sums); // the last step of a scale group may be short
    }
    if (p->ends) {
        if (block == 0) {
            group_scales_to(a->format, a->layout, a->panel, a->first + p->scale, p->stored, global, factors);
        }
        small_m_close(a, shape, block, factors, sums.partial);
        if (a->minus) {
            small_m_subtract(a, shape, p, block);
        }
        return;
    }
    PANEL_UNROLL for (size_t r = 0; r < shape.rows; r++) {
        PANEL_UNROLL for (size_t j = 0; j < shape.blocks; j++) {
            _mm512_store_ps(a->partials + r * KERNEL_SUMS + (block + j) * LANES, sums.partial[r][j]);
        }
    }
}

// A scale group: in pieces if its codes are decoded more than once.
PANEL_INLINE void small_m_scale(const struct small_m_args *a, struct small_m_shape shape, const struct tables *t,
                                const uint8_t *codes, size_t scale, size_t line, size_t lines, const uint8_t *stored,
                                __m512 global) {
    const size_t piece_lines = shape.blocks == LINES ? lines : PIECE_K / FMA_LINE_K;
    float factors[EXPERTD_KERNEL_PANEL] __attribute__((aligned(64)));
    for (size_t done = 0, now; done < lines; done += now) {
        now = lines - done < piece_lines ? lines - done : piece_lines;
        const struct piece piece = {
            .codes = codes + done * LINES_BYTES,
            .stored = stored,
            .scale = scale,
            .line = line + done,
            .lines = now,
            .starts = done == 0 && a->starts,
            .ends = done + now == lines && a->ends,
        };
        PANEL_UNROLL for (size_t block = 0; block < LINES; block += shape.blocks) {
            small_m_columns(a, shape, t, &piece, block, global, factors);
        }
    }
}

// One scale group after another.
PANEL_INLINE void small_m_multiply(const struct small_m_args *a, struct small_m_shape shape) {
    const struct tables t = tables_load(a->format);
    const __m512 global = panel_global(a->format, a->panel);
    const uint8_t *codes = a->codes;
    const size_t prefetched = a->minus ? 2 * a->scale_bytes : a->scale_bytes;
    size_t line = 0;
    for (size_t s = 0; s < a->scales; s++, codes += a->stride) {
        const bool last = s + 1 == a->scales;
        const size_t lines = (last ? a->last_k : a->scale_k) / FMA_LINE_K;
        const uint8_t *stored = last ? a->last : codes + lines * LINES_BYTES;
        for (size_t at = 0; at < prefetched; at += QUANTISED_LINE) {
            prefetch_line(stored + at, PREFETCH_CODES_INTEL);
        }
        small_m_scale(a, shape, &t, codes, s, line, lines, stored, global);
        line += lines;
    }
}

#define SMALL_M_FUNCTION(rows)                                                                                                     \
    static void multiply_##rows(const struct small_m_args *args) {                                                                 \
        small_m_multiply(args, SMALL_M_SHAPE(rows));                                                                               \
    }

#define SMALL_M_FUNCTION_AMX_ORDER(rows)                                                                                           \
    static void multiply_amx_order_##rows(const struct small_m_args *args) {                                                       \
        small_m_multiply(args, SMALL_M_SHAPE_AMX_ORDER(rows));                                                                     \
    }

SMALL_M_FUNCTION_AMX_ORDER(1)
SMALL_M_FUNCTION_AMX_ORDER(2)
SMALL_M_FUNCTION_AMX_ORDER(3)
SMALL_M_FUNCTION_AMX_ORDER(4)
SMALL_M_FUNCTION(1)
SMALL_M_FUNCTION(2)
SMALL_M_FUNCTION(3)
SMALL_M_FUNCTION(4)
SMALL_M_FUNCTION(5)
SMALL_M_FUNCTION(6)
SMALL_M_FUNCTION(7)
SMALL_M_FUNCTION(8)

PANEL_INLINE void widen_lines(bool plain, const struct tables *t, const struct zero *zero, const uint8_t *codes, size_t lines,
                              half_panel_row *wide) {
    for (const uint8_t *end = codes + lines * LINES_BYTES; codes != end; codes += LINES_BYTES, wide += FMA_LINE_K) {
        PANEL_UNROLL for (size_t j = 0; j < LINES / 2; j++) {
            const uint8_t *at = codes + j * QUANTISED_LINE;
            const struct line line = plain ? plain_open(at, t) : line_open(at, t);
            PANEL_UNROLL for (size_t k = 0; k < FMA_LINE_K; k++) {
                const __m512 value = plain ? plain_value(&line, k) : line_value(&line, t, &zero[j], k);
                _mm512_store_ps(&wide[k][j * LANES], value);
            }
        }
    }
}

#ifdef FMA_HAS_PLAIN
PANEL_INLINE void widen_scale(const struct fma_codes *c, const struct tables *t, const struct zero *zero, const uint8_t *codes,
                              size_t line, size_t lines, half_panel_row *wide) {
    for (size_t done = 0, now; done < lines; done += now) {
        bool plain;
        const size_t run = plain_run_length(c->panel, c->plain_shift, line + done, &plain);
        now = lines - done < run ? lines - done : run;
        if (plain) {
            widen_lines(true, t, zero, codes + done * LINES_BYTES, now, wide + done * FMA_LINE_K);
        } else {
            widen_lines(false, t, zero, codes + done * LINES_BYTES, now, wide + done * FMA_LINE_K);
        }
    }
}
#else
PANEL_INLINE void widen_scale(const struct fma_codes *c, const struct tables *t, const struct zero *zero, const uint8_t *codes,
                              size_t line, size_t lines, half_panel_row *wide) {
    (void)c, (void)line;
    widen_lines(false, t, zero, codes, lines, wide);
}
#endif

static void widen(const struct fma_codes *c, half_panel_row *wide) {
    const struct tables t = tables_load(c->format);
    const uint8_t *codes = c->codes;
    for (size_t s = 0, line = c->line, lines; s < c->scales; s++, codes += c->stride, line += lines, wide += lines * FMA_LINE_K) {
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

const struct fma_decoder FMA_DECODER = {
    .line_k = FMA_LINE_K,
    .row_factors = FMA_ROW_FACTORS,
    .multiply = {multiply_1, multiply_2, multiply_3, multiply_4, multiply_5, multiply_6, multiply_7, multiply_8},
    .multiply_amx_order = {multiply_amx_order_1, multiply_amx_order_2, multiply_amx_order_3, multiply_amx_order_4},
    .widen = widen,
};
