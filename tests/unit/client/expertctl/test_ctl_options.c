// expertctl's command line, and its choice of an address.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cmocka.h>

#include "client/expertctl/options.h"

enum { WORDS_MAX = 40 };

static err_t parse(struct ctl_options *out, const char *line) {
    static char text[512]; // options point into it
    char *argv[WORDS_MAX] = {"expertctl"};
    int argc = 1;
    snprintf(text, sizeof text, "%s", line);
    for (char *word = strtok(text, " "); word && argc < WORDS_MAX; word = strtok(NULL, " ")) {
        argv[argc++] = word;
    }
    return ctl_options_parse(argc, argv, out);
}

static void assert_refused(const char *line, const char *cause) {
    struct ctl_options options;
    assert_int_equal(parse(&options, line).code, EXPERTD_ERR_USAGE);
    if (!strstr(expertd_err_message(), cause)) {
        fail_msg("%s: '%s' does not mention '%s'", line, expertd_err_message(), cause);
    }
}

static void options_take_every_flag_of_forward(void **state) {
    (void)state;
    struct ctl_options o;
    assert_false(
        err_is(parse(&o, "--address unix:/x.sock --timeout 2.5 forward --layer 3 --hidden h.npy --hidden-dtype bf16 --ids i.npy "
                         "--weights=w.npy --shared include --dtype f16 --output o.npy --split 8 --weights-id 0xDEADbeef")));
    assert_int_equal(o.command, COMMAND_FORWARD);
    assert_string_equal(o.address, "unix:/x.sock");
    assert_int_equal(o.timeout_us, 2500000);
    assert_int_equal(o.layer, 3);
    assert_string_equal(o.hidden, "h.npy");
    assert_int_equal(o.hidden_dtype, EXPERTD_DTYPE_BF16);
    assert_string_equal(o.weights, "w.npy");
    assert_int_equal(o.shared, WIRE_SHARED_INCLUDE);
    assert_int_equal(o.output_dtype, EXPERTD_DTYPE_F16);
    assert_int_equal(o.split, 8);
    assert_int_equal(o.weights_id, 0xdeadbeef);
    assert_false(o.json);
}

static void options_have_defaults_and_no_order(void **state) {
    (void)state;
    struct ctl_options o;
    assert_false(err_is(parse(&o, "models --json")));
    assert_int_equal(o.command, COMMAND_MODELS);
    assert_true(o.json);
    assert_int_equal(o.timeout_us, 30000000);
    assert_null(o.address);
    assert_string_equal(o.model, "");
    assert_false(err_is(parse(&o, "forward --router-logits l.npy --hidden h.npy --layer 0")));
    assert_true(o.have_layer);
    assert_int_equal(o.shared, WIRE_SHARED_UNSPECIFIED);
}

static void placement_has_commands_of_its_own(void **state) {
    (void)state;
    struct ctl_options o;
    assert_false(err_is(parse(&o, "placement show --layer 3 --admin unix:/a.sock")));
    assert_int_equal(o.command, COMMAND_PLACEMENT);
    assert_int_equal(o.placement, PLACEMENT_SHOW);
    assert_true(o.have_layer && o.layer == 3);
    assert_string_equal(o.admin, "unix:/a.sock");
    assert_false(err_is(parse(&o, "placement --layer all plan --policy contiguous --counts c.json --output p.json")));
    assert_int_equal(o.placement, PLACEMENT_PLAN);
    assert_false(o.have_layer);
    assert_int_equal(o.policy, PROTO_POLICY_CONTIGUOUS);
    assert_string_equal(o.counts, "c.json");
    assert_string_equal(o.output, "p.json");
    assert_false(err_is(parse(&o, "placement plan --replicas 4")));
    assert_int_equal(o.replicas, 4);
    assert_int_equal(o.policy, PROTO_POLICY_UNSPECIFIED);
    assert_false(err_is(parse(&o, "placement apply p.json --json")));
    assert_int_equal(o.placement, PLACEMENT_APPLY);
    assert_string_equal(o.plan, "p.json");
    assert_false(err_is(parse(&o, "drain --reason upgrade --wait")));
    assert_int_equal(o.command, COMMAND_DRAIN);
    assert_string_equal(o.reason, "upgrade");
    assert_true(o.wait);
}

static void placement_and_drain_refuse_flags_of_other_commands(void **state) {
    (void)state;
    assert_refused("placement", "one of show, plan, apply");
    assert_refused("placement shwo", "did you mean show");
    assert_refused("placement frobnicate", "it is one of show, plan, apply");
    assert_refused("placement show p.json", "one command at a time");
    assert_refused("placement apply", "the file that placement plan --output wrote");
    assert_refused("placement apply a.json b.json", "one command at a time");
    assert_refused("placement apply a.json --layer 3", "leave --layer out");
    assert_refused("placement show --replicas 2", "belong to expertctl placement plan");
    assert_refused("placement plan --policy even", "balanced or contiguous");
    assert_refused("placement plan --replicas -1", "an integer");
    assert_refused("placement show --wait", "belongs to expertctl shards and drain");
    assert_refused("drain --counts c.json", "belongs to expertctl placement");
    assert_refused("models --admin unix:/a", "belongs to expertctl placement, shards, drain and top");
    assert_refused("forward --layer all --hidden h.npy", "--layer L");
    assert_refused("drain now", "one command at a time");
}

static void shards_has_commands_that_name_a_shard(void **state) {
    (void)state;
    struct ctl_options o;
    assert_false(err_is(parse(&o, "shards")));
    assert_int_equal(o.command, COMMAND_SHARDS);
    assert_int_equal(o.shards_command, SHARDS_LIST);
    assert_false(err_is(parse(&o, "shards list --admin unix:/a.sock")));
    assert_int_equal(o.shards_command, SHARDS_LIST);
    assert_false(err_is(parse(&o, "shards drain 10.0.0.7:7421 --wait")));
    assert_int_equal(o.shards_command, SHARDS_DRAIN);
    assert_string_equal(o.shard, "10.0.0.7:7421");
    assert_true(o.wait && !o.cancel);
    assert_false(err_is(parse(&o, "shards --cancel drain host:1")));
    assert_true(o.cancel);
    assert_false(err_is(parse(&o, "shards add host:1")));
    assert_int_equal(o.shards_command, SHARDS_ADD);
    assert_false(err_is(parse(&o, "shards remove host:1 --json")));
    assert_int_equal(o.shards_command, SHARDS_REMOVE);
    assert_refused("shards drian host:1", "did you mean drain");
    assert_refused("shards host:1", "it is one of list, drain, add, remove");
    assert_refused("shards drain", "needs the address of a shard");
    assert_refused("shards add a:1 b:1", "a:1 is named already");
    assert_refused("shards list a:1", "one command at a time");
    assert_refused("shards --wait", "--wait belongs to expertctl shards drain");
    assert_refused("shards add a:1 --cancel", "--cancel belongs to expertctl shards drain");
    assert_refused("shards drain a:1 --cancel --wait", "leave --wait out");
    assert_refused("drain --cancel", "belongs to expertctl shards");
}

static void help_and_version_ask_for_nothing_else(void **state) {
    (void)state;
    struct ctl_options o;
    assert_false(err_is(parse(&o, "forward --help --nonsense")));
    assert_int_equal(o.command, COMMAND_HELP);
    assert_false(err_is(parse(&o, "-h")));
    assert_int_equal(o.command, COMMAND_HELP);
    assert_false(err_is(parse(&o, "--version")));
    assert_int_equal(o.command, COMMAND_VERSION);
}

static void unknown_words_get_the_nearest_known_one(void **state) {
    (void)state;
    assert_refused("modles", "did you mean models?");
    assert_refused("stats", "did you mean status?");
    assert_refused("--adress x models", "did you mean --address?");
    assert_refused("forward --hiden x", "did you mean --hidden?");
    assert_refused("forward --router_logits x", "did you mean --router-logits?");
    assert_refused("--xyzzyplugh models", "--help lists them");
    assert_refused("frobnicate", "one of models, status, forward");
}

static void top_has_a_default_interval_and_host(void **state) {
    (void)state;
    struct ctl_options o;
    assert_false(err_is(parse(&o, "top")));
    assert_int_equal(o.command, COMMAND_TOP);
    assert_int_equal(o.interval_us, 2000000);
    assert_true(!o.http && !o.once);
    assert_false(err_is(parse(&o, "top --once --interval 0.5 --http localhost:80 --admin unix:/a --json")));
    assert_int_equal(o.interval_us, 500000);
    assert_true(o.once && o.json);
    assert_string_equal(o.http, "localhost:80");
    assert_refused("top --http unix:/x", "HOST:PORT");
    assert_refused("top --interval 0", "--interval 0");
    assert_refused("status --once", "belongs to expertctl top");
    assert_refused("status --admin unix:/a", "placement, shards, drain and top");
}

static void wrong_lines_are_named(void **state) {
    (void)state;
    assert_refused("", "command is missing");
    assert_refused("models status", "one command at a time");
    assert_refused("--json --json models", "twice");
    assert_refused("--json=yes models", "takes no value");
    assert_refused("models --timeout", "takes a value");
    assert_refused("models --timeout=", "is empty");
    assert_refused("models --timeout 0", "above 0");
    assert_refused("models --timeout nan", "above 0");
    assert_refused("models --timeout 1e9", "above 0");
    assert_refused("models --address here", "port is missing");
    assert_refused("models --layer 3", "belongs to expertctl forward, compare and placement");
    assert_refused("compare --layer 3", "--with");
    assert_refused("forward --with unix:/a --layer 1 --hidden h.npy", "belongs to expertctl compare");
    assert_refused("forward --hidden h.npy", "--layer");
    assert_refused("forward --layer 1", "--hidden");
    assert_refused("forward --layer -1 --hidden h.npy", "an integer");
    assert_refused("forward --layer 4294967296 --hidden h.npy", "an integer");
    assert_refused("forward --layer 3x --hidden h.npy", "an integer");
    assert_refused("forward --layer 3 --hidden h.npy --ids i.npy", "--weights is missing");
    assert_refused("forward --layer 3 --hidden h.npy --weights i.npy", "--ids is missing");
    assert_refused("forward --layer 3 --hidden h.npy --ids i.npy --weights w.npy --router-logits l.npy", "one of them");
    assert_refused("forward --layer 3 --hidden h.npy --dtype f64", "f32, bf16 or f16");
    assert_refused("forward --layer 3 --hidden h.npy --dtype f8_e4m3", "f32, bf16 or f16");
    assert_refused("forward --layer 3 --hidden h.npy --dtype i32", "f32, bf16 or f16");
    assert_refused("forward --layer 3 --hidden h.npy --shared maybe", "include or exclude");
    assert_refused("forward --layer 3 --hidden h.npy --split 0", "at least one token");
    assert_refused("forward --layer 3 --hidden h.npy --weights-id xyz", "hexadecimal");
    assert_refused("forward --layer 3 --hidden h.npy --weights-id 11112222333344445", "hexadecimal");
}

static void json_is_known_even_after_an_earlier_mistake(void **state) {
    (void)state;
    struct ctl_options o;
    assert_true(err_is(parse(&o, "--nonsense models --json")));
    assert_true(o.json);
}

static void the_address_is_the_flags_then_the_environments_then_a_socket_then_tcp(void **state) {
    (void)state;
    char folder[] = "/tmp/expertd-ctl.XXXXXX", socket_path[64], out[ADDRESS_TEXT_MAX], expected[80];
    assert_non_null(mkdtemp(folder));
    snprintf(socket_path, sizeof socket_path, "%s/expertd.sock", folder);
    snprintf(expected, sizeof expected, "unix:%s", socket_path);
    struct ctl_options flag = {.address = "unix:/flag"}, none = {0};
    struct ctl_environment all = {.address = "host:1", .runtime_dir = folder}, runtime = {.runtime_dir = folder},
                           empty = {.address = "", .runtime_dir = ""};

    assert_false(err_is(ctl_address(&flag, &all, out)));
    assert_string_equal(out, "unix:/flag");
    assert_false(err_is(ctl_address(&none, &all, out)));
    assert_string_equal(out, "host:1");
    assert_false(err_is(ctl_address(&none, &runtime, out))); // no socket there
    assert_string_equal(out, "127.0.0.1:7411");
    assert_false(err_is(ctl_address(&none, &empty, out)));
    assert_string_equal(out, "127.0.0.1:7411");

    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    snprintf(name.sun_path, sizeof name.sun_path, "%s", socket_path);
    assert_int_equal(bind(fd, (struct sockaddr *)&name, sizeof name), 0);
    assert_false(err_is(ctl_address(&none, &runtime, out)));
    assert_string_equal(out, expected);
    close(fd);
    unlink(socket_path);
    rmdir(folder);

    struct ctl_environment bad = {.address = "nonsense"};
    assert_int_equal(ctl_address(&none, &bad, out).code, EXPERTD_ERR_USAGE);
    assert_non_null(strstr(expertd_err_message(), "$EXPERTD_ADDRESS"));
}

static void tls_is_on_if_anything_of_it_is_given(void **state) {
    (void)state;
    struct ctl_options o;
    struct ctl_environment none = {0}, empty = {.tls = "", .tls_ca = "", .tls_cert = "", .tls_key = "", .tls_server_name = ""};
    assert_false(err_is(parse(&o, "models")));
    assert_false(err_is(ctl_tls(&none, &o)) || o.tls.on);
    assert_false(err_is(ctl_tls(&empty, &o)) || o.tls.on);
    static const char *const LINES[] = {"models --tls", "models --tls-ca a", "models --tls-cert c --tls-key k",
                                        "models --tls-server-name n"};
    for (size_t i = 0; i < sizeof LINES / sizeof *LINES; i++) {
        assert_false(err_is(parse(&o, LINES[i])));
        assert_false(err_is(ctl_tls(&none, &o)));
        assert_true(o.tls.on);
    }
    const struct ctl_environment environments[] = {
        {.tls = "true"}, {.tls_ca = "a"}, {.tls_cert = "c", .tls_key = "k"}, {.tls_server_name = "n"}};
    for (size_t i = 0; i < sizeof environments / sizeof *environments; i++) {
        assert_false(err_is(parse(&o, "models")));
        assert_false(err_is(ctl_tls(&environments[i], &o)));
        assert_true(o.tls.on);
    }
}

static void tls_flags_come_before_variables(void **state) {
    (void)state;
    struct ctl_options o;
    struct ctl_environment all = {.tls = "false", .tls_ca = "va", .tls_cert = "vc", .tls_key = "vk", .tls_server_name = "vn"};
    assert_false(err_is(parse(&o, "models --tls-ca fa --tls-cert fc --tls-key fk")));
    assert_false(err_is(ctl_tls(&all, &o)));
    assert_string_equal(o.tls.ca, "fa");
    assert_string_equal(o.tls.cert, "fc");
    assert_string_equal(o.tls.key, "fk");
    assert_string_equal(o.tls.server_name, "vn");
    assert_false(err_is(parse(&o, "models --tls-cert fc"))); // not mixed with the variable's key
    assert_int_equal(ctl_tls(&all, &o).code, EXPERTD_ERR_USAGE);
    assert_non_null(strstr(expertd_err_message(), "--tls-key is missing"));
    assert_false(err_is(parse(&o, "models")));
    assert_int_equal(ctl_tls(&(struct ctl_environment){.tls = "yes"}, &o).code, EXPERTD_ERR_USAGE);
    assert_non_null(strstr(expertd_err_message(), "it is true or false"));
}

static void the_admin_address_is_one_that_can_be_dialled(void **state) {
    (void)state;
    static const char *const CASES[][3] = {
        {"unix:/run/a.sock", "unix:/run/a-admin.sock", "unix:/run/a-admin.sock"},
        {"host.example:7411", "0.0.0.0:7413", "host.example:7413"},
        {"[::1]:7411", "[::]:7413", "[::1]:7413"},
        {"host.example:7411", "admin.example:7413", "admin.example:7413"},
        {"unix:/run/a.sock", "0.0.0.0:7413", "127.0.0.1:7413"},
    };
    char out[ADDRESS_TEXT_MAX];
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assert_false(err_is(ctl_admin_address(CASES[i][0], CASES[i][1], out)));
        assert_string_equal(out, CASES[i][2]);
    }
    assert_true(ctl_admin_default("unix:/run/expertd.sock", out));
    assert_string_equal(out, "unix:/run/expertd-admin.sock");
    assert_true(ctl_admin_default("unix:/run/a", out));
    assert_string_equal(out, "unix:/run/a-admin.sock");
    assert_false(ctl_admin_default("host:7411", out));
    assert_int_equal(ctl_admin_address("host:7411", "unix:/run/a-admin.sock", out).code, EXPERTD_ERR_USAGE);
    assert_non_null(strstr(expertd_err_message(), "--admin unix:/run/a-admin.sock"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_take_every_flag_of_forward),
        cmocka_unit_test(options_have_defaults_and_no_order),
        cmocka_unit_test(placement_has_commands_of_its_own),
        cmocka_unit_test(placement_and_drain_refuse_flags_of_other_commands),
        cmocka_unit_test(shards_has_commands_that_name_a_shard),
        cmocka_unit_test(help_and_version_ask_for_nothing_else),
        cmocka_unit_test(unknown_words_get_the_nearest_known_one),
        cmocka_unit_test(top_has_a_default_interval_and_host),
        cmocka_unit_test(wrong_lines_are_named),
        cmocka_unit_test(json_is_known_even_after_an_earlier_mistake),
        cmocka_unit_test(the_address_is_the_flags_then_the_environments_then_a_socket_then_tcp),
        cmocka_unit_test(tls_is_on_if_anything_of_it_is_given),
        cmocka_unit_test(tls_flags_come_before_variables),
        cmocka_unit_test(the_admin_address_is_one_that_can_be_dialled),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
