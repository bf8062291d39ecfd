#include "tests/verify/verify_options.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "client/expertctl/suggest.h"

enum { TOKENS_LIMIT = 1 << 20, TIMEOUT_MAX_S = 86400, DEFAULT_TIMEOUT_S = 120 };

static FALLIBLE read_number(const char *flag, const char *text, uint64_t max, char **end, uint64_t *out) {
    *end = (char *)text;
    errno = 0;
    *out = isdigit((unsigned char)text[0]) ? strtoull(text, end, 10) : 0;
    if (*end == text || errno || *out > max) {
        FAIL(ERR_USAGE, "%s %s: a whole number from 0 to %llu is expected", flag, text, (unsigned long long)max);
    }
    return OK;
}

static FALLIBLE read_whole(const char *flag, const char *text, uint64_t max, uint64_t *out) {
    char *end = NULL;
    TRY(read_number(flag, text, max, &end, out));
    if (*end) {
        FAIL(ERR_USAGE, "%s %s: '%s' does not belong to a number", flag, text, end);
    }
    return OK;
}

static FALLIBLE set_address(struct verify_options *o, const char *value) {
    o->address = value;
    return OK;
}

static FALLIBLE set_model(struct verify_options *o, const char *value) {
    o->model = value;
    return OK;
}

static FALLIBLE set_hf_cache(struct verify_options *o, const char *value) {
    o->hf_cache = value;
    return OK;
}

static FALLIBLE set_tokens(struct verify_options *o, const char *value) {
    o->num_tokens = 0;
    for (const char *at = value;; at++) {
        char *end = NULL;
        uint64_t number = 0;
        TRY(read_number("--tokens", at, TOKENS_LIMIT, &end, &number));
        if (o->num_tokens == VERIFY_TOKENS_MAX || (*end && *end != ',')) {
            FAIL(ERR_USAGE, "--tokens %s: up to %d numbers with commas between them are expected, such as 1,8,64", value,
                 VERIFY_TOKENS_MAX);
        }
        o->tokens[o->num_tokens++] = (uint32_t)number;
        if (!*end) {
            return OK;
        }
        at = end;
    }
}

static FALLIBLE set_layers(struct verify_options *o, const char *value) {
    char *end = NULL;
    uint64_t first = 0, last = 0;
    TRY(read_number("--layers", value, UINT32_MAX, &end, &first));
    last = first;
    if (*end == '-') {
        TRY(read_whole("--layers", end + 1, UINT32_MAX, &last));
    } else if (*end) {
        FAIL(ERR_USAGE, "--layers %s: A-B or one number is expected", value);
    }
    if (last < first) {
        FAIL(ERR_USAGE, "--layers %s: the last comes before the first", value);
    }
    o->have_layers = true;
    o->first_layer = (uint32_t)first;
    o->last_layer = (uint32_t)last;
    return OK;
}

static FALLIBLE set_compute_dtype(struct verify_options *o, const char *value) {
    o->compute_dtype = strcmp(value, "bf16") == 0 ? DTYPE_BF16 : strcmp(value, "f32") == 0 ? DTYPE_F32 : DTYPE_NONE;
    if (o->compute_dtype == DTYPE_NONE) {
        FAIL(ERR_USAGE, "--compute-dtype %s: it is bf16 or f32", value);
    }
    return OK;
}

static FALLIBLE set_threads(struct verify_options *o, const char *value) {
    uint64_t number = 0;
    TRY(read_whole("--threads", value, 1024, &number));
    o->threads = (unsigned)number;
    return OK;
}

static FALLIBLE set_seed(struct verify_options *o, const char *value) {
    return read_whole("--seed", value, UINT64_MAX, &o->seed);
}

static FALLIBLE set_timeout(struct verify_options *o, const char *value) {
    uint64_t seconds = 0;
    TRY(read_whole("--timeout", value, TIMEOUT_MAX_S, &seconds));
    o->timeout_us = (int64_t)seconds * 1000000;
    return OK;
}

static FALLIBLE set_shared_memory(struct verify_options *o, const char *value) {
    (void)value;
    o->shared_memory = true;
    return OK;
}

static FALLIBLE set_json(struct verify_options *o, const char *value) {
    (void)value;
    o->json = true;
    return OK;
}

static FALLIBLE set_help(struct verify_options *o, const char *value) {
    (void)value;
    o->help = true;
    return OK;
}

struct flag_row {
    const char *name, *value;
    err_t (*set)(struct verify_options *, const char *);
    const char *help;
};

static const struct flag_row FLAGS[] = {
    {"--address", "ADDRESS", set_address, "the daemon's, unix:PATH or HOST:PORT"},
    {"--model", "MODEL", set_model, "the model that it was started with: DIR, ORG/NAME or synthetic:..."},
    {"--tokens", "N,N", set_tokens, "tokens of a request (1,8,64)"},
    {"--layers", "A-B", set_layers, "these layers; else all, of more than 4 the first 4"},
    {"--compute-dtype", "DTYPE", set_compute_dtype, "bf16 or f32: refuse a daemon that computes in the other"},
    {"--hf-cache", "DIR", set_hf_cache, "where ORG/NAME is looked up"},
    {"--threads", "N", set_threads, "for loading the model; else as many as there are processors"},
    {"--seed", "N", set_seed, "of the inputs (1)"},
    {"--timeout", "S", set_timeout, "seconds for each call (120)"},
    {"--shared-memory", NULL, set_shared_memory, "tensors and answers in a region: a Unix socket's address only"},
    {"--json", NULL, set_json, "one JSON object on standard output"},
    {"--help", NULL, set_help, "this text"},
};
enum { FLAG_COUNT = sizeof FLAGS / sizeof *FLAGS };

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

FALLIBLE verify_options_parse(int argc, char *const *argv, struct verify_options *out) {
    *out = (struct verify_options){
        .tokens = {1, 8, 64}, .num_tokens = 3, .seed = 1, .timeout_us = (int64_t)DEFAULT_TIMEOUT_S * 1000000};
    for (int i = 1; i < argc; i++) {
        const char *equals = strchr(argv[i], '=');
        const struct flag_row *flag = NULL;
        TRY(find_flag(argv[i], equals ? (size_t)(equals - argv[i]) : strlen(argv[i]), &flag));
        if (flag->value && !equals && i + 1 == argc) {
            FAIL(ERR_USAGE, "%s takes a value: %s %s", flag->name, flag->name, flag->value);
        }
        if (!flag->value && equals) {
            FAIL(ERR_USAGE, "%s takes no value", flag->name);
        }
        TRY(flag->set(out, !flag->value ? NULL : equals ? equals + 1 : argv[++i]));
    }
    if (!out->help && (!out->address || !out->model)) {
        FAIL(ERR_USAGE, "%s is missing: expertd-verify --address ADDRESS --model MODEL", out->address ? "--model" : "--address");
    }
    return OK;
}

void verify_options_help(FILE *out) {
    fprintf(out,
            "usage: expertd-verify --address ADDRESS --model MODEL [flags]\n\n"
            "Sends requests of every kind to a daemon and compares each answer with the scalar reference, computed here from the "
            "same model.\n\n");
    for (size_t i = 0; i < FLAG_COUNT; i++) {
        char left[48];
        snprintf(left, sizeof left, "%s %s", FLAGS[i].name, FLAGS[i].value ? FLAGS[i].value : "");
        fprintf(out, "  %-24s%s\n", left, FLAGS[i].help);
    }
    fprintf(out, "\nexit codes: 0 all answers are right, 1 some are not, 64 wrong command line, 65 bad checkpoint, 69 no daemon is "
                 "reached,\n"
                 "70 it refuses a request, 78 an unknown preset or layer\n");
}
