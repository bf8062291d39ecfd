// The CPU backends of the grouped matmul, chosen once at start: the fastest that the CPU has, or forced by name.
// Every one gives the same bits; each is checked at selection on boundary vectors against the scalar twin and refused if it
// differs.
#ifndef EXPERTD_KERNELS_BACKEND_H
#define EXPERTD_KERNELS_BACKEND_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct activation_args;
struct combine_args;

// One instruction set's copies of every inner loop: a row block against a panel of packed columns (the layouts are in weights.c),
// and the loops over one row. Kernels set and restore the floating-point mode they need; the others run in IEEE's default.
struct kernel_backend {
    const char *name; // "scalar", "avx2", "avx512", "avx512bf16"
    // out[rows][columns] = x rows (pointers to k elements, 1 <= rows <= KERNEL_ROWS_MAX) times the panel, whole K;
    // 1 <= columns <= KERNEL_PANEL are stored.
    void (*panel_f32)(const float *const *x, size_t rows, const float *panel, size_t k, float *out, size_t out_stride,
                      size_t columns);
    void (*panel_bf16)(const uint16_t *const *x, size_t rows, const uint16_t *panel, size_t k, float *out, size_t out_stride,
                       size_t columns);
    void (*activation)(const struct activation_args *args);                   // activation_row
    void (*combine)(const struct combine_args *args);                         // combine_row
    void (*exp_minus)(const float *x, float shift, size_t count, float *out); // out[i] = exp(x[i] - shift); in place is legal
    void (*sigmoid)(const float *x, size_t count, float *out);                // in place is legal
    void (*sqrt_softplus)(const float *x, size_t count, float *out);          // in place is legal
};

enum { KERNEL_ROWS_MAX = 6, KERNEL_PANEL = 64 };

// Chooses the backend of this process: `name` from configuration, "auto" for the fastest the CPU has (tried in about a
// millisecond).
// ERR_CONFIG for an unknown name (the message lists the names), ERR_UNAVAILABLE for one that this CPU lacks.
FALLIBLE kernel_select(const char *name);

// The chosen backend; "auto" is selected at the first call where nobody chose. Never NULL.
const struct kernel_backend *kernel_selected(void);

// The ARITHMETIC part of numerics_id: "cpu".
const char *kernel_arithmetic(void);

// The i-th backend compiled into this build, widest first, scalar last, NULL past the end; *usable: this CPU runs it.
const struct kernel_backend *kernel_backend_at(size_t i, int *usable);

#endif
