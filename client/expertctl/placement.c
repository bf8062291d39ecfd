// expertctl placement show, plan and apply.
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "client/c/admin.h"
#include "client/expertctl/commands.h"
#include "client/expertctl/files/plan_file.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/quantity.h"
#include "client/expertctl/print/table.h"

// The layer of --layer; without it no entry, which means all layers.
static struct proto_layers layers_of(const struct ctl_options *options, uint32_t *layer) {
    *layer = options->layer;
    return (struct proto_layers){options->have_layer ? layer : NULL, options->have_layer};
}

static uint32_t copies_of(const struct proto_placement *p) {
    return p->first[p->num_experts];
}

static uint64_t rows_of(const struct proto_placement *p) {
    uint64_t rows = 0;
    for (uint32_t e = 0; e < p->num_experts; e++) {
        rows += p->rows[e];
    }
    return rows;
}

// ---- show

static FALLIBLE print_object(const char *address, json_t *layers) {
    return json_print_take(json_pack("{s:o, s:o}", "address", json_text(address), "layers", layers));
}

static FALLIBLE fill_layers(struct table *table, const struct proto_placements *shown) {
    for (size_t i = 0; i < shown->count; i++) {
        const struct proto_placement *p = &shown->items[i];
        TRY(table_row(table));
        TRY(table_cell(table, 0, "%" PRIu32, p->layer));
        TRY(table_cell(table, 1, "%" PRIu64, p->epoch));
        TRY(table_cell(table, 2, "%" PRIu32, p->ranks));
        TRY(table_cell(table, 3, "%" PRIu32, p->num_experts));
        TRY(table_cell(table, 4, "%" PRIu32, copies_of(p) - p->num_experts));
        TRY(table_cell(table, 5, "%" PRIu64, rows_of(p)));
        TRY(table_cell(table, 6, "%.3f", p->imbalance));
    }
    return OK;
}

static FALLIBLE print_layers(const struct proto_placements *shown) {
    static const char *const NAMES[] = {"LAYER", "EPOCH", "RANKS", "EXPERTS", "REPLICAS", "ROWS", "IMBALANCE", NULL};
    struct table table;
    table_init(&table, NAMES, 0x7f);
    err_t e = fill_layers(&table, shown);
    if (!err_is(e)) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

static bool holds(const struct proto_placement *p, uint32_t expert, uint32_t rank) {
    for (uint32_t i = p->first[expert]; i < p->first[expert + 1]; i++) {
        if (p->holders[i] == rank) {
            return true;
        }
    }
    return false;
}

// Writes the rank's experts, such as "0-3, 9, 12-15"; ends with ", ..." if they do not fit.
static void experts_text(const struct proto_placement *p, uint32_t rank, char *text, size_t size) {
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t e = 0; e < p->num_experts; e++) {
        if (!holds(p, e, rank)) {
            continue;
        }
        uint32_t last = e;
        while (last + 1 < p->num_experts && holds(p, last + 1, rank)) {
            last++;
        }
        if (used + 32 > size) {
            snprintf(text + used, size - used, ", ...");
            return;
        }
        used += (size_t)snprintf(text + used, size - used, last > e ? "%s%" PRIu32 "-%" PRIu32 : "%s%" PRIu32, used ? ", " : "", e,
                                 last);
        e = last;
    }
}

static FALLIBLE fill_ranks(struct table *table, const struct proto_placement *p) {
    uint64_t all = rows_of(p);
    for (uint32_t rank = 0; rank < p->ranks; rank++) {
        uint32_t count = 0;
        double rows = 0;
        for (uint32_t e = 0; e < p->num_experts; e++) {
            if (holds(p, e, rank)) {
                count++;
                rows += (double)p->rows[e] / (p->first[e + 1] - p->first[e]); // replicas share the rows evenly
            }
        }
        char experts[256];
        experts_text(p, rank, experts, sizeof experts);
        TRY(table_row(table));
        TRY(table_cell(table, 0, "%" PRIu32, rank));
        TRY(table_cell(table, 1, "%" PRIu32, count));
        TRY(table_cell(table, 2, "%.0f", rows));
        TRY(table_cell(table, 3, "%.1f %%", all ? 100 * rows / (double)all : 0));
        TRY(table_cell(table, 4, "%s", experts));
    }
    return OK;
}

static FALLIBLE print_ranks(const struct proto_placement *p) {
    static const char *const NAMES[] = {"RANK", "HOLDS", "ROWS", "SHARE", "EXPERTS", NULL};
    struct table table;
    table_init(&table, NAMES, 0xf);
    err_t e = fill_ranks(&table, p);
    if (!err_is(e)) {
        putchar('\n');
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

static FALLIBLE print_shown(const struct proto_placements *shown, const struct ctl_options *options, const char *address) {
    if (options->json) {
        json_t *layers = json_array();
        for (size_t i = 0; i < shown->count; i++) {
            json_array_append_new(layers, plan_file_entry(&shown->items[i]));
        }
        return print_object(address, layers);
    }
    TRY(print_layers(shown));
    return options->have_layer && shown->count == 1 ? print_ranks(&shown->items[0]) : OK;
}

static FALLIBLE show(struct client *client, const struct ctl_options *options) {
    uint32_t layer;
    struct proto_layers layers = layers_of(options, &layer);
    struct proto_placements shown;
    TRY(client_show_placement(client, &layers, options->timeout_us, &shown));
    err_t e = print_shown(&shown, options, client_address(client));
    proto_placements_deinit(&shown);
    return e;
}

// ---- plan

static FALLIBLE fill_plans(struct table *table, const struct proto_plans *plans) {
    char bytes[QUANTITY_TEXT_MAX];
    for (size_t i = 0; i < plans->count; i++) {
        const struct proto_plan *plan = &plans->items[i];
        TRY(table_row(table));
        TRY(table_cell(table, 0, "%" PRIu32, plan->planned.layer));
        TRY(table_cell(table, 1, "%" PRIu64, plan->planned.epoch));
        TRY(table_cell(table, 2, "%" PRIu32, copies_of(&plan->planned) - plan->planned.num_experts));
        TRY(table_cell(table, 3, "%" PRIu64, rows_of(&plan->planned)));
        TRY(table_cell(table, 4, "%.3f", plan->now.imbalance));
        TRY(table_cell(table, 5, "%.3f", plan->planned.imbalance));
        TRY(table_cell(table, 6, "%" PRIu32, plan->copies));
        TRY(table_cell(table, 7, "%s", bytes_text(plan->copy_bytes, bytes)));
    }
    return OK;
}

static FALLIBLE print_plans(const struct proto_plans *plans) {
    static const char *const NAMES[] = {"LAYER", "EPOCH", "REPLICAS", "ROWS", "IMBALANCE", "PLANNED", "TO COPY", "BYTES", NULL};
    struct table table;
    table_init(&table, NAMES, 0xff);
    err_t e = fill_plans(&table, plans);
    if (!err_is(e)) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

static json_t *plans_json(const struct proto_plans *plans) {
    json_t *layers = json_array();
    for (size_t i = 0; i < plans->count; i++) {
        const struct proto_plan *plan = &plans->items[i];
        json_t *entry = plan_file_entry(&plan->planned);
        json_object_set_new(entry, "imbalance_now", json_real(plan->now.imbalance));
        json_object_set_new(entry, "copies", json_integer(plan->copies));
        json_object_set_new(entry, "copy_bytes", json_integer((json_int_t)plan->copy_bytes));
        json_array_append_new(layers, entry);
    }
    return layers;
}

static FALLIBLE print_plan(const struct proto_plans *plans, const struct ctl_options *options, const char *address) {
    if (options->output) {
        json_t *object = json_pack("{s:o, s:o}", "address", json_text(address), "layers", plans_json(plans));
        TRY(plan_file_write_take(options->output, object));
    }
    return options->json ? print_object(address, plans_json(plans)) : print_plans(plans);
}

static FALLIBLE plan(struct client *client, const struct ctl_options *options) {
    uint32_t layer;
    struct proto_plan_request request = {
        .layers = layers_of(options, &layer), .policy = options->policy, .replicas = options->replicas};
    struct proto_plans plans = {0};
    if (options->counts) {
        TRY(plan_file_read_counts(options->counts, &request.counts, &request.num_counts));
    }
    err_t e = client_plan_placement(client, &request, options->timeout_us, &plans);
    if (!err_is(e)) {
        e = print_plan(&plans, options, client_address(client));
    }
    proto_plans_deinit(&plans);
    plan_file_free_counts(request.counts, request.num_counts);
    return e;
}

// ---- apply

struct progress_line {
    uint32_t layer;
    bool terminal;
    time_t printed_at; // second of the last line
};

// On a terminal the line is overwritten; otherwise at most one line a second is printed.
static void on_progress(void *context, const struct proto_progress *p) {
    struct progress_line *line = context;
    time_t now = time(NULL);
    char moved[QUANTITY_TEXT_MAX], all[QUANTITY_TEXT_MAX];
    if (!line->terminal && now == line->printed_at && !p->done) {
        return;
    }
    line->printed_at = now;
    fprintf(stderr, "%slayer %" PRIu32 ": %" PRIu32 " of %" PRIu32 " experts, %s of %s%s", line->terminal ? "\r\033[K" : "",
            line->layer, p->moved_experts, p->all_experts, bytes_text(p->moved_bytes, moved), bytes_text(p->all_bytes, all),
            line->terminal && !p->done ? "" : "\n");
}

static FALLIBLE apply_all(struct client *client, const struct proto_placements *plan, struct proto_progress *ends) {
    for (size_t i = 0; i < plan->count; i++) {
        struct progress_line line = {.layer = plan->items[i].layer, .terminal = isatty(STDERR_FILENO)};
        err_t e = client_apply_placement(client, &plan->items[i], on_progress, &line, &ends[i]);
        if (err_is(e) && line.terminal && ends[i].all_experts) {
            fputc('\n', stderr);
        }
        TRY_IN(e, "layer %" PRIu32 " (%zu of %zu layers are in force)", plan->items[i].layer, i, plan->count);
    }
    return OK;
}

static FALLIBLE print_applied_json(const struct proto_placements *plan, const struct proto_progress *ends, const char *address) {
    json_t *layers = json_array();
    for (size_t i = 0; i < plan->count; i++) {
        json_array_append_new(layers, json_pack("{s:I, s:I, s:I, s:I}", "layer", (json_int_t)plan->items[i].layer, "epoch",
                                                (json_int_t)ends[i].epoch, "moved_experts", (json_int_t)ends[i].moved_experts,
                                                "moved_bytes", (json_int_t)ends[i].moved_bytes));
    }
    return print_object(address, layers);
}

static FALLIBLE fill_applied(struct table *table, const struct proto_placements *plan, const struct proto_progress *ends) {
    char bytes[QUANTITY_TEXT_MAX];
    for (size_t i = 0; i < plan->count; i++) {
        TRY(table_row(table));
        TRY(table_cell(table, 0, "%" PRIu32, plan->items[i].layer));
        TRY(table_cell(table, 1, "%" PRIu64, ends[i].epoch));
        TRY(table_cell(table, 2, "%" PRIu32, ends[i].moved_experts));
        TRY(table_cell(table, 3, "%s", bytes_text(ends[i].moved_bytes, bytes)));
    }
    return OK;
}

static FALLIBLE print_applied(const struct proto_placements *plan, const struct proto_progress *ends) {
    static const char *const NAMES[] = {"LAYER", "EPOCH", "MOVED", "BYTES", NULL};
    struct table table;
    table_init(&table, NAMES, 0xf);
    err_t e = fill_applied(&table, plan, ends);
    if (!err_is(e)) {
        table_print(&table, stdout);
    }
    table_deinit(&table);
    return e;
}

static FALLIBLE apply(struct client *client, const struct ctl_options *options) {
    struct proto_placements plan;
    TRY(plan_file_read(options->plan, &plan));
    struct proto_progress *ends = calloc(plan.count, sizeof *ends);
    if (!ends) {
        size_t layers = plan.count;
        proto_placements_deinit(&plan);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu layers", layers);
    }
    err_t e = apply_all(client, &plan, ends);
    if (!err_is(e)) {
        e = options->json ? print_applied_json(&plan, ends, client_address(client)) : print_applied(&plan, ends);
    }
    free(ends);
    proto_placements_deinit(&plan);
    return e;
}

FALLIBLE command_placement(struct client *client, const struct ctl_options *options) {
    switch (options->placement) {
    case PLACEMENT_SHOW:
        return show(client, options);
    case PLACEMENT_PLAN:
        return plan(client, options);
    default:
        INVARIANT(options->placement == PLACEMENT_APPLY);
        return apply(client, options);
    }
}
