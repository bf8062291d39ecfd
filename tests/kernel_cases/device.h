// The device that cases run on: copies operands to it and answers back.
#ifndef EXPERTD_TESTS_KERNEL_CASES_DEVICE_H
#define EXPERTD_TESTS_KERNEL_CASES_DEVICE_H

#include "base/arena.h"
#include "expertd/kernels/device_operations.h"

enum { CASE_PIECES_MAX = 16 };

struct case_device {
    struct expertd_devices *devices;
    struct expertd_device_operations *operations;
    struct arena staging; // pinned
    bool pinned;
    void *pieces[CASE_PIECES_MAX]; // of the current run
    int count;
};

// text: "sim", "cuda:1". Selects the CPU's scalar twin of the device's arithmetic; *has_twin is false where there is none.
FALLIBLE case_device_open(const char *text, struct case_device *out, bool *has_twin);
void case_device_close(struct case_device *d); // legal on a zeroed struct

// Copies host memory to the device, until case_device_drop. NULL gives NULL.
FALLIBLE case_device_copy(struct case_device *d, const void *host, size_t bytes, void **out);
FALLIBLE case_back(struct case_device *d, const void *there, size_t bytes, void *host);
void case_device_drop(struct case_device *d);

#endif
