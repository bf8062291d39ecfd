// A listing in /api/status, on the status page and in /metrics; the view without a front.
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
#include "daemon/shard_view/shard_html.h"
#include "daemon/shard_view/shard_json.h"
#include "daemon/shard_view/shard_metrics.h"

static struct front_shard SHARDS[] = {
    {.shard = 0,
     .address = "local:0",
     .state = "ready",
     .reason = "added",
     .is_local = true,
     .is_live = true,
     .ready = 8,
     .bytes = 4 << 20,
     .bytes_max = 8 << 20,
     .heard_age_ns = -1},
    {.shard = 1,
     .address = "10.0.0.7:7421",
     .state = "draining",
     .reason = "drain_requested",
     .is_listed = true,
     .is_live = true,
     .is_draining = true,
     .ready = 5,
     .loading = 2,
     .failed = 1,
     .bytes = 3 << 20,
     .bytes_max = 64 << 20,
     .heard_age_ns = 12 * NS_PER_MS,
     .round_trip_ns = NS_PER_MS / 4,
     .false_alarms = 6,
     .connections = 3,
     .rows = 1000,
     .rows_per_second = 250,
     .bytes_sent = 77,
     .bytes_received = 88,
     .compute_ns = NS_PER_S / 2},
    {.shard = 4,
     .address = "a\"b\\:1",
     .state = "refused",
     .reason = "other_model",
     .message = "<b>no</b> & \xff",
     .heard_age_ns = -1},
};

static struct shard_listing listing(void) {
    return (struct shard_listing){
        .summary =
            {.slots = 17, .shards = 3, .live = 2, .experts = 16, .uncovered = 3, .below_copies = 7, .places = true, .stalls = 9},
        .count = 3,
        .shards = SHARDS};
}

// ---- JSON

static const json_t *item(const json_t *root, const char *list, size_t index) {
    return json_array_get(json_object_get(root, list), index);
}

static json_int_t number(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static void the_json_has_remote_and_local_shards_and_the_summary(void **state) {
    (void)state;
    struct shard_listing shards = listing();
    json_t *root = json_object();
    shard_json_add(&shards, root);
    assert_int_equal(json_array_size(json_object_get(root, "shards_remote")), 2);
    assert_int_equal(json_array_size(json_object_get(root, "shards_local")), 1);
    const json_t *s = item(root, "shards_remote", 0), *experts = json_object_get(s, "experts");
    assert_string_equal(json_string_value(json_object_get(s, "address")), "10.0.0.7:7421");
    assert_string_equal(json_string_value(json_object_get(s, "state")), "draining");
    assert_true(json_is_true(json_object_get(s, "draining")) && json_is_false(json_object_get(s, "drained")));
    assert_true(number(s, "shard") == 1 && number(experts, "ready") == 5 && number(experts, "loading") == 2);
    assert_true(number(s, "bytes_max") == 64 << 20 && number(s, "rows") == 1000 && number(s, "false_alarms") == 6);
    assert_true(json_real_value(json_object_get(s, "heard_age_s")) == 0.012);
    assert_true(json_real_value(json_object_get(s, "round_trip_s")) == 0.00025);
    assert_true(json_real_value(json_object_get(s, "rows_per_s")) == 250);
    assert_null(json_object_get(s, "message"));
    s = item(root, "shards_remote", 1);
    assert_true(json_is_null(json_object_get(s, "heard_age_s")) && json_is_null(json_object_get(s, "round_trip_s")));
    assert_string_equal(json_string_value(json_object_get(s, "message")), "<b>no</b> & ?");
    assert_int_equal(number(item(root, "shards_local", 0), "bytes"), 4 << 20);
    const json_t *summary = json_object_get(root, "shards_summary");
    assert_true(number(summary, "shards") == 3 && number(summary, "live") == 2 && number(summary, "experts") == 16);
    assert_true(number(summary, "uncovered") == 3 && number(summary, "below_copies") == 7 && number(summary, "stalls") == 9);
    json_decref(root);
}

// ---- text

struct text {
    FILE *file;
    char *bytes;
    size_t length;
};

static void open_text(struct text *text) {
    *text = (struct text){0};
    text->file = open_memstream(&text->bytes, &text->length);
}

static void assert_has(struct text *text, const char *part) {
    fflush(text->file);
    if (!strstr(text->bytes, part)) {
        print_error("%s\nis missing in\n%s\n", part, text->bytes);
        fail();
    }
}

static void assert_lacks(struct text *text, const char *part) {
    fflush(text->file);
    assert_null(strstr(text->bytes, part));
}

static void close_text(struct text *text) {
    fclose(text->file);
    free(text->bytes);
}

static void the_page_has_a_row_for_each_shard_and_escapes_what_peers_say(void **state) {
    (void)state;
    struct shard_listing shards = listing();
    struct text page;
    open_text(&page);
    shard_html_put(&shards, page.file);
    assert_has(&page, "2 of 3 shards take rows; <b>3 of 16 experts are on none of them");
    assert_has(&page, "<td>10.0.0.7:7421<td>draining<td>5 + 2<td>3 / 64 MiB<td>250<td>0.25 ms<td>12 ms<td>6");
    assert_has(&page, "<td>local:0<td>ready<td>8<td>4 / 8 MiB");
    assert_has(&page, "&lt;b&gt;no&lt;/b&gt; &amp; ");
    assert_has(&page, "7 experts are on fewer of them than --copies asks for. This front decides");
    shards.summary.uncovered = shards.summary.below_copies = 0;
    shards.summary.places = false;
    shard_html_put(&shards, page.file);
    assert_has(&page, "each expert is on at least one of them. This front does not place experts");
    close_text(&page);
}

static void the_metrics_name_each_shard_by_number_and_address(void **state) {
    (void)state;
    struct shard_listing shards = listing();
    struct exchange_remote_state exchange = {.links_lost = 2, .plans_repeated = 3, .errors = 4, .answers_late = 5};
    struct text page;
    open_text(&page);
    shard_metrics_put(&shards, &exchange, page.file);
    assert_has(&page, "# TYPE expertd_front_shard_up gauge\n");
    assert_has(&page, "expertd_front_shard_up{shard=\"1\",address=\"10.0.0.7:7421\"} 1\n");
    assert_has(&page, "expertd_front_shard_up{shard=\"4\",address=\"a\\\"b\\\\:1\"} 0\n");
    assert_has(&page, "expertd_front_shard_experts{shard=\"1\",address=\"10.0.0.7:7421\",state=\"loading\"} 2\n");
    assert_has(&page, "expertd_front_shard_memory_bytes{shard=\"0\",address=\"local:0\"} 4194304\n");
    assert_has(&page, "expertd_front_shard_round_trip_seconds{shard=\"1\",address=\"10.0.0.7:7421\"} 0.00025\n");
    assert_has(&page, "expertd_front_shard_heartbeat_age_seconds{shard=\"1\",address=\"10.0.0.7:7421\"} 0.012\n");
    assert_has(&page, "expertd_front_shard_compute_seconds_total{shard=\"1\",address=\"10.0.0.7:7421\"} 0.5\n");
    assert_has(&page, "expertd_front_shard_rows_total{shard=\"1\",address=\"10.0.0.7:7421\"} 1000\n");
    assert_lacks(&page, "expertd_front_shard_heartbeat_age_seconds{shard=\"4\"");
    assert_lacks(&page, "expertd_front_shard_rows_total{shard=\"0\"");
    assert_has(&page, "\nexpertd_front_experts_uncovered 3\n");
    assert_has(&page, "\nexpertd_front_experts_below_copies 7\n");
    assert_has(&page, "\nexpertd_front_stalls_total 9\n");
    assert_has(&page, "\nexpertd_front_plans_repeated_total 3\n");
    assert_has(&page, "\nexpertd_front_links_lost_total 2\n");
    assert_has(&page, "\nexpertd_front_answers_late_total 5\n");
    close_text(&page);
}

static void before_the_first_batch_the_exchange_is_left_out(void **state) {
    (void)state;
    struct shard_listing shards = listing();
    struct text page;
    open_text(&page);
    shard_metrics_put(&shards, NULL, page.file);
    assert_has(&page, "expertd_front_shards 3\n");
    assert_lacks(&page, "plans_repeated");
    close_text(&page);
}

static void without_a_front_the_view_is_loading(void **state) {
    (void)state;
    struct shard_view view;
    struct shard_listing shards;
    shard_view_init(&view);
    assert_int_equal(shard_view_list(&view, &shards).code, EXPERTD_ERR_LOADING);
    assert_null(shards.shards);
    assert_int_equal(shard_view_change(&view, "host:1", SHARD_ADD).code, EXPERTD_ERR_LOADING);
    shard_view_deinit(&view);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_json_has_remote_and_local_shards_and_the_summary),
        cmocka_unit_test(the_page_has_a_row_for_each_shard_and_escapes_what_peers_say),
        cmocka_unit_test(the_metrics_name_each_shard_by_number_and_address),
        cmocka_unit_test(before_the_first_batch_the_exchange_is_left_out),
        cmocka_unit_test(without_a_front_the_view_is_loading),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
