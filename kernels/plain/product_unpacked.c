// A task of few rows against plain weights, which are read where they lie. As [k, n] a block of K at a time: the first tile of rows
// brings a block into L2, where the other tiles find it while they all fetch the next one. As [n, k] by a kernel that takes all
// rows.
#include "kernels/plain/product_unpacked.h"
#include "kernels/cpu/unpacked_k_major.h"
#include "kernels/cpu/unpacked_n_major.h"

enum {
    BLOCK_K = 32, // that stay in L2 over the tiles, and the next ones beside them
    AHEAD_K = 16, // that one tile fetches ahead
};

static bool is_k_major(const struct product_span *span) {
    return span->group->b.k_stride == 1;
}

bool product_stays_unpacked(const struct product_work *work, const struct product_span *span) {
    size_t rows = span->end - span->row;
    if (span->group->k == 0 || rows > work->holding.n_major_rows) {
        return false;
    }
    const struct element_kernels *kernels = work->kernels.of;
    if (is_k_major(span)) {
        bool widened = work->read_b.from != work->holding.sum;
        return kernels->k_major && rows <= (widened ? kernels->k_major_widened_rows : kernels->k_major_rows);
    }
    return span->group->b.line_stride == 1 && kernels->n_major && (kernels->n_major_rows == 0 || rows <= kernels->n_major_rows);
}

// The call's rows, whose x begin at its k, against a block of K from k on; tile by tile: the first one brings it into L2.
static void multiply_n_major(const struct product_call *c, size_t k, size_t depth) {
    const struct product_operand *b = &c->group->b;
    enum expertd_dtype sum = c->work->holding.sum, from = c->work->read_b.from;
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
                                .goes_on = k > 0};
    for (size_t row = 0; row < c->rows; row += args.rows) {
        args.rows = call_part(c->rows - row, N_MAJOR_ROWS);
        args.sums = c->sums + row * c->stride;
        for (size_t r = 0; r < args.rows; r++) {
            x[r] = (const char *)c->x[row + r] + (k - c->k) * expertd_dtype_size(sum);
        }
        c->work->kernels.of->n_major(&args);
        args.share++;
    }
}

// The call's rows against its block of K.
static void multiply_k_major(const struct product_call *c) {
    const struct product_operand *b = &c->group->b;
    enum expertd_dtype from = c->work->read_b.from;
    size_t column = c->panel * EXPERTD_KERNEL_PANEL, size = expertd_dtype_size(from);
    c->work->kernels.of->k_major(&(struct k_major_args){.x = c->x,
                                                        .rows = c->rows,
                                                        .dtype = from,
                                                        .weights = (const char *)b->data + (column * b->line_stride + c->k) * size,
                                                        .stride = b->line_stride * size,
                                                        .k = c->depth,
                                                        .columns = at_most(c->group->n - column, c->count * EXPERTD_KERNEL_PANEL),
                                                        .sums = c->sums,
                                                        .sums_stride = c->stride,
                                                        .goes_on = c->k > 0});
}

// Where rows are read in place, or there is room for them, the whole of K is one block: longer runs of memory along it.
void product_run_unpacked(struct product_call c, const struct product_span *span) {
    const struct product_holding *h = &c.work->holding;
    bool k_major = is_k_major(span), whole = !h->line_bytes || h->n_major_line_bytes;
    size_t k_step = whole ? c.group->k : h->k_step;
    c.line_bytes = h->n_major_line_bytes ? h->n_major_line_bytes : h->line_bytes;
    c.row = span->row, c.rows = span->end - span->row, c.stride = N_MAJOR_STRIDE;
    for (; c.panel < span->panel_end; c.panel += c.count) {
        c.count = call_part(span->panel_end - c.panel, N_MAJOR_COLUMNS / EXPERTD_KERNEL_PANEL);
        for (c.k = 0; c.k < c.group->k; c.k += c.depth) {
            c.depth = at_most(k_step, c.group->k - c.k);
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
