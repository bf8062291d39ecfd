#include "client/expertctl/files/tensor_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char SAFETENSORS[] = ".safetensors";
static const char NPY[] = ".npy";

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length > end_length && strcmp(text + length - end_length, end) == 0;
}

FALLIBLE tensor_file_split(const char *spec, char **path, const char **tensor) {
    *path = NULL;
    *tensor = NULL;
    size_t length = strlen(spec);
    const char *mark = strstr(spec, ".safetensors:"); // tensor names and paths may contain colons
    if (mark) {
        length = (size_t)(mark - spec) + strlen(SAFETENSORS);
        *tensor = spec + length + 1;
        if (!**tensor) {
            FAIL(EXPERTD_ERR_USAGE, "%s: the tensor's name is missing after the colon", spec);
        }
    } else if (!ends_with(spec, NPY) && !ends_with(spec, SAFETENSORS)) {
        bool named = strstr(spec, ".npy:") != NULL;
        FAIL(EXPERTD_ERR_USAGE, "%s: %s", spec,
             named ? "a .npy file holds one tensor: leave out its name" : "a file named *.npy or *.safetensors is expected");
    }
    *path = strndup(spec, length);
    if (!*path) {
        FAIL(EXPERTD_ERR_NOMEM, "%s: no memory for its name", spec);
    }
    return OK;
}

enum { LISTED_MAX = 5 };

bool tensor_file_is_npy(const char *spec) {
    return !strstr(spec, ".safetensors:") && ends_with(spec, NPY);
}

// The first LISTED_MAX names, for a message.
static const char *list_names(const struct safetensors *file, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (size_t i = 0; i < file->count && i < LISTED_MAX && used < bytes; i++) {
        used += (size_t)snprintf(text + used, bytes - used, "%s%.64s", i ? ", " : "", file->entries[i].name);
    }
    if (file->count > LISTED_MAX && used < bytes) {
        snprintf(text + used, bytes - used, " and %zu more", file->count - LISTED_MAX);
    }
    return text;
}

static FALLIBLE open_safetensors(const char *tensor, struct tensor_file *out) {
    TRY(safetensors_open(out->path, &out->safetensors));
    const struct safetensors *file = &out->safetensors;
    char names[512];
    if (!tensor && file->count != 1) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: it holds %zu tensors: name one, %s:NAME, of %s", out->path, file->count, out->path,
             file->count ? list_names(file, names, sizeof names) : "none");
    }
    const struct safetensors_entry *entry = tensor ? safetensors_find(file, tensor) : &file->entries[0];
    if (!entry) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: no tensor %s; it holds %s", out->path, tensor,
             file->count ? list_names(file, names, sizeof names) : "none");
    }
    out->view = entry->view;
    return OK;
}

// Replaces the dtype of integers that hold other bits by the real dtype.
static FALLIBLE relabel(const char *spec, enum expertd_dtype as, struct expertd_tensor_view *view) {
    if (as == EXPERTD_DTYPE_NONE || as == view->dtype) {
        return OK;
    }
    bool is_bits = view->dtype == EXPERTD_DTYPE_U16 || view->dtype == EXPERTD_DTYPE_I16 || view->dtype == EXPERTD_DTYPE_U8 ||
                   view->dtype == EXPERTD_DTYPE_I8;
    if (!is_bits || expertd_dtype_size(as) != expertd_dtype_size(view->dtype)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: it holds %s, which cannot be read as %s: --hidden-dtype names the dtype of the bits in <u2, V2 "
             "or |u1, it converts nothing",
             spec, expertd_dtype_name(view->dtype), expertd_dtype_name(as));
    }
    view->dtype = as;
    return OK;
}

static FALLIBLE check_dtype(const char *spec, const struct expertd_tensor_view *view) {
    switch (view->dtype) {
    case EXPERTD_DTYPE_F32:
    case EXPERTD_DTYPE_F16:
    case EXPERTD_DTYPE_BF16:
    case EXPERTD_DTYPE_F8_E4M3:
    case EXPERTD_DTYPE_F8_E5M2:
    case EXPERTD_DTYPE_I32:
    case EXPERTD_DTYPE_I64:
        return OK;
    case EXPERTD_DTYPE_U16:
    case EXPERTD_DTYPE_U8:
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the meaning of %s data is unknown: give --hidden-dtype %s if these are hidden states",
             spec, expertd_dtype_name(view->dtype), view->dtype == EXPERTD_DTYPE_U16 ? "bf16" : "f8_e4m3");
    default:
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is not supported; convert it, such as with a.astype(np.%s)", spec,
             expertd_dtype_name(view->dtype), view->dtype == EXPERTD_DTYPE_F64 ? "float32" : "int32");
    }
}

FALLIBLE tensor_file_open(const char *spec, enum expertd_dtype as, struct tensor_file *out) {
    *out = (struct tensor_file){0};
    const char *tensor;
    err_t e;
    TRY_OUT(e, tensor_file_split(spec, &out->path, &tensor));
    if (ends_with(out->path, NPY)) {
        TRY_OUT(e, npy_open(out->path, &out->npy));
        out->view = out->npy.view;
    } else {
        TRY_OUT(e, open_safetensors(tensor, out));
    }
    TRY_OUT(e, relabel(spec, as, &out->view));
    TRY_OUT(e, check_dtype(spec, &out->view));
out:
    if (err_is(e)) {
        tensor_file_close(out);
    }
    return e;
}

void tensor_file_close(struct tensor_file *file) {
    npy_close(&file->npy);
    safetensors_close(&file->safetensors);
    free(file->path);
    *file = (struct tensor_file){0};
}

FALLIBLE tensor_file_save(const char *spec, const struct expertd_tensor_view *view) {
    char *path;
    const char *tensor;
    TRY(tensor_file_split(spec, &path, &tensor));
    struct safetensors_entry entry = {.name = tensor ? tensor : "output", .view = *view};
    err_t e = ends_with(path, NPY) ? npy_write(path, view) : safetensors_write(path, &entry, 1);
    free(path);
    return e;
}
