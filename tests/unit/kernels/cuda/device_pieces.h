// For tests on a simulated device: a test's arrays, each on the host and on the device, which are reserved, pinned, copied
// and freed together.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_CUDA_DEVICE_PIECES_H
#define EXPERTD_TESTS_UNIT_KERNELS_CUDA_DEVICE_PIECES_H

#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/device.h"
#include "kernels/cuda/sim/test_control.h"

extern const struct expertd_device_table expertd_device_table;

enum { DEVICE_PIECES_MAX = 40, DEVICE_ROW_MAX = 512 };

static struct {
    const struct expertd_device_table *table;
    struct expertd_device *device;
    void *host[DEVICE_PIECES_MAX], *on_device[DEVICE_PIECES_MAX];
    size_t bytes[DEVICE_PIECES_MAX];
    int count;
} pieces = {.table = &expertd_device_table};

static inline void device_must(enum expertd_device_code code, const struct expertd_device_error *error) {
    if (code != EXPERTD_DEVICE_OK) {
        fail_msg("%s", error->message);
    }
}

// Copies `host` to the device and takes ownership of it (memory from test_alloc). Returns the device's copy; NULL for no bytes.
static inline void *on_device(void *host, size_t bytes) {
    struct expertd_device_error error;
    int i = pieces.count++;
    assert_true(i < DEVICE_PIECES_MAX);
    pieces.host[i] = host;
    pieces.bytes[i] = bytes;
    pieces.on_device[i] = NULL;
    if (bytes == 0) {
        return NULL;
    }
    device_must(pieces.table->reserve(pieces.device, bytes, &pieces.on_device[i], &error), &error);
    device_must(pieces.table->pin(pieces.device, host, bytes, &error), &error);
    device_must(pieces.table->copy(pieces.device, EXPERTD_DEVICE_UPLOAD, pieces.on_device[i], host, bytes, &error), &error);
    return pieces.on_device[i];
}

// Memory full of 0xff, which is NaN in every floating-point dtype.
static inline void *poisoned(size_t bytes) {
    void *out = test_alloc(bytes);
    memset(out, 0xff, bytes);
    return out;
}

// Copies a device array back to the host's array and returns that. Waits for all work of the device.
static inline void *back(const void *device_memory) {
    struct expertd_device_error error;
    void *host = NULL;
    for (int i = 0; i < pieces.count; i++) {
        if (device_memory && pieces.on_device[i] == device_memory) {
            host = pieces.host[i];
            device_must(pieces.table->copy(pieces.device, EXPERTD_DEVICE_DOWNLOAD, host, device_memory, pieces.bytes[i], &error),
                        &error);
        }
    }
    device_must(pieces.table->wait(pieces.device, &error), &error);
    return host;
}

// Frees all arrays of the test.
static inline void drop_pieces(void) {
    struct expertd_device_error error;
    device_must(pieces.table->wait(pieces.device, &error), &error);
    for (int i = 0; i < pieces.count; i++) {
        if (pieces.on_device[i]) {
            pieces.table->unpin(pieces.device, pieces.host[i]);
            pieces.table->release(pieces.device, pieces.on_device[i]);
        }
        free(pieces.host[i]);
    }
    pieces.count = 0;
}

// count random values of the dtype, from test_alloc.
static inline void *values_of(enum expertd_dtype dtype, size_t count, struct random *random, enum values values) {
    char *out = test_alloc(count * expertd_dtype_size(dtype) + 1);
    for (size_t i = 0; i < count; i++) {
        float value = random_f32(random, values);
        expertd_dtype_narrow(&value, 1, dtype, out + i * expertd_dtype_size(dtype));
    }
    return out;
}

static inline void assert_same_row(enum expertd_dtype dtype, const void *got, const void *expected, size_t count,
                                   const char *operation) {
    float a[DEVICE_ROW_MAX], b[DEVICE_ROW_MAX];
    assert_true(count <= DEVICE_ROW_MAX);
    expertd_dtype_widen(dtype, got, count, a);
    expertd_dtype_widen(dtype, expected, count, b);
    assert_same_f32(a, b, count, operation);
}

static inline int open_device(void **state) {
    (void)state;
    struct expertd_device_error error;
    device_must(pieces.table->open(0, &pieces.device, &error), &error);
    return 0;
}

// Fails if a test has left device or pinned memory allocated.
static inline int close_device(void **state) {
    (void)state;
    pieces.table->close(pieces.device);
    return sim_allocations() == 0 ? 0 : -1;
}

#endif
