// The cut of walks, over random groups, shapes, threads and schedules: each row of a local group is multiplied by each panel once,
// each other row is set to 0 once, spans fit into their memory, and full spans leave smaller tasks for the end.
#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/quantised_format.h"
#include "kernels/cpu/backend/backend.h"
#include "kernels/operations/walk_tasks.h"

enum { CASES = 4000, GROUPS_MAX = 40, PANELS_MAX = 30, ROWS_MAX = 4000 };

struct cut {
    int32_t sizes[GROUPS_MAX];
    struct expertd_grouped_matmul_args args;
    struct panel_kernels kernels;
    struct expertd_matmul_schedule schedule;
    struct walk_shape shape;
    struct walk_span *spans;
    struct walk_tasks tasks;
};

static void cut_init(struct random *random, struct cut *c) {
    *c = (struct cut){.kernels = {.of = backend_kernels(kernel_selected(), EXPERTD_DTYPE_BF16)},
                      .schedule = expertd_schedule_heuristic()};
    size_t groups = random_below(random, GROUPS_MAX + 1), m = 0;
    uint32_t most = 1 + random_below(random, ROWS_MAX / GROUPS_MAX << random_below(random, 3));
    for (size_t g = 0; g < groups; g++) {
        c->sizes[g] = random_below(random, 3) ? (int32_t)random_below(random, most) : 0;
        m += (size_t)c->sizes[g];
    }
    size_t offset = random_below(random, (uint32_t)groups + 1), local = random_below(random, (uint32_t)(groups - offset) + 1);
    c->args = (struct expertd_grouped_matmul_args){.group_sizes = c->sizes,
                                                   .num_groups = groups,
                                                   .group_offset = offset,
                                                   .num_actual_groups = local,
                                                   .m = m + random_below(random, 100)};
    if (c->kernels.of->slices[EXPERTD_PACKED_SLICES].macrokernel && random_below(random, 2)) {
        c->kernels.layout = EXPERTD_PACKED_SLICES;
    }
    c->schedule.call_rows =
        EXPERTD_SCHEDULE_CALL_ROWS_MIN + random_below(random, KERNEL_CALL_ROWS - EXPERTD_SCHEDULE_CALL_ROWS_MIN + 1);
    c->schedule.run_bytes = 1 + random_below(random, 1 << 20);
    c->schedule.tasks_per_thread = 1 + random_below(random, 20);
    size_t k = random_below(random, 3) ? random_below(random, 20000) : 0;
    c->shape = (struct walk_shape){.args = &c->args,
                                   .kernels = &c->kernels,
                                   .panels = random_below(random, PANELS_MAX + 1),
                                   .panels_per_call = 1 + random_below(random, 4),
                                   .panel_bytes = k * 128,
                                   .row_bytes = k * 2,
                                   .threads = 1 + random_below(random, 8),
                                   .schedule = &c->schedule};
    c->spans = test_alloc(walk_spans_bytes(c->args.m, groups));
    walk_tasks_make(&c->shape, c->spans, &c->tasks);
}

static void every_row_and_panel_is_computed_once(void **state) {
    (void)state;
    struct random random = {77};
    for (int i = 0; i < CASES; i++) {
        struct cut c;
        cut_init(&random, &c);
        const size_t panels = c.shape.panels, m = c.args.m;
        uint8_t *taken = test_alloc(m * panels + 1), *zeroed = test_alloc(m + 1);
        memset(taken, 0, m * panels + 1), memset(zeroed, 0, m + 1);
        assert_true(c.tasks.num_spans * sizeof *c.spans <= walk_spans_bytes(m, c.args.num_groups));
        for (size_t t = 0; t < c.tasks.count; t++) {
            struct walk_product product;
            if (walk_product(&c.tasks, t, &product)) {
                assert_true(product.panel < product.end && product.end <= panels && product.span->rows <= c.schedule.call_rows);
                for (size_t r = 0; r < product.span->rows; r++) {
                    for (size_t p = product.panel; p < product.end; p++) {
                        taken[(product.span->first_row + r) * panels + p]++;
                    }
                }
            } else {
                size_t begin, end;
                walk_zeros(&c.tasks, t, &begin, &end);
                assert_true(begin < end && end <= m);
                for (size_t r = begin; r < end; r++) {
                    zeroed[r]++;
                }
            }
        }
        struct walk_product none;
        assert_false(walk_product(&c.tasks, c.tasks.count, &none));
        size_t row = 0;
        for (size_t g = 0; g <= c.args.num_groups; g++) {
            size_t end = g < c.args.num_groups ? row + (size_t)c.sizes[g] : m;
            bool local = g < c.args.num_groups && g >= c.args.group_offset && g - c.args.group_offset < c.args.num_actual_groups;
            for (; row < end; row++) {
                assert_int_equal(zeroed[row], local ? 0 : 1);
                for (size_t p = 0; p < panels; p++) {
                    assert_int_equal(taken[row * panels + p], local ? 1 : 0);
                }
            }
        }
        free(taken), free(zeroed), free(c.spans);
    }
}

static void spans_of_a_task_are_of_its_group(void **state) {
    (void)state;
    struct random random = {78};
    for (int i = 0; i < CASES; i++) {
        struct cut c;
        cut_init(&random, &c);
        size_t row = 0, starts[GROUPS_MAX];
        for (size_t g = 0; g < c.args.num_groups; g++) {
            starts[g] = row;
            row += (size_t)c.sizes[g];
        }
        for (size_t s = 0; s < c.tasks.num_spans; s++) {
            size_t group = c.args.group_offset + c.spans[s].group;
            assert_true(c.spans[s].rows > 0 && c.spans[s].first_row >= starts[group]);
            assert_true(c.spans[s].first_row + c.spans[s].rows <= starts[group] + (size_t)c.sizes[group]);
        }
        free(c.spans);
    }
}

static void spans_of_cached_rows_are_full_except_the_last(void **state) {
    (void)state;
    enum { GROUPS = 32, PANELS = 12, THREADS = 2 };
    const struct element_kernels with_slices = {.slices[EXPERTD_PACKED_SLICES].macrokernel =
                                                    (macrokernel *)(uintptr_t)1}; // never called
    struct panel_kernels kernels = {.of = &with_slices, .layout = EXPERTD_PACKED_SLICES};
    struct expertd_matmul_schedule schedule = expertd_schedule_heuristic();
    int32_t sizes[GROUPS];
    struct walk_span spans[3 * GROUPS];
    struct walk_tasks tasks;
    for (size_t g = 0; g < GROUPS; g++) {
        sizes[g] = 16;
    }
    struct expertd_grouped_matmul_args args = {
        .group_sizes = sizes, .num_groups = GROUPS, .num_actual_groups = GROUPS, .m = 16 * GROUPS};
    struct walk_shape shape = {.args = &args,
                               .kernels = &kernels,
                               .panels = PANELS,
                               .panels_per_call = 4,
                               .panel_bytes = 256 << 10,
                               .row_bytes = 4096,
                               .threads = THREADS,
                               .schedule = &schedule};
    walk_tasks_make(&shape, spans, &tasks);
    struct walk_product product;
    assert_true(walk_product(&tasks, 0, &product));
    assert_int_equal(product.end - product.panel, PANELS);
    assert_true(walk_product(&tasks, tasks.products - 1, &product));
    assert_true(product.end - product.panel < PANELS);
    assert_true(tasks.num_spans - tasks.full_spans >= THREADS); // so that threads end at about the same time
    const size_t full_spans = tasks.full_spans;
    struct element_kernels of_panels = {.macrokernel = (macrokernel *)(uintptr_t)1, .caches = {1 << 20, 2}};
    kernels = (struct panel_kernels){.of = &of_panels, .layout = EXPERTD_PACKED_PANELS};
    walk_tasks_make(&shape, spans, &tasks);
    assert_int_equal(tasks.full_spans, full_spans);
    of_panels = (struct element_kernels){.macrokernel = of_panels.macrokernel};
    walk_tasks_make(&shape, spans, &tasks);
    assert_int_equal(tasks.full_spans, 0);
}

// One expert has most of the rows: one task for all its panels would end last.
static void a_span_that_is_longer_than_the_rest_is_cut(void **state) {
    (void)state;
    enum { GROUPS = 8, PANELS = 224, THREADS = 2, ROWS = 60 };
    const struct element_kernels of = {.macrokernel = (macrokernel *)(uintptr_t)1, .caches = {1 << 20, 2}}; // never called
    const struct panel_kernels kernels = {.of = &of};
    const struct expertd_matmul_schedule schedule = expertd_schedule_heuristic();
    int32_t sizes[GROUPS] = {ROWS, 1, 1, 1, 1, 1, 1, 1};
    struct walk_span spans[3 * GROUPS];
    struct walk_tasks tasks;
    struct expertd_grouped_matmul_args args = {
        .group_sizes = sizes, .num_groups = GROUPS, .num_actual_groups = GROUPS, .m = ROWS + GROUPS - 1};
    const struct walk_shape shape = {.args = &args,
                                     .kernels = &kernels,
                                     .panels = PANELS,
                                     .panels_per_call = 4,
                                     .panel_bytes = 512 << 10,
                                     .row_bytes = 8192,
                                     .threads = THREADS,
                                     .schedule = &schedule};
    walk_tasks_make(&shape, spans, &tasks);
    assert_int_equal(tasks.num_spans, GROUPS);
    assert_int_equal(tasks.full_spans, 0);
    sizes[GROUPS - 1] = sizes[GROUPS - 2] = ROWS; // equally long spans follow it
    args.m = 3 * ROWS + GROUPS - 3;
    walk_tasks_make(&shape, spans, &tasks);
    assert_true(tasks.full_spans > 0 && tasks.full_spans <= GROUPS - 2 * THREADS);
}

static void spans_are_half_as_long_where_rows_are_cached_widened(void **state) {
    (void)state;
    enum { ROW_BYTES = 8192, CACHED = KERNEL_ROWS_CACHED / ROW_BYTES, PANELS = 64 };
    struct element_kernels slices = {.slices[EXPERTD_PACKED_SLICES].macrokernel = (macrokernel *)(uintptr_t)1}; // never called
    const struct panel_kernels kernels = {.of = &slices, .layout = EXPERTD_PACKED_SLICES};
    const struct expertd_matmul_schedule schedule = expertd_schedule_heuristic();
    const int32_t rows = 2 * CACHED;
    struct walk_span spans[2 * CACHED];
    struct walk_tasks tasks;
    const struct expertd_grouped_matmul_args args = {
        .group_sizes = &rows, .num_groups = 1, .num_actual_groups = 1, .m = (size_t)rows};
    const struct walk_shape shape = {.args = &args,
                                     .kernels = &kernels,
                                     .panels = PANELS,
                                     .panels_per_call = 4,
                                     .panel_bytes = 256 << 10,
                                     .row_bytes = ROW_BYTES,
                                     .threads = 1,
                                     .schedule = &schedule};
    walk_tasks_make(&shape, spans, &tasks);
    assert_int_equal(tasks.num_spans, 2);
    slices.slices[EXPERTD_PACKED_SLICES].widened = 2;
    walk_tasks_make(&shape, spans, &tasks);
    assert_int_equal(tasks.num_spans, 4);
}

// A kernel that caches 50 rows of one format and none of another.
static size_t keeps_of_e2m1(const struct expertd_quantised_format *format, size_t k) {
    assert_int_equal(k, 2048);
    return format->code == EXPERTD_CODE_E2M1 ? 50 : 0;
}

static void spans_of_codes_have_the_rows_that_the_format_caches(void **state) {
    (void)state;
    enum { ROWS = 200, ROW_BYTES = 2048 * 2 };
    static const struct expertd_quantised_format
        CACHED = {EXPERTD_CODE_E2M1, EXPERTD_DTYPE_F8_E8M0, EXPERTD_GLOBAL_NONE, false, false, false, 32},
        OTHER = {EXPERTD_CODE_E4M3, EXPERTD_DTYPE_F32, EXPERTD_GLOBAL_NONE, false, false, true, 128};
    const struct element_kernels codes = {.quantised_large_m = (quantised_macrokernel *)(uintptr_t)1, // never called
                                          .quantised_cached = KERNEL_CALL_ROWS,
                                          .quantised_span = keeps_of_e2m1};
    struct panel_kernels kernels = {.of = &codes, .format = &CACHED};
    const struct expertd_matmul_schedule schedule = expertd_schedule_heuristic();
    const int32_t rows = ROWS;
    struct walk_span spans[ROWS];
    struct walk_tasks tasks;
    const struct expertd_grouped_matmul_args args = {.group_sizes = &rows, .num_groups = 1, .num_actual_groups = 1, .m = ROWS};
    const struct walk_shape shape = {.args = &args,
                                     .kernels = &kernels,
                                     .panels = 64,
                                     .panels_per_call = 4,
                                     .panel_bytes = 70 << 10,
                                     .row_bytes = ROW_BYTES,
                                     .threads = 1,
                                     .schedule = &schedule};
    walk_tasks_make(&shape, spans, &tasks);
    assert_int_equal(tasks.num_spans, 4);
    assert_true(tasks.full_spans > 0);
    kernels.format = &OTHER;
    walk_tasks_make(&shape, spans, &tasks);
    assert_int_equal(tasks.num_spans, 1);
    assert_int_equal(tasks.full_spans, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_and_panel_is_computed_once),
        cmocka_unit_test(spans_of_a_task_are_of_its_group),
        cmocka_unit_test(spans_of_cached_rows_are_full_except_the_last),
        cmocka_unit_test(a_span_that_is_longer_than_the_rest_is_cut),
        cmocka_unit_test(spans_are_half_as_long_where_rows_are_cached_widened),
        cmocka_unit_test(spans_of_codes_have_the_rows_that_the_format_caches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
