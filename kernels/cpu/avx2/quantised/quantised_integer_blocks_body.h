// One row against scale groups of several integer blocks (quantised_integer.h): a part of quantised_integer_body.h, written once
// for all decoders.
//
// The partial sums after each block are stored, and compared with the limits only after the last block: a branch after each block
// would stall (normal rows: 1.5 times the speed of FMAs with such branches, 1.7 without). If a limit was reached, the panel
// continues by FMA after the last exact block.

enum { INTEGER_BLOCKS = INTEGER_SCALE_K / INTEGER_BLOCK_K };

// The state of one scale group.
struct integer_run {
    float none[EXPERTD_KERNEL_PANEL] __attribute__((aligned(32)));                     // +0
    float partials[INTEGER_BLOCKS][EXPERTD_KERNEL_PANEL] __attribute__((aligned(32))); // after each block
    __m256 most; // greatest magnitudes of the last block's partials
    __m256 over; // not 0: a limit was reached
};

// Adds a block's sums to the partials `before`, giving `after`, for columns from `column` on. Returns the maximum of `most` and of
// the new partials' magnitudes.
PANEL_INLINE __m256 integer_add_block(const struct scale_group *group, const struct integer_block *block, size_t digits,
                                      size_t vecs, size_t column, __m256i sums[INTEGER_DIGITS][VECS], const float *before,
                                      float *after, __m256 most) {
    const __m256 unit = _mm256_set1_ps(block->unit);
    __m256 values[VECS];
    integer_values(group, block, digits, vecs, column, sums, values);
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256 partial = _mm256_fmadd_ps(values[j], unit, _mm256_load_ps(before + column + j * LANES));
        _mm256_store_ps(after + column + j * LANES, partial);
        most = _mm256_max_ps(most, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), partial));
    }
    return most;
}

PANEL_INLINE void integer_block(const struct scale_group *scale, const struct integer_item *item, size_t digits, size_t vecs,
                                size_t index, struct integer_run *run, const struct tables *t) {
    const float *before = index > 0 ? run->partials[index - 1] : run->none;
    struct scale_group group = *scale;
    group.codes += index * INTEGER_BLOCK_LINES * ROW_BYTES, group.ahead += index * INTEGER_BLOCK_LINES * ROW_BYTES;
    __m256 most = _mm256_setzero_ps();
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += vecs * LANES) {
        __m256i sums[INTEGER_ROWS][INTEGER_DIGITS][VECS];
        integer_columns(&group, item, 1, digits, vecs, column, t, sums);
        most = integer_add_block(&group, item->block[0], digits, vecs, column, sums[0], before, run->partials[index], most);
    }
    __m256 limit = _mm256_set1_ps(item->block[0]->limit), greatest = _mm256_max_ps(most, run->most);
    run->over = _mm256_or_ps(run->over, _mm256_cmp_ps(greatest, limit, _CMP_NLT_UQ));
    run->most = most;
}

// The number of first blocks whose partials, before and after, are below their limits. One block is known to fail.
PANEL_INLINE size_t integer_exact(const struct integer_block *blocks, float (*partials)[EXPERTD_KERNEL_PANEL]) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    for (size_t done = 0;; done++) {
        __m256 limit = _mm256_set1_ps(blocks[done].limit), over = _mm256_setzero_ps();
        for (size_t c = 0; c < EXPERTD_KERNEL_PANEL; c += LANES) {
            __m256 after = _mm256_andnot_ps(sign, _mm256_load_ps(partials[done] + c));
            __m256 before = done > 0 ? _mm256_andnot_ps(sign, _mm256_load_ps(partials[done - 1] + c)) : after;
            over = _mm256_or_ps(over, _mm256_cmp_ps(_mm256_max_ps(after, before), limit, _CMP_NLT_UQ));
        }
        if (_mm256_movemask_ps(over)) {
            return done;
        }
    }
}

// The end of a scale group of which `lines` lines are summed: closes it, or continues by FMA.
PANEL_INLINE void integer_end(const struct small_m_args *a, const struct scale_group *group, const struct integer_block *blocks,
                              size_t lines, struct integer_run *run, const struct tables *t) {
    size_t done = (lines + INTEGER_BLOCK_LINES - 1) / INTEGER_BLOCK_LINES;
    if (_mm256_movemask_ps(run->over)) {
        done = integer_exact(blocks, run->partials);
        lines = done * INTEGER_BLOCK_LINES;
    }
    const float *last = done > 0 ? run->partials[done - 1] : run->none, *scale = group->scale;
    if (lines < group->lines) {
        struct scale_group rest = *group;
        rest.codes += lines * ROW_BYTES, rest.ahead += lines * ROW_BYTES;
        rest.k += lines * IEEE_LINE_K;
        rest.lines -= lines;
        rest.starts = lines == 0;
        memcpy(a->partials[0], last, EXPERTD_KERNEL_PANEL * sizeof *last);
        small_m_panel(a, &rest, 0, 1, t);
        return;
    }
    float *total = a->sums[0];
    PANEL_UNROLL for (size_t v = 0; v < EXPERTD_KERNEL_PANEL; v += LANES) {
        __m256 factor = _mm256_load_ps(scale + v), before = _mm256_load_ps(total + v);
        _mm256_store_ps(total + v, _mm256_fmadd_ps(_mm256_load_ps(last + v), factor, before));
    }
}

// One scale group of several blocks.
PANEL_INLINE void integer_scale(const struct small_m_args *a, const struct scale_group *group, const struct tables *t) {
    const struct integer_block *blocks = a->integer_blocks[0] + group->index * integer_blocks(a->scale_k);
    struct integer_run run;
    memset(&run.none, 0, sizeof run.none);
    run.most = run.over = _mm256_setzero_ps();
    small_m_prefetch_scales(a, group);
    size_t lines = 0;
    for (size_t index = 0; lines == index * INTEGER_BLOCK_LINES && lines < group->lines; index++) {
        const struct integer_line *x = a->integer_lines[0] + group->k / INTEGER_LINE_K + lines;
        const struct integer_item item = {1, blocks[index].digits, blocks[index].lines, {0}, {&blocks[index]}, {x}};
        lines += item.lines;
        if (item.lines > 0 && item.digits == 2) {
            integer_block(group, &item, 2, 4, index, &run, t);
        } else if (item.lines > 0) {
            integer_block(group, &item, INTEGER_DIGITS, 2, index, &run, t);
        }
    }
    integer_end(a, group, blocks, lines, &run, t);
}

// Not inlined: inlining it makes the kernel of groups of one block .95 to .98 as fast.
static __attribute__((noinline)) void multiply_blocks(const struct small_m_args *a) {
    const struct tables t = tables_load();
    const bool extras = small_m_has_extras(a);
    for (size_t s = 0; s < a->scales; s++) {
        const struct scale_group group = small_m_scale_group(a, s);
        integer_scale(a, &group, &t);
        if (extras) {
            small_m_finish(a, group.ahead, s, 1);
        }
    }
}

PANEL_INLINE void multiply_row(const struct small_m_args *a) {
    if (a->integer_blocks[0] && a->scale_k > INTEGER_BLOCK_K) {
        multiply_blocks(a);
    } else {
        small_m_multiply(a, 1);
    }
}
