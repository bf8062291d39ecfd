// The links of tests/unit/shard/remote/memory_links.h over gRPC: the tests of the exchange and of layers run over row_links, a
// dialler and a server, all in this process. A rank still computes on a thread of its own.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "daemon/grpc/dial.h"
#include "daemon/rows/row_links.h"
#include "tests/unit/daemon/rows/rows_server.h"
#include "tests/unit/shard/remote/memory_links.h"

enum { QUEUE_MAX = 4096, LAYERS = 64, CONNECT_S = 20, MESSAGE_BYTES_MAX = 64 << 20 };

struct rank {
    struct memory_links *links;
    uint32_t number;
    pthread_t thread;
    // Guarded by links->mutex.
    struct rows_peer *peer; // the server's side of the stream
    bool peer_ends;         // it takes no pieces any more
    struct memory_piece *queue[QUEUE_MAX];
    size_t first, count;
    enum memory_fault fault;
    unsigned after;
    bool stopped, working, ending;
    struct memory_counts received;
    // The owner's side.
    struct dial_channel *channel;
    uint32_t connection;
    bool is_open, reconnects;
    struct row_link_figures before; // when the stream was opened
};

struct memory_links {
    struct memory_links_options options;
    struct remote_links interface; // of row_links, with faults of sending
    uint32_t layers[LAYERS];
    struct rows_server *server;
    struct dialler *dialler;
    struct row_links *rows;
    pthread_mutex_t mutex; // guards the fields of the ranks. Not held while row_links or the rank's work is called
    pthread_cond_t changed;
    struct rank rank[ROWS_SERVER_RANKS];
};

static void lock(struct memory_links *links) {
    pthread_mutex_lock(&links->mutex);
}

static void unlock(struct memory_links *links) {
    pthread_mutex_unlock(&links->mutex);
}

static void changed(struct memory_links *links) {
    pthread_cond_broadcast(&links->changed);
}

static void sleep_us(uint64_t us) {
    struct timespec span = {.tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * NS_PER_US};
    nanosleep(&span, NULL);
}

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

// ---- pieces

static void free_piece(struct memory_piece *piece) {
    free(piece->groups);
    free(piece->hidden_rows);
    free(piece->hidden);
    free(piece);
}

static void *copy_of(const void *from, size_t bytes) {
    void *to = malloc(bytes > 0 ? bytes : 1);
    INVARIANT(to);
    if (bytes > 0) {
        memcpy(to, from, bytes);
    }
    return to;
}

static uint32_t layer_index(const struct memory_links *links, uint32_t layer) {
    uint32_t i = 0;
    while (i < LAYERS && links->layers[i] != layer) {
        i++;
    }
    INVARIANT(i < LAYERS);
    return i;
}

static struct memory_piece *take_copy(const struct memory_links *links, const struct rows_peer *peer,
                                      const struct rows_request *from, const uint8_t *hidden) {
    struct memory_piece *piece = malloc(sizeof *piece);
    INVARIANT(piece);
    *piece = (struct memory_piece){
        .generation = rows_peer_number(peer),
        .batch = from->batch,
        .epoch = from->epoch,
        .layer = layer_index(links, from->layer),
        .row_bytes = from->row_bytes,
        .num_groups = from->num_groups,
        .first_row = from->first_row,
        .rows = from->rows,
        .first_hidden = from->first_hidden,
        .num_hidden = from->num_hidden,
        .groups = copy_of(from->groups, from->num_groups * sizeof(struct remote_group)),
        .hidden_rows = copy_of(from->hidden_rows, from->rows * sizeof *from->hidden_rows),
        .hidden = copy_of(hidden, from->num_hidden * from->row_bytes),
    };
    return piece;
}

static void clear_queue(struct rank *rank) {
    for (; rank->count > 0; rank->count--) {
        free_piece(rank->queue[rank->first]);
        rank->first = (rank->first + 1) % QUEUE_MAX;
    }
}

// ---- the server's side

static void on_peer(void *context, struct rows_peer *peer) {
    struct memory_links *links = context;
    struct rank *rank = &links->rank[rows_peer_rank(peer)];
    lock(links);
    clear_queue(rank);
    rank->stopped = rank->peer_ends = false;
    rank->peer = peer;
    changed(links);
    unlock(links);
}

static void on_piece(void *context, struct rows_peer *peer, const struct rows_request *piece, const uint8_t *hidden) {
    struct memory_links *links = context;
    struct rank *rank = &links->rank[rows_peer_rank(peer)];
    lock(links);
    if (rank->peer == peer && !rank->peer_ends) {
        INVARIANT(rank->count < QUEUE_MAX);
        rank->queue[(rank->first + rank->count++) % QUEUE_MAX] = take_copy(links, peer, piece, hidden);
    }
    changed(links);
    unlock(links);
}

static void on_peer_closed(void *context, struct rows_peer *peer) {
    struct memory_links *links = context;
    struct rank *rank = &links->rank[rows_peer_rank(peer)];
    lock(links);
    if (rank->peer == peer) {
        clear_queue(rank);
        rank->peer = NULL;
    }
    changed(links);
    unlock(links);
}

struct answer {
    uint64_t generation;
    struct rows_reply reply;
    const char *results; // [reply.result_bytes]
};

// Sends one answer, unless the connection has ended.
static void deliver(struct rank *rank, const struct answer *answer) {
    size_t head = rows_encode_reply(&answer->reply, NULL, 0), length = head + answer->reply.result_bytes;
    uint8_t *bytes = malloc(length);
    INVARIANT(bytes);
    rows_encode_reply(&answer->reply, bytes, head);
    if (answer->reply.result_bytes > 0) {
        memcpy(bytes + head, answer->results, answer->reply.result_bytes);
    }
    lock(rank->links);
    if (rank->peer && rows_peer_number(rank->peer) == answer->generation) {
        rows_peer_send(rank->peer, bytes, length);
    }
    unlock(rank->links);
    free(bytes);
}

static void end_connection(struct rank *rank, uint64_t generation, bool reconnects) {
    lock(rank->links);
    if (rank->peer && rows_peer_number(rank->peer) == generation) {
        rank->reconnects = reconnects;
        rank->peer_ends = true;
        rows_peer_end(rank->peer);
        clear_queue(rank);
    }
    unlock(rank->links);
}

// Answers a piece correctly, in one to three messages.
static void deliver_rows(struct rank *rank, const struct answer *all, size_t row_bytes, size_t rows, uint64_t random) {
    size_t parts = 1 + random % 3;
    for (size_t p = 0; p < parts; p++) {
        size_t begin = rows * p / parts, end = rows * (p + 1) / parts;
        if (end > begin) {
            struct answer part = *all;
            part.reply.first_row += (uint32_t)begin;
            part.reply.rows = (uint32_t)(end - begin);
            part.reply.result_bytes = (end - begin) * row_bytes;
            part.results += begin * row_bytes;
            deliver(rank, &part);
        }
    }
}

static void deliver_error(struct rank *rank, const struct answer *all, const char *message) {
    struct answer answer = *all;
    answer.reply.rows = 0;
    answer.reply.result_bytes = 0;
    answer.reply.has_error = true;
    snprintf(answer.reply.reason, sizeof answer.reply.reason, "SHARD_LOST");
    snprintf(answer.reply.message, sizeof answer.reply.message, "%s", message);
    deliver(rank, &answer);
}

static void deliver_wrong(struct rank *rank, struct answer answer, enum memory_fault fault) {
    answer.reply.epoch -= fault == MEMORY_WRONG_EPOCH;
    answer.reply.batch -= fault == MEMORY_WRONG_BATCH;
    answer.reply.batch += fault == MEMORY_FUTURE_BATCH;
    answer.reply.result_bytes -= fault == MEMORY_TOO_FEW_BYTES;
    answer.reply.result_bytes += fault == MEMORY_TOO_MANY_BYTES;
    answer.reply.first_row += fault == MEMORY_OUT_OF_ORDER;
    answer.reply.rows += fault == MEMORY_TOO_MANY_ROWS ? 1000000 : 0;
    deliver(rank, &answer);
}

static void answer_with(struct rank *rank, const struct answer *answer, enum memory_fault fault, size_t row_bytes,
                        uint64_t random) {
    switch (fault) {
    case MEMORY_DIES:
    case MEMORY_RECONNECTS:
        end_connection(rank, answer->generation, fault == MEMORY_RECONNECTS);
        break;
    case MEMORY_DIES_BETWEEN:
        deliver_rows(rank, answer, row_bytes, answer->reply.rows / 2, random);
        end_connection(rank, answer->generation, false);
        break;
    case MEMORY_STOPS:
        break;
    case MEMORY_NO_FAULT:
    case MEMORY_IS_LATE:
        deliver_rows(rank, answer, row_bytes, answer->reply.rows, random);
        break;
    case MEMORY_FAILS:
        deliver_error(rank, answer, "the rank has no memory left");
        break;
    case MEMORY_ANSWERS_TWICE:
        deliver(rank, answer);
        deliver(rank, answer);
        break;
    default:
        deliver_wrong(rank, *answer, fault);
    }
}

static void answer_piece(struct rank *rank, const struct memory_piece *piece, enum memory_fault fault, uint64_t random) {
    const struct memory_links_options *options = &rank->links->options;
    size_t bytes = piece->rows * piece->row_bytes;
    char *results = malloc(bytes + 1); // + 1: a byte too many is readable
    INVARIANT(results);
    memset(results, 0xee, bytes + 1);
    err_t e = options->compute(options->context, rank->number, piece, results);
    struct answer answer = {.generation = piece->generation,
                            .reply = {.batch = piece->batch,
                                      .epoch = piece->epoch,
                                      .first_row = (uint32_t)piece->first_row,
                                      .rows = (uint32_t)piece->rows,
                                      .compute_ns = 1000,
                                      .result_bytes = bytes},
                            .results = results};
    sleep_us(fault == MEMORY_IS_LATE ? options->late_ms * 1000 : random % (options->delay_us_max + 1));
    bool has_rows = fault == MEMORY_NO_FAULT || fault == MEMORY_IS_LATE || fault > MEMORY_FAILS;
    if (err_is(e) && has_rows) {
        deliver_error(rank, &answer, expertd_err_message());
    } else {
        answer_with(rank, &answer, fault, piece->row_bytes, random);
    }
    free(results);
}

static struct memory_piece *next_piece(struct rank *rank, enum memory_fault *fault) {
    struct memory_links *links = rank->links;
    lock(links);
    rank->working = false;
    changed(links);
    while (!rank->ending && (rank->count == 0 || rank->stopped)) {
        pthread_cond_wait(&links->changed, &links->mutex);
    }
    struct memory_piece *piece = rank->ending ? NULL : rank->queue[rank->first];
    *fault = MEMORY_NO_FAULT;
    if (piece) {
        rank->first = (rank->first + 1) % QUEUE_MAX;
        rank->count--;
        rank->working = true;
        rank->received.pieces++;
        rank->received.rows += piece->rows;
        rank->received.hidden += piece->num_hidden;
        if (rank->fault > MEMORY_CANNOT_SEND && rank->after-- == 0) {
            *fault = rank->fault;
            rank->fault = MEMORY_NO_FAULT;
            rank->stopped = *fault == MEMORY_STOPS;
        }
    }
    unlock(links);
    return piece;
}

static void *run_rank(void *context) {
    struct rank *rank = context;
    uint64_t random = rank->links->options.seed * 2654435761 + rank->number + 1;
    enum memory_fault fault;
    for (struct memory_piece *piece; (piece = next_piece(rank, &fault));) {
        answer_piece(rank, piece, fault, next_random(&random));
        free_piece(piece);
    }
    return NULL;
}

// ---- the owner's side

static void dial(struct memory_links *links, struct rank *rank) {
    struct row_link_figures figures;
    uint8_t token[ROWS_TOKEN_LENGTH] = {(uint8_t)rank->number};
    row_links_figures(links->rows, rank->number, &figures);
    lock(links);
    uint32_t connection = ++rank->connection;
    rank->is_open = true;
    rank->before = figures;
    unlock(links);
    INVARIANT(!err_is(row_links_open(links->rows, rank->number, connection, rank->channel, token, CONNECT_S * (int64_t)NS_PER_S)));
}

static void on_opened(void *context, uint32_t number, uint32_t connection) {
    struct memory_links *links = context;
    lock(links);
    INVARIANT(links->rank[number].is_open && links->rank[number].connection == connection);
    unlock(links);
}

static void on_ended(void *context, uint32_t number, uint32_t connection, const char *why) {
    struct memory_links *links = context;
    struct rank *rank = &links->rank[number];
    INVARIANT(why[0]);
    lock(links);
    INVARIANT(rank->is_open && rank->connection == connection);
    bool reconnects = rank->is_open = rank->reconnects;
    rank->reconnects = false;
    changed(links);
    unlock(links);
    if (reconnects) {
        dial(links, rank);
    }
}

static uint64_t generation(void *context, uint32_t rank) {
    const struct remote_links *rows = row_links_remote(((struct memory_links *)context)->rows);
    return rows->table->generation(rows->context, rank);
}

static err_t send_piece(void *context, uint32_t number, uint64_t expected, const struct remote_piece *piece) {
    struct memory_links *links = context;
    struct rank *rank = &links->rank[number];
    const struct remote_links *rows = row_links_remote(links->rows);
    lock(links);
    bool fails = rank->fault == MEMORY_CANNOT_SEND && rank->after-- == 0;
    unlock(links);
    if (fails) {
        row_links_close(links->rows, number, "the connection has ended");
    }
    return rows->table->send(rows->context, number, expected, piece);
}

static void abandon(void *context, uint32_t rank, uint64_t expected, uint64_t batch) {
    const struct remote_links *rows = row_links_remote(((struct memory_links *)context)->rows);
    rows->table->abandon(rows->context, rank, expected, batch);
}

static void drop(void *context, uint32_t rank, uint64_t expected, const char *why) {
    const struct remote_links *rows = row_links_remote(((struct memory_links *)context)->rows);
    rows->table->drop(rows->context, rank, expected, why);
    INVARIANT(rows->table->generation(rows->context, rank) != expected);
}

static void attach(void *context, struct remote_results *results) {
    const struct remote_links *rows = row_links_remote(((struct memory_links *)context)->rows);
    rows->table->attach(rows->context, results);
}

static const struct remote_links_table TABLE = {
    .generation = generation, .send = send_piece, .abandon = abandon, .drop = drop, .attach = attach};

static void start_front(struct memory_links *links) {
    struct dialler_options dialler = {.threads = 2, .name = "dial", .max_message_bytes = MESSAGE_BYTES_MAX};
    INVARIANT(!err_is(dialler_create(&dialler, &links->dialler)));
    for (uint32_t i = 0; i < LAYERS; i++) {
        links->layers[i] = 3 * i + 7;
    }
    struct row_links_options options = {.ranks = links->options.ranks,
                                        .local_ranks = links->options.local_ranks,
                                        .layers = links->layers,
                                        .num_layers = LAYERS,
                                        .dialler = links->dialler,
                                        .method = ROWS_SERVER_METHOD,
                                        .opened = on_opened,
                                        .ended = on_ended,
                                        .context = links};
    INVARIANT(!err_is(row_links_create(&options, &links->rows)));
    for (uint32_t i = links->options.local_ranks; i < links->options.ranks; i++) {
        struct dial_channel_options channel = {.address = rows_server_address(links->server), .thread = i % 2};
        INVARIANT(!err_is(dial_channel_create(links->dialler, &channel, &links->rank[i].channel)));
        row_links_use(links->rows, i, true, "");
    }
}

struct memory_links *memory_links_create(const struct memory_links_options *options) {
    struct memory_links *links = calloc(1, sizeof *links);
    INVARIANT(links && options->ranks <= ROWS_SERVER_RANKS);
    links->options = *options;
    links->interface = (struct remote_links){&TABLE, links};
    pthread_mutex_init(&links->mutex, NULL);
    pthread_cond_init(&links->changed, NULL);
    struct rows_server_options server = {links, on_peer, on_piece, on_peer_closed};
    links->server = rows_server_start(&server);
    start_front(links);
    for (uint32_t i = options->local_ranks; i < options->ranks; i++) {
        links->rank[i].links = links;
        links->rank[i].number = i;
        INVARIANT(pthread_create(&links->rank[i].thread, NULL, run_rank, &links->rank[i]) == 0);
    }
    memory_links_restore(links);
    return links;
}

static void stop_rank(struct memory_links *links, struct rank *rank) {
    row_links_close(links->rows, rank->number, "the test ends");
    lock(links);
    while (rank->is_open) {
        pthread_cond_wait(&links->changed, &links->mutex);
    }
    rank->ending = true;
    changed(links);
    unlock(links);
    pthread_join(rank->thread, NULL);
    dial_channel_destroy(rank->channel);
}

void memory_links_destroy(struct memory_links *links) {
    for (uint32_t i = links->options.local_ranks; i < links->options.ranks; i++) {
        stop_rank(links, &links->rank[i]);
    }
    row_links_destroy(links->rows);
    dialler_destroy(links->dialler);
    rows_server_stop(links->server);
    for (uint32_t i = 0; i < ROWS_SERVER_RANKS; i++) {
        clear_queue(&links->rank[i]);
    }
    pthread_cond_destroy(&links->changed);
    pthread_mutex_destroy(&links->mutex);
    free(links);
}

const struct remote_links *memory_links_of(const struct memory_links *links) {
    return &links->interface;
}

void memory_links_plant(struct memory_links *links, uint32_t rank, enum memory_fault fault, unsigned after) {
    lock(links);
    links->rank[rank].fault = fault;
    links->rank[rank].after = after;
    unlock(links);
}

void memory_links_end(struct memory_links *links, uint32_t rank) {
    row_links_close(links->rows, rank, "the connection has ended");
}

// Whether everything that either side has sent has arrived, and the rank works on nothing. A stream that is ending does not rest.
static bool is_at_rest(struct memory_links *links, struct rank *rank) {
    struct row_link_figures figures;
    row_links_figures(links->rows, rank->number, &figures);
    lock(links);
    bool rests = !rank->working && (rank->count == 0 || rank->stopped);
    if (rank->is_open) {
        rests &= generation(links, rank->number) > 0 && rank->peer && !rows_peer_is_busy(rank->peer) &&
                 figures.bytes_sent - rank->before.bytes_sent == rows_peer_received(rank->peer) &&
                 figures.answers - rank->before.answers == rows_peer_sent(rank->peer);
    } else {
        rests &= !rank->peer;
    }
    unlock(links);
    return rests;
}

void memory_links_restore(struct memory_links *links) {
    for (uint32_t i = links->options.local_ranks; i < links->options.ranks; i++) {
        struct rank *rank = &links->rank[i];
        while (!is_at_rest(links, rank)) {
            sleep_us(100);
        }
        lock(links);
        rank->fault = MEMORY_NO_FAULT;
        rank->stopped = false;
        bool is_open = rank->is_open;
        changed(links);
        unlock(links);
        if (!is_open) {
            dial(links, rank);
        }
        while (generation(links, i) == 0) {
            sleep_us(100);
        }
    }
}

struct memory_counts memory_links_received(struct memory_links *links, uint32_t rank) {
    lock(links);
    struct memory_counts counts = links->rank[rank].received;
    links->rank[rank].received = (struct memory_counts){0};
    unlock(links);
    return counts;
}
