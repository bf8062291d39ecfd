#include "daemon/request_memory.h"

#include <string.h>
#include <sys/mman.h>

#include "kernels/devices.h"

FALLIBLE request_memory_pin(const struct devices *devices, size_t bytes, struct request_memory *out) {
    *out = (struct request_memory){0};
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        FAIL(ERR_NOMEM, "no memory for requests on their way to a device, %zu bytes: lower max_queue_bytes", bytes);
    }
    struct device_error error;
    enum device_code code = devices->table->pin(devices->all[0], memory, bytes, &error);
    if (code != DEVICE_OK) {
        munmap(memory, bytes);
        return err_context(devices_check(devices, 0, code, &error), "%zu bytes for requests (lower max_queue_bytes)", bytes);
    }
    *out = (struct request_memory){devices, memory, bytes};
    return OK;
}

// A device that is stuck may still read it: then it goes with the process.
void request_memory_unpin(struct request_memory *memory) {
    if (memory->memory && !memory->devices->stuck) {
        devices_unpin(memory->devices, memory->memory);
        munmap(memory->memory, memory->bytes);
    }
    *memory = (struct request_memory){0};
}
