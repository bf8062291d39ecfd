#include "kernels/plain/product_blocking.h"

#include "base/sizes.h"

enum {
    CALL_ROWS_MIN = 24,         // of converted rows
    SUMS_ROWS_MAX = 480,        // 480 KB of sums
    ROWS_BYTES_MAX = 1 << 20,   // of converted rows, where tiling gives no tm
    PANELS_BYTES_MAX = 1 << 19, // of panels, where their blocks are longer than BLOCK_BYTES
    BLOCK_BYTES = 96 << 10,     // of a panel's block of K: L2 holds four of them, the weights to be packed next, and sums
};

struct panel_kernels product_panel_kernels(const struct product *product) {
    enum expertd_dtype sum = product_sum_dtype(product->a.dtype, product->b.dtype);
    return (struct panel_kernels){
        .of = backend_kernels(kernel_selected(), sum), .format = product->b_format, .layout = product->b_layout};
}

// Rows that read B in place. None with tiling.tk, which needs packed blocks.
static size_t unpacked_rows_of(const struct product *product, const struct product_limits *limits,
                               const struct product_blocking *blocks) {
    const struct element_kernels *kernels = backend_kernels(kernel_selected(), blocks->sum);
    bool plain = !product->b_is_packed && !product->a.scale_dtype && !product->b.scale_dtype && limits->tiling.tk == 0;
    bool readable =
        blocks->sum == EXPERTD_DTYPE_F32 || product->b.dtype == blocks->sum; // without conversion, or widened by the kernel
    bool has_kernel = kernels->n_major || kernels->k_major;
    return plain && readable && has_kernel ? at_most(blocks->call_rows, UNPACKED_ROWS_MAX) : 0;
}

// All of K for panel kernels, and for panels packed at load, which macrokernels cut into blocks themselves.
static size_t k_block_of(const struct product *product, const struct product_limits *limits,
                         const struct product_blocking *blocks) {
    size_t step = limits->tiling.tk;
    if (!blocks->by_macrokernel || product->b_is_packed) {
        return limits->k;
    }
    size_t unit = KERNEL_K_UNIT(kernel_selected()->arithmetic, blocks->sum);
    step = step ? div_up(at_most(step, limits->k), unit) * unit
                : BLOCK_BYTES / (EXPERTD_KERNEL_PANEL * expertd_dtype_size(blocks->sum));
    if (blocks->scaled_blocks) {
        step = div_up(step, product->k_per_scale) * product->k_per_scale;
    }
    return at_most(step, limits->k);
}

// The 64 bytes keep the distance between rows from being a power of two, where rows would share cache sets.
static size_t converted_bytes(size_t k, enum expertd_dtype sum) {
    return aligned(k * expertd_dtype_size(sum)) + 64;
}

static struct product_blocking blocking_with(const struct product *product, const struct product_limits *limits,
                                             bool by_macrokernel) {
    const struct expertd_matmul_options *options = product->options;
    struct product_blocking blocks = {.sum = product_sum_dtype(product->a.dtype, product->b.dtype),
                                      .by_macrokernel = by_macrokernel};
    blocks.scaled_blocks = product->a.scale_dtype && product->k_per_scale;
    blocks.k_block = k_block_of(product, limits, &blocks);
    blocks.panel_bytes = product->b_is_packed ? 0 : expertd_packed_group_bytes(blocks.sum, blocks.k_block, EXPERTD_KERNEL_PANEL);
    if (product->copy_a_rows || product->a.dtype != blocks.sum) {
        blocks.row_bytes = converted_bytes(blocks.k_block, blocks.sum);
    }
    size_t tm = limits->tiling.tm;
    blocks.call_rows = tm ? tm : KERNEL_CALL_ROWS;
    if (!tm && blocks.row_bytes) {
        size_t fitting = ROWS_BYTES_MAX / blocks.row_bytes;
        blocks.call_rows = fitting > CALL_ROWS_MIN ? fitting : CALL_ROWS_MIN;
    }
    blocks.call_rows = at_most(at_most(blocks.call_rows, KERNEL_CALL_ROWS), limits->m ? limits->m : 1);
    blocks.unpacked_rows = unpacked_rows_of(product, limits, &blocks);
    size_t all_of_k = converted_bytes(limits->k, blocks.sum);
    blocks.unpacked_row_bytes =
        blocks.row_bytes && blocks.unpacked_rows && all_of_k <= ROWS_BYTES_MAX / blocks.unpacked_rows ? all_of_k : 0;
    blocks.sums_rows = blocks.k_block < limits->k ? at_most(limits->m ? limits->m : 1, SUMS_ROWS_MAX) : blocks.call_rows;
    size_t panels = div_up(limits->n, EXPERTD_KERNEL_PANEL);
    blocks.call_panels = options->input_buffer_count;
    if (!blocks.call_panels) {
        blocks.call_panels = blocks.panel_bytes > BLOCK_BYTES ? PANELS_BYTES_MAX / blocks.panel_bytes : KERNEL_PANELS_MAX;
    }
    blocks.call_panels = at_most(at_most(blocks.call_panels ? blocks.call_panels : 1, KERNEL_PANELS_MAX), panels ? panels : 1);
    blocks.sums_stride = by_macrokernel ? KERNEL_SUMS : blocks.call_panels * EXPERTD_KERNEL_PANEL;
    return blocks;
}

// Reduces panels first, then rows.
static void fit_limit(struct product_blocking *blocks, size_t limit) {
    if (thread_scratch_bytes(blocks) > limit) {
        blocks->unpacked_rows = 0;
    }
    while (blocks->call_panels > 1 && thread_scratch_bytes(blocks) > limit) {
        blocks->call_panels--;
        blocks->sums_stride = blocks->by_macrokernel ? KERNEL_SUMS : blocks->call_panels * EXPERTD_KERNEL_PANEL;
    }
    while (blocks->sums_rows > 1 && thread_scratch_bytes(blocks) > limit) {
        blocks->sums_rows = blocks->sums_rows / 2;
        blocks->call_rows = at_most(blocks->call_rows, blocks->sums_rows);
    }
}

// Macrokernels where there are any. Where their scratch exceeds vmem_limit_bytes, the kernels that need less.
struct product_blocking product_blocking_of(const struct product *product, const struct product_limits *limits) {
    size_t limit = product->options->compiler.vmem_limit_bytes;
    struct panel_kernels kernels = product_panel_kernels(product);
    bool by_macrokernel = panels_have_macrokernel(&kernels);
    struct product_blocking blocks = blocking_with(product, limits, by_macrokernel);
    if (limit) {
        fit_limit(&blocks, limit);
    }
    if (limit && by_macrokernel && thread_scratch_bytes(&blocks) > limit) {
        struct product_blocking by_panels = blocking_with(product, limits, false);
        fit_limit(&by_panels, limit);
        blocks = thread_scratch_bytes(&by_panels) < thread_scratch_bytes(&blocks) ? by_panels : blocks;
    }
    return blocks;
}

// ---- scratch

static size_t sums_bytes(const struct product_blocking *blocks) {
    size_t packed = blocks->sums_rows * blocks->sums_stride, unpacked = blocks->unpacked_rows * UNPACKED_STRIDE;
    return (packed > unpacked ? packed : unpacked) * sizeof(float);
}

static size_t partial_bytes(const struct product_blocking *blocks) {
    return blocks->scaled_blocks ? blocks->call_rows * blocks->sums_stride * sizeof(float) : 0;
}

static size_t rows_bytes(const struct product_blocking *blocks) {
    size_t packed = blocks->call_rows * blocks->row_bytes, unpacked = blocks->unpacked_rows * blocks->unpacked_row_bytes;
    return packed > unpacked ? packed : unpacked;
}

size_t thread_scratch_bytes(const struct product_blocking *blocks) {
    return blocks->call_panels * blocks->panel_bytes + aligned(rows_bytes(blocks)) + aligned(sums_bytes(blocks)) +
           aligned(partial_bytes(blocks)) + (blocks->by_macrokernel ? KERNEL_SCRATCH_BYTES : 0);
}

struct thread_scratch thread_scratch_at(const struct product_blocking *blocks, char *base) {
    char *at = base;
    struct thread_scratch scratch = {.panels = at};
    scratch.rows = at += blocks->call_panels * blocks->panel_bytes;
    scratch.sums = (float *)(at += aligned(rows_bytes(blocks)));
    scratch.partial = (float *)(at += aligned(sums_bytes(blocks)));
    scratch.kernel = at + aligned(partial_bytes(blocks));
    return scratch;
}
