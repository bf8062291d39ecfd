// The test suite that every exchange engine must pass: rows reach the rank that holds their expert and return in the plan's order;
// a rank that fails costs one batch. The suite makes the same calls as layer_forward and plays the ranks' work itself.
#ifndef EXPERTD_TESTS_UNIT_SHARD_EXCHANGE_CONFORMANCE_H
#define EXPERTD_TESTS_UNIT_SHARD_EXCHANGE_CONFORMANCE_H

#include "shard/exchange.h"

enum { CONFORMANCE_RANKS = 6, CONFORMANCE_FRONT = CONFORMANCE_RANKS };

enum conformance_fault { RANK_DIES, RANK_STOPS, RANK_IS_LATE };

// The engine under test, and how to access its memory if that is not host memory.
struct exchange_subject {
    err_t (*create)(const struct exchange_options *options, struct exchange **out); // destroyed by exchange_destroy
    void *(*front_memory)(size_t bytes);                                            // for hidden rows; NULL: malloc
    void (*front_free)(void *memory);
    // Access memory of a rank or of CONFORMANCE_FRONT, after all earlier work of the rank. NULL: host memory.
    void (*write)(uint32_t rank, void *to, const void *from, size_t bytes);
    void (*read)(uint32_t rank, void *to, const void *from, size_t bytes);
    // Plants the fault in the (after + 1)-th group of transfers from now on. NULL: ranks of this engine cannot fail.
    void (*plant)(enum conformance_fault fault, unsigned after);
};

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

#endif
