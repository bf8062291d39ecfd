// The CPU backends of the grouped matmul, chosen once at start: by what the CPU has, or forced by name.
// Every one gives the same bits; each is checked at selection on boundary vectors against the scalar twin and refused if it
// differs.
#ifndef EXPERTD_KERNELS_BACKEND_H
#define EXPERTD_KERNELS_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

// A row block against a panel of packed columns; see kernels/cpu/ for the layouts.
struct kernel_backend {
    const char *name; // "scalar", "avx2", "avx512", "avx512bf16"
    // acc[rows][panel columns] = x rows (pointers, `rows` <= KERNEL_ROWS_MAX) times the panel, whole K.
    void (*panel_f32)(const float *const *x, size_t rows, const float *panel, size_t k, float *out, size_t out_stride,
                      size_t columns);
    void (*panel_bf16)(const uint16_t *const *x, size_t rows, const uint16_t *panel, size_t k, float *out, size_t out_stride,
                       size_t columns);
};

enum { KERNEL_ROWS_MAX = 6, KERNEL_PANEL = 64 };

// Chooses the backend of this process: `name` from configuration, "auto" for the best the CPU has.
// ERR_CONFIG for an unknown name (the message lists the names), ERR_UNAVAILABLE for one that this CPU lacks.
FALLIBLE kernel_select(const char *name);

// The chosen backend; "auto" is selected at the first call where nobody chose. Never NULL.
const struct kernel_backend *kernel_selected(void);

// The ARITHMETIC part of numerics_id: "cpu".
const char *kernel_arithmetic(void);

// The i-th backend compiled into this build, best first, NULL past the end; *usable: this CPU runs it.
const struct kernel_backend *kernel_backend_at(size_t i, int *usable);

#endif
