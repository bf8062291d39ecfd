#include "tests/bench/kernels/kernels_bench.h"

#include <stdlib.h>
#include <string.h>

#include "client/expertctl/suggest.h"
#include "expert/memory.h"
#include "tests/bench/kernels/product.h"

enum { SHAPES_MAX = 32, DTYPES_MAX = 8, SPIN_US = 50, CACHE_MULTIPLE = 4 };

static const uint64_t WEIGHTS_BYTES_MIN = 1200000000;

static const struct bench_dtype {
    const char *name;
    enum dtype dtype;
} DTYPES[] = {{"bf16", DTYPE_BF16}, {"f32", DTYPE_F32}};
enum { DTYPE_ROWS = sizeof DTYPES / sizeof *DTYPES };

// What the command line asks for.
struct selection {
    const struct bench_shape *shapes[SHAPES_MAX];
    size_t num_shapes;
    const struct bench_dtype *dtypes[DTYPES_MAX];
    size_t num_dtypes;
    uint32_t threads[BENCH_LIST_MAX];
    size_t num_threads;
    uint64_t weights_bytes;
};

static err_t take_shape(void *context, const char *name, size_t length) {
    struct selection *s = context;
    if (s->num_shapes == SHAPES_MAX) {
        FAIL(ERR_USAGE, "--shape names more than %d shapes", SHAPES_MAX);
    }
    TRY(shape_find(name, length, &s->shapes[s->num_shapes]));
    s->num_shapes++;
    return OK;
}

static err_t take_dtype(void *context, const char *name, size_t length) {
    struct selection *s = context;
    const char *names[DTYPE_ROWS];
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)length, name);
    if (s->num_dtypes == DTYPES_MAX) {
        FAIL(ERR_USAGE, "--dtype names more than %d dtypes", DTYPES_MAX);
    }
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        names[i] = DTYPES[i].name;
        if (strcmp(names[i], word) == 0) {
            s->dtypes[s->num_dtypes++] = &DTYPES[i];
            return OK;
        }
    }
    const char *near = suggest_word(word, names, DTYPE_ROWS);
    FAIL(ERR_USAGE, "unknown dtype %s%s%s; --list names them", word, near ? ": did you mean " : "", near ? near : "");
}

static FALLIBLE select_rows(const struct bench_options *o, const struct machine *machine, struct selection *s) {
    *s = (struct selection){.num_threads = o->num_threads, .weights_bytes = o->weights_bytes};
    memcpy(s->threads, o->threads, sizeof s->threads);
    if (s->num_threads == 0) {
        s->threads[s->num_threads++] = machine->cpus;
    }
    if (s->weights_bytes == 0) {
        uint64_t caches = CACHE_MULTIPLE * machine->cache_bytes;
        s->weights_bytes = caches > WEIGHTS_BYTES_MIN ? caches : WEIGHTS_BYTES_MIN;
    }
    if (o->shapes) {
        TRY(bench_names("--shape", o->shapes, take_shape, s));
    }
    for (size_t i = 0; !o->shapes && shape_at(i); i++) {
        if (!shape_at(i)->by_request) {
            s->shapes[s->num_shapes++] = shape_at(i);
        }
    }
    if (o->dtypes) {
        return bench_names("--dtype", o->dtypes, take_dtype, s);
    }
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        s->dtypes[s->num_dtypes++] = &DTYPES[i];
    }
    return OK;
}

static FALLIBLE measure_product(struct product *p, double seconds, struct measurement *out) {
    struct measured what = {
        .context = p,
        .run_ns = product_run_ns,
        .read_ns = product_read_ns,
        .flops = 2.0 * (double)p->shape->rows * (double)p->shape->k * (double)p->shape->n,
        .bytes = product_weights_bytes,
        .peak = measure_peak_of(p->dtype, p->team),
    };
    return measure(&what, p->team, seconds, out);
}

// ---- all of them

static FALLIBLE bench_row(const struct selection *s, const struct bench_shape *shape, const struct bench_dtype *dtype,
                          struct team *team, double seconds, struct report *report) {
    struct product *p = calloc(1, sizeof *p);
    if (!p) {
        FAIL(ERR_NOMEM, "no memory for shape %s", shape->name);
    }
    struct report_row row = {.dtype = dtype->name, .threads = team_threads(team)};
    snprintf(row.shape, sizeof row.shape, "%s", shape->name);
    fprintf(stderr, "%s %s, %u threads ...\n", row.shape, row.dtype, row.threads);
    err_t e = product_init(p, shape, dtype->dtype, s->weights_bytes, team);
    if (!err_is(e)) {
        e = measure_product(p, seconds, &row.measured);
    }
    product_deinit(p);
    free(p);
    return err_is(e) ? err_context(e, "shape %s, %s", shape->name, dtype->name) : report_add(report, &row);
}

// Before the first row is measured: a machine that starts to swap, or kills, measures nothing.
static FALLIBLE check_memory(const struct selection *s) {
    struct memory_limit limit;
    memory_available(&limit);
    for (size_t i = 0; i < s->num_shapes; i++) {
        for (size_t d = 0; d < s->num_dtypes; d++) {
            uint64_t needed = product_bytes(s->shapes[i], s->dtypes[d]->dtype, s->weights_bytes);
            char wants[MEMORY_TEXT_MAX], has[MEMORY_TEXT_MAX];
            if (needed > limit.bytes) {
                FAIL(ERR_NOMEM,
                     "shape %s in %s needs %s, but there are %s (%s); leave it out with --shape, or let fewer weights "
                     "rotate with --weights-mib",
                     s->shapes[i]->name, s->dtypes[d]->name, memory_text(needed, wants), memory_text(limit.bytes, has), limit.what);
            }
        }
    }
    return OK;
}

static FALLIBLE bench_on(const struct selection *s, uint32_t threads, double seconds, struct report *report) {
    struct team *team;
    struct team_options options = {.threads = threads, .spin_us = SPIN_US};
    TRY(team_create(&options, &team));
    err_t e = OK;
    for (size_t i = 0; i < s->num_shapes && !err_is(e); i++) {
        for (size_t d = 0; d < s->num_dtypes && !err_is(e); d++) {
            e = bench_row(s, s->shapes[i], s->dtypes[d], team, seconds, report);
        }
    }
    team_destroy(team);
    return e;
}

FALLIBLE kernels_bench(const struct bench_options *options, const struct machine *machine, struct report *report) {
    struct selection s;
    TRY(select_rows(options, machine, &s));
    TRY(check_memory(&s));
    for (size_t t = 0; t < s.num_threads; t++) {
        TRY(bench_on(&s, s.threads[t], options->seconds, report));
    }
    return OK;
}

void kernels_bench_list(FILE *out) {
    fprintf(out, "%-12s%8s%8s%8s%8s\n", "shape", "groups", "k", "n", "rows");
    for (size_t i = 0; shape_at(i); i++) {
        const struct bench_shape *s = shape_at(i);
        fprintf(out, "%-12s%8zu%8zu%8zu%8zu   %s%s\n", s->name, s->groups, s->k, s->n, s->rows, s->text,
                s->by_request ? " (only where it is named)" : "");
    }
    fprintf(out, "dtypes:");
    for (size_t i = 0; i < DTYPE_ROWS; i++) {
        fprintf(out, " %s", DTYPES[i].name);
    }
    fprintf(out, "\n");
}
