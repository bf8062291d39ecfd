#include "tests/bench/kernels/pack_bench.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "expert/checkpoint/digest.h"
#include "expert/quantised/quantised_matrix.h"
#include "tests/bench/kernels/measure/plain_read.h"
#include "tests/bench/kernels/selection.h"
#include "tests/flags/flags.h"

enum {
    SPIN_US = 50,
    MATRIX_K = 7168, // DeepSeek-V3's experts
    MATRIX_N = 2048,
    SCALE_K = 128,
    SCALES = MATRIX_K / SCALE_K,
    CODES_USED = 119,
    POOL_BYTES = 1 << 27, // of sources; the results need as much again
    FORMS_MAX = 32
};

enum order { ROWS, BY_COLUMN, WORDS_AWQ, WORDS_BY_DEPTH };

static const struct form {
    const char *name, *text;
    enum expertd_dtype dtype; // of an unquantised source, packed as BF16; NONE: codes
    enum expertd_weight_code code;
    enum order order;
    bool flipped, zero_points, ordered;
} FORMS[] = {
    {.name = "bf16", .text = "[n, k]", .dtype = EXPERTD_DTYPE_BF16},
    {.name = "bf16-kn", .text = "[k, n]", .dtype = EXPERTD_DTYPE_BF16, .order = BY_COLUMN},
    {.name = "f16", .text = "[n, k], rounded to bf16", .dtype = EXPERTD_DTYPE_F16},
    {.name = "f32", .text = "[n, k], rounded to bf16", .dtype = EXPERTD_DTYPE_F32},
    {.name = "e4m3", .text = "rows of codes", .code = EXPERTD_CODE_E4M3},
    {.name = "fp4", .text = "rows of codes", .code = EXPERTD_CODE_E2M1},
    {.name = "int4", .text = "rows of codes", .code = EXPERTD_CODE_INT4},
    {.name = "int4-ordered", .text = "rows of codes, k sorted by g_idx", .code = EXPERTD_CODE_INT4, .ordered = true},
    {.name = "int8-offset", .text = "rows of codes in offset binary", .code = EXPERTD_CODE_INT8, .flipped = true},
    {.name = "awq", .text = "AWQ's words", .code = EXPERTD_CODE_INT4, .order = WORDS_AWQ, .zero_points = true},
    {.name = "gptq", .text = "GPTQ's words", .code = EXPERTD_CODE_INT4, .order = WORDS_BY_DEPTH, .zero_points = true},
    {.name = "gptq-ordered",
     .text = "GPTQ's words, k sorted by g_idx",
     .code = EXPERTD_CODE_INT4,
     .order = WORDS_BY_DEPTH,
     .zero_points = true,
     .ordered = true},
    {.name = "gptq-8",
     .text = "GPTQ's words of 8 bits",
     .code = EXPERTD_CODE_INT8,
     .order = WORDS_BY_DEPTH,
     .flipped = true,
     .zero_points = true},
};
enum { FORM_COUNT = sizeof FORMS / sizeof *FORMS };

struct packing {
    const struct form *form;
    struct expertd_team *team;
    size_t count; // matrices in the pool
    size_t source_bytes, packed_bytes, staging_bytes;
    struct arena memory;
    char *sources, *packed, *staging; // [count], [count], [threads]
    void *scales, *zeros;
    int32_t *scale_of_k;
    struct read_piece piece;
    enum expertd_packed_layout layout; // of unquantised matrices, packed as BF16
    _Atomic bool failed;
};

static unsigned bits_of(const struct form *f) {
    return f->code == EXPERTD_CODE_E2M1 || f->code == EXPERTD_CODE_INT4 ? 4 : 8;
}

static struct expertd_code_words words_of(const struct form *f, const void *data, size_t n, size_t k) {
    static const uint8_t AWQ[8] = {0, 4, 1, 5, 2, 6, 3, 7};
    unsigned bits = bits_of(f), word = 32 / bits;
    struct expertd_code_words c = {.data = data, .bits = bits, .word = word, .flip = f->flipped ? 0x80 : 0};
    if (f->order == WORDS_AWQ) {
        c.n_stride = 1, c.n_word_stride = word, c.k_stride = n, c.k_word_stride = word * n, c.order = AWQ;
    } else if (f->order == WORDS_BY_DEPTH) {
        c.n_stride = word, c.n_word_stride = word * word, c.k_stride = 1, c.k_word_stride = word * n;
    } else {
        c.n_stride = k, c.n_word_stride = word * k, c.k_stride = 1, c.k_word_stride = word;
    }
    return c;
}

// GPTQ and AWQ pack zero points in words along N. AWQ's order within a word does not matter here.
static struct expertd_code_words zeros_of(const struct packing *p) {
    struct expertd_code_words c = words_of(p->form, p->zeros, MATRIX_N, SCALES);
    c.n_stride = 1, c.n_word_stride = c.word, c.k_stride = MATRIX_N, c.k_word_stride = c.word * MATRIX_N;
    return c;
}

static struct expertd_quantised_format format_of(const struct form *f) {
    return (struct expertd_quantised_format){
        .code = f->code, .scale = EXPERTD_DTYPE_F16, .zero_points = f->zero_points, .scale_k = SCALE_K};
}

static struct quantised_matrix matrix_of(const struct packing *p, size_t i) {
    bool n_fastest = p->form->order != ROWS;
    struct quantised_matrix m = {
        .format = format_of(p->form),
        .codes = words_of(p->form, p->sources + i * p->source_bytes, MATRIX_N, MATRIX_K),
        .scales = p->scales,
        .scale_columns = 1,
        .scale_n_stride = n_fastest ? 1 : SCALES,
        .scale_g_stride = n_fastest ? MATRIX_N : 1,
        .scale_of_k = p->form->ordered ? p->scale_of_k : NULL,
        .ordered = p->form->ordered,
    };
    if (p->form->zero_points) {
        m.zeros = zeros_of(p);
    }
    return m;
}

static struct expertd_weight_source plain_of(const struct packing *p, size_t i) {
    bool by_column = p->form->order == BY_COLUMN;
    return (struct expertd_weight_source){.data = p->sources + i * p->source_bytes,
                                          .dtype = p->form->dtype,
                                          .n_stride = by_column ? 1 : MATRIX_K,
                                          .k_stride = by_column ? MATRIX_N : 1};
}

static void fill_zeroed(void *context, size_t i, unsigned thread) {
    (void)thread;
    struct packing *p = context;
    uint8_t *source = (uint8_t *)p->sources + i * p->source_bytes;
    for (size_t at = 0; at < p->source_bytes; at++) {
        source[at] = (uint8_t)((at + i) % CODES_USED);
    }
    memset(p->packed + i * p->packed_bytes, 0, p->packed_bytes);
}

static void fill_scales(struct packing *p) {
    for (size_t i = 0; i < MATRIX_N * SCALES; i++) {
        ((uint16_t *)p->scales)[i] = 0x3c00; // 1
    }
    memset(p->zeros, 0x77, MATRIX_N * SCALES);
    for (size_t k = 0; k < MATRIX_K; k++) {
        p->scale_of_k[k] = (int32_t)(k % SCALES);
    }
}

static size_t matrix_source_bytes(const struct form *f) {
    return (size_t)MATRIX_N * MATRIX_K * (f->dtype ? expertd_dtype_size(f->dtype) * 8 : bits_of(f)) / 8;
}

static size_t matrix_packed_bytes(const struct form *f) {
    struct expertd_quantised_format format = format_of(f);
    return f->dtype ? expertd_packed_group_bytes(EXPERTD_DTYPE_BF16, MATRIX_K, MATRIX_N)
                    : expertd_quantised_group_bytes(&format, MATRIX_K, MATRIX_N);
}

static size_t matrix_staging_bytes(const struct packing *p) {
    if (p->form->dtype) {
        struct expertd_weight_source source = plain_of(p, 0);
        return digest_scratch_bytes(&source, MATRIX_N, MATRIX_K);
    }
    struct quantised_matrix m = matrix_of(p, 0);
    return quantised_rows_bytes(&m, MATRIX_N, MATRIX_K);
}

static FALLIBLE take(struct packing *p, size_t bytes, void *out) {
    void *memory;
    TRY(arena_take(&p->memory, bytes, &memory));
    memcpy(out, &memory, sizeof memory);
    return OK;
}

static FALLIBLE packing_init(struct packing *p) {
    unsigned threads = expertd_team_threads(p->team);
    p->source_bytes = matrix_source_bytes(p->form);
    p->packed_bytes = matrix_packed_bytes(p->form);
    p->count = (POOL_BYTES / p->source_bytes + threads) / threads * threads;
    size_t scales = arena_rounded((size_t)MATRIX_N * SCALES * sizeof(uint16_t)), order = MATRIX_K * sizeof *p->scale_of_k;
    p->zeros = p; // not NULL, for matrix_staging_bytes; set below
    p->staging_bytes = arena_rounded(matrix_staging_bytes(p));
    TRY(arena_init(&p->memory, p->count * (p->source_bytes + p->packed_bytes) + threads * p->staging_bytes + 2 * scales +
                                   arena_rounded(order)));
    TRY(take(p, p->count * p->source_bytes, &p->sources));
    TRY(take(p, p->count * p->packed_bytes, &p->packed));
    TRY(take(p, threads * p->staging_bytes, &p->staging));
    TRY(take(p, scales, &p->scales));
    TRY(take(p, scales, &p->zeros));
    TRY(take(p, order, &p->scale_of_k));
    p->piece = (struct read_piece){p->sources, p->count * p->source_bytes};
    expertd_team_run(p->team, p->count, fill_zeroed, p);
    fill_scales(p);
    return OK;
}

static FALLIBLE load_codes(const struct packing *p, size_t i, void *staging, struct digest *digest) {
    struct quantised_matrix m = matrix_of(p, i);
    struct quantised_rows rows;
    TRY(quantised_rows_take(&m, MATRIX_N, MATRIX_K, staging, &rows));
    quantised_rows_digest(&rows, MATRIX_N, MATRIX_K, digest);
    return expertd_pack_quantised(&rows.source, &rows.format, MATRIX_K, MATRIX_N, p->packed + i * p->packed_bytes);
}

static void load_matrix(void *context, size_t i, unsigned thread) {
    struct packing *p = context;
    void *staging = p->staging + thread * p->staging_bytes;
    struct digest digest;
    digest_init(&digest);
    if (!p->form->dtype) {
        if (err_is(load_codes(p, i, staging, &digest))) {
            p->failed = true;
        }
        return;
    }
    struct expertd_weight_source source = plain_of(p, i);
    digest_matrix(&digest, &source, MATRIX_N, MATRIX_K, staging);
    expertd_pack_weights(&source, MATRIX_K, MATRIX_N, EXPERTD_DTYPE_BF16, p->layout, p->packed + i * p->packed_bytes);
}

static err_t packing_run_ns(void *context, int64_t *span_ns) {
    struct packing *p = context;
    int64_t start_ns = clock_now_ns();
    expertd_team_run(p->team, p->count, load_matrix, p);
    *span_ns = clock_now_ns() - start_ns;
    if (p->failed) {
        FAIL(EXPERTD_ERR_INVALID, "%s: the generated matrix cannot be packed", p->form->name);
    }
    return OK;
}

static int64_t packing_read_ns(void *context, enum plain_read_way way) {
    struct packing *p = context;
    return plain_read_ns(&p->piece, 1, way, p->team);
}

static double packing_bytes(void *context) {
    const struct packing *p = context;
    return (double)p->count * (double)p->source_bytes;
}

static FALLIBLE bench_form(const struct form *form, enum expertd_packed_layout layout, struct expertd_team *team, double seconds,
                           struct report *report) {
    struct packing p = {.form = form, .layout = layout, .team = team};
    struct report_row row = {.dtype = form->name, .threads = expertd_team_threads(team), .shape = "pack"};
    struct measured work = {
        .context = &p, .run_ns = packing_run_ns, .read_ns = packing_read_ns, .bytes = packing_bytes, .peak = PEAK_FMA_F32};
    fprintf(stderr, "pack %s, %u threads ...\n", form->name, row.threads);
    err_t e = packing_init(&p);
    if (!err_is(e)) {
        e = measure(&work, team, seconds, &row.measured);
    }
    arena_deinit(&p.memory);
    return err_is(e) ? e : report_add(report, &row);
}

// ---- all rows

struct chosen {
    const struct form *forms[FORMS_MAX];
    size_t count;
};

static err_t take_form(void *context, const char *name, size_t length) {
    struct chosen *chosen = context;
    const char *names[FORM_COUNT];
    size_t found = 0;
    for (size_t i = 0; i < FORM_COUNT; i++) {
        names[i] = FORMS[i].name;
    }
    if (chosen->count == FORMS_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "--dtype names more than %d forms", FORMS_MAX);
    }
    TRY(flags_find("form", name, length, names, FORM_COUNT, "pack --list names them", &found));
    chosen->forms[chosen->count++] = &FORMS[found];
    return OK;
}

FALLIBLE pack_bench(const struct bench_options *options, const struct machine *machine, struct report *report) {
    struct chosen chosen = {.count = 0};
    if (options->dtypes) {
        TRY(flags_names("--dtype", options->dtypes, take_form, &chosen));
    }
    for (size_t i = 0; !options->dtypes && i < FORM_COUNT; i++) {
        chosen.forms[chosen.count++] = &FORMS[i];
    }
    uint32_t all = machine->cpus;
    const uint32_t *threads = options->num_threads ? options->threads : &all;
    enum expertd_packed_layout layout;
    TRY(bench_layout_of(options->layout, EXPERTD_DTYPE_BF16, &layout));
    err_t e = OK;
    for (size_t t = 0; t < (options->num_threads ? options->num_threads : 1) && !err_is(e); t++) {
        struct expertd_team *team;
        TRY(expertd_team_create(&(struct expertd_team_options){.threads = threads[t], .spin_us = SPIN_US}, &team));
        for (size_t i = 0; i < chosen.count && !err_is(e); i++) {
            e = bench_form(chosen.forms[i], layout, team, options->seconds, report);
        }
        expertd_team_destroy(team);
    }
    return e;
}

void pack_bench_list(FILE *out) {
    for (size_t i = 0; i < FORM_COUNT; i++) {
        fprintf(out, "%-14s%s\n", FORMS[i].name, FORMS[i].text);
    }
}
