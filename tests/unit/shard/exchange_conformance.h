// What every exchange has to do, run against any engine: rows reach the rank that holds their expert and come back in the plan's
// order. The calls are those that layer_forward makes; a rank's work is played by the suite.
#ifndef EXPERTD_TESTS_UNIT_SHARD_EXCHANGE_CONFORMANCE_H
#define EXPERTD_TESTS_UNIT_SHARD_EXCHANGE_CONFORMANCE_H

#include "shard/exchange.h"

// Makes the engine under test; destroyed by exchange_destroy.
typedef err_t exchange_factory(const struct exchange_options *options, struct exchange **out);

void exchange_conforms_over_random_placements(exchange_factory *create); // counts, empty ranks, replicas, expanded rows
void exchange_conforms_with_one_hot_rank(exchange_factory *create);
void exchange_conforms_with_an_empty_batch(exchange_factory *create);
void exchange_refuses_an_old_epoch(exchange_factory *create);

#endif
