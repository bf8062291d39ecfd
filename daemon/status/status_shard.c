#include "daemon/status/status_shard.h"

#include <inttypes.h>
#include <jansson.h>

#include "base/clock.h"

static void put(FILE *body, const char *name, const char *type, const char *help, double value) {
    fprintf(body, "# HELP expertd_shard_%s %s\n# TYPE expertd_shard_%s %s\nexpertd_shard_%s %.15g\n", name, help, name, type, name,
            value);
}

static void put_gauge(FILE *body, const char *name, const char *help, uint64_t value) {
    put(body, name, "gauge", help, (double)value);
}

static void put_counter(FILE *body, const char *name, const char *help, uint64_t value) {
    put(body, name, "counter", help, (double)value);
}

void status_shard_metrics(struct shard_service *shard, FILE *body) {
    struct shard_figures f;
    shard_read_figures(shard, &f);
    put_gauge(body, "fronts", "Fronts connected to this shard.", f.fronts);
    put_gauge(body, "experts", "Experts in memory.", f.held);
    put_gauge(body, "experts_loading", "Experts that fronts have assigned and that are not in memory.", f.loading);
    put_gauge(body, "experts_bytes", "Memory of the experts: in memory, being loaded, being freed.", f.bytes_used);
    put_gauge(body, "experts_bytes_max", "Limit of the memory for experts.", f.bytes_max);
    put_gauge(body, "draining", "Whether the shard gives up its experts.", f.draining);
    put_counter(body, "pieces_total", "Pieces of batches computed for fronts.", f.pieces);
    put_counter(body, "rows_total", "Result rows computed for fronts.", f.rows);
    put_counter(body, "errors_total", "Batches answered with an error.", f.errors);
    put_counter(body, "pieces_dropped_total", "Pieces of batches that their front had abandoned.", f.dropped);
    put(body, "compute_seconds_total", "counter", "Time in computing pieces.", (double)f.compute_ns / NS_PER_S);
    put_counter(body, "loads_total", "Experts loaded.", f.loads);
    put_counter(body, "load_failures_total", "Experts that could not be loaded.", f.load_failures);
    put_counter(body, "frees_total", "Experts given up and freed.", f.frees);
    put_counter(body, "read_bytes_total", "Bytes of tensors read from the checkpoint.", f.bytes_read);
    put_counter(body, "sessions_total", "Fronts that have connected.", f.sessions);
    put_counter(body, "refused_total", "Streams of fronts refused, or ended for a fault of the front.", f.refused);
}

json_t *status_shard_json(struct shard_service *shard) {
    struct shard_figures f;
    shard_read_figures(shard, &f);
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:b, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "fronts", (json_int_t)f.fronts, "experts",
                     (json_int_t)f.held, "experts_loading", (json_int_t)f.loading, "bytes_used", (json_int_t)f.bytes_used,
                     "bytes_max", (json_int_t)f.bytes_max, "draining", f.draining, "pieces", (json_int_t)f.pieces, "rows",
                     (json_int_t)f.rows, "errors", (json_int_t)f.errors, "loads", (json_int_t)f.loads, "load_failures",
                     (json_int_t)f.load_failures, "frees", (json_int_t)f.frees, "bytes_read", (json_int_t)f.bytes_read);
}

void status_shard_html(struct shard_service *shard, FILE *body) {
    struct shard_figures f;
    shard_read_figures(shard, &f);
    fprintf(body,
            "<p>A shard with %u experts in memory and %u to load, %" PRIu64 " of %" PRIu64 " bytes, for %u fronts; %" PRIu64
            " rows in %" PRIu64 " pieces, %" PRIu64 " errors.</p>",
            f.held, f.loading, f.bytes_used, f.bytes_max, f.fronts, f.rows, f.pieces, f.errors);
}

uint64_t status_shard_bytes(struct shard_service *shard) {
    struct shard_figures f;
    shard_read_figures(shard, &f);
    return f.bytes_used;
}
