// A module for CUDA whose one GPU is there, has shown these kernels right, and fails as soon as it is used: for tests of what
// becomes of the default then.
#include <stdio.h>

#include "expertd/kernels/device.h"

struct expertd_device {
    int unused;
};

static struct expertd_device the_one;

static enum expertd_device_code count_one(uint32_t *out, struct expertd_device_error *error) {
    (void)error;
    *out = 1;
    return EXPERTD_DEVICE_OK;
}

static int proven(uint32_t number) {
    (void)number;
    return 1;
}

static enum expertd_device_code open_it(uint32_t number, struct expertd_device **out, struct expertd_device_error *error) {
    (void)number, (void)error;
    *out = &the_one;
    return EXPERTD_DEVICE_OK;
}

static void close_it(struct expertd_device *device) {
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
    snprintf(error->message, sizeof error->message, "pinning memory of the host: an unspecified failure");
    return EXPERTD_DEVICE_FAILED;
}

extern const struct expertd_device_table expertd_device_table;
const struct expertd_device_table expertd_device_table = {EXPERTD_DEVICE_VERSION,
                                                          sizeof(struct expertd_device_table),
                                                          "cuda",
                                                          .count = count_one,
                                                          .proven = proven,
                                                          .open = open_it,
                                                          .close = close_it,
                                                          .describe = describe,
                                                          .pin = pin};
