// A front's shards as expertctl prints them.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/clock.h"
#include "client/expertctl/print/shard_table.h"

static struct proto_shard ITEMS[] = {
    {.shard = 0,
     .address = "local:0",
     .state = "ready",
     .reason = "added",
     .local = true,
     .live = true,
     .ready = 8,
     .bytes = 4 << 20,
     .bytes_max = 8 << 20,
     .heard_age_ns = -1,
     .rows_per_second = 3},
    {.shard = 1,
     .address = "10.0.0.7:7421",
     .state = "loading",
     .reason = "connected",
     .live = true,
     .ready = 5,
     .loading = 2,
     .failed = 1,
     .bytes = 3 << 20,
     .bytes_max = 64 << 20,
     .heard_age_ns = 12 * NS_PER_MS,
     .round_trip_ns = 250 * NS_PER_US,
     .false_alarms = 6,
     .rows = 1000,
     .rows_per_second = 250},
    {.shard = 2,
     .address = "b:1",
     .state = "dead",
     .reason = "silent_too_long",
     .message = "bell\a",
     .drained = true,
     .heard_age_ns = -1},
};

static char *print(const struct proto_shards *shards, bool has_local_rows) {
    char *text;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    assert_false(err_is(shard_table_print(shards, has_local_rows, out)));
    fclose(out);
    return text;
}

static void the_table_has_a_row_for_each_shard(void **state) {
    (void)state;
    struct proto_shards shards = {ITEMS, 3, {.shards = 3, .live = 2, .experts = 16, .uncovered = 1, .places = true}};
    char *text = print(&shards, false);
    assert_string_equal(
        text,
        "SHARD  ADDRESS        STATE    EXPERTS                  MEMORY              ROWS/S  ROUND TRIP    HEARD  FALSE ALARMS\n"
        "    0  local:0        ready    8                        4.0 MiB / 8.0 MiB        -           -        -             -\n"
        "    1  10.0.0.7:7421  loading  5 + 2 loading, 1 failed  3.0 MiB / 64.0 MiB     250      250 us  12.0 ms             6\n"
        "    2  b:1            drained  0                        -                        0           -        -             0\n"
        "b:1 is dead (silent_too_long): bell?\n"
        "2 of 3 shards take rows; 1 of 16 experts are on none of them: calls that need one fail\n");
    free(text);
}

static void experts_with_too_few_copies_are_counted(void **state) {
    (void)state;
    struct proto_shards shards = {ITEMS, 2, {.shards = 2, .live = 2, .experts = 16, .below_copies = 5, .places = true}};
    char *text = print(&shards, false);
    assert_non_null(
        strstr(text, "each of the 16 experts is on one of them\n5 of 16 experts are on fewer of them than --copies asks for\n"));
    free(text);
    json_t *summary = shard_summary_json(&shards.summary);
    assert_int_equal(json_integer_value(json_object_get(summary, "below_copies")), 5);
    json_decref(summary);
}

static void one_front_of_several_says_who_decides(void **state) {
    (void)state;
    struct proto_shards shards = {ITEMS, 2, {.shards = 2, .live = 2, .experts = 16}};
    char *text = print(&shards, true);
    assert_non_null(strstr(text, "8.0 MiB        3 "));
    assert_non_null(strstr(text, "each of the 16 experts is on one of them\nthis front does not decide"));
    free(text);
}

static void the_json_has_the_totals(void **state) {
    (void)state;
    json_t *s = shard_json(&ITEMS[1]);
    assert_string_equal(json_string_value(json_object_get(s, "address")), "10.0.0.7:7421");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(s, "experts"), "loading")), 2);
    assert_int_equal(json_integer_value(json_object_get(s, "rows")), 1000);
    assert_true(json_real_value(json_object_get(s, "heard_age_s")) == 0.012);
    assert_true(json_is_false(json_object_get(s, "local")) && json_is_true(json_object_get(s, "live")));
    json_decref(s);
    s = shard_json(&ITEMS[0]);
    assert_null(json_object_get(s, "rows"));
    assert_true(json_is_true(json_object_get(s, "local")));
    json_decref(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_has_a_row_for_each_shard),
        cmocka_unit_test(experts_with_too_few_copies_are_counted),
        cmocka_unit_test(one_front_of_several_says_who_decides),
        cmocka_unit_test(the_json_has_the_totals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
