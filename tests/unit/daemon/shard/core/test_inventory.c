// Tests how a holder's inventory message is grouped by layer and state.
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "daemon/shard/core/inventory.h"

static const uint32_t NUMBERS[] = {3, 4, 7}; // of the catalogue's layers
static struct inventory_scratch scratch;

static void entries_of_one_layer_and_state_are_one_list(void **state) {
    (void)state;
    const struct copy_report reports[] = {
        {{0, 1}, COPY_READY, 11},    {{0, 2}, COPY_READY, 12}, {{0, 5}, COPY_LOADING, 0}, {{0, 6}, COPY_READY, 16},
        {{2, 0}, COPY_RETIRING, 20}, {{2, 1}, COPY_NONE, 99},  {{2, 9}, COPY_FAILED, 0},
    };
    const struct holder_message message = {.kind = HOLDER_INVENTORY,
                                           .sequence = 8,
                                           .commands_seen = 2,
                                           .is_complete = true,
                                           .reports = reports,
                                           .count = sizeof reports / sizeof *reports};
    struct shard_inventory out;
    inventory_of(&message, NUMBERS, 1234, &scratch, &out);
    assert_int_equal(out.sequence, 8);
    assert_int_equal(out.commands_seen, 2);
    assert_true(out.complete);
    assert_int_equal(out.bytes_used, 1234);
    static const struct {
        uint32_t layer;
        enum shard_copy_state state;
        size_t count;
        bool digests;
    } WANTED[] = {{3, SHARD_COPY_READY, 2, true},    {3, SHARD_COPY_LOADING, 1, false}, {3, SHARD_COPY_READY, 1, true},
                  {7, SHARD_COPY_RETIRING, 1, true}, {7, SHARD_COPY_NONE, 1, false},    {7, SHARD_COPY_FAILED, 1, false}};
    assert_int_equal(out.count, sizeof WANTED / sizeof *WANTED);
    size_t report = 0;
    for (size_t i = 0; i < out.count; i++) {
        assert_int_equal(out.copies[i].layer, WANTED[i].layer);
        assert_int_equal(out.copies[i].state, WANTED[i].state);
        assert_int_equal(out.copies[i].count, WANTED[i].count);
        assert_int_equal(out.copies[i].digests != NULL, WANTED[i].digests);
        for (size_t e = 0; e < out.copies[i].count; e++, report++) {
            assert_int_equal(out.copies[i].experts[e], reports[report].id.expert);
            assert_true(!out.copies[i].digests || out.copies[i].digests[e] == reports[report].digest);
        }
    }
}

static void the_longest_message_fits_even_if_no_two_entries_are_alike(void **state) {
    (void)state;
    static struct copy_report reports[HOLDER_LIST_MAX];
    for (size_t i = 0; i < HOLDER_LIST_MAX; i++) {
        reports[i] = (struct copy_report){{1, (uint16_t)i}, i % 2 ? COPY_READY : COPY_LOADING, i};
    }
    const struct holder_message message = {.kind = HOLDER_INVENTORY, .reports = reports, .count = HOLDER_LIST_MAX};
    struct shard_inventory out;
    inventory_of(&message, NUMBERS, 0, &scratch, &out);
    assert_int_equal(out.count, HOLDER_LIST_MAX);
    struct shard_reply reply = {.kind = SHARD_INVENTORY, .inventory = out};
    struct proto_bytes bytes;
    assert_false(err_is(shard_encode_reply(&reply, &bytes)));
    assert_true(bytes.length < SHARD_CONTROL_MESSAGE_MAX);
    free(bytes.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(entries_of_one_layer_and_state_are_one_list),
        cmocka_unit_test(the_longest_message_fits_even_if_no_two_entries_are_alike),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
