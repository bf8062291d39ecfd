// The exchange over NCCL between simulated devices: the conformance suite and tests of this engine. The module is loaded
// as expertd does.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/clock.h"
#include "tests/unit/shard/exchange_conformance.h"

#include "expertd/kernels/devices.h"

// A test with a rank that stops waits this long. A rank that is late (by SIM_NCCL_LATE_MS) or a busy machine stays well below.
enum { TIMEOUT_MS = 2000, HOST_BYTES = 1 << 16 };

// cmocka runs one test at a time, and each opens its own devices.
static struct expertd_devices *devices;
static struct arena host; // pinned

static void must_succeed(err_t e) {
    if (err_is(e)) {
        fail_msg("%s", expertd_err_message());
    }
}

static void check(uint32_t device, enum expertd_device_code code, const struct expertd_device_error *error) {
    must_succeed(expertd_devices_check(devices, device, code, error));
}

static void open_devices(const char *text) {
    struct expertd_devices_request request;
    struct expertd_device_error error;
    must_succeed(expertd_devices_parse(text, &request));
    must_succeed(expertd_devices_open(&request, &devices));
    must_succeed(arena_init(&host, HOST_BYTES));
    check(0, devices->table->pin(devices->all[0], host.base, host.bytes, &error), &error);
}

static int close_devices(void **state) {
    (void)state;
    if (devices) {
        devices->table->plant_failure(NULL, 0);
        devices->table->unpin(devices->all[0], host.base);
        arena_deinit(&host);
        expertd_devices_close(devices);
        devices = NULL;
    }
    return 0;
}

static int on_three(void **state) {
    (void)state;
    open_devices("sim:3");
    return 0;
}

static int on_one(void **state) {
    (void)state;
    open_devices("sim");
    return 0;
}

static int on_more_than_ranks(void **state) {
    (void)state;
    open_devices("sim:8");
    return 0;
}

// ---- the subject

static err_t create(const struct exchange_options *options, struct exchange **out) {
    struct exchange_over_nccl over = {
        .devices = devices, .timeout_ns = (int64_t)TIMEOUT_MS * NS_PER_MS, .join_timeout_ns = (int64_t)TIMEOUT_MS * NS_PER_MS};
    return exchange_create_nccl(options, &over, out);
}

static uint32_t device_of(uint32_t rank) {
    return rank == CONFORMANCE_FRONT ? 0 : expertd_device_of_rank(devices, CONFORMANCE_RANKS, rank);
}

static void *front_memory(size_t bytes) {
    struct expertd_device_error error;
    void *memory;
    check(0, devices->table->reserve(devices->all[0], bytes, &memory, &error), &error);
    return memory;
}

static void front_free(void *memory) {
    devices->table->release(devices->all[0], memory);
}

static void copy(uint32_t device, enum expertd_device_copy_kind kind, void *to, const void *from, size_t bytes) {
    struct expertd_device_error error;
    check(device, devices->table->copy(devices->all[device], kind, to, from, bytes, &error), &error);
    check(device, devices->table->wait(devices->all[device], &error), &error);
}

static void write_memory(uint32_t rank, void *to, const void *from, size_t bytes) {
    assert_true(bytes <= HOST_BYTES);
    memcpy(host.base, from, bytes);
    copy(device_of(rank), EXPERTD_DEVICE_UPLOAD, to, host.base, bytes);
}

static void read_memory(uint32_t rank, void *to, const void *from, size_t bytes) {
    copy(device_of(rank), EXPERTD_DEVICE_DOWNLOAD, host.base, from, bytes);
    memcpy(to, host.base, bytes);
}

static void plant(enum conformance_fault fault, unsigned after) {
    static const char *const CALLS[] = {[RANK_DIES] = "ncclTransfer", [RANK_STOPS] = "ncclStuck", [RANK_IS_LATE] = "ncclLate"};
    devices->table->plant_failure(CALLS[fault], after);
}

static const struct exchange_subject NCCL = {.create = create,
                                             .front_memory = front_memory,
                                             .front_free = front_free,
                                             .write = write_memory,
                                             .read = read_memory,
                                             .plant = plant};

// ---- the suite

static void rows_reach_their_experts_over_random_placements(void **state) {
    (void)state;
    exchange_conforms_over_random_placements(&NCCL);
}

static void one_hot_rank_gets_every_row(void **state) {
    (void)state;
    exchange_conforms_with_one_hot_rank(&NCCL);
}

static void an_empty_batch_passes_every_rank(void **state) {
    (void)state;
    exchange_conforms_with_an_empty_batch(&NCCL);
}

static void a_batch_of_an_old_epoch_is_refused(void **state) {
    (void)state;
    exchange_refuses_an_old_epoch(&NCCL);
}

static void a_rank_that_dies_costs_one_batch(void **state) {
    (void)state;
    exchange_survives_a_rank_that_dies(&NCCL);
}

static void a_rank_that_stops_costs_one_batch(void **state) {
    (void)state;
    exchange_survives_a_rank_that_stops(&NCCL);
}

static void a_rank_that_is_late_is_waited_for(void **state) {
    (void)state;
    exchange_waits_for_a_rank_that_is_late(&NCCL);
}

// ---- this engine only

static const struct exchange_options SMALL = {
    .ranks = CONFORMANCE_RANKS, .layers = 1, .max_tokens = 4, .max_rows = 8, .row_bytes_max = 64};

static void a_join_that_does_not_end_is_an_error(void **state) {
    (void)state;
    struct exchange *exchange;
    devices->table->plant_failure("ncclNeverJoins", 1);
    assert_int_equal(create(&SMALL, &exchange).code, EXPERTD_ERR_UNAVAILABLE);
    assert_non_null(strstr(expertd_err_message(), "did not end within 2000 ms"));
    assert_null(exchange);
}

static void a_missing_nccl_is_reported(void **state) {
    (void)state;
    struct exchange *exchange;
    devices->table->plant_failure("ncclLibrary", 0);
    assert_int_equal(create(&SMALL, &exchange).code, EXPERTD_ERR_UNAVAILABLE);
    assert_non_null(strstr(expertd_err_message(), "3 devices exchange rows over NCCL"));
    assert_non_null(strstr(expertd_err_message(), "--device sim:0"));
}

// NCCL allocates memory at the join and at the first transfer. If that fails, exchange_create_nccl fails, instead of
// the first batch.
static void memory_for_nccl_is_allocated_at_start(void **state) {
    (void)state;
    enum { KIB = 1024 };
    struct exchange *exchange;
    devices->table->plant_failure("ncclKiB", KIB);
    devices->table->plant_failure("memoryKiB", KIB + KIB / 2);
    assert_int_equal(create(&SMALL, &exchange).code, EXPERTD_ERR_UNAVAILABLE);
    assert_non_null(strstr(expertd_err_message(), "the first transfer between 3 devices"));
    assert_non_null(strstr(expertd_err_message(), "out of memory"));
    assert_null(exchange);
    devices->table->plant_failure("memoryKiB", 2 * KIB + KIB / 2);
    must_succeed(create(&SMALL, &exchange));
    exchange_destroy(exchange);
}

static void every_failed_reservation_is_an_error(void **state) {
    (void)state;
    static const char *const CALLS[] = {"cudaMalloc", "cudaHostRegister"};
    for (size_t c = 0; c < sizeof CALLS / sizeof *CALLS; c++) {
        struct exchange *exchange;
        for (unsigned after = 0;; after++) {
            devices->table->plant_failure(CALLS[c], after);
            err_t e = create(&SMALL, &exchange);
            devices->table->plant_failure(NULL, 0);
            if (!err_is(e)) {
                assert_int_equal(after, c == 0 ? 3 : 1);
                exchange_destroy(exchange);
                break;
            }
            assert_null(exchange);
        }
    }
}

int main(void) {
#define ON_THREE(name) cmocka_unit_test_setup_teardown(name, on_three, close_devices)
    const struct CMUnitTest tests[] = {
        ON_THREE(rows_reach_their_experts_over_random_placements),
        cmocka_unit_test_setup_teardown(rows_reach_their_experts_over_random_placements, on_one, close_devices),
        cmocka_unit_test_setup_teardown(rows_reach_their_experts_over_random_placements, on_more_than_ranks, close_devices),
        ON_THREE(one_hot_rank_gets_every_row),
        ON_THREE(an_empty_batch_passes_every_rank),
        ON_THREE(a_batch_of_an_old_epoch_is_refused),
        ON_THREE(a_rank_that_dies_costs_one_batch),
        ON_THREE(a_rank_that_stops_costs_one_batch),
        ON_THREE(a_rank_that_is_late_is_waited_for),
        ON_THREE(a_join_that_does_not_end_is_an_error),
        ON_THREE(a_missing_nccl_is_reported),
        ON_THREE(memory_for_nccl_is_allocated_at_start),
        ON_THREE(every_failed_reservation_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
