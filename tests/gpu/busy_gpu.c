// A module for CUDA on a machine whose GPUs are there, and others have them: for tests of what becomes of the default then. PROVEN:
// have such GPUs shown these kernels right?
#include <stdio.h>

#include "expertd/kernels/device.h"

static enum expertd_device_code count_two(uint32_t *out, struct expertd_device_error *error) {
    (void)error;
    *out = 2;
    return EXPERTD_DEVICE_OK;
}

static int proven(uint32_t number) {
    (void)number;
    return PROVEN;
}

static enum expertd_device_code open_none(uint32_t number, struct expertd_device **out, struct expertd_device_error *error) {
    fprintf(stderr, "GPU %u was opened\n", number);
    snprintf(error->message, sizeof error->message, "choosing it: all CUDA-capable devices are busy or unavailable");
    *out = NULL;
    return EXPERTD_DEVICE_FAILED;
}

static void close_nothing(struct expertd_device *device) {
    (void)device;
}

extern const struct expertd_device_table expertd_device_table;
const struct expertd_device_table expertd_device_table = {
    EXPERTD_DEVICE_VERSION, sizeof(struct expertd_device_table), "cuda", .count = count_two, .proven = proven, .open = open_none,
    .close = close_nothing};
