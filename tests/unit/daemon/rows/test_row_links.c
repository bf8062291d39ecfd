// Tests the links of the exchange over gRPC, one function at a time, against a scripted server. The conformance suite of the
// exchange and the golden layers run over them in exchange_over_grpc and layer_over_grpc.
#include "row_bench.h"

static void pieces_of_any_size_arrive_and_their_rows_come_back(void **state) {
    (void)state;
    static const size_t ROWS[] = {2, 3, 40, 170}; // 170 rows of 6,000 bytes: several slices of gRPC
    struct bench *b = start();
    struct row_link_figures figures;
    use(b);
    open_stream(b, 1);
    uint64_t number = 0, rows = 0, messages = 0;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        for (size_t stride = WIDE; stride <= WIDE_STRIDE; stride += WIDE_STRIDE - WIDE) {
            struct batch batch = begin(b, ++number, 3 * ROWS[i], WIDE, stride);
            for (size_t p = 0; p < 3; p++) {
                assert_false(err_is(send_piece(b, &batch, p * ROWS[i], ROWS[i])));
                rows += ROWS[i], messages++;
            }
            assert_int_equal(await_rows(b), REMOTE_COMPLETE);
            assert_true(has_results(b, &batch));
            end(b, &batch);
        }
    }
    do { // counted after the exchange has the rows
        row_links_figures(b->links, RANK, &figures);
    } while (figures.answers < messages);
    assert_int_equal(b->records[0].layer, LAYERS[LAYER]);
    assert_int_equal(figures.batches, number);
    assert_true(figures.pieces == messages && figures.rows == rows && figures.rows_answered == rows);
    assert_true(figures.bytes_sent > rows * WIDE && figures.bytes_received > rows * WIDE);
    assert_int_equal(figures.compute_ns, 5 * messages);
    assert_int_equal(figures.errors + figures.refused, 0);
    assert_true(figures.connections == 1 && figures.generations == 1);
    stop(b, 1);
}

static void a_rank_takes_rows_while_it_is_in_use_and_connected(void **state) {
    (void)state;
    struct bench *b = start();
    open_stream(b, 1);
    assert_int_equal(generation(b), 0);
    use(b);
    assert_int_equal(generation(b), 1);
    use(b);
    assert_int_equal(generation(b), 1);
    run(b, 1);
    row_links_use(b->links, RANK, false, "silent");
    assert_int_equal(generation(b), 0);
    use(b);
    assert_int_equal(generation(b), 2);
    run(b, 2);
    row_links_close(b->links, RANK, "closed by the owner");
    assert_int_equal(generation(b), 0);
    assert_true(await(b, &b->ended, 1));
    assert_string_equal(b->why, "closed by the owner");
    row_links_close(b->links, RANK, "nothing is open");
    open_stream(b, 2); // still in use
    assert_int_equal(generation(b), 3);
    run(b, 3);
    assert_int_equal(b->remote->table->generation(b->remote->context, LOCAL), 0); // the other rank
    stop(b, 2);
}

static void a_rank_out_of_use_fails_its_batch_and_later_answers_are_ignored(void **state) {
    (void)state;
    struct bench *b = start();
    struct remote_results_counts counts;
    set_answers(b, false);
    use(b);
    open_stream(b, 1);
    struct batch batch = begin(b, 1, 6, 5000, 5000);
    assert_false(err_is(send_piece(b, &batch, 0, 6)));
    assert_true(await(b, &b->received, 1));
    row_links_use(b->links, RANK, false, "no echo for 75 ms");
    assert_int_equal(await_rows(b), REMOTE_FAILED);
    assert_true(error_ends_with(b, "shard 2: no echo for 75 ms"));
    assert_int_equal(send_piece(b, &batch, 3, 3).code, EXPERTD_ERR_SHARD_LOST);
    assert_non_null(strstr(expertd_err_message(), "no echo for 75 ms"));
    end(b, &batch);
    for (unsigned i = 0; i < 2; i++) { // an answer while the rank is out of use, and one in the next generation
        struct rows_reply late = {.batch = 1, .epoch = EPOCH, .first_row = 3 * i, .rows = 3, .result_bytes = 15000};
        struct row_link_figures figures;
        send_rows(b, b->peer, late);
        do {
            row_links_figures(b->links, RANK, &figures);
        } while (figures.answers <= i);
        use(b);
    }
    remote_results_count(b->results, &counts);
    assert_int_equal(counts.late, 1);
    set_answers(b, true);
    assert_int_equal(generation(b), 2);
    run(b, 2);
    assert_int_equal(b->ended, 0); // the stream has stayed
    stop(b, 1);
}

// Ends the stream with a status, or breaks its TCP connection. False: the server does not have the stream yet.
static bool end_at_the_server(struct bench *b, uint32_t connection, bool breaks) {
    lock(b);
    bool has_peer = b->peer && rows_peer_connection(b->peer) == connection;
    if (has_peer) {
        breaks ? rows_peer_shut_down(b->peer) : rows_peer_end(b->peer);
    }
    unlock(b);
    return has_peer;
}

static void a_connection_that_is_lost_wakes_the_waiter_and_fails_later_sends(void **state) {
    (void)state;
    struct bench *b = start();
    set_answers(b, false);
    use(b);
    for (unsigned i = 0; i < 4; i++) {
        open_stream(b, i + 1);
        assert_int_equal(generation(b), i + 1);
        struct batch batch = begin(b, i + 1, 6, 3000, 3000);
        if (i < 2) {
            assert_false(err_is(send_piece(b, &batch, 0, 3)));
        }
        assert_true(end_at_the_server(b, i + 1, i % 2));
        assert_int_equal(await_rows(b), REMOTE_FAILED);
        assert_int_equal(generation(b), 0);
        assert_int_equal(send_piece(b, &batch, 3, 3).code, EXPERTD_ERR_SHARD_LOST);
        end(b, &batch);
        assert_true(await(b, &b->ended, i + 1));
        assert_int_equal(b->last_ended, i + 1);
        assert_true(b->why[0]);
    }
    stop(b, 4);
}

// More than the socket's buffers and HTTP/2's window hold, so that the first piece is still leaving.
static void a_peer_that_does_not_read_delays_nobody_and_holds_one_batch(void **state) {
    (void)state;
    enum { ROWS = 700, BATCHES = 16 };
    struct bench *b = start();
    use(b);
    open_stream(b, 1);
    rows_server_read_nothing(b->server, true);
    run(b, 1); // the read that is under way
    for (uint64_t number = 2; number < BATCHES; number++) {
        struct batch batch = begin(b, number, 3 * ROWS, WIDE, WIDE);
        for (size_t p = 0; p < 3; p++) {
            assert_false(err_is(send_piece(b, &batch, p * ROWS, ROWS)));
        }
        if (number % 2) {
            b->remote->table->abandon(b->remote->context, RANK, batch.generation, number);
        }
        end(b, &batch);
    }
    rows_server_read_nothing(b->server, false);
    run(b, BATCHES);
    lock(b);
    assert_true(b->received < 12); // of 44: the first batch, the pieces that were leaving, and the last one
    unlock(b);
    rows_server_read_nothing(b->server, true);
    run(b, BATCHES + 1);
    struct batch batch = begin(b, BATCHES + 2, 3 * ROWS, WIDE, WIDE);
    for (size_t p = 0; p < 3; p++) {
        assert_false(err_is(send_piece(b, &batch, p * ROWS, ROWS)));
    }
    b->remote->table->drop(b->remote->context, RANK, batch.generation + 1, "another generation");
    assert_true(generation(b) == batch.generation);
    b->remote->table->drop(b->remote->context, RANK, batch.generation, "no answer in time");
    assert_int_equal(generation(b), 0);
    assert_true(await(b, &b->ended, 1));
    assert_string_equal(b->why, "no answer in time");
    assert_int_equal(await_rows(b), REMOTE_FAILED);
    end(b, &batch);
    rows_server_read_nothing(b->server, false);
    open_stream(b, 2);
    run(b, BATCHES + 3);
    stop(b, 2);
}

// Ranks are dropped while their answers arrive: nothing is written after the batch has ended.
static void answers_that_arrive_around_a_drop_touch_nothing_after_the_batch(void **state) {
    (void)state;
    struct bench *b = start();
    use(b);
    for (unsigned i = 0; i < 30; i++) {
        open_stream(b, i + 1);
        struct batch batch = begin(b, i + 1, 60, WIDE, WIDE);
        for (size_t p = 0; p < 3; p++) {
            (void)err_is(send_piece(b, &batch, p * 20, 20));
        }
        sleep_us(i % 10 * 100);
        b->remote->table->drop(b->remote->context, RANK, batch.generation, "dropped");
        assert_int_equal(generation(b), 0);
        remote_results_end(b->results);
        memset(batch.results, 0x77, batch.rows * batch.stride);
        assert_true(await(b, &b->ended, i + 1));
        for (size_t c = 0; c < batch.rows * batch.stride; c++) {
            assert_int_equal(batch.results[c], 0x77);
        }
        free(batch.results);
    }
    stop(b, 30);
}

struct wrong {
    struct rows_reply reply;
    const char *bytes; // instead of the reply
    const char *names;
};

// Each is sent after batch 1 of 3 rows, which was answered, and while batch 2 of 3 rows waits.
static const struct wrong WRONG[] = {
    {.bytes = "\xff\xff\xff\xff", .names = "RowsReply"},
    {.bytes = "\x0a\x01x", .names = "batch"}, // field 1 as a string
    {.reply = {.epoch = EPOCH, .rows = 3, .result_bytes = 300}, .names = "without the number of its batch"},
    {.reply = {.batch = 2, .epoch = EPOCH}, .names = "neither rows nor an error"},
    {.reply = {.batch = 2, .epoch = EPOCH - 1, .rows = 3, .result_bytes = 300}, .names = "with epoch 76"},
    {.reply = {.batch = 3, .epoch = EPOCH, .rows = 3, .result_bytes = 300}, .names = "batch 3"},
    {.reply = {.batch = 2, .epoch = EPOCH, .rows = 4, .result_bytes = 400}, .names = "4 rows from row 0"},
    {.reply = {.batch = 2, .epoch = EPOCH, .rows = 2, .first_row = 1, .result_bytes = 200}, .names = "2 rows from row 1"},
    {.reply = {.batch = 2, .epoch = EPOCH, .rows = 3, .result_bytes = 299}, .names = "299 bytes for 3 rows"},
    {.reply = {.batch = 2, .epoch = EPOCH, .rows = 3, .result_bytes = 301}, .names = "301 bytes for 3 rows"},
    {.reply = {.batch = 2, .epoch = EPOCH, .rows = 3, .result_bytes = 17 * MIB}, .names = "takes at most 16777216"},
    {.reply = {.batch = 1, .epoch = EPOCH, .rows = 4, .result_bytes = 400}, .names = "6 rows were sent"}, // late, and too much
};

static void an_answer_that_no_correct_shard_sends_ends_the_stream(void **state) {
    (void)state;
    enum { COUNT = sizeof WRONG / sizeof *WRONG };
    for (size_t i = 0; i < COUNT; i++) {
        struct bench *b = start();
        struct row_link_figures figures;
        use(b);
        open_stream(b, 1);
        run(b, 1);
        set_answers(b, false);
        struct batch batch = begin(b, 2, 3, 100, 100);
        assert_false(err_is(send_piece(b, &batch, 0, 3)));
        if (WRONG[i].bytes) {
            rows_peer_send(b->peer, WRONG[i].bytes, strlen(WRONG[i].bytes));
        } else {
            send_rows(b, b->peer, WRONG[i].reply);
        }
        assert_int_equal(await_rows(b), REMOTE_FAILED);
        assert_true(await(b, &b->ended, 1));
        if (!strstr(b->why, WRONG[i].names)) {
            fail_msg("%s", b->why);
        }
        assert_int_equal(generation(b), 0);
        row_links_figures(b->links, RANK, &figures);
        assert_int_equal(figures.refused, WRONG[i].reply.result_bytes < MIB); // the dialler refuses a message above its limit
        end(b, &batch);
        stop(b, 1);
    }
}

static void an_error_of_the_shard_fails_the_batch_with_its_text(void **state) {
    (void)state;
    struct bench *b = start();
    struct row_link_figures figures;
    set_answers(b, false);
    use(b);
    open_stream(b, 1);
    struct batch batch = begin(b, 1, 3, 100, 100);
    assert_false(err_is(send_piece(b, &batch, 0, 3)));
    assert_true(await(b, &b->received, 1));
    send_rows(b, b->peer,
              (struct rows_reply){
                  .batch = 1, .epoch = EPOCH, .has_error = true, .reason = "SHARD_LOST", .message = "expert 4 is not held here\n"});
    assert_int_equal(await_rows(b), REMOTE_FAILED);
    assert_true(error_ends_with(b, "shard 2: SHARD_LOST: expert 4 is not held here\\x0a"));
    assert_int_equal(remote_results_failure(b->results, RANK), REMOTE_ANSWERED);
    end(b, &batch);
    set_answers(b, true);
    run(b, 2);
    row_links_figures(b->links, RANK, &figures);
    assert_true(figures.errors == 1 && figures.refused == 0 && b->ended == 0);
    stop(b, 1);
}

static void a_new_connection_replaces_one_that_has_not_ended(void **state) {
    (void)state;
    struct bench *b = start();
    struct dial_channel *other = channel_to(b, rows_server_address(b->server)), *first = b->channel;
    set_answers(b, false);
    use(b);
    open_stream(b, 1);
    struct batch batch = begin(b, 1, 3, 100, 100);
    assert_false(err_is(send_piece(b, &batch, 0, 3)));
    b->channel = other;
    open_stream(b, 2);
    assert_int_equal(await_rows(b), REMOTE_FAILED);
    assert_true(await(b, &b->ended, 1));
    assert_int_equal(b->last_ended, 1);
    assert_string_equal(b->why, "another connection replaces it");
    end(b, &batch);
    assert_int_equal(generation(b), 2);
    set_answers(b, true);
    run(b, 2);
    dial_channel_destroy(first);
    stop(b, 2);
}

// A listener that never accepts: its backlog takes the connection, and nothing comes.
static void a_stream_that_does_not_open_ends_with_the_reason(void **state) {
    (void)state;
    struct bench *b = start();
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof at;
    char address[64];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&at, &length), 0);
    snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(at.sin_port));
    struct dial_channel *channel = channel_to(b, address);
    use(b);
    open_on(b, channel, 1, CONNECT_NS); // nobody listens
    assert_true(await(b, &b->ended, 1));
    assert_non_null(strstr(b->why, "Connection refused"));
    assert_int_equal(listen(listener, 4), 0);
    open_on(b, channel, 2, 50 * (int64_t)NS_PER_MS);
    assert_true(await(b, &b->ended, 2));
    assert_non_null(strstr(b->why, "was not connected within 50 ms"));
    open_on(b, channel, 3, CONNECT_NS);
    row_links_close(b->links, RANK, "not needed");
    assert_true(await(b, &b->ended, 3));
    assert_string_equal(b->why, "not needed");
    assert_int_equal(b->opened, 0);
    assert_int_equal(generation(b), 0);
    dial_channel_destroy(channel);
    close(listener);
    stop(b, 3);
}

// ---- many generations

enum { STEPS = 120 };

struct owner {
    struct bench *bench;
    atomic_uint tries; // batches so far
    atomic_bool has_ended;
    unsigned streams;
};

static void await_tries(struct owner *owner, unsigned more) {
    unsigned wanted = atomic_load(&owner->tries) + more;
    while (atomic_load(&owner->tries) < wanted) {
        sleep_us(50);
    }
}

// Opens and closes streams and takes the rank out of use, in the middle of batches.
static void *own(void *context) {
    struct owner *owner = context;
    struct bench *b = owner->bench;
    bool is_open = false;
    for (unsigned i = 0; i < STEPS; i++) {
        if (!is_open) {
            open_on(b, b->channel, ++owner->streams, CONNECT_NS);
            is_open = true;
        }
        row_links_use(b->links, RANK, i % 3 > 0, "out of use");
        if (i % 3 > 0) {
            INVARIANT(await(b, &b->opened, owner->streams));
        }
        await_tries(owner, 1 + i % 5);
        sleep_us(i % 7 * 100);
        if (i % 8 == 2 || i % 8 == 5) {
            if (i % 8 == 2 || !end_at_the_server(b, owner->streams, i % 16 == 5)) {
                row_links_close(b->links, RANK, "closed");
            }
            INVARIANT(await(b, &b->ended, owner->streams));
            is_open = false;
        }
    }
    atomic_store(&owner->has_ended, true);
    return NULL;
}

static void many_generations_give_results_or_fail(void **state) {
    (void)state;
    struct bench *b = start();
    struct owner owner = {.bench = b};
    pthread_t thread;
    uint64_t last = 0;
    unsigned right = 0, failed = 0;
    assert_int_equal(pthread_create(&thread, NULL, own, &owner), 0);
    for (uint64_t number = 1; !atomic_load(&owner.has_ended); number++, owner.tries++) {
        struct batch batch = begin(b, number, 9, WIDE, WIDE_STRIDE);
        assert_true(batch.generation == 0 || batch.generation >= last);
        last = batch.generation > 0 ? batch.generation : last;
        bool sends = batch.generation > 0;
        for (size_t p = 0; p < 3 && sends; p++) {
            sends = !err_is(send_piece(b, &batch, 3 * p, 3));
        }
        if (sends && await_rows(b) == REMOTE_COMPLETE) {
            assert_true(has_results(b, &batch));
            right++;
        } else if (batch.generation > 0) {
            failed++;
            b->remote->table->abandon(b->remote->context, RANK, batch.generation, number);
        } else {
            sleep_us(100);
        }
        end(b, &batch);
    }
    pthread_join(thread, NULL);
    assert_true(right > STEPS / 4 && failed > 0 && last > STEPS / 8);
    stop(b, owner.streams);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_any_size_arrive_and_their_rows_come_back),
        cmocka_unit_test(a_rank_takes_rows_while_it_is_in_use_and_connected),
        cmocka_unit_test(a_rank_out_of_use_fails_its_batch_and_later_answers_are_ignored),
        cmocka_unit_test(a_connection_that_is_lost_wakes_the_waiter_and_fails_later_sends),
        cmocka_unit_test(a_peer_that_does_not_read_delays_nobody_and_holds_one_batch),
        cmocka_unit_test(answers_that_arrive_around_a_drop_touch_nothing_after_the_batch),
        cmocka_unit_test(an_answer_that_no_correct_shard_sends_ends_the_stream),
        cmocka_unit_test(an_error_of_the_shard_fails_the_batch_with_its_text),
        cmocka_unit_test(a_new_connection_replaces_one_that_has_not_ended),
        cmocka_unit_test(a_stream_that_does_not_open_ends_with_the_reason),
        cmocka_unit_test(many_generations_give_results_or_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
