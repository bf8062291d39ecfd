// Parts of a matrix that holds gate and up.
#include "expert/quantised/ggml_blocks.h"
#include "expert/quantised/quantised_matrix.h"
#include "expertd/kernels/weights.h"

static FALLIBLE refuse_rows(const char *what) {
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s of gate and up share bytes, which cannot be split: store the two separately", what);
}

// Makes `c` the codes of the rows first, first + step, ... bits: of a code in the file.
static FALLIBLE take_rows_of_codes(size_t first, size_t step, unsigned bits, const char *what, struct expertd_code_words *c) {
    bool even = !c->order && c->n_word_stride == c->word * c->n_stride; // row n is at n * n_stride
    if (!even && (step != 1 || first % c->word != 0)) {
        return refuse_rows(what);
    }
    size_t offset = even ? first * c->n_stride : first / c->word * c->n_word_stride;
    if (offset * bits % 8 != 0) {
        return refuse_rows(what);
    }
    c->data = (const char *)c->data + offset * bits / 8;
    c->n_stride *= even ? step : 1;
    c->n_word_stride *= even ? step : 1;
    return OK;
}

static FALLIBLE take_rows_of_scales(size_t first, size_t step, struct quantised_matrix *m) {
    if (m->scale_n_stride == 0) {
        return OK; // one scale row for all
    }
    if (m->scale_restart) { // each part has blocks of its own; parts do not alternate
        size_t blocks = m->scale_restart / m->scale_columns + (m->scale_restart % m->scale_columns != 0);
        size_t before = first / m->scale_restart * blocks * m->scale_n_stride;
        INVARIANT(step == 1 && first % m->scale_restart == 0);
        m->scales = (const char *)m->scales + before * expertd_dtype_size(m->format.scale);
        m->scale_restart = first = 0;
    }
    INVARIANT(m->scale_columns > 0);
    size_t columns = m->scale_columns, row = first, by_row = columns == 1 ? step : 1;
    if (columns > 1 && columns % step != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "every %zu-th row is taken of blocks of %zu rows of scales: store gate and up separately",
             step, columns);
    }
    if (columns > 1) { // (first + step * n) / columns = (first / step + n) / (columns / step)
        row = first / step;
        columns /= step;
    }
    size_t size = expertd_dtype_size(m->affine.bits ? m->affine.dtype : m->format.scale);
    size_t offset = row / columns * m->scale_n_stride * size;
    m->scales = (const char *)m->scales + offset;
    m->affine.biases = m->affine.biases ? (const char *)m->affine.biases + offset : NULL;
    m->scale_n_stride *= by_row;
    m->scale_columns = columns;
    m->scale_first = row % columns;
    m->format.scale_of_panel = columns % EXPERTD_KERNEL_PANEL == 0 && m->scale_first % EXPERTD_KERNEL_PANEL == 0;
    return OK;
}

FALLIBLE quantised_take_rows(const struct quantised_matrix *all, size_t first, size_t step, struct quantised_matrix *out) {
    *out = *all;
    if (all->blocks) {
        INVARIANT(step == 1);
        out->codes.data = (const char *)all->codes.data + first * ggml_row_bytes(all->blocks, all->codes.n_stride);
        return OK;
    }
    TRY(take_rows_of_codes(first, step, all->affine.bits ? all->affine.bits : all->codes.bits, "codes", &out->codes));
    if (out->zeros.data) {
        TRY(take_rows_of_codes(first, step, out->zeros.bits, "zero points", &out->zeros));
    }
    if (out->unused_zeros.data) {
        TRY(take_rows_of_codes(first, step, out->unused_zeros.bits, "zero points", &out->unused_zeros));
    }
    if (out->global_columns) {
        out->global = (const char *)out->global + first / out->global_columns * expertd_dtype_size(out->global_dtype);
    }
    return take_rows_of_scales(first, step, out);
}

// If one scale covers all rows, it is stored once per panel, or once.
static void join_scales(size_t rows, struct quantised_matrix *m) {
    if (m->blocks || m->affine.bits || m->scale_n_stride == 0 || m->scale_first + rows > m->scale_columns) {
        return;
    }
    m->format.scale_of_panel = true;
    if (m->format.scale_k == 0) {
        m->scale_columns = rows;
        m->scale_first = m->scale_n_stride = 0;
    }
}

FALLIBLE quantised_split(const struct quantised_matrix *all, size_t n, bool alternating, struct quantised_matrix *gate,
                         struct quantised_matrix *up) {
    size_t rows = n / 2, step = alternating ? 2 : 1;
    TRY(quantised_take_rows(all, 0, step, gate));
    TRY(quantised_take_rows(all, alternating ? 1 : rows, step, up));
    join_scales(rows, gate);
    join_scales(rows, up);
    gate->format.scale_of_panel = up->format.scale_of_panel = gate->format.scale_of_panel && up->format.scale_of_panel;
    return OK;
}
