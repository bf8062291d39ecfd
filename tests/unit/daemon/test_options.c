// The options as a user meets them: every source, who wins, every mistake with its message.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/options.h"
#include "daemon/options_defaults.h"
#include "daemon/options_table.h"

enum { ARGS_MAX = 16, TEXT_MAX = 1 << 16 };

static const char FOLDER_TEMPLATE[] = "/tmp/expertd-test-options-XXXXXX";
static char folder[sizeof FOLDER_TEMPLATE];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, FOLDER_TEMPLATE);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *write_file(const char *name, const char *text) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return path;
}

// `flags` and `environment`: words with one space between them ("" for none), for values that hold none.
static err_t parse(const char *flags, const char *environment, struct options *out) {
    static char text[2][4096];
    char *words[2][ARGS_MAX] = {{"expertd"}, {NULL}};
    size_t count[2] = {1, 0};
    snprintf(text[0], sizeof text[0], "%s", flags);
    snprintf(text[1], sizeof text[1], "%s", environment);
    for (size_t i = 0; i < 2; i++) {
        char *save = NULL;
        for (char *word = strtok_r(text[i], " ", &save); word; word = strtok_r(NULL, " ", &save)) {
            assert_true(count[i] + 1 < ARGS_MAX);
            words[i][count[i]++] = word;
        }
    }
    return options_parse((int)count[0], words[0], words[1], out);
}

static void expect_ok(const char *flags, const char *environment, struct options *out) {
    err_t e = parse(flags, environment, out);
    if (err_is(e)) {
        fail_msg("%s | %s: %s", flags, environment, err_message());
    }
}

static void expect_error(const char *flags, const char *environment, enum err_code code, const char *message) {
    struct options options;
    err_t e = parse(flags, environment, &options);
    options_deinit(&options);
    assert_string_equal(err_is(e) ? err_message() : "(no error)", message);
    assert_int_equal(e.code, code);
}

// The error of a file with this text; `message` follows the file's path.
static void expect_file_error(const char *yaml, const char *message) {
    char flags[512], expected[1024];
    const char *path = write_file("bad.yaml", yaml);
    snprintf(flags, sizeof flags, "--model m --config %s", path);
    snprintf(expected, sizeof expected, "%s: %s", path, message);
    expect_error(flags, "", ERR_CONFIG, expected);
}

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

static void defaults_are_those_documented(void **state) {
    (void)state;
    struct options o;
    expect_ok("--model m", "HOME=/home/u", &o);
    assert_string_equal(o.model, "m");
    assert_int_equal(o.listen_count, 1);
    assert_string_equal(o.listen[0], "127.0.0.1:7411");
    assert_string_equal(o.http, "127.0.0.1:7412");
    assert_int_equal(o.shards, 1);
    assert_int_equal(o.threads, options_cpu_count("/proc/self/cgroup", "/sys/fs/cgroup"));
    assert_int_equal(o.compute_dtype, DTYPE_NONE);
    assert_string_equal(o.device, "auto");
    assert_false(o.have_layers);
    assert_string_equal(o.kernels, "auto");
    assert_string_equal(o.hf_cache, "/home/u/.cache/huggingface/hub");
    assert_int_equal(o.max_message_bytes, 64 << 20);
    assert_int_equal(o.max_batch_tokens, 4096);
    assert_int_equal(o.max_top_k, 64);
    assert_int_equal(o.max_calls, 1024);
    assert_int_equal(o.max_inflight, 16);
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

static void the_hub_cache_is_found_as_its_tools_find_it(void **state) {
    (void)state;
    struct options o;
    expect_ok("--model m", "HOME=/h XDG_CACHE_HOME=/x HF_HOME=/hf HF_HUB_CACHE=/hub", &o);
    assert_string_equal(o.hf_cache, "/hub");
    assert_string_equal(o.origins[OPTION_HF_CACHE], "environment HF_HUB_CACHE");
    options_deinit(&o);
    expect_ok("--model m", "HOME=/h XDG_CACHE_HOME=/x HF_HOME=/hf HF_HUB_CACHE=", &o);
    assert_string_equal(o.hf_cache, "/hf/hub");
    options_deinit(&o);
    expect_ok("--model m", "HOME=/h XDG_CACHE_HOME=/x", &o);
    assert_string_equal(o.hf_cache, "/x/huggingface/hub");
    options_deinit(&o);
    expect_ok("--model m", "", &o);
    assert_null(o.hf_cache);
    options_deinit(&o);
}

static void every_option_is_a_flag_a_variable_and_a_key(void **state) {
    (void)state;
    static const char *const VALUES[OPTION_COUNT] = {
        [OPTION_MODEL] = "m",
        [OPTION_LAYERS] = "2-5",
        [OPTION_COMPUTE_DTYPE] = "f32",
        [OPTION_HF_CACHE] = "/c",
        [OPTION_LISTEN] = "h:1",
        [OPTION_HTTP] = "off",
        [OPTION_ALLOW_UIDS] = "0,5",
        [OPTION_DEVICE] = "cpu",
        [OPTION_KERNELS] = "scalar",
        [OPTION_SHARDS] = "3",
        [OPTION_THREADS] = "7",
        [OPTION_SPIN_US] = "0",
        [OPTION_MEMORY_MAX] = "3GiB",
        [OPTION_MAX_MESSAGE_BYTES] = "5000",
        [OPTION_MAX_BATCH_TOKENS] = "9",
        [OPTION_MAX_TOP_K] = "4",
        [OPTION_MAX_CALLS] = "8",
        [OPTION_MAX_INFLIGHT] = "6",
        [OPTION_MAX_QUEUE] = "11",
        [OPTION_MAX_QUEUE_BYTES] = "1TiB",
        [OPTION_READ_SLOTS] = "2",
        [OPTION_RPC_THREADS] = "5",
        [OPTION_DRAIN_TIMEOUT_MS] = "0",
        [OPTION_SEND_TIMEOUT_MS] = "1",
        [OPTION_LOG_LEVEL] = "debug",
        [OPTION_MAX_STREAMS] = "12",
    };
    for (size_t i = 0; i < OPTION_CONFIG; i++) {
        const struct options_row *row = &OPTIONS_ROWS[i];
        assert_non_null(VALUES[i]);
        char name[OPTIONS_NAME_MAX], words[256], expected[256], *text;
        snprintf(expected, sizeof expected, row->type == OPTIONS_NUMBER || row->type == OPTIONS_BYTES ? "%s" : "\"%s\"", VALUES[i]);
        for (int source = 0; source < 3; source++) {
            struct options o;
            const char *check = i == OPTION_MODEL ? "" : "--model x ";
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

static void a_list_of_addresses_replaces_that_of_a_weaker_source(void **state) {
    (void)state;
    struct options o;
    char flags[512];
    const char *path = write_file("l.yaml", "listen: [unix:/a, '[::1]:80', \"b.example:0\", 'b.example:0']\n");
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
    expect_ok("--model m --max-message-bytes 4KiB --max-queue-bytes 1GiB --memory-max 17 --layers 7 --threads 4096", "", &o);
    assert_int_equal(o.max_message_bytes, 4096);
    assert_int_equal(o.max_queue_bytes, 1 << 30);
    assert_int_equal(o.memory_max, 17);
    assert_true(o.have_layers && o.first_layer == 7 && o.last_layer == 7);
    assert_int_equal(o.threads, 4096);
    options_deinit(&o);
}

static void help_and_version_are_had_whatever_else_is_wrong(void **state) {
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

static void variables_of_others_are_not_ours_to_refuse(void **state) {
    (void)state;
    struct options o;
    expect_ok("--model m",
              "EXPERTD_TEST_FAULT=3 EXPERTD_PORT=tcp://10.0.0.1:7411 EXPERTD_PORT_7411_TCP=x EXPERTD_SERVICE_HOST=10.0.0.1 "
              "EXPERTD_MODEL= PATH=/bin NOEQUALS EXPERTDX=1",
              &o);
    assert_string_equal(o.model, "m");
    options_deinit(&o);
}

// ---- mistakes on the command line

static void flags_that_are_wrong_are_usage_errors(void **state) {
    (void)state;
    static const struct {
        const char *flags, *message;
    } CASES[] = {
        {"", "no model to serve: give --model DIR, ORG/NAME or synthetic:PRESET; expertd --help says more"},
        {"--modle x", "unknown flag --modle: did you mean --model?"},
        {"--max-quue=3", "unknown flag --max-quue: did you mean --max-queue?"},
        {"--check_confg", "unknown flag --check_confg: did you mean --check-config?"},
        {"--zzzzzzzzzz", "unknown flag --zzzzzzzzzz: expertd --help lists them"},
        {"--", "unknown flag --: flags begin with two dashes, expertd --help lists them"},
        {"-m x", "unknown flag -m: flags begin with two dashes, expertd --help lists them"},
        {"--=x", "unknown flag --: expertd --help lists them"},
        {"synthetic:tiny", "stray argument synthetic:tiny: every value follows its flag, as in --model synthetic:tiny"},
        {"--model", "--model needs a value: --model MODEL"},
        {"--model --http off", "--model needs a value: --model MODEL"},
        {"--model=", "--model: the value is empty"},
        {"--model a --model b", "--model is there twice"},
        {"--help=yes", "--help takes no value"},
        {"--model m --shards 0", "--shards: \"0\" is not a whole number from 1 to 1024"},
        {"--model m --shards 1025", "--shards: \"1025\" is not a whole number from 1 to 1024"},
        {"--model m --shards -1", "--shards: \"-1\" is not a whole number from 1 to 1024"},
        {"--model m --shards +1", "--shards: \"+1\" is not a whole number from 1 to 1024"},
        {"--model m --shards 0x2", "--shards: \"0x2\" is not a whole number from 1 to 1024"},
        {"--model m --shards 1.5", "--shards: \"1.5\" is not a whole number from 1 to 1024"},
        {"--model m --shards 99999999999999999999", "--shards: \"99999999999999999999\" is not a whole number from 1 to 1024"},
        {"--model m --shards 4294967297", "--shards: \"4294967297\" is not a whole number from 1 to 1024"},
        {"--model m --drain-timeout-ms 30s", "--drain-timeout-ms: \"30s\" is not a whole number from 0 to 86400000"},
        {"--model m --max-message-bytes 64MB", "--max-message-bytes: \"64MB\" is not a size from 4KiB to 2147483647: write bytes, "
                                               "or a whole number with KiB, MiB, GiB or TiB"},
        {"--model m --max-message-bytes 2GiB", "--max-message-bytes: \"2GiB\" is not a size from 4KiB to 2147483647: write bytes, "
                                               "or a whole number with KiB, MiB, GiB or TiB"},
        {"--model m --max-queue-bytes 99999999TiB", "--max-queue-bytes: \"99999999TiB\" is not a size from 4KiB to 1024TiB: write "
                                                    "bytes, or a whole number with KiB, MiB, GiB or TiB"},
        {"--model m --max-message-bytes 512MiB",
         "max_queue_bytes is 256MiB (default), less than max_message_bytes, 512MiB (flag --max-message-bytes): a message of that "
         "size could never be admitted; raise the first or lower the second"},
        {"--model m --layers 5-2", "--layers: \"5-2\" ends before it begins: write 2-5"},
        {"--model m --layers 5-", "--layers: \"5-\" is not a range of layers: write A-B, as in 0-23, one number, or all"},
        {"--model m --layers 1-4294967296",
         "--layers: \"1-4294967296\" is not a range of layers: write A-B, as in 0-23, one number, or all"},
        {"--model m --compute-dtype fp8", "--compute-dtype: \"fp8\" is not auto, bf16 or f32"},
        {"--model m --kernels auto|scalar", "--kernels: \"auto|scalar\" is not auto, scalar, avx2, avx512 or avx512bf16"},
        {"--model m --log-level warn", "--log-level: \"warn\" is not error, warning, info or debug"},
        {"--model m --device gpu", "--device: \"gpu\" is not auto or cpu"},
        {"--model m --allow-uids root",
         "--allow-uids: \"root\" is not any, self or numeric user ids with commas between them, as in 0,1000"},
        {"--model m --allow-uids 1,",
         "--allow-uids: \"1,\" is not any, self or numeric user ids with commas between them, as in 0,1000"},
        {"--model m --allow-uids 4294967295",
         "--allow-uids: \"4294967295\" is not any, self or numeric user ids with commas between them, as in 0,1000"},
        {"--model m --listen 7411", "--listen: \"7411\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
                                    "127.0.0.1:7411"},
        {"--model m --listen :7411", "--listen: \":7411\" names no host: write unix:PATH or HOST:PORT, as in 127.0.0.1:7411 (every "
                                     "interface: 0.0.0.0 or [::])"},
        {"--model m --listen a:65536", "--listen: \"a:65536\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
                                       "127.0.0.1:7411"},
        {"--model m --listen ::1:7411",
         "--listen: \"::1:7411\" has several colons: an IPv6 address goes in brackets, as in [::1]:7411"},
        {"--model m --listen [::g]:1", "--listen: \"[::g]:1\" holds no IPv6 address in its brackets: write [::1]:7411"},
        {"--model m --listen [::1", "--listen: \"[::1\" holds no IPv6 address in its brackets: write [::1]:7411"},
        {"--model m --listen [::1]7", "--listen: \"[::1]7\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
                                      "127.0.0.1:7411"},
        {"--model m --listen unix:", "--listen: \"unix:\" names no socket file: write unix:PATH, as in "
                                     "unix:/run/expertd/expertd.sock"},
        {"--model m --listen unix:/run/", "--listen: \"unix:/run/\" names no socket file: write unix:PATH, as in "
                                          "unix:/run/expertd/expertd.sock"},
        {"--model m --listen unix:@x", "--listen: \"unix:@x\" names an abstract socket, which every user may take first: write "
                                       "unix:PATH"},
        {"--model m --listen a:1 --listen a:1", "--listen: \"a:1\" is there twice"},
        {"--model m --http unix:/x", "--http: \"unix:/x\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
                                     "127.0.0.1:7411"},
        {"--model m --listen 127.0.0.1:7412",
         "listen (flag --listen) and http (default) are both 127.0.0.1:7412: give one another port"},
        {"--model a\tb", "--model: the value holds a control character or bytes that are not UTF-8, at byte 1"},
        {"--model \xff", "--model: the value holds a control character or bytes that are not UTF-8, at byte 0"},
        {"--model \xc0\xaf", "--model: the value holds a control character or bytes that are not UTF-8, at byte 0"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        expect_error(CASES[i].flags, "", ERR_USAGE, CASES[i].message);
    }
}

static void a_socket_path_has_107_bytes_at_most(void **state) {
    (void)state;
    char flags[256] = "--model m --listen unix:/";
    size_t head = strlen(flags) - 1;
    struct options o;
    memset(flags + head, 'p', 107);
    flags[head + 107] = '\0';
    expect_ok(flags, "", &o);
    options_deinit(&o);
    flags[head + 107] = 'p';
    flags[head + 108] = '\0';
    err_t e = parse(flags, "", &o);
    assert_int_equal(e.code, ERR_USAGE);
    assert_non_null(strstr(err_message(), "is too long: the path of a Unix socket has at most 107 bytes, this one has 108"));
    options_deinit(&o);
}

static void more_addresses_than_are_served_are_refused(void **state) {
    (void)state;
    char environment[256] = "EXPERTD_LISTEN=h:1";
    for (int i = 2; i <= OPTIONS_LISTEN_MAX + 1; i++) {
        snprintf(environment + strlen(environment), 16, ",h:%d", i);
    }
    expect_error("--model m", environment, ERR_CONFIG, "EXPERTD_LISTEN: there are more than 8 values");
}

static void devices_of_later_versions_are_unavailable(void **state) {
    (void)state;
    expect_error("--model m --device cuda:0,1", "", ERR_UNAVAILABLE,
                 "--device: \"cuda:0,1\" is not built yet: this version computes on the CPU, write auto or cpu");
    expect_error("--model m", "EXPERTD_DEVICE=sim:4", ERR_UNAVAILABLE,
                 "EXPERTD_DEVICE: \"sim:4\" is not built yet: this version computes on the CPU, write auto or cpu");
}

static void an_endless_value_is_refused(void **state) {
    (void)state;
    char *argv[] = {"expertd", "--model", malloc(5001)};
    memset(argv[2], 'x', 5000);
    argv[2][5000] = '\0';
    struct options o;
    err_t e = options_parse(3, argv, NULL, &o);
    assert_int_equal(e.code, ERR_USAGE);
    assert_string_equal(err_message(), "--model: the value has 5000 bytes, more than the 4095 that are taken");
    options_deinit(&o);
    free(argv[2]);
}

// ---- mistakes in the environment

static void variables_that_are_wrong_are_configuration_errors(void **state) {
    (void)state;
    static const struct {
        const char *environment, *message;
    } CASES[] = {
        {"EXPERTD_MAX_QUUE=3", "unknown variable EXPERTD_MAX_QUUE: did you mean EXPERTD_MAX_QUEUE?"},
        {"EXPERTD_max_queue=3", "unknown variable EXPERTD_max_queue: did you mean EXPERTD_MAX_QUEUE?"},
        {"EXPERTD_ZZZZZZZZZZZ=3", "unknown variable EXPERTD_ZZZZZZZZZZZ: unset it; expertd --help lists the options"},
        {"EXPERTD_=3", "unknown variable EXPERTD_: unset it; expertd --help lists the options"},
        {"EXPERTD_PRINT_CONFIG=1", "the variable EXPERTD_PRINT_CONFIG has no effect: give the flag --print-config"},
        {"EXPERTD_MAX_QUEUE=many", "EXPERTD_MAX_QUEUE: \"many\" is not a whole number from 1 to 1048576"},
        {"EXPERTD_LISTEN=a:1,", "EXPERTD_LISTEN: the value is empty"},
        {"EXPERTD_CONFIG=/nowhere/x.yaml", "cannot open the configuration /nowhere/x.yaml: No such file or directory"},
        {"HF_HOME=/a\x01", "HF_HOME: the value holds a control character or bytes that are not UTF-8, at byte 2"},
        {"EXPERTD_MAX_QUEUE_BYTES=5000",
         "max_queue_bytes is 5000 (environment EXPERTD_MAX_QUEUE_BYTES), less than max_message_bytes, 64MiB (default): a message "
         "of that size could never be admitted; raise the first or lower the second"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        expect_error("--model m", CASES[i].environment, ERR_CONFIG, CASES[i].message);
    }
}

static void a_mistake_is_refused_even_where_a_flag_overrides_it(void **state) {
    (void)state;
    expect_error("--model m --max-queue 3", "EXPERTD_MAX_QUEUE=many", ERR_CONFIG,
                 "EXPERTD_MAX_QUEUE: \"many\" is not a whole number from 1 to 1048576");
}

// ---- mistakes in the file

static void files_that_are_wrong_name_line_key_and_mend(void **state) {
    (void)state;
    static const struct {
        const char *yaml, *message;
    } CASES[] = {
        {"\n\nmax_quue_size: 3\n", "unknown key max_quue_size (line 3): did you mean max_queue_bytes?"},
        {"max_quue: 3\n", "unknown key max_quue (line 1): did you mean max_queue?"},
        {"? zzzzzzzzzzzzz\n: 3\n", "unknown key zzzzzzzzzzzzz (line 1): expertd --help lists them"},
        {"shards: 2\nmax-queue: 3\nmax_queue: 4\n", "key max_queue (line 3) is there twice: first in line 2"},
        {"config: x\n", "key config (line 1) cannot stand in a file: give the flag --config"},
        {"check_config: true\n", "key check_config (line 1) cannot stand in a file: give the flag --check-config"},
        {"shards: many\n", "key shards (line 1): \"many\" is not a whole number from 1 to 1024"},
        {"shards:\n", "key shards (line 1) has no value: give one, or take the key out"},
        {"shards: ~\n", "key shards (line 1) has no value: give one, or take the key out"},
        {"model: ''\n", "key model (line 1) has no value: give one, or take the key out"},
        {"model: \"a\\0b\"\n", "key model (line 1): the value holds a NUL byte"},
        {"model: |\n  a\n  b\n", "key model (line 1): the value holds a control character or bytes that are not UTF-8, at byte 1"},
        {"shards: [1]\n", "key shards (line 1) takes one value, not a list"},
        {"listen: []\n", "key listen (line 1) has an empty list: give a value, or take the key out"},
        {"listen: [[a:1]]\n", "key listen (line 1) takes one value, not a list"},
        {"listen:\n  - a:1\n  - a\n",
         "key listen (line 1): \"a\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
         "127.0.0.1:7411"},
        {"listen: [a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9]\n", "key listen (line 1): there are more than 8 values"},
        {"model: {a: b}\n", "key model (line 1) takes a value, not a mapping"},
        {"model: &x a\n", "line 1 has an anchor, alias or tag: write the value itself"},
        {"shards: 1\nmodel: *x\n", "line 2 has an anchor, alias or tag: write the value itself"},
        {"model: !!str a\n", "line 1 has an anchor, alias or tag: write the value itself"},
        {"- model\n", "line 1 is no key: write key: value"},
        {"model\n", "line 1 is no key: write key: value"},
        {"[a, b]: c\n", "line 1 has no key: write key: value"},
        {"model: a\n---\nmodel: b\n", "a second document begins in line 2: a configuration is one"},
        {"model: [a\nshards: 1\n", "key model (line 1) takes one value, not a list"},
        {"model: \"a\n", "not YAML (line 2): found unexpected end of stream"},
        {"\tmodel: a\n", "not YAML (line 1): found character that cannot start any token"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        expect_file_error(CASES[i].yaml, CASES[i].message);
    }
}

static void an_empty_file_configures_nothing(void **state) {
    (void)state;
    static const char *const EMPTY[] = {"", "\n\n", "# nothing\n", "---\n", "---\n...\n", "{}\n", "%YAML 1.1\n---\n"};
    for (size_t i = 0; i < sizeof EMPTY / sizeof EMPTY[0]; i++) {
        char flags[512];
        struct options o;
        snprintf(flags, sizeof flags, "--model m --config %s", write_file("empty.yaml", EMPTY[i]));
        expect_ok(flags, "", &o);
        assert_int_equal(o.max_queue, 256);
        options_deinit(&o);
    }
}

static void files_that_cannot_be_configurations_are_refused(void **state) {
    (void)state;
    char flags[512], message[512], *large = malloc((1 << 20) + 2);
    expect_error("--model m --config /nowhere/x.yaml", "", ERR_CONFIG,
                 "cannot open the configuration /nowhere/x.yaml: No such file or directory");
    expect_error("--model m --config /", "", ERR_CONFIG, "cannot read the configuration /: Is a directory");
    memset(large, '#', (1 << 20) + 1);
    large[(1 << 20) + 1] = '\0';
    const char *path = write_file("large.yaml", large);
    free(large);
    snprintf(flags, sizeof flags, "--model m --config %s", path);
    snprintf(message, sizeof message, "the configuration %s is larger than 1048576 bytes: is it the right file?", path);
    expect_error(flags, "", ERR_CONFIG, message);
}

static void nesting_without_end_is_refused_at_its_first_level(void **state) {
    (void)state;
    char *deep = malloc(100001);
    memset(deep, '[', 100000);
    deep[100000] = '\0';
    expect_file_error(deep, "line 1 is no key: write key: value");
    free(deep);
}

// ---- print-outs

static void what_is_printed_loads_to_the_same(void **state) {
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
    assert_int_equal(again.compute_dtype, DTYPE_BF16);
    assert_string_equal(again.hf_cache, "~");
    assert_string_equal(again.http, "off");
    assert_int_equal(again.last_layer, 2);
    free(first);
    options_deinit(&o);
    options_deinit(&again);
}

static void print_config_says_where_each_value_came_from(void **state) {
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
    expect_ok("--model m --listen a:1 --listen b:1 --threads 2", "", &o);
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
    static const char *const MISSING[] = {"CUDA", "quantised checkpoints",   "shared-memory", "other processes",
                                          "TLS",  "batching across requests"};
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

// The example in deploy/ names every option, and each of its commented values is one that is taken.
static void the_example_file_holds_every_option(void **state) {
    (void)state;
    char *text = calloc(1, TEXT_MAX), *active = calloc(1, TEXT_MAX), flags[512];
    FILE *file = fopen(GOLDENS "/../../deploy/expertd.yaml", "r");
    assert_non_null(file);
    assert_true(fread(text, 1, TEXT_MAX - 1, file) > 0);
    fclose(file);
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        bool commented = line[0] == '#' && line[1] >= 'a' && line[1] <= 'z';
        if (strncmp(line, "#model:", 7) != 0 && (commented || line[0] != '#')) {
            strcat(strcat(active, line + commented), "\n");
        }
    }
    struct options o;
    snprintf(flags, sizeof flags, "--config %s", write_file("example.yaml", active));
    expect_ok(flags, "", &o);
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (OPTIONS_ROWS[i].reach == OPTIONS_EVERYWHERE && strncmp(o.origins[i], "file ", 5) != 0) {
            fail_msg("deploy/expertd.yaml lacks %s", OPTIONS_ROWS[i].name);
        }
        // Those without "Example" in their comment show the default itself.
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

// ---- CPUs

static void a_cgroup_quota_anywhere_above_limits_the_threads(void **state) {
    (void)state;
    char root[128], path[256], file[256];
    snprintf(root, sizeof root, "%s/cgroup", folder);
    snprintf(path, sizeof path, "%s/a/b", root);
    assert_int_equal(mkdir(root, 0700), 0);
    snprintf(path, sizeof path, "%s/a", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/a/b", root);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(file, sizeof file, "%s", write_file("self", "1:cpu:/other\n0::/a/b\n"));
    uint32_t unlimited = options_cpu_count(file, "/nowhere");
    assert_true(unlimited >= 1);
    write_file("cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(options_cpu_count(file, root), unlimited);
    write_file("cgroup/a/cpu.max", "50000 100000\n");
    assert_int_equal(options_cpu_count(file, root), 1);
    write_file("cgroup/a/cpu.max", "9000000 100000\n");
    assert_int_equal(options_cpu_count(file, root), unlimited < 90 ? unlimited : 90);
    write_file("cgroup/cpu.max", "100001 100000\n");
    assert_int_equal(options_cpu_count(file, root), unlimited < 2 ? unlimited : 2);
    write_file("cgroup/cpu.max", "0 0\n");
    assert_int_equal(options_cpu_count(file, root), unlimited < 90 ? unlimited : 90);
    assert_int_equal(options_cpu_count("/nowhere", "/nowhere"), unlimited);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_those_documented),
        cmocka_unit_test(a_runtime_folder_adds_the_unix_socket),
        cmocka_unit_test(a_runtime_folder_too_long_for_a_socket_leaves_tcp),
        cmocka_unit_test(the_hub_cache_is_found_as_its_tools_find_it),
        cmocka_unit_test(every_option_is_a_flag_a_variable_and_a_key),
        cmocka_unit_test(a_flag_beats_a_variable_beats_the_file_beats_the_default),
        cmocka_unit_test(a_list_of_addresses_replaces_that_of_a_weaker_source),
        cmocka_unit_test(the_file_may_be_named_by_a_variable),
        cmocka_unit_test(sizes_take_units_and_numbers_their_ends),
        cmocka_unit_test(help_and_version_are_had_whatever_else_is_wrong),
        cmocka_unit_test(a_model_is_not_needed_to_check_or_print),
        cmocka_unit_test(variables_of_others_are_not_ours_to_refuse),
        cmocka_unit_test(flags_that_are_wrong_are_usage_errors),
        cmocka_unit_test(a_socket_path_has_107_bytes_at_most),
        cmocka_unit_test(more_addresses_than_are_served_are_refused),
        cmocka_unit_test(devices_of_later_versions_are_unavailable),
        cmocka_unit_test(an_endless_value_is_refused),
        cmocka_unit_test(variables_that_are_wrong_are_configuration_errors),
        cmocka_unit_test(a_mistake_is_refused_even_where_a_flag_overrides_it),
        cmocka_unit_test(files_that_are_wrong_name_line_key_and_mend),
        cmocka_unit_test(an_empty_file_configures_nothing),
        cmocka_unit_test(files_that_cannot_be_configurations_are_refused),
        cmocka_unit_test(nesting_without_end_is_refused_at_its_first_level),
        cmocka_unit_test(what_is_printed_loads_to_the_same),
        cmocka_unit_test(print_config_says_where_each_value_came_from),
        cmocka_unit_test(every_set_value_is_visited_for_the_log),
        cmocka_unit_test(help_names_every_flag_in_lines_of_100_columns),
        cmocka_unit_test(the_example_file_holds_every_option),
        cmocka_unit_test(a_cgroup_quota_anywhere_above_limits_the_threads),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
