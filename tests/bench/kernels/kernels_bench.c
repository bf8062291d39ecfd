#include "tests/bench/kernels/kernels_bench.h"

#include <stdlib.h>

#include "tests/bench/kernels/memory_check.h"
#include "tests/bench/kernels/plain_product.h"
#include "tests/bench/kernels/product.h"
#include "tests/bench/kernels/selection.h"

enum { SPIN_US = 50 };

static struct measured work_of(const struct selection *s, const struct bench_shape *shape, enum expertd_dtype dtype,
                               struct expertd_team *team) {
    return (struct measured){
        .neighbour = s->neighbour,
        .flops = 2.0 * (double)shape->rows * (double)shape->k * (double)shape->n,
        .peak = measure_peak_of(dtype, team),
    };
}

static FALLIBLE bench_packed(const struct selection *s, const struct bench_shape *shape, const struct bench_dtype *dtype,
                             struct expertd_team *team, double seconds, struct measurement *out) {
    struct product *p = calloc(1, sizeof *p);
    if (!p) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for shape %s", shape->name);
    }
    struct measured work = work_of(s, shape, dtype->dtype, team);
    work.context = p, work.run_ns = product_run_ns, work.read_ns = product_read_ns, work.bytes = product_weights_bytes;
    err_t e = product_init(p, shape, dtype, s, team);
    if (!err_is(e)) {
        e = measure(&work, team, seconds, out);
    }
    product_deinit(p);
    free(p);
    return e;
}

static FALLIBLE bench_plain(const struct selection *s, const struct bench_shape *shape, const struct bench_dtype *dtype,
                            struct expertd_team *team, double seconds, struct measurement *out) {
    struct plain_product *p = calloc(1, sizeof *p);
    if (!p) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for shape %s", shape->name);
    }
    enum expertd_dtype sums = dtype->plain == EXPERTD_DTYPE_F16 ? EXPERTD_DTYPE_F32
                              : dtype->scaling                  ? EXPERTD_DTYPE_BF16
                                                                : dtype->plain;
    struct measured work = work_of(s, shape, sums, team);
    work.context = p, work.run_ns = plain_product_run_ns, work.read_ns = plain_product_read_ns;
    work.bytes = plain_product_bytes_of_run;
    err_t e = plain_product_init(p, shape, dtype, s, team);
    if (!err_is(e)) {
        e = measure(&work, team, seconds, out);
    }
    plain_product_deinit(p);
    free(p);
    return e;
}

// ---- all of them

static FALLIBLE bench_row(const struct selection *s, const struct bench_shape *shape, const struct bench_dtype *dtype,
                          struct expertd_team *team, double seconds, struct report *report) {
    struct report_row row = {.dtype = dtype->name, .threads = expertd_team_threads(team)};
    static const char *const OPS[] = {"", " gmm-plain", " tgmm", " grouped-gemm"};
    snprintf(row.shape, sizeof row.shape, "%s%s%s%s%s", shape->name, OPS[s->op], s->transposed ? " nk" : "", s->out ? " " : "",
             s->out ? expertd_dtype_name(s->out) : "");
    fprintf(stderr, "%s %s, %u threads ...\n", row.shape, row.dtype, row.threads);
    err_t e = (s->op == OP_GMM ? bench_packed : bench_plain)(s, shape, dtype, team, seconds, &row.measured);
    row.neighbour_leaves = neighbour_leaves(row.threads, report->machine->cpus);
    return err_is(e) ? err_context(e, "shape %s, %s", shape->name, dtype->name) : report_add(report, &row);
}

static FALLIBLE bench_on(const struct selection *s, uint32_t threads, double seconds, struct report *report) {
    struct expertd_team *team;
    struct expertd_team_options options = {.threads = threads, .spin_us = SPIN_US};
    TRY(expertd_team_create(&options, &team));
    err_t e = OK;
    for (size_t i = 0; i < s->num_shapes && !err_is(e); i++) {
        for (size_t d = 0; d < s->num_dtypes && !err_is(e); d++) {
            e = bench_row(s, s->shapes[i], s->dtypes[d], team, seconds, report);
        }
    }
    expertd_team_destroy(team);
    return e;
}

FALLIBLE kernels_bench(const struct bench_options *options, const struct machine *machine, struct report *report) {
    struct selection s;
    TRY(selection_make(options, machine, &s));
    TRY(check_memory(&s));
    if (options->busy_neighbour) {
        TRY(neighbour_create(&s.neighbour));
    }
    err_t e = OK;
    for (size_t t = 0; t < s.num_threads && !err_is(e); t++) {
        e = bench_on(&s, s.threads[t], options->seconds, report);
    }
    neighbour_destroy(s.neighbour);
    return e;
}
