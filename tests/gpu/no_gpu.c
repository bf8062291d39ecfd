// A fake CUDA module for a machine whose driver finds no GPU, for tests of the messages.
#include "expertd/kernels/device.h"

static enum expertd_device_code count_none(uint32_t *out, struct expertd_device_error *error) {
    (void)error;
    *out = 0;
    return EXPERTD_DEVICE_OK;
}

extern const struct expertd_device_table expertd_device_table;
const struct expertd_device_table expertd_device_table = {EXPERTD_DEVICE_VERSION, sizeof(struct expertd_device_table), "cuda",
                                                          .count = count_none};
