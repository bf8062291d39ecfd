// Receives the answers of remote ranks: I/O threads copy result rows to where the batch expects them, and the compute thread waits
// until all rows are there, or a rank has failed. This is the exchange's half of the interface with a transport (remote_links.h).
//
// Contract of the memory. Between remote_results_expect and remote_results_end, a rank's range of result rows belongs to the I/O
// threads, which write it inside remote_results_deliver only. remote_results_end waits for copies in progress, which take
// microseconds, and after it no I/O thread writes to the batch's memory: a late answer is recognised by its batch number and
// ignored. The compute thread reads the rows after remote_results_wait has returned REMOTE_COMPLETE.
//
// Each answer is checked before a byte of it is copied: batch, epoch, generation, the position and number of its rows, and its
// length. A rank must send the rows of its share in order, each once. What no correct peer sends is refused, and the rank fails.
#ifndef EXPERTD_SHARD_REMOTE_REMOTE_RESULTS_H
#define EXPERTD_SHARD_REMOTE_REMOTE_RESULTS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct remote_results;

// Ranks are numbered as in the plan: 0 to ranks - 1.
FALLIBLE remote_results_create(uint32_t ranks, struct remote_results **out);
void remote_results_destroy(struct remote_results *results); // NULL is legal; no other thread uses it any more

// ---- the compute thread

struct remote_results_batch {
    uint64_t batch, epoch; // `batch` is greater than that of every earlier batch
    size_t row_bytes;      // of an answered row
    size_t stride;         // bytes from row to row in memory
};
void remote_results_begin(struct remote_results *results, const struct remote_results_batch *batch);

// Expects `rows` > 0 rows of a rank, over the link's connection `generation`, into `to`. Called before the first piece is sent.
void remote_results_expect(struct remote_results *results, uint32_t rank, uint64_t generation, void *to, size_t rows);

enum remote_outcome {
    REMOTE_COMPLETE, // all expected rows have arrived
    REMOTE_FAILED,   // a rank has failed: remote_results_failure. Others may still be answering
    REMOTE_LATE,     // until_ns has passed
};
// Waits; returns at once where a rank has failed.
enum remote_outcome remote_results_wait(struct remote_results *results, int64_t until_ns);

// For how long a rank has answered nothing although it owes rows: of this batch, or of earlier ones that were ended without them.
// 0: it owes none, or its rows are being copied. *longest_ns: the longest time lately after which this rank did answer.
int64_t remote_results_silence(struct remote_results *results, uint32_t rank, int64_t now_ns, int64_t *longest_ns);
// Fails the batch because of such a rank, as REMOTE_STALLED. Returns the number of its silences that have failed batches since it
// last answered all rows of one; a silence of several batches counts once. 0: it has answered meanwhile, and nothing has failed.
unsigned remote_results_stall(struct remote_results *results, uint32_t rank, const char *why);

// Records that a rank's rows cannot be sent: as if its link were lost.
void remote_results_fail(struct remote_results *results, uint32_t rank, const char *why);

// Ends the batch: waits for copies in progress; later answers are ignored. Legal without a batch.
void remote_results_end(struct remote_results *results);

// The state of a rank in the current batch, or the last one.
enum remote_failure {
    REMOTE_NO_FAILURE, // complete, or without rows
    REMOTE_UNANSWERED, // rows are missing, but nothing has failed
    REMOTE_LOST,       // the connection has ended
    REMOTE_ANSWERED,   // the rank has answered with an error, or with something that was refused
    REMOTE_STALLED,    // the rank answers nothing, although its connection is up (remote_results_stall)
};
enum remote_failure remote_results_failure(struct remote_results *results, uint32_t rank);

// Fails with EXPERTD_ERR_SHARD_LOST, naming the first rank that failed in the current or last batch, and why.
FALLIBLE remote_results_error(struct remote_results *results);

// Numbers since creation. Any thread.
struct remote_results_counts {
    uint64_t links_lost; // connections that ended while a batch waited for their rows
    uint64_t errors;     // batches that a rank answered with an error
    uint64_t late;       // answers to batches that had ended
    uint64_t refused;    // answers that no correct peer sends
    uint64_t bytes;      // of result rows received
};
void remote_results_count(struct remote_results *results, struct remote_results_counts *out);

// ---- I/O threads. Deliveries for one rank are made one after another; those for different ranks, and the other calls, may run at
// the same time.

struct remote_rows {
    uint64_t batch, epoch;
    size_t first_row, rows; // position among the rank's rows of the batch
    size_t bytes;           // of the rows, as received
    // Copies the next bytes of the rows to `to`. Called for consecutive ranges, `bytes` in total.
    void (*copy)(void *context, void *to, size_t bytes);
    void *context;
};

// Takes one answer with rows. OK: its rows were copied, or it is late and was ignored. EXPERTD_ERR_MALFORMED: refused; the
// transport ends the connection and calls remote_results_lose. The message names the rank and what differs.
FALLIBLE remote_results_deliver(struct remote_results *results, uint32_t rank, uint64_t generation, const struct remote_rows *rows);

// The rank has answered that it cannot compute the batch. Ignored if the batch has ended. `why` is copied.
void remote_results_deliver_error(struct remote_results *results, uint32_t rank, uint64_t generation, uint64_t batch,
                                  const char *why);

// The connection has ended. Called once for each generation, after `generation` and `send` have stopped accepting it; what it
// delivers later is ignored or refused. May be called by a function of the links' table, on the compute thread. `why` is copied.
void remote_results_lose(struct remote_results *results, uint32_t rank, uint64_t generation, const char *why);

#endif
