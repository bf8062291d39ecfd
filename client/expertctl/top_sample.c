#include "client/expertctl/top_sample.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---- the page

// One line: name{labels} value. Values are counts and sizes. Those that do not fit into uint64_t are rejected, since some are cast
// to it later.
struct line {
    const char *name, *labels; // labels: from '{' on; "" if none
    size_t name_length, labels_length;
    double value;
};

static bool read_line(const char *text, size_t length, struct line *out) {
    const char *space = memrchr(text, ' ', length);
    if (length == 0 || text[0] == '#' || !space) {
        return false;
    }
    const char *brace = memchr(text, '{', (size_t)(space - text));
    const char *name_end = brace ? brace : space;
    char *end;
    *out = (struct line){.name = text,
                         .labels = brace ? brace : "",
                         .name_length = (size_t)(name_end - text),
                         .labels_length = brace ? (size_t)(space - brace) : 0,
                         .value = strtod(space + 1, &end)};
    return end > space + 1 && out->value >= 0 && out->value < 0x1p63; // false for NaN
}

static bool is_named(const struct line *line, const char *name) {
    return strlen(name) == line->name_length && memcmp(line->name, name, line->name_length) == 0;
}

static bool has_label(const struct line *line, const char *label) {
    return memmem(line->labels, line->labels_length, label, strlen(label)) != NULL;
}

// Copies a label's value and resolves its escapes \\, \" and \n. "" if the value is not terminated.
static void copy_label(const struct line *line, const char *label, char out[TOP_TEXT_MAX]) {
    const char *end = line->labels + line->labels_length, *at = memmem(line->labels, line->labels_length, label, strlen(label));
    size_t length = 0;
    at = at ? at + strlen(label) : end;
    for (; at < end && *at != '"'; at++) {
        bool escaped = *at == '\\' && at + 1 < end;
        at += escaped;
        if (length < TOP_TEXT_MAX - 1) {
            out[length++] = escaped && *at == 'n' ? '\n' : *at;
        }
    }
    out[at < end ? length : 0] = '\0';
}

static void read_gauge(const struct line *line, struct top_sample *out) {
    const struct {
        const char *name;
        double *to;
    } gauges[] = {
        {"expertd_open_calls", &out->open_calls},
        {"expertd_open_streams", &out->open_streams},
        {"expertd_queue_requests", &out->queue_requests},
        {"expertd_queue_bytes", &out->queue_bytes},
        {"expertd_resident_memory_bytes", &out->resident_bytes},
        {"expertd_weights_bytes", &out->weights_bytes},
        {"expertd_scratch_bytes", &out->scratch_bytes},
        {"expertd_region_bytes", &out->region_bytes},
        {"expertd_threads", &out->threads},
        {"expertd_open_fds", &out->open_fds},
        {"expertd_batch_requests_sum", &out->batch_requests},
    };
    for (size_t i = 0; i < sizeof gauges / sizeof *gauges; i++) {
        if (is_named(line, gauges[i].name)) {
            *gauges[i].to = line->value;
        }
    }
}

static void read_bucket(const struct line *line, struct top_sample *out) {
    struct top_histogram *to = has_label(line, "stage=\"total\"")   ? &out->total
                               : has_label(line, "stage=\"queue\"") ? &out->queue
                                                                    : NULL;
    char bound[TOP_TEXT_MAX];
    if (to && to->count < TOP_BOUNDS_MAX) {
        copy_label(line, "le=\"", bound);
        to->bounds[to->count] = strtod(bound, NULL); // also reads "+Inf"
        to->counts[to->count++] = line->value;
    }
}

static void read_sum(const struct line *line, struct top_sample *out) {
    bool serves = has_label(line, "method=\"Forward\"") || has_label(line, "method=\"Stream\"");
    if (is_named(line, "expertd_calls_total") && serves) {
        *(has_label(line, "code=\"OK\"") ? &out->calls_ok : &out->calls_failed) += line->value;
    } else if (is_named(line, "expertd_refused_total")) {
        out->refused += line->value;
    } else if (is_named(line, "expertd_tokens_total")) {
        out->tokens += line->value;
    } else if (is_named(line, "expertd_batches_total")) {
        out->batches += line->value;
    }
}

FALLIBLE top_read_metrics(const char *page, struct top_sample *out) {
    bool known = false;
    *out = (struct top_sample){0};
    for (const char *at = page; *at;) {
        size_t length = strcspn(at, "\n");
        struct line line;
        if (read_line(at, length, &line)) {
            read_gauge(&line, out);
            read_sum(&line, out);
            if (is_named(&line, "expertd_stage_seconds_bucket")) {
                read_bucket(&line, out);
            } else if (is_named(&line, "expertd_ready")) {
                known = true;
                out->ready = line.value > 0;
            } else if (is_named(&line, "expertd_draining")) {
                out->draining = line.value > 0;
            } else if (is_named(&line, "expertd_build_info")) {
                copy_label(&line, "version=\"", out->version);
                copy_label(&line, "model=\"", out->model);
            }
        }
        at += length + (at[length] == '\n');
    }
    if (!known) {
        FAIL(EXPERTD_ERR_MALFORMED,
             "the page is not a metrics page of expertd: expertd_ready is missing: give the daemon's HTTP address with --http");
    }
    return OK;
}

// ---- placements

static uint64_t rows_between(const struct proto_placements *before, const struct proto_placements *now, size_t layer,
                             uint32_t expert) {
    uint64_t rows = now->items[layer].rows[expert];
    bool same = layer < before->count && before->items[layer].layer == now->items[layer].layer &&
                before->items[layer].num_experts == now->items[layer].num_experts;
    uint64_t then = same ? before->items[layer].rows[expert] : 0;
    return rows >= then ? rows - then : rows;
}

void top_read_shards(const struct proto_placements *before, const struct proto_placements *now, struct top_shards *out) {
    *out = (struct top_shards){0};
    for (size_t i = 0; i < now->count; i++) {
        const struct proto_placement *p = &now->items[i];
        size_t ranks = p->ranks < TOP_SHARDS_MAX ? p->ranks : TOP_SHARDS_MAX;
        out->count = ranks > out->count ? ranks : out->count;
        out->epoch = p->epoch > out->epoch ? p->epoch : out->epoch;
        for (uint32_t e = 0; e < p->num_experts; e++) {
            uint32_t copies = p->first[e + 1] - p->first[e];
            double share = copies ? (double)rows_between(before, now, i, e) / copies : 0;
            for (uint32_t c = p->first[e]; c < p->first[e + 1]; c++) {
                struct top_shard *shard = &out->items[p->holders[c] % TOP_SHARDS_MAX]; // more shards than lines: some share one
                shard->experts++;
                shard->rows += share;
            }
        }
    }
}

// ---- between two samples

double top_quantile(const struct top_histogram *before, const struct top_histogram *after, double fraction) {
    bool same = before->count == after->count;
    double all = after->count ? after->counts[after->count - 1] - (same ? before->counts[after->count - 1] : 0) : 0;
    double below = 0, low = 0;
    for (size_t i = 0; i < after->count && all > 0; i++) {
        double seen = after->counts[i] - (same ? before->counts[i] : 0);
        if (seen >= fraction * all && !isinf(after->bounds[i])) {
            return seen > below ? low + (after->bounds[i] - low) * (fraction * all - below) / (seen - below) : after->bounds[i];
        }
        low = isinf(after->bounds[i]) ? low : after->bounds[i];
        below = seen;
    }
    return low * (all > 0);
}
