#include "shard/remote/remote_results.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { WHY_MAX = 512, PACE_DECAY = 16 };

struct rank_rows {
    uint64_t generation; // 0: the rank has no rows in the batch
    char *to;
    size_t rows, received;
    bool copying; // its next rows are being copied
    enum remote_failure failure;
};

// How a rank answers, over all batches.
struct rank_pace {
    bool owes;          // rows were sent to it, and nothing has come since
    int64_t since_ns;   // of the latest answer, or of the first rows that it owes
    int64_t asked_ns;   // of the latest batch with rows for it
    int64_t longest_ns; // between a batch or an answer and the next answer; decays
    int64_t stalled_ns; // since_ns of the latest silence that ended a batch
    unsigned stalls;    // such silences since it last answered all rows of a batch
};

struct remote_results {
    // Guards all fields below. Held for a few instructions, never while rows are copied, and with no other lock.
    pthread_mutex_t mutex;
    pthread_cond_t changed; // signalled when the batch is complete, when a rank fails, and at the end of the last copy after end()
    uint32_t ranks;
    bool active; // between begin and end
    struct remote_results_batch batch;
    uint32_t incomplete; // ranks whose rows are missing
    uint32_t copying;    // ranks whose rows are being copied
    bool failed;
    uint32_t failed_rank; // the first
    char why[WHY_MAX];    // its failure
    struct remote_results_counts counts;
    struct rank_pace *paces; // [ranks]
    struct rank_rows of_rank[];
};

FALLIBLE remote_results_create(uint32_t ranks, struct remote_results **out) {
    struct remote_results *results = *out = calloc(1, sizeof *results + ranks * sizeof *results->of_rank);
    struct rank_pace *paces = calloc((size_t)ranks + 1, sizeof *paces);
    if (!results || !paces) {
        free(results);
        free(paces);
        *out = NULL;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the answers of %" PRIu32 " shards", ranks);
    }
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&results->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    pthread_mutex_init(&results->mutex, NULL);
    results->ranks = ranks;
    results->paces = paces;
    return OK;
}

void remote_results_destroy(struct remote_results *results) {
    if (results) {
        pthread_cond_destroy(&results->changed);
        pthread_mutex_destroy(&results->mutex);
        free(results->paces);
        free(results);
    }
}

// ---- the compute thread

void remote_results_begin(struct remote_results *results, const struct remote_results_batch *batch) {
    pthread_mutex_lock(&results->mutex);
    INVARIANT(!results->active && batch->batch > results->batch.batch);
    results->active = true;
    results->failed = false;
    results->batch = *batch;
    results->incomplete = 0;
    memset(results->of_rank, 0, results->ranks * sizeof *results->of_rank);
    pthread_mutex_unlock(&results->mutex);
}

void remote_results_expect(struct remote_results *results, uint32_t rank, uint64_t generation, void *to, size_t rows) {
    pthread_mutex_lock(&results->mutex);
    INVARIANT(results->active && rank < results->ranks && rows > 0 && generation > 0);
    results->of_rank[rank] = (struct rank_rows){.generation = generation, .to = to, .rows = rows};
    results->incomplete++;
    struct rank_pace *pace = &results->paces[rank];
    pace->asked_ns = clock_now_ns();
    if (!pace->owes) {
        pace->owes = true;
        pace->since_ns = pace->asked_ns;
    }
    pthread_mutex_unlock(&results->mutex);
}

static bool is_incomplete(const struct rank_rows *r) {
    return r->generation > 0 && r->received < r->rows;
}

// Records the failure of a rank of the batch. The caller holds the mutex.
static void fail_rank(struct remote_results *results, uint32_t rank, enum remote_failure failure, const char *why) {
    results->of_rank[rank].failure = failure;
    if (!results->failed) {
        results->failed = true;
        results->failed_rank = rank;
        snprintf(results->why, sizeof results->why, "%s", why);
    }
    pthread_cond_broadcast(&results->changed);
}

// The rank has answered at last: rows of an earlier batch, if `late`. The caller holds the mutex.
static void note_answer(struct remote_results *results, uint32_t rank, bool late, bool still_owes) {
    struct rank_pace *pace = &results->paces[rank];
    int64_t now_ns = clock_now_ns(), begun_ns = late || pace->since_ns > pace->asked_ns ? pace->since_ns : pace->asked_ns;
    int64_t gap_ns = pace->owes ? now_ns - begun_ns : 0, decayed_ns = pace->longest_ns - pace->longest_ns / PACE_DECAY;
    pace->owes = still_owes;
    pace->since_ns = now_ns;
    pace->longest_ns = gap_ns > decayed_ns ? gap_ns : decayed_ns;
    pace->stalls = late || still_owes ? pace->stalls : 0;
}

int64_t remote_results_silence(struct remote_results *results, uint32_t rank, int64_t now_ns, int64_t *longest_ns) {
    pthread_mutex_lock(&results->mutex);
    const struct rank_pace *pace = &results->paces[rank];
    const struct rank_rows *r = &results->of_rank[rank];
    bool is_silent = pace->owes && is_incomplete(r) && !r->copying && r->failure == REMOTE_NO_FAILURE;
    int64_t silence_ns = is_silent ? now_ns - pace->since_ns : 0;
    *longest_ns = pace->longest_ns;
    pthread_mutex_unlock(&results->mutex);
    return silence_ns;
}

unsigned remote_results_stall(struct remote_results *results, uint32_t rank, const char *why) {
    pthread_mutex_lock(&results->mutex);
    const struct rank_rows *r = &results->of_rank[rank];
    bool is_silent = is_incomplete(r) && !r->copying && r->failure == REMOTE_NO_FAILURE;
    unsigned stalls = 0;
    if (is_silent) {
        fail_rank(results, rank, REMOTE_STALLED, why);
        struct rank_pace *pace = &results->paces[rank];
        pace->stalls += pace->stalled_ns != pace->since_ns;
        pace->stalled_ns = pace->since_ns;
        stalls = pace->stalls;
    }
    pthread_mutex_unlock(&results->mutex);
    return stalls;
}

void remote_results_fail(struct remote_results *results, uint32_t rank, const char *why) {
    pthread_mutex_lock(&results->mutex);
    INVARIANT(results->active && rank < results->ranks);
    fail_rank(results, rank, REMOTE_LOST, why);
    pthread_mutex_unlock(&results->mutex);
}

enum remote_outcome remote_results_wait(struct remote_results *results, int64_t until_ns) {
    struct timespec until = {.tv_sec = until_ns / NS_PER_S, .tv_nsec = until_ns % NS_PER_S};
    bool in_time = true;
    pthread_mutex_lock(&results->mutex);
    while (results->incomplete > 0 && !results->failed && in_time) {
        in_time = pthread_cond_timedwait(&results->changed, &results->mutex, &until) == 0;
    }
    enum remote_outcome outcome = results->failed ? REMOTE_FAILED : results->incomplete > 0 ? REMOTE_LATE : REMOTE_COMPLETE;
    pthread_mutex_unlock(&results->mutex);
    return outcome;
}

void remote_results_end(struct remote_results *results) {
    pthread_mutex_lock(&results->mutex);
    results->active = false;
    while (results->copying > 0) { // copies always end
        pthread_cond_wait(&results->changed, &results->mutex);
    }
    pthread_mutex_unlock(&results->mutex);
}

enum remote_failure remote_results_failure(struct remote_results *results, uint32_t rank) {
    pthread_mutex_lock(&results->mutex);
    const struct rank_rows *r = &results->of_rank[rank];
    enum remote_failure failure = r->failure != REMOTE_NO_FAILURE ? r->failure
                                  : is_incomplete(r)              ? REMOTE_UNANSWERED
                                                                  : REMOTE_NO_FAILURE;
    pthread_mutex_unlock(&results->mutex);
    return failure;
}

FALLIBLE remote_results_error(struct remote_results *results) {
    char why[WHY_MAX];
    pthread_mutex_lock(&results->mutex);
    INVARIANT(results->failed);
    uint32_t rank = results->failed_rank;
    memcpy(why, results->why, sizeof why);
    pthread_mutex_unlock(&results->mutex);
    FAIL(EXPERTD_ERR_SHARD_LOST, "shard %" PRIu32 ": %s", rank, why);
}

void remote_results_count(struct remote_results *results, struct remote_results_counts *out) {
    pthread_mutex_lock(&results->mutex);
    *out = results->counts;
    pthread_mutex_unlock(&results->mutex);
}

// ---- I/O threads

// True if the answer belongs to a batch that has ended, or whose rank has already failed. The caller holds the mutex.
static bool is_late(const struct remote_results *results, uint32_t rank, uint64_t batch) {
    uint64_t latest = results->batch.batch;
    if (batch != latest) {
        return batch < latest;
    }
    return results->of_rank[rank].failure != REMOTE_NO_FAILURE || (!results->active && is_incomplete(&results->of_rank[rank]));
}

// Describes what no correct peer sends, in `why`. False: the rows are the ones expected next. The caller holds the mutex.
static bool is_wrong(const struct remote_results *results, uint32_t rank, uint64_t generation, const struct remote_rows *rows,
                     char why[WHY_MAX]) {
    const struct rank_rows *r = &results->of_rank[rank];
    const struct remote_results_batch *batch = &results->batch;
    size_t bytes;
    if (rows->batch != batch->batch || r->generation != generation) {
        snprintf(why, WHY_MAX, "an answer to batch %" PRIu64 ", of which no rows were sent over this connection", rows->batch);
    } else if (rows->epoch != batch->epoch) {
        snprintf(why, WHY_MAX, "an answer with epoch %" PRIu64 " to batch %" PRIu64 " of epoch %" PRIu64, rows->epoch, rows->batch,
                 batch->epoch);
    } else if (rows->rows == 0 || rows->first_row != r->received || rows->rows > r->rows - r->received) {
        snprintf(why, WHY_MAX, "%zu rows from row %zu of batch %" PRIu64 ", of which %zu of %zu rows had arrived", rows->rows,
                 rows->first_row, rows->batch, r->received, r->rows);
    } else if (__builtin_mul_overflow(rows->rows, batch->row_bytes, &bytes) || bytes != rows->bytes) {
        snprintf(why, WHY_MAX, "%zu bytes for %zu rows of %zu bytes each", rows->bytes, rows->rows, batch->row_bytes);
    } else {
        return false;
    }
    return true;
}

static void copy_rows(const struct remote_rows *rows, const struct remote_results_batch *batch, char *to) {
    if (batch->row_bytes == batch->stride) {
        rows->copy(rows->context, to, rows->bytes);
        return;
    }
    for (size_t i = 0; i < rows->rows; i++) {
        rows->copy(rows->context, to + i * batch->stride, batch->row_bytes);
    }
}

// The rank's next rows have been copied. The caller holds the mutex.
static void add_rows(struct remote_results *results, struct rank_rows *r, const struct remote_rows *rows) {
    r->copying = false;
    r->received += rows->rows;
    results->copying--;
    results->incomplete -= r->received == r->rows;
    results->counts.bytes += rows->bytes;
    if (results->incomplete == 0 || (!results->active && results->copying == 0)) {
        pthread_cond_broadcast(&results->changed);
    }
}

// Is the rank's share of the batch under way, over this connection? The caller holds the mutex.
static bool is_awaited(const struct remote_results *results, uint32_t rank, uint64_t generation) {
    const struct rank_rows *r = &results->of_rank[rank];
    return results->active && r->generation == generation && is_incomplete(r) && r->failure == REMOTE_NO_FAILURE;
}

// Refuses the rows: the rank fails, so that the batch does not wait for the end of the connection. The caller holds the mutex.
static void refuse(struct remote_results *results, uint32_t rank, uint64_t generation, const char *why) {
    results->counts.refused++;
    if (is_awaited(results, rank, generation)) {
        fail_rank(results, rank, REMOTE_ANSWERED, why);
    }
}

FALLIBLE remote_results_deliver(struct remote_results *results, uint32_t rank, uint64_t generation,
                                const struct remote_rows *rows) {
    char why[WHY_MAX];
    struct rank_rows *r = &results->of_rank[rank];
    INVARIANT(rank < results->ranks);
    pthread_mutex_lock(&results->mutex);
    INVARIANT(!r->copying);
    bool late = is_late(results, rank, rows->batch), wrong = !late && is_wrong(results, rank, generation, rows, why);
    char *to = NULL;
    if (late) {
        results->counts.late++;
        note_answer(results, rank, true, is_awaited(results, rank, generation));
    } else if (wrong) {
        refuse(results, rank, generation, why);
    } else {
        to = r->to + r->received * results->batch.stride;
        r->copying = true;
        results->copying++;
    }
    struct remote_results_batch batch = results->batch; // end() waits for the copy, so the batch cannot change during it
    pthread_mutex_unlock(&results->mutex);
    if (wrong) {
        FAIL(EXPERTD_ERR_MALFORMED, "shard %" PRIu32 ": %s", rank, why);
    }
    if (!late) {
        copy_rows(rows, &batch, to);
        pthread_mutex_lock(&results->mutex);
        add_rows(results, r, rows);
        note_answer(results, rank, false, is_incomplete(r));
        pthread_mutex_unlock(&results->mutex);
    }
    return OK;
}

void remote_results_deliver_error(struct remote_results *results, uint32_t rank, uint64_t generation, uint64_t batch,
                                  const char *why) {
    INVARIANT(rank < results->ranks);
    pthread_mutex_lock(&results->mutex);
    note_answer(results, rank, false, false);
    if (batch == results->batch.batch && is_awaited(results, rank, generation)) {
        results->counts.errors++;
        fail_rank(results, rank, REMOTE_ANSWERED, why);
    }
    pthread_mutex_unlock(&results->mutex);
}

void remote_results_lose(struct remote_results *results, uint32_t rank, uint64_t generation, const char *why) {
    INVARIANT(rank < results->ranks);
    pthread_mutex_lock(&results->mutex);
    results->paces[rank].stalls = 0;
    results->paces[rank].owes = false; // rows that it owes over another connection are asked for again
    if (is_awaited(results, rank, generation)) {
        results->counts.links_lost++;
        fail_rank(results, rank, REMOTE_LOST, why);
    }
    pthread_mutex_unlock(&results->mutex);
}
