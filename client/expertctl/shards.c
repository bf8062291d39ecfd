// expertctl shards: lists a front's shards, drains, adds and removes them.
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/c/admin.h"
#include "client/expertctl/commands.h"
#include "client/expertctl/print/json_out.h"
#include "client/expertctl/print/shard_table.h"
#include "client/expertctl/print/table.h"

enum { WAIT_STEP_MS = 200, CONFIRM_LOOKS_MAX = 10 };

// ---- list

static json_t *listing_json(const struct proto_shards *shards, const char *address) {
    json_t *list = json_array();
    for (size_t i = 0; i < shards->count; i++) {
        json_array_append_new(list, shard_json(&shards->items[i]));
    }
    return json_pack("{s:o, s:o, s:o}", "address", json_text(address), "shards", list, "summary",
                     shard_summary_json(&shards->summary));
}

static FALLIBLE list(struct client *client, const struct ctl_options *options) {
    struct proto_shards shards;
    TRY(client_list_shards(client, options->timeout_us, &shards));
    err_t e =
        options->json ? json_print_take(listing_json(&shards, client_address(client))) : shard_table_print(&shards, false, stdout);
    proto_shards_deinit(&shards);
    return e;
}

// ---- changes

// *found false: no shard has the address.
static FALLIBLE read_shard(struct client *client, const struct ctl_options *options, struct proto_shard *out, bool *found) {
    struct proto_shards shards;
    TRY(client_list_shards(client, options->timeout_us, &shards));
    *found = false;
    for (size_t i = 0; i < shards.count && !*found; i++) {
        *found = strcmp(shards.items[i].address, options->shard) == 0;
        *out = *found ? shards.items[i] : *out;
    }
    proto_shards_deinit(&shards);
    return OK;
}

struct wait_line {
    bool terminal, was_printed;
    time_t printed_at; // second of the last line
    uint32_t shown;    // experts
    bool shown_live;   // what the last line said
};

// On a terminal the line is overwritten; otherwise at most one line a second is printed, and only news.
static void show_wait(struct wait_line *line, const struct proto_shard *s) {
    char address[PROTO_SHARD_ADDRESS_MAX], state[PROTO_SHARD_NAME_MAX];
    time_t now = time(NULL);
    uint32_t left = s->ready + s->loading + s->retiring;
    bool is_news = !line->was_printed || line->shown != left || line->shown_live != s->live;
    if (!is_news || (!line->terminal && line->was_printed && now == line->printed_at)) {
        return;
    }
    memcpy(address, s->address, sizeof address);
    memcpy(state, s->state, sizeof state);
    fprintf(stderr, "%s%s: %" PRIu32 " experts left%s%s%s", line->terminal ? "\r\033[K" : "", table_text(address), left,
            s->live ? "" : "; it is ", s->live ? "" : table_text(state), line->terminal ? "" : "\n");
    *line = (struct wait_line){line->terminal, true, now, left, s->live};
}

// Waits until the shard holds no experts, or is gone. *out: its last state.
static FALLIBLE await_drained(struct client *client, const struct ctl_options *options, struct proto_shard *out, bool *found) {
    struct wait_line line = {.terminal = isatty(STDERR_FILENO)};
    unsigned not_draining = 0; // looks in a row: a shard in use confirms the request within milliseconds
    err_t e;
    for (;;) {
        e = read_shard(client, options, out, found);
        if (err_is(e) || !*found || out->drained) {
            break;
        }
        not_draining = out->draining || !out->live ? 0 : not_draining + 1;
        if (not_draining > CONFIRM_LOOKS_MAX) {
            e = err_record(EXPERTD_ERR_INTERNAL, NULL,
                           "the drain of %s ended before the shard was empty: it was cancelled, or the shard was restarted",
                           options->shard);
            break;
        }
        show_wait(&line, out);
        nanosleep(&(struct timespec){.tv_nsec = (long)WAIT_STEP_MS * NS_PER_MS}, NULL);
    }
    if (line.terminal && line.was_printed) {
        fputc('\n', stderr);
    }
    return e;
}

static enum proto_shard_change change_of(const struct ctl_options *options) {
    switch (options->shards_command) {
    case SHARDS_DRAIN:
        return options->cancel ? PROTO_SHARD_KEEP : PROTO_SHARD_DRAIN;
    case SHARDS_ADD:
        return PROTO_SHARD_ADD;
    default:
        INVARIANT(options->shards_command == SHARDS_REMOVE);
        return PROTO_SHARD_REMOVE;
    }
}

static void print_change(const struct ctl_options *options, struct proto_shard *shard, bool found) {
    switch (change_of(options)) {
    case PROTO_SHARD_KEEP:
        printf("%s: the drain is cancelled\n", options->shard);
        break;
    case PROTO_SHARD_ADD:
        printf("%s: added; expertctl shards shows when it takes rows\n", options->shard);
        break;
    case PROTO_SHARD_REMOVE:
        printf(
            found
                ? "%s: removed; it is used until it is drained or its connection ends (expertctl shards drain moves its experts)\n"
                : "%s: removed\n",
            options->shard);
        break;
    default:
        if (!found) {
            printf("%s: the front has no such shard any more\n", options->shard);
        } else if (shard->drained) {
            printf("%s: drained, it holds no experts\n", options->shard);
        } else {
            printf("%s: the drain is requested, %" PRIu32 " experts are left%s%s\n", options->shard,
                   shard->ready + shard->loading + shard->retiring, shard->live ? "" : "; the shard is ",
                   shard->live ? "" : table_text(shard->state));
        }
    }
}

static FALLIBLE change(struct client *client, const struct ctl_options *options) {
    struct proto_change_shard request = {.change = change_of(options)};
    struct proto_shard shard = {0};
    bool found = false;
    snprintf(request.address, sizeof request.address, "%s", options->shard);
    TRY(client_change_shard(client, &request, options->timeout_us));
    TRY(options->wait ? await_drained(client, options, &shard, &found) : read_shard(client, options, &shard, &found));
    if (options->json) {
        return json_print_take(json_pack("{s:o, s:o}", "address", json_text(client_address(client)), "shard",
                                         found ? shard_json(&shard) : json_null()));
    }
    print_change(options, &shard, found);
    return OK;
}

FALLIBLE command_shards(struct client *client, const struct ctl_options *options) {
    return options->shards_command == SHARDS_LIST ? list(client, options) : change(client, options);
}
