// Small m: the rows multiply the slices of a panel round-robin, a burst of each at a time, because memory delivers several streams
// to a thread faster than one. The lines of a burst are prefetched while the previous burst is multiplied. slices_body.h includes
// this if the microkernel defines SLICE_ROUND_ROBIN and
//   SLICE_SMALL_M_BURST_WORDS   words of a burst
//   slice_round_robin(rows)     whether m is small enough
//   slices_in_parallel(rows)    slices that a burst multiplies at once

// A burst: slices_in_parallel slices from `slice` on, SLICE_SMALL_M_BURST_WORDS words from `word` on.
struct small_m_burst {
    size_t panel, slice, word;
};

// Moves to the next burst. False at the end of the call; the burst is then the first one of the next call.
static bool next_burst(const struct slices *s, struct small_m_burst *burst) {
    burst->slice += slices_in_parallel(s->args->rows);
    if (burst->slice < SLICES) {
        return true;
    }
    burst->slice = 0;
    burst->word += SLICE_SMALL_M_BURST_WORDS;
    if (burst->word < s->end) {
        return true;
    }
    burst->word = s->begin;
    return ++burst->panel < s->args->count;
}

// The burst's first line; NULL: unknown.
static const char *burst_at(const struct slices *s, const struct small_m_burst *burst) {
    const struct macrokernel_args *args = s->args;
    const void *panel = burst->panel < args->count ? args->panels[burst->panel] : args->next ? args->next[0] : NULL;
    return panel ? slice_at(s, panel, burst->slice, burst->word) : NULL;
}

// Multiplies all rows by one burst's words. next: the lines to prefetch meanwhile, or NULL.
static void multiply_burst(const struct slices *s, const struct small_m_burst *burst, const char *next) {
    const struct macrokernel_args *args = s->args;
    const size_t left = s->end - burst->word, done = burst->word - s->begin, tiles = div_up(args->rows, SLICE_TILE);
    INVARIANT(tiles > 0);
    struct slice_pass pass = {.slice = burst_at(s, burst),
                              .words = left < SLICE_SMALL_M_BURST_WORDS ? left : SLICE_SMALL_M_BURST_WORDS,
                              .begins = burst->word == 0,
                              .slice_bytes = s->words * SLICE_VECS * SLICE_LINE,
                              .each = tiles == 1 ? next : NULL};
    pass.ahead.at = pass.ahead.until = (uintptr_t)next;
    pass.ahead.step = next ? SLICE_VECS * SLICE_LINE / tiles : 0;
    pass.ahead.end = UINTPTR_MAX;
    const char *x = s->x;
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = slice_tile_rows(args->rows - row);
        pass.x = x + done / SLICE_ROW_WORDS * rows * SLICE_ROW_LINE;
        pass.sums = args->sums + row * KERNEL_SUMS + burst->panel * EXPERTD_KERNEL_PANEL + burst->slice * SLICE_VECS * SLICE_VEC;
        SLICE_COPIES[rows - 1](&pass);
        x += rows * packed_rows_bytes(s->end - s->begin);
    }
}

// False: m is too large, and nothing has been computed. ahead: the rows that are interleaved next, to prefetch.
static bool multiply_round_robin(const struct slices *s, const struct prefetch_rows_ahead *ahead) {
    if (!slice_round_robin(s->args->rows)) {
        return false;
    }
    prefetch_rows_share(ahead, 0, 1);
    struct small_m_burst burst = {0, 0, s->begin}, next = burst;
    bool more;
    do {
        more = next_burst(s, &next);
        multiply_burst(s, &burst, burst_at(s, &next));
        burst = next;
    } while (more);
    return true;
}
