// A server on daemon/grpc/rpc.h whose methods have behaviours for the tests: echo, silence, a flood of messages.
#ifndef EXPERTD_TESTS_UNIT_DAEMON_GRPC_RPC_FIXTURE_H
#define EXPERTD_TESTS_UNIT_DAEMON_GRPC_RPC_FIXTURE_H

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
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
#include "daemon/grpc/rpc.h"
#include "daemon/serve/health.h"
#include "daemon/serve/reflection.h"
#include "grpc_peer.h"

// The behaviour of each method.
#define ECHO "expertd.v1.Experts/Forward"       // returns the message, its first ten bytes as the header
#define ECHO_STREAM "expertd.v1.Experts/Stream" // returns every message
#define SILENCE "expertd.v1.Experts/Describe"   // reads and never answers, until COMMAND_END
#define FLOOD "expertd.v1.Experts/OpenRegion"   // writes large messages until the call is closed
#define ERRORS "expertd.v1.Experts/CloseRegion" // ends with a status and details

enum { FLOOD_BYTES = 8 << 20, POISON = 0xEE };

enum command {
    COMMAND_NONE,
    COMMAND_CANCEL,
    COMMAND_END,
    COMMAND_LATE,
    COMMAND_PAUSE
}; // COMMAND_PAUSE: cancels, then blocks the thread

struct fixture;

struct fixture_call {
    struct fixture *fixture;
    struct rpc_call *rpc;
    struct rpc_buffer *message;
    void *plugin;
    bool used;
};

enum { FIXTURE_CALLS = 64 };

struct fixture {
    struct rpc_server *rpc;
    struct health *health;
    struct peer peer;
    char address[64];
    int listener; // -1: none
    pthread_t acceptor;
    atomic_int opened, closed, cancelled, released, written, lost, refused, ended_early, ticks, down;
    _Atomic int64_t deadline_ns, next_tick_ns;
    atomic_int command;                       // enum command, for thread 0's next tick
    char peers[4][64];                        // peers of the first calls; the test reads one after `opened` exceeds its index
    char identities[4][RPC_IDENTITY_MAX];     // and the names in their certificates
    struct fixture_call calls[FIXTURE_CALLS]; // thread 0 only: fixtures that use commands have one thread
    uint8_t *flood;
    sigset_t mask; // signal mask of thread 0, set in its first tick
    bool tls;      // its connections are TLS
    bool zeros;    // ECHO returns zeros after the header; set before the first call
};

static inline bool fixture_is_health(const struct rpc_call *call) {
    return rpc_call_method(call) == RPC_HEALTH_CHECK || rpc_call_method(call) == RPC_HEALTH_WATCH;
}

static inline bool fixture_is_reflection(const struct rpc_call *call) {
    return rpc_call_method(call) == RPC_REFLECT_V1 || rpc_call_method(call) == RPC_REFLECT_V1ALPHA;
}

static inline struct fixture_call *fixture_call_new(struct fixture *fixture, struct rpc_call *rpc) {
    for (int i = 0; i < FIXTURE_CALLS; i++) {
        if (!fixture->calls[i].used) {
            fixture->calls[i] = (struct fixture_call){.fixture = fixture, .rpc = rpc, .used = true};
            return &fixture->calls[i];
        }
    }
    abort();
}

static inline void fixture_end(struct rpc_call *call, int code, const char *message) {
    rpc_finish(call, &(struct rpc_status){.code = code, .message = message, .retry_after_ms = -1});
}

static inline void fixture_write_flood(struct fixture_call *call) {
    rpc_write(call->rpc, NULL, 0, call->fixture->flood, FLOOD_BYTES);
}

static inline void *fixture_opened(void *context, struct rpc_call *rpc, enum rpc_method method, unsigned thread,
                                   int64_t deadline_ns) {
    struct fixture *fixture = context;
    struct fixture_call *call = fixture_call_new(fixture, rpc);
    if (fixture->opened < 4) {
        snprintf(fixture->peers[fixture->opened], sizeof fixture->peers[0], "%s", rpc_call_peer(rpc));
        rpc_call_identity(rpc, fixture->identities[fixture->opened]);
    }
    fixture->deadline_ns = deadline_ns;
    if (fixture_is_health(rpc)) {
        call->plugin = health_opened(fixture->health, rpc, method, thread);
    } else if (fixture_is_reflection(rpc)) {
        call->plugin = reflection_opened(rpc);
    } else if (method == RPC_OPEN_REGION) {
        fixture_write_flood(call);
    } else if (method == RPC_CLOSE_REGION) {
        rpc_finish(rpc, &(struct rpc_status){.code = 9,
                                             .message = "50 % \xc3\xa9 \"quoted\"",
                                             .details = (const uint8_t *)"\x08\x09\x00\xff",
                                             .details_length = 4,
                                             .retry_after_ms = 250});
    } else {
        rpc_read(rpc);
    }
    fixture->opened++;
    return call;
}

// The body is the middle of every large message.
static inline bool fixture_body_of(enum rpc_method method, const struct wire_parts *message, struct wire_range *body) {
    size_t length = 0;
    for (size_t i = 0; i < message->count; i++) {
        length += message->part(message->context, i).length;
    }
    *body = (struct wire_range){length / 3, length / 2};
    return method == RPC_FORWARD || method == RPC_STREAM;
}

static inline void fixture_answer(struct fixture_call *call, struct rpc_buffer *message) {
    call->message = message;
    if (call->fixture->zeros) { // the reply has as many zero bytes as the body had bytes
        size_t first = message->length < 10 ? message->length : 10;
        rpc_buffer_drop(message);
        rpc_reply(call->rpc, message->data, first, NULL, message->length - first);
        return;
    }
    rpc_buffer_fill(message);
    size_t header = message->length < 10 ? message->length : 10;
    if (rpc_call_method(call->rpc) == RPC_FORWARD) {
        rpc_reply(call->rpc, message->data, header, message->data + header, message->length - header);
    } else {
        rpc_write(call->rpc, message->data, header, message->data + header, message->length - header);
    }
}

static inline void fixture_message(void *context, struct rpc_call *rpc, struct rpc_buffer *message, err_t error) {
    struct fixture *fixture = context;
    struct fixture_call *call = rpc_call_data(rpc);
    if (fixture_is_health(rpc)) {
        health_message(call->plugin, message, error);
    } else if (fixture_is_reflection(rpc)) {
        reflection_message(call->plugin, message, error);
    } else if (err_is(error)) {
        fixture->refused++;
        fixture_end(rpc, error.code == EXPERTD_ERR_TOO_LARGE ? 8 : 12, expertd_err_message());
    } else if (!message) {
        fixture->ended_early += rpc_call_method(rpc) == RPC_FORWARD;
        fixture_end(rpc, rpc_call_method(rpc) == RPC_FORWARD ? 3 : 0, "");
    } else if (rpc_call_method(rpc) != RPC_DESCRIBE && rpc_call_open(rpc)) {
        fixture_answer(call, message);
        return;
    }
    if (message) {
        rpc_buffer_release(fixture->rpc, message);
    }
}

static inline void fixture_written(void *context, struct rpc_call *rpc, bool ok) {
    struct fixture *fixture = context;
    struct fixture_call *call = rpc_call_data(rpc);
    *(ok ? &fixture->written : &fixture->lost) += 1;
    if (fixture_is_health(rpc)) {
        health_written(call->plugin, ok);
    } else if (fixture_is_reflection(rpc)) {
        reflection_written(call->plugin, ok);
    }
    if (call->message) { // a reader that still uses the buffer would send this poison
        memset(call->message->data, POISON, call->message->length);
        rpc_buffer_release(fixture->rpc, call->message);
        call->message = NULL;
    }
    if (!ok || !rpc_call_open(rpc)) {
        return;
    }
    if (rpc_call_method(rpc) == RPC_STREAM) {
        rpc_read(rpc);
    } else if (rpc_call_method(rpc) == RPC_OPEN_REGION) {
        fixture_write_flood(call);
    }
}

static inline void fixture_closed(void *context, struct rpc_call *rpc, bool cancelled) {
    struct fixture *fixture = context;
    struct fixture_call *call = rpc_call_data(rpc);
    if (fixture_is_health(rpc)) {
        health_closed(call->plugin, cancelled);
    } else if (fixture_is_reflection(rpc)) {
        reflection_closed(call->plugin, cancelled);
    }
    fixture->cancelled += cancelled;
    fixture->closed++;
    if (fixture->command == COMMAND_LATE) { // requests after the end are answered too
        rpc_write(rpc, NULL, 0, fixture->flood, FLOOD_BYTES);
        fixture_end(rpc, 0, "");
        rpc_cancel(rpc, 1, "");
    }
}

static inline void fixture_released(void *context, struct rpc_call *rpc) {
    struct fixture *fixture = context;
    struct fixture_call *call = rpc_call_data(rpc);
    if (fixture_is_health(rpc)) {
        health_released(call->plugin);
    } else if (fixture_is_reflection(rpc)) {
        reflection_released(call->plugin);
    }
    call->used = false;
    fixture->released++;
}

static inline int64_t fixture_tick(void *context, unsigned thread, int64_t now_ns) {
    struct fixture *fixture = context;
    (void)now_ns;
    if (thread == 0 && fixture->ticks == 0) {
        pthread_sigmask(SIG_SETMASK, NULL, &fixture->mask);
    }
    fixture->ticks++;
    int command = thread == 0 ? fixture->command : COMMAND_NONE;
    bool cancels = command == COMMAND_CANCEL || command == COMMAND_PAUSE;
    for (int i = 0; i < FIXTURE_CALLS && (cancels || command == COMMAND_END); i++) {
        struct fixture_call *call = &fixture->calls[i];
        if (call->used && cancels) {
            rpc_cancel(call->rpc, 4, "not read in time");
        } else if (call->used && fixture_is_reflection(call->rpc)) {
            reflection_end(call->plugin);
        } else if (call->used && !fixture_is_health(call->rpc)) {
            fixture_end(call->rpc, 14, "shutting down");
        }
    }
    if (command == COMMAND_PAUSE) {
        fixture->command = COMMAND_NONE;
        nanosleep(&(struct timespec){.tv_sec = 3}, NULL);
    }
    health_tick(fixture->health, thread);
    return fixture->next_tick_ns;
}

static inline void fixture_down(void *context) {
    struct fixture *fixture = context;
    fixture->down = 1;
}

// Ends a test that hangs, not one that is slow: under a sanitizer and beside other tests a step of a test may take many seconds.
enum { FIXTURE_WAIT_S = 120 };

// Waits until one of the values is reached, at most FIXTURE_WAIT_S.
static inline bool fixture_wait_either(atomic_int *a, int wanted_a, atomic_int *b, int wanted_b) {
    for (int64_t until_ns = clock_now_ns() + FIXTURE_WAIT_S * (int64_t)NS_PER_S; clock_now_ns() < until_ns;) {
        if (atomic_load(a) >= wanted_a || atomic_load(b) >= wanted_b) {
            return true;
        }
        nanosleep(&(struct timespec){.tv_nsec = NS_PER_MS}, NULL);
    }
    return false;
}

static inline bool fixture_wait(atomic_int *value, int wanted) {
    return fixture_wait_either(value, wanted, value, wanted);
}

static inline void fixture_command(struct fixture *fixture, enum command command) {
    fixture->command = command;
    rpc_wake(fixture->rpc, 0);
}

static inline const struct rpc_handler *fixture_handler(struct fixture *fixture) {
    static _Thread_local struct rpc_handler handler;
    handler = (struct rpc_handler){.context = fixture,
                                   .body_of = fixture_body_of,
                                   .opened = fixture_opened,
                                   .message = fixture_message,
                                   .written = fixture_written,
                                   .closed = fixture_closed,
                                   .released = fixture_released,
                                   .tick = fixture_tick};
    return &handler;
}

// Runs until the listener is shut down.
static inline void *fixture_accept(void *context) {
    struct fixture *fixture = context;
    int fd;
    while ((fd = accept4(fixture->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct sockaddr_in peer;
        socklen_t length = sizeof peer;
        char name[64];
        getpeername(fd, (struct sockaddr *)&peer, &length);
        snprintf(name, sizeof name, "ipv4:127.0.0.1:%u", ntohs(peer.sin_port));
        err_t e = fixture->tls ? rpc_adopt_tls(fixture->rpc, fd, name) : rpc_adopt(fixture->rpc, fd, name);
        (void)err_is(e); // refused during the shutdown
    }
    return NULL;
}

static inline void fixture_listen(struct fixture *fixture) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    assert_false(err_is(rpc_start(fixture->rpc)));
    fixture->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fixture->listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fixture->listener, 16), 0);
    assert_int_equal(getsockname(fixture->listener, (struct sockaddr *)&at, &length), 0);
    assert_int_equal(pthread_create(&fixture->acceptor, NULL, fixture_accept, fixture), 0);
    snprintf(fixture->address, sizeof fixture->address, "127.0.0.1:%u", ntohs(at.sin_port));
    peer_open(&fixture->peer, fixture->address, -1, GRPC_COMPRESS_NONE);
}

static inline void fixture_adopt(struct fixture *fixture) {
    int ends[2];
    assert_false(err_is(rpc_start(fixture->rpc)));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    assert_false(err_is(rpc_adopt(fixture->rpc, ends[0], "unix:fixture")));
    peer_open(&fixture->peer, NULL, ends[1], GRPC_COMPRESS_NONE);
}

static inline void fixture_stop_listening(struct fixture *fixture) {
    if (fixture->listener >= 0) {
        shutdown(fixture->listener, SHUT_RDWR);
        pthread_join(fixture->acceptor, NULL);
        close(fixture->listener);
    }
}

// watcher NULL: the fixture listens on a TCP port. Otherwise it has one adopted socket. tls NULL: plain.
static inline struct fixture *fixture_start_with(struct rpc_server *watcher, const struct rpc_tls *tls, uint64_t max_message_bytes,
                                                 unsigned max_calls) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->tls = tls != NULL;
    fixture->next_tick_ns = CLOCK_NEVER;
    fixture->listener = -1;
    fixture->flood = calloc(1, FLOOD_BYTES);
    struct rpc_options options = {.threads = 1,
                                  .max_message_bytes = max_message_bytes,
                                  .max_calls = max_calls,
                                  .handler = fixture_handler(fixture),
                                  .watcher = watcher,
                                  .tls = tls ? *tls : (struct rpc_tls){0}};
    assert_false(err_is(rpc_create(&options, &fixture->rpc)));
    assert_false(err_is(health_create(fixture->rpc, 1, &fixture->health)));
    if (watcher) {
        fixture_adopt(fixture);
    } else {
        fixture_listen(fixture);
    }
    return fixture;
}

static inline struct fixture *fixture_start_beside(struct rpc_server *watcher, uint64_t max_message_bytes, unsigned max_calls) {
    return fixture_start_with(watcher, NULL, max_message_bytes, max_calls);
}

static inline struct fixture *fixture_start(uint64_t max_message_bytes, unsigned max_calls) {
    return fixture_start_beside(NULL, max_message_bytes, max_calls);
}

// Also checks, for every test, that each call was released once.
static inline void fixture_stop(struct fixture *fixture) {
    peer_close(&fixture->peer);
    fixture_stop_listening(fixture);
    if (!fixture->down) {
        rpc_shutdown(fixture->rpc, fixture_down, fixture);
        rpc_cancel_all(fixture->rpc);
        assert_true(fixture_wait(&fixture->down, 1));
    }
    rpc_destroy(fixture->rpc);
    health_destroy(fixture->health);
    assert_int_equal(fixture->opened, fixture->released);
    assert_int_equal(fixture->opened, fixture->closed);
    free(fixture->flood);
    free(fixture);
}

#endif
