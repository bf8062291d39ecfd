// The products of quantised_whole.h for one way of decoding, written once. The including file defines, beside what
// quantised_unflushed_body.h wants:
//   WHOLE_CODES                          struct whole_codes; values less than an offset: what follows is less it
//   whole_offset(zeros)                  32-bit: what each column's codes have too much
//   struct whole_line, whole_open(codes, tables), whole_pair(line, pair)     8 columns' codes with it, none below 0: a pair of k of
//                                        each column, 16 bits each

enum { WHOLE_VECS = 2 };

PANEL_INLINE __m256i whole_factor(const int16_t *x) {
    int32_t pair;
    memcpy(&pair, x, sizeof pair);
    return _mm256_set1_epi32(pair);
}

// Two vectors of columns, so that the row's factors are read for both.
PANEL_INLINE void whole_two_lines(const uint8_t *codes, size_t parts, const struct tables *t, const int16_t *const *x, size_t k,
                                  __m256i sums[][WHOLE_VECS]) {
    struct whole_line a = whole_open(codes, t), b = whole_open(codes + LINE_BYTES, t);
    PANEL_UNROLL for (size_t pair = 0; pair < UNFLUSHED_LINE_K / 2; pair++) {
        __m256i pair_a = whole_pair(&a, pair), pair_b = whole_pair(&b, pair);
        PANEL_UNROLL for (size_t part = 0; part < parts; part++) {
            __m256i factor = whole_factor(x[part] + k + 2 * pair);
            sums[part][0] = _mm256_add_epi32(sums[part][0], _mm256_madd_epi16(pair_a, factor));
            sums[part][1] = _mm256_add_epi32(sums[part][1], _mm256_madd_epi16(pair_b, factor));
        }
    }
}

// One scale along WHOLE_VECS vectors of columns: sum = fma(partial, scale, sum), the partial exact.
PANEL_INLINE void whole_multiply(const struct few_args *a, struct place *p, size_t parts, size_t column, const struct tables *t,
                                 const struct whole_scale *w, const int16_t *const *x) {
    __m256i sums[WHOLE_PARTS][WHOLE_VECS];
    const uint8_t *codes = p->codes + column * (LINE_BYTES / LANES);
    uintptr_t ahead = p->ahead;
    PANEL_UNROLL for (size_t j = 0; j < WHOLE_VECS; j++) {
        __m256i offset = whole_offset(p->zeros ? p->zeros + column + j * LANES : NULL);
        sums[0][j] = _mm256_setzero_si256();
        sums[parts - 1][j] = _mm256_mullo_epi32(offset, _mm256_set1_epi32(-w->sum));
    }
    for (size_t i = 0; i < p->lines; i++, codes += ROW_BYTES, ahead += WHOLE_VECS * LINE_BYTES) {
        _mm_prefetch((const char *)ahead, _MM_HINT_T0);
        whole_two_lines(codes, parts, t, x, i * UNFLUSHED_LINE_K, sums);
        few_forget();
    }
    p->ahead = ahead;
    PANEL_UNROLL for (size_t j = 0; j < WHOLE_VECS; j++) {
        float *sum = &a->sums[0][column + j * LANES];
        __m256i whole = sums[0][j];
        if (parts == 2) {
            whole = _mm256_add_epi32(_mm256_slli_epi32(whole, WHOLE_LOW_BITS), sums[1][j]);
        }
        __m256 partial = _mm256_mul_ps(_mm256_cvtepi32_ps(whole), _mm256_set1_ps(w->unit));
        __m256 scale = _mm256_load_ps(p->scale + column + j * LANES);
        _mm256_store_ps(sum, _mm256_fmadd_ps(partial, scale, _mm256_load_ps(sum)));
    }
}

PANEL_INLINE void whole_panel(const struct few_args *a, struct place *p, size_t parts, const struct tables *t, size_t s) {
    const int16_t *x[WHOLE_PARTS] = {a->whole->x[0] + s * a->scale_k, a->whole->x[1] + s * a->scale_k};
    PANEL_UNROLL for (size_t column = 0; column < KERNEL_PANEL; column += WHOLE_VECS * LANES) {
        whole_multiply(a, p, parts, column, t, &a->whole->scales[s], x);
    }
}

// One row's scale s, if its sums can be taken so.
PANEL_INLINE bool whole_taken(const struct few_args *a, struct place *p, size_t s, const struct tables *t) {
    unsigned parts = a->whole ? a->whole->scales[s].parts : 0;
    if (parts == 1) {
        whole_panel(a, p, 1, t, s);
    } else if (parts == 2) {
        whole_panel(a, p, 2, t, s);
    }
    return parts != 0;
}
