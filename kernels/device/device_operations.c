#include "expertd/kernels/device_operations.h"

#include <stdlib.h>

#include "base/arena.h"
#include "kernels/operations/product_lists.h"

enum { TILE = 64, EXTRA_GROUPS = 2 }; // extra groups: regions of the output that are set to 0

struct expertd_device_operations {
    struct expertd_devices *devices;
    uint32_t number, groups_max;
    struct product_group *groups;                  // [groups_max]
    struct arena staging;                          // pinned
    struct expertd_device_product_group *pending;  // [groups_max + EXTRA_GROUPS] in staging
    struct expertd_device_product_group *uploaded; // the same in device memory
};

static FALLIBLE reserve(struct expertd_device_operations *o) {
    size_t bytes = (o->groups_max + EXTRA_GROUPS) * sizeof *o->pending;
    void *uploaded;
    TRY(arena_init(&o->staging, bytes));
    EXPERTD_DEVICES_CALL(o->devices, o->number, pin, o->staging.base, o->staging.bytes);
    o->pending = (struct expertd_device_product_group *)(void *)o->staging.base;
    EXPERTD_DEVICES_CALL(o->devices, o->number, reserve, bytes, &uploaded);
    o->uploaded = uploaded;
    return OK;
}

FALLIBLE expertd_device_operations_create(struct expertd_devices *devices, uint32_t number, uint32_t groups_max,
                                          struct expertd_device_operations **out) {
    *out = NULL;
    struct expertd_device_operations *o = calloc(1, sizeof *o);
    struct product_group *groups = calloc((size_t)groups_max + 1, sizeof *groups);
    if (!o || !groups) {
        free(o), free(groups);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u groups of a device's products", groups_max);
    }
    *o = (struct expertd_device_operations){.devices = devices, .number = number, .groups_max = groups_max, .groups = groups};
    err_t e = reserve(o);
    if (err_is(e)) {
        expertd_device_operations_destroy(o);
        return e;
    }
    *out = o;
    return OK;
}

void expertd_device_operations_destroy(struct expertd_device_operations *o) {
    if (!o) {
        return;
    }
    struct expertd_device *device = o->devices->all[o->number];
    o->devices->table->release(device, o->uploaded);
    if (o->pending) {
        o->devices->table->unpin(device, o->staging.base);
    }
    arena_deinit(&o->staging);
    free(o->groups);
    free(o);
}

// ---- a list of products

static FALLIBLE check_groups(const struct expertd_device_operations *o, size_t groups,
                             const struct expertd_matmul_options *options) {
    if (groups > o->groups_max) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "num_groups", "%zu groups: these operations were created for at most %u", groups,
                   o->groups_max);
    }
    if (options && options->interpret) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "interpret", "interpret is set: the scalar twin runs on the CPU only");
    }
    return OK;
}

static struct expertd_device_product_operand operand_of(const struct product_operand *from, const uint32_t *lines) {
    return (struct expertd_device_product_operand){.data = from->data,
                                                   .lines = lines,
                                                   .line_stride = from->line_stride,
                                                   .k_stride = from->k_stride,
                                                   .scales = from->scales,
                                                   .scale_line_stride = from->scale_line_stride,
                                                   .scale_k_stride = from->scale_k_stride};
}

struct list {
    struct expertd_device_product product;
    uint64_t tiles;
};

static FALLIBLE add_group(struct expertd_device_operations *o, struct list *list, const struct product_group *g) {
    if (g->m == 0 || g->n == 0) {
        return OK;
    }
    if (g->m > INT32_MAX || g->n > INT32_MAX || g->k > INT32_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "m", "a product of %zu x %zu by %zu: on devices, m, n and k are below 2^31", g->m, g->n,
                   g->k);
    }
    uint64_t tiles = (uint64_t)((g->m + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE);
    o->pending[list->product.num_groups++] = (struct expertd_device_product_group){.a = operand_of(&g->a, g->a_rows),
                                                                                   .b = operand_of(&g->b, NULL),
                                                                                   .m = (uint32_t)g->m,
                                                                                   .n = (uint32_t)g->n,
                                                                                   .k = (uint32_t)g->k,
                                                                                   .first_tile = (uint32_t)list->tiles,
                                                                                   .out = g->out,
                                                                                   .out_stride = g->out_stride,
                                                                                   .c = g->c,
                                                                                   .c_stride = g->c_stride,
                                                                                   .alpha = g->alpha,
                                                                                   .beta = g->beta};
    list->tiles += tiles;
    if (list->tiles > INT32_MAX) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "out", "the output has more than 2^31 tiles of 64 x 64");
    }
    return OK;
}

// Sets a region of the output to 0, by a product with k = 0.
static FALLIBLE add_zeros(struct expertd_device_operations *o, struct list *list, void *out, size_t rows, size_t columns,
                          size_t stride) {
    return add_group(o, list, &(struct product_group){.m = rows, .n = columns, .out = out, .out_stride = stride, .alpha = 1.0f});
}

static FALLIBLE begin_list(struct expertd_device_operations *o, const struct product *p, struct list *list) {
    *list = (struct list){.product = {.groups = o->uploaded,
                                      .a = {p->a.dtype, p->a.scale_dtype, (uint32_t)p->a.lines_per_scale},
                                      .b = {p->b.dtype, p->b.scale_dtype, (uint32_t)p->b.lines_per_scale},
                                      .k_per_scale = (uint32_t)p->k_per_scale,
                                      .out_dtype = p->out_dtype}};
    // Until then, the device reads the previous list.
    TRY(expertd_devices_wait(o->devices, o->number));
    for (size_t g = 0; g < p->num_groups; g++) {
        TRY(add_group(o, list, &p->groups[g]));
    }
    return OK;
}

static FALLIBLE launch(struct expertd_device_operations *o, struct list *list) {
    list->product.tiles = (uint32_t)list->tiles;
    EXPERTD_DEVICES_CALL(o->devices, o->number, copy, EXPERTD_DEVICE_UPLOAD, o->uploaded, o->pending,
                         list->product.num_groups * sizeof *o->pending);
    EXPERTD_DEVICES_CALL(o->devices, o->number, product, &list->product);
    return OK;
}

// ---- the operations

FALLIBLE expertd_device_grouped_gemm(struct expertd_device_operations *o, const struct expertd_grouped_gemm_args *args) {
    struct product product;
    struct list list;
    size_t end;
    TRY(check_groups(o, args->num_groups, args->options));
    TRY(grouped_gemm_products(args, o->groups, &product, &end));
    TRY(begin_list(o, &product, &list));
    if (end < args->out_count) {
        TRY(add_zeros(o, &list, (char *)args->out + end * expertd_dtype_size(args->out_dtype), 1, args->out_count - end, 0));
    }
    return launch(o, &list);
}

FALLIBLE expertd_device_transposed_grouped_matmul(struct expertd_device_operations *o,
                                                  const struct expertd_transposed_grouped_matmul_args *args) {
    struct product product;
    struct list list;
    TRY(check_groups(o, args->num_actual_groups, args->options));
    TRY(transposed_grouped_matmul_products(args, o->groups, &product));
    TRY(begin_list(o, &product, &list));
    return launch(o, &list);
}

// Rows outside the local groups: 0, or existing_out's.
static FALLIBLE copy_other_rows(struct expertd_device_operations *o, const struct expertd_grouped_matmul_args *args,
                                const struct product *p, struct list *list, size_t begin, size_t end) {
    size_t size = expertd_dtype_size(p->out_dtype), n = expertd_rhs_shape(&args->rhs).n;
    char *out = (char *)args->out + begin * args->out_stride * size;
    if (args->existing_mode == EXPERTD_EXISTING_NONE) {
        return add_zeros(o, list, out, end - begin, n, args->out_stride);
    }
    for (size_t row = begin; row < end && args->existing_out != args->out; row++) {
        const char *from = (const char *)args->existing_out + row * args->existing_stride * size;
        EXPERTD_DEVICES_CALL(o->devices, o->number, copy, EXPERTD_DEVICE_LOCAL, (char *)args->out + row * args->out_stride * size,
                             from, n * size);
    }
    return OK;
}

FALLIBLE expertd_device_grouped_matmul(struct expertd_device_operations *o, const struct expertd_grouped_matmul_args *args) {
    struct product product;
    struct list list;
    size_t local[2];
    if (args->rhs.kind == EXPERTD_RHS_PACKED) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "rhs", "rhs is packed for the CPU: devices take plain weights");
    }
    TRY(check_groups(o, args->num_actual_groups, args->options));
    TRY(grouped_matmul_products(args, o->groups, &product, local));
    TRY(begin_list(o, &product, &list));
    TRY(copy_other_rows(o, args, &product, &list, 0, local[0]));
    TRY(copy_other_rows(o, args, &product, &list, local[1], args->m));
    return launch(o, &list);
}
