// What is fetched before it is read: where an operand's range lies, and that a walk over its stretches asks for each of their
// lines.
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/plain/product_lines.h"

enum { ROW = 4096, COLUMN = 96, COUNT = 200, K = 40, DEPTH = 24, ALIGN = 64 };

static char base[ALIGN] __attribute__((aligned(ALIGN)));

static struct memory_ahead memory_of(enum expertd_dtype from, size_t line_stride, size_t k_stride, const uint32_t *rows,
                                     size_t depth) {
    struct product_operand operand = {.data = base, .line_stride = line_stride, .k_stride = k_stride};
    struct line_reader reader = {.from = from, .to = EXPERTD_DTYPE_BF16};
    return lines_memory(&reader, &(struct line_range){&operand, rows, COLUMN, COUNT, K, depth});
}

static void check_memory(struct memory_ahead memory, size_t offset, size_t runs, size_t bytes, size_t stride) {
    assert_int_equal((uintptr_t)memory.from - (uintptr_t)base, offset);
    assert_int_equal(memory.runs, runs);
    assert_int_equal(memory.bytes, bytes);
    assert_int_equal(memory.stride, stride);
}

static void weights_that_lie_across_k_are_a_stretch_for_each_k(void **state) {
    (void)state;
    check_memory(memory_of(EXPERTD_DTYPE_BF16, 1, ROW, NULL, DEPTH), 2 * (K * ROW + COLUMN), DEPTH, 2 * COUNT, 2 * ROW);
    check_memory(memory_of(EXPERTD_DTYPE_F8_E4M3, 1, ROW, NULL, DEPTH), K * ROW + COLUMN, DEPTH, COUNT, ROW);
}

static void weights_that_lie_along_k_are_a_stretch_for_each_column(void **state) {
    (void)state;
    check_memory(memory_of(EXPERTD_DTYPE_F32, ROW, 1, NULL, DEPTH), 4 * (COLUMN * ROW + K), COUNT, 4 * DEPTH, 4 * ROW);
    check_memory(memory_of(EXPERTD_DTYPE_U8, ROW, 1, NULL, DEPTH), (COLUMN * ROW + K) / 2, COUNT, DEPTH / 2, ROW / 2);
}

static void what_is_strewn_gathered_or_empty_is_not_fetched(void **state) {
    (void)state;
    static const uint32_t ROWS[1];
    assert_int_equal(memory_of(EXPERTD_DTYPE_BF16, 3, ROW, NULL, DEPTH).runs, 0);
    assert_int_equal(memory_of(EXPERTD_DTYPE_BF16, ROW, 1, ROWS, DEPTH).runs, 0);
    assert_int_equal(memory_of(EXPERTD_DTYPE_BF16, ROW, 1, NULL, 0).runs, 0);
    assert_int_equal(memory_of(EXPERTD_DTYPE_BF16, 1, ROW, NULL, 0).runs, 0);
}

// The walk ends behind the last line of the last stretch, and as far as its steps' bytes, which are rounded up, lead.
static void check_walk(const struct memory_ahead *memory, size_t fetches) {
    struct macrokernel_prefetch ahead = macrokernel_prefetch_of(memory, fetches, true);
    const uintptr_t from = (uintptr_t)memory->from;
    const size_t lines = ahead.length / ALIGN;
    assert_true(ahead.length >= memory->bytes);
    assert_true(ahead.length < memory->bytes + 2 * ALIGN);
    for (size_t i = 0; i < fetches; i++) {
        macro_prefetch(&ahead);
    }
    size_t begun = 0; // stretches
    while (ahead.end > from + begun * memory->stride + ahead.length) {
        begun++;
    }
    size_t walked = begun * lines + (ahead.at - (from + begun * memory->stride)) / ALIGN;
    assert_true(walked >= memory->runs * lines);
    assert_int_equal(walked, (fetches * ahead.step + ALIGN - 1) / ALIGN);
    assert_int_equal((ahead.at - from - begun * memory->stride) % ALIGN, 0);
}

static void a_walk_asks_for_each_line_of_each_stretch(void **state) {
    (void)state;
    static const size_t BYTES[] = {1, 63, 64, 512, 640, 16384}, RUNS[] = {1, 2, 7, 96}, FETCHES[] = {1, 5, 1000, 100000};
    static const size_t GAPS[] = {128, 192, 129, 1 << 20};
    for (size_t i = 0; i < sizeof BYTES / sizeof *BYTES * 4 * 4 * 4; i++) {
        struct memory_ahead memory = {base + (i % 2 ? 4 : 0), RUNS[i / 4 % 4], BYTES[i / 64], BYTES[i / 64] + GAPS[i % 4]};
        check_walk(&memory, FETCHES[i / 16 % 4]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(weights_that_lie_across_k_are_a_stretch_for_each_k),
        cmocka_unit_test(weights_that_lie_along_k_are_a_stretch_for_each_column),
        cmocka_unit_test(what_is_strewn_gathered_or_empty_is_not_fetched),
        cmocka_unit_test(a_walk_asks_for_each_line_of_each_stretch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
