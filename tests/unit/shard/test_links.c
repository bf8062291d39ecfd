// The communicator's lifetime in the host program, over fake links that the test controls. They do what NCCL may do, and run under
// ThreadSanitizer, which simulated devices cannot.
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "shard/links.h"

enum { COUNT = 2, TIMEOUT_MS = 30, LIMIT_MS = 10000 };

static atomic_int ends;     // does the devices' work end?
static atomic_int held;     // do aborts hang?
static atomic_int slow_ms;  // the duration of an abort
static atomic_int aborting; // number of aborts begun
static atomic_int aborted;  // and ended
static struct device_link *const LINKS[COUNT] = {(struct device_link *)&ends, (struct device_link *)&held};

static enum expertd_device_code succeed(struct expertd_device *device, struct expertd_device_error *error) {
    (void)device, (void)error;
    return EXPERTD_DEVICE_OK;
}

static enum expertd_device_code finished(struct expertd_device *device, int *out, struct expertd_device_error *error) {
    (void)device, (void)error;
    *out = atomic_load(&ends);
    return EXPERTD_DEVICE_OK;
}

static enum expertd_device_code load(char version[DEVICE_LINKS_TEXT_MAX], struct expertd_device_error *error) {
    (void)error;
    strcpy(version, "0.0.0");
    return EXPERTD_DEVICE_OK;
}

static enum expertd_device_code make_id(struct device_link_id *out, struct expertd_device_error *error) {
    (void)error;
    *out = (struct device_link_id){{0}};
    return EXPERTD_DEVICE_OK;
}

static enum expertd_device_code group(struct expertd_device_error *error) {
    (void)error;
    return EXPERTD_DEVICE_OK;
}

static enum expertd_device_code join(struct expertd_device *device, const struct device_link_id *id, uint32_t rank, uint32_t ranks,
                                     struct device_link **out, struct expertd_device_error *error) {
    (void)device, (void)id, (void)ranks, (void)error;
    *out = LINKS[rank];
    return EXPERTD_DEVICE_OK;
}

static enum expertd_device_code settled(struct device_link *link, int *busy, struct expertd_device_error *error) {
    (void)link, (void)error;
    *busy = 0;
    return EXPERTD_DEVICE_OK;
}

static enum expertd_device_code leave(struct device_link *link, struct expertd_device_error *error) {
    (void)link, (void)error;
    return EXPERTD_DEVICE_OK;
}

static void destroy(struct device_link *link) {
    (void)link;
}

static void abort_link(struct device_link *link) {
    int64_t started_ns = clock_now_ns();
    atomic_fetch_add(&aborting, link != NULL);
    while (atomic_load(&held) || clock_now_ns() - started_ns < atomic_load(&slow_ms) * (int64_t)NS_PER_MS) {
        expertd_devices_pause(started_ns);
    }
    atomic_fetch_add(&aborted, link != NULL);
}

static const struct expertd_device_links CALLS = {.load = load,
                                                  .make_id = make_id,
                                                  .begin = group,
                                                  .end = group,
                                                  .join = join,
                                                  .settled = settled,
                                                  .leave = leave,
                                                  .destroy = destroy,
                                                  .abort = abort_link};
static const struct expertd_device_table TABLE = {
    .kind = "fake", .mark = succeed, .finished = finished, .finished_downloads = finished, .links = &CALLS};
static struct expertd_devices devices;

static struct links *create_links(void) {
    struct links_options options = {
        .devices = &devices, .timeout_ns = (int64_t)TIMEOUT_MS * NS_PER_MS, .join_timeout_ns = (int64_t)LIMIT_MS * NS_PER_MS};
    struct links *links;
    devices = (struct expertd_devices){.table = &TABLE, .count = COUNT, .numbers = {0, 1}};
    atomic_store(&ends, 1);
    atomic_store(&held, 0);
    atomic_store(&slow_ms, 0);
    atomic_store(&aborting, 0);
    atomic_store(&aborted, 0);
    assert_int_equal(links_create(&options, &links).code, EXPERTD_ERR_OK);
    return links;
}

static struct links_state state_of(const struct links *links) {
    struct links_state state;
    links_state(links, &state);
    return state;
}

// Runs a batch whose rows do not arrive.
static void fail_a_batch(struct links *links) {
    int64_t started_ns = clock_now_ns();
    assert_int_equal(links_ready(links).code, EXPERTD_ERR_OK);
    atomic_store(&ends, 0);
    assert_int_equal(links_wait(links).code, EXPERTD_ERR_SHARD_LOST);
    links_settle(links);
    assert_true(clock_now_ns() - started_ns < (int64_t)LIMIT_MS * NS_PER_MS);
}

static void an_abort_that_does_not_end_is_not_waited_for(void **state) {
    (void)state;
    struct links *links = create_links();
    atomic_store(&held, 1);
    fail_a_batch(links);
    assert_true(state_of(links).lost);
    assert_true(devices.stuck);
    assert_int_equal(links_ready(links).code, EXPERTD_ERR_SHARD_LOST);
    assert_non_null(strstr(expertd_err_message(), "fake device 0: a kernel or copy on it does not end"));
    atomic_store(&ends, 1); // but the abort still hangs
    assert_int_equal(links_ready(links).code, EXPERTD_ERR_SHARD_LOST);
    assert_non_null(strstr(expertd_err_message(), "2 fake devices: the abort of their communicator does not end"));
    int64_t started_ns = clock_now_ns();
    links_settle(links); // does not wait for the abort again
    assert_true(clock_now_ns() - started_ns < (int64_t)LIMIT_MS / 2 * NS_PER_MS);
    assert_true(state_of(links).lost);
    assert_true(devices.stuck);
    assert_int_equal(atomic_load(&aborting), 1);
    atomic_store(&held, 0);
    started_ns = clock_now_ns();
    while (err_is(links_ready(links))) {
        assert_true(clock_now_ns() - started_ns < (int64_t)LIMIT_MS * NS_PER_MS);
    }
    assert_int_equal(atomic_load(&aborted), COUNT);
    assert_false(state_of(links).lost);
    assert_false(devices.stuck);
    assert_int_equal(state_of(links).rebuilds, 1);
    links_destroy(links);
}

static void links_end_while_an_abort_does_not(void **state) {
    (void)state;
    struct links *links = create_links();
    atomic_store(&held, 1);
    fail_a_batch(links);
    links_destroy(links);
    assert_int_equal(atomic_load(&aborted), 0);
    atomic_store(&held, 0);
    int64_t started_ns = clock_now_ns();
    while (atomic_load(&aborted) < COUNT) {
        expertd_devices_pause(started_ns);
        assert_true(clock_now_ns() - started_ns < (int64_t)LIMIT_MS * NS_PER_MS);
    }
}

// Also if it takes longer than a batch may.
static void an_abort_that_ends_costs_only_its_batch(void **state) {
    (void)state;
    struct links *links = create_links();
    for (uint64_t round = 1; round <= 3; round++) {
        atomic_store(&slow_ms, round == 2 ? 3 * TIMEOUT_MS : 0);
        assert_int_equal(links_ready(links).code, EXPERTD_ERR_OK);
        atomic_store(&ends, 0);
        assert_int_equal(links_wait(links).code, EXPERTD_ERR_SHARD_LOST);
        atomic_store(&ends, 1);
        links_settle(links);
        assert_int_equal(links_ready(links).code, EXPERTD_ERR_OK);
        assert_false(state_of(links).lost);
        assert_int_equal(state_of(links).rebuilds, round);
        assert_int_equal(atomic_load(&aborted), round * COUNT);
    }
    links_destroy(links);
}

static void *poll_state(void *context) {
    const struct links *links = context;
    while (state_of(links).rebuilds < 3) {
    }
    return NULL;
}

// As the metrics page does. ThreadSanitizer checks the reads.
static void any_thread_may_read_the_state_during_aborts(void **state) {
    (void)state;
    struct links *links = create_links();
    pthread_t reader;
    assert_int_equal(pthread_create(&reader, NULL, poll_state, links), 0);
    for (uint64_t round = 1; round <= 3; round++) {
        fail_a_batch(links);
        assert_true(state_of(links).lost);
        atomic_store(&ends, 1);
        assert_int_equal(links_ready(links).code, EXPERTD_ERR_OK);
    }
    pthread_join(reader, NULL);
    links_destroy(links);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_abort_that_does_not_end_is_not_waited_for),
        cmocka_unit_test(links_end_while_an_abort_does_not),
        cmocka_unit_test(an_abort_that_ends_costs_only_its_batch),
        cmocka_unit_test(any_thread_may_read_the_state_during_aborts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
