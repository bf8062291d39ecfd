// A fake CUDA module for a machine whose GPUs are in use by other programs, for tests of `--device auto`. PROVEN: the module's
// answer to `proven`.
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
    snprintf(error->message, sizeof error->message, "selecting it: all CUDA-capable devices are busy or unavailable");
    *out = NULL;
    return EXPERTD_DEVICE_FAILED;
}

static void close_none(struct expertd_device *device) {
    (void)device;
}

extern const struct expertd_device_table expertd_device_table;
const struct expertd_device_table expertd_device_table = {
    EXPERTD_DEVICE_VERSION, sizeof(struct expertd_device_table), "cuda", .count = count_two, .proven = proven, .open = open_none,
    .close = close_none};
