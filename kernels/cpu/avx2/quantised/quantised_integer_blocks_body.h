// A scale of several blocks of whole numbers (quantised_integer.h), against one row: written once for each way of decoding, a part
// of quantised_integer_body.h.
//
// Block by block. All partial sums are kept, and that one of them reached a limit is only looked at behind the
// last block: a branch behind each would be waited for (1.5 times the speed of fmas with it, 1.7 without, normal rows). Then the
// panel goes on by fmas from where it was exact.

enum { INTEGER_BLOCKS = INTEGER_SCALE_K / INTEGER_BLOCK_K };

// A scale.
struct integer_run {
    float none[EXPERTD_KERNEL_PANEL] __attribute__((aligned(32)));                     // +0
    float partials[INTEGER_BLOCKS][EXPERTD_KERNEL_PANEL] __attribute__((aligned(32))); // after each block
    __m256 most;                                                                       // of their magnitudes, after the last block
    __m256 over;                                                                       // not 0: a limit was reached
};

// The partials after a block, along columns from `column` on, and the greatest of their magnitudes and `most`.
PANEL_INLINE __m256 integer_add_block(const struct place *p, const struct integer_block *block, size_t digits, size_t vecs,
                                      size_t column, __m256i sums[INTEGER_DIGITS][VECS], const float *before, float *after,
                                      __m256 most) {
    const __m256 unit = _mm256_set1_ps(block->unit);
    __m256 values[VECS];
    integer_values(p, block, digits, vecs, column, sums, values);
    PANEL_UNROLL for (size_t j = 0; j < vecs; j++) {
        __m256 partial = _mm256_fmadd_ps(values[j], unit, _mm256_load_ps(before + column + j * LANES));
        _mm256_store_ps(after + column + j * LANES, partial);
        most = _mm256_max_ps(most, _mm256_andnot_ps(_mm256_set1_ps(-0.0f), partial));
    }
    return most;
}

PANEL_INLINE void integer_block(const struct place *scale, const struct integer_item *w, size_t digits, size_t vecs, size_t index,
                                struct integer_run *run, const struct tables *t) {
    const float *before = index > 0 ? run->partials[index - 1] : run->none;
    struct place p = *scale;
    p.codes += index * INTEGER_BLOCK_LINES * ROW_BYTES, p.ahead += index * INTEGER_BLOCK_LINES * ROW_BYTES;
    __m256 most = _mm256_setzero_ps();
    for (size_t column = 0; column < EXPERTD_KERNEL_PANEL; column += vecs * LANES) {
        __m256i sums[INTEGER_ROWS][INTEGER_DIGITS][VECS];
        integer_columns(&p, w, 1, digits, vecs, column, t, sums);
        most = integer_add_block(&p, w->block[0], digits, vecs, column, sums[0], before, run->partials[index], most);
    }
    __m256 limit = _mm256_set1_ps(w->block[0]->limit), greatest = _mm256_max_ps(most, run->most);
    run->over = _mm256_or_ps(run->over, _mm256_cmp_ps(greatest, limit, _CMP_NLT_UQ));
    run->most = most;
}

// The blocks whose partials are below their limits, before and after: up to the first one that reached it.
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

// The end of a scale, `lines` lines of which are summed: it is closed, or goes on by fmas.
PANEL_INLINE void integer_end(const struct small_m_args *a, const struct place *p, const struct integer_block *blocks, size_t lines,
                              struct integer_run *run, const struct tables *t) {
    size_t done = (lines + INTEGER_BLOCK_LINES - 1) / INTEGER_BLOCK_LINES;
    if (_mm256_movemask_ps(run->over)) {
        done = integer_exact(blocks, run->partials);
        lines = done * INTEGER_BLOCK_LINES;
    }
    const float *last = done > 0 ? run->partials[done - 1] : run->none, *scale = p->scale;
    if (lines < p->lines) {
        struct place rest = *p;
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

// A scale of several blocks.
PANEL_INLINE void integer_scale(const struct small_m_args *a, const struct place *p, const struct tables *t) {
    const struct integer_block *blocks = a->integer_blocks[0] + p->index * integer_blocks(a->scale_k);
    struct integer_run run;
    memset(&run.none, 0, sizeof run.none);
    run.most = run.over = _mm256_setzero_ps();
    small_m_prefetch_scales(a, p);
    size_t lines = 0;
    for (size_t index = 0; lines == index * INTEGER_BLOCK_LINES && lines < p->lines; index++) {
        const struct integer_line *x = a->integer_lines[0] + p->k / INTEGER_LINE_K + lines;
        const struct integer_item w = {1, blocks[index].digits, blocks[index].lines, {0}, {&blocks[index]}, {x}};
        lines += w.lines;
        if (w.lines > 0 && w.digits == 2) {
            integer_block(p, &w, 2, 4, index, &run, t);
        } else if (w.lines > 0) {
            integer_block(p, &w, INTEGER_DIGITS, 2, index, &run, t);
        }
    }
    integer_end(a, p, blocks, lines, &run, t);
}

// Not inlined: the kernel of scales of one block is .95 to .98 as fast with this beside it.
static __attribute__((noinline)) void multiply_blocks(const struct small_m_args *a) {
    const struct tables t = tables_load();
    for (size_t s = 0; s < a->scales; s++) {
        const struct place p = small_m_place(a, s);
        integer_scale(a, &p, &t);
    }
}

PANEL_INLINE void multiply_row(const struct small_m_args *a) {
    if (a->integer_blocks[0] && a->scale_k > INTEGER_BLOCK_K) {
        multiply_blocks(a);
    } else {
        small_m_multiply(a, 1);
    }
}
