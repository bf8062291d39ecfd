// The input of expertctl bench: its flags, traces and pool.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/expertctl/bench/load/bench_trace.h"
#include "client/expertctl/bench/run/bench_region.h"
#include "client/expertctl/options.h"
#include "client/expertctl/print/bench_values.h"

enum { WORDS_MAX = 60 };

static err_t parse(struct ctl_options *out, const char *line) {
    static char text[1024]; // options point into it
    char *argv[WORDS_MAX] = {"expertctl"};
    int argc = 1;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word && argc < WORDS_MAX; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    return ctl_options_parse(argc, argv, out);
}

static void flags_of_bench_are_read_in_any_order(void **state) {
    (void)state;
    struct ctl_options o;
    err_t e = parse(&o, "--rate 1.5k bench --arrivals constant --duration 2s --warmup 0 --tokens uniform:1-8 --routing=zipf:1.1 "
                        "--layers 1,3-5 --stream --connections 4 --processes 2 --max-inflight 100 --seed 7 --check sample=10 "
                        "--pool 64 --lag-limit 20% --quiet --csv c --save s --dtype f8_e4m3 --region --timeout 2 --json");
    assert_false(err_is(e));
    assert_int_equal(o.command, COMMAND_BENCH);
    assert_true(o.bench.rate == 1500 && bench_open_loop(&o.bench));
    assert_int_equal(o.bench.arrivals, ARRIVALS_CONSTANT);
    assert_int_equal(o.bench.duration_ns, INT64_C(2000000000));
    assert_int_equal(o.bench.warmup_ns, 0);
    assert_int_equal(o.bench.tokens.high, 8);
    assert_int_equal(o.bench.routing.kind, ROUTING_ZIPF);
    assert_string_equal(o.bench.layers, "1,3-5");
    assert_int_equal(o.bench.connections, 4);
    assert_int_equal(o.bench.check_every, 10);
    assert_true(o.bench.lag_share == 0.2);
    assert_int_equal(o.output_dtype, EXPERTD_DTYPE_F8_E4M3);
    assert_int_equal(o.timeout_us, 2000000);
    assert_true(o.json && o.bench.stream && o.bench.region && o.bench.quiet);
}

static void bench_without_flags_keeps_one_call_in_flight(void **state) {
    (void)state;
    struct ctl_options o;
    assert_false(err_is(parse(&o, "bench")));
    assert_int_equal(o.bench.concurrency, 1);
    assert_int_equal(o.bench.connections, 1);
    assert_int_equal(o.bench.check_every, 1);
    assert_false(bench_open_loop(&o.bench));
    assert_false(err_is(parse(&o, "bench --find-max --slo p99=20ms")));
    assert_true(bench_open_loop(&o.bench));
    assert_false(err_is(parse(&o, "bench --compare a b --tolerance 3%")));
    assert_string_equal(o.bench.compare[0], "a");
    assert_string_equal(o.bench.compare[1], "b");
    assert_true(o.bench.tolerance == 0.03);
}

static void a_warm_up_may_be_none(void **state) {
    (void)state;
    static const char *const NONE[] = {"0", "0s", "0ms", "0.0us", "0h"}, *const BAD[] = {"-0", "0x", "0.1us", "25h", ""};
    int64_t ns = -1;
    for (size_t i = 0; i < sizeof NONE / sizeof *NONE; i++) {
        assert_false(err_is(value_pause_ns(NONE[i], &ns)));
        assert_int_equal(ns, 0);
    }
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        assert_int_equal(value_pause_ns(BAD[i], &ns).code, EXPERTD_ERR_USAGE);
    }
    assert_false(err_is(value_pause_ns("20ms", &ns)));
    assert_int_equal(ns, 20000000);
    struct ctl_options o;
    assert_false(err_is(parse(&o, "bench --warmup 0ms")));
    assert_int_equal(o.bench.warmup_ns, 0);
}

static void bench_lines_that_contradict_themselves_are_refused(void **state) {
    (void)state;
    static const char *const BAD[][2] = {
        {"bench --rate 5 --concurrency 2", "a load is one of them"},
        {"bench --find-max", "--slo p99=20ms is missing"},
        {"bench --slo p99=20ms", "--find-max is missing"},
        {"bench --find-max --slo p99=20ms --concurrency 3", "searches a rate"},
        {"bench --trace f --tokens 3", "--trace has its own layers"},
        {"bench --processes 4 --concurrency 2", "4 processes share"},
        {"bench --processes 2 --connections 1 --rate 5", "2 processes share 1 connections"},
        {"bench --pool 4 --routing hot:3", "--pool 4"},
        {"bench --compare a", "--compare"},
        {"bench --compare=a", "two words"},
        {"bench --dtype i8", "f8_e4m3 or f8_e5m2"},
        {"bench --layers 0 --layers 1", "--layers is given twice"},
        {"bench --stream --stream", "--stream is given twice"},
        {"bench --compare a b --compare c d", "--compare is given twice"},
        {"bench --compare a b --rate 5 --find-max --save z", "leave --rate out"},
        {"bench --save z --compare a b", "leave --save out"},
        {"bench --compare a b --dtype f32", "leave --dtype out"},
        {"bench --rate 5 --tolerance 3%", "--tolerance is only for --compare"},
        {"bench --concurrency 4 --max-inflight 2", "--max-inflight is only for an open loop"},
        {"bench --arrivals constant", "--arrivals is only for an open loop"},
        {"bench --concurrency 4 --lag-limit 1%", "--lag-limit is only for an open loop"},
        {"bench --trace f --arrivals poisson", "--trace has its own send times"},
        {"bench --trace f --tokens 1", "--trace has its own layers"},
        {"bench --region=yes", "takes no value"},
        {"bench --stream=yes", "no value"},
        {"bench --check some", "sample=N"},
        {"bench --concurrency 0", "from 1"},
        {"bench --rtae 5", "did you mean --rate"},
        {"bench --hidden x.npy", "belongs to expertctl forward"},
        {"models --rate 5", "--rate belongs to expertctl bench"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        struct ctl_options o;
        assert_int_equal(parse(&o, BAD[i][0]).code, EXPERTD_ERR_USAGE);
        if (!strstr(expertd_err_message(), BAD[i][1])) {
            fail_msg("%s: '%s' does not mention '%s'", BAD[i][0], expertd_err_message(), BAD[i][1]);
        }
    }
}

// ---- traces

static void trace_lines_hold_time_layer_and_tokens(void **state) {
    (void)state;
    struct trace_call call;
    bool is_call;
    assert_false(err_is(trace_parse_line("0.25 3 128", &call, &is_call)));
    assert_true(is_call && call.at_ns == 250000000 && call.layer == 3 && call.tokens == 128);
    assert_false(err_is(trace_parse_line(" 1,2,0 # late", &call, &is_call)));
    assert_true(is_call && call.at_ns == 1000000000 && call.layer == 2 && call.tokens == 0);
    assert_false(err_is(trace_parse_line("  # only this", &call, &is_call)));
    assert_false(is_call);
    assert_false(err_is(trace_parse_line("", &call, &is_call)));
    assert_false(is_call);
    static const char *const BAD[] = {"1",       "1 2",   "1 2 3 4", "-1 2 3",  "1 2.5 3",
                                      "1 2 3.5", "1 x 3", "1e9 2 3", "nan 2 3", "1 2 3x"};
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        if (trace_parse_line(BAD[i], &call, &is_call).code != EXPERTD_ERR_CHECKPOINT) {
            fail_msg("'%s' is taken as a call", BAD[i]);
        }
    }
}

static err_t open_text(const char *text, size_t length, struct bench_trace *trace) {
    char path[] = "/tmp/bench-trace-XXXXXX";
    int file = mkstemp(path);
    assert_true(file >= 0);
    assert_int_equal(write(file, text, length), length);
    close(file);
    err_t e = trace_open(path, trace);
    unlink(path);
    return e;
}

static void traces_of_many_calls_are_read_and_bad_ones_name_the_line(void **state) {
    (void)state;
    static char text[5000 * 16];
    size_t used = 0;
    for (int i = 0; i < 5000; i++) {
        used += (size_t)snprintf(text + used, sizeof text - used, "%d.5 1 %d\n", i / 100, i);
    }
    struct bench_trace trace;
    assert_false(err_is(open_text(text, used, &trace)));
    assert_int_equal(trace.count, 5000);
    for (uint32_t i = 0; i < 5000; i++) {
        assert_int_equal(trace.calls[i].tokens, i);
    }
    trace_deinit(&trace);
    static const struct {
        const char *text;
        size_t length;
        const char *cause;
    } BAD[] = {
        {"2 1 1\n1 1 1\n", 12, "line 2: its time is before"},
        {"# nothing\n", 10, "no call in it"},
        {"1 1 1\n\n1 1\n", 11, "line 3"},
        {"1 1 1\0 1\n", 9, "line 1"},
    };
    for (size_t i = 0; i < sizeof BAD / sizeof *BAD; i++) {
        assert_int_equal(open_text(BAD[i].text, BAD[i].length, &trace).code, EXPERTD_ERR_CHECKPOINT);
        if (!strstr(expertd_err_message(), BAD[i].cause)) {
            fail_msg("'%s' does not mention '%s'", expertd_err_message(), BAD[i].cause);
        }
        trace_deinit(&trace);
    }
    memset(text, '1', 400);
    assert_int_equal(open_text(text, 400, &trace).code, EXPERTD_ERR_CHECKPOINT);
    trace_deinit(&trace);
    assert_int_equal(trace_open("/nonexistent/trace", &trace).code, EXPERTD_ERR_IO);
}

// ---- windows of the pool

enum { ROWS = 10, WIDTH = 3, CHOICES = 2 };

struct small_pool {
    struct bench_pool pool;
    uint16_t hidden[ROWS][WIDTH], expected[2][ROWS][WIDTH];
    int32_t ids[ROWS][CHOICES];
    float weights[ROWS][CHOICES];
};

static void fill_small(struct small_pool *small) {
    *small = (struct small_pool){.pool = {.rows = ROWS,
                                          .hidden_size = WIDTH,
                                          .choices = CHOICES,
                                          .dtype = EXPERTD_DTYPE_BF16,
                                          .answer = EXPERTD_DTYPE_BF16,
                                          .row_bytes = WIDTH * sizeof(uint16_t),
                                          .answer_bytes = WIDTH * sizeof(uint16_t),
                                          .routed = true}};
    for (int row = 0; row < ROWS; row++) {
        for (int i = 0; i < WIDTH; i++) {
            small->hidden[row][i] = (uint16_t)(row * 16 + i);
            small->expected[0][row][i] = (uint16_t)(1000 + row);
            small->expected[1][row][i] = (uint16_t)(2000 + row);
        }
        small->ids[row][0] = row;
        small->weights[row][1] = (float)row;
    }
    small->pool.hidden = (uint8_t *)small->hidden;
    small->pool.expected = (uint8_t *)small->expected;
    small->pool.ids = small->ids[0];
    small->pool.weights = small->weights[0];
}

static void windows_wrap_around_their_group_with_their_routes(void **state) {
    (void)state;
    static struct calls_piece pieces[CALLS_PIECES_MAX];
    struct small_pool small;
    fill_small(&small);
    struct pool_window w = pool_group(&small.pool, 3, 1); // rows 3 to 5
    assert_int_equal(w.first, 3);
    assert_int_equal(w.count, 3);
    w.start = 2;
    w.tokens = 8; // 5, 3 4 5, 3 4 5, 3
    static const int ORDER[] = {5, 3, 4, 5, 3, 4, 5, 3};
    assert_int_equal(pool_pieces(&small.pool, &w, pieces), 4);
    int32_t ids[8][CHOICES];
    float weights[8][CHOICES];
    pool_routes(&small.pool, &w, ids[0], weights[0]);
    uint16_t sent[8][WIDTH];
    uint8_t *at = (uint8_t *)sent;
    for (int i = 0; i < 4; i++) {
        memcpy(at, pieces[i].data, pieces[i].bytes);
        at += pieces[i].bytes;
    }
    assert_ptr_equal(at, (uint8_t *)sent + sizeof sent);
    for (int i = 0; i < 8; i++) {
        assert_int_equal(sent[i][0], ORDER[i] * 16);
        assert_int_equal(ids[i][0], ORDER[i]);
        assert_true(weights[i][1] == (float)ORDER[i]);
    }
}

static void calls_carry_what_message_region_and_pieces_allow(void **state) {
    (void)state;
    struct small_pool small;
    fill_small(&small);
    struct bench_options o;
    bench_options_init(&o);
    struct bench_target target = {.max_tokens = 1000000, .max_message_bytes = UINT32_MAX};
    const uint32_t limits[][2] = {{1024, 0}, {1024 + 21, 0}, {1024 + 22, 1}, {1024 + 22 * 1000, 1000}}; // 3 x 2 + 2 x 8 a token
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        target.max_message_bytes = limits[i][0];
        o.tokens.high = limits[i][1];
        assert_int_equal(pool_max_tokens(&small.pool, &target, &o), limits[i][1]);
        assert_true(i == 0 || !err_is(pool_check(&small.pool, &target, &o)));
        o.tokens.high++;
        assert_int_equal(pool_check(&small.pool, &target, &o).code, EXPERTD_ERR_USAGE);
    }
    o.region = true; // tensors are not in the messages
    o.tokens.high = pool_max_tokens(&small.pool, &target, &o);
    assert_int_equal(o.tokens.high, (CALLS_PIECES_MAX - 1) * ROWS - 1);
    assert_false(err_is(pool_check(&small.pool, &target, &o)));
    o.tokens.high++;
    assert_int_equal(pool_check(&small.pool, &target, &o).code, EXPERTD_ERR_USAGE);
    for (uint32_t slots = 1; slots < 100; slots += 7) {
        target.max_region_bytes = slots * 5000;
        uint32_t most = region_max_tokens(&target, &small.pool, slots);
        assert_true(most > 0 && !err_is(region_check("unix:/x", &target, &small.pool, most, slots)));
        assert_int_equal(region_check("unix:/x", &target, &small.pool, most + 1, slots).code, EXPERTD_ERR_USAGE);
    }
    target.max_tokens = 5;
    assert_int_equal(pool_max_tokens(&small.pool, &target, &o), 5);
    assert_int_equal(region_max_tokens(&target, &small.pool, 1), 5);
}

static void one_flipped_bit_disagrees(void **state) {
    (void)state;
    struct small_pool small;
    fill_small(&small);
    struct pool_window w = pool_group(&small.pool, 1, 0);
    w.start = 8;
    w.tokens = 4; // 8 9 0 1
    uint16_t answer[4][WIDTH];
    static const int ORDER[] = {8, 9, 0, 1};
    for (int i = 0; i < 4 * WIDTH; i++) {
        answer[i / WIDTH][i % WIDTH] = (uint16_t)(2000 + ORDER[i / WIDTH]);
    }
    struct wire_tensor tensor = {
        .present = true,
        .view = {.dtype = EXPERTD_DTYPE_BF16, .rank = 2, .shape = {4, WIDTH}, .data = answer, .bytes = sizeof answer}};
    assert_true(pool_agrees(&small.pool, 1, &w, &tensor));
    assert_false(pool_agrees(&small.pool, 0, &w, &tensor)); // the answer of another layer
    for (int bit = 0; bit < 4 * WIDTH * 16; bit++) {
        answer[bit / 16 / WIDTH][bit / 16 % WIDTH] ^= (uint16_t)(1u << bit % 16);
        assert_false(pool_agrees(&small.pool, 1, &w, &tensor));
        answer[bit / 16 / WIDTH][bit / 16 % WIDTH] ^= (uint16_t)(1u << bit % 16);
    }
    tensor.view.shape[0] = 3;
    assert_false(pool_agrees(&small.pool, 1, &w, &tensor));
    tensor.view.shape[0] = 4;
    tensor.view.dtype = EXPERTD_DTYPE_F16;
    assert_false(pool_agrees(&small.pool, 1, &w, &tensor));
    tensor.view.dtype = EXPERTD_DTYPE_BF16;
    tensor.present = false;
    assert_false(pool_agrees(&small.pool, 1, &w, &tensor));
}

// ---- slots of a region

static void slots_hold_requests_and_answers_apart(void **state) {
    (void)state;
    enum { TOKENS = 4, SLOTS = 3 };
    static struct calls_piece pieces[CALLS_PIECES_MAX];
    struct small_pool small;
    fill_small(&small);
    struct bench_region region = {.region = {.id = 77}, .layout = region_layout_of(&small.pool, TOKENS)};
    const struct region_layout *l = &region.layout;
    assert_true(l->hidden < l->ids && l->ids < l->weights && l->weights < l->output && l->output < l->slot_bytes);
    assert_int_equal((l->ids | l->weights | l->output | l->slot_bytes) % CLIENT_REGION_ALIGN, 0);
    region.region.data = calloc(SLOTS, l->slot_bytes);
    assert_non_null(region.region.data);
    struct pool_window w = {.first = 0, .count = ROWS, .start = 9, .tokens = 2}; // 9 0
    int32_t ids[2][CHOICES] = {{1, 2}, {3, 4}};
    struct wire_request request = {
        .hidden = {.present = true, .view = {.rank = 2, .shape = {2, WIDTH}, .bytes = 2 * WIDTH * sizeof(uint16_t)}},
        .ids = {.present = true, .view = {.rank = 2, .shape = {2, CHOICES}, .data = ids, .bytes = sizeof ids}},
    };
    bench_region_fill(&region, 1, pieces, pool_pieces(&small.pool, &w, pieces), &small.pool, &request);
    uint8_t *slot = region.region.data + l->slot_bytes;
    assert_memory_equal(slot + l->hidden, small.hidden[9], sizeof small.hidden[9]);
    assert_memory_equal(slot + l->hidden + sizeof small.hidden[9], small.hidden[0], sizeof small.hidden[0]);
    assert_memory_equal(slot + l->ids, ids, sizeof ids);
    assert_true(request.hidden.has_extent && request.ids.has_extent && request.has_output && !request.weights.has_extent);
    assert_int_equal(request.hidden.extent.region, 77);
    assert_int_equal(request.output.offset, l->slot_bytes + l->output);
    memset(slot + l->output, 5, request.output.length);
    struct wire_tensor reply = {
        .present = true, .view = {.rank = 2, .shape = {2, WIDTH}}, .has_extent = true, .extent = request.output};
    struct wire_tensor answer = bench_region_answer(&region, 1, &reply, &small.pool);
    assert_true(answer.present);
    assert_ptr_equal(answer.view.data, slot + l->output);
    assert_false(bench_region_answer(&region, 2, &reply, &small.pool).present); // the extent of another slot
    reply.has_extent = false;
    assert_false(bench_region_answer(&region, 1, &reply, &small.pool).present);
    bench_region_fill(&region, 1, pieces, pool_pieces(&small.pool, &w, pieces), &small.pool, &request);
    assert_int_equal(slot[l->output], 0xff); // the previous answer was overwritten
    free(region.region.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_of_bench_are_read_in_any_order),
        cmocka_unit_test(bench_without_flags_keeps_one_call_in_flight),
        cmocka_unit_test(a_warm_up_may_be_none),
        cmocka_unit_test(bench_lines_that_contradict_themselves_are_refused),
        cmocka_unit_test(trace_lines_hold_time_layer_and_tokens),
        cmocka_unit_test(traces_of_many_calls_are_read_and_bad_ones_name_the_line),
        cmocka_unit_test(windows_wrap_around_their_group_with_their_routes),
        cmocka_unit_test(calls_carry_what_message_region_and_pieces_allow),
        cmocka_unit_test(one_flipped_bit_disagrees),
        cmocka_unit_test(slots_hold_requests_and_answers_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
