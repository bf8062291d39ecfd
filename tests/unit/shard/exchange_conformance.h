// The test suite that every exchange engine must pass: rows reach the rank that holds their expert and return in the plan's order;
// a rank that fails costs one batch. The suite makes the same calls as layer_forward and plays the ranks' work itself.
#ifndef EXPERTD_TESTS_UNIT_SHARD_EXCHANGE_CONFORMANCE_H
#define EXPERTD_TESTS_UNIT_SHARD_EXCHANGE_CONFORMANCE_H

#include "shard/exchange.h"

enum { CONFORMANCE_RANKS = 6, CONFORMANCE_FRONT = CONFORMANCE_RANKS };

enum conformance_fault {
    RANK_DIES,
    RANK_STOPS,
    RANK_IS_LATE,
    // of ranks that answer with messages
    RANK_CANNOT_BE_SENT, // its connection ends during dispatch
    RANK_DIES_BETWEEN,   // after a part of its answer
    RANK_RECONNECTS,     // its connection is replaced during the batch
    RANK_FAILS,          // it answers with an error
    RANK_WRONG_EPOCH,    // it answers with an old epoch
    RANK_WRONG_BATCH,    // it answers with the number of an old batch
    RANK_FUTURE_BATCH,   // or of one that it was not sent
    RANK_ANSWERS_TWICE,
    RANK_TOO_FEW_BYTES,
    RANK_TOO_MANY_BYTES,
    RANK_TOO_MANY_ROWS,
    RANK_OUT_OF_ORDER,
    RANK_FAULTS
};

// The engine under test, and how to access its memory if that is not host memory.
struct exchange_subject {
    err_t (*create)(const struct exchange_options *options, struct exchange **out); // destroyed by exchange_destroy
    void *(*front_memory)(size_t bytes);                                            // for hidden rows; NULL: malloc
    void (*front_free)(void *memory);
    // Access memory of a rank or of CONFORMANCE_FRONT, after all earlier work of the rank. NULL: host memory.
    void (*write)(uint32_t rank, void *to, const void *from, size_t bytes);
    void (*read)(uint32_t rank, void *to, const void *from, size_t bytes);
    // Plants the fault in the (after + 1)-th group of transfers from now on; with `restore`: in the (after + 1)-th message of the
    // last rank. NULL: ranks of this engine cannot fail.
    void (*plant)(enum conformance_fault fault, unsigned after);
    // Brings all ranks back. NULL: the engine does so by itself, and no batch is planned again (exchange_may_plan_again).
    void (*restore)(void);
    void (*destroyed)(void); // called after the exchange was destroyed; may be NULL
};

// The result of an expert for element x of a row: distinct for each expert and column, the same on every holder. For subjects whose
// ranks compute on threads of their own.
float conformance_answer(uint32_t expert, float x, uint32_t column);

void exchange_conforms_over_random_placements(
    const struct exchange_subject *subject); // counts, empty ranks, replicas, expanded rows
void exchange_conforms_with_one_hot_rank(const struct exchange_subject *subject);
void exchange_conforms_with_an_empty_batch(const struct exchange_subject *subject);
void exchange_refuses_an_old_epoch(const struct exchange_subject *subject);
// These plant the fault in the dispatch and in the collect: the batch fails with EXPERTD_ERR_SHARD_LOST, and the next one succeeds
// on a new communicator.
void exchange_survives_a_rank_that_dies(const struct exchange_subject *subject);
void exchange_survives_a_rank_that_stops(const struct exchange_subject *subject);
void exchange_waits_for_a_rank_that_is_late(const struct exchange_subject *subject);

// For subjects with `restore`. Each expert has two holders; whatever one rank does, at any message, the batch succeeds,
// planned again at most once.
void exchange_plans_again_without_a_rank_that_fails(const struct exchange_subject *subject, enum conformance_fault fault);
// Ranks fail at random, also several at a time and again while a batch is planned again: every batch either has the right results,
// or an expert without a live holder.
void exchange_gives_results_or_names_an_expert(const struct exchange_subject *subject);

#endif
