// A fake CUDA module with one proven GPU that fails as soon as it is used, for tests of `--device auto`.
#include <stdio.h>

#include "expertd/kernels/device.h"

struct expertd_device {
    int unused;
};

static struct expertd_device the_device;

static enum expertd_device_code count_one(uint32_t *out, struct expertd_device_error *error) {
    (void)error;
    *out = 1;
    return EXPERTD_DEVICE_OK;
}

static int proven(uint32_t number) {
    (void)number;
    return 1;
}

static enum expertd_device_code open_one(uint32_t number, struct expertd_device **out, struct expertd_device_error *error) {
    (void)number, (void)error;
    *out = &the_device;
    return EXPERTD_DEVICE_OK;
}

static void close_one(struct expertd_device *device) {
    (void)device;
}

static enum expertd_device_code describe(struct expertd_device *device, struct expertd_device_facts *out,
                                         struct expertd_device_error *error) {
    (void)device, (void)error;
    *out = (struct expertd_device_facts){.name = "failing GPU", .arithmetic = "sm_90", .arithmetic_f32 = "cpu"};
    return EXPERTD_DEVICE_OK;
}

static enum expertd_device_code pin(struct expertd_device *device, void *memory, size_t bytes, struct expertd_device_error *error) {
    (void)device, (void)memory, (void)bytes;
    snprintf(error->message, sizeof error->message, "pinning host memory: an unspecified failure");
    return EXPERTD_DEVICE_FAILED;
}

extern const struct expertd_device_table expertd_device_table;
const struct expertd_device_table expertd_device_table = {EXPERTD_DEVICE_VERSION,
                                                          sizeof(struct expertd_device_table),
                                                          "cuda",
                                                          .count = count_one,
                                                          .proven = proven,
                                                          .open = open_one,
                                                          .close = close_one,
                                                          .describe = describe,
                                                          .pin = pin};
