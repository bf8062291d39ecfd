// [k, n] weights: one block of K at a time. The first tile of rows loads the block into L2, the other tiles read it there, and all
// of them prefetch the next block. [n, k] weights: one kernel call takes all rows.
#include "kernels/plain/product_unpacked.h"
#include "kernels/cpu/backend/unpacked_k_major.h"
#include "kernels/cpu/backend/unpacked_n_major.h"

enum {
    BLOCK_K = 32, // this block and the next stay in L2
    AHEAD_K = 16, // prefetch distance in k, where there is one tile only
};

static bool is_k_major(const struct product_span *span) {
    return span->group->b.k_stride == 1;
}

bool product_is_read_in_place(const struct product_state *state, const struct product_span *span) {
    size_t rows = span->end - span->row;
    if (span->group->k == 0 || rows > state->blocking.unpacked_rows) {
        return false;
    }
    const struct element_kernels *kernels = state->kernels.of;
    if (is_k_major(span)) {
        bool widened = state->read_b.from != state->blocking.sum;
        return kernels->k_major && rows <= (widened ? kernels->k_major_widened_rows : kernels->k_major_rows);
    }
    return span->group->b.line_stride == 1 && kernels->n_major && (kernels->n_major_rows == 0 || rows <= kernels->n_major_rows);
}

// All rows of the call by a block of K, from k on, tile by tile. The call's x point to its own k.
static void multiply_n_major(const struct product_call *c, size_t k, size_t depth) {
    const struct product_operand *b = &c->group->b;
    enum expertd_dtype sum = c->state->blocking.sum, from = c->state->read_b.from;
    size_t column = c->panel * EXPERTD_KERNEL_PANEL;
    const void *x[N_MAJOR_ROWS];
    struct n_major_args args = {.x = x,
                                .dtype = from,
                                .weights = (const char *)b->data + (k * b->k_stride + column) * expertd_dtype_size(from),
                                .stride = b->k_stride * expertd_dtype_size(from),
                                .k = depth,
                                .columns = at_most(c->group->n - column, c->count * EXPERTD_KERNEL_PANEL),
                                .sums_stride = c->stride,
                                .ahead = c->rows > N_MAJOR_ROWS ? BLOCK_K : AHEAD_K,
                                .share = 0,
                                .shares = div_up(c->rows, N_MAJOR_ROWS),
                                .accumulate = k > 0};
    for (size_t row = 0; row < c->rows; row += args.rows) {
        args.rows = call_part(c->rows - row, N_MAJOR_ROWS);
        args.sums = c->sums + row * c->stride;
        for (size_t r = 0; r < args.rows; r++) {
            x[r] = (const char *)c->x[row + r] + (k - c->k) * expertd_dtype_size(sum);
        }
        c->state->kernels.of->n_major(&args);
        args.share++;
    }
}

static void multiply_k_major(const struct product_call *c) {
    const struct product_operand *b = &c->group->b;
    enum expertd_dtype from = c->state->read_b.from;
    size_t column = c->panel * EXPERTD_KERNEL_PANEL, size = expertd_dtype_size(from);
    c->state->kernels.of->k_major(&(struct k_major_args){.x = c->x,
                                                         .rows = c->rows,
                                                         .dtype = from,
                                                         .weights = (const char *)b->data + (column * b->line_stride + c->k) * size,
                                                         .stride = b->line_stride * size,
                                                         .k = c->depth,
                                                         .columns = at_most(c->group->n - column, c->count * EXPERTD_KERNEL_PANEL),
                                                         .sums = c->sums,
                                                         .sums_stride = c->stride,
                                                         .accumulate = c->k > 0});
}

// All of K is one block where rows are read in place or fit into scratch, so that [n, k] weights are read in longer runs.
void product_run_unpacked(struct product_call c, const struct product_span *span) {
    const struct product_blocking *blocks = &c.state->blocking;
    bool k_major = is_k_major(span), all_of_k = !blocks->row_bytes || blocks->unpacked_row_bytes;
    size_t k_block = all_of_k ? c.group->k : blocks->k_block;
    c.row_bytes = blocks->unpacked_row_bytes ? blocks->unpacked_row_bytes : blocks->row_bytes;
    c.row = span->row, c.rows = span->end - span->row, c.stride = UNPACKED_STRIDE;
    for (; c.panel < span->panel_end; c.panel += c.count) {
        c.count = call_part(span->panel_end - c.panel, UNPACKED_COLUMNS / EXPERTD_KERNEL_PANEL);
        for (c.k = 0; c.k < c.group->k; c.k += c.depth) {
            c.depth = at_most(k_block, c.group->k - c.k);
            call_point_to_rows(&c);
            for (size_t k = 0; k < c.depth && !k_major; k += BLOCK_K) {
                multiply_n_major(&c, c.k + k, at_most(c.depth - k, BLOCK_K));
            }
            if (k_major) {
                multiply_k_major(&c);
            }
        }
        for (size_t done = 0; done < c.count; done += KERNEL_PANELS_MAX) {
            struct product_call part = c;
            part.panel += done, part.count = at_most(c.count - done, KERNEL_PANELS_MAX), part.sums += done * EXPERTD_KERNEL_PANEL;
            call_epilogue(&part);
        }
    }
}
