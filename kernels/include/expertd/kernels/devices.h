// The GPUs, or simulated GPUs, that a process computes on. Loads the module of kernels for them at run time and opens the devices;
// the host program does not link CUDA. Use a struct expertd_devices from one thread at a time.
#ifndef EXPERTD_KERNELS_DEVICES_H
#define EXPERTD_KERNELS_DEVICES_H

#include <stdbool.h>

#include "expertd/base/err.h"
#include "expertd/kernels/device.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { EXPERTD_DEVICES_MAX = 16 };

struct expertd_devices {
    void *library; // the module's handle
    const struct expertd_device_table *table;
    uint32_t count;
    uint32_t numbers[EXPERTD_DEVICES_MAX]; // the driver's device numbers
    uint32_t unopened;                     // devices of the machine that were not requested
    struct expertd_device *all[EXPERTD_DEVICES_MAX];
    struct expertd_device_facts facts;  // of the first device; all have the same arithmetic
    int64_t timeout_ns;                 // limit of a wait, set by the owner; 0: none
    bool stuck;                         // a wait exceeded the limit; calls that would wait for the device are skipped from then on
    enum expertd_device_variant forced; // EXPERTD_DEVICE_VARIANTS: no variant is forced
};

// The device that computes a rank. Ranks are spread evenly; consecutive ranks share a device.
static inline uint32_t expertd_device_of_rank(const struct expertd_devices *devices, uint32_t ranks, uint32_t rank) {
    return (uint32_t)((uint64_t)rank * devices->count / ranks);
}

// A request for devices.
struct expertd_devices_request {
    char kind[8];   // "cuda", "sim"
    uint32_t count; // of `numbers`; 0: all devices
    uint32_t numbers[EXPERTD_DEVICES_MAX];
    enum expertd_device_variant forced; // for all products of its dtype; EXPERTD_DEVICE_VARIANTS: none
    bool automatic; // the user named no device: open only devices of a kind on which these kernels were verified
};

// Parses "cuda", "cuda:0,2", "sim" or "sim:3", each optionally followed by a variant, as in "cuda/wgmma_128". EXPERTD_ERR_CONFIG:
// the text has another form; the message lists the valid ones.
EXPERTD_FALLIBLE expertd_devices_parse(const char *text, struct expertd_devices_request *out);

// Loads ../lib/expertd/libexpertd_KIND.so, relative to the folder of the running program, and opens the devices.
// EXPERTD_ERR_UNAVAILABLE: the module, the driver or a device is missing, a device has another arithmetic than the first, or, with
// `automatic`, no device of a verified kind exists; the message says what to do. EXPERTD_ERR_NOMEM, EXPERTD_ERR_SHARD_LOST: a
// device exists but cannot be opened.
EXPERTD_FALLIBLE expertd_devices_open(const struct expertd_devices_request *request, struct expertd_devices **out);
// Opens the same devices again with streams of their own, for another thread. EXPERTD_ERR_SHARD_LOST, EXPERTD_ERR_NOMEM.
EXPERTD_FALLIBLE expertd_devices_again(const struct expertd_devices *devices, struct expertd_devices **out);
void expertd_devices_close(struct expertd_devices *devices); // NULL is legal

// Converts a code of the module to an error with the device's name: EXPERTD_ERR_UNAVAILABLE (missing), EXPERTD_ERR_NOMEM or
// EXPERTD_ERR_SHARD_LOST (failed).
EXPERTD_FALLIBLE expertd_devices_check(const struct expertd_devices *devices, uint32_t index, enum expertd_device_code code,
                                       const struct expertd_device_error *error);
// Calls a function of the module's table for device `index`, and returns early with its error. The arguments exclude device and
// error.
#define EXPERTD_DEVICES_CALL(devices, index, call, ...)                                                                            \
    do {                                                                                                                           \
        struct expertd_device_error call_error_;                                                                                   \
        EXPERTD_TRY(expertd_devices_check(                                                                                         \
            devices, index, (devices)->table->call((devices)->all[index], __VA_ARGS__, &call_error_), &call_error_));              \
    } while (0)
// expertd_devices_wait waits until all work of the device is done, expertd_devices_wait_downloads until all downloads of
// download_async have arrived. With timeout_ns the thread polls at growing intervals; without it, the thread sleeps until the
// device's interrupt. EXPERTD_ERR_SHARD_LOST: the device failed, or did not end in time; its work may then still be running.
EXPERTD_FALLIBLE expertd_devices_wait(const struct expertd_devices *devices, uint32_t index);
EXPERTD_FALLIBLE expertd_devices_wait_downloads(const struct expertd_devices *devices, uint32_t index);
// Sleeps between two polls of a device; since_ns: the time of the first poll.
void expertd_devices_pause(int64_t since_ns);
// Release device memory and unpin host memory. They do nothing where a device is stuck, since they would wait for it.
void expertd_devices_release(const struct expertd_devices *devices, uint32_t index, void *memory); // NULL is legal
void expertd_devices_unpin(const struct expertd_devices *devices, void *memory);

#ifdef __cplusplus
}
#endif

#endif
