// A module for CUDA on a machine whose GPUs are there, and others have them: for tests of what becomes of the default then. PROVEN:
// have such GPUs shown these kernels right?
#include <stdio.h>

#include "kernels/device.h"

static enum device_code count_two(uint32_t *out, struct device_error *error) {
    (void)error;
    *out = 2;
    return DEVICE_OK;
}

static int proven(uint32_t number) {
    (void)number;
    return PROVEN;
}

static enum device_code open_none(uint32_t number, struct device **out, struct device_error *error) {
    fprintf(stderr, "GPU %u was opened\n", number);
    snprintf(error->message, sizeof error->message, "choosing it: all CUDA-capable devices are busy or unavailable");
    *out = NULL;
    return DEVICE_FAILED;
}

static void close_nothing(struct device *device) {
    (void)device;
}

extern const struct device_table expertd_device_table;
const struct device_table expertd_device_table = {
    DEVICE_VERSION,    sizeof(struct device_table), "cuda", .count = count_two, .proven = proven,
    .open = open_none, .close = close_nothing};
