#include "daemon/request/request_memory.h"

#include <string.h>
#include <sys/mman.h>

#include "expertd/kernels/devices.h"

FALLIBLE request_memory_pin(const struct expertd_devices *devices, size_t bytes, struct request_memory *out) {
    *out = (struct request_memory){0};
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        FAIL(EXPERTD_ERR_NOMEM, "cannot reserve %zu bytes of host memory for requests: lower max_queue_bytes", bytes);
    }
    struct expertd_device_error error;
    enum expertd_device_code code = devices->table->pin(devices->all[0], memory, bytes, &error);
    if (code != EXPERTD_DEVICE_OK) {
        munmap(memory, bytes);
        return err_context(expertd_devices_check(devices, 0, code, &error), "%zu bytes for requests (lower max_queue_bytes)",
                           bytes);
    }
    *out = (struct request_memory){devices, memory, bytes};
    return OK;
}

// A device that is stuck may still read the memory, which is then freed with the process.
void request_memory_unpin(struct request_memory *memory) {
    if (memory->memory && !memory->devices->stuck) {
        expertd_devices_unpin(memory->devices, memory->memory);
        munmap(memory->memory, memory->bytes);
    }
    *memory = (struct request_memory){0};
}
