// Tests outgoing streams against a server on rpc.h in the same process, plain and with TLS.
#include "rpc_fixture.h"

#include "daemon/grpc/dial.h"
#include "daemon/tls/tls_store.h"
#include "tests/unit/certificates.h"

enum { MIB = 1 << 20 };
#define CONNECT_NS (5 * (int64_t)NS_PER_S)

// What happened to one stream, written by the dialler's thread.
struct seen {
    struct dialler *dialler;
    struct dial_stream *stream;
    atomic_int opened, messages, no_message, written, lost, closed;
    struct rpc_buffer *message; // the last; taken by the test
    bool reads_on;              // reads again after each message
    bool defers;                // leaves the body in the transport
    struct dial_end end;
    char text[EXPERTD_ERR_MESSAGE_MAX], reason[64];
    char identity[DIAL_IDENTITY_MAX];
    char thread_name[16];
};

static void on_opened(void *data, struct dial_stream *stream) {
    struct seen *seen = data;
    snprintf(seen->identity, sizeof seen->identity, "%s", dial_identity(stream));
    pthread_getname_np(pthread_self(), seen->thread_name, sizeof seen->thread_name);
    seen->opened++;
}

static void on_message(void *data, struct dial_stream *stream, struct rpc_buffer *message) {
    struct seen *seen = data;
    if (!message) {
        seen->no_message++;
        return;
    }
    if (seen->reads_on) {
        dial_buffer_release(seen->dialler, message);
        dial_read(stream);
    } else {
        seen->message = message;
    }
    seen->messages++;
}

static void on_written(void *data, struct dial_stream *stream, bool ok) {
    struct seen *seen = data;
    (void)stream;
    *(ok ? &seen->written : &seen->lost) += 1;
}

static void on_closed(void *data, struct dial_stream *stream, const struct dial_end *end) {
    struct seen *seen = data;
    (void)stream;
    seen->end = *end;
    snprintf(seen->text, sizeof seen->text, "%s", end->message);
    snprintf(seen->reason, sizeof seen->reason, "%s", end->reason);
    seen->closed++;
}

static bool body_of(void *data, const struct wire_parts *message, struct wire_range *body) {
    const struct seen *seen = data;
    size_t length = 0;
    for (size_t i = 0; i < message->count; i++) {
        length += message->part(message->context, i).length;
    }
    *body = (struct wire_range){length / 3, length / 2};
    return seen->defers;
}

static const struct dial_handler HANDLER = {
    .body_of = body_of, .opened = on_opened, .message = on_message, .written = on_written, .closed = on_closed};

static struct dialler *start_dialler(uint64_t max_message_bytes) {
    struct dialler *dialler;
    struct dialler_options options = {.threads = 2, .name = "dial", .max_message_bytes = max_message_bytes};
    assert_false(err_is(dialler_create(&options, &dialler)));
    return dialler;
}

static struct dial_channel *open_channel(struct dialler *dialler, const char *address, struct tls_store *tls, const char *allowed) {
    struct dial_channel *channel;
    struct dial_channel_options options = {.address = address, .thread = 1, .tls = tls, .allowed_servers = allowed};
    if (err_is(dial_channel_create(dialler, &options, &channel))) {
        fail_msg("%s", expertd_err_message());
    }
    return channel;
}

static struct seen *open_stream(struct dialler *dialler, struct dial_channel *channel, const char *method, int64_t timeout_ns) {
    struct seen *seen = calloc(1, sizeof *seen);
    seen->dialler = dialler;
    struct dial_stream_options options = {.method = method, .handler = &HANDLER, .data = seen, .connect_timeout_ns = timeout_ns};
    assert_false(err_is(dial_open(channel, &options, &seen->stream)));
    return seen;
}

static void release(struct seen *seen) {
    assert_true(fixture_wait(&seen->closed, 1));
    dial_release(seen->stream);
    free(seen);
}

static void cancel_and_release(struct seen *seen) {
    dial_cancel(seen->stream);
    assert_true(fixture_wait(&seen->closed, 1));
    assert_true(seen->end.cancelled);
    assert_int_equal(seen->end.code, EXPERTD_ERR_CANCELLED);
    release(seen);
}

static struct rpc_buffer *await_message(struct seen *seen, int number) {
    assert_true(fixture_wait(&seen->messages, number));
    struct rpc_buffer *message = seen->message;
    seen->message = NULL;
    return message;
}

static uint8_t *pattern(size_t length, uint32_t x) {
    uint8_t *bytes = malloc(length + 1);
    for (size_t i = 0; i < length; i++) {
        x = x * 1664525 + 1013904223;
        bytes[i] = (uint8_t)(x >> 24);
    }
    return bytes;
}

// Sends header and parts, and checks that the echo has the same bytes.
static void exchange(struct seen *seen, const struct rpc_part *parts, size_t num_parts, const uint8_t *header, size_t header_length,
                     int number) {
    assert_true(dial_read(seen->stream));
    assert_true(dial_write(seen->stream, header, header_length, parts, num_parts));
    struct rpc_buffer *message = await_message(seen, number);
    assert_true(fixture_wait(&seen->written, number));
    size_t at = header_length;
    if (seen->defers) {
        uint8_t *copy = malloc(message->length + 1);
        for (size_t i = 0; i < message->length; i += 1000) { // pieces across the ends of slices and of the body
            rpc_buffer_copy(message, i, message->length - i < 1000 ? message->length - i : 1000, copy + i);
        }
        rpc_buffer_fill(message);
        assert_memory_equal(copy, message->data, message->length);
        free(copy);
    }
    assert_memory_equal(message->data, header, header_length);
    for (size_t i = 0; i < num_parts; i++) {
        assert_memory_equal(message->data + at, parts[i].data, parts[i].length);
        at += parts[i].length;
    }
    assert_int_equal(message->length, at);
    dial_buffer_release(seen->dialler, message);
}

static void exchange_sizes(struct seen *seen) {
    static const size_t SIZES[] = {0, 1, 9, 4096, 16384, 16385, 65537, 300000, (5 << 20) + 3};
    int number = 0;
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
        for (size_t num_parts = 0; num_parts <= 3; num_parts++) {
            uint8_t *bytes = pattern(SIZES[i], (uint32_t)(i * 7 + num_parts)), header[] = "head";
            struct rpc_part parts[3];
            size_t at = 0;
            for (size_t p = 0; p < num_parts; p++) {
                size_t length = p + 1 == num_parts ? SIZES[i] - at : SIZES[i] / 3;
                parts[p] = (struct rpc_part){bytes + at, length};
                at += length;
            }
            exchange(seen, parts, num_parts, header, num_parts ? sizeof header : 0, ++number);
            free(bytes);
        }
    }
    assert_int_equal(seen->lost, 0);
}

static void messages_of_any_size_and_parts_come_back(void **state) {
    (void)state;
    struct fixture *f = fixture_start(32 * MIB, 8);
    struct dialler *dialler = start_dialler(32 * MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    for (int defers = 0; defers < 2; defers++) {
        struct seen *seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
        seen->defers = defers;
        assert_true(fixture_wait(&seen->opened, 1));
        assert_string_equal(seen->identity, "");
        assert_string_equal(seen->thread_name, "dial-1");
        exchange_sizes(seen);
        dial_end_writes(seen->stream);
        assert_true(fixture_wait(&seen->closed, 1));
        assert_true(seen->end.answered);
        assert_int_equal(seen->end.code, EXPERTD_ERR_OK);
        assert_false(dial_read(seen->stream));
        assert_false(dial_write(seen->stream, NULL, 0, NULL, 0));
        release(seen);
    }
    assert_string_equal(f->peers[0], f->peers[1]); // both streams on one connection
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

static void a_status_with_details_is_passed_on(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 1);
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    struct seen *seen = open_stream(dialler, channel, "expertd.shard.v1.Shard/None", CONNECT_NS);
    assert_true(fixture_wait(&seen->closed, 1));
    assert_true(seen->end.answered);
    assert_int_equal(seen->end.code, EXPERTD_ERR_UNIMPLEMENTED);
    assert_string_equal(seen->reason, "UNIMPLEMENTED");
    assert_non_null(strstr(seen->text, "unknown method"));
    release(seen);
    struct seen *first = open_stream(dialler, channel, SILENCE, CONNECT_NS);
    assert_true(fixture_wait(&f->opened, 1));
    seen = open_stream(dialler, channel, SILENCE, CONNECT_NS); // above max_calls
    assert_true(fixture_wait(&seen->closed, 1));
    assert_string_equal(seen->reason, "QUEUE_FULL");
    assert_int_equal(seen->end.code, EXPERTD_ERR_QUEUE_FULL);
    assert_int_equal(seen->end.retry_after_ms, 50);
    release(seen);
    cancel_and_release(first);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

static void nobody_there_is_reported_at_once_and_each_open_tries_anew(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    char address[64];
    snprintf(address, sizeof address, "%s", f->address);
    fixture_stop(f); // the port is free now
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, address, NULL, NULL);
    for (int i = 0; i < 20; i++) {
        int64_t begin_ns = clock_now_ns();
        struct seen *seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
        assert_true(fixture_wait(&seen->closed, 1));
        assert_true(clock_now_ns() - begin_ns < NS_PER_S);
        assert_int_equal(seen->opened, 0);
        assert_false(seen->end.answered);
        assert_false(seen->end.cancelled);
        assert_int_equal(seen->end.code, EXPERTD_ERR_UNAVAILABLE);
        assert_non_null(strstr(seen->text, "Connection refused"));
        release(seen);
    }
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
}

// A listener that never accepts: its backlog takes the connection, and no HTTP/2 settings come.
static void a_silent_server_is_given_up_after_the_connect_timeout(void **state) {
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(listener, 4), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(at.sin_port));
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, address, NULL, NULL);
    int64_t begin_ns = clock_now_ns();
    struct seen *seen = open_stream(dialler, channel, ECHO_STREAM, 200 * (int64_t)NS_PER_MS);
    assert_true(fixture_wait(&seen->closed, 1));
    int64_t took_ns = clock_now_ns() - begin_ns;
    assert_true(took_ns >= 200 * (int64_t)NS_PER_MS && took_ns < 2 * (int64_t)NS_PER_S);
    assert_int_equal(seen->end.code, EXPERTD_ERR_DEADLINE);
    assert_non_null(strstr(seen->text, "was not connected within 200 ms"));
    assert_int_equal(seen->opened, 0);
    release(seen);
    seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS); // and another one can be cancelled while it connects
    cancel_and_release(seen);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    close(listener);
}

static void a_server_that_goes_away_closes_the_streams_and_can_come_back(void **state) {
    (void)state;
    struct fixture *f = fixture_start(MIB, 8);
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    struct seen *seen = open_stream(dialler, channel, SILENCE, CONNECT_NS);
    assert_true(dial_read(seen->stream));
    assert_true(fixture_wait(&f->opened, 1));
    // Only the connection breaks: the server's end of it is shut down.
    for (int fd = 3; fd < 1024; fd++) {
        struct sockaddr_in peer = {0};
        socklen_t length = sizeof peer;
        char name[64];
        if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0) {
            snprintf(name, sizeof name, "ipv4:127.0.0.1:%u", ntohs(peer.sin_port));
            if (strcmp(name, f->peers[0]) == 0) {
                shutdown(fd, SHUT_RDWR);
            }
        }
    }
    assert_true(fixture_wait(&seen->closed, 1));
    assert_int_equal(seen->no_message, 1); // the pending read is reported
    assert_false(seen->end.answered);
    assert_false(seen->end.cancelled);
    assert_int_equal(seen->end.code, EXPERTD_ERR_UNAVAILABLE);
    release(seen);
    seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
    exchange(seen, NULL, 0, (const uint8_t *)"again", 5, 1);
    assert_true(fixture_wait(&f->opened, 2));
    assert_string_not_equal(f->peers[0], f->peers[1]);
    cancel_and_release(seen);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

// The server reads one message and then no more, so that most of this one stays in socket buffers and in gRPC.
static void a_cut_ends_a_write_to_a_server_that_does_not_read(void **state) {
    (void)state;
    struct fixture *f = fixture_start(64 * MIB, 8);
    struct dialler *dialler = start_dialler(64 * MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    struct seen *seen = open_stream(dialler, channel, FLOOD, CONNECT_NS); // writes and never reads
    assert_true(fixture_wait(&seen->opened, 1));
    uint8_t *bytes = calloc(1, 48 * MIB);
    assert_true(dial_write(seen->stream, NULL, 0, &(struct rpc_part){bytes, 48 * MIB}, 1));
    nanosleep(&(struct timespec){.tv_nsec = 50 * NS_PER_MS}, NULL);
    assert_int_equal(seen->written, 0);
    int64_t begin_ns = clock_now_ns();
    dial_channel_cut(channel);
    assert_true(fixture_wait(&seen->closed, 1));
    assert_true(clock_now_ns() - begin_ns < NS_PER_S / 2);
    assert_int_equal(seen->lost, 1);
    assert_true(seen->end.cancelled);
    memset(bytes, POISON, 48 * MIB); // the body is free: nothing reads it any more
    release(seen);
    seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
    exchange(seen, NULL, 0, (const uint8_t *)"again", 5, 1);
    cancel_and_release(seen);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    free(bytes);
    fixture_stop(f);
}

static void a_message_above_the_limit_closes_the_stream(void **state) {
    (void)state;
    struct fixture *f = fixture_start(64 * MIB, 8);
    struct dialler *dialler = start_dialler(MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    struct seen *seen = open_stream(dialler, channel, FLOOD, CONNECT_NS); // messages of 8 MiB
    assert_true(dial_read(seen->stream));
    assert_true(fixture_wait(&seen->closed, 1));
    assert_int_equal(seen->end.code, EXPERTD_ERR_TOO_LARGE);
    assert_non_null(strstr(seen->text, "this daemon takes at most 1048576"));
    assert_int_equal(seen->no_message, 1);
    release(seen);
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

// ---- many threads

enum { RACERS = 4, ROUNDS = 25 };

struct racer {
    struct dialler *dialler;
    struct dial_channel *channel;
    unsigned seed;
};

static void *race(void *context) {
    struct racer *racer = context;
    uint8_t *bytes = pattern(200000, racer->seed);
    for (int i = 0; i < ROUNDS; i++) {
        struct seen *seen = open_stream(racer->dialler, racer->channel, i % 3 ? ECHO_STREAM : FLOOD, CONNECT_NS);
        seen->reads_on = true;
        dial_read(seen->stream);
        if (dial_write(seen->stream, bytes, 10, &(struct rpc_part){bytes, 200000}, 1) && i % 2) {
            fixture_wait(&seen->messages, 1);
        }
        if (i % 5 == 0) {
            dial_channel_cut(racer->channel);
        } else {
            dial_cancel(seen->stream);
        }
        release(seen);
    }
    free(bytes);
    return NULL;
}

static void streams_are_opened_written_cancelled_and_cut_by_many_threads(void **state) {
    (void)state;
    struct fixture *f = fixture_start(64 * MIB, 48);
    struct dialler *dialler = start_dialler(64 * MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, NULL, NULL);
    pthread_t threads[RACERS];
    struct racer racers[RACERS];
    for (unsigned i = 0; i < RACERS; i++) {
        racers[i] = (struct racer){dialler, channel, i};
        assert_int_equal(pthread_create(&threads[i], NULL, race, &racers[i]), 0);
    }
    for (unsigned i = 0; i < RACERS; i++) {
        pthread_join(threads[i], NULL);
    }
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
}

static atomic_int ticks;

static int64_t on_tick(void *context, unsigned thread, int64_t now_ns) {
    (void)context, (void)thread;
    ticks++;
    return ticks < 3 ? now_ns + NS_PER_MS : CLOCK_NEVER;
}

static void ticks_run_at_the_start_at_their_time_and_when_woken(void **state) {
    (void)state;
    struct dialler *dialler;
    struct dialler_options options = {.threads = 1, .name = "t", .max_message_bytes = MIB, .tick = on_tick};
    ticks = 0;
    assert_false(err_is(dialler_create(&options, &dialler)));
    assert_true(fixture_wait(&ticks, 3));
    dialler_wake(dialler, 0);
    assert_true(fixture_wait(&ticks, 4));
    dialler_destroy(dialler);
}

// ---- TLS

struct pki {
    char folder[64];
    struct authority ca, other;
};

static void make_pki(struct pki *pki) {
    strcpy(pki->folder, "/tmp/expertd-test-dial-XXXXXX");
    assert_non_null(mkdtemp(pki->folder));
    pki->ca = authority_create(pki->folder, "ca", NULL);
    pki->other = authority_create(pki->folder, "other", NULL);
    authority_issue(&pki->ca, pki->folder, "shard",
                    &(struct issued){.names = "URI:spiffe://example/shard/3,DNS:3.shards.example,IP:127.0.0.1"});
    authority_issue(&pki->ca, pki->folder, "elsewhere", &(struct issued){.names = "DNS:elsewhere.example"});
    authority_issue(&pki->ca, pki->folder, "front", &(struct issued){.names = "URI:spiffe://example/front/1,DNS:front.example"});
    authority_issue(&pki->other, pki->folder, "stranger", &(struct issued){.names = "URI:spiffe://example/front/1"});
}

static void drop_pki(struct pki *pki) {
    char command[128];
    authority_free(&pki->ca);
    authority_free(&pki->other);
    snprintf(command, sizeof command, "rm -r %s", pki->folder);
    assert_int_equal(system(command), 0);
}

// Files of FOLDER; NULL: not given.
static struct tls_store *open_store(const struct pki *pki, const char *own, const char *ca, const char *client_ca) {
    char paths[4][PEM_PATH_MAX];
    struct tls_store *store;
    struct tls_paths files = {.cert = own ? certificates_path(pki->folder, own, "crt", paths[0]) : NULL,
                              .key = own ? certificates_path(pki->folder, own, "key", paths[1]) : NULL,
                              .ca = ca ? certificates_path(pki->folder, ca, "crt", paths[2]) : NULL,
                              .client_ca = client_ca ? certificates_path(pki->folder, client_ca, "crt", paths[3]) : NULL};
    if (err_is(tls_store_create(&files, &store))) {
        fail_msg("%s", expertd_err_message());
    }
    return store;
}

struct attempt {
    const char *server, *client; // names of certificates
    const char *client_ca;       // of the server; NULL: not mutual
    const char *ca;              // of the client
    const char *allowed_servers, *allowed_callers;
    const char *text; // part of the message of the failure; NULL: success
    enum expertd_err_code code;
};

static void try_to_connect(const struct pki *pki, const struct attempt *a) {
    struct tls_store *server = open_store(pki, a->server, NULL, a->client_ca), *client = open_store(pki, a->client, a->ca, NULL);
    struct rpc_tls tls = {.store = server, .allowed = {[RPC_ROLE_CALLER] = a->allowed_callers}};
    struct fixture *f = fixture_start_with(NULL, &tls, 32 * MIB, 8);
    struct dialler *dialler = start_dialler(32 * MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, client, a->allowed_servers);
    struct seen *seen = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
    if (!a->text) {
        exchange_sizes(seen);
        assert_string_equal(seen->identity, "spiffe://example/shard/3,3.shards.example");
        assert_string_equal(f->identities[0], a->client_ca ? "spiffe://example/front/1,front.example" : "");
        assert_memory_equal(f->peers[0], "ipv4:127.0.0.1:", 15);
        cancel_and_release(seen);
    } else {
        dial_read(seen->stream);
        assert_true(fixture_wait(&seen->closed, 1));
        if (seen->end.code != a->code || !strstr(seen->text, a->text)) {
            fail_msg("%s, %s: %s (%d), expected %s", a->server, a->client ? a->client : "-", seen->text, seen->end.code, a->text);
        }
        assert_int_equal(f->opened, 0);
        release(seen);
    }
    dial_channel_destroy(channel);
    dialler_destroy(dialler);
    fixture_stop(f);
    tls_store_destroy(client);
    tls_store_destroy(server);
}

static void both_sides_check_each_other(void **state) {
    (void)state;
    struct pki pki;
    make_pki(&pki);
    static const struct attempt ATTEMPTS[] = {
        {.server = "shard", .ca = "ca"},
        {.server = "shard", .client = "front", .client_ca = "ca", .ca = "ca"},
        {.server = "shard", .client = "front", .client_ca = "ca", .ca = "ca", .allowed_servers = "spiffe://example/shard/*"},
        {.server = "shard", .client = "front", .client_ca = "ca", .ca = "ca", .allowed_servers = "a.example,*.shards.example"},
        {.server = "shard", .client = "front", .client_ca = "ca", .ca = "ca", .allowed_callers = "spiffe://example/front/*"},
        {.server = "elsewhere", .ca = "ca", .code = EXPERTD_ERR_UNAVAILABLE, .text = "elsewhere.example"},
        {.server = "shard",
         .ca = "ca",
         .allowed_servers = "spiffe://example/front/*",
         .code = EXPERTD_ERR_UNAVAILABLE,
         .text = "spiffe://example/shard/3,3.shards.example,127.0.0.1, not spiffe://example/front/*"},
        {.server = "shard", .ca = "other", .code = EXPERTD_ERR_UNAVAILABLE, .text = ""},
        {.server = "shard", .ca = "ca", .client_ca = "ca", .code = EXPERTD_ERR_UNAVAILABLE, .text = ""},
        {.server = "shard", .client = "stranger", .client_ca = "ca", .ca = "ca", .code = EXPERTD_ERR_UNAVAILABLE, .text = ""},
        {.server = "shard",
         .client = "front",
         .client_ca = "ca",
         .ca = "ca",
         .allowed_callers = "spiffe://example/engine/*",
         .code = EXPERTD_ERR_PERMISSION,
         .text = "is of spiffe://example/front/1,front.example, and tls_allow_callers of this server does not list it"},
    };
    for (size_t i = 0; i < sizeof ATTEMPTS / sizeof *ATTEMPTS; i++) {
        try_to_connect(&pki, &ATTEMPTS[i]);
    }
    drop_pki(&pki);
}

static void replace(const struct pki *pki, const char *from, const char *to) {
    static const char *const ENDINGS[] = {"crt", "key"};
    for (int i = 0; i < 2; i++) {
        char a[PEM_PATH_MAX], b[PEM_PATH_MAX];
        assert_int_equal(
            rename(certificates_path(pki->folder, from, ENDINGS[i], a), certificates_path(pki->folder, to, ENDINGS[i], b)), 0);
    }
}

// The next connection uses the new certificate, on both sides; the open stream goes on with the old one.
static void new_certificates_are_used_from_the_next_connection_on(void **state) {
    (void)state;
    struct pki pki;
    struct err_copy error;
    make_pki(&pki);
    authority_issue(&pki.ca, pki.folder, "shard2", &(struct issued){.names = "URI:spiffe://example/shard/4,IP:127.0.0.1"});
    authority_issue(&pki.ca, pki.folder, "front2", &(struct issued){.names = "URI:spiffe://example/front/2"});
    struct tls_store *server = open_store(&pki, "shard", NULL, "ca"), *client = open_store(&pki, "front", "ca", NULL);
    struct rpc_tls tls = {.store = server};
    struct fixture *f = fixture_start_with(NULL, &tls, 32 * MIB, 8);
    struct dialler *dialler = start_dialler(32 * MIB);
    struct dial_channel *channel = open_channel(dialler, f->address, client, NULL),
                        *second = open_channel(dialler, f->address, client, NULL);
    struct seen *old = open_stream(dialler, channel, ECHO_STREAM, CONNECT_NS);
    exchange(old, NULL, 0, (const uint8_t *)"a", 1, 1);
    replace(&pki, "shard2", "shard");
    replace(&pki, "front2", "front");
    assert_int_equal(tls_store_refresh(server, &error), TLS_REPLACED);
    assert_int_equal(tls_store_refresh(client, &error), TLS_REPLACED);
    struct seen *new = open_stream(dialler, second, ECHO_STREAM, CONNECT_NS);
    exchange(new, NULL, 0, (const uint8_t *)"b", 1, 1);
    exchange(old, NULL, 0, (const uint8_t *)"c", 1, 2);
    assert_string_equal(old->identity, "spiffe://example/shard/3,3.shards.example");
    assert_string_equal(new->identity, "spiffe://example/shard/4");
    assert_string_equal(f->identities[0], "spiffe://example/front/1,front.example");
    assert_string_equal(f->identities[1], "spiffe://example/front/2");
    cancel_and_release(old);
    cancel_and_release(new);
    dial_channel_destroy(channel);
    dial_channel_destroy(second);
    dialler_destroy(dialler);
    fixture_stop(f);
    tls_store_destroy(client);
    tls_store_destroy(server);
    drop_pki(&pki);
}

static void wrong_channels_are_refused(void **state) {
    (void)state;
    struct pki pki;
    make_pki(&pki);
    struct dialler *dialler = start_dialler(MIB);
    struct tls_store *no_ca = open_store(&pki, "front", NULL, NULL);
    static const char *const ADDRESSES[] = {"", "host", ":1", "host:", "http://host:1"};
    struct dial_channel *channel;
    for (size_t i = 0; i < sizeof ADDRESSES / sizeof *ADDRESSES; i++) {
        assert_int_equal(dial_channel_create(dialler, &(struct dial_channel_options){.address = ADDRESSES[i]}, &channel).code,
                         EXPERTD_ERR_CONFIG);
    }
    assert_int_equal(dial_channel_create(dialler, &(struct dial_channel_options){.address = "h:1", .thread = 2}, &channel).code,
                     EXPERTD_ERR_CONFIG);
    assert_int_equal(
        dial_channel_create(dialler, &(struct dial_channel_options){.address = "h:1", .allowed_servers = "*"}, &channel).code,
        EXPERTD_ERR_CONFIG);
    assert_int_equal(dial_channel_create(dialler, &(struct dial_channel_options){.address = "h:1", .tls = no_ca}, &channel).code,
                     EXPERTD_ERR_CONFIG);
    assert_non_null(strstr(expertd_err_message(), "tls_ca is not set"));
    tls_store_destroy(no_ca);
    dialler_destroy(dialler);
    assert_int_equal(dialler_create(&(struct dialler_options){.threads = 0, .name = "x"}, &dialler).code, EXPERTD_ERR_CONFIG);
    drop_pki(&pki);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_any_size_and_parts_come_back),
        cmocka_unit_test(a_status_with_details_is_passed_on),
        cmocka_unit_test(nobody_there_is_reported_at_once_and_each_open_tries_anew),
        cmocka_unit_test(a_silent_server_is_given_up_after_the_connect_timeout),
        cmocka_unit_test(a_server_that_goes_away_closes_the_streams_and_can_come_back),
        cmocka_unit_test(a_cut_ends_a_write_to_a_server_that_does_not_read),
        cmocka_unit_test(a_message_above_the_limit_closes_the_stream),
        cmocka_unit_test(streams_are_opened_written_cancelled_and_cut_by_many_threads),
        cmocka_unit_test(ticks_run_at_the_start_at_their_time_and_when_woken),
        cmocka_unit_test(both_sides_check_each_other),
        cmocka_unit_test(new_certificates_are_used_from_the_next_connection_on),
        cmocka_unit_test(wrong_channels_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
