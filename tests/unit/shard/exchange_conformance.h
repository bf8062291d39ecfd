// What every exchange has to do, run against any engine: rows reach the rank that holds their expert and come back in the plan's
// order; a rank that fails costs one batch. The calls are those that layer_forward makes; a rank's work is played by the suite.
#ifndef EXPERTD_TESTS_UNIT_SHARD_EXCHANGE_CONFORMANCE_H
#define EXPERTD_TESTS_UNIT_SHARD_EXCHANGE_CONFORMANCE_H

#include "shard/exchange.h"

enum { CONFORMANCE_RANKS = 6, CONFORMANCE_FRONT = CONFORMANCE_RANKS };

enum conformance_fault { RANK_DIES, RANK_STOPS, RANK_IS_LATE };

// The engine under test, and how its memory is reached where that is not the test's own.
struct exchange_subject {
    err_t (*create)(const struct exchange_options *options, struct exchange **out); // destroyed by exchange_destroy
    void *(*front_memory)(size_t bytes);                                            // for hidden rows; NULL: malloc
    void (*front_free)(void *memory);
    // Of a rank, or CONFORMANCE_FRONT; what the rank was given before is done by then. NULL: it is the test's own.
    void (*write)(uint32_t rank, void *to, const void *from, size_t bytes);
    void (*read)(uint32_t rank, void *to, const void *from, size_t bytes);
    // The (after + 1)-th group of transfers from now on has it. NULL: ranks cannot fail by themselves.
    void (*plant)(enum conformance_fault fault, unsigned after);
};

void exchange_conforms_over_random_placements(
    const struct exchange_subject *subject); // counts, empty ranks, replicas, expanded rows
void exchange_conforms_with_one_hot_rank(const struct exchange_subject *subject);
void exchange_conforms_with_an_empty_batch(const struct exchange_subject *subject);
void exchange_refuses_an_old_epoch(const struct exchange_subject *subject);
// Each of them in the dispatch and in the collect: its batch is EXPERTD_ERR_SHARD_LOST, the next one is right on a new
// communicator.
void exchange_survives_a_rank_that_dies(const struct exchange_subject *subject);
void exchange_survives_a_rank_that_stops(const struct exchange_subject *subject);
void exchange_waits_for_a_rank_that_is_late(const struct exchange_subject *subject);

#endif
