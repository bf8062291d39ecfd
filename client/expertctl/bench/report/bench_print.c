#include "client/expertctl/bench/report/bench_print.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/process/standard_output.h"
#include "base/regular_file.h"
#include "client/expertctl/bench/report/bench_json.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/quantity.h"
#include "client/expertctl/print/table.h"

// ---- the table

static FALLIBLE duration_row(struct table *table, const char *name, const struct bench_histogram *h) {
    static const double FRACTIONS[] = {0.5, 0.9, 0.95, 0.99, 0.999};
    enum { FRACTIONS_COUNT = sizeof FRACTIONS / sizeof *FRACTIONS };
    char text[QUANTITY_TEXT_MAX];
    TRY(table_row(table));
    TRY(table_cell(table, 0, "%s", name));
    for (size_t i = 0; i < FRACTIONS_COUNT; i++) {
        TRY(table_cell(table, i + 1, "%s", duration_text(histogram_quantile(h, FRACTIONS[i]), text)));
    }
    TRY(table_cell(table, FRACTIONS_COUNT + 1, "%s", duration_text((double)h->max_us, text)));
    return table_cell(table, FRACTIONS_COUNT + 2, "%s", duration_text(histogram_mean(h), text));
}

static FALLIBLE print_durations(const struct bench_report *report) {
    static const char *const NAMES[] = {"", "P50", "P90", "P95", "P99", "P99.9", "MAX", "MEAN", NULL};
    struct table table;
    table_init(&table, NAMES, 0xfeu);
    err_t e = duration_row(&table, "response", &report->result->response);
    e = err_is(e) ? e : duration_row(&table, "service", &report->result->service);
    if (bench_open_loop(report->plan->options)) {
        e = err_is(e) ? e : duration_row(&table, "client lag", &report->result->lag);
    }
    if (!err_is(e)) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

static FALLIBLE fill_errors(struct table *table, const struct bench_result *result) {
    for (uint32_t i = 0; i < result->num_failures; i++) {
        const struct result_failure *f = &result->failures[i];
        TRY(table_row(table));
        TRY(table_cell(table, 0, "%" PRIu64, f->count));
        TRY(table_cell(table, 1, "%s", calls_status_name(f->grpc_code)));
        TRY(table_cell(table, 2, "%s", f->reason));
        TRY(table_cell(table, 3, "%s", f->message));
    }
    return OK;
}

static FALLIBLE print_errors(const struct bench_result *result) {
    static const char *const NAMES[] = {"FAILED", "CODE", "REASON", "THE FIRST ONE'S MESSAGE", NULL};
    struct table table;
    if (result->num_failures == 0) {
        return OK;
    }
    table_init(&table, NAMES, 1u);
    err_t e = fill_errors(&table, result);
    if (!err_is(e)) {
        printf("\n");
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

static void print_load(const struct bench_plan *plan) {
    const struct bench_options *o = plan->options;
    if (plan->trace) {
        printf("%zu calls of %s", plan->trace->count, o->trace);
    } else if (bench_open_loop(o)) {
        printf("open loop, %s arrivals, %g calls/s", o->arrivals == ARRIVALS_CONSTANT ? "constant" : "Poisson", plan->rate);
    } else {
        printf("closed loop, %u in flight", o->concurrency);
    }
    char cut[32] = "";
    if (o->tokens.cut) {
        snprintf(cut, sizeof cut, " up to %u", o->tokens.high);
    }
    printf("; tokens %s%s, routing %s, %u layer%s from %u, %s, %s%s; %u connection%s, %u process%s, seed %" PRIu64 "\n",
           plan->trace ? "of the trace" : o->tokens_text, cut, o->routing_text, plan->target->num_layers,
           plan->target->num_layers == 1 ? "" : "s", plan->target->layers[0].layer, expertd_dtype_name(plan->pool->dtype),
           o->stream ? "streamed" : "unary", o->region ? " through a region" : "", o->connections, o->connections == 1 ? "" : "s",
           o->processes, o->processes == 1 ? "" : "es", o->seed);
}

static void print_checked(const struct bench_result *r) {
    if (r->compared == 0) {
        printf("no answer was compared with its rows sent alone\n");
        return;
    }
    printf("%" PRIu64 " wrong of %" PRIu64 " answers compared with the same rows sent alone\n", r->wrong, r->compared);
}

static void print_search(const struct bench_report *report) {
    const char *slo = report->plan->options->slo.text;
    const char *early = report->interrupted ? "interrupted" : report->broke_off ? "broke off" : NULL;
    if (!report->find_max) {
        return;
    }
    if (report->search.held > 0) {
        const char *why = !early && report->search.client_ends ? "at higher rates the client was the bottleneck" : early;
        printf("find-max: %.4g calls/s hold %s%s%s%s; the figures are of that rate\n", report->search.held, slo,
               why ? " at least (" : "", why ? why : "", why ? ")" : "");
    } else if (early) {
        printf("find-max: %s before a rate held %s\n", early, slo);
    } else {
        printf("find-max: no rate held %s\n", slo);
    }
}

// True if the load whose figures are shown was interrupted.
static bool is_cut_short(const struct bench_report *report) {
    return report->interrupted && !(report->find_max && report->search.held > 0);
}

static FALLIBLE print_table(const struct bench_report *report) {
    static const char *const VERDICTS[] = {"valid", "FAILED", "INVALID"};
    const struct bench_result *r = report->result;
    print_load(report->plan);
    print_search(report);
    printf("%.1f calls/s, %.1f tokens/s; %" PRIu64 " calls, %" PRIu64 " answered, %" PRIu64 " failed in %.2f s%s\n",
           result_calls_per_s(r), result_tokens_per_s(r), r->calls, r->answers, r->failed, r->span_s,
           is_cut_short(report) ? " (interrupted)" : "");
    print_checked(r);
    printf("\n");
    TRY(print_durations(report));
    TRY(print_errors(r));
    printf("\nclient: %.2f CPUs, its busiest thread %.0f %% of one\n", r->cpus, 100 * r->thread_share);
    printf("verdict: %s%s%s\n", VERDICTS[report->verdict.kind], report->verdict.why[0] ? ": " : "", report->verdict.why);
    return standard_output_flush();
}

FALLIBLE report_print(const struct bench_report *report, bool json) {
    return json ? json_print_take(report_json(report)) : print_table(report);
}

void report_step_line(const struct bench_slo *slo, const struct report_step *step) {
    static const char *const OUTCOMES[] = {"held", "not held", "not held: the client is the bottleneck", "no call was due"};
    char text[QUANTITY_TEXT_MAX];
    fprintf(stderr, "%10.4g calls/s: %.*s %s, %.1f answered/s, %.2f %% failed: %s\n", step->rate,
            (int)(strchr(slo->text, '=') - slo->text), slo->text, duration_text(step->slo_us, text), step->calls_per_s,
            100 * step->failed_share, OUTCOMES[step->outcome]);
}

// ---- files

FALLIBLE report_write_json(const struct bench_report *report, int fd) {
    json_t *object = report_json(report);
    char *text = object ? json_dumps(object, JSON_INDENT(2) | JSON_ENSURE_ASCII) : NULL;
    json_decref(object);
    if (!text) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the JSON output");
    }
    err_t e = regular_file_write(fd, text, strlen(text));
    e = err_is(e) ? e : regular_file_write(fd, "\n", 1);
    free(text);
    return e;
}

static void csv_result(FILE *file, const struct bench_report *report) {
    const struct bench_result *r = report->result;
    fprintf(file, "%g,%s,%.3f,%.3f,%.6f,%" PRIu64 ",%.0f,%.0f,%.0f,%" PRId64 ",%.0f,%.0f,%.0f\n", report->plan->rate,
            verdict_name(report->verdict.kind), result_calls_per_s(r), result_tokens_per_s(r), result_failed_share(r), r->wrong,
            histogram_quantile(&r->response, 0.5), histogram_quantile(&r->response, 0.99), histogram_quantile(&r->response, 0.999),
            r->response.max_us, histogram_quantile(&r->service, 0.5), histogram_quantile(&r->service, 0.99),
            histogram_quantile(&r->lag, 0.99));
}

static void csv_step(FILE *file, const struct report_step *s) {
    fprintf(file, "%g,%s,%.3f,%.3f,%.6f,%" PRIu64 ",%.0f\n", s->rate, report_outcome_name(s->outcome), s->calls_per_s,
            s->tokens_per_s, s->failed_share, s->wrong, s->slo_us);
}

static void csv_lines(FILE *file, const struct bench_report *report) {
    static const char FIRST[] = "rate,outcome,calls_per_s,tokens_per_s,failed_share,wrong";
    if (report->find_max) {
        fprintf(file, "%s,slo_us\n", FIRST);
        for (uint32_t i = 0; i < report->num_steps; i++) {
            csv_step(file, &report->steps[i]);
        }
        return;
    }
    fprintf(file, "%s,response_p50_us,response_p99_us,response_p999_us,response_max_us,service_p50_us,service_p99_us,lag_p99_us\n",
            FIRST);
    csv_result(file, report);
}

FALLIBLE report_write_csv(const struct bench_report *report, int fd) {
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (file) {
        csv_lines(file, report);
    }
    if (!file || fclose(file) != 0) {
        free(text);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the CSV output");
    }
    err_t e = regular_file_write(fd, text, length);
    free(text);
    return e;
}
