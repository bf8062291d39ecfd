// expertctl top: samples a daemon's metrics twice and shows the difference.
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/process/standard_output.h"
#include "client/c/admin.h"
#include "client/expertctl/commands.h"
#include "client/expertctl/http_get.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/quantity.h"
#include "client/expertctl/print/shard_table.h"
#include "client/expertctl/print/table.h"
#include "client/expertctl/top_sample.h"

static const char DEFAULT_HOST[] = "127.0.0.1";

enum { DEFAULT_HTTP_PORT = 7412 };

struct snapshot {
    struct top_sample sample;
    struct proto_placements placements;
    struct proto_shards front; // no items: the daemon is no front
};

struct top {
    const struct ctl_options *options;
    struct address http;
    struct client *admin;         // borrowed; NULL: shards are not shown
    bool is_no_front;             // the daemon has no shards in other processes
    struct snapshot snapshots[2]; // [0] the earlier one
    struct top_shards *shards;    // owned; too large for a stack
};

static FALLIBLE find_http(const char *daemon, const struct ctl_options *options, struct address *out) {
    if (options->http) {
        return address_parse(options->http, out);
    }
    TRY(address_parse(daemon, out));
    const char *host = out->is_unix ? DEFAULT_HOST : out->host;
    bool is_ipv6 = strchr(host, ':') != NULL;
    char text[ADDRESS_TEXT_MAX];
    snprintf(text, sizeof text, is_ipv6 ? "[%.*s]:%d" : "%.*s:%d", ADDRESS_HOST_MAX, host, DEFAULT_HTTP_PORT);
    return address_parse(text, out);
}

// A daemon without shards in other processes is asked once.
static FALLIBLE list_front(struct top *top, struct proto_shards *out) {
    err_t e = client_list_shards(top->admin, top->options->timeout_us, out);
    top->is_no_front = e.code == EXPERTD_ERR_UNIMPLEMENTED;
    return top->is_no_front || e.code == EXPERTD_ERR_LOADING ? OK : e;
}

static void snapshot_deinit(struct snapshot *snapshot) {
    proto_placements_deinit(&snapshot->placements);
    proto_shards_deinit(&snapshot->front);
}

static FALLIBLE take_snapshot(struct top *top, struct snapshot *out) {
    char *page;
    TRY(http_get(&top->http, "/metrics", top->options->timeout_us, &page));
    err_t e = top_read_metrics(page, &out->sample);
    free(page);
    out->sample.at_ns = clock_now_ns();
    if (!err_is(e) && top->admin && out->sample.ready) {
        e = client_show_placement(top->admin, &(struct proto_layers){0}, top->options->timeout_us, &out->placements);
    }
    if (!err_is(e) && top->admin && !top->is_no_front) {
        e = list_front(top, &out->front);
    }
    return e;
}

// ---- figures

static double seconds_between(const struct top *top) {
    double seconds = (double)(top->snapshots[1].sample.at_ns - top->snapshots[0].sample.at_ns) / NS_PER_S;
    return seconds > 0 ? seconds : 1;
}

// Increase per second. If the daemon was restarted meanwhile, its counters began at 0.
static double rate(const struct top *top, double before, double now) {
    return (now >= before ? now - before : now) / seconds_between(top);
}

static double quantile_us(const struct top *top, bool queue, double share) {
    const struct top_sample *a = &top->snapshots[0].sample, *b = &top->snapshots[1].sample;
    return 1e6 * (queue ? top_quantile(&a->queue, &b->queue, share) : top_quantile(&a->total, &b->total, share));
}

static const char *state_of(const struct top_sample *sample) {
    return sample->draining ? "draining" : sample->ready ? "ready" : "loading";
}

static double rows_of(const struct top_shards *shards) {
    double rows = 0;
    for (size_t i = 0; i < shards->count; i++) {
        rows += shards->items[i].rows;
    }
    return rows;
}

// A front's placements also have ranks that no shard has yet.
static double load_of(const struct top *top, size_t shard) {
    const struct proto_shards *front = &top->snapshots[1].front;
    double rows = rows_of(top->shards), count = front->count > 0 ? front->summary.live : (double)top->shards->count;
    return rows > 0 ? top->shards->items[shard].rows * count / rows : 0;
}

// The front's listing with the rates of its own shards, which it does not measure: from the placements.
static void set_local_rates(struct top *top) {
    struct proto_shards *front = &top->snapshots[1].front;
    for (size_t i = 0; i < front->count; i++) {
        struct proto_shard *s = &front->items[i];
        s->rows_per_second =
            s->local ? top->shards->items[s->shard % TOP_SHARDS_MAX].rows / seconds_between(top) : s->rows_per_second;
    }
}

// ---- text

static void print_latency(const struct top *top, const char *name, bool queue) {
    char texts[3][QUANTITY_TEXT_MAX];
    printf("%-9s p50 %s, p90 %s, p99 %s\n", name, duration_text(quantile_us(top, queue, 0.5), texts[0]),
           duration_text(quantile_us(top, queue, 0.9), texts[1]), duration_text(quantile_us(top, queue, 0.99), texts[2]));
}

static void print_figures(const struct top *top) {
    const struct top_sample *a = &top->snapshots[0].sample, *b = &top->snapshots[1].sample;
    double batches = rate(top, a->batches, b->batches), tokens = rate(top, a->tokens, b->tokens);
    char texts[5][QUANTITY_TEXT_MAX], version[TOP_TEXT_MAX], model[TOP_TEXT_MAX];
    memcpy(version, b->version, sizeof version);
    memcpy(model, b->model, sizeof model);
    printf("expertd %s, %s, %s\n", table_text(version), table_text(model), state_of(b)); // replaces control bytes from the network
    printf("calls     %.1f/s answered, %.1f/s failed, %.1f/s refused; %.0f open, %.0f streams\n",
           rate(top, a->calls_ok, b->calls_ok), rate(top, a->calls_failed, b->calls_failed), rate(top, a->refused, b->refused),
           b->open_calls, b->open_streams);
    printf("tokens    %.1f/s in %.1f batches/s of %.1f tokens and %.1f requests\n", tokens, batches,
           batches > 0 ? tokens / batches : 0, batches > 0 ? rate(top, a->batch_requests, b->batch_requests) / batches : 0);
    print_latency(top, "latency", false);
    print_latency(top, "queued", true);
    printf("queue     %.0f requests, %s\n", b->queue_requests, bytes_text((uint64_t)b->queue_bytes, texts[0]));
    printf("memory    %s resident, %s weights, %s scratch, %s regions; %.0f threads, %.0f descriptors\n",
           bytes_text((uint64_t)b->resident_bytes, texts[1]), bytes_text((uint64_t)b->weights_bytes, texts[2]),
           bytes_text((uint64_t)b->scratch_bytes, texts[3]), bytes_text((uint64_t)b->region_bytes, texts[4]), b->threads,
           b->open_fds);
}

static FALLIBLE fill_shards(const struct top *top, struct table *table) {
    for (size_t i = 0; i < top->shards->count; i++) {
        TRY(table_row(table));
        TRY(table_cell(table, 0, "%zu", i));
        TRY(table_cell(table, 1, "%" PRIu32, top->shards->items[i].experts));
        TRY(table_cell(table, 2, "%.1f", top->shards->items[i].rows / seconds_between(top)));
        TRY(table_cell(table, 3, "%.2f", load_of(top, i)));
    }
    return OK;
}

static FALLIBLE print_shards(const struct top *top) {
    static const char *const NAMES[] = {"SHARD", "EXPERTS", "ROWS/S", "LOAD", NULL};
    const struct proto_shards *front = &top->snapshots[1].front;
    struct table table;
    if (top->shards->count == 0) {
        return front->count > 0 ? shard_table_print(front, false, stdout) : OK;
    }
    printf("placement epoch %" PRIu64 "\n", top->shards->epoch);
    if (front->count > 0) {
        return shard_table_print(front, true, stdout);
    }
    table_init(&table, NAMES, 0xf);
    err_t e = fill_shards(top, &table);
    if (!err_is(e)) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

static FALLIBLE print_text(const struct top *top) {
    if (!top->options->once && isatty(STDOUT_FILENO)) {
        printf("\033[H\033[2J"); // clear the screen
    }
    print_figures(top);
    TRY(print_shards(top));
    if (!top->options->once && !isatty(STDOUT_FILENO)) {
        putchar('\n');
    }
    return standard_output_flush();
}

// ---- JSON

static json_t *latency_json(const struct top *top, bool queue) {
    return json_pack("{s:f, s:f, s:f}", "p50", quantile_us(top, queue, 0.5), "p90", quantile_us(top, queue, 0.9), "p99",
                     quantile_us(top, queue, 0.99));
}

static json_t *front_json(const struct top *top) {
    const struct proto_shards *front = &top->snapshots[1].front;
    json_t *list = json_array();
    for (size_t i = 0; i < front->count; i++) {
        const struct proto_shard *s = &front->items[i];
        size_t slot = s->shard % TOP_SHARDS_MAX;
        json_t *object = shard_json(s);
        if (object) {
            json_object_set_new(object, "experts_by_state", json_incref(json_object_get(object, "experts")));
            json_object_set_new(object, "experts", json_integer(top->shards->items[slot].experts));
            json_object_set_new(object, "rows_per_s", json_real(s->rows_per_second));
            json_object_set_new(object, "load", json_real(load_of(top, slot)));
        }
        json_array_append_new(list, object);
    }
    return list;
}

static json_t *shards_json(const struct top *top) {
    if (top->snapshots[1].front.count > 0) {
        return front_json(top);
    }
    json_t *list = json_array();
    for (size_t i = 0; i < top->shards->count; i++) {
        json_array_append_new(list, json_pack("{s:I, s:I, s:f, s:f}", "shard", (json_int_t)i, "experts",
                                              (json_int_t)top->shards->items[i].experts, "rows_per_s",
                                              top->shards->items[i].rows / seconds_between(top), "load", load_of(top, i)));
    }
    return list;
}

static json_t *figures_json(const struct top *top) {
    const struct top_sample *a = &top->snapshots[0].sample, *b = &top->snapshots[1].sample;
    return json_pack("{s:s, s:o, s:o, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:o, s:o}", "state", state_of(b), "version",
                     json_text(b->version), "model", json_text(b->model), "seconds", seconds_between(top), "calls_per_s",
                     rate(top, a->calls_ok, b->calls_ok), "failed_per_s", rate(top, a->calls_failed, b->calls_failed),
                     "refused_per_s", rate(top, a->refused, b->refused), "tokens_per_s", rate(top, a->tokens, b->tokens),
                     "batches_per_s", rate(top, a->batches, b->batches), "batch_requests_per_s",
                     rate(top, a->batch_requests, b->batch_requests), "latency_us", latency_json(top, false), "queued_us",
                     latency_json(top, true));
}

static json_t *top_json(const struct top *top) {
    const struct top_sample *b = &top->snapshots[1].sample;
    json_t *object = figures_json(top);
    json_t *gauges =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "open_calls", (json_int_t)b->open_calls, "open_streams",
                  (json_int_t)b->open_streams, "queue_requests", (json_int_t)b->queue_requests, "queue_bytes",
                  (json_int_t)b->queue_bytes, "resident_bytes", (json_int_t)b->resident_bytes, "weights_bytes",
                  (json_int_t)b->weights_bytes, "scratch_bytes", (json_int_t)b->scratch_bytes, "region_bytes",
                  (json_int_t)b->region_bytes, "threads", (json_int_t)b->threads, "fds", (json_int_t)b->open_fds);
    if (object && gauges) {
        json_object_update(object, gauges);
        json_object_set_new(object, "placement_epoch", json_integer((json_int_t)top->shards->epoch));
        json_object_set_new(object, "shards", shards_json(top));
        if (top->snapshots[1].front.count > 0) {
            json_object_set_new(object, "shards_summary", shard_summary_json(&top->snapshots[1].front.summary));
        }
    }
    json_decref(gauges);
    return object;
}

static FALLIBLE print_line(json_t *object) {
    if (!object) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the JSON output");
    }
    int failed = json_dumpf(object, stdout, JSON_COMPACT | JSON_ENSURE_ASCII);
    json_decref(object);
    if (failed) {
        FAIL(EXPERTD_ERR_IO, "standard output: %s", strerror(errno));
    }
    putchar('\n');
    return standard_output_flush();
}

// ---- the command

static FALLIBLE show(struct top *top) {
    top_read_shards(&top->snapshots[0].placements, &top->snapshots[1].placements, top->shards);
    set_local_rates(top);
    if (!top->options->json) {
        return print_text(top);
    }
    return top->options->once ? json_print_take(top_json(top)) : print_line(top_json(top));
}

static FALLIBLE run(struct top *top) {
    TRY(take_snapshot(top, &top->snapshots[0]));
    for (;;) {
        int64_t us = top->options->interval_us;
        struct timespec pause = {us / 1000000, us % 1000000 * 1000};
        nanosleep(&pause, NULL);
        TRY(take_snapshot(top, &top->snapshots[1]));
        TRY(show(top));
        if (top->options->once) {
            return OK;
        }
        snapshot_deinit(&top->snapshots[0]);
        top->snapshots[0] = top->snapshots[1];
        top->snapshots[1] = (struct snapshot){0};
    }
}

FALLIBLE command_top(const char *address, struct client *admin, const struct ctl_options *options) {
    struct top top = {.options = options, .admin = admin};
    TRY(find_http(address, options, &top.http));
    top.shards = calloc(1, sizeof *top.shards);
    if (!top.shards) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the shards' figures");
    }
    err_t e = run(&top);
    snapshot_deinit(&top.snapshots[0]);
    snapshot_deinit(&top.snapshots[1]);
    free(top.shards);
    return e;
}
