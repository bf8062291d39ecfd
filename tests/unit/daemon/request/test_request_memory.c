// Tests pinned request memory on simulated devices: pinning, unpinning, and failures that name the option and leave nothing behind.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/request/request_memory.h"
#include "expertd/kernels/devices.h"

enum { BYTES = 1 << 20 };

static struct expertd_devices *open_devices(void) {
    struct expertd_devices_request request;
    struct expertd_devices *devices;
    assert_int_equal(expertd_devices_parse("sim", &request).code, EXPERTD_ERR_OK);
    assert_int_equal(expertd_devices_open(&request, &devices).code, EXPERTD_ERR_OK);
    return devices;
}

static void memory_is_pinned_until_it_is_unpinned(void **state) {
    (void)state;
    struct request_memory memory;
    struct expertd_devices *devices = open_devices();
    for (int round = 0; round < 3; round++) { // pinning the same pages twice would be an error
        assert_int_equal(request_memory_pin(devices, BYTES, &memory).code, EXPERTD_ERR_OK);
        assert_true(memory.bytes == BYTES && memory.memory);
        memset(memory.memory, round, BYTES);
        request_memory_unpin(&memory);
        assert_true(memory.bytes == 0 && !memory.memory);
    }
    request_memory_unpin(&memory); // legal on a zeroed struct
    expertd_devices_close(devices);
}

static void failures_name_the_bytes_and_the_option(void **state) {
    (void)state;
    struct request_memory memory;
    struct expertd_devices *devices = open_devices();
    assert_int_equal(request_memory_pin(devices, (size_t)1 << 60, &memory).code, EXPERTD_ERR_NOMEM);
    assert_non_null(strstr(expertd_err_message(), "max_queue_bytes"));
    assert_null(memory.memory);
    devices->table->plant_failure("cudaHostRegister", 0);
    assert_int_equal(request_memory_pin(devices, BYTES, &memory).code, EXPERTD_ERR_SHARD_LOST);
    assert_non_null(strstr(expertd_err_message(), "max_queue_bytes"));
    assert_null(memory.memory);
    assert_int_equal(request_memory_pin(devices, BYTES, &memory).code, EXPERTD_ERR_OK);
    request_memory_unpin(&memory);
    expertd_devices_close(devices);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_pinned_until_it_is_unpinned),
        cmocka_unit_test(failures_name_the_bytes_and_the_option),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
