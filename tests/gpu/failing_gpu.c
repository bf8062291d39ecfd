// A module for CUDA whose one GPU is there, has shown these kernels right, and fails as soon as it is used: for tests of what
// becomes of the default then.
#include <stdio.h>

#include "kernels/device.h"

struct device {
    int unused;
};

static struct device the_one;

static enum device_code count_one(uint32_t *out, struct device_error *error) {
    (void)error;
    *out = 1;
    return DEVICE_OK;
}

static int proven(uint32_t number) {
    (void)number;
    return 1;
}

static enum device_code open_it(uint32_t number, struct device **out, struct device_error *error) {
    (void)number, (void)error;
    *out = &the_one;
    return DEVICE_OK;
}

static void close_it(struct device *device) {
    (void)device;
}

static enum device_code describe(struct device *device, struct device_facts *out, struct device_error *error) {
    (void)device, (void)error;
    *out = (struct device_facts){.name = "failing GPU", .arithmetic = "sm_90", .arithmetic_f32 = "cpu"};
    return DEVICE_OK;
}

static enum device_code pin(struct device *device, void *memory, size_t bytes, struct device_error *error) {
    (void)device, (void)memory, (void)bytes;
    snprintf(error->message, sizeof error->message, "pinning memory of the host: an unspecified failure");
    return DEVICE_FAILED;
}

extern const struct device_table expertd_device_table;
const struct device_table expertd_device_table = {
    DEVICE_VERSION,    sizeof(struct device_table), "cuda",    .count = count_one, .proven = proven, .open = open_it,
    .close = close_it, .describe = describe,        .pin = pin};
