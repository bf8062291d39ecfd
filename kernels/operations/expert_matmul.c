#include "expertd/kernels/expert_matmul.h"

#include "kernels/cpu/backend/backend.h"
#include "kernels/cpu/common/nontemporal_store.h"
#include "kernels/operations/grouped_matmul_general.h"
#include "kernels/operations/matmul_walk.h"
#include "kernels/operations/walk_results.h"
#include "kernels/products/matmul_check.h"

static char *out_at(const struct expertd_grouped_matmul_args *product, size_t row, size_t column) {
    return (char *)product->out + (row * product->out_stride + column) * expertd_dtype_size(product->rhs.packed->dtype);
}

static const float *bias_at(void *const *bias, size_t group, size_t column) {
    return bias ? (const float *)bias[group] + column : NULL;
}

static FALLIBLE check_product(const struct expertd_grouped_matmul_args *product, const void *workspace) {
    TRY(expertd_grouped_matmul_check(product));
    if (!grouped_matmul_is_plain_serving(product)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "product",
                   "product is not of packed F32 or BF16 weights, or has an option, a dtype or an existing output: "
                   "call expertd_grouped_matmul for those");
    }
    const struct expertd_packed_weights *rhs = product->rhs.packed;
    TRY(matmul_check_rows(&(struct matmul_rows){"out", product->out, rhs->dtype, product->m, rhs->n, product->out_stride}));
    return matmul_check_workspace(workspace, expertd_packed_matmul_workspace_bytes(product->m, product->num_groups));
}

// ---- gate and up

enum { OPERAND_UP, OPERAND_GATE };

enum { PREFETCH_ROWS = 6 };

// Prefetches the output lines of a row, PREFETCH_ROWS rows before they are written.
static void prefetch_out_row(const struct expertd_gate_up_args *args, const struct walk_sums *sums, size_t row) {
    if (row >= sums->rows) {
        return;
    }
    const char *out = out_at(&args->product, sums->first_row + row, sums->column);
    size_t bytes = sums->columns * expertd_dtype_size(args->product.rhs.packed->dtype);
    for (size_t at = 0; at < bytes; at += STREAM_LINE) {
        __builtin_prefetch(out + at, 1);
    }
}

static void activate(const void *context, const struct walk_sums *sums) {
    const struct expertd_gate_up_args *args = context;
    struct expertd_activation_args row = {
        .activation = args->activation,
        .gate_bias = bias_at(args->gate_bias, sums->group, sums->column),
        .up_bias = bias_at(args->up_bias, sums->group, sums->column),
        .width = sums->columns,
        .dtype = args->product.rhs.packed->dtype,
    };
    for (size_t r = 0; r < PREFETCH_ROWS; r++) {
        prefetch_out_row(args, sums, r);
    }
    for (size_t r = 0; r < sums->rows; r++) {
        prefetch_out_row(args, sums, r + PREFETCH_ROWS);
        row.up = sums->sums[OPERAND_UP] + r * KERNEL_SUMS;
        row.gate = args->gate ? sums->sums[OPERAND_GATE] + r * KERNEL_SUMS : NULL;
        row.out = out_at(&args->product, sums->first_row + r, sums->column);
        expertd_activation_row(&row);
    }
}

static void zero_activated(const void *context, size_t begin, size_t end) {
    const struct expertd_grouped_matmul_args *product = &((const struct expertd_gate_up_args *)context)->product;
    walk_results_zero(product, product->rhs.packed->dtype, begin, end);
}

// Checks gate like the rhs of a product.
static FALLIBLE check_gate_weights(const struct expertd_gate_up_args *args) {
    struct expertd_grouped_matmul_args product = args->product;
    product.rhs = expertd_rhs_packed(args->gate);
    err_t e = expertd_grouped_matmul_check(&product);
    if (err_is(e)) {
        struct err_copy why;
        err_save(e, &why);
        FAIL_FIELD(EXPERTD_ERR_INVALID, "gate", "gate as rhs: %.512s", why.message);
    }
    return OK;
}

static FALLIBLE check_activation(const struct expertd_activation *activation) {
    if (!activation) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "activation",
                   "activation is missing: for a product without activation, call expertd_grouped_matmul");
    }
    if ((unsigned)activation->kind > EXPERTD_ACTIVATION_RELU2 || (unsigned)activation->clamp > EXPERTD_CLAMP_AFTER) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "activation", "activation is of kind %d with clamp %d: activation.h lists them",
                   (int)activation->kind, (int)activation->clamp);
    }
    return OK;
}

// Each group that has rows needs a bias.
static FALLIBLE check_bias(void *const *bias, const char *name, const struct expertd_grouped_matmul_args *product) {
    for (size_t g = 0; bias && g < product->num_actual_groups; g++) {
        bool is_read = product->group_sizes[product->group_offset + g] > 0 && product->rhs.packed->n > 0;
        if (is_read && (!bias[g] || (uintptr_t)bias[g] % sizeof(float) != 0)) {
            FAIL_FIELD(EXPERTD_ERR_INVALID, name,
                       "%s of group %zu is at %p: F32 values must be aligned to 4 bytes; for no bias, %s itself must be NULL", name,
                       g, bias[g], name);
        }
    }
    return OK;
}

static FALLIBLE check_gate(const struct expertd_gate_up_args *args) {
    const struct expertd_packed_weights *up = args->product.rhs.packed, *gate = args->gate;
    if (expertd_activation_is_gated(args->activation) != (gate != NULL)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "gate", "gate is %s, but the activation has %s", gate ? "given" : "missing",
                   gate ? "none" : "one");
    }
    if (gate && (gate->dtype != up->dtype || gate->k != up->k || gate->n != up->n || gate->groups != up->groups)) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "gate", "gate is %zu groups of %s[%zu, %zu], up is %zu of %s[%zu, %zu]: both must be equal",
                   gate->groups, expertd_dtype_name(gate->dtype), gate->n, gate->k, up->groups, expertd_dtype_name(up->dtype),
                   up->n, up->k);
    }
    if (gate && !gate->format && !up->format && gate->layout != up->layout) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "gate", "gate is packed in layout %d, up in %d: both must be equal", (int)gate->layout,
                   (int)up->layout);
    }
    return gate ? check_gate_weights(args) : OK;
}

FALLIBLE expertd_expert_gate_up(const struct expertd_gate_up_args *args, struct expertd_team *team, void *workspace) {
    TRY(check_product(&args->product, workspace));
    TRY(check_activation(args->activation));
    TRY(check_gate(args));
    TRY(check_bias(args->gate_bias, "gate_bias", &args->product));
    TRY(check_bias(args->up_bias, "up_bias", &args->product));
    struct matmul_walk walk = {
        .args = &args->product,
        .rhs = {[OPERAND_UP] = args->product.rhs.packed, [OPERAND_GATE] = args->gate},
        .operands = args->gate ? 2 : 1,
        .out_element = expertd_dtype_size(args->product.rhs.packed->dtype),
        .epilogue = activate,
        .zero = zero_activated,
        .context = args,
    };
    matmul_walk(&walk, team, workspace);
    return OK;
}

// ---- down

static void store_rows(const void *context, const struct walk_sums *sums) {
    const struct expertd_down_args *args = context;
    const struct walk_results results = {&args->product, args->product.rhs.packed->dtype, args->row_scale};
    walk_results_store(&results, sums, bias_at(args->bias, sums->group, sums->column));
}

static void zero_rows(const void *context, size_t begin, size_t end) {
    const struct expertd_grouped_matmul_args *product = &((const struct expertd_down_args *)context)->product;
    walk_results_zero(product, product->rhs.packed->dtype, begin, end);
}

FALLIBLE expertd_expert_down(const struct expertd_down_args *args, struct expertd_team *team, void *workspace) {
    TRY(check_product(&args->product, workspace));
    TRY(check_bias(args->bias, "bias", &args->product));
    if ((uintptr_t)args->row_scale % sizeof(float) != 0) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "row_scale", "row_scale is at %p: F32 values must be aligned to 4 bytes",
                   (const void *)args->row_scale);
    }
    const enum expertd_dtype dtype = args->product.rhs.packed->dtype;
    struct matmul_walk walk = {
        .args = &args->product,
        .rhs = {args->product.rhs.packed},
        .operands = 1,
        .out_element = walk_results_stream(&args->product, dtype) ? 0 : expertd_dtype_size(dtype),
        .epilogue = store_rows,
        .zero = zero_rows,
        .context = args,
    };
    matmul_walk(&walk, team, workspace);
    return OK;
}
