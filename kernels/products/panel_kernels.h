// Chooses the backend's kernel for packed weights: elements in panels, elements in slices, or quantised codes. Private to kernels/.
#ifndef EXPERTD_KERNELS_PRODUCTS_PANEL_KERNELS_H
#define EXPERTD_KERNELS_PRODUCTS_PANEL_KERNELS_H

#include "kernels/cpu/backend/backend.h"

struct panel_kernels {
    const struct element_kernels *of;              // the backend's kernels for the rows' dtype
    const struct expertd_quantised_format *format; // of codes; NULL: elements
    enum expertd_packed_layout layout;
    bool single_panels; // use the panel kernel only
};

static inline struct panel_kernels panel_kernels_of(const struct expertd_packed_weights *weights) {
    return (struct panel_kernels){
        .of = backend_kernels(kernel_selected(), weights->dtype), .format = weights->format, .layout = weights->layout};
}

// The macrokernel for elements; NULL: there is none. Codes have another function type.
static inline macrokernel *panels_macrokernel(const struct panel_kernels *kernels) {
    return kernels->layout == EXPERTD_PACKED_PANELS ? kernels->of->macrokernel : kernels->of->slices[kernels->layout].macrokernel;
}

// Is there a macrokernel, which takes several panels per call?
static inline bool panels_have_macrokernel(const struct panel_kernels *kernels) {
    return !kernels->single_panels &&
           (kernels->format ? kernels->of->quantised_large_m != NULL : panels_macrokernel(kernels) != NULL);
}

// Up to this m, the panel kernel is faster than the macrokernel; 0: never.
static inline size_t panels_small_m_rows(const struct panel_kernels *kernels) {
    return panels_have_macrokernel(kernels) && !kernels->format && kernels->layout == EXPERTD_PACKED_PANELS ? kernels->of->small_m
                                                                                                            : 0;
}

// Rows that the macrokernel caches for the next call with the same rows, at most.
static inline size_t panels_cached_rows(const struct panel_kernels *kernels) {
    if (!kernels->format) {
        return KERNEL_CALL_ROWS;
    }
    return kernels->of->quantised_cached ? kernels->of->quantised_cached : (size_t)KERNEL_QUANTISED_ROWS;
}

// The rows of a call that it caches, in bytes. For codes with quantised_span, that function says how many rows instead.
static inline struct macrokernel_caching panels_caching(const struct panel_kernels *kernels) {
    if (kernels->format) {
        return (struct macrokernel_caching){kernels->of->quantised_cached ? KERNEL_CODED_ROWS_CACHED : 0, 1};
    }
    if (kernels->layout == EXPERTD_PACKED_PANELS) {
        return kernels->of->caches;
    }
    const size_t widened = kernels->of->slices[kernels->layout].widened;
    return (struct macrokernel_caching){KERNEL_ROWS_CACHED, widened ? widened : 1};
}

// Does the macrokernel prefetch the next rows? Else its caller must.
static inline bool panels_prefetch_rows(const struct panel_kernels *kernels) {
    return kernels->format ? kernels->of->quantised_cached > 0 && !kernels->of->quantised_span
                           : kernels->layout != EXPERTD_PACKED_PANELS;
}

// Bytes of scratch beyond KERNEL_SCRATCH_BYTES to pass to the macrokernel, of `available` ones.
static inline size_t panels_scratch_more(const struct panel_kernels *kernels, size_t available) {
    const bool all = kernels->format ? kernels->of->quantised_span != NULL : kernels->of->all_scratch;
    return all || available < KERNEL_SCRATCH_MORE ? available : (size_t)KERNEL_SCRATCH_MORE;
}

static inline void multiply_panel(const struct panel_kernels *kernels, const struct panel_args *args) {
    if (kernels->format) {
        kernels->of->quantised(args, kernels->format);
    } else if (kernels->layout == EXPERTD_PACKED_PANELS) {
        kernels->of->panel(args);
    } else {
        kernels->of->slices[kernels->layout].panel(args);
    }
}

static inline void multiply_panels(const struct panel_kernels *kernels, const struct macrokernel_args *args) {
    if (kernels->format) {
        kernels->of->quantised_large_m(args, kernels->format);
    } else {
        panels_macrokernel(kernels)(args);
    }
}

#endif
