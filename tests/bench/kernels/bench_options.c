#include "tests/bench/kernels/bench_options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "client/expertctl/suggest.h"

enum { THREADS_LIMIT = 1024, TOKENS_LIMIT = 1 << 16, SECONDS_LIMIT = 600, MIB_LIMIT = 1 << 20, MIB = 1 << 20 };

static FALLIBLE read_number(const char *flag, const char *text, uint64_t max, char **end, uint64_t *out) {
    *end = (char *)text;
    errno = 0;
    *out = isdigit((unsigned char)text[0]) ? strtoull(text, end, 10) : 0;
    if (*end == text || errno || *out < 1 || *out > max) {
        FAIL(ERR_USAGE, "%s %s: a whole number from 1 to %llu is expected", flag, text, (unsigned long long)max);
    }
    return OK;
}

static FALLIBLE read_list(const char *flag, const char *value, uint64_t max, uint32_t *list, size_t *count) {
    *count = 0;
    for (const char *at = value;; at++) {
        char *end = NULL;
        uint64_t number = 0;
        TRY(read_number(flag, at, max, &end, &number));
        if (*count == BENCH_LIST_MAX || (*end && *end != ',')) {
            FAIL(ERR_USAGE, "%s %s: up to %d numbers with commas between them are expected, such as 1,2", flag, value,
                 BENCH_LIST_MAX);
        }
        list[(*count)++] = (uint32_t)number;
        if (!*end) {
            return OK;
        }
        at = end;
    }
}

static FALLIBLE set_shapes(struct bench_options *o, const char *value) {
    o->shapes = value;
    return OK;
}

static FALLIBLE set_dtypes(struct bench_options *o, const char *value) {
    o->dtypes = value;
    return OK;
}

static FALLIBLE set_backend(struct bench_options *o, const char *value) {
    o->backend = value;
    return OK;
}

static FALLIBLE set_cache(struct bench_options *o, const char *value) {
    o->cache = value;
    return OK;
}

static FALLIBLE set_threads(struct bench_options *o, const char *value) {
    return read_list("--threads", value, THREADS_LIMIT, o->threads, &o->num_threads);
}

static FALLIBLE set_tokens(struct bench_options *o, const char *value) {
    return read_list("--tokens", value, TOKENS_LIMIT, o->tokens, &o->num_tokens);
}

static FALLIBLE set_seconds(struct bench_options *o, const char *value) {
    char *end = NULL;
    o->seconds = strtod(value, &end);
    if (end == value || *end || !(o->seconds > 0 && o->seconds <= SECONDS_LIMIT)) {
        FAIL(ERR_USAGE, "--seconds %s: a number above 0 and up to %d is expected", value, SECONDS_LIMIT);
    }
    return OK;
}

static FALLIBLE set_weights(struct bench_options *o, const char *value) {
    char *end = NULL;
    uint64_t number = 0;
    TRY(read_number("--weights-mib", value, MIB_LIMIT, &end, &number));
    if (*end) {
        FAIL(ERR_USAGE, "--weights-mib %s: '%s' does not belong to a number", value, end);
    }
    o->weights_bytes = number * MIB;
    return OK;
}

static FALLIBLE set_json(struct bench_options *o, const char *value) {
    (void)value;
    o->json = true;
    return OK;
}

static FALLIBLE set_list(struct bench_options *o, const char *value) {
    (void)value;
    o->list = true;
    return OK;
}

static FALLIBLE set_help(struct bench_options *o, const char *value) {
    (void)value;
    o->help = true;
    return OK;
}

struct flag_row {
    const char *name, *value;
    err_t (*set)(struct bench_options *, const char *);
    const char *help;
};

static const struct flag_row FLAGS[] = {
    {"--shape", "NAME,NAME", set_shapes, "only these (kernels, tune: a shape, layer: a preset); --list names them"},
    {"--dtype", "NAME,NAME", set_dtypes, "of the weights (bf16,f32; layer: bf16)"},
    {"--threads", "N,N", set_threads, "in all; else as many as this process has CPUs"},
    {"--tokens", "N,N", set_tokens, "layer: tokens of a batch (1,8,32,256,2048)"},
    {"--seconds", "S", set_seconds, "of each row (1)"},
    {"--weights-mib", "N", set_weights, "that a row's weights rotate over; else 4 x the last-level cache, at least 1145"},
    {"--cache", "FILE", set_cache, "tune: add what is found to this file"},
    {"--backend", "NAME", set_backend, "instruction set, as expertd's --backend; else auto"},
    {"--json", NULL, set_json, "one JSON object on standard output"},
    {"--list", NULL, set_list, "the names that --shape and --dtype take"},
    {"--help", NULL, set_help, "this text"},
};
enum { FLAG_COUNT = sizeof FLAGS / sizeof *FLAGS };

static const struct {
    const char *name;
    enum bench_command command;
} COMMANDS[] = {{"kernels", BENCH_KERNELS}, {"layer", BENCH_LAYER}, {"tune", BENCH_TUNE}};
enum { COMMAND_COUNT = sizeof COMMANDS / sizeof *COMMANDS };

static FALLIBLE find_flag(const char *word, size_t length, const struct flag_row **out) {
    const char *names[FLAG_COUNT];
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)length, word);
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        names[i] = FLAGS[i].name;
        if (strcmp(name, FLAGS[i].name) == 0) {
            *out = &FLAGS[i];
            return OK;
        }
    }
    const char *near = suggest_word(name, names, FLAG_COUNT);
    FAIL(ERR_USAGE, "unknown flag %s%s%s; --help lists them", name, near ? ": did you mean " : "", near ? near : "");
}

static FALLIBLE find_command(const char *word, enum bench_command *out) {
    const char *names[COMMAND_COUNT];
    for (size_t i = 0; i < COMMAND_COUNT; i++) {
        names[i] = COMMANDS[i].name;
        if (strcmp(word, COMMANDS[i].name) == 0) {
            *out = COMMANDS[i].command;
            return OK;
        }
    }
    const char *near = suggest_word(word, names, COMMAND_COUNT);
    FAIL(ERR_USAGE, "unknown command %s%s%s; --help lists them", word, near ? ": did you mean " : "", near ? near : "");
}

static FALLIBLE take_word(struct bench_options *out, char *const *argv, int argc, int *i) {
    const char *word = argv[*i];
    if (word[0] != '-') {
        if (out->command != BENCH_NONE) {
            FAIL(ERR_USAGE, "%s: one command at a time", word);
        }
        return find_command(word, &out->command);
    }
    const char *equals = strchr(word, '=');
    const struct flag_row *flag = NULL;
    TRY(find_flag(word, equals ? (size_t)(equals - word) : strlen(word), &flag));
    if (flag->value && !equals && *i + 1 == argc) {
        FAIL(ERR_USAGE, "%s takes a value: %s %s", flag->name, flag->name, flag->value);
    }
    if (!flag->value && equals) {
        FAIL(ERR_USAGE, "%s takes no value", flag->name);
    }
    return flag->set(out, !flag->value ? NULL : equals ? equals + 1 : argv[++*i]);
}

FALLIBLE bench_options_parse(int argc, char *const *argv, struct bench_options *out) {
    *out = (struct bench_options){.backend = "auto", .tokens = {1, 8, 32, 256, 2048}, .num_tokens = 5, .seconds = 1};
    for (int i = 1; i < argc; i++) {
        TRY(take_word(out, argv, argc, &i));
    }
    if (!out->help && out->command == BENCH_NONE) {
        FAIL(ERR_USAGE, "a command is missing: expertd-bench kernels, layer or tune; --help says more");
    }
    return OK;
}

FALLIBLE bench_names(const char *flag, const char *list, err_t (*take)(void *context, const char *name, size_t length),
                     void *context) {
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        if (length == 0) {
            FAIL(ERR_USAGE, "%s '%s': names with commas between them are expected", flag, list);
        }
        TRY(take(context, at, length));
        at += length;
        if (!*at) {
            return OK;
        }
    }
}

void bench_options_help(FILE *out) {
    fprintf(out,
            "usage: expertd-bench kernels|layer|tune [flags]\n\n"
            "Times grouped products (kernels) or whole MoE layers (layer) in this process. Every repetition stands between a\n"
            "loop of nothing but multiplications and a plain read of as many weights, on the same threads: ratios are medians\n"
            "over the repetitions, so they hold on a machine whose speed varies. tune tries every\n"
            "schedule of a product and says which is fastest.\n\n");
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        char left[48];
        snprintf(left, sizeof left, "%s %s", FLAGS[i].name, FLAGS[i].value ? FLAGS[i].value : "");
        fprintf(out, "  %-24s%s\n", left, FLAGS[i].help);
    }
    fprintf(out, "\nexit codes: 0 measured, 64 wrong command line, 69 memory or an instruction set is not to be had, 70 internal, "
                 "78 an\nunknown preset\n");
}
