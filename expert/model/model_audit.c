#include "expert/model/model_audit.h"

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
    const struct safetensors_entry **by_address; // [by_address_count] tensors that were read, ascending; NULL: not yet needed
    size_t by_address_count;
};

struct counts {
    uint64_t nan, infinite, absurd;
    float largest;
};

// ---- counting

static void count_value(float value, float most, struct counts *counts) {
    float magnitude = fabsf(value);
    if (isnan(value)) {
        counts->nan++;
    } else if (isinf(value)) {
        counts->infinite++;
    } else if (magnitude > most) {
        counts->absurd++;
        counts->largest = magnitude > counts->largest ? magnitude : counts->largest;
    }
}

static void count_chunk(const float *values, size_t count, struct counts *counts) {
    const uint32_t most = expertd_f32_bits(AUDIT_ELEMENT_MAX); // magnitudes are ordered as their bits; NaN and Inf are above all
    uint32_t odd = 0;
    for (size_t i = 0; i < count; i++) {
        odd |= (expertd_f32_bits(values[i]) & 0x7fffffffu) > most;
    }
    for (size_t i = 0; odd && i < count; i++) {
        count_value(values[i], AUDIT_ELEMENT_MAX, counts);
    }
}

// Elements `stride` apart.
static void count_line(enum expertd_dtype dtype, const char *data, size_t count, size_t stride, struct counts *counts) {
    const size_t size = expertd_dtype_size(dtype);
    float values[CHUNK];
    for (size_t at = 0, some; at < count; at += some) {
        some = count - at < CHUNK ? count - at : CHUNK;
        if (stride == 1) {
            expertd_dtype_widen(dtype, data + at * size, some, values);
        }
        for (size_t i = 0; stride != 1 && i < some; i++) {
            expertd_dtype_widen(dtype, data + (at + i) * stride * size, 1, &values[i]);
        }
        count_chunk(values, some, counts);
    }
}

// Lines run along the dimension whose elements are adjacent.
static struct counts count_elements(const struct supply_matrix *m) {
    const struct expertd_weight_source *s = &m->source;
    struct counts counts = {0};
    const bool along_n = s->n_stride == 1 && s->k_stride != 1;
    const size_t lines = along_n ? m->k : m->n, length = along_n ? m->n : m->k;
    const size_t line_stride = along_n ? s->k_stride : s->n_stride, stride = along_n ? s->n_stride : s->k_stride;
    for (size_t line = 0; line < lines; line++) {
        count_line(s->dtype, (const char *)s->data + line * line_stride * expertd_dtype_size(s->dtype), length, stride, &counts);
    }
    return counts;
}

// NaN and infinities among codes of 8-bit floats.
static struct counts count_codes(const struct supply_matrix *m) {
    const struct expertd_code_words *codes = &m->rows.source.codes;
    const enum expertd_weight_code code = m->rows.format.code;
    const enum expertd_dtype dtype = code == EXPERTD_CODE_E4M3 ? EXPERTD_DTYPE_F8_E4M3 : EXPERTD_DTYPE_F8_E5M2;
    struct counts counts = {0};
    if (code != EXPERTD_CODE_E4M3 && code != EXPERTD_CODE_E5M2) {
        return counts;
    }
    for (size_t row = 0; row < m->n; row++) {
        count_line(dtype, (const char *)codes->data + row * codes->n_stride, m->k, 1, &counts);
    }
    return counts;
}

// One row of each block of rows that have their scales in common.
static struct counts count_scales(const struct supply_matrix *m) {
    const struct expertd_quantised_source *s = &m->rows.source;
    struct counts counts = {0};
    for (size_t row = 0, next; row < m->n; row = next) {
        const size_t left = s->scale_columns - (s->scale_first + row) % s->scale_columns; // rows of this block
        next = left < m->n - row ? row + left : m->n;
        for (size_t g = 0; g < m->rows.scales; g++) {
            count_value(quantised_rows_scale(&m->rows, row, g), AUDIT_SCALE_MAX, &counts);
        }
    }
    return counts;
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

static void count_in(struct model_audit *audit, const struct supply *supply, const struct safetensors_entry *entry,
                     const struct counts *counts) {
    struct audited_tensor *tensor = place_of(audit, supply, entry);
    if (tensor) {
        tensor->nan += counts->nan;
        tensor->infinite += counts->infinite;
        tensor->absurd += counts->absurd;
        tensor->largest = counts->largest > tensor->largest ? counts->largest : tensor->largest;
    } else {
        audit->omitted++;
    }
}

// Adds the counts to the tensor `own`; own NULL: to the tensor that holds the data at `at`.
static FALLIBLE add(struct model_audit *audit, const struct supply *supply, const struct safetensors_entry *own, const void *at,
                    const struct counts *counts) {
    if (counts->nan + counts->infinite + counts->absurd == 0) {
        return OK;
    }
    pthread_mutex_lock(&audit->mutex);
    err_t e = own ? OK : tensor_at(audit, supply, at, &own);
    if (!err_is(e)) {
        count_in(audit, supply, own, counts);
    }
    pthread_mutex_unlock(&audit->mutex);
    return e;
}

FALLIBLE model_audit_add(struct model_audit *audit, const struct supply *supply, const struct supply_matrix *m) {
    struct counts counts = m->quantised ? count_codes(m) : count_elements(m);
    TRY(add(audit, supply, NULL, m->quantised ? m->quantised->codes.data : m->source.data, &counts));
    if (!m->quantised) {
        return OK;
    }
    if (m->rows.global_is_not_finite) { // then no scale is finite, and this is the cause
        counts = (struct counts){0};
        count_value(m->rows.source.global, AUDIT_SCALE_MAX, &counts);
        return add(audit, supply, m->quantised->global_tensor, m->quantised->global, &counts);
    }
    counts = count_scales(m); // without a tensor of their own the scales lie among the codes
    return add(audit, supply, m->quantised->scales_tensor, m->quantised->codes.data, &counts);
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

uint64_t model_audit_omitted(const struct model_audit *audit) {
    return audit->omitted;
}
