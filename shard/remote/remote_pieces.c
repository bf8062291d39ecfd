#include "shard/remote/remote_pieces.h"

#include <string.h>

#include "base/arena.h"

// Places the arrays in `memory` and returns their size. With memory NULL it only computes the size.
static size_t place_arrays(struct remote_pieces *pieces, char *memory, const struct exchange_options *options) {
    size_t tokens = options->max_tokens, rows = options->max_rows;
    size_t bytes[] = {tokens * sizeof *pieces->seen,      tokens * sizeof *pieces->token_hidden,
                      rows * sizeof *pieces->hidden_rows, rows * sizeof *pieces->tokens,
                      rows * sizeof *pieces->groups,      options->ranks * sizeof *pieces->cursors};
    void **arrays[] = {(void **)&pieces->seen,   (void **)&pieces->token_hidden, (void **)&pieces->hidden_rows,
                       (void **)&pieces->tokens, (void **)&pieces->groups,       (void **)&pieces->cursors};
    size_t used = 0;
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        *arrays[i] = memory ? memory + used : NULL;
        used += arena_rounded(bytes[i]);
    }
    return used;
}

size_t remote_pieces_bytes(const struct exchange_options *options) {
    struct remote_pieces unused;
    return place_arrays(&unused, NULL, options);
}

void remote_pieces_init(struct remote_pieces *pieces, void *memory, const struct exchange_options *options, size_t piece_bytes) {
    *pieces = (struct remote_pieces){.piece_bytes = piece_bytes};
    place_arrays(pieces, memory, options);
}

// Expanded batches have one hidden row per plan row, so a rank's hidden rows are its rows, in order.
static void index_expanded(struct remote_pieces *pieces, const struct plan_rank *rank) {
    for (size_t i = 0; i < rank->rows; i++) {
        pieces->hidden_rows[rank->first_row + i] = (uint32_t)i;
    }
}

static void index_tokens(struct remote_pieces *pieces, const struct plan *plan, const struct plan_rank *rank) {
    size_t count = 0;
    pieces->stamp++;
    for (size_t row = rank->first_row; row < rank->first_row + rank->rows; row++) {
        uint32_t token = plan->row_token[row];
        if (pieces->seen[token] != pieces->stamp) {
            pieces->seen[token] = pieces->stamp;
            pieces->token_hidden[token] = (uint32_t)count;
            pieces->tokens[rank->first_row + count++] = token;
        }
        pieces->hidden_rows[row] = pieces->token_hidden[token];
    }
}

void remote_pieces_begin(struct remote_pieces *pieces, const struct exchange_batch *batch, uint32_t rank) {
    const struct placement *placement = batch->plan->placement;
    struct plan_rank share = plan_for_rank(batch->plan, rank);
    pieces->cursors[rank] =
        (struct remote_cursor){.slot = placement->rank_first[rank], .slot_end = placement->rank_first[rank + 1]};
    if (batch->expanded) {
        index_expanded(pieces, &share);
    } else {
        index_tokens(pieces, batch->plan, &share);
    }
}

// Takes the experts of the next piece into pieces->groups. Returns their number, and their rows in *rows.
static size_t take_groups(struct remote_pieces *pieces, const struct plan *plan, struct remote_cursor *at, size_t limit,
                          size_t *rows) {
    size_t count = 0;
    *rows = 0;
    for (; at->slot < at->slot_end; at->slot++, at->taken = 0) {
        size_t size = (size_t)plan->group_sizes[at->slot], parts = (size + limit - 1) / limit;
        size_t left = size - at->taken, part = parts > 1 ? (size + parts - 1) / parts : size;
        size_t take = left < part ? left : part;
        if (take == 0) {
            continue;
        }
        if (*rows + take > limit) {
            break;
        }
        pieces->groups[count++] = (struct remote_group){plan->placement->rank_experts[at->slot], (uint32_t)take};
        *rows += take;
        if (take < left) { // the rest of this expert begins the next piece
            at->taken += (uint32_t)take;
            break;
        }
    }
    return count;
}

// The number of the rank's hidden rows that its first `rows` rows read. Hidden rows are numbered in order of first use, so it is
// the greatest index + 1.
static size_t hidden_until(const struct remote_pieces *pieces, size_t first_row, size_t begin, size_t end, size_t before) {
    size_t count = before;
    for (size_t i = begin; i < end; i++) {
        size_t index = pieces->hidden_rows[first_row + i];
        count = index >= count ? index + 1 : count;
    }
    return count;
}

bool remote_pieces_next(struct remote_pieces *pieces, const struct exchange_batch *batch, uint32_t rank, size_t row_bytes,
                        struct remote_piece *out) {
    struct remote_cursor *at = &pieces->cursors[rank];
    size_t first = batch->plan->rank_rows[rank], rows, limit = pieces->piece_bytes / row_bytes;
    size_t groups = take_groups(pieces, batch->plan, at, limit > 0 ? limit : 1, &rows);
    if (groups == 0) {
        return false;
    }
    size_t hidden = hidden_until(pieces, first, at->row, at->row + rows, at->hidden);
    *out = (struct remote_piece){
        .batch = batch->batch,
        .epoch = batch->epoch,
        .layer = batch->layer,
        .row_bytes = row_bytes,
        .groups = pieces->groups,
        .num_groups = groups,
        .first_row = at->row,
        .rows = rows,
        .hidden_rows = pieces->hidden_rows + first + at->row,
        .first_hidden = at->hidden,
        .num_hidden = hidden - at->hidden,
        .hidden = batch->hidden,
        .hidden_stride = batch->hidden_stride,
        .tokens = batch->expanded ? NULL : pieces->tokens + first + at->hidden,
    };
    if (batch->expanded) {
        out->hidden += (first + at->hidden) * batch->hidden_stride;
    }
    at->row += rows;
    at->hidden = hidden;
    return true;
}

void remote_piece_gather(const struct remote_piece *piece, void *to) {
    char *row = to;
    for (size_t i = 0; i < piece->num_hidden; i++, row += piece->row_bytes) {
        memcpy(row, piece->hidden + (piece->tokens ? piece->tokens[i] : i) * piece->hidden_stride, piece->row_bytes);
    }
}
