#include "client/expertctl/bench/report/bench_json.h"

#include <jansson.h>

#include "base/clock.h"
#include "client/expertctl/print/json_out.h"

static json_t *durations_json(const struct bench_histogram *h) {
    return json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:f, s:I}", "count", (json_int_t)h->count, "mean", histogram_mean(h), "p50",
                     histogram_quantile(h, 0.5), "p90", histogram_quantile(h, 0.9), "p95", histogram_quantile(h, 0.95), "p99",
                     histogram_quantile(h, 0.99), "p999", histogram_quantile(h, 0.999), "max", (json_int_t)h->max_us);
}

static json_t *errors_json(const struct bench_result *result) {
    json_t *errors = json_array();
    for (uint32_t i = 0; i < result->num_failures; i++) {
        const struct result_failure *f = &result->failures[i];
        json_array_append_new(errors, json_pack("{s:s, s:i, s:o, s:I, s:o}", "code", calls_status_name(f->grpc_code), "grpc_code",
                                                f->grpc_code, "reason", json_text(f->reason), "count", (json_int_t)f->count,
                                                "message", json_text(f->message)));
    }
    return errors;
}

static json_t *layers_json(const struct bench_target *target) {
    json_t *layers = json_array();
    for (uint32_t i = 0; i < target->num_layers; i++) {
        json_array_append_new(layers, json_integer(target->layers[i].layer));
    }
    return layers;
}

static json_t *number_or_null(double number) {
    return number > 0 ? json_real(number) : json_null();
}

static json_t *load_json(const struct bench_plan *plan) {
    const struct bench_options *o = plan->options;
    const char *mode = plan->trace ? "trace" : bench_open_loop(o) ? "open" : "closed";
    json_t *load = json_pack("{s:s, s:o, s:o, s:o, s:s, s:o, s:o, s:o, s:s, s:b, s:b, s:o}", "mode", mode, "rate",
                             number_or_null(plan->rate), "concurrency", o->concurrency ? json_integer(o->concurrency) : json_null(),
                             "trace", o->trace ? json_text(o->trace) : json_null(), "arrivals",
                             o->arrivals == ARRIVALS_CONSTANT ? "constant" : "poisson", "tokens", json_text(o->tokens_text),
                             "routing", json_text(o->routing_text), "layers", layers_json(plan->target), "dtype",
                             expertd_dtype_name(plan->pool->dtype), "stream", o->stream, "region", o->region, "tokens_max",
                             o->tokens.cut ? json_integer(o->tokens.high) : json_null());
    json_t *rest = json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "connections", (json_int_t)o->connections,
                             "processes", (json_int_t)o->processes, "max_inflight", (json_int_t)o->max_inflight, "seed",
                             (json_int_t)o->seed, "pool_rows", (json_int_t)o->pool_rows, "check_every", (json_int_t)o->check_every,
                             "warmup_s", (double)plan->warmup_ns / NS_PER_S, "duration_s", (double)plan->duration_ns / NS_PER_S,
                             "timeout_s", (double)plan->timeout_us / 1e6);
    if (load && rest) {
        json_object_update(load, rest);
    }
    json_decref(rest);
    return load;
}

static json_t *search_json(const struct bench_report *report) {
    if (!report->find_max) {
        return json_null();
    }
    json_t *steps = json_array();
    for (uint32_t i = 0; i < report->num_steps; i++) {
        const struct report_step *s = &report->steps[i];
        json_array_append_new(steps, json_pack("{s:f, s:s, s:f, s:f, s:f, s:f, s:I}", "rate", s->rate, "outcome",
                                               report_outcome_name(s->outcome), "slo_us", s->slo_us, "calls_per_s", s->calls_per_s,
                                               "tokens_per_s", s->tokens_per_s, "failed_share", s->failed_share, "wrong",
                                               (json_int_t)s->wrong));
    }
    return json_pack("{s:o, s:f, s:b, s:o}", "slo", json_text(report->plan->options->slo.text), "rate", report->search.held,
                     "client_limited", report->search.client_ends, "steps", steps);
}

json_t *report_json(const struct bench_report *report) {
    const struct bench_result *r = report->result;
    const struct bench_target *target = report->plan->target;
    json_t *object = json_pack("{s:i, s:o, s:o, s:o, s:o, s:o, s:{s:b, s:s, s:s}, s:b}", "bench", REPORT_VERSION, "address",
                               json_text(report->plan->address), "model", json_text(target->model), "server_version",
                               json_text(target->server_version), "numerics_id", json_text(target->numerics_id), "load",
                               load_json(report->plan), "verdict", "valid", report->verdict.kind == VERDICT_VALID, "outcome",
                               verdict_name(report->verdict.kind), "why", report->verdict.why, "interrupted", report->interrupted);
    json_t *figures =
        json_pack("{s:I, s:I, s:I, s:f, s:I, s:I, s:f, s:f, s:f, s:o, s:o, s:o, s:o}", "calls", (json_int_t)r->calls, "answers",
                  (json_int_t)r->answers, "failed", (json_int_t)r->failed, "failed_share", result_failed_share(r), "compared",
                  (json_int_t)r->compared, "wrong", (json_int_t)r->wrong, "calls_per_s", result_calls_per_s(r), "tokens_per_s",
                  result_tokens_per_s(r), "span_s", r->span_s, "response_us", durations_json(&r->response), "service_us",
                  durations_json(&r->service), "lag_us", durations_json(&r->lag), "errors", errors_json(r));
    json_t *rest =
        json_pack("{s:{s:f, s:f, s:I, s:I}, s:o}", "client", "cpus", r->cpus, "busiest_thread", r->thread_share, "slots_waited",
                  (json_int_t)r->slots_waited, "unsent", (json_int_t)r->unsent, "find_max", search_json(report));
    if (object && figures && rest) {
        json_object_update(object, figures);
        json_object_update(object, rest);
    }
    json_decref(figures);
    json_decref(rest);
    return object;
}
