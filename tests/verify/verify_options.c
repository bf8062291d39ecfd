#include "tests/verify/verify_options.h"

#include <string.h>

#include "tests/flags/flags.h"

enum { TOKENS_LIMIT = 1 << 20, TIMEOUT_MAX_S = 86400, DEFAULT_TIMEOUT_S = 120 };

static FALLIBLE set_address(void *options, const char *value) {
    struct verify_options *o = options;
    o->address = value;
    return OK;
}

static FALLIBLE set_model(void *options, const char *value) {
    struct verify_options *o = options;
    o->model = value;
    return OK;
}

static FALLIBLE set_hf_cache(void *options, const char *value) {
    struct verify_options *o = options;
    o->hf_cache = value;
    return OK;
}

static FALLIBLE set_tokens(void *options, const char *value) {
    struct verify_options *o = options;
    return flags_numbers("--tokens", value, 0, TOKENS_LIMIT, o->tokens, VERIFY_TOKENS_MAX, &o->num_tokens);
}

static FALLIBLE set_layers(void *options, const char *value) {
    struct verify_options *o = options;
    const char *end = NULL;
    uint64_t first = 0, last = 0;
    TRY(flags_number_prefix("--layers", value, 0, UINT32_MAX, &end, &first));
    last = first;
    if (*end == '-') {
        TRY(flags_number("--layers", end + 1, 0, UINT32_MAX, &last));
    } else if (*end) {
        FAIL(EXPERTD_ERR_USAGE, "--layers %s: A-B or one number is expected", value);
    }
    if (last < first) {
        FAIL(EXPERTD_ERR_USAGE, "--layers %s: the last comes before the first", value);
    }
    o->have_layers = true;
    o->first_layer = (uint32_t)first;
    o->last_layer = (uint32_t)last;
    return OK;
}

static FALLIBLE set_compute_dtype(void *options, const char *value) {
    struct verify_options *o = options;
    o->compute_dtype = strcmp(value, "bf16") == 0  ? EXPERTD_DTYPE_BF16
                       : strcmp(value, "f32") == 0 ? EXPERTD_DTYPE_F32
                                                   : EXPERTD_DTYPE_NONE;
    if (o->compute_dtype == EXPERTD_DTYPE_NONE) {
        FAIL(EXPERTD_ERR_USAGE, "--compute-dtype %s: bf16 or f32 is expected", value);
    }
    return OK;
}

static FALLIBLE set_threads(void *options, const char *value) {
    struct verify_options *o = options;
    uint64_t number = 0;
    TRY(flags_number("--threads", value, 0, 1024, &number));
    o->threads = (unsigned)number;
    return OK;
}

static FALLIBLE set_seed(void *options, const char *value) {
    struct verify_options *o = options;
    return flags_number("--seed", value, 0, UINT64_MAX, &o->seed);
}

static FALLIBLE set_timeout(void *options, const char *value) {
    struct verify_options *o = options;
    uint64_t seconds = 0;
    TRY(flags_number("--timeout", value, 0, TIMEOUT_MAX_S, &seconds));
    o->timeout_us = (int64_t)seconds * 1000000;
    return OK;
}

static FALLIBLE set_shared_memory(void *options, const char *value) {
    struct verify_options *o = options;
    (void)value;
    o->shared_memory = true;
    return OK;
}

static FALLIBLE set_json(void *options, const char *value) {
    struct verify_options *o = options;
    (void)value;
    o->json = true;
    return OK;
}

#define TLS_SETTER(field)                                                                                                          \
    static FALLIBLE set_tls_##field(void *options, const char *value) {                                                            \
        struct verify_options *o = options;                                                                                        \
        o->tls.on = true;                                                                                                          \
        o->tls.field = value;                                                                                                      \
        return OK;                                                                                                                 \
    }
TLS_SETTER(ca)
TLS_SETTER(cert)
TLS_SETTER(key)
TLS_SETTER(server_name)

static FALLIBLE set_help(void *options, const char *value) {
    struct verify_options *o = options;
    (void)value;
    o->help = true;
    return OK;
}

static const struct flag_row FLAGS[] = {
    {"--address", "ADDRESS", set_address, "the daemon's address: unix:PATH or HOST:PORT"},
    {"--model", "MODEL", set_model, "the daemon's model: DIR, ORG/NAME or synthetic:..."},
    {"--tokens", "N,N", set_tokens, "numbers of tokens per request (1,8,64)"},
    {"--layers", "A-B", set_layers, "layers to check (default: the first 4)"},
    {"--compute-dtype", "DTYPE", set_compute_dtype, "bf16 or f32: refuse a daemon with another compute dtype"},
    {"--hf-cache", "DIR", set_hf_cache, "Hugging Face cache in which to find ORG/NAME"},
    {"--threads", "N", set_threads, "threads that load the model (default: one per processor)"},
    {"--seed", "N", set_seed, "seed of the inputs (1)"},
    {"--timeout", "S", set_timeout, "timeout of each call in seconds (120)"},
    {"--shared-memory", NULL, set_shared_memory, "send tensors and answers in a shared memory region; needs a unix: address"},
    {"--tls-ca", "FILE", set_tls_ca, "speak TLS: the CA of the daemon's certificate"},
    {"--tls-cert", "FILE", set_tls_cert, "a certificate, for a daemon that demands one"},
    {"--tls-key", "FILE", set_tls_key, "its key"},
    {"--tls-server-name", "NAME", set_tls_server_name, "name that the daemon's certificate must have (default: its host)"},
    {"--json", NULL, set_json, "print one JSON object on standard output"},
    {"--help", NULL, set_help, "print this text"},
};
enum { FLAG_COUNT = sizeof FLAGS / sizeof *FLAGS };

FALLIBLE verify_options_parse(int argc, char *const *argv, struct verify_options *out) {
    *out = (struct verify_options){
        .tokens = {1, 8, 64}, .num_tokens = 3, .seed = 1, .timeout_us = (int64_t)DEFAULT_TIMEOUT_S * 1000000};
    for (int i = 1; i < argc; i++) {
        TRY(flags_take(FLAGS, FLAG_COUNT, out, argc, argv, &i));
    }
    if (!out->help && (!out->address || !out->model)) {
        FAIL(EXPERTD_ERR_USAGE, "%s is missing: expertd-verify --address ADDRESS --model MODEL",
             out->address ? "--model" : "--address");
    }
    return OK;
}

void verify_options_help(FILE *out) {
    fprintf(out, "usage: expertd-verify --address ADDRESS --model MODEL [flags]\n\n"
                 "Sends requests of every kind to a daemon and compares each answer with the scalar reference, which this program "
                 "computes from the same model.\n\n");
    flags_help(FLAGS, FLAG_COUNT, out);
    fprintf(out, "\nexit codes: 0 all answers are correct, 1 some are wrong, 64 wrong command line, 65 bad checkpoint,\n"
                 "69 cannot reach the daemon, 70 the daemon refuses a request, 78 unknown preset or layer\n");
}
