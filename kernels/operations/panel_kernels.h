// Rows against panels as they lie in memory, by the kernel for so many: panels of elements, whole or as slices, or of a format's
// codes.
// Private to kernels/.
#ifndef EXPERTD_KERNELS_OPERATIONS_PANEL_KERNELS_H
#define EXPERTD_KERNELS_OPERATIONS_PANEL_KERNELS_H

#include "kernels/cpu/backend.h"

struct panel_kernels {
    const struct element_kernels *of;              // the rows' element
    const struct expertd_quantised_format *format; // of codes; NULL: panels of that element
    enum expertd_packed_layout layout;
    bool one_by_one; // never several panels in a call
};

static inline struct panel_kernels panel_kernels_of(const struct expertd_packed_weights *weights) {
    return (struct panel_kernels){
        .of = backend_kernels(kernel_selected(), weights->dtype), .format = weights->format, .layout = weights->layout};
}

// The kernel that takes several panels in a call, but for codes, whose call has another form; NULL: there is none.
static inline macrokernel *panels_macrokernel(const struct panel_kernels *kernels) {
    return kernels->layout == EXPERTD_PACKED_PANELS ? kernels->of->group : kernels->of->slices[kernels->layout].group;
}

// Is there a kernel that takes several panels in a call?
static inline bool panels_go_by_groups(const struct panel_kernels *kernels) {
    return !kernels->one_by_one &&
           (kernels->format ? kernels->of->quantised_macrokernel_of != NULL : panels_macrokernel(kernels) != NULL);
}

// Rows up to which a panel at a time is the faster although there is one; 0: none.
static inline size_t panels_small_m_rows(const struct panel_kernels *kernels) {
    return panels_go_by_groups(kernels) && !kernels->format && kernels->layout == EXPERTD_PACKED_PANELS ? kernels->of->small_m : 0;
}

// Rows that a call's kernel keeps for the next call with the same, at most.
static inline size_t panels_cached_rows(const struct panel_kernels *kernels) {
    if (!kernels->format) {
        return KERNEL_CALL_ROWS;
    }
    return kernels->of->quantised_cached ? kernels->of->quantised_cached : (size_t)KERNEL_QUANTISED_ROWS;
}

// What it keeps of a call's rows, but where quantised_span says how many.
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

// Does it fetch the rows that come next? Else its caller does.
static inline bool panels_prefetch_rows(const struct panel_kernels *kernels) {
    return kernels->format ? kernels->of->quantised_cached > 0 && !kernels->of->quantised_span
                           : kernels->layout != EXPERTD_PACKED_PANELS;
}

// Bytes of scratch beyond KERNEL_SCRATCH_BYTES that its calls are given, of so many.
static inline size_t panels_scratch_more(const struct panel_kernels *kernels, size_t room) {
    const bool all = kernels->format ? kernels->of->quantised_span != NULL : kernels->of->all_scratch;
    return all || room < KERNEL_SCRATCH_MORE ? room : (size_t)KERNEL_SCRATCH_MORE;
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
        kernels->of->quantised_macrokernel_of(args, kernels->format);
    } else {
        panels_macrokernel(kernels)(args);
    }
}

#endif
