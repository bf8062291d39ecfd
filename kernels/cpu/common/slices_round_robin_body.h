// Few rows against the slices of a panel in turns, for slices_body.h where a tile's kernel takes turns (SLICE_TAKES_TURNS): it then
// defines
//   SLICE_SMALL_M_TURN           words of a slice's turn
//   slice_in_turns(rows)     are they so few?
//   slice_beside(rows)       slices that a turn takes side by side
//
// Memory gives a thread several streams faster than one. A turn's lines are fetched while the turn before is multiplied.

// A turn at slices from one on: words from `word` on.
struct small_m_turn {
    size_t panel, slice, word;
};

// False: that was the last one; the turn is then the next call's first.
static bool next_turn(const struct slices *s, struct small_m_turn *turn) {
    turn->slice += slice_beside(s->args->rows);
    if (turn->slice < SLICES) {
        return true;
    }
    turn->slice = 0;
    turn->word += SLICE_SMALL_M_TURN;
    if (turn->word < s->end) {
        return true;
    }
    turn->word = s->begin;
    return ++turn->panel < s->args->count;
}

// NULL: nobody knows.
static const char *turn_at(const struct slices *s, const struct small_m_turn *turn) {
    const struct macrokernel_args *args = s->args;
    const void *panel = turn->panel < args->count ? args->panels[turn->panel] : args->next ? args->next[0] : NULL;
    return panel ? slice_at(s, panel, turn->slice, turn->word) : NULL;
}

// All rows; next: the lines that are fetched meanwhile, or NULL.
static void take_turn(const struct slices *s, const struct small_m_turn *turn, const char *next) {
    const struct macrokernel_args *args = s->args;
    const size_t left = s->end - turn->word, done = turn->word - s->begin, tiles = div_up(args->rows, SLICE_TILE);
    INVARIANT(tiles > 0);
    struct slice_pass pass = {.slice = turn_at(s, turn),
                              .words = left < SLICE_SMALL_M_TURN ? left : SLICE_SMALL_M_TURN,
                              .begins = turn->word == 0,
                              .slice_bytes = s->words * SLICE_VECS * SLICE_LINE,
                              .each = tiles == 1 ? next : NULL};
    pass.ahead.at = pass.ahead.until = (uintptr_t)next;
    pass.ahead.step = next ? SLICE_VECS * SLICE_LINE / tiles : 0;
    pass.ahead.end = UINTPTR_MAX;
    const char *x = s->x;
    for (size_t row = 0, rows; row < args->rows; row += rows) {
        rows = slice_tile_rows(args->rows - row);
        pass.x = x + done / SLICE_ROW_WORDS * rows * SLICE_ROW_LINE;
        pass.sums = args->sums + row * KERNEL_SUMS + turn->panel * EXPERTD_KERNEL_PANEL + turn->slice * SLICE_VECS * SLICE_VEC;
        SLICE_COPIES[rows - 1](&pass);
        x += rows * packed_rows_bytes(s->end - s->begin);
    }
}

// False: there are too many rows, and nothing is done. ahead: rows that are laid next.
static bool multiply_in_turns(const struct slices *s, const struct rows_ahead *ahead) {
    if (!slice_in_turns(s->args->rows)) {
        return false;
    }
    prefetch_rows_share(ahead, 0, 1);
    struct small_m_turn turn = {0, 0, s->begin}, next = turn;
    bool more;
    do {
        more = next_turn(s, &next);
        take_turn(s, &turn, turn_at(s, &next));
        turn = next;
    } while (more);
    return true;
}
