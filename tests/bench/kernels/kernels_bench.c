#include "tests/bench/kernels/kernels_bench.h"

#include <stdlib.h>

#include "tests/bench/kernels/product.h"
#include "tests/bench/kernels/selection.h"

enum { SPIN_US = 50 };

static FALLIBLE measure_product(struct product *p, double seconds, struct measurement *out) {
    struct measured what = {
        .context = p,
        .run_ns = product_run_ns,
        .read_ns = product_read_ns,
        .flops = 2.0 * (double)p->shape->rows * (double)p->shape->k * (double)p->shape->n,
        .bytes = product_weights_bytes,
        .peak = measure_peak_of(p->dtype->dtype, p->team),
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
    err_t e = product_init(p, shape, dtype, s->weights_bytes, team);
    if (!err_is(e)) {
        e = measure_product(p, seconds, &row.measured);
    }
    product_deinit(p);
    free(p);
    return err_is(e) ? err_context(e, "shape %s, %s", shape->name, dtype->name) : report_add(report, &row);
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
    TRY(selection_make(options, machine, &s));
    for (size_t t = 0; t < s.num_threads; t++) {
        TRY(bench_on(&s, s.threads[t], options->seconds, report));
    }
    return OK;
}
