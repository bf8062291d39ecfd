// Prefetching of plain operands: lines_memory gives the ranges of memory of an operand's block, and macrokernel_prefetch prefetches
// each of their lines.
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/cpu/common/macrokernel_prefetch.h"
#include "kernels/plain/line_reader.h"

enum { ROW = 4096, COLUMN = 96, COUNT = 200, K = 40, DEPTH = 24, ALIGN = 64 };

static char base[ALIGN] __attribute__((aligned(ALIGN)));

static struct prefetch_range memory_of(enum expertd_dtype from, size_t line_stride, size_t k_stride, const uint32_t *rows,
                                       size_t depth) {
    struct product_operand operand = {.data = base, .line_stride = line_stride, .k_stride = k_stride};
    struct line_reader reader = {.from = from, .to = EXPERTD_DTYPE_BF16};
    return lines_to_prefetch(&reader, &(struct line_range){&operand, rows, COLUMN, COUNT, K, depth});
}

static void check_memory(struct prefetch_range memory, size_t offset, size_t runs, size_t bytes, size_t stride) {
    assert_int_equal((uintptr_t)memory.from - (uintptr_t)base, offset);
    assert_int_equal(memory.runs, runs);
    assert_int_equal(memory.bytes, bytes);
    assert_int_equal(memory.stride, stride);
}

static void n_major_weights_are_one_range_for_each_k(void **state) {
    (void)state;
    check_memory(memory_of(EXPERTD_DTYPE_BF16, 1, ROW, NULL, DEPTH), 2 * (K * ROW + COLUMN), DEPTH, 2 * COUNT, 2 * ROW);
    check_memory(memory_of(EXPERTD_DTYPE_F8_E4M3, 1, ROW, NULL, DEPTH), K * ROW + COLUMN, DEPTH, COUNT, ROW);
}

static void k_major_weights_are_one_range_for_each_column(void **state) {
    (void)state;
    check_memory(memory_of(EXPERTD_DTYPE_F32, ROW, 1, NULL, DEPTH), 4 * (COLUMN * ROW + K), COUNT, 4 * DEPTH, 4 * ROW);
    check_memory(memory_of(EXPERTD_DTYPE_U8, ROW, 1, NULL, DEPTH), (COLUMN * ROW + K) / 2, COUNT, DEPTH / 2, ROW / 2);
}

static void scattered_gathered_or_empty_operands_are_not_prefetched(void **state) {
    (void)state;
    static const uint32_t ROWS[1];
    assert_int_equal(memory_of(EXPERTD_DTYPE_BF16, 3, ROW, NULL, DEPTH).runs, 0);
    assert_int_equal(memory_of(EXPERTD_DTYPE_BF16, ROW, 1, ROWS, DEPTH).runs, 0);
    assert_int_equal(memory_of(EXPERTD_DTYPE_BF16, ROW, 1, NULL, 0).runs, 0);
    assert_int_equal(memory_of(EXPERTD_DTYPE_BF16, 1, ROW, NULL, 0).runs, 0);
}

// All lines of all ranges have been prefetched after `fetches` runs. It may be more, because the bytes of a run are rounded up.
static void check_prefetch(const struct prefetch_range *memory, size_t fetches) {
    struct macrokernel_prefetch ahead = macrokernel_prefetch_of(memory, fetches, true);
    const uintptr_t from = (uintptr_t)memory->from;
    const size_t lines = ahead.length / ALIGN;
    assert_true(ahead.length >= memory->bytes);
    assert_true(ahead.length < memory->bytes + 2 * ALIGN);
    for (size_t i = 0; i < fetches; i++) {
        macro_prefetch(&ahead);
    }
    size_t range = 0; // index of the current range
    while (ahead.end > from + range * memory->stride + ahead.length) {
        range++;
    }
    size_t prefetched = range * lines + (ahead.at - (from + range * memory->stride)) / ALIGN;
    assert_true(prefetched >= memory->runs * lines);
    assert_int_equal(prefetched, (fetches * ahead.step + ALIGN - 1) / ALIGN);
    assert_int_equal((ahead.at - from - range * memory->stride) % ALIGN, 0);
}

static void every_line_of_every_range_is_prefetched(void **state) {
    (void)state;
    static const size_t BYTES[] = {1, 63, 64, 512, 640, 16384}, RUNS[] = {1, 2, 7, 96}, FETCHES[] = {1, 5, 1000, 100000};
    static const size_t GAPS[] = {128, 192, 129, 1 << 20};
    for (size_t i = 0; i < sizeof BYTES / sizeof *BYTES * 4 * 4 * 4; i++) {
        struct prefetch_range memory = {base + (i % 2 ? 4 : 0), RUNS[i / 4 % 4], BYTES[i / 64], BYTES[i / 64] + GAPS[i % 4]};
        check_prefetch(&memory, FETCHES[i / 16 % 4]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(n_major_weights_are_one_range_for_each_k),
        cmocka_unit_test(k_major_weights_are_one_range_for_each_column),
        cmocka_unit_test(scattered_gathered_or_empty_operands_are_not_prefetched),
        cmocka_unit_test(every_line_of_every_range_is_prefetched),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
