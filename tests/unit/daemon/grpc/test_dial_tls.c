// Tests outgoing streams with TLS against a server on rpc.h in the same process: who accepts whom, and new certificates.
#include "dial_fixture.h"

#include "daemon/tls/tls_store.h"
#include "tests/unit/certificates.h"

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
        exchange_sizes(seen, 300000);
        assert_true(fixture_wait(&f->opened, 1));
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
    assert_true(fixture_wait(&f->opened, 2));
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
        cmocka_unit_test(both_sides_check_each_other),
        cmocka_unit_test(new_certificates_are_used_from_the_next_connection_on),
        cmocka_unit_test(wrong_channels_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
