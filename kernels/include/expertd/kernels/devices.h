// The GPUs, or simulated ones, that a process computes on: the module that drives them, loaded when it is asked for, and the
// devices that were opened. The host program links nothing of CUDA. One thread at a time.
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
    void *library; // of the module
    const struct expertd_device_table *table;
    uint32_t count;
    uint32_t numbers[EXPERTD_DEVICES_MAX]; // as the driver counts them
    uint32_t left;                         // how many more there are that nobody asked for
    struct expertd_device *all[EXPERTD_DEVICES_MAX];
    struct expertd_device_facts facts;  // of the first; all compute alike
    int64_t timeout_ns;                 // that a wait gives what a device was given, 0: for ever. The owner of what waits sets it
    bool stuck;                         // something that a device was given has not ended, and what would wait for it is left alone
    enum expertd_device_variant forced; // EXPERTD_DEVICE_VARIANTS: none is
};

// The device that computes a rank: as even as can be, ranks of one device one after another.
static inline uint32_t expertd_device_of_rank(const struct expertd_devices *devices, uint32_t ranks, uint32_t rank) {
    return (uint32_t)((uint64_t)rank * devices->count / ranks);
}

// What is asked for by "cuda", "cuda:0,2", "sim" or "sim:3", each perhaps with the variant that all products of its dtype are to be
// made by: "cuda/wgmma_128". EXPERTD_ERR_CONFIG: it is none of these, says what they are.
struct expertd_devices_request {
    char kind[8];   // "cuda", "sim"
    uint32_t count; // 0: all that there are ("cuda")
    uint32_t numbers[EXPERTD_DEVICES_MAX];
    enum expertd_device_variant forced; // EXPERTD_DEVICE_VARIANTS: none
    bool unasked; // nobody asked for them by name: none is touched before such devices have shown these kernels right
};
EXPERTD_FALLIBLE expertd_devices_parse(const char *text, struct expertd_devices_request *out);

// Loads ../lib/expertd/libexpertd_KIND.so beside the folder of the running program and opens the devices. EXPERTD_ERR_UNAVAILABLE
// says what is missing and what would mend it: the module, the driver, the GPU, one that computes as the first does, or, where they
// are unasked, one that has shown these kernels right. EXPERTD_ERR_NOMEM, EXPERTD_ERR_SHARD_LOST: a device is there, but is not to
// be had.
EXPERTD_FALLIBLE expertd_devices_open(const struct expertd_devices_request *request, struct expertd_devices **out);
// The same devices with streams of their own, for another thread. EXPERTD_ERR_SHARD_LOST, EXPERTD_ERR_NOMEM.
EXPERTD_FALLIBLE expertd_devices_again(const struct expertd_devices *devices, struct expertd_devices **out);
void expertd_devices_close(struct expertd_devices *devices); // NULL is legal

// A device's failure as an error: EXPERTD_ERR_UNAVAILABLE (missing), EXPERTD_ERR_NOMEM, or EXPERTD_ERR_SHARD_LOST (failed), with
// the device's name.
EXPERTD_FALLIBLE expertd_devices_check(const struct expertd_devices *devices, uint32_t index, enum expertd_device_code code,
                                       const struct expertd_device_error *error);
// A call of the module's table, with arguments beside the device, in a function that returns its error.
#define EXPERTD_DEVICES_CALL(devices, index, call, ...)                                                                            \
    do {                                                                                                                           \
        struct expertd_device_error call_error_;                                                                                   \
        TRY(expertd_devices_check(devices, index, (devices)->table->call((devices)->all[index], __VA_ARGS__, &call_error_),        \
                                  &call_error_));                                                                                  \
    } while (0)
// Until all that the device was given is done, or its answers (download_behind) are there. With a deadline the device is asked, in
// ever longer steps; without one the thread sleeps until an interrupt. EXPERTD_ERR_SHARD_LOST: it failed, or did not end in time,
// and then what it was given may still be running.
EXPERTD_FALLIBLE expertd_devices_wait(const struct expertd_devices *devices, uint32_t index);
EXPERTD_FALLIBLE expertd_devices_wait_behind(const struct expertd_devices *devices, uint32_t index);
// Between two questions to a device that was first asked at since_ns.
void expertd_devices_pause(int64_t since_ns);
// Gives device memory back, and host memory its pages: not where a device is stuck, which would be waited for.
void expertd_devices_release(const struct expertd_devices *devices, uint32_t index, void *memory); // NULL is legal
void expertd_devices_unpin(const struct expertd_devices *devices, void *memory);

#ifdef __cplusplus
}
#endif

#endif
