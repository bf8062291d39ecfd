// Every error in the options, with its message.
#include "tests/unit/daemon/config/options_fixture.h"

static void expect_error(const char *flags, const char *environment, enum expertd_err_code code, const char *message) {
    struct options options;
    err_t e = parse(flags, environment, &options);
    options_deinit(&options);
    assert_string_equal(err_is(e) ? expertd_err_message() : "(no error)", message);
    assert_int_equal(e.code, code);
}

// The error of a file with this text; `message` follows the file's path.
static void expect_file_error(const char *yaml, const char *message) {
    char flags[512], expected[1024];
    const char *path = write_file("bad.yaml", yaml);
    snprintf(flags, sizeof flags, "--model m --config %s", path);
    snprintf(expected, sizeof expected, "%s: %s", path, message);
    expect_error(flags, "", EXPERTD_ERR_CONFIG, expected);
}

// ---- mistakes on the command line

struct refusal {
    const char *given, *message;
};

static const struct refusal FLAGS[] = {
    {"", "no model to serve: give --model DIR, FILE.gguf, ORG/NAME or synthetic:PRESET; expertd --help says more"},
    {"--modle x", "unknown flag --modle: did you mean --model?"},
    {"--max-quue=3", "unknown flag --max-quue: did you mean --max-queue?"},
    {"--check_confg", "unknown flag --check_confg: did you mean --check-config?"},
    {"--zzzzzzzzzz", "unknown flag --zzzzzzzzzz: expertd --help lists them"},
    {"--", "unknown flag --: flags begin with two dashes; expertd --help lists all flags"},
    {"-m x", "unknown flag -m: flags begin with two dashes; expertd --help lists all flags"},
    {"--=x", "unknown flag --: expertd --help lists them"},
    {"synthetic:tiny", "unexpected argument synthetic:tiny: every value follows its flag, as in --model synthetic:tiny"},
    {"--model m --placement balanced",
     "placement is balanced (flag --placement), but placement_counts is not set: set it to the file of row counts per expert"},
    {"--model m --tuning cached", "tuning is cached (flag --tuning), but tuning_cache is not set: set it to a file that "
                                  "expertd-bench tune or --tuning tune has written"},
    {"--model m --replicas 2",
     "replicas is 2 (flag --replicas), but placement is contiguous (default): replicas need placement balanced, or shard_hosts"},
    {"--model m --placement-counts f", "placement_counts is set (flag --placement-counts), but placement is contiguous (default), "
                                       "which does not read it: set placement to balanced, or leave placement_counts out"},
    {"--model m --tuning-cache f", "tuning_cache is set (flag --tuning-cache), but tuning is heuristic (default), which does not "
                                   "read it: set tuning to cached or tune, or leave tuning_cache out"},
    {"--model m --verify --inspect", "--inspect and --verify are given: each is a run of its own; give one of them"},
    {"--model m --check-config --verify", "--verify and --check-config are given: each is a run of its own; give one of them"},
    {"--print-config --check-config", "--check-config and --print-config are given: each is a run of its own; give one of them"},
    {"--model", "--model needs a value: --model MODEL"},
    {"--model --http off", "--model needs a value: --model MODEL"},
    {"--model=", "--model: the value is empty"},
    {"--model a --model b", "--model is given twice"},
    {"--help=yes", "--help takes no value"},
    {"--model m --shards 1025", "--shards: \"1025\" is not an integer from 0 to 1024"},
    {"--model m --shards -1", "--shards: \"-1\" is not an integer from 0 to 1024"},
    {"--model m --shards +1", "--shards: \"+1\" is not an integer from 0 to 1024"},
    {"--model m --shards 0x2", "--shards: \"0x2\" is not an integer from 0 to 1024"},
    {"--model m --shards 1.5", "--shards: \"1.5\" is not an integer from 0 to 1024"},
    {"--model m --shards 99999999999999999999", "--shards: \"99999999999999999999\" is not an integer from 0 to 1024"},
    {"--model m --shards 4294967297", "--shards: \"4294967297\" is not an integer from 0 to 1024"},
    {"--model m --drain-timeout-ms 30s", "--drain-timeout-ms: \"30s\" is not an integer from 0 to 86400000"},
    {"--model m --max-message-bytes 64MB", "--max-message-bytes: \"64MB\" is not a size from 4KiB to 2147483647: write bytes, "
                                           "or an integer with KiB, MiB, GiB or TiB"},
    {"--model m --max-message-bytes 2GiB", "--max-message-bytes: \"2GiB\" is not a size from 4KiB to 2147483647: write bytes, "
                                           "or an integer with KiB, MiB, GiB or TiB"},
    {"--model m --max-queue-bytes 99999999TiB", "--max-queue-bytes: \"99999999TiB\" is not a size from 4KiB to 1024TiB: write "
                                                "bytes, or an integer with KiB, MiB, GiB or TiB"},
    {"--model m --max-message-bytes 512MiB",
     "max_queue_bytes is 256MiB (default), less than max_message_bytes, 512MiB (flag --max-message-bytes): a message of that "
     "size could never be admitted; raise max_queue_bytes or lower max_message_bytes"},
    {"--model m --layers 5-2", "--layers: \"5-2\" ends before it starts: write 2-5"},
    {"--model m --layers 5-", "--layers: \"5-\" is not a range of layers: write A-B, as in 0-23, one number, or all"},
    {"--model m --layers 1-4294967296",
     "--layers: \"1-4294967296\" is not a range of layers: write A-B, as in 0-23, one number, or all"},
    {"--model m --compute-dtype fp8", "--compute-dtype: \"fp8\" is not auto, bf16 or f32"},
    {"--model m --kernels auto|scalar", "--kernels: \"auto|scalar\" is not auto, scalar, scalar_amx, scalar_sm90, avx2, avx512, "
                                        "avx512vnni, avx512bf16, amxint8, amx, neon, neondot or neonbf16"},
    {"--model m --numerics portable --kernels amx", "numerics is portable (flag --numerics), but kernels is amx (flag --kernels), "
                                                    "which gives other bits: remove one of them"},
    {"--model m --numerics portable --device sim:2", "numerics is portable (flag --numerics), but device is sim:2 (flag --device), "
                                                     "which gives other bits: remove one of them"},
    {"--model m --log-level warn", "--log-level: \"warn\" is not error, warning, info or debug"},
    {"--model m --device gpu",
     "--device: \"gpu\" is not a device: write auto, cpu, cuda (every GPU), cuda:0,1 (these GPUs), sim or sim:N (simulated GPUs)"},
    {"--model m --allow-uids root",
     "--allow-uids: \"root\" is not any, self or a comma-separated list of numeric user ids, as in 0,1000"},
    {"--model m --allow-uids 1,",
     "--allow-uids: \"1,\" is not any, self or a comma-separated list of numeric user ids, as in 0,1000"},
    {"--model m --allow-uids 4294967295",
     "--allow-uids: \"4294967295\" is not any, self or a comma-separated list of numeric user ids, as in 0,1000"},
    {"--model m --listen 7411", "--listen: \"7411\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
                                "127.0.0.1:7411"},
    {"--model m --listen :7411", "--listen: \":7411\" has no valid host: write unix:PATH or HOST:PORT, as in 127.0.0.1:7411 (every "
                                 "interface: 0.0.0.0 or [::])"},
    {"--model m --listen a:65536", "--listen: \"a:65536\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
                                   "127.0.0.1:7411"},
    {"--model m --listen ::1:7411",
     "--listen: \"::1:7411\" has several colons: write an IPv6 address in brackets, as in [::1]:7411"},
    {"--model m --listen [::g]:1", "--listen: \"[::g]:1\" has no valid IPv6 address in its brackets: write [::1]:7411"},
    {"--model m --listen [::1", "--listen: \"[::1\" has no valid IPv6 address in its brackets: write [::1]:7411"},
    {"--model m --listen [::1]7", "--listen: \"[::1]7\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
                                  "127.0.0.1:7411"},
    {"--model m --listen unix:", "--listen: \"unix:\" has no file name: write unix:PATH, as in "
                                 "unix:/run/expertd/expertd.sock"},
    {"--model m --listen unix:/run/", "--listen: \"unix:/run/\" has no file name: write unix:PATH, as in "
                                      "unix:/run/expertd/expertd.sock"},
    {"--model m --listen unix:@x", "--listen: \"unix:@x\" is an abstract socket, which any user could bind first: write "
                                   "unix:PATH"},
    {"--model m --rpc-threads 17", "--rpc-threads: \"17\" is not an integer from 1 to 16"},
    {"--model m --listen a:1 --listen a:1", "--listen: \"a:1\" is given twice"},
    {"--model m --http unix:/x", "--http: \"unix:/x\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
                                 "127.0.0.1:7411"},
    {"--model m --listen 127.0.0.1:7412",
     "listen (flag --listen) and http (default) are both 127.0.0.1:7412: use another port for one of them"},
    {"--model m --admin 7413", "--admin: \"7413\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
                               "127.0.0.1:7411"},
    {"--model m --tls-cert c", "tls_cert is set (flag --tls-cert), but tls_key is not: give the file of the certificate's key"},
    {"--model m --tls-key k", "tls_key is set (flag --tls-key), but tls_cert is not: give the file of the certificate"},
    {"--model m --tls-client-ca a",
     "tls_client_ca is set (flag --tls-client-ca), but tls_cert is not: clients are checked in TLS only, which needs tls_cert and "
     "tls_key"},
    {"--model m --tls-cert c --tls-key k --tls-allow-callers a.example",
     "tls_allow_callers is set (flag --tls-allow-callers), but tls_client_ca is not: names are checked in the certificates of "
     "clients, which only tls_client_ca demands"},
    {"--model m --tls-allow-shards a.example", "tls_allow_shards is set (flag --tls-allow-shards), but tls_ca is not: names are "
                                               "checked in certificates of shards, which need "
                                               "a CA to be trusted"},
    {"--model m --shards 0", "shards is set (flag --shards), but shard_hosts is not: it applies to shards in other processes only"},
    {"--model m --copies 2", "copies is set (flag --copies), but shard_hosts is not: it applies to shards in other processes only"},
    {"--model m --shard-hosts localhost",
     "--shard-hosts: \"localhost\" has no port from 0 to 65535 after its host: write HOST:PORT, as "
     "in 127.0.0.1:7411"},
    {"--model m --shard-hosts localhost:0", "--shard-hosts: \"localhost:0\" has port 0: name the port on which the shard listens"},
    {"--model m --shard-hosts [::1]:1,", "--shard-hosts: \"\" is not HOST:PORT or dns:NAME:PORT"},
    {"--model m --shard-hosts dns:[::1]:1", "--shard-hosts: \"dns:[::1]:1\" is an address and no name: leave dns: out"},
    {"--model m --shard-hosts localhost:1,[::1]:1,localhost:1", "--shard-hosts: \"localhost:1\" is given twice"},
    {"--model m --shard-hosts 127.0.0.1:1 --copies 3",
     "copies is 3 (flag --copies), but there are 2 shards: 1 of this process (shards, default) and 1 in shard_hosts (flag "
     "--shard-hosts); lower copies, or add shards"},
    {"--model m --shard-hosts 127.0.0.1:1,dns:localhost:2 --shards 1023",
     "shards is 1023 (flag --shards), and shard_hosts (flag --shard-hosts) has 2: together at most 1024; lower shards"},
    {"--model m --shard-hosts 127.0.0.1:1 --device cuda", "device is cuda (flag --device), but with shard_hosts (flag "
                                                          "--shard-hosts) this version computes on the CPU only: set device to "
                                                          "cpu, or leave it out"},
    {"--model m --shard-hosts 127.0.0.1:1 --placement balanced --placement-counts f",
     "placement is balanced (flag --placement), but with shard_hosts (flag --shard-hosts) experts are placed by what the shards "
     "hold "
     "and by their load: leave placement and placement_counts out"},
    {"--model m --tls-allow-callers *",
     "--tls-allow-callers: \"*\" names nobody: leave the option out to allow every certificate of the CA"},
    {"--model m --admin unix:/run/", "--admin: \"unix:/run/\" has no file name: write unix:PATH, as in "
                                     "unix:/run/expertd/expertd.sock"},
    {"--model m --listen unix:/x --admin unix:/x",
     "listen (flag --listen) and admin (flag --admin) are both unix:/x: use another address for one of them"},
    {"--model m --listen unix:/y.sock --listen unix:/y.sock.regions",
     "listen (flag --listen) is unix:/y.sock.regions, which is the regions socket of listen (flag --listen), unix:/y.sock: use "
     "another path for one of them"},
    {"--model m --listen unix:y.sock.lock --listen h:1 --listen unix:y.sock",
     "listen (flag --listen) is unix:y.sock.lock, which is the lock file of listen (flag --listen), unix:y.sock: use another path "
     "for one of them"},
    {"--model m --listen unix:/y.sock --admin unix:/y.sock.regions.lock",
     "admin (flag --admin) is unix:/y.sock.regions.lock, which is the lock file of the regions socket of listen (flag --listen), "
     "unix:/y.sock: use another path for one of them"},
    {"--model m --listen unix:/y.sock --listen unix:/y-admin.sock.lock",
     "listen (flag --listen) is unix:/y-admin.sock.lock, which is the lock file of admin (default), unix:/y-admin.sock: use "
     "another path for one of them"},
    {"--model a\tb", "--model: the value contains a control character or invalid UTF-8 at byte 1"},
    {"--model \xff", "--model: the value contains a control character or invalid UTF-8 at byte 0"},
    {"--model \xc0\xaf", "--model: the value contains a control character or invalid UTF-8 at byte 0"},
};

static void flags_that_are_wrong_are_usage_errors(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof FLAGS / sizeof FLAGS[0]; i++) {
        expect_error(FLAGS[i].given, "", EXPERTD_ERR_USAGE, FLAGS[i].message);
    }
}

// Characters and bytes that a configuration file cannot store and return.
static void values_must_be_printable_utf8(void **state) {
    (void)state;
    static const char *const REFUSED[] = {
        "\x1b[0m",          // a control character
        "\x7f",             // delete
        "\xc2\x85",         // next line
        "\xe2\x80\xa8",     // line separator
        "\xe2\x80\xa9",     // paragraph separator
        "\xef\xbb\xbf",     // byte order mark
        "\xef\xbf\xbf",     // a noncharacter
        "\xed\xa0\x80",     // half a surrogate pair
        "\xe0\x80\xaf",     // overlong
        "\xf4\x90\x80\x80", // beyond Unicode
        "\xe2\x82",         // truncated
    };
    struct options o;
    for (size_t i = 0; i < sizeof REFUSED / sizeof REFUSED[0]; i++) {
        char *argv[] = {"expertd", "--model", (char *)REFUSED[i]};
        assert_int_equal(options_parse(3, argv, NULL, &o).code, EXPERTD_ERR_USAGE);
        assert_string_equal(expertd_err_message(), "--model: the value contains a control character or invalid UTF-8 at byte 0");
        options_deinit(&o);
    }
    expect_ok("--model \xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "", &o);
    options_deinit(&o);
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
    assert_int_equal(e.code, EXPERTD_ERR_USAGE);
    assert_non_null(
        strstr(expertd_err_message(), "is too long: the path of a Unix socket has at most 107 bytes, this one has 108"));
    options_deinit(&o);
}

static void too_many_addresses_are_refused(void **state) {
    (void)state;
    char environment[256] = "EXPERTD_LISTEN=h:1";
    for (int i = 2; i <= OPTIONS_LISTEN_MAX + 1; i++) {
        snprintf(environment + strlen(environment), 16, ",h:%d", i);
    }
    expect_error("--model m", environment, EXPERTD_ERR_CONFIG, "EXPERTD_LISTEN: there are more than 8 values");
}

static void devices_are_named_by_kind_and_number(void **state) {
    (void)state;
    expect_error("--model m --device cuda:0,0", "", EXPERTD_ERR_USAGE,
                 "--device: \"cuda:0,0\" is not a device: write auto, cpu, cuda (every GPU), cuda:0,1 (these GPUs), sim or sim:N "
                 "(simulated GPUs)");
    expect_error("--model m", "EXPERTD_DEVICE=sim:0", EXPERTD_ERR_CONFIG,
                 "EXPERTD_DEVICE: \"sim:0\" is not a device: write auto, cpu, cuda (every GPU), cuda:0,1 (these GPUs), sim or "
                 "sim:N (simulated GPUs)");
    static const char *const TAKEN[] = {"auto", "cpu", "cuda", "cuda:1,0", "sim", "sim:3"};
    for (size_t i = 0; i < sizeof TAKEN / sizeof *TAKEN; i++) {
        char *argv[] = {"expertd", "--model", "m", "--device", (char *)TAKEN[i], NULL};
        struct options o;
        assert_false(err_is(options_parse(5, argv, NULL, &o)));
        assert_string_equal(o.device, TAKEN[i]);
        options_deinit(&o);
    }
}

static void a_very_long_value_is_refused(void **state) {
    (void)state;
    char *argv[] = {"expertd", "--model", malloc(5001)};
    memset(argv[2], 'x', 5000);
    argv[2][5000] = '\0';
    struct options o;
    err_t e = options_parse(3, argv, NULL, &o);
    assert_int_equal(e.code, EXPERTD_ERR_USAGE);
    assert_string_equal(expertd_err_message(), "--model: the value has 5000 bytes, more than the limit of 4095");
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
        {"EXPERTD_ZZZZZZZZZZZ=3", "unknown variable EXPERTD_ZZZZZZZZZZZ: unset it; expertd --help lists all options"},
        {"EXPERTD_=3", "unknown variable EXPERTD_: unset it; expertd --help lists all options"},
        {"EXPERTD_PRINT_CONFIG=1", "the variable EXPERTD_PRINT_CONFIG has no effect: use the flag --print-config"},
        {"EXPERTD_MAX_QUEUE=many", "EXPERTD_MAX_QUEUE: \"many\" is not an integer from 1 to 1048576"},
        {"EXPERTD_LISTEN=a:1,", "EXPERTD_LISTEN: the value is empty"},
        {"EXPERTD_CONFIG=/nowhere/x.yaml", "cannot open the configuration /nowhere/x.yaml: No such file or directory"},
        {"HF_HOME=/a\x01", "HF_HOME: the value contains a control character or invalid UTF-8 at byte 2"},
        {"EXPERTD_MAX_QUEUE_BYTES=5000",
         "max_queue_bytes is 5000 (environment EXPERTD_MAX_QUEUE_BYTES), less than max_message_bytes, 64MiB (default): a message "
         "of that size could never be admitted; raise max_queue_bytes or lower max_message_bytes"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        expect_error("--model m", CASES[i].environment, EXPERTD_ERR_CONFIG, CASES[i].message);
    }
}

static void a_mistake_is_refused_even_where_a_flag_overrides_it(void **state) {
    (void)state;
    expect_error("--model m --max-queue 3", "EXPERTD_MAX_QUEUE=many", EXPERTD_ERR_CONFIG,
                 "EXPERTD_MAX_QUEUE: \"many\" is not an integer from 1 to 1048576");
}

// ---- mistakes in the file

static void errors_in_files_name_line_key_and_remedy(void **state) {
    (void)state;
    static const struct {
        const char *yaml, *message;
    } CASES[] = {
        {"\n\nmax_quue_size: 3\n", "unknown key max_quue_size (line 3): did you mean max_queue_bytes?"},
        {"max_quue: 3\n", "unknown key max_quue (line 1): did you mean max_queue?"},
        {"? zzzzzzzzzzzzz\n: 3\n", "unknown key zzzzzzzzzzzzz (line 1): expertd --help lists them"},
        {"shards: 2\nmax-queue: 3\nmax_queue: 4\n", "key max_queue (line 3) is given twice, first in line 2"},
        {"config: x\n", "key config (line 1) is not allowed in a file: use the flag --config"},
        {"check_config: true\n", "key check_config (line 1) is not allowed in a file: use the flag --check-config"},
        {"shards: many\n", "key shards (line 1): \"many\" is not an integer from 0 to 1024"},
        {"shards:\n", "key shards (line 1) has no value: give one, or remove the key"},
        {"shards: ~\n", "key shards (line 1) has no value: give one, or remove the key"},
        {"model: ''\n", "key model (line 1) has no value: give one, or remove the key"},
        {"model: \"a\\0b\"\n", "key model (line 1): the value contains a NUL byte"},
        {"model: |\n  a\n  b\n", "key model (line 1): the value contains a control character or invalid UTF-8 at byte 1"},
        {"shards: [1]\n", "key shards (line 1) takes one value, not a list"},
        {"listen: []\n", "key listen (line 1) has an empty list: give a value, or remove the key"},
        {"listen: [[a:1]]\n", "key listen (line 1) takes one value, not a list"},
        {"listen:\n  - a:1\n  - a\n",
         "key listen (line 1): \"a\" has no port from 0 to 65535 after its host: write HOST:PORT, as in "
         "127.0.0.1:7411"},
        {"listen: [a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9]\n", "key listen (line 1): there are more than 8 values"},
        {"model: {a: b}\n", "key model (line 1) takes a value, not a mapping"},
        {"model: &x a\n", "line 1 has an anchor, alias or tag: write the value itself"},
        {"shards: 1\nmodel: *x\n", "line 2 has an anchor, alias or tag: write the value itself"},
        {"model: !!str a\n", "line 1 has an anchor, alias or tag: write the value itself"},
        {"- model\n", "line 1 is not a key with a value: write key: value"},
        {"model\n", "line 1 is not a key with a value: write key: value"},
        {"[a, b]: c\n", "line 1 has no key: write key: value"},
        {"model: a\n---\nmodel: b\n", "a second document begins in line 2: a configuration file has one document"},
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
    expect_error("--model m --config /nowhere/x.yaml", "", EXPERTD_ERR_CONFIG,
                 "cannot open the configuration /nowhere/x.yaml: No such file or directory");
    expect_error("--model m --config /", "", EXPERTD_ERR_CONFIG, "cannot read the configuration /: Is a directory");
    memset(large, '#', (1 << 20) + 1);
    large[(1 << 20) + 1] = '\0';
    const char *path = write_file("large.yaml", large);
    free(large);
    snprintf(flags, sizeof flags, "--model m --config %s", path);
    snprintf(message, sizeof message, "the configuration %s is larger than 1048576 bytes: is it the right file?", path);
    expect_error(flags, "", EXPERTD_ERR_CONFIG, message);
}

static void nesting_without_end_is_refused_at_its_first_level(void **state) {
    (void)state;
    char *deep = malloc(100001);
    memset(deep, '[', 100000);
    deep[100000] = '\0';
    expect_file_error(deep, "line 1 is not a key with a value: write key: value");
    free(deep);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flags_that_are_wrong_are_usage_errors),
        cmocka_unit_test(values_must_be_printable_utf8),
        cmocka_unit_test(a_socket_path_has_107_bytes_at_most),
        cmocka_unit_test(too_many_addresses_are_refused),
        cmocka_unit_test(devices_are_named_by_kind_and_number),
        cmocka_unit_test(a_very_long_value_is_refused),
        cmocka_unit_test(variables_that_are_wrong_are_configuration_errors),
        cmocka_unit_test(a_mistake_is_refused_even_where_a_flag_overrides_it),
        cmocka_unit_test(errors_in_files_name_line_key_and_remedy),
        cmocka_unit_test(an_empty_file_configures_nothing),
        cmocka_unit_test(files_that_cannot_be_configurations_are_refused),
        cmocka_unit_test(nesting_without_end_is_refused_at_its_first_level),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
