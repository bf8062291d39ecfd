#include "base/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/regular_file.h"

enum { HEADER_ALIGN = 8 }; // the header is padded with spaces to align the data

static int compare_text(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static FALLIBLE check_distinct(const struct safetensors_entry *entries, size_t count) {
    const char **names = calloc(count + 1, sizeof *names);
    if (!names) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu names", count);
    }
    for (size_t i = 0; i < count; i++) {
        names[i] = entries[i].name;
    }
    qsort(names, count, sizeof *names, compare_text);
    const char *twice = NULL;
    for (size_t i = 1; i < count; i++) {
        twice = strcmp(names[i - 1], names[i]) == 0 ? names[i] : twice;
    }
    free(names);
    if (twice) {
        FAIL(EXPERTD_ERR_INVALID, "tensor %s is given twice", twice);
    }
    return OK;
}

static FALLIBLE check_view(const struct safetensors_entry *entry) {
    uint64_t bytes;
    if (expertd_dtype_size(entry->view.dtype) == 0 || entry->view.rank > EXPERTD_TENSOR_RANK_MAX || entry->name[0] == '\0' ||
        strlen(entry->name) > SAFETENSORS_NAME_BYTES_MAX || strcmp(entry->name, "__metadata__") == 0) {
        FAIL(EXPERTD_ERR_INVALID, "tensor \"%.64s\" has a name, dtype or rank that a safetensors file cannot have", entry->name);
    }
    TRY_IN(expertd_tensor_bytes(entry->view.dtype, entry->view.shape, entry->view.rank, &bytes), "tensor %s", entry->name);
    if (bytes != entry->view.bytes) {
        FAIL(EXPERTD_ERR_INVALID, "tensor %s has %" PRIu64 " bytes, but its shape needs %" PRIu64, entry->name, entry->view.bytes,
             bytes);
    }
    return OK;
}

static void put_quoted(FILE *out, const char *text) {
    fputc('"', out);
    for (const char *c = text; *c; c++) {
        if ((unsigned char)*c < 0x20) {
            fprintf(out, "\\u%04x", (unsigned)*c);
        } else {
            fprintf(out, "%s%c", *c == '"' || *c == '\\' ? "\\" : "", *c);
        }
    }
    fputc('"', out);
}

static void put_entry(FILE *out, const struct safetensors_entry *entry, uint64_t begin) {
    put_quoted(out, entry->name);
    fprintf(out, ":{\"dtype\":\"%s\",\"shape\":[", expertd_dtype_name(entry->view.dtype));
    for (uint32_t i = 0; i < entry->view.rank; i++) {
        fprintf(out, "%s%" PRIu64, i ? "," : "", entry->view.shape[i]);
    }
    fprintf(out, "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}", begin, begin + entry->view.bytes);
}

// Builds the length and the padded header.
static FALLIBLE make_header(const struct safetensors_entry *entries, size_t count, char **header, size_t *length) {
    FILE *out = open_memstream(header, length);
    if (!out) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the header");
    }
    fwrite("\0\0\0\0\0\0\0", 1, 8, out); // the length is filled in below
    fputc('{', out);
    uint64_t begin = 0;
    for (size_t i = 0; i < count; i++) {
        fprintf(out, "%s", i ? "," : "");
        put_entry(out, &entries[i], begin);
        begin += entries[i].view.bytes;
    }
    fputc('}', out);
    for (long at = ftell(out); at % HEADER_ALIGN; at++) {
        fputc(' ', out);
    }
    bool failed = ferror(out) != 0;
    if (fclose(out) != 0 || failed) {
        free(*header);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the header");
    }
    for (int i = 0; i < 8; i++) {
        (*header)[i] = (char)((uint64_t)(*length - 8) >> (8 * i));
    }
    return OK;
}

static FALLIBLE write_contents(int fd, const struct safetensors_entry *entries, size_t count) {
    char *header;
    size_t length;
    TRY(make_header(entries, count, &header, &length));
    err_t e = regular_file_write(fd, header, length);
    free(header);
    TRY(e);
    for (size_t i = 0; i < count; i++) {
        TRY(regular_file_write(fd, entries[i].view.data, entries[i].view.bytes));
    }
    return OK;
}

FALLIBLE safetensors_write(const char *path, const struct safetensors_entry *entries, size_t count) {
    TRY_IN(check_distinct(entries, count), "%s", path);
    for (size_t i = 0; i < count; i++) {
        TRY_IN(check_view(&entries[i]), "%s", path);
    }
    struct regular_file_new file;
    err_t e = regular_file_begin(path, REGULAR_FILE_OR_STREAM, &file);
    if (!err_is(e)) {
        e = regular_file_end(&file, write_contents(file.fd, entries, count));
    }
    return err_context(e, "cannot write %s", path);
}
