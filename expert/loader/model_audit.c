#include "expert/loader/model_audit.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/checkpoint/checkpoint.h"
#include "expert/supply/supply.h"

enum { CHUNK = 256 };

struct model_audit {
    pthread_mutex_t mutex;                    // of everything below; taken for unsound matrices only
    struct audited_tensor *tensors;           // [AUDIT_TENSORS_MAX]
    const struct safetensors_entry **entries; // [AUDIT_TENSORS_MAX] of `tensors`; NULL: generated weights
    size_t count;
    uint64_t omitted;
    bool omitted_unsound;
    const struct safetensors_entry **by_address; // [by_address_count] tensors that were read, ascending; NULL: not yet needed
    size_t by_address_count;
};

// What was found in one matrix, with the first place in it. `at`: the k of an element or a code, the group of a scale.
struct counts {
    uint64_t of[AUDIT_VALUES];
    float largest, least;
    bool found;
    size_t row, at;
};

static void count_one(struct counts *counts, enum audit_value value, size_t row, size_t at) {
    counts->of[value]++;
    if (!counts->found || row < counts->row || (row == counts->row && at < counts->at)) {
        counts->row = row;
        counts->at = at;
    }
    counts->found = true;
}

// ---- elements and codes

static void count_value(float value, float most, size_t row, size_t at, struct counts *counts) {
    float magnitude = fabsf(value);
    if (isnan(value) || isinf(value)) {
        count_one(counts, isnan(value) ? AUDIT_NAN : AUDIT_INFINITE, row, at);
    } else if (magnitude > most) {
        count_one(counts, AUDIT_ABSURD, row, at);
        counts->largest = magnitude > counts->largest ? magnitude : counts->largest;
    }
}

// Elements `stride` apart: a row, or a column (step_row 1) of a matrix whose columns are adjacent.
struct line {
    enum expertd_dtype dtype;
    const char *data;
    size_t count, stride;
    size_t row, at, step_row; // of the first element; the other elements follow in the row or in the column
};

static void count_chunk(const struct line *line, size_t first, const float *values, size_t count, bool *zeros,
                        struct counts *counts) {
    const uint32_t most = expertd_f32_bits(AUDIT_ELEMENT_MAX); // magnitudes are ordered as their bits; NaN and Inf are above all
    uint32_t odd = 0, any = 0;
    for (size_t i = 0; i < count; i++) {
        const uint32_t magnitude = expertd_f32_bits(values[i]) & 0x7fffffffu;
        odd |= magnitude > most;
        any |= magnitude;
    }
    *zeros = *zeros && any == 0;
    for (size_t i = 0; odd && i < count; i++) {
        const size_t step = first + i;
        count_value(values[i], AUDIT_ELEMENT_MAX, line->row + (line->step_row ? step : 0), line->at + (line->step_row ? 0 : step),
                    counts);
    }
}

static void count_line(const struct line *line, bool *zeros, struct counts *counts) {
    const size_t size = expertd_dtype_size(line->dtype);
    float values[CHUNK];
    for (size_t at = 0, some; at < line->count; at += some) {
        some = line->count - at < CHUNK ? line->count - at : CHUNK;
        if (line->stride == 1) {
            expertd_dtype_widen(line->dtype, line->data + at * size, some, values);
        }
        for (size_t i = 0; line->stride != 1 && i < some; i++) {
            expertd_dtype_widen(line->dtype, line->data + (at + i) * line->stride * size, 1, &values[i]);
        }
        count_chunk(line, at, values, some, zeros, counts);
    }
}

// Lines run along the dimension whose elements are adjacent. *zeros: all elements are 0.
static struct counts count_elements(const struct supply_matrix *m, bool *zeros) {
    const struct expertd_weight_source *s = &m->source;
    struct counts counts = {0};
    const bool along_n = s->n_stride == 1 && s->k_stride != 1;
    const size_t lines = along_n ? m->k : m->n, line_stride = along_n ? s->k_stride : s->n_stride;
    *zeros = true;
    for (size_t i = 0; i < lines; i++) {
        const struct line line = {.dtype = s->dtype,
                                  .data = (const char *)s->data + i * line_stride * expertd_dtype_size(s->dtype),
                                  .count = along_n ? m->n : m->k,
                                  .stride = along_n ? s->n_stride : s->k_stride,
                                  .row = along_n ? 0 : i,
                                  .at = along_n ? i : 0,
                                  .step_row = along_n};
        count_line(&line, zeros, &counts);
    }
    return counts;
}

// NaN and infinities among codes of 8-bit floats.
static struct counts count_codes(const struct supply_matrix *m) {
    const struct expertd_code_words *codes = &m->rows.source.codes;
    const enum expertd_weight_code code = m->rows.format.code;
    struct counts counts = {0};
    bool zeros = true;
    if (code != EXPERTD_CODE_E4M3 && code != EXPERTD_CODE_E5M2) {
        return counts;
    }
    for (size_t row = 0; row < m->n; row++) {
        const struct line line = {.dtype = code == EXPERTD_CODE_E4M3 ? EXPERTD_DTYPE_F8_E4M3 : EXPERTD_DTYPE_F8_E5M2,
                                  .data = (const char *)codes->data + row * codes->n_stride,
                                  .count = m->k,
                                  .stride = 1,
                                  .row = row};
        count_line(&line, &zeros, &counts);
    }
    return counts;
}

// ---- scales

// Quantisers of floating-point codes divide a greatest magnitude, so that no scale is negative. Those of integers may write
// negative scales: AutoRound, MLX and llama.cpp give the greatest value of a group the code with the greatest magnitude.
static bool has_unsigned_scales(const struct supply_matrix *m) {
    const enum expertd_weight_code code = m->rows.format.code;
    return !m->quantised->blocks && (code == EXPERTD_CODE_E4M3 || code == EXPERTD_CODE_E5M2 || code == EXPERTD_CODE_E2M1);
}

// llama.cpp writes scales of 0 over codes that are not 0, and a scale with minima may be 0.
static bool has_scales_above_zero(const struct supply_matrix *m) {
    return !m->quantised->blocks && !m->rows.format.minima && m->rows.format.code != EXPERTD_CODE_IQ4;
}

// Is the value of the code, before the scale, not 0?
static bool is_weight(const struct supply_matrix *m, size_t row, size_t g, size_t k) {
    const struct quantised_rows *r = &m->rows;
    const unsigned code = expertd_quantised_code(&r->source.codes, row, k);
    const uint8_t *zeros = r->source.zeros.data;
    switch (r->format.code) {
    case EXPERTD_CODE_E2M1:
        return (code & 7) != 0;
    case EXPERTD_CODE_INT4:
        return code != (zeros ? zeros[row * r->scales + g] : 8u);
    case EXPERTD_CODE_INT8:
        return code != (zeros ? zeros[row * r->scales + g] : 0u);
    default:
        return (code & 0x7f) != 0;
    }
}

// Does scale group g of the rows [row, end) have a weight that is not 0, if its scale is not?
static bool has_weights(const struct supply_matrix *m, size_t row, size_t end, size_t g) {
    const size_t span = m->rows.format.scale_k ? m->rows.format.scale_k : m->k;
    const size_t last = (g + 1) * span < m->k ? (g + 1) * span : m->k;
    for (; row < end; row++) {
        for (size_t k = g * span; k < last; k++) {
            if (is_weight(m, row, g, k)) {
                return true;
            }
        }
    }
    return false;
}

static bool has_any_weight(const struct supply_matrix *m) {
    bool any = false;
    for (size_t g = 0; g < m->rows.scales && !any; g++) {
        any = has_weights(m, 0, m->n, g);
    }
    return any;
}

// Scales of these dtypes underflow to 0 in single groups of very small weights, in sound files too, but not in most of a matrix.
static void excuse_underflow(const struct supply_matrix *m, uint64_t scales, struct counts *counts) {
    const enum expertd_dtype dtype = m->rows.format.scale;
    if ((dtype == EXPERTD_DTYPE_F16 || dtype == EXPERTD_DTYPE_F8_E4M3) && counts->of[AUDIT_ZERO] <= scales / 2) {
        counts->of[AUDIT_UNDERFLOW] = counts->of[AUDIT_ZERO];
        counts->of[AUDIT_ZERO] = 0;
    }
}

static void count_scale(const struct supply_matrix *m, size_t row, size_t end, size_t g, struct counts *counts) {
    const float scale = quantised_rows_scale(&m->rows, row, g);
    count_value(scale, AUDIT_SCALE_MAX, row, g, counts);
    if (scale < 0 && has_unsigned_scales(m) && isfinite(scale)) {
        count_one(counts, AUDIT_NEGATIVE, row, g);
    }
    if (fabsf(scale) < AUDIT_SCALE_MIN && has_scales_above_zero(m) && has_weights(m, row, end, g)) {
        count_one(counts, scale == 0 ? AUDIT_ZERO : AUDIT_TINY, row, g);
        counts->least = scale != 0 && (counts->least == 0 || fabsf(scale) < counts->least) ? fabsf(scale) : counts->least;
    }
}

// One row of each block of rows that have their scales in common.
static struct counts count_scales(const struct supply_matrix *m) {
    const struct expertd_quantised_source *s = &m->rows.source;
    struct counts counts = {0};
    uint64_t scales = 0;
    for (size_t row = 0, next; row < m->n; row = next) {
        const size_t left = s->scale_columns - (s->scale_first + row) % s->scale_columns; // rows of this block
        next = left < m->n - row ? row + left : m->n;
        for (size_t g = 0; g < m->rows.scales; g++, scales++) {
            count_scale(m, row, next, g, &counts);
        }
    }
    excuse_underflow(m, scales, &counts);
    return counts;
}

// Are all weights of the matrix 0? Of formats with minima only in a GGUF file, where all bytes are 0.
static bool is_zero(const struct supply_matrix *m) {
    if (m->quantised->blocks && supply_is_zero(m)) {
        return true;
    }
    if (m->rows.format.minima || m->rows.format.code == EXPERTD_CODE_IQ4 || m->rows.format.code == EXPERTD_CODE_UINT4) {
        return false;
    }
    for (size_t row = 0; row < m->n; row++) {
        for (size_t g = 0; g < m->rows.scales; g++) {
            if (quantised_rows_scale(&m->rows, row, g) != 0 && has_weights(m, row, row + 1, g)) {
                return false;
            }
        }
    }
    return true;
}

// ---- naming

static int compare_addresses(const void *left, const void *right) {
    const struct safetensors_entry *const *a = left, *const *b = right;
    const uintptr_t at = (uintptr_t)(*a)->view.data, other = (uintptr_t)(*b)->view.data;
    return (at > other) - (at < other);
}

// A file may have 200000 unsound tensors, so that each is searched in order. Under the mutex.
static FALLIBLE index_addresses(struct model_audit *audit, const struct checkpoint *checkpoint) {
    const size_t count = checkpoint_count(checkpoint);
    audit->by_address = calloc(count + 1, sizeof *audit->by_address);
    if (!audit->by_address) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory to name %zu tensors", count);
    }
    for (size_t i = 0; i < count; i++) {
        const struct safetensors_entry *entry = checkpoint_at(checkpoint, i);
        if (entry->view.data) {
            audit->by_address[audit->by_address_count++] = entry;
        }
    }
    qsort(audit->by_address, audit->by_address_count, sizeof *audit->by_address, compare_addresses);
    return OK;
}

// The tensor whose data `at` is part of: the one that begins last at or before it. *out NULL: generated weights. Under the mutex.
static FALLIBLE tensor_at(struct model_audit *audit, const struct supply *supply, const void *at,
                          const struct safetensors_entry **out) {
    *out = NULL;
    if (!supply->checkpoint) {
        return OK;
    }
    TRY(audit->by_address ? OK : index_addresses(audit, supply->checkpoint));
    size_t low = 0, high = audit->by_address_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if ((uintptr_t)audit->by_address[middle]->view.data <= (uintptr_t)at) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    *out = low > 0 ? audit->by_address[low - 1] : NULL;
    return OK;
}

// The tensor's place in the list; NULL: the list is full. Under the mutex.
static struct audited_tensor *place_of(struct model_audit *audit, const struct supply *supply,
                                       const struct safetensors_entry *entry) {
    for (size_t i = 0; i < audit->count; i++) {
        if (audit->entries[i] == entry) {
            return &audit->tensors[i];
        }
    }
    if (audit->count == AUDIT_TENSORS_MAX) {
        return NULL;
    }
    audit->entries[audit->count] = entry;
    struct audited_tensor *tensor = &audit->tensors[audit->count++];
    snprintf(tensor->name, sizeof tensor->name, "%s", entry ? entry->name : "");
    snprintf(tensor->file, sizeof tensor->file, "%s", entry ? supply_file_of(supply, entry) : "");
    return tensor;
}

static bool is_before(const struct audit_place *a, const struct audit_place *b) {
    return a->layer != b->layer     ? a->layer < b->layer
           : a->expert != b->expert ? a->expert < b->expert
           : a->tensor != b->tensor ? a->tensor < b->tensor
           : a->row != b->row       ? a->row < b->row
                                    : a->at < b->at;
}

static void count_in(struct model_audit *audit, const struct supply *supply, const struct safetensors_entry *entry,
                     const struct audit_place *place, const struct counts *counts) {
    struct audited_tensor *tensor = place_of(audit, supply, entry);
    if (!tensor) {
        audit->omitted++;
        for (size_t i = 0; i < AUDIT_FIRST_DOUBTFUL; i++) {
            audit->omitted_unsound = audit->omitted_unsound || counts->of[i] > 0;
        }
        return;
    }
    bool is_first = true;
    for (size_t i = 0; i < AUDIT_VALUES; i++) {
        is_first = is_first && tensor->count[i] == 0;
        tensor->count[i] += counts->of[i];
    }
    tensor->largest = counts->largest > tensor->largest ? counts->largest : tensor->largest;
    bool less = counts->least > 0 && (tensor->least == 0 || counts->least < tensor->least);
    tensor->least = less ? counts->least : tensor->least;
    struct audit_place first = *place;
    first.row = counts->row;
    first.at = counts->at;
    if (is_first || is_before(&first, &tensor->first)) {
        tensor->first = first;
    }
}

// Adds the counts to the tensor `own`; own NULL: to the tensor that holds the data at `at`.
static FALLIBLE add(struct model_audit *audit, const struct supply *supply, const struct safetensors_entry *own, const void *at,
                    const struct audit_place *place, const struct counts *counts) {
    if (!counts->found) {
        return OK;
    }
    pthread_mutex_lock(&audit->mutex);
    err_t e = own ? OK : tensor_at(audit, supply, at, &own);
    if (!err_is(e)) {
        count_in(audit, supply, own, place, counts);
    }
    pthread_mutex_unlock(&audit->mutex);
    return e;
}

// Biases, norms and gates may be 0.
static bool is_expert_matrix(const struct supply_matrix *m, const struct audit_place *place) {
    return place->tensor <= SUPPLY_DOWN && m->n > 1;
}

static FALLIBLE add_plain(struct model_audit *audit, const struct supply *supply, const struct supply_matrix *m,
                          struct audit_place place) {
    bool zeros;
    struct counts counts = count_elements(m, &zeros);
    if (zeros && is_expert_matrix(m, &place)) {
        count_one(&counts, AUDIT_ZEROS, 0, 0);
    }
    return add(audit, supply, NULL, m->source.data, &place, &counts);
}

FALLIBLE model_audit_add(struct model_audit *audit, const struct supply *supply, const struct supply_matrix *m,
                         const struct audit_place *at) {
    struct audit_place place = *at;
    if (!m->quantised) {
        place.of = AUDIT_ELEMENT;
        return add_plain(audit, supply, m, place);
    }
    const float global = m->rows.format.global == EXPERTD_GLOBAL_NONE ? 1 : m->rows.source.global;
    const void *data = m->quantised->codes.data; // without a tensor of their own the scales lie among the codes
    struct counts counts = count_codes(m);
    if (is_expert_matrix(m, &place) && is_zero(m)) {
        count_one(&counts, AUDIT_ZEROS, 0, 0);
    }
    place.of = AUDIT_CODE;
    TRY(add(audit, supply, NULL, data, &place, &counts));
    counts = (struct counts){0};
    place.of = AUDIT_GLOBAL_SCALE;
    if (m->rows.global_is_not_finite) { // then no scale is finite, and this is the cause
        count_value(m->rows.source.global, AUDIT_SCALE_MAX, 0, 0, &counts);
        return add(audit, supply, m->quantised->global_tensor, m->quantised->global, &place, &counts);
    }
    if (!(global > 0)) { // the same: of all scales
        if (global < 0 || has_any_weight(m)) {
            count_one(&counts, global < 0 ? AUDIT_NEGATIVE : AUDIT_ZERO, 0, 0);
        }
        return add(audit, supply, m->quantised->global_tensor, m->quantised->global, &place, &counts);
    }
    counts = count_scales(m);
    place.of = AUDIT_SCALE;
    return add(audit, supply, m->quantised->scales_tensor, data, &place, &counts);
}

bool audited_is_unsound(const struct audited_tensor *tensor) {
    for (size_t i = 0; i < AUDIT_FIRST_DOUBTFUL; i++) {
        if (tensor->count[i] > 0) {
            return true;
        }
    }
    return false;
}

// ----

FALLIBLE model_audit_create(struct model_audit **out) {
    struct model_audit *audit = calloc(1, sizeof *audit);
    struct audited_tensor *tensors = calloc(AUDIT_TENSORS_MAX, sizeof *tensors);
    const struct safetensors_entry **entries = calloc(AUDIT_TENSORS_MAX, sizeof *entries);
    *out = NULL;
    if (!audit || !tensors || !entries) {
        free(audit);
        free(tensors);
        free(entries);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an audit");
    }
    pthread_mutex_init(&audit->mutex, NULL);
    audit->tensors = tensors;
    audit->entries = entries;
    *out = audit;
    return OK;
}

void model_audit_destroy(struct model_audit *audit) {
    if (audit) {
        pthread_mutex_destroy(&audit->mutex);
        free(audit->by_address);
        free(audit->entries);
        free(audit->tensors);
        free(audit);
    }
}

static int compare_names(const void *left, const void *right) {
    const struct audited_tensor *a = left, *b = right;
    return strcmp(a->name, b->name);
}

const struct audited_tensor *model_audit_tensors(struct model_audit *audit, size_t *count) {
    qsort(audit->tensors, audit->count, sizeof *audit->tensors, compare_names);
    *count = audit->count;
    return audit->tensors;
}

uint64_t model_audit_omitted(const struct model_audit *audit, bool *unsound) {
    *unsound = audit->omitted_unsound;
    return audit->omitted;
}
