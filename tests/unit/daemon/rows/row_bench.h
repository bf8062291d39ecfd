// One link over gRPC with a scripted server, and batches whose rows can be checked: for test_row_links.c.
#ifndef EXPERTD_TESTS_UNIT_DAEMON_ROWS_ROW_BENCH_H
#define EXPERTD_TESTS_UNIT_DAEMON_ROWS_ROW_BENCH_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "daemon/grpc/dial.h"
#include "daemon/rows/row_links.h"
#include "shard/remote/remote_results.h"
#include "tests/unit/daemon/rows/rows_server.h"

enum { RANKS = 3, LOCAL = 1, RANK = 2, LAYER = 1, WAIT_S = 20, RECORDS = 1024, MIB = 1 << 20 };
enum { WIDE = 6000, WIDE_STRIDE = 6016, EPOCH = 77 };
#define CONNECT_NS (WAIT_S * (int64_t)NS_PER_S)

static const uint32_t LAYERS[] = {3, 45};

struct record { // of a piece that the server received
    uint64_t batch;
    uint32_t layer, first_row;
    size_t rows, hidden;
};

struct bench {
    struct rows_server *server;
    struct dialler *dialler;
    struct dial_channel *channel;
    struct row_links *links;
    const struct remote_links *remote;
    struct remote_results *results;
    pthread_mutex_t mutex; // guards the fields below
    struct rows_peer *peer;
    struct record records[RECORDS];
    unsigned received, opened, ended, peers;
    uint32_t last_opened, last_ended;
    char why[512];
    bool answers; // the server answers each piece
    size_t row_bytes;
};

static inline void lock(struct bench *b) {
    pthread_mutex_lock(&b->mutex);
}

static inline void unlock(struct bench *b) {
    pthread_mutex_unlock(&b->mutex);
}

static inline uint8_t byte_of(uint64_t batch, size_t row, size_t at) {
    return (uint8_t)(batch * 31 + row * 7 + at + at / 256);
}

// ---- the server

static inline void send_rows(struct bench *b, struct rows_peer *peer, struct rows_reply reply) {
    size_t head = rows_encode_reply(&reply, NULL, 0);
    uint8_t *bytes = malloc(head + reply.result_bytes + 1);
    rows_encode_reply(&reply, bytes, head);
    for (size_t i = 0; i < reply.result_bytes; i++) { // a result row is the complement of its hidden row
        bytes[head + i] = (uint8_t)~byte_of(reply.batch, reply.first_row + i / b->row_bytes, i % b->row_bytes);
    }
    rows_peer_send(peer, bytes, head + reply.result_bytes);
    free(bytes);
}

static inline void on_peer(void *context, struct rows_peer *peer) {
    struct bench *b = context;
    lock(b);
    b->peer = peer;
    b->peers++;
    unlock(b);
}

static inline void on_peer_closed(void *context, struct rows_peer *peer) {
    struct bench *b = context;
    lock(b);
    b->peer = b->peer == peer ? NULL : b->peer;
    unlock(b);
}

static inline void on_piece(void *context, struct rows_peer *peer, const struct rows_request *piece, const uint8_t *hidden) {
    struct bench *b = context;
    INVARIANT(piece->num_groups == 2 && piece->groups[1] + piece->groups[3] == piece->rows && piece->epoch == EPOCH);
    for (size_t i = 0; i < piece->num_hidden; i++) {
        for (size_t c = 0; c < piece->row_bytes; c += 13) {
            INVARIANT(hidden[i * piece->row_bytes + c] == byte_of(piece->batch, piece->first_hidden + i, c));
        }
    }
    lock(b);
    b->records[b->received % RECORDS] =
        (struct record){piece->batch, piece->layer, piece->first_row, piece->rows, piece->num_hidden};
    b->received++;
    if (b->answers) {
        send_rows(b, peer,
                  (struct rows_reply){.batch = piece->batch,
                                      .epoch = piece->epoch,
                                      .first_row = piece->first_row,
                                      .rows = (uint32_t)piece->rows,
                                      .compute_ns = 5,
                                      .result_bytes = piece->rows * piece->row_bytes});
    }
    unlock(b);
}

static inline void set_answers(struct bench *b, bool answers) {
    lock(b);
    b->answers = answers;
    unlock(b);
}

// ---- the owner

static inline void on_opened(void *context, uint32_t rank, uint32_t connection) {
    struct bench *b = context;
    INVARIANT(rank == RANK);
    lock(b);
    b->opened++;
    b->last_opened = connection;
    unlock(b);
}

static inline void on_ended(void *context, uint32_t rank, uint32_t connection, const char *why) {
    struct bench *b = context;
    INVARIANT(rank == RANK);
    lock(b);
    b->ended++;
    b->last_ended = connection;
    snprintf(b->why, sizeof b->why, "%s", why);
    unlock(b);
}

static inline void sleep_us(unsigned us) {
    nanosleep(&(struct timespec){.tv_nsec = us * NS_PER_US}, NULL);
}

// Waits until the number, which the mutex guards, is at least `wanted`.
static inline bool await(struct bench *b, const unsigned *number, unsigned wanted) {
    int64_t until_ns = clock_now_ns() + WAIT_S * (int64_t)NS_PER_S;
    bool reached = false;
    while (!reached && clock_now_ns() < until_ns) {
        lock(b);
        reached = *number >= wanted;
        unlock(b);
        sleep_us(reached ? 0 : 100);
    }
    return reached;
}

static inline struct dial_channel *channel_to(struct bench *b, const char *address) {
    struct dial_channel *channel;
    assert_false(err_is(dial_channel_create(b->dialler, &(struct dial_channel_options){.address = address}, &channel)));
    return channel;
}

static inline void open_on(struct bench *b, struct dial_channel *channel, uint32_t connection, int64_t timeout_ns) {
    uint8_t token[ROWS_TOKEN_LENGTH] = {RANK, (uint8_t)connection, (uint8_t)(connection >> 8)};
    assert_false(err_is(row_links_open(b->links, RANK, connection, channel, token, timeout_ns)));
}

// Opens the connection with this number, and waits until both sides have it.
static inline void open_stream(struct bench *b, uint32_t connection) {
    unsigned opened = b->opened, peers = b->peers;
    open_on(b, b->channel, connection, CONNECT_NS);
    assert_true(await(b, &b->opened, opened + 1));
    assert_true(await(b, &b->peers, peers + 1));
    assert_int_equal(b->last_opened, connection);
}

static inline struct bench *start(void) {
    struct bench *b = calloc(1, sizeof *b);
    b->answers = true;
    b->row_bytes = WIDE;
    pthread_mutex_init(&b->mutex, NULL);
    b->server = rows_server_start(&(struct rows_server_options){b, on_peer, on_piece, on_peer_closed});
    struct dialler_options dialler = {.threads = 1, .name = "dial", .max_message_bytes = 16 * MIB};
    assert_false(err_is(dialler_create(&dialler, &b->dialler)));
    struct row_links_options options = {.ranks = RANKS,
                                        .local_ranks = LOCAL,
                                        .layers = LAYERS,
                                        .num_layers = 2,
                                        .dialler = b->dialler,
                                        .method = ROWS_SERVER_METHOD,
                                        .opened = on_opened,
                                        .ended = on_ended,
                                        .context = b};
    assert_false(err_is(row_links_create(&options, &b->links)));
    assert_false(err_is(remote_results_create(RANKS, &b->results)));
    b->remote = row_links_remote(b->links);
    b->remote->table->attach(b->remote->context, b->results);
    b->channel = channel_to(b, rows_server_address(b->server));
    return b;
}

static inline void stop(struct bench *b, unsigned streams) {
    row_links_close(b->links, RANK, "the test ends");
    assert_true(await(b, &b->ended, streams));
    b->remote->table->attach(b->remote->context, NULL);
    row_links_destroy(b->links);
    assert_int_equal(b->ended, streams);
    dial_channel_destroy(b->channel);
    dialler_destroy(b->dialler);
    rows_server_stop(b->server);
    remote_results_destroy(b->results);
    pthread_mutex_destroy(&b->mutex);
    free(b);
}

static inline uint64_t generation(struct bench *b) {
    return b->remote->table->generation(b->remote->context, RANK);
}

static inline void use(struct bench *b) {
    row_links_use(b->links, RANK, true, "");
}

// ---- a batch

struct batch {
    uint64_t number, generation;
    size_t rows, stride;
    uint8_t *results;
};

static inline struct batch begin(struct bench *b, uint64_t number, size_t rows, size_t row_bytes, size_t stride) {
    struct batch batch = {.number = number, .generation = generation(b), .rows = rows, .stride = stride};
    batch.results = malloc(rows * stride);
    memset(batch.results, 0x5a, rows * stride);
    lock(b);
    b->row_bytes = row_bytes;
    unlock(b);
    remote_results_begin(b->results, &(struct remote_results_batch){number, EPOCH, row_bytes, stride});
    if (batch.generation > 0) {
        remote_results_expect(b->results, RANK, batch.generation, batch.results, rows);
    }
    return batch;
}

// Sends `rows` rows of the batch from row `first` on; each has a hidden row of its own. Its memory is overwritten afterwards.
static inline err_t send_piece(struct bench *b, const struct batch *batch, size_t first, size_t rows) {
    struct remote_group groups[2] = {{4, (uint32_t)rows - 1}, {9, 1}};
    uint32_t *numbers = malloc(rows * sizeof *numbers);
    size_t stride = b->row_bytes + 8;
    uint8_t *hidden = malloc(rows * stride);
    for (size_t i = 0; i < rows; i++) {
        numbers[i] = (uint32_t)(first + i);
        for (size_t c = 0; c < b->row_bytes; c++) {
            hidden[i * stride + c] = byte_of(batch->number, first + i, c);
        }
    }
    struct remote_piece piece = {.batch = batch->number,
                                 .epoch = EPOCH,
                                 .layer = LAYER,
                                 .row_bytes = b->row_bytes,
                                 .groups = groups,
                                 .num_groups = 2,
                                 .first_row = first,
                                 .rows = rows,
                                 .hidden_rows = numbers,
                                 .first_hidden = first,
                                 .num_hidden = rows,
                                 .hidden = (char *)hidden,
                                 .hidden_stride = stride};
    err_t e = b->remote->table->send(b->remote->context, RANK, batch->generation, &piece);
    memset(hidden, 0xdd, rows * stride); // nobody has a pointer into the batch
    memset(numbers, 0xdd, rows * sizeof *numbers);
    free(hidden);
    free(numbers);
    return e;
}

static inline enum remote_outcome await_rows(struct bench *b) {
    return remote_results_wait(b->results, clock_now_ns() + WAIT_S * (int64_t)NS_PER_S);
}

// Whether the results are those of the server, and the bytes between rows are untouched.
static inline bool has_results(const struct bench *b, const struct batch *batch) {
    for (size_t i = 0; i < batch->rows; i++) {
        for (size_t c = 0; c < batch->stride; c++) {
            uint8_t want = c < b->row_bytes ? (uint8_t)~byte_of(batch->number, i, c) : 0x5a;
            if (batch->results[i * batch->stride + c] != want) {
                return false;
            }
        }
    }
    return true;
}

static inline void end(struct bench *b, struct batch *batch) {
    remote_results_end(b->results);
    free(batch->results);
}

// A batch of one piece that succeeds.
static inline void run(struct bench *b, uint64_t number) {
    struct batch batch = begin(b, number, 3, 100, 100);
    assert_true(batch.generation > 0);
    assert_false(err_is(send_piece(b, &batch, 0, 3)));
    assert_int_equal(await_rows(b), REMOTE_COMPLETE);
    assert_true(has_results(b, &batch));
    end(b, &batch);
}

static inline bool error_ends_with(struct bench *b, const char *tail) {
    assert_int_equal(remote_results_error(b->results).code, EXPERTD_ERR_SHARD_LOST);
    const char *message = expertd_err_message();
    size_t length = strlen(message), bytes = strlen(tail);
    return length >= bytes && strcmp(message + length - bytes, tail) == 0;
}

#endif
