#include "tests/bench/kernels/bench_options.h"

#include <stdlib.h>
#include <string.h>

#include "tests/flags/flags.h"

enum {
    THREADS_LIMIT = 1024,
    TOKENS_LIMIT = 1 << 16,
    EXPERTS_LIMIT = 4096,
    SECONDS_LIMIT = 600,
    MIB_LIMIT = 1 << 20,
    MIB = 1 << 20
};
static const uint32_t TOKENS[] = {1, 8, 32, 256, 2048};

static FALLIBLE set_shapes(void *options, const char *value) {
    ((struct bench_options *)options)->shapes = value;
    return OK;
}

static FALLIBLE set_dtypes(void *options, const char *value) {
    ((struct bench_options *)options)->dtypes = value;
    return OK;
}

static FALLIBLE set_kernels(void *options, const char *value) {
    ((struct bench_options *)options)->kernels = value;
    return OK;
}

static FALLIBLE set_device(void *options, const char *value) {
    ((struct bench_options *)options)->device = strcmp(value, "cpu") == 0 ? NULL : value;
    return OK;
}

static FALLIBLE set_cache(void *options, const char *value) {
    ((struct bench_options *)options)->cache = value;
    return OK;
}

static FALLIBLE set_op(void *options, const char *value) {
    static const char *const NAMES[] = {"gmm", "gmm-plain", "tgmm", "grouped-gemm"};
    size_t found = 0;
    TRY(flags_find("operation", value, strlen(value), NAMES, sizeof NAMES / sizeof *NAMES, "--help lists them", &found));
    ((struct bench_options *)options)->op = (enum bench_op)found;
    return OK;
}

static FALLIBLE set_transposed(void *options, const char *value) {
    (void)value;
    ((struct bench_options *)options)->transposed = true;
    return OK;
}

static FALLIBLE set_out(void *options, const char *value) {
    static const char *const NAMES[] = {"f32", "bf16", "f16"};
    static const enum expertd_dtype DTYPES[] = {EXPERTD_DTYPE_F32, EXPERTD_DTYPE_BF16, EXPERTD_DTYPE_F16};
    size_t found = 0;
    TRY(flags_find("dtype of results", value, strlen(value), NAMES, sizeof NAMES / sizeof *NAMES, "--help lists them", &found));
    ((struct bench_options *)options)->out = DTYPES[found];
    return OK;
}

static FALLIBLE set_layout(void *options, const char *value) {
    static const char *const NAMES[] = {"best", "panels", "slices", "wide-slices"};
    size_t found = 0;
    TRY(flags_find("layout", value, strlen(value), NAMES, sizeof NAMES / sizeof *NAMES, "--help lists them", &found));
    ((struct bench_options *)options)->layout = (enum bench_layout)found;
    return OK;
}

static FALLIBLE set_threads(void *options, const char *value) {
    struct bench_options *o = options;
    return flags_numbers("--threads", value, 1, THREADS_LIMIT, o->threads, BENCH_LIST_MAX, &o->num_threads);
}

static FALLIBLE set_tokens(void *options, const char *value) {
    struct bench_options *o = options;
    return flags_numbers("--tokens", value, 1, TOKENS_LIMIT, o->tokens, BENCH_LIST_MAX, &o->num_tokens);
}

static FALLIBLE set_experts(void *options, const char *value) {
    uint64_t number = 0;
    TRY(flags_number("--experts", value, 1, EXPERTS_LIMIT, &number));
    ((struct bench_options *)options)->experts = (uint32_t)number;
    return OK;
}

static FALLIBLE set_seconds(void *options, const char *value) {
    struct bench_options *o = options;
    char *end = NULL;
    o->seconds = strtod(value, &end);
    if (end == value || *end || !(o->seconds > 0 && o->seconds <= SECONDS_LIMIT)) {
        FAIL(EXPERTD_ERR_USAGE, "--seconds %s: must be a number above 0 and at most %d", value, SECONDS_LIMIT);
    }
    return OK;
}

static FALLIBLE set_weights(void *options, const char *value) {
    uint64_t number = 0;
    TRY(flags_number("--weights-mib", value, 1, MIB_LIMIT, &number));
    ((struct bench_options *)options)->weights_bytes = number * MIB;
    return OK;
}

static FALLIBLE set_busy_neighbour(void *options, const char *value) {
    (void)value;
    ((struct bench_options *)options)->busy_neighbour = true;
    return OK;
}

static FALLIBLE set_json(void *options, const char *value) {
    (void)value;
    ((struct bench_options *)options)->json = true;
    return OK;
}

static FALLIBLE set_list(void *options, const char *value) {
    (void)value;
    ((struct bench_options *)options)->list = true;
    return OK;
}

static FALLIBLE set_help(void *options, const char *value) {
    (void)value;
    ((struct bench_options *)options)->help = true;
    return OK;
}

static const struct flag_row FLAGS[] = {
    {"--shape", "NAME,NAME", set_shapes, "which shapes (kernels, tune) or presets (layer) to measure; --list names them"},
    {"--dtype", "NAME,NAME", set_dtypes,
     "dtypes of the weights (default bf16,f32; layer: bf16; pack: all forms); --list names them"},
    {"--op", "NAME", set_op, "kernels: gmm on packed weights (default), gmm-plain on dense weights, tgmm or grouped-gemm"},
    {"--transposed", NULL, set_transposed, "gmm-plain, grouped-gemm: weights as [groups, n, k] instead of [groups, k, n]"},
    {"--out", "NAME", set_out, "kernels, gmm: dtype of the results: f32, bf16 or f16 (default: that of the sums)"},
    {"--layout", "NAME", set_layout,
     "kernels, pack: layout of bf16 and f32: panels, slices or wide-slices (default: the best on this CPU)"},
    {"--threads", "N,N", set_threads, "number of threads (default: the number of CPUs of this process)"},
    {"--tokens", "N,N", set_tokens, "layer: tokens of a batch (default 1,8,32,256,2048)"},
    {"--experts", "N", set_experts, "layer: use only N of the preset's experts, if memory is short"},
    {"--seconds", "S", set_seconds, "duration of each row (default 1)"},
    {"--weights-mib", "N", set_weights,
     "kernels, tune: size of the pool of weights of a row (default: 4 x the last-level cache, at least 1145)"},
    {"--cache", "FILE", set_cache, "tune: add the schedules that were found to this file"},
    {"--busy-neighbour", NULL, set_busy_neighbour,
     "kernels: also measure beside a busy thread on one CPU, and print the remaining speed"},
    {"--kernels", "NAME", set_kernels, "instruction set, as for expertd --kernels (default auto)"},
    {"--device", "NAME", set_device,
     "kernels, layer: cuda, cuda:N, sim (only --shape tiny; times are meaningless) or cpu (default)"},
    {"--json", NULL, set_json, "print one JSON object"},
    {"--list", NULL, set_list, "list the names for --shape and --dtype"},
    {"--help", NULL, set_help, "print this text"},
};
enum { FLAG_COUNT = sizeof FLAGS / sizeof *FLAGS };

static const struct {
    const char *name;
    enum bench_command command;
} COMMANDS[] = {{"kernels", BENCH_KERNELS}, {"layer", BENCH_LAYER}, {"tune", BENCH_TUNE}, {"pack", BENCH_PACK}};
enum { COMMAND_COUNT = sizeof COMMANDS / sizeof *COMMANDS };

static FALLIBLE take_word(struct bench_options *out, char *const *argv, int argc, int *i) {
    const char *word = argv[*i], *names[COMMAND_COUNT];
    if (word[0] == '-') {
        return flags_take(FLAGS, FLAG_COUNT, out, argc, argv, i);
    }
    if (out->command != BENCH_NONE) {
        FAIL(EXPERTD_ERR_USAGE, "%s: one command at a time", word);
    }
    for (size_t c = 0; c < COMMAND_COUNT; c++) {
        names[c] = COMMANDS[c].name;
    }
    size_t found = 0;
    TRY(flags_find("command", word, strlen(word), names, COMMAND_COUNT, "--help lists them", &found));
    out->command = COMMANDS[found].command;
    return OK;
}

// Refuses options of other commands, which would silently have no effect.
static FALLIBLE check_commands(const struct bench_options *o) {
    enum { KERNELS = 1 << BENCH_KERNELS, LAYER = 1 << BENCH_LAYER, TUNE = 1 << BENCH_TUNE, PACK = 1 << BENCH_PACK };
    const struct {
        const char *flag;
        bool given;
        unsigned commands;
        const char *names;
    } RULES[] = {
        {"--shape", o->shapes != NULL, KERNELS | LAYER | TUNE, "kernels, layer and tune"},
        {"--op", o->op != OP_GMM, KERNELS, "kernels"},
        {"--layout", o->layout != LAYOUT_BEST, KERNELS | PACK, "kernels and pack"},
        {"--tokens", o->num_tokens > 0, LAYER, "layer"},
        {"--experts", o->experts > 0, LAYER, "layer"},
        {"--weights-mib", o->weights_bytes > 0, KERNELS | TUNE, "kernels and tune"},
        {"--cache", o->cache != NULL, TUNE, "tune"},
        {"--busy-neighbour", o->busy_neighbour, KERNELS, "kernels"},
        {"--device", o->device != NULL, KERNELS | LAYER, "kernels and layer"},
    };
    for (size_t i = 0; i < sizeof RULES / sizeof *RULES; i++) {
        if (RULES[i].given && !(RULES[i].commands & 1u << o->command)) {
            FAIL(EXPERTD_ERR_USAGE, "%s is an option of expertd-bench %s only", RULES[i].flag, RULES[i].names);
        }
    }
    return OK;
}

FALLIBLE bench_options_parse(int argc, char *const *argv, struct bench_options *out) {
    *out = (struct bench_options){.kernels = "auto", .seconds = 1};
    for (int i = 1; i < argc; i++) {
        TRY(take_word(out, argv, argc, &i));
    }
    if (out->help) {
        return OK;
    }
    if (out->command == BENCH_NONE) {
        FAIL(EXPERTD_ERR_USAGE, "the command is missing: expertd-bench kernels, layer, tune or pack; see --help");
    }
    TRY(check_commands(out));
    if (out->device && (out->num_threads > 0 || out->busy_neighbour)) {
        FAIL(EXPERTD_ERR_USAGE, "--threads and --busy-neighbour apply to the CPU, not to --device %s", out->device);
    }
    if (out->transposed && out->op != OP_GMM_PLAIN && out->op != OP_GROUPED_GEMM) {
        FAIL(EXPERTD_ERR_USAGE, "--transposed applies to --op gmm-plain and --op grouped-gemm only");
    }
    if (out->out && (out->command != BENCH_KERNELS || out->op != OP_GMM || out->device)) {
        FAIL(EXPERTD_ERR_USAGE, "--out applies to kernels with --op gmm on the CPU only");
    }
    if (out->layout != LAYOUT_BEST && (out->op != OP_GMM || out->device)) {
        FAIL(EXPERTD_ERR_USAGE, "--layout applies to packed weights only: kernels with --op gmm, and pack, on the CPU");
    }
    if (out->num_tokens == 0) {
        out->num_tokens = sizeof TOKENS / sizeof *TOKENS;
        memcpy(out->tokens, TOKENS, sizeof TOKENS);
    }
    return OK;
}

void bench_options_help(FILE *out) {
    fprintf(out,
            "usage: expertd-bench kernels|layer|tune|pack [flags]\n\n"
            "Times grouped products (kernels) or whole MoE layers (layer) in this process. Before and after every repetition\n"
            "run a loop of multiplications and plain reads of as many weights, on the same threads. Ratios are medians over\n"
            "the repetitions, so they hold on a machine whose speed varies. The weights are read twice, sequentially and as\n"
            "four streams; the faster read counts. tune tries every schedule of a product and prints the fastest. pack times\n"
            "the loading of a matrix in each form of checkpoint files: unpacking codes, digest, packing; compared with a read\n"
            "of as many bytes (nothing is multiplied).\n\n");
    flags_help(FLAGS, FLAG_COUNT, out);
    fprintf(out,
            "\nexit codes: 0 measured, 64 bad command line or unknown preset, 69 not enough memory or a missing instruction set,\n"
            "70 internal error\n");
}
