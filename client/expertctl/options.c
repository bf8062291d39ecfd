#include "client/expertctl/options.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/suggest.h"
#include "client/expertctl/options_number.h"

enum { DEFAULT_TIMEOUT_S = 30, BENCH_FLAGS_MAX = 64 };

// ---- commands

struct command_row {
    const char *name;
    enum command command;
    const char *help;
};

static const struct command_row COMMANDS[] = {
    {"models", COMMAND_MODELS, "list what is served: layers, shapes, dtypes, numerics ids and weights ids"},
    {"status", COMMAND_STATUS, "say whether the daemon is reachable and serving, and its limits; exits 0 only while it serves"},
    {"forward", COMMAND_FORWARD, "send one layer's hidden states from a file, write the answer to a file"},
    {"compare", COMMAND_COMPARE, "send the same rows to two daemons, and report how far the second one's answers are off"},
    {"placement", COMMAND_PLACEMENT,
     "show | plan | apply PLAN.json: show which shard holds which expert, plan a more even placement, apply it"},
    {"shards", COMMAND_SHARDS,
     "[list] | drain ADDRESS | add ADDRESS | remove ADDRESS: show a front's shards in other processes, change them"},
    {"drain", COMMAND_DRAIN, "let the daemon finish its requests and exit"},
    {"bench", COMMAND_BENCH,
     "load a daemon: report throughput, latencies, wrong answers, and whether the client was the bottleneck"},
    {"top", COMMAND_TOP, "live figures of a daemon: calls, tokens, latencies, queue, memory, load of each shard"},
    {"inspect", COMMAND_INSPECT,
     "MODEL: describe a checkpoint without loading it: layers, formats, sizes on disk and in memory, what is refused and why"},
};
enum { COMMAND_COUNT = sizeof COMMANDS / sizeof *COMMANDS };

static FALLIBLE read_command(const char *word, struct ctl_options *out) {
    const char *names[COMMAND_COUNT];
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        names[i] = COMMANDS[i].name;
        if (strcmp(word, COMMANDS[i].name) == 0) {
            out->command = COMMANDS[i].command;
            return OK;
        }
    }
    const char *near = suggest_word(word, strlen(word), names, COMMAND_COUNT);
    if (near) {
        FAIL(EXPERTD_ERR_USAGE, "unknown command %s: did you mean %s?", word, near);
    }
    FAIL(EXPERTD_ERR_USAGE,
         "unknown command %s: it is one of models, status, forward, compare, placement, shards, drain, bench, top, inspect (see "
         "expertctl --help)",
         word);
}

// ---- values

static FALLIBLE set_address(struct ctl_options *out, const char *value) {
    struct address parsed;
    TRY_IN(address_parse(value, &parsed), "--address");
    out->address = value;
    return OK;
}

static FALLIBLE set_with(struct ctl_options *out, const char *value) {
    struct address parsed;
    TRY_IN(address_parse(value, &parsed), "--with");
    out->with = value;
    return OK;
}

static FALLIBLE set_http(struct ctl_options *out, const char *value) {
    struct address parsed;
    TRY_IN(address_parse(value, &parsed), "--http");
    if (parsed.is_unix) {
        FAIL(EXPERTD_ERR_USAGE, "--http %s: HOST:PORT is expected", value);
    }
    out->http = value;
    return OK;
}

static FALLIBLE set_timeout(struct ctl_options *out, const char *value) {
    return ctl_read_seconds("--timeout", value, &out->timeout_us);
}

static FALLIBLE set_interval(struct ctl_options *out, const char *value) {
    return ctl_read_seconds("--interval", value, &out->interval_us);
}

static FALLIBLE set_model(struct ctl_options *out, const char *value) {
    if (strlen(value) >= WIRE_STRING_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "--model: a name has at most %d bytes", WIRE_STRING_MAX - 1);
    }
    out->model = value;
    return OK;
}

static FALLIBLE set_layer(struct ctl_options *out, const char *value) {
    uint64_t number = 0;
    if (strcmp(value, "all") == 0) { // forward then reports that --layer is missing
        out->have_layer = false;
        return OK;
    }
    TRY(ctl_read_number("--layer", value, UINT32_MAX, &number));
    out->layer = (uint32_t)number;
    out->have_layer = true;
    return OK;
}

static FALLIBLE set_split(struct ctl_options *out, const char *value) {
    TRY(ctl_read_number("--split", value, UINT32_MAX, &out->split));
    if (out->split == 0) {
        FAIL(EXPERTD_ERR_USAGE, "--split 0: at least one token goes into a call");
    }
    return OK;
}

static FALLIBLE set_weights_id(struct ctl_options *out, const char *value) {
    const char *digits = strncmp(value, "0x", 2) == 0 ? value + 2 : value;
    size_t length = strspn(digits, "0123456789abcdefABCDEF");
    if (length == 0 || length > 16 || digits[length]) {
        FAIL(EXPERTD_ERR_USAGE, "--weights-id %s: up to 16 hexadecimal digits are expected, as expertctl models prints them",
             value);
    }
    out->weights_id = strtoull(digits, NULL, 16);
    return OK;
}

static enum expertd_dtype dtype_of_flag(const char *value) {
    char upper[16];
    size_t length = strlen(value);
    if (length >= sizeof upper) {
        return EXPERTD_DTYPE_NONE;
    }
    for (size_t i = 0; i <= length; i++) {
        upper[i] = (char)toupper((unsigned char)value[i]);
    }
    return expertd_dtype_from_name(upper, length);
}

static bool is_hidden_dtype(enum expertd_dtype dtype) {
    return expertd_dtype_is_float16_or_32(dtype) || dtype == EXPERTD_DTYPE_F8_E4M3 || dtype == EXPERTD_DTYPE_F8_E5M2;
}

// For forward the dtype of the answer, for bench that of the hidden states. The command may follow on the line, so check_forward
// checks the rest.
static FALLIBLE set_dtype(struct ctl_options *out, const char *value) {
    out->output_dtype = dtype_of_flag(value);
    if (!is_hidden_dtype(out->output_dtype)) {
        FAIL(EXPERTD_ERR_USAGE, "--dtype %s: it is f32, bf16 or f16; of bench's hidden states also f8_e4m3 or f8_e5m2", value);
    }
    return OK;
}

static FALLIBLE set_hidden_dtype(struct ctl_options *out, const char *value) {
    enum expertd_dtype dtype = dtype_of_flag(value);
    if (!is_hidden_dtype(dtype)) {
        FAIL(EXPERTD_ERR_USAGE, "--hidden-dtype %s: hidden states are f32, bf16, f16, f8_e4m3 or f8_e5m2", value);
    }
    out->hidden_dtype = dtype;
    return OK;
}

static FALLIBLE set_shared(struct ctl_options *out, const char *value) {
    if (strcmp(value, "include") != 0 && strcmp(value, "exclude") != 0) {
        FAIL(EXPERTD_ERR_USAGE, "--shared %s: it is include or exclude", value);
    }
    out->shared = value[0] == 'i' ? WIRE_SHARED_INCLUDE : WIRE_SHARED_EXCLUDE;
    return OK;
}

#define SWITCH_SETTER(name, field)                                                                                                 \
    static FALLIBLE set_##name(struct ctl_options *out, const char *value) {                                                       \
        (void)value;                                                                                                               \
        out->field = true;                                                                                                         \
        return OK;                                                                                                                 \
    }
SWITCH_SETTER(once, once)
SWITCH_SETTER(wait, wait)
SWITCH_SETTER(cancel, cancel)
SWITCH_SETTER(json, json)
SWITCH_SETTER(timings, timings)
SWITCH_SETTER(tls, tls.on)

// Setters of texts that are not checked here.
#define TEXT_SETTER(name, field)                                                                                                   \
    static FALLIBLE set_##name(struct ctl_options *out, const char *value) {                                                       \
        out->field = value;                                                                                                        \
        return OK;                                                                                                                 \
    }
TEXT_SETTER(hidden, hidden)
TEXT_SETTER(hidden_scale, hidden_scale)
TEXT_SETTER(ids, ids)
TEXT_SETTER(weights, weights)
TEXT_SETTER(router_logits, router_logits)
TEXT_SETTER(token_ids, token_ids)
TEXT_SETTER(router_input, router_input)
TEXT_SETTER(output, output)
TEXT_SETTER(counts, counts)
TEXT_SETTER(layers, layers)
TEXT_SETTER(shards, shards)
TEXT_SETTER(device, device)
TEXT_SETTER(tls_ca, tls.ca)
TEXT_SETTER(tls_cert, tls.cert)
TEXT_SETTER(tls_key, tls.key)
TEXT_SETTER(tls_server_name, tls.server_name)

static FALLIBLE set_admin(struct ctl_options *out, const char *value) {
    struct address parsed;
    TRY_IN(address_parse(value, &parsed), "--admin");
    out->admin = value;
    return OK;
}

static FALLIBLE set_policy(struct ctl_options *out, const char *value) {
    if (strcmp(value, "balanced") != 0 && strcmp(value, "contiguous") != 0) {
        FAIL(EXPERTD_ERR_USAGE, "--policy %s: it is balanced or contiguous", value);
    }
    out->policy = value[0] == 'b' ? PROTO_POLICY_BALANCED : PROTO_POLICY_CONTIGUOUS;
    return OK;
}

static FALLIBLE set_replicas(struct ctl_options *out, const char *value) {
    uint64_t number = 0;
    TRY(ctl_read_number("--replicas", value, UINT32_MAX, &number));
    out->replicas = (uint32_t)number;
    return OK;
}

static FALLIBLE set_reason(struct ctl_options *out, const char *value) {
    if (strlen(value) > PROTO_REASON_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "--reason: a text of %zu bytes: give at most %d", strlen(value), PROTO_REASON_MAX);
    }
    out->reason = value;
    return OK;
}

static FALLIBLE set_help(struct ctl_options *out, const char *value) {
    (void)value;
    out->command = COMMAND_HELP;
    return OK;
}

static FALLIBLE set_version(struct ctl_options *out, const char *value) {
    (void)value;
    out->command = COMMAND_VERSION;
    return OK;
}

// ---- flags

struct flag_row {
    const char *name;
    const char *value; // name of its value, for the help; NULL: no value
    err_t (*set)(struct ctl_options *, const char *);
    unsigned commands; // ANY, or the commands that take it
    const char *help;
};

enum {
    ANY = 0,
    FORWARD = 1 << COMMAND_FORWARD,
    COMPARE = 1 << COMMAND_COMPARE,
    PLACEMENT = 1 << COMMAND_PLACEMENT,
    SHARDS = 1 << COMMAND_SHARDS,
    DRAIN = 1 << COMMAND_DRAIN,
    BENCH = 1 << COMMAND_BENCH,
    TOP = 1 << COMMAND_TOP,
    INSPECT = 1 << COMMAND_INSPECT
};

static const struct flag_row FLAGS[] = {
    {"--address", "ADDRESS", set_address, ANY,
     "unix:PATH or HOST:PORT (default: $EXPERTD_ADDRESS, $XDG_RUNTIME_DIR/expertd.sock, 127.0.0.1:7411)"},
    {"--json", NULL, set_json, ANY, "print one JSON object on standard output, also for an error"},
    {"--timeout", "S", set_timeout, ANY, "seconds for each call (30)"},
    {"--model", "NAME", set_model, ANY, "which model, if several are served"},
    {"--tls", NULL, set_tls, ANY, "speak TLS on TCP; with one of the following by itself"},
    {"--tls-ca", "FILE", set_tls_ca, ANY, "CA of the daemon's certificate (default: the system's CAs)"},
    {"--tls-cert", "FILE", set_tls_cert, ANY, "your certificate, for a daemon that demands one"},
    {"--tls-key", "FILE", set_tls_key, ANY, "its key; variables: EXPERTD_TLS=true, EXPERTD_TLS_CA, _CERT, _KEY, _SERVER_NAME"},
    {"--tls-server-name", "NAME", set_tls_server_name, ANY, "name that the daemon's certificate must have (default: its host)"},
    {"--help", NULL, set_help, ANY, "print this text"},
    {"--version", NULL, set_version, ANY, "print the version"},
    {"--layer", "L", set_layer, FORWARD | COMPARE | PLACEMENT,
     "the checkpoint's decoder layer number, as expertctl models lists it"},
    {"--with", "ADDRESS", set_with, COMPARE, "the daemon whose answers are compared with those of --address"},
    {"--hidden", "TENSOR", set_hidden, FORWARD | COMPARE,
     "hidden states [T, H]: f32, bf16, f16, or f8 with --hidden-scale; compare makes 64 random rows without it"},
    {"--hidden-dtype", "DTYPE", set_hidden_dtype, FORWARD | COMPARE,
     "dtype of the bits in a .npy file of <u2, V2 or |u1: bf16, f16, f8_e4m3, f8_e5m2"},
    {"--hidden-scale", "TENSOR", set_hidden_scale, FORWARD, "[1], [T, 1] or [T, ceil(H/128)] f32, for f8 hidden states"},
    {"--ids", "TENSOR", set_ids, FORWARD, "your own routes: expert ids [T, K], i32 or i64; a negative id is an empty slot"},
    {"--weights", "TENSOR", set_weights, FORWARD, "weights of --ids [T, K], final: neither scaled nor normalised"},
    {"--router-logits", "TENSOR", set_router_logits, FORWARD, "your router's logits [T, E]; by default the model's router routes"},
    {"--token-ids", "TENSOR", set_token_ids, FORWARD, "[T] i32 or i64, for layers whose router chooses experts by token id"},
    {"--router-input", "TENSOR", set_router_input, FORWARD,
     "[T, H], for layers whose router reads rows other than the hidden states"},
    {"--shared", "include|exclude", set_shared, FORWARD | COMPARE,
     "whether to add the shared experts (include; with --ids exclude)"},
    {"--dtype", "DTYPE", set_dtype, FORWARD | BENCH, "dtype of the answer: f32, bf16 or f16; by default that of the hidden states"},
    {"--output", "FILE", set_output, FORWARD | PLACEMENT, "write the answer to FILE, in the form of a TENSOR, or the plan as JSON"},
    {"--split", "N", set_split, FORWARD | COMPARE, "send N tokens per call; the answer's bytes stay the same"},
    {"--weights-id", "HEX", set_weights_id, FORWARD, "fail instead of answering with other weights"},
    {"--timings", NULL, set_timings, FORWARD, "print the daemon's times per stage"},
    {"--admin", "ADDRESS", set_admin, PLACEMENT | SHARDS | DRAIN | TOP,
     "the admin socket; by default the one that the daemon at --address names"},
    {"--policy", "balanced|contiguous", set_policy, PLACEMENT,
     "plan: balance the shards' rows (the default), or give each shard consecutive experts"},
    {"--replicas", "N", set_replicas, PLACEMENT, "plan: N further copies of the busiest experts of each layer"},
    {"--counts", "FILE", set_counts, PLACEMENT, "plan: use the rows in FILE, in the format of placement show --json"},
    {"--reason", "TEXT", set_reason, DRAIN, "text for the daemon's log"},
    {"--wait", NULL, set_wait, SHARDS | DRAIN, "return when the daemon has exited; shards drain: when the shard holds no experts"},
    {"--cancel", NULL, set_cancel, SHARDS, "shards drain: end the drain; the shard may hold experts again"},
    {"--http", "HOST:PORT", set_http, TOP, "the daemon's HTTP address; by default port 7412 of its host"},
    {"--interval", "S", set_interval, TOP, "seconds between two samples (2)"},
    {"--once", NULL, set_once, TOP, "show one interval and exit"},
    {"--layers", "A-B", set_layers, INSPECT, "describe these layers only, as expertd --layers A-B would serve them"},
    {"--shards", "N", set_shards, INSPECT, "memory for N shards; by default for 1, 2, 4 and 8"},
    {"--device", "DEVICE", set_device, INSPECT,
     "describe device memory too, as expertd --device would take it; sim:N needs no GPU"},
};
enum { FLAG_COUNT = sizeof FLAGS / sizeof *FLAGS };

static FALLIBLE unknown_flag(const struct ctl_options *options, const char *word, size_t length) {
    if (options->command == COMMAND_INSPECT) {
        FAIL(EXPERTD_ERR_USAGE,
             "unknown flag %.*s: expertctl inspect takes --layers, --shards, --device and --json; give other options of a start to "
             "expertd --inspect --model MODEL, or set their variables, as in EXPERTD_WIDEN=true",
             (int)length, word);
    }
    const char *names[FLAG_COUNT + BENCH_FLAGS_MAX];
    size_t count = 0;
    for (; count < FLAG_COUNT; count++) {
        names[count] = FLAGS[count].name;
    }
    for (const char *bench; count < FLAG_COUNT + BENCH_FLAGS_MAX && (bench = bench_options_name(count - FLAG_COUNT)); count++) {
        names[count] = bench;
    }
    const char *near = suggest_word(word, length, names, count);
    if (near) {
        FAIL(EXPERTD_ERR_USAGE, "unknown flag %.*s: did you mean %s?", (int)length, word, near);
    }
    FAIL(EXPERTD_ERR_USAGE, "unknown flag %.*s: expertctl --help lists them", (int)length, word);
}

static const struct flag_row *find_flag(const char *word, size_t length) {
    if (length == 2 && memcmp(word, "-h", 2) == 0) {
        word = "--help";
        length = strlen(word);
    }
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        if (strlen(FLAGS[i].name) == length && memcmp(FLAGS[i].name, word, length) == 0) {
            return &FLAGS[i];
        }
    }
    return NULL;
}

// The command of the line: the one already read, else the first command's name from argv[at] on.
static enum command command_at(int argc, char *const *argv, int at, const struct ctl_options *options) {
    for (; options->command == COMMAND_NONE && at < argc; at++) {
        for (size_t i = 0; i < COMMAND_COUNT; i++) {
            if (strcmp(argv[at], COMMANDS[i].name) == 0) {
                return COMMANDS[i].command;
            }
        }
    }
    return options->command;
}

// Reads one flag at argv[*at] and its value, in the same word or the next one. *seen has a bit per flag.
static FALLIBLE read_flag(int argc, char *const *argv, int *at, uint64_t *seen, struct ctl_options *out) {
    _Static_assert(FLAG_COUNT <= 64, "a bit per flag");
    const char *word = argv[*at];
    const char *equals = strchr(word, '=');
    size_t length = equals ? (size_t)(equals - word) : strlen(word);
    const struct flag_row *flag = find_flag(word, length);
    if (!flag || (flag->set == set_layers && command_at(argc, argv, *at, out) != COMMAND_INSPECT)) { // bench has --layers too
        bool known;
        TRY(bench_options_read(argc, argv, at, &out->bench, &known));
        return known ? OK : unknown_flag(out, word, length);
    }
    uint64_t bit = UINT64_C(1) << (flag - FLAGS);
    if (*seen & bit) {
        FAIL(EXPERTD_ERR_USAGE, "%s is given twice", flag->name);
    }
    *seen |= bit;
    if (!flag->value) {
        if (equals) {
            FAIL(EXPERTD_ERR_USAGE, "%s takes no value", flag->name);
        }
        return flag->set(out, NULL);
    }
    if (!equals && *at + 1 >= argc) {
        FAIL(EXPERTD_ERR_USAGE, "%s takes a value: %s %s", flag->name, flag->name, flag->value);
    }
    const char *value = equals ? equals + 1 : argv[++*at];
    if (!*value) {
        FAIL(EXPERTD_ERR_USAGE, "%s is empty: %s %s", flag->name, flag->name, flag->value);
    }
    return flag->set(out, value);
}

// ---- checks of the whole line

enum { OWNERS_TEXT_MAX = 64 };

// "forward, compare and placement" into text; returns text.
static const char *owners_of(unsigned commands, char text[OWNERS_TEXT_MAX]) {
    size_t used = 0, left = (size_t)__builtin_popcount(commands);
    text[0] = '\0';
    for (size_t i = 0; i < COMMAND_COUNT && used < OWNERS_TEXT_MAX; i++) {
        if (commands >> COMMANDS[i].command & 1) {
            left--;
            used += (size_t)snprintf(text + used, OWNERS_TEXT_MAX - used, "%s%s", COMMANDS[i].name,
                                     left > 1    ? ", "
                                     : left == 1 ? " and "
                                                 : "");
        }
    }
    return text;
}

static FALLIBLE check_flags(struct ctl_options *o, uint64_t seen) {
    char owners[OWNERS_TEXT_MAX];
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        if (seen >> i & 1 && FLAGS[i].commands != ANY && !(FLAGS[i].commands >> o->command & 1)) {
            FAIL(EXPERTD_ERR_USAGE, "%s belongs to expertctl %s", FLAGS[i].name, owners_of(FLAGS[i].commands, owners));
        }
    }
    if (o->bench.given && o->command != COMMAND_BENCH) {
        FAIL(EXPERTD_ERR_USAGE, "%s belongs to expertctl bench", o->bench.given);
    }
    return ctl_check_command(o);
}

FALLIBLE ctl_options_parse(int argc, char *const *argv, struct ctl_options *out) {
    *out = (struct ctl_options){.model = "", .timeout_us = (int64_t)DEFAULT_TIMEOUT_S * 1000000, .interval_us = 2000000};
    bench_options_init(&out->bench);
    uint64_t seen = 0;
    for (int i = 1; i < argc; i++) { // read first: it decides how mistakes are reported
        out->json |= strcmp(argv[i], "--json") == 0;
    }
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-') {
            TRY(read_flag(argc, argv, &i, &seen, out));
        } else if (out->command == COMMAND_NONE) {
            TRY(read_command(argv[i], out));
        } else {
            TRY(ctl_read_word(argv[i], out));
        }
        if (out->command == COMMAND_HELP || out->command == COMMAND_VERSION) {
            return OK;
        }
    }
    if (out->command == COMMAND_NONE) {
        FAIL(EXPERTD_ERR_USAGE, "a command is missing: models, status, forward, compare, placement, shards, drain, bench, top or "
                                "inspect (see expertctl --help)");
    }
    return check_flags(out, seen);
}

static void print_flags(FILE *out, unsigned commands) {
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        if (commands ? (FLAGS[i].commands & commands) != 0 : FLAGS[i].commands == ANY) {
            char left[48];
            snprintf(left, sizeof left, "%s %s", FLAGS[i].name, FLAGS[i].value ? FLAGS[i].value : "");
            fprintf(out, "  %-29s%s\n", left, FLAGS[i].help);
        }
    }
}

void ctl_print_help(FILE *out) {
    fprintf(
        out,
        "usage: expertctl [--address ADDRESS] [--json] [--timeout S] COMMAND\n\nThe command-line client of expertd.\n\ncommands\n");
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        fprintf(out, "  %-29s%s\n", COMMANDS[i].name, COMMANDS[i].help);
    }
    fprintf(out, "\nflags (defaults in parentheses)\n");
    print_flags(out, ANY);
    fprintf(out, "\nflags of forward (TENSOR is FILE.npy, FILE.safetensors:NAME, or FILE.safetensors with one tensor in it)\n");
    print_flags(out, FORWARD);
    fprintf(out, "\nflags of compare (without --layer: all layers)\n");
    print_flags(out, COMPARE);
    fprintf(out, "\nflags of placement, shards and drain (placement without --layer: all layers)\n");
    print_flags(out, PLACEMENT | SHARDS | DRAIN);
    fprintf(out, "  shards: rows/s are those of the last full second, as the daemon measures them; --json also has the totals\n");
    fprintf(out, "\nflags of inspect (it runs expertd --inspect: the expertd beside this program, else the one on PATH)\n");
    print_flags(out, INSPECT);
    fprintf(out, "\nflags of top (--json: an object per line)\n");
    print_flags(out, TOP);
    fprintf(
        out,
        "\nflags of bench (D is a duration: 300us, 20ms, 1.5s, 2m; --dtype is the dtype of the hidden states, bf16 by default;\n"
        "with f8_e4m3 and f8_e5m2 the answers are bf16)\n");
    bench_options_help(out);
    fprintf(
        out,
        "\nexit codes: 0 done, 64 wrong command line, 65 a file is bad or cannot be read or written, or the model is refused,\n"
        "69 no daemon is reached or it does not answer in time, or the model of inspect does not fit, 70 the daemon refuses (its\n"
        "reason is printed) or fails, 78 bad options of the model of inspect; bench also: 1 wrong answers, more than 0.1 %% of\n"
        "the calls failed, no rate holds, or a regression, 2 INVALID: the client was the bottleneck, or Ctrl-C ended a search,\n"
        "130 interrupted before there was anything to report, or interrupted twice\n");
}
