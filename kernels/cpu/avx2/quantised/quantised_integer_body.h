// The products of quantised_integer.h for one way of decoding, written once. The including file defines, beside what
// quantised_ieee_body.h wants:
//   INTEGER_CODES, INTEGER_OFFSET      struct integer_codes and its offset
//   integer_nibbles(nibbles, tables) bytes below 16 to the codes that are multiplied, none below 0: E2M1's c + 12, INT4 as it is
//   integer_less(zeros, sum)         32-bit: what 8 columns' sums are less besides, given the sum of X
//
// Nothing saturates or wraps. A pair of products is at most 2 * 24 * 128 in magnitude. Of a block of 32 k a 16-bit sum has 16
// products, which of E2M1 could come to 16 * 24 * 128; but the sum begins at -12 times its 16 digits (of INT4 -8 times), so that
// after some of them it is the sum of their c * d less 12 times the other d: at most 16 * 12 * 128 = 24576.

// One row's whole lines of a block, or those of two rows.
struct integer_item {
    size_t rows, digits, lines;
    size_t row[INTEGER_ROWS]; // of the call
    const struct integer_block *block[INTEGER_ROWS];
    const struct integer_line *x[INTEGER_ROWS];
};

// All rows' of a scale. None: fmas are better.
struct integer_plan {
    size_t count;
    struct integer_item items[INTEGER_ROWS];
};

PANEL_INLINE __m256i integer_word(const void *digits) {
    int32_t word;
    memcpy(&word, digits, sizeof word);
    return _mm256_set1_epi32(word);
}

// Added where it stands: gcc 12 would add products to each other first, and run out of registers. VPADDW itself in assembler saves
// the moves that gcc makes of it and was .93 to .96 of the speed.
PANEL_INLINE __m256i integer_add(__m256i sum, __m256i products) {
    sum = _mm256_add_epi16(sum, products);
    __asm__("" : "+x"(sum));
    return sum;
}

// The lower nibbles of a line of `vecs` vectors of columns, or the upper ones.
PANEL_INLINE void integer_half(const struct integer_line *const *x, size_t rows, size_t digits, size_t vecs, const uint8_t *codes,
                               size_t line, size_t half, const struct tables *t, __m256i sums[][INTEGER_DIGITS][VECS]) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i factor[INTEGER_ROWS][INTEGER_DIGITS];
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        PANEL_UNROLL for (size_t d = 0; d < digits; d++) {
            factor[r][d] = integer_word(x[r][line].digits[half][d]);
        }
    }
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256i words = _mm256_loadu_si256((const __m256i *)(codes + j * LINE_BYTES));
        __m256i code = integer_nibbles(_mm256_and_si256(half ? _mm256_srli_epi16(words, 4) : words, nibble), t);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            PANEL_UNROLL for (size_t d = 0; d < digits; d++) {
                sums[r][d][j] = integer_add(sums[r][d][j], _mm256_maddubs_epi16(code, factor[r][d]));
            }
        }
        small_m_forget();
    }
}

// The digits' sums, pairs of k of each column, to its whole number.
PANEL_INLINE __m256i integer_sum(size_t digits, __m256i sums[INTEGER_DIGITS][VECS], size_t j) {
    const __m256i one = _mm256_set1_epi16(1), first = _mm256_set1_epi16(256);
    __m256i low = _mm256_madd_epi16(sums[0][j], one);
    if (digits == 2) {
        return _mm256_add_epi32(low, _mm256_madd_epi16(sums[1][j], first));
    }
    __m256i high = _mm256_add_epi32(_mm256_madd_epi16(sums[1][j], one), _mm256_madd_epi16(sums[2][j], first));
    return _mm256_add_epi32(low, _mm256_slli_epi32(high, 8));
}

// A row's sums of a block along `vecs` vectors of columns, as partial[] f32.
PANEL_INLINE void integer_values(const struct place *p, const struct integer_block *block, size_t digits, size_t vecs,
                                 size_t column, __m256i sums[INTEGER_DIGITS][VECS], __m256 *values) {
    const uint8_t *zeros = p->zeros ? p->zeros + column : NULL;
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256i whole = _mm256_sub_epi32(integer_sum(digits, sums, j), integer_less(zeros ? zeros + j * LANES : NULL, block->sum));
        values[j] = _mm256_cvtepi32_ps(whole);
    }
}

// Of a scale that is one block: partials are left where it has more lines than these, else closed.
PANEL_INLINE void integer_close(const struct small_m_args *a, const struct place *p, const struct integer_item *w, size_t r,
                                size_t digits, size_t vecs, size_t column, __m256i sums[INTEGER_DIGITS][VECS]) {
    const __m256 unit = _mm256_set1_ps(w->block[r]->unit);
    const float *scale = p->scale + column;
    __m256 values[VECS];
    integer_values(p, w->block[r], digits, vecs, column, sums, values);
    if (w->lines < p->lines) {
        float *partials = a->partials[w->row[r]] + column;
        PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
            _mm256_store_ps(partials + j * LANES, _mm256_mul_ps(values[j], unit));
        }
        return;
    }
    float *total = a->sums[w->row[r]] + column;
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256 factor = _mm256_load_ps(scale + j * LANES), before = _mm256_load_ps(total + j * LANES);
        _mm256_store_ps(total + j * LANES, _mm256_fmadd_ps(_mm256_mul_ps(values[j], unit), factor, before));
    }
}

// The lines' sums of products along `vecs` vectors of columns.
PANEL_INLINE void integer_columns(const struct place *p, const struct integer_item *w, size_t rows, size_t digits, size_t vecs,
                                  size_t column, const struct tables *t, __m256i sums[][INTEGER_DIGITS][VECS]) {
    const struct integer_line *x[INTEGER_ROWS];
    const uint8_t *codes = p->codes + column * (LINE_BYTES / LANES), *ahead = p->ahead + column * (LINE_BYTES / LANES) * w->lines;
    const size_t lines = w->lines;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        x[r] = w->x[r];
        PANEL_UNROLL for (size_t d = 0; d < digits; d++) {
            __m256i less = INTEGER_OFFSET ? integer_word(w->block[r]->less[d]) : _mm256_setzero_si256();
            PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
                sums[r][d][j] = less;
            }
        }
    }
    for (size_t i = 0; i < lines; i++, codes += ROW_BYTES, ahead += vecs * LINE_BYTES) {
        small_m_prefetch(ahead, vecs * LINE_BYTES);
        integer_half(x, rows, digits, vecs, codes, i, 0, t, sums);
        integer_half(x, rows, digits, vecs, codes, i, 1, t, sums);
    }
}

PANEL_INLINE void integer_multiply(const struct small_m_args *a, const struct place *p, const struct integer_item *w, size_t rows,
                                   size_t digits, size_t vecs, const struct tables *t) {
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += vecs * LANES) {
        __m256i sums[INTEGER_ROWS][INTEGER_DIGITS][VECS];
        integer_columns(p, w, rows, digits, vecs, column, t, sums);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            integer_close(a, p, w, r, digits, vecs, column, sums[r]);
        }
    }
}

// What a line of 8 columns takes, in instructions' time: of items by the digits, of the fmas after them, and of fmas alone.
enum { COST_PAIR = 37, COST_TWO = 21, COST_THREE = 30, COST_REST = 51, COST_FMA = 41, COST_FMA_ROW = 18 };

PANEL_INLINE size_t integer_cost(const struct integer_plan *plan, size_t lines) {
    size_t cost = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const struct integer_item *w = &plan->items[i];
        size_t each = w->rows == 2 ? COST_PAIR : w->digits == 2 ? COST_TWO : COST_THREE;
        cost += w->lines * each + (lines - w->lines) * COST_REST;
    }
    return cost;
}

// Of scale s, of so many lines, one block. Two rows of two digits that are whole to the end share the codes; for a third digit
// there are no registers.
PANEL_INLINE void integer_plan_make(const struct small_m_args *a, size_t s, size_t k, size_t lines, size_t rows,
                                    struct integer_plan *plan) {
    plan->count = 0;
    if (rows > INTEGER_ROWS || !a->integer_blocks[0]) {
        return;
    }
    for (size_t r = 0; r < rows; r++) {
        const struct integer_block *block = &a->integer_blocks[r][s];
        plan->items[r] =
            (struct integer_item){1, block->digits, block->lines, {r}, {block}, {a->integer_lines[r] + k / INTEGER_LINE_K}};
    }
    plan->count = rows;
    struct integer_item *first = &plan->items[0], *second = &plan->items[rows - 1];
    if (rows == 2 && first->digits + second->digits == 4 && first->lines == lines && second->lines == lines) {
        first->rows = 2, first->row[1] = 1, first->block[1] = second->block[0], first->x[1] = second->x[0];
        plan->count = 1;
    } else if (rows == 2 && integer_cost(plan, lines) > lines * (COST_FMA + COST_FMA_ROW)) {
        plan->count = 0;
    }
}

// A scale of a panel: whole lines, then the others by fmas. False where nothing was planned.
PANEL_INLINE bool integer_taken(const struct small_m_args *a, const struct place *p, const struct integer_plan *plan, size_t rows,
                                const struct tables *t) {
    if (rows > INTEGER_ROWS) {
        return false;
    }
    for (size_t i = 0; i < plan->count; i++) {
        const struct integer_item *w = &plan->items[i];
        if (rows == 2 && w->rows == 2) {
            integer_multiply(a, p, w, 2, 2, 2, t);
        } else if (w->digits == 2) {
            integer_multiply(a, p, w, 1, 2, 4, t);
        } else {
            integer_multiply(a, p, w, 1, 3, 2, t);
        }
        if (w->lines < p->lines) {
            struct place rest = *p;
            rest.codes += w->lines * ROW_BYTES, rest.ahead += w->lines * ROW_BYTES;
            rest.k += w->lines * IEEE_LINE_K;
            rest.lines -= w->lines;
            rest.starts = w->lines == 0;
            small_m_panel(a, &rest, w->row[0], 1, t);
        }
    }
    return plan->count != 0;
}
