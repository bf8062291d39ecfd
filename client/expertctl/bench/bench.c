// expertctl bench: loads a daemon, judges the result and reports it.
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/regular_file.h"
#include "client/expertctl/bench/report/bench_print.h"
#include "client/expertctl/bench/report/bench_saved.h"
#include "client/expertctl/bench/run/bench_region.h"
#include "client/expertctl/bench/run/bench_run.h"
#include "client/expertctl/commands.h"

enum { EXIT_HELD = 0, EXIT_WORSE = 1, EXIT_INVALID = 2, LAYER_TEXT = 11 };

// The state of one bench command. `target` lies in memory shared with the forked process that fills it.
struct bench {
    const struct ctl_options *ctl;
    struct bench_options options; // a copy: the daemon's limits bound its distributions
    const char *address;
    struct bench_target *target;
    struct bench_pool pool;
    struct bench_trace trace;
    char trace_layers[TARGET_LAYERS_MAX * LAYER_TEXT]; // in the form of --layers
    struct bench_plan plan;
    struct bench_result *result; // owned: too large for a stack
    struct bench_result *best;   // --find-max: the result of the highest rate that held
    struct bench_report report;
    struct regular_file_new csv, save; // opened before the first call; fd -1: not requested, or finished
};

// ---- functions that use gRPC: each runs in a forked process

// On error saves the daemon's refusal, if there is one.
static err_t save_refusal(err_t e, const struct client *client, struct proto_error_text *refusal) {
    if (err_is(e) && client_refusal(client)) {
        *refusal = *client_refusal(client);
    }
    return e;
}

static FALLIBLE describe(void *argument, struct proto_error_text *refusal) {
    struct bench *b = argument;
    struct client *client;
    TRY(client_create_tls(b->address, &b->ctl->tls, &client));
    struct target_selection selection = {b->ctl->model, b->options.layers, b->options.trace ? "--trace" : "--layers"};
    err_t e = target_describe(client, &selection, b->ctl->timeout_us, b->target);
    return save_refusal(e, client, refusal); // the process exits next, so the client is not destroyed
}

static FALLIBLE send_rows_alone(void *argument, struct proto_error_text *refusal) {
    struct bench *b = argument;
    struct client *client;
    TRY(client_create_tls(b->address, &b->ctl->tls, &client));
    return save_refusal(pool_ask(client, b->target, &b->pool, b->ctl->timeout_us), client, refusal);
}

// ---- preparing

// Sets the layers option to the layers in the trace, each once.
static FALLIBLE name_trace_layers(struct bench *b) {
    uint32_t layers[TARGET_LAYERS_MAX], count = 0;
    size_t used = 0;
    for (size_t i = 0; i < b->trace.count; i++) {
        uint32_t layer = b->trace.calls[i].layer, at = 0;
        while (at < count && layers[at] != layer) {
            at++;
        }
        if (at == TARGET_LAYERS_MAX) {
            FAIL(EXPERTD_ERR_USAGE, "--trace %s: more than %d layers", b->options.trace, TARGET_LAYERS_MAX);
        }
        if (at == count) {
            layers[count++] = layer;
            used += (size_t)snprintf(b->trace_layers + used, sizeof b->trace_layers - used, "%s%u", used ? "," : "", layer);
        }
    }
    b->options.layers = b->trace_layers;
    return OK;
}

static FALLIBLE open_trace(struct bench *b) {
    if (!b->options.trace) {
        return OK;
    }
    TRY(trace_open(b->options.trace, &b->trace));
    TRY(name_trace_layers(b));
    b->options.tokens = (struct bench_tokens){0};
    for (size_t i = 0; i < b->trace.count; i++) {
        uint32_t tokens = b->trace.calls[i].tokens;
        b->options.tokens.high = tokens > b->options.tokens.high ? tokens : b->options.tokens.high;
    }
    if (b->options.duration_ns < 0) {
        b->options.duration_ns = b->trace.calls[b->trace.count - 1].at_ns + 1;
    }
    return OK;
}

static bool waits_for_reader(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISFIFO(status.st_mode);
}

static FALLIBLE open_file(struct regular_file_new *file, const char *flag, const char *path, bool waiting) {
    if (path && waits_for_reader(path) == waiting) {
        TRY_IN(regular_file_begin(path, REGULAR_FILE_OR_STREAM, file), "%s %s", flag, path);
    }
    return OK;
}

static FALLIBLE open_files(struct bench *b, bool waiting) {
    TRY(open_file(&b->csv, "--csv", b->options.csv, waiting));
    return open_file(&b->save, "--save", b->options.save, waiting);
}

// Opens the output files before the load, so that its results are not lost to a wrong path. Opening a pipe waits for its reader,
// and Ctrl-C may end the process then. Regular files are opened with signals blocked: otherwise a signal would leave temporary
// files.
static FALLIBLE open_all(struct bench *b) {
    err_t e = open_files(b, true);
    bench_block_signals();
    return err_is(e) ? e : open_files(b, false);
}

static FALLIBLE limit_tokens(struct bench *b) {
    struct bench_options *o = &b->options;
    uint32_t slots = bench_max_slots(o), cut = pool_max_tokens(&b->pool, b->target, o);
    if (o->region) {
        uint32_t in_region = region_max_tokens(b->target, &b->pool, slots);
        cut = in_region < cut ? in_region : cut;
    }
    TRY_IN(tokens_limit(&o->tokens, b->target->max_tokens, cut), "%s", o->trace ? "--trace" : "--tokens");
    TRY(pool_check(&b->pool, b->target, o));
    return o->region ? region_check(b->address, b->target, &b->pool, o->tokens.high, slots) : OK;
}

static FALLIBLE prepare(struct bench *b, struct proto_error_text *refusal) {
    TRY(bench_share(sizeof *b->target, (void **)&b->target));
    TRY(bench_fork(describe, b, refusal));
    for (size_t i = 0; i < b->trace.count; i++) {
        b->trace.calls[i].layer = target_find_layer(b->target, b->trace.calls[i].layer);
        INVARIANT(b->trace.calls[i].layer < TARGET_LAYERS_MAX); // describe has refused layers that are not served
    }
    enum expertd_dtype dtype = b->ctl->output_dtype == EXPERTD_DTYPE_NONE ? EXPERTD_DTYPE_BF16 : b->ctl->output_dtype;
    TRY(pool_init(b->target, &b->options, dtype, &b->pool));
    TRY(limit_tokens(b));
    b->result = calloc(1, sizeof *b->result);
    b->best = calloc(1, sizeof *b->best);
    if (!b->result || !b->best) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the results");
    }
    if (b->options.check_every) {
        if (!b->options.quiet) {
            fprintf(stderr, "sending each of %u rows to %u layer%s alone, to compare answers with\n", b->pool.rows,
                    b->target->num_layers, b->target->num_layers == 1 ? "" : "s");
        }
        TRY(bench_fork(send_rows_alone, b, refusal));
    }
    b->plan = (struct bench_plan){
        .address = b->address,
        .tls = &b->ctl->tls,
        .timeout_us = b->ctl->timeout_us,
        .options = &b->options,
        .target = b->target,
        .pool = &b->pool,
        .trace = b->trace.count ? &b->trace : NULL,
        .rate = b->options.rate,
        .warmup_ns = b->options.warmup_ns,
        .duration_ns = b->options.duration_ns,
    };
    return OK;
}

// ---- running

static FALLIBLE run_once(struct bench *b, struct proto_error_text *refusal) {
    struct verdict_limits limits = {b->options.lag_share, bench_open_loop(&b->options), b->options.max_inflight};
    TRY(bench_run(&b->plan, b->result, &b->report.interrupted, refusal));
    b->report.verdict = verdict_of(b->result, &limits);
    return OK;
}

static FALLIBLE run_load(struct bench *b, struct proto_error_text *refusal) {
    TRY(run_once(b, refusal));
    if (b->report.interrupted && b->result->calls == 0 && b->result->wrong == 0) {
        FAIL(EXPERTD_ERR_CANCELLED, "interrupted before a call was measured");
    }
    return OK;
}

// Judges and records the step that has just run.
static enum search_step judge_step(struct bench *b) {
    struct bench_report *report = &b->report;
    const struct bench_slo *slo = &b->options.slo;
    const struct bench_result *r = b->result;
    enum search_step outcome = search_judge(slo, b->plan.rate, r, &report->verdict);
    struct report_step step = {
        b->plan.rate, slo_value_us(slo, r), result_calls_per_s(r), result_tokens_per_s(r), result_failed_share(r), r->wrong,
        outcome};
    report->steps[report->num_steps++] = step;
    if (!b->options.quiet) {
        report_step_line(slo, &step);
    }
    if (outcome == SEARCH_HELD) {
        memcpy(b->best, r, sizeof *r);
    }
    return outcome;
}

// The verdict on the whole search. `e`: the error that ended it early, or OK.
static struct bench_verdict verdict_of_search(const struct bench_report *report, err_t e) {
    struct bench_verdict verdict = {.kind = VERDICT_INVALID};
    if (err_is(e)) {
        snprintf(verdict.why, sizeof verdict.why, "the search broke off: %s", expertd_err_message());
    } else if (report->interrupted) {
        snprintf(verdict.why, sizeof verdict.why, "the search was interrupted%s",
                 report->search.held > 0 ? ": a higher rate may hold" : " before a rate held");
    } else if (report->search.client_ends) {
        snprintf(verdict.why, sizeof verdict.why,
                 "the client, not the daemon, ended the search: give more --processes, or use another machine for the client");
    } else if (report->search.held == 0 && report->search.failed == 0) {
        snprintf(verdict.why, sizeof verdict.why, "no call was due at any rate: give a longer --duration or a higher --rate");
    } else {
        verdict.kind = VERDICT_VALID;
    }
    return verdict;
}

// Searches the highest rate that holds the service level. On an error the report has the steps before it.
static FALLIBLE find_max(struct bench *b, struct proto_error_text *refusal) {
    struct bench_report *report = &b->report;
    err_t e = OK;
    report->find_max = true;
    report->search = search_start(b->options.rate);
    for (bool more = true; more;) {
        b->plan.rate = report->search.rate;
        e = run_once(b, refusal);
        more =
            !err_is(e) && !report->interrupted && search_next(&report->search, judge_step(b)); // an interrupted step is not judged
    }
    if (err_is(e) && report->num_steps > 0) {
        b->plan.rate = report->steps[report->num_steps - 1].rate;
        e = e.code == EXPERTD_ERR_CANCELLED ? OK : e; // reported as interrupted
    }
    report->broke_off = err_is(e);
    report->verdict = verdict_of_search(report, e);
    if (report->search.held > 0) {
        report->result = b->best;
        b->plan.rate = report->search.held;
    }
    return e;
}

static int exit_code(const struct bench_report *report) {
    bool wrong = report->result->wrong > 0, nothing = report->result->answers == 0 && report->result->calls > 0;
    for (uint32_t i = 0; i < report->num_steps; i++) {
        wrong |= report->steps[i].wrong > 0;
    }
    if (wrong) { // wrong bits are the daemon's fault, not the client's
        return EXIT_WORSE;
    }
    if (report->verdict.kind == VERDICT_INVALID) {
        return EXIT_INVALID;
    }
    return nothing || report->verdict.kind == VERDICT_FAILED || (report->find_max && report->search.held == 0) ? EXIT_WORSE
                                                                                                               : EXIT_HELD;
}

static void save_first_error(struct err_copy *first, err_t e) {
    if (first->code == EXPERTD_ERR_OK && err_is(e)) {
        err_save(e, first);
    }
}

static FALLIBLE finish_file(struct regular_file_new *file, err_t e, const char *flag, const char *path) {
    e = regular_file_end(file, e);
    return err_is(e) ? err_context(e, "%s %s", flag, path) : OK;
}

// Finishes the files that replace an old file, or the others (pipes, devices), whose writes may block.
static void finish_files(struct bench *b, bool replacing, struct err_copy *first) {
    if (b->csv.fd >= 0 && (b->csv.temporary != NULL) == replacing) {
        save_first_error(first, finish_file(&b->csv, report_write_csv(&b->report, b->csv.fd), "--csv", b->options.csv));
    }
    if (b->save.fd >= 0 && (b->save.temporary != NULL) == replacing) {
        save_first_error(first, finish_file(&b->save, report_write_json(&b->report, b->save.fd), "--save", b->options.save));
    }
}

// Writes all outputs. Regular files come first, with signals still blocked. Then Ctrl-C may end the process again, since a pipe's
// reader may never read. `e` is the error that ended the load early. An error does not stop the other outputs; the first one is
// returned.
static FALLIBLE deliver(struct bench *b, err_t e, struct bench_outcome *out) {
    struct err_copy first;
    err_save(e, &first);
    finish_files(b, true, &first);
    bench_unblock_signals();
    e = report_print(&b->report, b->ctl->json);
    out->reported = !err_is(e);
    save_first_error(&first, e);
    finish_files(b, false, &first);
    out->code = exit_code(&b->report);
    return err_restore(&first);
}

static FALLIBLE run_and_report(struct bench *b, struct bench_outcome *out) {
    TRY(open_trace(b));
    err_t e = open_all(b);
    e = err_is(e) ? e : prepare(b, &out->refusal);
    if (!err_is(e)) {
        b->report.plan = &b->plan;
        b->report.result = b->result;
        e = b->options.find_max ? find_max(b, &out->refusal) : run_load(b, &out->refusal);
    }
    if (!err_is(e) || b->report.num_steps > 0) {
        e = deliver(b, e, out);
    }
    e = regular_file_end(&b->csv, e);
    e = regular_file_end(&b->save, e);
    bench_unblock_signals();
    return e;
}

static FALLIBLE compare(const struct ctl_options *options, int *code) {
    static const int CODES[] = {[COMPARE_SAME] = EXIT_HELD, [COMPARE_REGRESSION] = EXIT_WORSE, [COMPARE_INVALID] = EXIT_INVALID};
    enum compare_outcome outcome = COMPARE_SAME;
    TRY(report_compare(options->bench.compare, options->bench.tolerance, options->json, &outcome));
    *code = CODES[outcome];
    return OK;
}

FALLIBLE command_bench(const char *address, const struct ctl_options *options, struct bench_outcome *out) {
    *out = (struct bench_outcome){.refusal.retry_after_ms = -1};
    if (options->bench.compare[0]) {
        return compare(options, &out->code);
    }
    struct bench *b = calloc(1, sizeof *b);
    if (!b) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the state of the bench");
    }
    b->ctl = options;
    b->options = options->bench;
    b->address = address;
    b->csv.fd = b->save.fd = -1;
    err_t e = run_and_report(b, out);
    pool_deinit(&b->pool);
    trace_deinit(&b->trace);
    bench_unshare(b->target, sizeof *b->target);
    free(b->result);
    free(b->best);
    free(b);
    return e;
}
