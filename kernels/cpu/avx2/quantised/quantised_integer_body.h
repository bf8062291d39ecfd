// The products of quantised_integer.h for one decoder, written once. In addition to the definitions that quantised_ieee_body.h
// lists, the including file defines:
//   INTEGER_CODES, INTEGER_OFFSET      struct integer_codes and its offset
//   integer_nibbles(nibbles, tables)   nibbles to the bytes that are multiplied, none negative: E2M1 c + 12, INT4 unchanged
//   integer_zero_correction(zeros, sum)           the 32-bit correction for zero points, subtracted from 8 columns' sums; sum: of X
//
// Nothing saturates or wraps. Two added products are at most 2 * 24 * 128 in magnitude. A 16-bit sum takes 16 products of a block
// of 32 k, which for E2M1 could reach 16 * 24 * 128. But it starts at -12 times the sum of its 16 digits (INT4: -8 times). So after
// some of the products it is the sum of their c * d, minus 12 times the digits still to come: at most 16 * 12 * 128 = 24576.

// The exact lines of a block of one row, or of the same block of two rows.
struct integer_item {
    size_t rows, digits, lines;
    size_t row[INTEGER_ROWS]; // of the call
    const struct integer_block *block[INTEGER_ROWS];
    const struct integer_line *x[INTEGER_ROWS];
};

// The items of all rows of a scale group. count 0: FMAs only.
struct integer_plan {
    size_t count;
    struct integer_item items[INTEGER_ROWS];
};

PANEL_INLINE __m256i integer_word(const void *digits) {
    int32_t word;
    memcpy(&word, digits, sizeof word);
    return _mm256_set1_epi32(word);
}

// The empty asm keeps the addition here: gcc 12 would add products to each other first, and run out of registers. VPADDW itself in
// assembler saves gcc's register moves, but was .93 to .96 as fast.
PANEL_INLINE __m256i integer_add(__m256i sum, __m256i products) {
    sum = _mm256_add_epi16(sum, products);
    __asm__("" : "+x"(sum));
    return sum;
}

// The low nibbles (half 0) or the high nibbles (half 1) of a line of `vecs` vectors of columns.
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
        compiler_barrier();
    }
}

// Combines the digits' sums (two int16 a column, over even and odd k) to one int32 a column.
PANEL_INLINE __m256i integer_sum(size_t digits, __m256i sums[INTEGER_DIGITS][VECS], size_t j) {
    const __m256i one = _mm256_set1_epi16(1), first = _mm256_set1_epi16(256);
    __m256i low = _mm256_madd_epi16(sums[0][j], one);
    if (digits == 2) {
        return _mm256_add_epi32(low, _mm256_madd_epi16(sums[1][j], first));
    }
    __m256i high = _mm256_add_epi32(_mm256_madd_epi16(sums[1][j], one), _mm256_madd_epi16(sums[2][j], first));
    return _mm256_add_epi32(low, _mm256_slli_epi32(high, 8));
}

// A row's sums of products over a block, in units, as f32.
PANEL_INLINE void integer_values(const struct scale_group *group, const struct integer_block *block, size_t digits, size_t vecs,
                                 size_t column, __m256i sums[INTEGER_DIGITS][VECS], __m256 *values) {
    const uint8_t *zeros = group->zeros ? group->zeros + column : NULL;
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256i exact =
            _mm256_sub_epi32(integer_sum(digits, sums, j), integer_zero_correction(zeros ? zeros + j * LANES : NULL, block->sum));
        values[j] = _mm256_cvtepi32_ps(exact);
    }
}

// The end of a scale group of one block: stores the partial sums if FMAs follow, else closes the group.
PANEL_INLINE void integer_close(const struct small_m_args *a, const struct scale_group *group, const struct integer_item *item,
                                size_t r, size_t digits, size_t vecs, size_t column, __m256i sums[INTEGER_DIGITS][VECS]) {
    const __m256 unit = _mm256_set1_ps(item->block[r]->unit);
    const float *scale = group->scale + column;
    __m256 values[VECS];
    integer_values(group, item->block[r], digits, vecs, column, sums, values);
    if (item->lines < group->lines) {
        float *partials = a->partials[item->row[r]] + column;
        PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
            _mm256_store_ps(partials + j * LANES, _mm256_mul_ps(values[j], unit));
        }
        return;
    }
    float *total = a->sums[item->row[r]] + column;
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256 factor = _mm256_load_ps(scale + j * LANES), before = _mm256_load_ps(total + j * LANES);
        _mm256_store_ps(total + j * LANES, _mm256_fmadd_ps(_mm256_mul_ps(values[j], unit), factor, before));
    }
}

// The sums of products over an item's lines, for `vecs` vectors of columns.
PANEL_INLINE void integer_columns(const struct scale_group *group, const struct integer_item *item, size_t rows, size_t digits,
                                  size_t vecs, size_t column, const struct tables *t, __m256i sums[][INTEGER_DIGITS][VECS]) {
    const struct integer_line *x[INTEGER_ROWS];
    const uint8_t *codes = group->codes + column * (LINE_BYTES / LANES),
                  *ahead = group->ahead + column * (LINE_BYTES / LANES) * item->lines;
    const size_t lines = item->lines;
    PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
        x[r] = item->x[r];
        PANEL_UNROLL for (size_t d = 0; d < digits; d++) {
            __m256i start = INTEGER_OFFSET ? integer_word(item->block[r]->start[d]) : _mm256_setzero_si256();
            PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
                sums[r][d][j] = start;
            }
        }
    }
    for (size_t i = 0; i < lines; i++, codes += ROW_BYTES, ahead += vecs * LINE_BYTES) {
        small_m_prefetch(ahead, vecs * LINE_BYTES);
        integer_half(x, rows, digits, vecs, codes, i, 0, t, sums);
        integer_half(x, rows, digits, vecs, codes, i, 1, t, sums);
    }
}

PANEL_INLINE void integer_multiply(const struct small_m_args *a, const struct scale_group *group, const struct integer_item *item,
                                   size_t rows, size_t digits, size_t vecs, const struct tables *t) {
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += vecs * LANES) {
        __m256i sums[INTEGER_ROWS][INTEGER_DIGITS][VECS];
        integer_columns(group, item, rows, digits, vecs, column, t, sums);
        PANEL_UNROLL for (size_t r = 0; r < rows; r++) {
            integer_close(a, group, item, r, digits, vecs, column, sums[r]);
        }
    }
}

// Costs of a line of 8 columns, in instructions: two rows at once, one row of two and of three digits; the FMAs of a line after an
// item; FMAs only, for the first row and for the second.
enum { COST_PAIR = 37, COST_TWO = 21, COST_THREE = 30, COST_REST = 51, COST_FMA = 41, COST_FMA_ROW = 18 };

PANEL_INLINE size_t integer_cost(const struct integer_plan *plan, size_t lines) {
    size_t cost = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const struct integer_item *item = &plan->items[i];
        size_t each = item->rows == 2 ? COST_PAIR : item->digits == 2 ? COST_TWO : COST_THREE;
        cost += item->lines * each + (lines - item->lines) * COST_REST;
    }
    return cost;
}

// Plans scale group s, which is one block of `lines` lines. Two rows share the decoded codes if both need two digits and are exact
// to the end; a third digit would need more registers than there are.
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

// Multiplies a scale group as planned: the exact lines, then the others by FMA. False if nothing was planned.
PANEL_INLINE bool integer_multiply_group(const struct small_m_args *a, const struct scale_group *group,
                                         const struct integer_plan *plan, size_t rows, const struct tables *t) {
    if (rows > INTEGER_ROWS) {
        return false;
    }
    for (size_t i = 0; i < plan->count; i++) {
        const struct integer_item *item = &plan->items[i];
        if (rows == 2 && item->rows == 2) {
            integer_multiply(a, group, item, 2, 2, 2, t);
        } else if (item->digits == 2) {
            integer_multiply(a, group, item, 1, 2, 4, t);
        } else {
            integer_multiply(a, group, item, 1, 3, 2, t);
        }
        if (item->lines < group->lines) {
            struct scale_group rest = *group;
            rest.codes += item->lines * ROW_BYTES, rest.ahead += item->lines * ROW_BYTES;
            rest.k += item->lines * IEEE_LINE_K;
            rest.lines -= item->lines;
            rest.starts = item->lines == 0;
            small_m_panel(a, &rest, item->row[0], 1, t);
        }
    }
    return plan->count != 0;
}
