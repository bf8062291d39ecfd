#include "daemon/front/front_connection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "daemon/front/front_replies.h"
#include "daemon/front/front_step.h"
#include "daemon/log/log.h"

enum { KEEPALIVE_MS = 10000, KEEPALIVE_TIMEOUT_MS = 5000 }; // for connections whose rows stream is idle
enum { MESSAGES_PER_TICK = 256 };                           // of a shard; a correct one sends a few

static struct front_connection *find(struct front *front, uint32_t member, uint32_t number) {
    struct front_connection *c;
    LIST_FOREACH(c, &front->connections, link) {
        if (c->member == member && c->number == number) {
            return c;
        }
    }
    return NULL;
}

static void note_why(const struct front_connection *c, const char *why) {
    snprintf(c->front->notes[c->member].why, FRONT_WHY_MAX, "%s", why);
}

static void forget_outbox(struct front_connection *c) {
    struct front_message *message;
    while ((message = STAILQ_FIRST(&c->outbox))) {
        STAILQ_REMOVE_HEAD(&c->outbox, link);
        free(message);
    }
    c->outbox_bytes = 0;
}

// Frees the connection once both streams have ended.
static void free_ended(struct front_connection *c) {
    struct front *front = c->front;
    if (c->control || c->has_rows) {
        return;
    }
    LIST_REMOVE(c, link);
    forget_outbox(c);
    dial_channel_destroy(c->control_channel);
    dial_channel_destroy(c->rows_channel);
    free(c);
    if (LIST_EMPTY(&front->connections)) {
        pthread_cond_broadcast(&front->unconnected);
    }
}

// A connection whose streams could not be created has no end that a callback tells.
static void free_unopened(struct front_connection *c) {
    if (c->never_opened) {
        free_ended(c);
    }
}

// ---- to the shard

// Sends the next message: a heartbeat that is due, else the oldest of the outbox.
static void send_next(struct front_connection *c) {
    struct front_message *message = STAILQ_FIRST(&c->outbox);
    if (c->is_writing || c->is_closing || !c->control) {
        return;
    }
    if (c->heartbeat_is_due && c->is_greeted) {
        struct shard_request beat = {.kind = SHARD_HEARTBEAT, .heartbeat = (uint64_t)clock_now_ns()};
        struct proto_bytes bytes;
        c->heartbeat_is_due = false;
        if (!err_is(shard_encode_request(&beat, &bytes))) {
            c->is_writing = dial_write(c->control, bytes.data, bytes.length, NULL, 0);
            free(bytes.data);
            return;
        }
    }
    if (message) {
        STAILQ_REMOVE_HEAD(&c->outbox, link);
        c->outbox_bytes -= message->length;
        c->is_writing = dial_write(c->control, message->bytes, message->length, NULL, 0);
        free(message);
    }
}

static void close_streams(struct front_connection *c, const char *why) {
    if (c->has_rows) {
        row_links_close(c->front->links, c->member, why);
    }
    dial_channel_cut(c->control_channel);
}

// Ends a connection for a reason that the membership does not know: front_connection_next tells it.
static void break_connection(struct front_connection *c, const char *why) {
    note_why(c, why);
    close_streams(c, why);
}

static FALLIBLE put_in_outbox(struct front_connection *c, const struct proto_bytes *bytes) {
    if (c->outbox_bytes + bytes->length > FRONT_OUTBOX_BYTES_MAX) {
        FAIL(EXPERTD_ERR_UNAVAILABLE, "the shard has not read its control messages: %zu bytes wait", c->outbox_bytes);
    }
    struct front_message *message = malloc(sizeof *message + bytes->length);
    if (!message) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a control message of %zu bytes", bytes->length);
    }
    message->length = bytes->length;
    memcpy(message->bytes, bytes->data, bytes->length);
    STAILQ_INSERT_TAIL(&c->outbox, message, link);
    c->outbox_bytes += bytes->length;
    return OK;
}

static void send_request(struct front_connection *c, const struct shard_request *request) {
    struct proto_bytes bytes;
    err_t e = shard_encode_request(request, &bytes);
    if (!err_is(e)) {
        e = put_in_outbox(c, &bytes);
        free(bytes.data);
    }
    if (err_is(e)) {
        break_connection(c, expertd_err_message());
        return;
    }
    send_next(c);
}

// Of a batch: one for each token, but one for each row where weights multiply the experts' input.
static uint32_t most_hidden_rows(const struct front *front) {
    const struct model *model = front->options.model;
    bool is_expanded = false;
    for (size_t i = 0; i < model->num_layers; i++) {
        is_expanded |= model->layers[i].params.weights_on_input;
    }
    return is_expanded ? (uint32_t)front->options.limits.max_choices : front->options.limits.max_tokens;
}

static void send_hello(struct front_connection *c) {
    const struct front *front = c->front;
    const struct member_identity *identity = &front->membership.options.identity;
    const struct layer_limits *limits = &front->options.limits;
    struct shard_request request = {.kind = SHARD_FRONT_HELLO,
                                    .hello = {.identity = {.protocol = identity->protocol,
                                                           .numerics_id = identity->numerics_id,
                                                           .compute_dtype = identity->compute_dtype},
                                              .instance = front->instance,
                                              .version = EXPERTD_VERSION,
                                              .asks_lease = front->membership.options.is_owner,
                                              .max_batch_rows = (uint32_t)limits->max_choices,
                                              .max_batch_hidden = most_hidden_rows(front)}};
    memcpy(request.hello.identity.model_digest, identity->model_digest, sizeof identity->model_digest);
    send_request(c, &request);
}

// Divides the experts into lists of one layer each. Returns their number.
static size_t lists_of(const struct front *front, const struct membership_action *action, struct shard_experts *lists,
                       uint32_t *experts) {
    size_t count = 0;
    for (size_t i = 0; i < action->count; i++) {
        uint32_t layer = front->layer_numbers[action->experts[i].layer];
        experts[i] = action->experts[i].expert;
        if (count == 0 || lists[count - 1].layer != layer) {
            lists[count++] = (struct shard_experts){.layer = layer, .experts = &experts[i]};
        }
        lists[count - 1].count++;
    }
    return count;
}

void front_connection_command(struct front *front, const struct membership_action *action) {
    struct shard_experts lists[MEMBERSHIP_LIST_MAX];
    uint32_t experts[MEMBERSHIP_LIST_MAX];
    struct front_connection *c = find(front, action->member, action->connection);
    if (!c) {
        return;
    }
    struct shard_request request = {.kind = action->kind == MEMBERSHIP_ASSIGN   ? SHARD_ASSIGN
                                            : action->kind == MEMBERSHIP_RETIRE ? SHARD_RETIRE
                                                                                : SHARD_RELEASE};
    if (action->kind == MEMBERSHIP_DRAIN) {
        request = (struct shard_request){.kind = SHARD_DRAIN, .drains = action->drains};
    } else {
        request.number = action->number;
        request.experts = (struct shard_expert_lists){lists, lists_of(front, action, lists, experts)};
    }
    send_request(c, &request);
}

// ---- from the shard

// Asks for the shard's next message, but not before the rows stream is open: when the inventory is complete, batches may use the
// shard.
static void read_next(struct front_connection *c) {
    if (c->control && !c->is_closing) {
        (void)dial_read(c->control);
    }
}

// The same after a message. A shard that sends without end occupies the thread that hears the others for a part of the time only.
static void read_further(struct front_connection *c) {
    c->is_paced = ++c->messages >= MESSAGES_PER_TICK;
    if (!c->is_paced) {
        read_next(c);
    }
}

void front_connection_heartbeats(struct front *front) {
    struct front_connection *c;
    LIST_FOREACH(c, &front->connections, link) {
        c->heartbeat_is_due = true; // one that has not left yet counts as silence
        send_next(c);
        c->messages = 0;
        if (c->is_paced) {
            c->is_paced = false;
            read_next(c);
        }
    }
}

static void open_rows(struct front_connection *c) {
    struct front *front = c->front;
    struct front_connection *other;
    LIST_FOREACH(other, &front->connections, link) {
        if (other != c && other->member == c->member && other->has_rows) {
            c->wants_rows = true; // front_connection_rows_ended of the other one opens them
            return;
        }
    }
    c->wants_rows = false;
    err_t e =
        row_links_open(front->links, c->member, c->number, c->rows_channel, c->token, front->membership.options.connect_timeout_ns);
    c->has_rows = !err_is(e);
    if (err_is(e)) {
        break_connection(c, expertd_err_message());
    }
}

static void greet(struct front_connection *c) {
    const struct member *member = &c->front->membership.members[c->member];
    if (!c->is_closing && member->connection == c->number && member->link == LINK_SYNCING) {
        c->is_greeted = true;
        open_rows(c);
    }
}

static void log_refused(const struct front_connection *c, const char *message) {
    char address[2 * MEMBER_ADDRESS_MAX], quoted[2 * EXPERTD_ERR_MESSAGE_MAX];
    log_line(LOG_LEVEL_WARNING, "control_refused", "shard=%u address=%s message=%s", c->member,
             log_quote(c->front->membership.members[c->member].address, address, sizeof address),
             log_quote(message, quoted, sizeof quoted));
}

static void on_message(void *data, struct dial_stream *stream, struct rpc_buffer *message) {
    struct front_connection *c = data;
    struct front *front = c->front;
    (void)stream;
    if (!message) {
        return; // the end follows
    }
    front_lock(front);
    bool was_greeted = c->is_greeted;
    err_t e = c->is_closing ? OK : front_replies_take(c, message->data, message->length);
    dial_buffer_release(front->dialler, message);
    if (err_is(e)) {
        log_refused(c, expertd_err_message());
        break_connection(c, expertd_err_message());
    } else if (was_greeted) {
        read_further(c);
    } else {
        greet(c);
    }
    front_unlock(front);
}

void front_connection_rows_opened(void *context, uint32_t rank, uint32_t number) {
    struct front *front = context;
    front_lock(front);
    struct front_connection *c = find(front, rank, number);
    if (c) {
        read_next(c);
    }
    front_unlock(front);
}

// ---- life

static void on_opened(void *data, struct dial_stream *stream) {
    (void)data, (void)stream;
}

static void on_written(void *data, struct dial_stream *stream, bool ok) {
    struct front_connection *c = data;
    (void)stream;
    front_lock(c->front);
    c->is_writing = false;
    if (ok) {
        send_next(c);
    }
    front_unlock(c->front);
}

// Both streams end together: the end of one is the end of the connection.
static void ended(struct front_connection *c, const char *why) {
    if (!c->is_closing && !c->front->notes[c->member].why[0]) {
        note_why(c, why);
    }
    close_streams(c, why);
    front_run(c->front);
    free_ended(c);
}

// The shard does not accept this front's hello, or its certificate. Another try gives the same answer until something is changed.
static bool is_refusal(enum expertd_err_code code) {
    return code == EXPERTD_ERR_INVALID || code == EXPERTD_ERR_TOO_LARGE || code == EXPERTD_ERR_PERMISSION ||
           code == EXPERTD_ERR_UNIMPLEMENTED;
}

static void on_closed(void *data, struct dial_stream *stream, const struct dial_end *end) {
    struct front_connection *c = data;
    struct front *front = c->front;
    char why[FRONT_WHY_MAX];
    snprintf(why, sizeof why, "%s%s%s", end->reason, end->reason[0] ? ": " : "", end->message);
    front_lock(front);
    c->control = NULL;
    c->was_refused = !c->is_greeted && end->answered && is_refusal(end->code);
    dial_release(stream);
    ended(c, end->cancelled ? "the connection was ended" : why);
    front_unlock(front);
}

void front_connection_rows_ended(void *context, uint32_t rank, uint32_t number, const char *why) {
    struct front *front = context;
    front_lock(front);
    struct front_connection *c = find(front, rank, number), *next;
    if (c) {
        c->has_rows = false;
        LIST_FOREACH(next, &front->connections, link) {
            if (next != c && next->member == rank && next->wants_rows && !next->is_closing) {
                open_rows(next);
            }
        }
        ended(c, why);
    }
    front_unlock(front);
}

static bool has_ended(const struct front_connection *c) {
    return !c->control || (c->is_greeted && !c->has_rows && !c->wants_rows);
}

bool front_connection_next(struct front *front, struct membership_event *event) {
    struct front_connection *c;
    LIST_FOREACH(c, &front->connections, link) {
        if (!c->is_closing && has_ended(c)) {
            c->is_closing = true;
            *event = (struct membership_event){.kind = c->was_refused  ? MEMBERSHIP_NOT_ACCEPTED
                                                       : c->is_greeted ? MEMBERSHIP_DISCONNECTED
                                                                       : MEMBERSHIP_CONNECT_FAILED,
                                               .member = c->member,
                                               .connection = c->number};
            free_unopened(c);
            return true;
        }
    }
    return false;
}

void front_connection_close(struct front *front, uint32_t member, uint32_t number, const char *why) {
    struct front_connection *c = find(front, member, number);
    if (c && !c->is_closing) {
        c->is_closing = true;
        close_streams(c, why);
        free_unopened(c);
    }
}

static const struct dial_handler HANDLER = {.opened = on_opened, .message = on_message, .written = on_written, .closed = on_closed};

// The names that the shard's certificate may have. NULL: the host of its address.
static const char *allowed_names(const struct front_connection *c, char name[OPTIONS_HOST_MAX]) {
    const struct front *front = c->front;
    const struct options *o = front->options.options;
    int host = front->notes[c->member].host;
    if (o->tls_ca && !o->tls_allow_shards && host >= 0 && front->hosts[host].is_name) {
        snprintf(name, OPTIONS_HOST_MAX, "%s", front->hosts[host].address);
        *strrchr(name, ':') = '\0'; // dns:NAME:PORT
        size_t length = strlen(name);
        if (length > 1 && name[length - 1] == '.') { // an absolute name; certificates have it without the dot
            name[length - 1] = '\0';
        }
        return name;
    }
    return o->tls_ca ? o->tls_allow_shards : NULL;
}

static FALLIBLE create_channels(struct front_connection *c) {
    const struct front *front = c->front;
    const struct options *o = front->options.options;
    char name[OPTIONS_HOST_MAX];
    struct dial_channel_options options = {.address = front->membership.members[c->member].address,
                                           .thread = FRONT_CONTROL_THREAD,
                                           .tls = o->tls_ca ? front->options.tls : NULL,
                                           .allowed_servers = allowed_names(c, name),
                                           .keepalive_time_ms = KEEPALIVE_MS,
                                           .keepalive_timeout_ms = KEEPALIVE_TIMEOUT_MS};
    TRY(dial_channel_create(front->dialler, &options, &c->control_channel));
    options.thread = 1 + c->member % (front_dial_threads(front) - 1);
    return dial_channel_create(front->dialler, &options, &c->rows_channel);
}

static FALLIBLE open_control(struct front_connection *c) {
    struct dial_stream_options options = {.method = "expertd.shard.v1.Shard/Control",
                                          .handler = &HANDLER,
                                          .data = c,
                                          .connect_timeout_ns = c->front->membership.options.connect_timeout_ns};
    TRY(create_channels(c));
    TRY(dial_open(c->control_channel, &options, &c->control));
    (void)dial_read(c->control);
    send_hello(c);
    return OK;
}

void front_connection_dial(struct front *front, uint32_t member, uint32_t number) {
    struct front_connection *c = calloc(1, sizeof *c);
    INVARIANT(c); // some hundred bytes
    *c = (struct front_connection){.front = front, .member = member, .number = number, .dialled_ns = clock_now_ns()};
    STAILQ_INIT(&c->outbox);
    LIST_INSERT_HEAD(&front->connections, c, link);
    front->notes[member].why[0] = '\0';
    if (err_is(open_control(c))) {
        c->never_opened = true;
        note_why(c, expertd_err_message()); // c->control is NULL: front_connection_next
    }
}
