// Arrays of one test on the host and on a simulated device: reserved, pinned and copied there together, gone together.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_DEVICE_DEVICE_PIECES_H
#define EXPERTD_TESTS_UNIT_KERNELS_DEVICE_DEVICE_PIECES_H

#include "tests/unit/kernels/kernel_test.h"

#include "expertd/kernels/device.h"

extern const struct expertd_device_table expertd_device_table;

enum { DEVICE_PIECES_MAX = 40 };

static struct {
    const struct expertd_device_table *table;
    struct expertd_device *device;
    void *host[DEVICE_PIECES_MAX], *there[DEVICE_PIECES_MAX];
    size_t bytes[DEVICE_PIECES_MAX];
    int count;
} pieces = {.table = &expertd_device_table};

static inline void device_must(enum expertd_device_code code, const struct expertd_device_error *error) {
    if (code != EXPERTD_DEVICE_OK) {
        fail_msg("%s", error->message);
    }
}

// Takes `host`, which test_alloc made. NULL for no bytes.
static inline void *on_device(void *host, size_t bytes) {
    struct expertd_device_error error;
    int i = pieces.count++;
    assert_true(i < DEVICE_PIECES_MAX);
    pieces.host[i] = host;
    pieces.bytes[i] = bytes;
    pieces.there[i] = NULL;
    if (bytes == 0) {
        return NULL;
    }
    device_must(pieces.table->reserve(pieces.device, bytes, &pieces.there[i], &error), &error);
    device_must(pieces.table->pin(pieces.device, host, bytes, &error), &error);
    device_must(pieces.table->copy(pieces.device, EXPERTD_DEVICE_UPLOAD, pieces.there[i], host, bytes, &error), &error);
    return pieces.there[i];
}

static inline void *poisoned(size_t bytes) {
    void *out = test_alloc(bytes);
    memset(out, 0xff, bytes);
    return out;
}

// What the device has made of it is in the host's array, which is returned.
static inline void *back(const void *there) {
    struct expertd_device_error error;
    void *host = NULL;
    for (int i = 0; i < pieces.count; i++) {
        if (there && pieces.there[i] == there) {
            host = pieces.host[i];
            device_must(pieces.table->copy(pieces.device, EXPERTD_DEVICE_DOWNLOAD, host, there, pieces.bytes[i], &error), &error);
        }
    }
    device_must(pieces.table->wait(pieces.device, &error), &error);
    return host;
}

static inline void drop_pieces(void) {
    struct expertd_device_error error;
    device_must(pieces.table->wait(pieces.device, &error), &error);
    for (int i = 0; i < pieces.count; i++) {
        if (pieces.there[i]) {
            pieces.table->unpin(pieces.device, pieces.host[i]);
            pieces.table->release(pieces.device, pieces.there[i]);
        }
        free(pieces.host[i]);
    }
    pieces.count = 0;
}

static inline int open_device(void **state) {
    (void)state;
    struct expertd_device_error error;
    device_must(pieces.table->open(0, &pieces.device, &error), &error);
    return 0;
}

static inline int close_device(void **state) {
    (void)state;
    pieces.table->close(pieces.device);
    return 0;
}

#endif
