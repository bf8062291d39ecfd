// Memory for requests on simulated devices: pinned and given back; what is not to be had is refused by name, and nothing is left.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "daemon/request_memory.h"
#include "kernels/devices.h"

enum { BYTES = 1 << 20 };

static struct devices *open_devices(void) {
    struct devices_request request;
    struct devices *devices;
    assert_int_equal(devices_parse("sim", &request).code, ERR_OK);
    assert_int_equal(devices_open(&request, &devices).code, ERR_OK);
    return devices;
}

static void it_is_pinned_until_it_is_given_back(void **state) {
    (void)state;
    struct request_memory memory;
    struct devices *devices = open_devices();
    for (int round = 0; round < 3; round++) { // pinning the same pages twice would be an error
        assert_int_equal(request_memory_pin(devices, BYTES, &memory).code, ERR_OK);
        assert_true(memory.bytes == BYTES && memory.memory);
        memset(memory.memory, round, BYTES);
        request_memory_unpin(&memory);
        assert_true(memory.bytes == 0 && !memory.memory);
    }
    request_memory_unpin(&memory); // zeroed
    devices_close(devices);
}

static void what_is_not_to_be_had_is_refused_by_name(void **state) {
    (void)state;
    struct request_memory memory;
    struct devices *devices = open_devices();
    assert_int_equal(request_memory_pin(devices, (size_t)1 << 60, &memory).code, ERR_NOMEM);
    assert_non_null(strstr(err_message(), "max_queue_bytes"));
    assert_null(memory.memory);
    devices->table->plant_failure("cudaHostRegister", 0);
    assert_int_equal(request_memory_pin(devices, BYTES, &memory).code, ERR_SHARD_LOST);
    assert_non_null(strstr(err_message(), "max_queue_bytes"));
    assert_null(memory.memory);
    assert_int_equal(request_memory_pin(devices, BYTES, &memory).code, ERR_OK);
    request_memory_unpin(&memory);
    devices_close(devices);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_is_pinned_until_it_is_given_back),
        cmocka_unit_test(what_is_not_to_be_had_is_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
