// Simulates admission, backlog and batcher under overload. The engine's batches take a base time plus a time per token, with noise.
// The results depend on the policies only, not on the machine.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "daemon/request/admission.h"
#include "daemon/request/backlog.h"
#include "daemon/request/batcher.h"

enum { LAYERS = 3, CONNECTIONS = 5, CALLS_MAX = 300000, PIECE = 512 };

struct sim_options {
    double calls_per_s, seconds;
    int64_t deadline_ns;
    double base_ns, token_ns, noise; // a batch takes (base + token × tokens) × (1 ± noise)
    uint32_t tokens_max;             // of a call: 1 to tokens_max
    double large_share;              // part of the calls that have 4096 tokens and no deadline
};

struct sim_call {
    struct batcher_entry entry; // first: the batcher returns it
    int64_t due_ns;
    size_t connection;
};

struct sim {
    struct sim_options options;
    struct admission admission;
    struct admission_share shares[CONNECTIONS];
    struct backlog backlog;
    struct batcher batcher;
    struct batcher_layer layers[LAYERS];
    struct batcher_piece pieces[BATCH_REQUESTS_MAX];
    size_t running; // pieces
    uint64_t running_tokens;
    bool idle;
    int64_t now_ns, started_ns, free_ns; // free_ns: when the running batch ends
    struct sim_call *calls;
    uint64_t random;
    size_t sent, refused, in_time, late;
};

static double chance(struct sim *s) { // xorshift64*, [0, 1)
    s->random ^= s->random >> 12;
    s->random ^= s->random << 25;
    s->random ^= s->random >> 27;
    return (double)(s->random * 0x2545f4914f6cdd1du >> 11) / (double)(1ull << 53);
}

static void arrive(struct sim *s) {
    struct sim_call *call = &s->calls[s->sent++];
    bool large = chance(s) < s->options.large_share;
    uint32_t tokens = large ? 4096 : 1 + (uint32_t)(chance(s) * s->options.tokens_max);
    *call = (struct sim_call){.due_ns = s->now_ns, .connection = (size_t)(chance(s) * CONNECTIONS)};
    call->entry = (struct batcher_entry){.layer = (size_t)(chance(s) * LAYERS), .tokens = tokens, .choices = 1};
    call->entry.deadline_ns = large ? CLOCK_NEVER : s->now_ns + s->options.deadline_ns;
    struct admission_demand demand = {.bytes = 1,
                                      .deadline_ns = call->entry.deadline_ns,
                                      .wait_ns = backlog_wait_ns(&s->backlog, tokens, call->entry.deadline_ns - s->now_ns)};
    if (err_is(admission_admit(&s->admission, &s->shares[call->connection], &demand, s->now_ns))) {
        s->refused++;
        return;
    }
    backlog_enter(&s->backlog, call->entry.layer, tokens);
    batcher_push(&s->batcher, &call->entry, s->now_ns);
}

static void end(struct sim *s, struct sim_call *call, bool computed) {
    backlog_leave(&s->backlog, call->entry.layer, call->entry.tokens);
    admission_release(&s->admission, &s->shares[call->connection], 1);
    backlog_observe(&s->backlog, call->entry.tokens, s->now_ns - call->due_ns, call->entry.deadline_ns - call->due_ns);
    bool in_time = computed && s->now_ns <= call->entry.deadline_ns;
    s->in_time += in_time && call->entry.deadline_ns != CLOCK_NEVER;
    s->late += !in_time;
}

static void end_batch(struct sim *s) {
    backlog_batch(&s->backlog, s->running_tokens, s->now_ns - s->started_ns, s->idle);
    for (size_t i = 0; i < s->running; i++) {
        struct sim_call *call = (struct sim_call *)s->pieces[i].entry;
        if (!call->entry.queued) {
            end(s, call, true);
        }
    }
    s->running = 0;
    s->idle = false;
}

// Like the worker: requests past their deadline are not computed.
static void drop_expired(struct sim *s) {
    size_t left = 0;
    for (size_t i = 0; i < s->running; i++) {
        if (s->pieces[i].entry->deadline_ns > s->now_ns) {
            s->pieces[left++] = s->pieces[i];
            continue;
        }
        batcher_remove(&s->batcher, s->pieces[i].entry);
        end(s, (struct sim_call *)s->pieces[i].entry, false);
    }
    s->running = left;
}

static void start_batch(struct sim *s) {
    int64_t again_ns;
    while (s->running == 0 && (s->running = batcher_next(&s->batcher, s->now_ns, s->pieces, &again_ns)) > 0) {
        drop_expired(s);
    }
    s->idle |= s->running == 0;
    s->running_tokens = 0;
    for (size_t i = 0; i < s->running; i++) {
        s->running_tokens += s->pieces[i].tokens;
    }
    double noise = 1 + s->options.noise * (2 * chance(s) - 1);
    double spent_ns = (s->options.base_ns + s->options.token_ns * (double)s->running_tokens) * noise;
    s->started_ns = s->now_ns;
    s->free_ns = s->running ? s->now_ns + (int64_t)spent_ns : CLOCK_NEVER;
}

static void run(struct sim *s, const struct sim_options *options) {
    *s = (struct sim){.options = *options, .random = 88172645463325252u, .idle = true, .free_ns = CLOCK_NEVER};
    admission_init(&s->admission, &(struct admission_limits){.max_queue = 256, .max_queue_bytes = 1000, .share_percent = 50});
    s->admission.loading = false;
    backlog_init(&s->backlog,
                 &(struct backlog_limits){.batch_tokens = 4096, .batch_requests = BATCH_REQUESTS_MAX, .piece_tokens = PIECE});
    struct batcher_limits limits = {.max_tokens = 4096, .max_choices = 4096, .max_piece_tokens = PIECE};
    batcher_init(&s->batcher, &limits, s->layers, LAYERS);
    s->calls = calloc(CALLS_MAX, sizeof *s->calls);
    assert_non_null(s->calls);
    int64_t arrival_ns = 0, stop_ns = (int64_t)(options->seconds * NS_PER_S);
    while (arrival_ns < stop_ns || s->free_ns != CLOCK_NEVER) {
        bool arrives = arrival_ns < stop_ns && arrival_ns <= s->free_ns;
        s->now_ns = arrives ? arrival_ns : s->free_ns;
        if (arrives) {
            assert_true(s->sent < CALLS_MAX);
            arrive(s);
            arrival_ns += (int64_t)(-log(1 - chance(s)) / options->calls_per_s * NS_PER_S);
        } else {
            end_batch(s);
        }
        if (s->running == 0) {
            start_batch(s);
        }
    }
    assert_int_equal(s->admission.queued, 0); // every request was released
    assert_int_equal(s->backlog.small_tokens + s->backlog.large_tokens, 0);
    free(s->calls);
}

static double goodput(const struct sim *s) {
    return (double)s->in_time / s->options.seconds;
}

// The highest rate, in steps of 3 %, at which 99 % of the calls are answered within the deadline.
static double sustainable(struct sim *s, struct sim_options options) {
    double best = 0;
    options.calls_per_s = 20;
    for (int step = 0; step < 170; step++) { // up to 3000
        run(s, &options);
        if (s->in_time < s->sent * 99 / 100) {
            break;
        }
        best = goodput(s);
        options.calls_per_s *= 1.03;
    }
    return best;
}

struct engine {
    const char *name;
    double base_ns, token_ns, noise;
    uint32_t tokens_max;
    int64_t deadline_ms;
};

static const struct engine ENGINES[] = {
    {"bound by compute", 1e6, 2.5e5, 0.2, 32, 400},
    {"bound by reading weights", 2e7, 2e4, 0.2, 32, 400},
    {"noisy", 2e6, 2.5e5, 0.6, 32, 400},
    {"short deadlines", 1e6, 2.5e5, 0.2, 32, 60},
    {"calls of very different sizes", 1e6, 5e4, 0.2, 500, 400},
    {"more calls than a batch takes", 2e7, 2e4, 0.2, 1, 150},
};

static void goodput_stays_at_three_times_the_sustainable_rate(void **state) {
    (void)state;
    static struct sim s;
    for (size_t i = 0; i < sizeof ENGINES / sizeof ENGINES[0]; i++) {
        const struct engine *e = &ENGINES[i];
        struct sim_options options = {.seconds = 10,
                                      .deadline_ns = e->deadline_ms * NS_PER_MS,
                                      .base_ns = e->base_ns,
                                      .token_ns = e->token_ns,
                                      .noise = e->noise,
                                      .tokens_max = e->tokens_max};
        double base = sustainable(&s, options);
        options.seconds = 30; // a batch of the noisy engine takes a second: one late batch must not decide the result
        static const double LOADS[] = {1.5, 3, 6};
        for (size_t load = 0; load < sizeof LOADS / sizeof *LOADS; load++) {
            double times = LOADS[load];
            options.calls_per_s = times * base;
            run(&s, &options);
            print_message("%s: %.0f/s sustainable, %.1f times: %.2f of it, %.2f %% of the admitted late\n", e->name, base, times,
                          goodput(&s) / base, 100.0 * (double)s.late / (double)(s.late + s.in_time));
            assert_true(goodput(&s) >= 0.9 * base);
            assert_true(s.late * 100 <= s.late + s.in_time); // the p99 of the admitted requests is within the deadline
        }
    }
}

// A prefill takes 205 ms, one of its pieces 26 ms.
static void small_calls_meet_short_deadlines_among_prefills(void **state) {
    (void)state;
    static struct sim s;
    run(&s, &(struct sim_options){.calls_per_s = 50,
                                  .seconds = 60,
                                  .deadline_ns = 150 * (int64_t)NS_PER_MS,
                                  .base_ns = 1e6,
                                  .token_ns = 5e4,
                                  .noise = 0.2,
                                  .tokens_max = 16,
                                  .large_share = 0.04});
    print_message("%zu calls, %zu small ones in time, %zu refused, %zu late\n", s.sent, s.in_time, s.refused, s.late);
    assert_true((s.refused + s.late) * 50 <= s.sent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(goodput_stays_at_three_times_the_sustainable_rate),
        cmocka_unit_test(small_calls_meet_short_deadlines_among_prefills),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
