// The options: every source, their precedence, and printing.
#include "tests/unit/daemon/config/options_fixture.h"

#include "daemon/config/options_defaults.h"

enum { TEXT_MAX = 1 << 16 };

// options_print as a string for the caller to free.
static char *printed(const struct options *options) {
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    options_print(options, out);
    fclose(out);
    return text;
}
// ---- sources

static void defaults_match_the_documentation(void **state) {
    (void)state;
    struct options o;
    expect_ok("--model m", "HOME=/home/u", &o);
    assert_string_equal(o.model, "m");
    assert_int_equal(o.listen_count, 1);
    assert_string_equal(o.listen[0], "127.0.0.1:7411");
    assert_string_equal(o.http, "127.0.0.1:7412");
    assert_string_equal(o.admin, "off");
    assert_int_equal(o.shards, 1);
    assert_string_equal(o.role, "front");
    assert_int_equal(o.max_fronts, 8);
    assert_string_equal(o.placement, "contiguous");
    assert_null(o.placement_counts);
    assert_int_equal(o.replicas, 0);
    assert_int_equal(o.move_bytes_max, 1 << 30);
    assert_int_equal(o.exchange_timeout_ms, 10000);
    assert_null(o.shard_hosts);
    assert_int_equal(o.copies, 1);
    assert_true(o.placement_owner);
    assert_int_equal(o.rereplicate_after, 30);
    assert_int_equal(o.heartbeat_ms, 25);
    assert_int_equal(o.threads, options_cpu_count("/proc/self/cgroup", "/sys/fs/cgroup"));
    assert_int_equal(o.compute_dtype, EXPERTD_DTYPE_NONE);
    assert_string_equal(o.device, "auto");
    assert_false(o.have_layers);
    assert_string_equal(o.kernels, "auto");
    assert_string_equal(o.tuning, "heuristic");
    assert_null(o.tuning_cache);
    assert_string_equal(o.hf_cache, "/home/u/.cache/huggingface/hub");
    assert_int_equal(o.max_message_bytes, 64 << 20);
    assert_int_equal(o.max_batch_tokens, 4096);
    assert_int_equal(o.max_top_k, 64);
    assert_int_equal(o.max_calls, 1024);
    assert_int_equal(o.max_inflight, 16);
    assert_true(o.max_region_bytes == 256 << 20);
    assert_int_equal(o.max_regions, 64);
    assert_int_equal(o.max_queue, 256);
    assert_int_equal(o.max_queue_bytes, 256 << 20);
    assert_int_equal(o.read_slots, 8);
    assert_int_equal(o.memory_max, 0);
    assert_int_equal(o.rpc_threads, 1);
    assert_int_equal(o.spin_us, 50);
    assert_int_equal(o.drain_timeout_ms, 30000);
    assert_int_equal(o.send_timeout_ms, 30000);
    assert_string_equal(o.allow_uids, "self");
    assert_string_equal(o.log_level, "info");
    assert_null(o.config);
    options_deinit(&o);
}

static void a_runtime_folder_adds_the_unix_socket(void **state) {
    (void)state;
    struct options o;
    expect_ok("--model m", "XDG_RUNTIME_DIR=/run/user/7 RUNTIME_DIRECTORY=/run/expertd:/run/more", &o);
    assert_int_equal(o.listen_count, 2);
    assert_string_equal(o.listen[0], "unix:/run/expertd/expertd.sock");
    assert_string_equal(o.listen[1], "127.0.0.1:7411");
    options_deinit(&o);
    expect_ok("--model m", "XDG_RUNTIME_DIR=/run/user/7", &o);
    assert_string_equal(o.listen[0], "unix:/run/user/7/expertd.sock");
    options_deinit(&o);
}

static void the_admin_socket_is_next_to_the_first_unix_socket(void **state) {
    (void)state;
    static const struct {
        const char *flags, *admin;
    } ROWS[] = {
        {"--model m --listen unix:/run/expertd/expertd.sock", "unix:/run/expertd/expertd-admin.sock"},
        {"--model m --listen [::1]:0 --listen unix:/run/a.b/one.sock --listen unix:/run/two.sock", "unix:/run/a.b/one-admin.sock"},
        {"--model m --listen unix:/run/a.b/plain", "unix:/run/a.b/plain-admin.sock"},
        {"--model m --listen unix:plain.sock", "unix:plain-admin.sock"},
        {"--model m --listen unix:/run/.sock", "unix:/run/.sock-admin.sock"},
        {"--model m --listen 127.0.0.1:1", "off"},
        {"--model m --listen unix:/run/x.sock --admin off", "off"},
        {"--model m --listen 127.0.0.1:1 --admin unix:/tmp/a", "unix:/tmp/a"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        struct options o;
        expect_ok(ROWS[i].flags, "", &o);
        assert_string_equal(o.admin, ROWS[i].admin);
        options_deinit(&o);
    }
}

// The path of a companion file may be used if the daemon does not create that companion.
static void companion_paths_are_free_if_no_companion_is_created(void **state) {
    (void)state;
    static const char *const FLAGS[] = {
        "--model m --listen unix:/a --listen unix:/b --listen unix:/b.regions", // only the first socket has a regions socket
        "--model m --listen unix:/a --listen unix:/a.regions --max-region-bytes 0",
        "--model m --listen unix:/a --admin unix:/b --listen unix:/b.regions",
        "--model m --listen unix:/a --listen unix:/a.regions.sock --listen unix:/a.locks",
    };
    for (size_t i = 0; i < sizeof FLAGS / sizeof *FLAGS; i++) {
        struct options o;
        expect_ok(FLAGS[i], "", &o);
        options_deinit(&o);
    }
}

static void an_admin_socket_with_too_long_a_path_is_off(void **state) {
    (void)state;
    char flags[256];
    struct options o;
    snprintf(flags, sizeof flags, "--model m --listen unix:/%0100d.sock", 0);
    expect_ok(flags, "", &o);
    assert_string_equal(o.admin, "off");
    options_deinit(&o);
}

static void a_runtime_folder_too_long_for_a_socket_leaves_tcp(void **state) {
    (void)state;
    char environment[256] = "XDG_RUNTIME_DIR=/";
    memset(environment + strlen(environment), 'x', 100);
    struct options o;
    expect_ok("--model m", environment, &o);
    assert_int_equal(o.listen_count, 1);
    assert_string_equal(o.listen[0], "127.0.0.1:7411");
    options_deinit(&o);
}

static void a_piece_is_no_larger_than_a_batch(void **state) {
    (void)state;
    struct options o;
    expect_ok("--model m --max-batch-tokens 9", "", &o);
    assert_int_equal(o.max_piece_tokens, 9);
    assert_string_equal(o.origins[OPTION_MAX_PIECE_TOKENS], "max_batch_tokens");
    options_deinit(&o);
    expect_ok("--model m --max-batch-tokens 9 --max-piece-tokens 8", "", &o);
    assert_int_equal(o.max_piece_tokens, 8);
    options_deinit(&o);
}

// A value of each option that is not its default.
static const char *const VALUES[OPTION_COUNT] = {
    [OPTION_MODEL] = "m",
    [OPTION_ROLE] = "shard",
    [OPTION_LAYERS] = "2-5",
    [OPTION_COMPUTE_DTYPE] = "f32",
    [OPTION_WIDEN] = "true",
    [OPTION_QUANTIZE] = "int4",
    [OPTION_HF_CACHE] = "/c",
    [OPTION_LISTEN] = "localhost:1",
    [OPTION_HTTP] = "off",
    [OPTION_ADMIN] = "unix:/a",
    [OPTION_ALLOW_UIDS] = "0,5",
    [OPTION_TLS_CERT] = "/c",
    [OPTION_TLS_KEY] = "/k",
    [OPTION_TLS_CLIENT_CA] = "/a",
    [OPTION_TLS_CA] = "/a",
    [OPTION_TLS_ALLOW_CALLERS] = "spiffe://example/engine/*,*.engines.example",
    [OPTION_TLS_ALLOW_FRONTS] = "front.example",
    [OPTION_TLS_ALLOW_SHARDS] = "a.*.example",
    [OPTION_TLS_ALLOW_ADMINS] = "spiffe://example/admin",
    [OPTION_INSECURE] = "true",
    [OPTION_DEVICE] = "cpu",
    [OPTION_NUMERICS] = "portable",
    [OPTION_KERNELS] = "scalar",
    [OPTION_TUNING] = "cached",
    [OPTION_TUNING_CACHE] = "/var/cache/expertd/tuning",
    [OPTION_SHARDS] = "3",
    [OPTION_PLACEMENT] = "balanced",
    [OPTION_PLACEMENT_COUNTS] = "counts.json",
    [OPTION_REPLICAS] = "13",
    [OPTION_MOVE_BYTES_MAX] = "5MiB",
    [OPTION_THREADS] = "7",
    [OPTION_SPIN_US] = "0",
    [OPTION_EXCHANGE_TIMEOUT_MS] = "1234",
    [OPTION_SHARD_HOSTS] = "127.0.0.1:7421,dns:shards.localhost:7421",
    [OPTION_COPIES] = "2",
    [OPTION_PLACEMENT_OWNER] = "false",
    [OPTION_REREPLICATE_AFTER] = "60",
    [OPTION_HEARTBEAT_MS] = "50",
    [OPTION_MEMORY_MAX] = "3GiB",
    [OPTION_MAX_MESSAGE_BYTES] = "5000",
    [OPTION_MAX_BATCH_TOKENS] = "9",
    [OPTION_MAX_PIECE_TOKENS] = "3",
    [OPTION_MAX_REQUEST_TOKENS] = "70000",
    [OPTION_MAX_QUEUE_DELAY_US] = "200",
    [OPTION_MAX_TOP_K] = "4",
    [OPTION_MAX_CALLS] = "8",
    [OPTION_MAX_FRONTS] = "9",
    [OPTION_MAX_INFLIGHT] = "6",
    [OPTION_MAX_QUEUE] = "11",
    [OPTION_MAX_QUEUE_BYTES] = "1TiB",
    [OPTION_MAX_CONNECTION_SHARE] = "25",
    [OPTION_MAX_CONNECTIONS] = "13",
    [OPTION_READ_SLOTS] = "2",
    [OPTION_MAX_REGION_BYTES] = "7MiB",
    [OPTION_MAX_REGIONS] = "13",
    [OPTION_RPC_THREADS] = "5",
    [OPTION_DRAIN_TIMEOUT_MS] = "0",
    [OPTION_SEND_TIMEOUT_MS] = "1",
    [OPTION_LOG_LEVEL] = "debug",
    [OPTION_MAX_STREAMS] = "12",
};

static void every_option_is_a_flag_a_variable_and_a_key(void **state) {
    (void)state;
    static const char *const NEEDS[OPTION_COUNT] = {
        [OPTION_MODEL] = "",
        [OPTION_PLACEMENT] = "--model x --placement-counts f ",
        [OPTION_PLACEMENT_COUNTS] = "--model x --placement balanced ",
        [OPTION_TUNING] = "--model x --tuning-cache f ",
        [OPTION_TUNING_CACHE] = "--model x --tuning tune ",
        [OPTION_REPLICAS] = "--model x --placement balanced --placement-counts f ",
        [OPTION_COPIES] = "--model x --shard-hosts 127.0.0.1:1 ",
        [OPTION_PLACEMENT_OWNER] = "--model x --shard-hosts 127.0.0.1:1 ",
        [OPTION_TLS_CERT] = "--model x --tls-key f ",
        [OPTION_TLS_KEY] = "--model x --tls-cert f ",
        [OPTION_TLS_CLIENT_CA] = "--model x --tls-cert f --tls-key f ",
        [OPTION_TLS_ALLOW_CALLERS... OPTION_TLS_ALLOW_FRONTS] = "--model x --tls-cert f --tls-key f --tls-client-ca f ",
        [OPTION_TLS_ALLOW_SHARDS] = "--model x --tls-ca f ",
        [OPTION_TLS_ALLOW_ADMINS] = "--model x --tls-cert f --tls-key f --tls-client-ca f ",
    };
    for (size_t i = 0; i < OPTION_CONFIG; i++) {
        const struct options_row *row = &OPTIONS_ROWS[i];
        if (!VALUES[i]) {
            fail_msg("VALUES has no value for the option %s: add one", row->name);
        }
        char name[OPTIONS_NAME_MAX], words[256], expected[256], *text;
        snprintf(expected, sizeof expected, row->type == OPTIONS_NUMBER || row->type == OPTIONS_BYTES ? "%s" : "\"%s\"", VALUES[i]);
        for (int source = 0; source < 3; source++) {
            struct options o;
            const char *check = NEEDS[i] ? NEEDS[i] : "--model x ";
            if (source == 0) {
                snprintf(words, sizeof words, "%s%s %s", check, options_flag_name(row, name), VALUES[i]);
                expect_ok(words, "", &o);
            } else if (source == 1) {
                snprintf(words, sizeof words, "%s=%s", options_variable_name(row, name), VALUES[i]);
                expect_ok(check, words, &o);
            } else {
                snprintf(words, sizeof words, "%s: %s\n", row->name, VALUES[i]);
                const char *path = write_file("one.yaml", words);
                snprintf(words, sizeof words, "%s--config %s", check, path);
                expect_ok(words, "", &o);
            }
            text = printed(&o);
            if (!strstr(text, expected)) {
                fail_msg("%s is not printed: %s", expected, text);
            }
            static const char *const ORIGINS[] = {"flag ", "environment ", "file "};
            assert_memory_equal(o.origins[i], ORIGINS[source], strlen(ORIGINS[source]));
            free(text);
            options_deinit(&o);
        }
    }
}

static void a_flag_beats_a_variable_beats_the_file_beats_the_default(void **state) {
    (void)state;
    struct options o;
    char flags[512], origin[512];
    const char *path = write_file("p.yaml", "# one\nmax_queue: 3\nshards: 3\nmax-calls: 3\n");
    snprintf(flags, sizeof flags, "--model m --config=%s --max-queue=1", path);
    expect_ok(flags, "EXPERTD_MAX_QUEUE=2 EXPERTD_SHARDS=2", &o);
    assert_int_equal(o.max_queue, 1);
    assert_int_equal(o.shards, 2);
    assert_int_equal(o.max_calls, 3);
    assert_int_equal(o.max_inflight, 16);
    assert_string_equal(o.origins[OPTION_MAX_QUEUE], "flag --max-queue");
    assert_string_equal(o.origins[OPTION_SHARDS], "environment EXPERTD_SHARDS");
    snprintf(origin, sizeof origin, "file %s:4", path);
    assert_string_equal(o.origins[OPTION_MAX_CALLS], origin);
    assert_string_equal(o.origins[OPTION_MAX_INFLIGHT], "default");
    options_deinit(&o);
}

static void a_list_of_addresses_replaces_that_of_a_lower_source(void **state) {
    (void)state;
    struct options o;
    char flags[512];
    const char *path = write_file("l.yaml", "insecure: true\nlisten: [unix:/a, '[::1]:80', \"b.example:0\", 'b.example:0']\n");
    snprintf(flags, sizeof flags, "--model m --config %s", path);
    expect_ok(flags, "", &o);
    assert_int_equal(o.listen_count, 4);
    assert_string_equal(o.listen[1], "[::1]:80");
    options_deinit(&o);
    expect_ok(flags, "EXPERTD_LISTEN=unix:/c,d:1", &o);
    assert_int_equal(o.listen_count, 2);
    assert_string_equal(o.listen[1], "d:1");
    options_deinit(&o);
    snprintf(flags, sizeof flags, "--model m --config %s --listen e:1", path);
    expect_ok(flags, "EXPERTD_LISTEN=unix:/c,d:1", &o);
    assert_int_equal(o.listen_count, 1);
    assert_string_equal(o.listen[0], "e:1");
    options_deinit(&o);
}

static void the_file_may_be_named_by_a_variable(void **state) {
    (void)state;
    struct options o;
    char environment[512];
    snprintf(environment, sizeof environment, "EXPERTD_CONFIG=%s", write_file("e.yaml", "model: from-file\n"));
    expect_ok("", environment, &o);
    assert_string_equal(o.model, "from-file");
    options_deinit(&o);
}

static void sizes_take_units_and_numbers_their_ends(void **state) {
    (void)state;
    struct options o;
    expect_ok("--model m --max-message-bytes 4KiB --max-queue-bytes 1GiB --memory-max 17 --layers 7 --threads 1024", "", &o);
    assert_int_equal(o.max_message_bytes, 4096);
    assert_int_equal(o.max_queue_bytes, 1 << 30);
    assert_int_equal(o.memory_max, 17);
    assert_true(o.have_layers && o.first_layer == 7 && o.last_layer == 7);
    assert_int_equal(o.threads, 1024);
    options_deinit(&o);
}

static void help_and_version_work_despite_other_errors(void **state) {
    (void)state;
    struct options o;
    expect_ok("--help --config /nowhere", "EXPERTD_NONSENSE=1", &o);
    assert_true(o.help);
    options_deinit(&o);
    expect_ok("-h -h", "", &o);
    assert_true(o.help);
    options_deinit(&o);
    expect_ok("--version --max-queue x", "", &o);
    assert_true(o.version);
    options_deinit(&o);
}

static void a_model_is_not_needed_to_check_or_print(void **state) {
    (void)state;
    struct options o;
    expect_ok("--check-config", "", &o);
    assert_true(o.check_config);
    options_deinit(&o);
    expect_ok("--print-config", "", &o);
    assert_true(o.print_config);
    options_deinit(&o);
}

static void variables_of_other_programs_are_ignored(void **state) {
    (void)state;
    struct options o;
    expect_ok("--model m",
              "EXPERTD_TEST_FAULT=3 EXPERTD_PORT=tcp://10.0.0.1:7411 EXPERTD_PORT_7411_TCP=x EXPERTD_SERVICE_HOST=10.0.0.1 "
              "EXPERTD_HTTP_SERVICE_HOST=10.0.0.1 EXPERTD_HTTP_SERVICE_PORT_STATUS=7412 EXPERTD_HTTP_PORT=tcp://10.0.0.1:7412 "
              "EXPERTD_GRPC_PORT_7411_TCP_ADDR=10.0.0.1 EXPERTD_MODEL= EXPERTD_ADDRESS=127.0.0.1:1 PATH=/bin NOEQUALS EXPERTDX=1",
              &o);
    assert_string_equal(o.model, "m");
    options_deinit(&o);
}

// ---- print-outs

static void printed_configuration_loads_to_the_same(void **state) {
    (void)state;
    struct options o, again;
    char *argv[] = {"expertd",
                    "--model",
                    "a \"b\" \\c: #d \xc3\xa4",
                    "--listen",
                    "unix:/tmp/x y",
                    "--listen",
                    "[::1]:0",
                    "--layers",
                    "1-2",
                    "--max-message-bytes",
                    "1000001",
                    "--http",
                    "off",
                    "--compute-dtype",
                    "bf16",
                    "--hf-cache",
                    "~"};
    assert_false(err_is(options_parse(sizeof argv / sizeof argv[0], argv, NULL, &o)));
    char *first = printed(&o), flags[512];
    snprintf(flags, sizeof flags, "--config %s", write_file("again.yaml", first));
    expect_ok(flags, "", &again);
    assert_string_equal(again.model, o.model);
    assert_int_equal(again.listen_count, 2);
    assert_string_equal(again.listen[0], "unix:/tmp/x y");
    assert_string_equal(again.listen[1], "[::1]:0");
    assert_int_equal(again.max_message_bytes, 1000001);
    assert_int_equal(again.compute_dtype, EXPERTD_DTYPE_BF16);
    assert_string_equal(again.hf_cache, "~");
    assert_string_equal(again.http, "off");
    assert_int_equal(again.last_layer, 2);
    free(first);
    options_deinit(&o);
    options_deinit(&again);
}

static void print_config_shows_the_origin_of_each_value(void **state) {
    (void)state;
    struct options o;
    char flags[512], line[512];
    const char *path = write_file("o.yaml", "\n\nshards: 4\n");
    snprintf(flags, sizeof flags, "--print-config --max-queue 9 --config %s", path);
    expect_ok(flags, "EXPERTD_MAX_CALLS=5", &o);
    char *text = printed(&o);
    assert_non_null(strstr(text, "# model: not set\n"));
    assert_non_null(strstr(text, "max_queue: 9 # flag --max-queue\n"));
    assert_non_null(strstr(text, "max_calls: 5 # environment EXPERTD_MAX_CALLS\n"));
    assert_non_null(strstr(text, "max_queue_bytes: 256MiB # default\n"));
    assert_non_null(strstr(text, "listen: # default\n  - \"127.0.0.1:7411\"\n"));
    snprintf(line, sizeof line, "shards: 4 # file %s:3\n", path);
    assert_non_null(strstr(text, line));
    snprintf(line, sizeof line, "# config: %s # flag --config\n", path);
    assert_non_null(strstr(text, line));
    free(text);
    options_deinit(&o);
}

static void count_visit(void *context, const char *key, const char *value, const char *origin) {
    size_t *seen = context;
    assert_non_null(key);
    assert_non_null(value);
    assert_non_null(origin);
    *seen += strcmp(key, "listen") == 0 || strcmp(key, "threads") == 0;
}

static void every_set_value_is_visited_for_the_log(void **state) {
    (void)state;
    struct options o;
    size_t seen = 0;
    expect_ok("--model m --listen localhost:1 --listen 127.0.0.1:1 --threads 2", "", &o);
    options_each(&o, count_visit, &seen);
    assert_int_equal(seen, 3);
    options_deinit(&o);
}

static void help_names_every_flag_in_lines_of_100_columns(void **state) {
    (void)state;
    char *text = NULL, name[OPTIONS_NAME_MAX], wanted[OPTIONS_NAME_MAX + 8];
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    options_print_help(out);
    fclose(out);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        snprintf(wanted, sizeof wanted, "\n  %s ", options_flag_name(&OPTIONS_ROWS[i], name));
        assert_non_null(strstr(text, wanted));
    }
    char *joined = strdup(text);
    for (char *p = joined; *p; p++) {
        *p = *p == '\n' ? ' ' : *p;
    }
    static const char *const MISSING[] = {"simulation only", "other processes", "TLS"};
    for (size_t i = 0; i < sizeof MISSING / sizeof MISSING[0]; i++) {
        assert_non_null(strstr(joined, MISSING[i]));
    }
    free(joined);
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        assert_true(strlen(line) <= 100);
    }
    free(text);
}

// deploy/expertd.yaml has every option, and each of its commented values is valid.
static void the_example_file_holds_every_option(void **state) {
    (void)state;
    char *text = calloc(1, TEXT_MAX), *active = calloc(1, TEXT_MAX), flags[512];
    FILE *file = fopen(GOLDENS "/../../deploy/expertd.yaml", "r");
    assert_non_null(file);
    assert_true(fread(text, 1, TEXT_MAX - 1, file) > 0);
    fclose(file);
    char *save = NULL;
    size_t used = 0;
    bool has_counts = false; // placement_counts: not together with shard_hosts
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        bool commented = line[0] == '#' && line[1] >= 'a' && line[1] <= 'z', counts = strncmp(line, "#placement_counts:", 18) == 0;
        has_counts |= counts;
        if (strncmp(line, "#model:", 7) != 0 && !counts && (commented || line[0] != '#')) {
            used += (size_t)snprintf(active + used, TEXT_MAX - used, "%s\n", line + commented);
        }
    }
    struct options o;
    assert_true(has_counts);
    // The example's file of tuned schedules is read with this one only; the fallback below shows that the file has it.
    snprintf(flags, sizeof flags, "--tuning tune --config %s", write_file("example.yaml", active));
    expect_ok(flags, "", &o);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (OPTIONS_ROWS[i].reach == OPTIONS_EVERYWHERE && strcmp(o.origins[i], "default") == 0 && i != OPTION_PLACEMENT_COUNTS) {
            fail_msg("deploy/expertd.yaml lacks %s", OPTIONS_ROWS[i].name);
        }
        // An option with a fixed default shows it.
        char expected[OPTIONS_NAME_MAX * 2];
        snprintf(expected, sizeof expected, "\n%s: %s\n", OPTIONS_ROWS[i].name, OPTIONS_ROWS[i].fallback);
        if (OPTIONS_ROWS[i].fallback && !strstr(active, expected)) {
            fail_msg("deploy/expertd.yaml shows another default than%s", expected);
        }
    }
    options_deinit(&o);
    free(text);
    free(active);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_match_the_documentation),
        cmocka_unit_test(a_runtime_folder_adds_the_unix_socket),
        cmocka_unit_test(the_admin_socket_is_next_to_the_first_unix_socket),
        cmocka_unit_test(companion_paths_are_free_if_no_companion_is_created),
        cmocka_unit_test(an_admin_socket_with_too_long_a_path_is_off),
        cmocka_unit_test(a_runtime_folder_too_long_for_a_socket_leaves_tcp),
        cmocka_unit_test(a_piece_is_no_larger_than_a_batch),
        cmocka_unit_test(every_option_is_a_flag_a_variable_and_a_key),
        cmocka_unit_test(a_flag_beats_a_variable_beats_the_file_beats_the_default),
        cmocka_unit_test(a_list_of_addresses_replaces_that_of_a_lower_source),
        cmocka_unit_test(the_file_may_be_named_by_a_variable),
        cmocka_unit_test(sizes_take_units_and_numbers_their_ends),
        cmocka_unit_test(help_and_version_work_despite_other_errors),
        cmocka_unit_test(a_model_is_not_needed_to_check_or_print),
        cmocka_unit_test(variables_of_other_programs_are_ignored),
        cmocka_unit_test(printed_configuration_loads_to_the_same),
        cmocka_unit_test(print_config_shows_the_origin_of_each_value),
        cmocka_unit_test(every_set_value_is_visited_for_the_log),
        cmocka_unit_test(help_names_every_flag_in_lines_of_100_columns),
        cmocka_unit_test(the_example_file_holds_every_option),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
