// A case of tests/goldens/kernels: one safetensors file, its attributes in the metadata.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_OPERATIONS_GOLDEN_CASE_H
#define EXPERTD_TESTS_UNIT_KERNELS_OPERATIONS_GOLDEN_CASE_H

#include <dirent.h>

#include "base/safetensors.h"
#include "tests/unit/kernels/kernel_test.h"

static inline const char *golden_text(const struct safetensors *file, const char *key) {
    const char *text = safetensors_metadata(file, key);
    return text ? text : "";
}

static inline size_t golden_size(const struct safetensors *file, const char *key) {
    return (size_t)strtoull(golden_text(file, key), NULL, 10);
}

static inline int golden_flag(const struct safetensors *file, const char *key) {
    return strcmp(golden_text(file, key), "true") == 0;
}

static inline const struct expertd_tensor_view *golden_tensor(const struct safetensors *file, const char *name) {
    const struct safetensors_entry *entry = safetensors_find(file, name);
    return entry ? &entry->view : NULL;
}

// A copy, aligned, freed by the caller.
static inline void *golden_copy(const struct expertd_tensor_view *view) {
    INVARIANT(view);
    void *copy = test_alloc(view->bytes);
    memcpy(copy, view->data, view->bytes);
    return copy;
}

// Opens every file whose name starts with the prefix; returns for how many `run` returned nonzero.
static inline size_t for_each_golden(const char *prefix, int (*run)(const char *name, const struct safetensors *file)) {
    DIR *folder = opendir(GOLDENS "/kernels");
    assert_non_null(folder);
    size_t count = 0;
    struct dirent *entry;
    while ((entry = readdir(folder))) {
        if (strncmp(entry->d_name, prefix, strlen(prefix)) != 0) {
            continue;
        }
        char path[512];
        snprintf(path, sizeof path, "%s/kernels/%s", GOLDENS, entry->d_name);
        struct safetensors file;
        assert_false(err_is(safetensors_open(path, &file)));
        count += run(entry->d_name, &file) != 0;
        safetensors_close(&file);
    }
    closedir(folder);
    return count;
}

#endif
