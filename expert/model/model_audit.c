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
    pthread_mutex_t mutex;          // of everything below; taken for unsound matrices only
    struct audited_tensor *tensors; // [AUDIT_TENSORS_MAX]
    size_t count;
    uint64_t omitted;
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

// The tensor whose data `at` is part of: the one that begins last at or before it. NULL: generated weights.
static const struct safetensors_entry *tensor_at(const struct supply *supply, const void *at) {
    const struct safetensors_entry *found = NULL;
    const size_t count = supply->checkpoint ? checkpoint_count(supply->checkpoint) : 0;
    for (size_t i = 0; i < count; i++) {
        const struct safetensors_entry *entry = checkpoint_at(supply->checkpoint, i);
        const uintptr_t begin = (uintptr_t)entry->view.data;
        if (begin && begin <= (uintptr_t)at && (!found || begin > (uintptr_t)found->view.data)) {
            found = entry;
        }
    }
    return found;
}

// The tensor's place in the list; NULL: the list is full. Under the mutex.
static struct audited_tensor *place_of(struct model_audit *audit, const char *name, const char *file) {
    for (size_t i = 0; i < audit->count; i++) {
        if (strcmp(audit->tensors[i].name, name) == 0) {
            return &audit->tensors[i];
        }
    }
    if (audit->count == AUDIT_TENSORS_MAX) {
        return NULL;
    }
    struct audited_tensor *tensor = &audit->tensors[audit->count++];
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    snprintf(tensor->file, sizeof tensor->file, "%s", file);
    return tensor;
}

static void add(struct model_audit *audit, const struct supply *supply, const struct safetensors_entry *entry,
                const struct counts *counts) {
    if (counts->nan + counts->infinite + counts->absurd == 0) {
        return;
    }
    pthread_mutex_lock(&audit->mutex);
    struct audited_tensor *tensor = place_of(audit, entry ? entry->name : "", entry ? supply_file_of(supply, entry) : "");
    if (tensor) {
        tensor->nan += counts->nan;
        tensor->infinite += counts->infinite;
        tensor->absurd += counts->absurd;
        tensor->largest = counts->largest > tensor->largest ? counts->largest : tensor->largest;
    } else {
        audit->omitted++;
    }
    pthread_mutex_unlock(&audit->mutex);
}

void model_audit_add(struct model_audit *audit, const struct supply *supply, const struct supply_matrix *m) {
    struct counts counts = m->quantised ? count_codes(m) : count_elements(m);
    if (counts.nan + counts.infinite + counts.absurd > 0) {
        add(audit, supply, tensor_at(supply, m->quantised ? m->quantised->codes.data : m->source.data), &counts);
    }
    if (!m->quantised) {
        return;
    }
    if (m->rows.global_is_not_finite) { // then no scale is finite, and this is the cause
        counts = (struct counts){0};
        count_value(m->rows.source.global, AUDIT_SCALE_MAX, &counts);
        add(audit, supply, m->quantised->global_tensor, &counts);
        return;
    }
    counts = count_scales(m);
    if (counts.nan + counts.infinite + counts.absurd > 0) {
        const struct safetensors_entry *own = m->quantised->scales_tensor; // NULL: the scales lie among the codes
        add(audit, supply, own ? own : tensor_at(supply, m->quantised->codes.data), &counts);
    }
}

// ----

FALLIBLE model_audit_create(struct model_audit **out) {
    struct model_audit *audit = calloc(1, sizeof *audit);
    struct audited_tensor *tensors = calloc(AUDIT_TENSORS_MAX, sizeof *tensors);
    *out = NULL;
    if (!audit || !tensors) {
        free(audit);
        free(tensors);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for an audit");
    }
    pthread_mutex_init(&audit->mutex, NULL);
    audit->tensors = tensors;
    *out = audit;
    return OK;
}

void model_audit_destroy(struct model_audit *audit) {
    if (audit) {
        pthread_mutex_destroy(&audit->mutex);
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
