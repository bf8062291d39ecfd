// Makes small checkpoints for tests, in memory or as files. The value of an element is its position.
#ifndef EXPERTD_TESTS_UNIT_EXPERT_CHECKPOINT_CHECKPOINT_BUILDER_H
#define EXPERTD_TESTS_UNIT_EXPERT_CHECKPOINT_CHECKPOINT_BUILDER_H

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/safetensors.h"

enum { BUILDER_TENSORS_MAX = 64 };

struct builder {
    struct safetensors_entry entries[BUILDER_TENSORS_MAX];
    size_t count;
};

// Adds a tensor of `rank` dimensions; element i is start + i (F32), zeros in other types.
static inline void builder_add(struct builder *b, const char *name, enum expertd_dtype dtype, float start, uint32_t rank, ...) {
    struct safetensors_entry *entry = &b->entries[b->count++];
    uint64_t elements = 1;
    va_list dims;
    va_start(dims, rank);
    *entry = (struct safetensors_entry){.name = strdup(name), .view = {.dtype = dtype, .rank = rank}};
    for (uint32_t i = 0; i < rank; i++) {
        entry->view.shape[i] = (uint64_t)va_arg(dims, int);
        elements *= entry->view.shape[i];
    }
    va_end(dims);
    entry->view.bytes = elements * expertd_dtype_size(dtype);
    void *data = calloc(elements + 1, expertd_dtype_size(dtype));
    for (uint64_t i = 0; dtype == EXPERTD_DTYPE_F32 && i < elements; i++) {
        ((float *)data)[i] = start + (float)i;
    }
    entry->view.data = data;
}

// Removes a tensor again.
static inline void builder_remove(struct builder *b, const char *name) {
    for (size_t i = 0; i < b->count; i++) {
        if (strcmp(b->entries[i].name, name) == 0) {
            free((void *)b->entries[i].name);
            free((void *)b->entries[i].view.data);
            b->entries[i] = b->entries[--b->count];
            return;
        }
    }
    INVARIANT(!"a tensor that was added");
}

static inline void builder_clear(struct builder *b) {
    while (b->count > 0) {
        builder_remove(b, b->entries[0].name);
    }
}

static inline void builder_write_text(const char *folder, const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    INVARIANT(file && fputs(text, file) >= 0 && fclose(file) == 0);
}

// Writes tensors [first, first + count) as folder/name.
static inline void builder_write(const struct builder *b, size_t first, size_t count, const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    INVARIANT(!err_is(safetensors_write(path, b->entries + first, count)));
}

#endif
