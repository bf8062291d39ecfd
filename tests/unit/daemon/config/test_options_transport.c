// Which addresses are refused without TLS, and which TCP address may serve operators.
#include "tests/unit/daemon/config/options_fixture.h"

#include "daemon/config/options_address.h"
#include "daemon/config/options_transport.h"

static void expect_refusal(const char *flags, const char *environment, const char *part) {
    struct options options;
    err_t e = parse(flags, environment, &options);
    options_deinit(&options);
    if (e.code != EXPERTD_ERR_CONFIG || !strstr(expertd_err_message(), part)) {
        fail_msg("%s %s: %s", flags, environment, err_is(e) ? expertd_err_message() : "(no error)");
    }
}

static void expect_accepted(const char *flags) {
    struct options options;
    expect_ok(flags, "", &options);
    options_deinit(&options);
}

static void an_address_is_local_only_if_it_cannot_leave_the_machine(void **state) {
    (void)state;
    static const char *const LOCAL[] = {"127.0.0.1:1",   "127.255.255.254:1",   "[::1]:1",       "[0:0:0:0:0:0:0:1]:1",
                                        "localhost:1",   "LocalHost:0",         "a.localhost:1", "unix:/a",
                                        "unix:relative", "[::ffff:127.0.0.1]:1"};
    static const char *const REACHABLE[] = {"0.0.0.0:1",
                                            "[::]:1",
                                            "10.0.0.1:1",
                                            "126.255.255.255:1",
                                            "128.0.0.0:1",
                                            "host:1",
                                            "127.1:1",
                                            "notlocalhost:1",
                                            "localhost.org:1",
                                            "[fe80::1]:1",
                                            "127.0.0.1.example:1",
                                            "0127.0.0.1:1",
                                            "[::ffff:10.0.0.1]:1",
                                            "[::127.0.0.1]:1"};
    for (size_t i = 0; i < sizeof LOCAL / sizeof *LOCAL; i++) {
        if (!options_address_is_local(LOCAL[i])) {
            fail_msg("%s counts as reachable from elsewhere", LOCAL[i]);
        }
    }
    for (size_t i = 0; i < sizeof REACHABLE / sizeof *REACHABLE; i++) {
        if (options_address_is_local(REACHABLE[i])) {
            fail_msg("%s counts as local", REACHABLE[i]);
        }
    }
}

#define FILES "--tls-cert c --tls-key k "

static void plain_addresses_beyond_the_loopback_are_refused(void **state) {
    (void)state;
    expect_refusal("--model m --listen 0.0.0.0:1", "",
                   "listen is 0.0.0.0:1 (flag --listen), which other machines can reach, and TLS is off");
    expect_refusal("--model m --listen unix:/a --listen host:1", "",
                   "set tls_cert and tls_key, or listen on 127.0.0.1 or unix:PATH");
    expect_refusal("--model m", "EXPERTD_LISTEN=[::]:1", "listen is [::]:1 (environment EXPERTD_LISTEN)");
    expect_refusal("--model m --http 0.0.0.0:1", "",
                   "http is 0.0.0.0:1 (flag --http), which other machines can reach, and HTTP has neither");
    expect_refusal("--model m " FILES "--http host:1", "", "use 127.0.0.1 or off, or set insecure");
    expect_refusal("--model m --insecure=false --listen 0.0.0.0:1", "", "TLS is off");
    char flags[512];
    snprintf(flags, sizeof flags, "--model m --config %s",
             write_file("exposed.yaml", "http: off\nlisten: [127.0.0.1:1, '[::]:1']\n"));
    expect_refusal(flags, "", "exposed.yaml:2), which other machines can reach");
    expect_accepted("--model m --listen localhost:1 --http [::1]:0");
    expect_accepted("--model m " FILES "--listen 0.0.0.0:1 --listen host:2");
    expect_accepted("--model m --insecure --listen 0.0.0.0:1 --http 0.0.0.0:2");
}

static void every_exposed_address_is_listed(void **state) {
    (void)state;
    struct options o;
    enum options_key key;
    expect_ok("--model m --insecure --listen 0.0.0.0:1 --listen 127.0.0.1:1 --listen h:2 --http h:3", "", &o);
    assert_string_equal(options_exposed(&o, 0, &key), "0.0.0.0:1");
    assert_int_equal(key, OPTION_LISTEN);
    assert_string_equal(options_exposed(&o, 1, &key), "h:2");
    assert_string_equal(options_exposed(&o, 2, &key), "h:3");
    assert_int_equal(key, OPTION_HTTP);
    assert_null(options_exposed(&o, 3, &key));
    options_deinit(&o);
    expect_ok("--model m --insecure " FILES "--listen 0.0.0.0:1 --http h:3", "", &o);
    assert_string_equal(options_exposed(&o, 0, &key), "h:3");
    assert_null(options_exposed(&o, 1, &key));
    options_deinit(&o);
}

static void a_tcp_address_for_operators_needs_their_names(void **state) {
    (void)state;
    expect_refusal("--model m --admin 127.0.0.1:1", "", "but tls_allow_admins is not set");
    expect_refusal("--model m --insecure --admin 127.0.0.1:1", "", "but tls_allow_admins is not set");
    expect_refusal("--model m " FILES "--tls-client-ca a --admin 127.0.0.1:1", "", "but tls_allow_admins is not set");
    expect_accepted("--model m " FILES "--tls-client-ca a --tls-allow-admins spiffe://example/admin --admin 0.0.0.0:1");
}

static void other_machines_are_dialled_with_tls_or_insecure(void **state) {
    (void)state;
    static const struct {
        const char *flags, *address;
        bool allowed;
    } CASES[] = {
        {"--model m", "127.0.0.1:1", true},
        {"--model m", "[::1]:1", true},
        {"--model m", "h:1", false},
        {"--model m --tls-ca a", "h:1", true},
        {"--model m --insecure", "h:1", true},
        {"--model m " FILES, "10.0.0.1:1", false}, // a certificate of its own does not check the other side
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        struct options o;
        expect_ok(CASES[i].flags, "", &o);
        assert_int_equal(err_is(options_check_dial(&o, CASES[i].address)), !CASES[i].allowed);
        options_deinit(&o);
    }
    assert_non_null(strstr(expertd_err_message(), "tls_ca is not set"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_address_is_local_only_if_it_cannot_leave_the_machine),
        cmocka_unit_test(plain_addresses_beyond_the_loopback_are_refused),
        cmocka_unit_test(every_exposed_address_is_listed),
        cmocka_unit_test(a_tcp_address_for_operators_needs_their_names),
        cmocka_unit_test(other_machines_are_dialled_with_tls_or_insecure),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
