#include "expert/rank/rank_batch.h"

#include <inttypes.h>
#include <stdlib.h>

#include "base/arena.h"

struct rank_batch {
    struct arena memory; // [max_rows] of up to row_bytes_max bytes, rounded up
    size_t max_rows, row_bytes_max;
    uint64_t number, epoch; // of the latest batch
    uint32_t layer;
    bool failed;
    size_t stride;
    size_t rows, hidden; // received so far
};

FALLIBLE rank_batch_create(size_t max_rows, size_t row_bytes_max, struct rank_batch **out) {
    size_t row = arena_rounded(row_bytes_max), bytes;
    *out = NULL;
    if (__builtin_mul_overflow(max_rows, row, &bytes)) {
        FAIL(EXPERTD_ERR_NOMEM, "%zu hidden rows of %zu bytes are more than an address space", max_rows, row);
    }
    struct rank_batch *batch = calloc(1, sizeof *batch);
    if (!batch) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a connection");
    }
    *batch = (struct rank_batch){.max_rows = max_rows, .row_bytes_max = row_bytes_max};
    err_t e = arena_init(&batch->memory, bytes);
    if (err_is(e)) {
        free(batch);
        return err_context(e, "%zu hidden rows of a front", max_rows);
    }
    *out = batch;
    return OK;
}

void rank_batch_destroy(struct rank_batch *batch) {
    if (batch) {
        arena_deinit(&batch->memory);
        free(batch);
    }
}

bool rank_batch_skips(const struct rank_batch *batch, uint64_t number) {
    return number < batch->number || (number == batch->number && batch->failed);
}

static void start(struct rank_batch *batch, const struct rank_piece *piece) {
    batch->number = piece->batch;
    batch->epoch = piece->epoch;
    batch->layer = piece->layer;
    batch->stride = arena_rounded(piece->row_bytes);
    batch->failed = false;
    batch->rows = batch->hidden = 0;
}

void rank_batch_fail(struct rank_batch *batch, uint64_t number) {
    if (number >= batch->number) {
        batch->number = number;
        batch->failed = true;
    }
}

static FALLIBLE check_position(const struct rank_batch *batch, const struct rank_piece *piece) {
    if (piece->layer != batch->layer || piece->epoch != batch->epoch) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "batch",
                   "batch %" PRIu64 " began with layer %" PRIu32 " and epoch %" PRIu64 ", and a later piece has layer %" PRIu32
                   " and epoch %" PRIu64,
                   piece->batch, batch->layer, batch->epoch, piece->layer, piece->epoch);
    }
    if (piece->first_row != batch->rows || piece->first_hidden != batch->hidden) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "first_row",
                   "a piece of batch %" PRIu64
                   " begins at row %zu with hidden row %zu, but %zu rows and %zu hidden rows have arrived",
                   piece->batch, piece->first_row, piece->first_hidden, batch->rows, batch->hidden);
    }
    if (piece->num_hidden > batch->max_rows - batch->hidden) {
        FAIL_FIELD(EXPERTD_ERR_TOO_LARGE, "hidden",
                   "batch %" PRIu64 " has more than %zu hidden rows: this shard's max_batch_tokens is smaller than the front's",
                   piece->batch, batch->max_rows);
    }
    return OK;
}

static FALLIBLE check_indices(const struct rank_batch *batch, const struct rank_piece *piece) {
    size_t hidden = batch->hidden + piece->num_hidden;
    for (size_t i = 0; i < piece->rows; i++) {
        if (piece->hidden_rows[i] >= hidden) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, "hidden_rows",
                       "row %zu of a piece reads hidden row %" PRIu32 ", but batch %" PRIu64 " has %zu so far", i,
                       piece->hidden_rows[i], piece->batch, hidden);
        }
    }
    return OK;
}

FALLIBLE rank_batch_take(struct rank_batch *batch, const struct rank_piece *piece) {
    INVARIANT(!rank_batch_skips(batch, piece->batch) && piece->row_bytes <= batch->row_bytes_max);
    if (piece->batch == 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "batch", "batch 0: batches are numbered from 1");
    }
    if (piece->batch > batch->number) {
        start(batch, piece);
    }
    TRY(check_position(batch, piece));
    TRY(check_indices(batch, piece));
    char *to = batch->memory.base + batch->hidden * batch->stride;
    if (batch->stride == piece->row_bytes) {
        piece->copy(piece->context, to, piece->num_hidden * piece->row_bytes);
    } else {
        for (size_t i = 0; i < piece->num_hidden; i++, to += batch->stride) {
            piece->copy(piece->context, to, piece->row_bytes);
        }
    }
    batch->rows += piece->rows;
    batch->hidden += piece->num_hidden;
    return OK;
}

const void *rank_batch_hidden(const struct rank_batch *batch, size_t *stride) {
    *stride = batch->stride;
    return batch->memory.base;
}
