#include "tests/unit/shard/remote/memory_links.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "shard/remote/remote_results.h"

enum { QUEUE_MAX = 4096 };

struct link {
    struct memory_links *links;
    uint32_t rank;
    pthread_t thread;
    // Guards all fields below. Not held while the rank computes or delivers.
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    uint64_t generation, connections; // `connections` is the greatest generation so far
    struct remote_results *results;
    unsigned delivering; // calls of remote_results_* in progress, other than on the compute thread
    bool ending;
    struct memory_piece *queue[QUEUE_MAX];
    size_t first, count;
    enum memory_fault fault;
    unsigned after;
    bool stopped, working;
    struct memory_counts received;
};

struct memory_links {
    struct memory_links_options options;
    struct remote_links interface;
    struct link *all; // [ranks], of which the local ones are unused
};

static struct link *link_of(void *context, uint32_t rank) {
    struct memory_links *links = context;
    INVARIANT(rank >= links->options.local_ranks && rank < links->options.ranks);
    return &links->all[rank];
}

static void free_piece(struct memory_piece *piece) {
    free(piece->groups);
    free(piece->hidden_rows);
    free(piece->hidden);
    free(piece);
}

static void *copy_of(const void *from, size_t bytes) {
    void *to = malloc(bytes > 0 ? bytes : 1);
    INVARIANT(to);
    memcpy(to, from, bytes);
    return to;
}

static struct memory_piece *take_copy(uint64_t generation, const struct remote_piece *from) {
    struct memory_piece *piece = malloc(sizeof *piece);
    INVARIANT(piece);
    *piece = (struct memory_piece){
        .generation = generation,
        .batch = from->batch,
        .epoch = from->epoch,
        .layer = from->layer,
        .row_bytes = from->row_bytes,
        .num_groups = from->num_groups,
        .first_row = from->first_row,
        .rows = from->rows,
        .first_hidden = from->first_hidden,
        .num_hidden = from->num_hidden,
        .groups = copy_of(from->groups, from->num_groups * sizeof *from->groups),
        .hidden_rows = copy_of(from->hidden_rows, from->rows * sizeof *from->hidden_rows),
        .hidden = malloc(from->num_hidden * from->row_bytes + 1),
    };
    INVARIANT(piece->hidden);
    remote_piece_gather(from, piece->hidden);
    return piece;
}

static void clear_queue(struct link *link) {
    for (; link->count > 0; link->count--) {
        free_piece(link->queue[link->first]);
        link->first = (link->first + 1) % QUEUE_MAX;
    }
}

// ---- the table of remote_links.h

static uint64_t generation(void *context, uint32_t rank) {
    struct link *link = link_of(context, rank);
    pthread_mutex_lock(&link->mutex);
    uint64_t now = link->generation;
    pthread_mutex_unlock(&link->mutex);
    return now;
}

// Ends the connection, and tells the exchange. `next`: another one takes its place.
static void end_connection(struct link *link, uint64_t expected, bool next, const char *why) {
    pthread_mutex_lock(&link->mutex);
    struct remote_results *results = link->generation == expected ? link->results : NULL;
    if (link->generation == expected) {
        link->generation = next ? ++link->connections : 0;
        link->stopped = false;
        clear_queue(link);
    }
    link->delivering += results != NULL;
    pthread_mutex_unlock(&link->mutex);
    if (results) {
        remote_results_lose(results, link->rank, expected, why);
        pthread_mutex_lock(&link->mutex);
        link->delivering--;
        pthread_cond_broadcast(&link->changed);
        pthread_mutex_unlock(&link->mutex);
    }
}

static err_t send_piece(void *context, uint32_t rank, uint64_t expected, const struct remote_piece *piece) {
    struct link *link = link_of(context, rank);
    pthread_mutex_lock(&link->mutex);
    bool up = link->generation == expected;
    bool fails = up && link->fault == MEMORY_CANNOT_SEND && link->after-- == 0;
    if (up && !fails) {
        if (link->count > 0 && link->queue[link->first]->batch < piece->batch) {
            clear_queue(link);
        }
        INVARIANT(link->count < QUEUE_MAX);
        link->queue[(link->first + link->count++) % QUEUE_MAX] = take_copy(expected, piece);
        pthread_cond_broadcast(&link->changed);
    }
    pthread_mutex_unlock(&link->mutex);
    if (fails) {
        end_connection(link, expected, false, "the connection has ended");
    }
    if (!up || fails) {
        FAIL(EXPERTD_ERR_SHARD_LOST, "the connection has ended");
    }
    return OK;
}

static void abandon(void *context, uint32_t rank, uint64_t expected, uint64_t batch) {
    struct link *link = link_of(context, rank);
    pthread_mutex_lock(&link->mutex);
    if (link->generation == expected && link->count > 0 && link->queue[link->first]->batch == batch) {
        clear_queue(link);
    }
    pthread_mutex_unlock(&link->mutex);
}

static void drop(void *context, uint32_t rank, uint64_t expected, const char *why) {
    end_connection(link_of(context, rank), expected, false, why);
}

static void attach(void *context, struct remote_results *results) {
    struct memory_links *links = context;
    for (uint32_t rank = links->options.local_ranks; rank < links->options.ranks; rank++) {
        struct link *link = &links->all[rank];
        pthread_mutex_lock(&link->mutex);
        link->results = results;
        while (link->delivering > 0) {
            pthread_cond_wait(&link->changed, &link->mutex);
        }
        pthread_mutex_unlock(&link->mutex);
    }
}

static const struct remote_links_table TABLE = {
    .generation = generation, .send = send_piece, .abandon = abandon, .drop = drop, .attach = attach};

// ---- a rank's thread

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

// A reader of the rows in two or more parts, as a transport has them.
struct reader {
    const char *rows;
    size_t bytes, at;
};

static void read_rows(void *context, void *to, size_t bytes) {
    struct reader *reader = context;
    INVARIANT(bytes <= reader->bytes - reader->at);
    size_t half = bytes / 2;
    memcpy(to, reader->rows + reader->at, half);
    memcpy((char *)to + half, reader->rows + reader->at + half, bytes - half);
    reader->at += bytes;
}

struct answer {
    uint64_t generation, batch, epoch;
    size_t first_row, rows, bytes;
    const char *results; // [bytes]
    const char *error;   // NULL: rows
};

// Delivers one answer, unless the connection has ended. A refused answer ends it.
static void deliver(struct link *link, const struct answer *a) {
    pthread_mutex_lock(&link->mutex);
    struct remote_results *results = link->generation == a->generation ? link->results : NULL;
    link->delivering += results != NULL;
    pthread_mutex_unlock(&link->mutex);
    if (!results) {
        return;
    }
    struct reader reader = {.rows = a->results, .bytes = a->bytes};
    struct remote_rows rows = {.batch = a->batch,
                               .epoch = a->epoch,
                               .first_row = a->first_row,
                               .rows = a->rows,
                               .bytes = a->bytes,
                               .copy = read_rows,
                               .context = &reader};
    bool refused = false;
    if (a->error) {
        remote_results_deliver_error(results, link->rank, a->generation, a->batch, a->error);
    } else {
        refused = err_is(remote_results_deliver(results, link->rank, a->generation, &rows));
    }
    pthread_mutex_lock(&link->mutex);
    link->delivering--;
    pthread_cond_broadcast(&link->changed);
    pthread_mutex_unlock(&link->mutex);
    if (refused) {
        end_connection(link, a->generation, false, "the answer was refused");
    }
}

// Answers a piece correctly, in one to three messages.
static void deliver_rows(struct link *link, const struct answer *whole, size_t row_bytes, size_t rows, uint64_t random) {
    size_t parts = 1 + random % 3;
    for (size_t p = 0; p < parts; p++) {
        size_t begin = rows * p / parts, end = rows * (p + 1) / parts;
        if (end > begin) {
            struct answer part = *whole;
            part.first_row += begin;
            part.rows = end - begin;
            part.bytes = part.rows * row_bytes;
            part.results += begin * row_bytes;
            deliver(link, &part);
        }
    }
}

static void deliver_wrong(struct link *link, struct answer answer, enum memory_fault fault, size_t row_bytes) {
    answer.epoch -= fault == MEMORY_WRONG_EPOCH;
    answer.batch -= fault == MEMORY_WRONG_BATCH;
    answer.batch += fault == MEMORY_FUTURE_BATCH;
    answer.bytes -= fault == MEMORY_TOO_FEW_BYTES;
    answer.bytes += fault == MEMORY_TOO_MANY_BYTES;
    answer.first_row += fault == MEMORY_OUT_OF_ORDER;
    if (fault == MEMORY_TOO_MANY_ROWS) {
        answer.rows += 1000000;
        answer.bytes += 1000000 * row_bytes;
    }
    deliver(link, &answer);
}

static void answer_piece(struct link *link, const struct memory_piece *piece, enum memory_fault fault, uint64_t random) {
    const struct memory_links_options *options = &link->links->options;
    size_t bytes = piece->rows * piece->row_bytes;
    char *results = malloc(bytes + 1); // + 1: a byte too many is readable
    INVARIANT(results);
    memset(results, 0xee, bytes + 1);
    err_t e = options->compute(options->context, link->rank, piece, results);
    struct answer answer = {.generation = piece->generation,
                            .batch = piece->batch,
                            .epoch = piece->epoch,
                            .first_row = piece->first_row,
                            .rows = piece->rows,
                            .bytes = bytes,
                            .results = results,
                            .error = err_is(e)               ? expertd_err_message()
                                     : fault == MEMORY_FAILS ? "the rank has no memory left"
                                                             : NULL};
    sleep_us(fault == MEMORY_IS_LATE ? options->late_ms * 1000 : random % (options->delay_us_max + 1));
    if (answer.error && fault > MEMORY_FAILS) {
        fault = MEMORY_FAILS; // a wrong answer is one with rows
    }
    switch (fault) {
    case MEMORY_DIES:
    case MEMORY_RECONNECTS:
        end_connection(link, piece->generation, fault == MEMORY_RECONNECTS, "the connection has ended");
        break;
    case MEMORY_DIES_BETWEEN:
        deliver_rows(link, &answer, piece->row_bytes, piece->rows / 2, random);
        end_connection(link, piece->generation, false, "the connection has ended");
        break;
    case MEMORY_STOPS:
        break;
    case MEMORY_NO_FAULT:
    case MEMORY_IS_LATE:
        if (!answer.error) {
            deliver_rows(link, &answer, piece->row_bytes, piece->rows, random);
            break;
        } // fallthrough
    case MEMORY_FAILS:
        deliver(link, &answer);
        break;
    case MEMORY_ANSWERS_TWICE:
        deliver(link, &answer);
        deliver(link, &answer);
        break;
    default:
        deliver_wrong(link, answer, fault, piece->row_bytes);
    }
    free(results);
}

static struct memory_piece *next_piece(struct link *link, enum memory_fault *fault) {
    pthread_mutex_lock(&link->mutex);
    link->working = false;
    pthread_cond_broadcast(&link->changed);
    while (!link->ending && (link->count == 0 || link->stopped)) {
        pthread_cond_wait(&link->changed, &link->mutex);
    }
    struct memory_piece *piece = link->ending ? NULL : link->queue[link->first];
    *fault = MEMORY_NO_FAULT;
    if (piece) {
        link->first = (link->first + 1) % QUEUE_MAX;
        link->count--;
        link->working = true;
        link->received.pieces++;
        link->received.rows += piece->rows;
        link->received.hidden += piece->num_hidden;
        if (link->fault > MEMORY_CANNOT_SEND && link->after-- == 0) {
            *fault = link->fault;
            link->fault = MEMORY_NO_FAULT;
            link->stopped = *fault == MEMORY_STOPS;
        }
    }
    pthread_mutex_unlock(&link->mutex);
    return piece;
}

static void *run_rank(void *context) {
    struct link *link = context;
    uint64_t random = link->links->options.seed * 2654435761 + link->rank + 1;
    enum memory_fault fault;
    for (struct memory_piece *piece; (piece = next_piece(link, &fault));) {
        answer_piece(link, piece, fault, next_random(&random));
        free_piece(piece);
    }
    return NULL;
}

// ---- the test's side

struct memory_links *memory_links_create(const struct memory_links_options *options) {
    struct memory_links *links = calloc(1, sizeof *links);
    INVARIANT(links);
    links->options = *options;
    links->interface = (struct remote_links){&TABLE, links};
    links->all = calloc(options->ranks, sizeof *links->all);
    INVARIANT(links->all);
    for (uint32_t rank = options->local_ranks; rank < options->ranks; rank++) {
        struct link *link = &links->all[rank];
        link->links = links;
        link->rank = rank;
        link->generation = link->connections = 1;
        pthread_mutex_init(&link->mutex, NULL);
        pthread_cond_init(&link->changed, NULL);
        INVARIANT(pthread_create(&link->thread, NULL, run_rank, link) == 0);
    }
    return links;
}

void memory_links_destroy(struct memory_links *links) {
    for (uint32_t rank = links->options.local_ranks; rank < links->options.ranks; rank++) {
        struct link *link = &links->all[rank];
        pthread_mutex_lock(&link->mutex);
        link->ending = true;
        pthread_cond_broadcast(&link->changed);
        pthread_mutex_unlock(&link->mutex);
        pthread_join(link->thread, NULL);
        clear_queue(link);
        pthread_cond_destroy(&link->changed);
        pthread_mutex_destroy(&link->mutex);
    }
    free(links->all);
    free(links);
}

const struct remote_links *memory_links_of(const struct memory_links *links) {
    return &links->interface;
}

void memory_links_plant(struct memory_links *links, uint32_t rank, enum memory_fault fault, unsigned after) {
    struct link *link = link_of(links, rank);
    pthread_mutex_lock(&link->mutex);
    link->fault = fault;
    link->after = after;
    pthread_mutex_unlock(&link->mutex);
}

void memory_links_end(struct memory_links *links, uint32_t rank) {
    end_connection(link_of(links, rank), generation(links, rank), false, "the connection has ended");
}

void memory_links_restore(struct memory_links *links) {
    for (uint32_t rank = links->options.local_ranks; rank < links->options.ranks; rank++) {
        struct link *link = &links->all[rank];
        pthread_mutex_lock(&link->mutex);
        while (link->working || (link->count > 0 && !link->stopped)) {
            pthread_cond_wait(&link->changed, &link->mutex);
        }
        link->fault = MEMORY_NO_FAULT;
        link->stopped = false;
        if (link->generation == 0) {
            link->generation = ++link->connections;
        }
        pthread_cond_broadcast(&link->changed);
        pthread_mutex_unlock(&link->mutex);
    }
}

struct memory_counts memory_links_received(struct memory_links *links, uint32_t rank) {
    struct link *link = link_of(links, rank);
    pthread_mutex_lock(&link->mutex);
    struct memory_counts counts = link->received;
    link->received = (struct memory_counts){0};
    pthread_mutex_unlock(&link->mutex);
    return counts;
}
