#include "base/safetensors.h"
#include "base/memory_cause.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file_magic.h"
#include "base/json_reader.h"
#include "base/mapped.h"
#include "base/regular_file.h"

enum { LENGTH_BYTES = 8 }; // the little-endian u64 before the header

static const char METADATA[] = "__metadata__";

// Types of the format that have no enum expertd_dtype. Their sizes are checked; their values are not used, except that F4, two
// codes a byte, is given as U8 with half of the last dimension.
struct foreign_dtype {
    const char *name;
    uint64_t bits;
};
static const struct foreign_dtype FOREIGN_DTYPES[] = {
    {"F4", 4}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"C64", 64},
};

struct parser {
    struct safetensors *file;
    struct json_reader json;
    const char *data; // data_offsets are relative to it
    uint64_t data_bytes;
    size_t text_used;
    size_t entries_max, metadata_max;
    bool saw_metadata;
};

static void *grow(void *array, size_t *max, size_t size) {
    size_t more = *max ? 2 * *max : 64;
    void *moved = reallocarray(array, more, size);
    if (moved) {
        *max = more;
    }
    return moved;
}

// Reads the next string into file->text, which has space for all strings, because unescaping never lengthens them.
static FALLIBLE store_string(struct parser *p, char **out, size_t *length) {
    *out = p->file->text + p->text_used;
    TRY(json_reader_string(&p->json, *out, length));
    p->text_used += *length + 1;
    return OK;
}

// Accepts null for no metadata, like the safetensors crate.
static FALLIBLE parse_metadata(struct parser *p) {
    struct safetensors *file = p->file;
    if (p->saw_metadata) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is given twice", METADATA);
    }
    p->saw_metadata = true;
    if (json_reader_accept_null(&p->json)) {
        return OK;
    }
    const struct json_reader at = p->json;
    err_t e = json_reader_expect(&p->json, '{');
    if (err_is(e)) {
        return json_reader_refuse(&at, e, METADATA, "an object of strings");
    }
    if (json_reader_accept(&p->json, '}')) {
        return OK;
    }
    do {
        if (2 * file->metadata_count == p->metadata_max) {
            char **grown = grow(file->metadata, &p->metadata_max, sizeof *grown);
            if (!grown) {
                FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu strings of %s", file->metadata_count, METADATA);
            }
            file->metadata = grown;
        }
        char **pair = file->metadata + 2 * file->metadata_count;
        size_t length;
        TRY(store_string(p, &pair[0], &length));
        TRY(json_reader_expect(&p->json, ':'));
        const struct json_reader value = p->json;
        e = store_string(p, &pair[1], &length);
        if (err_is(e)) {
            return err_context(json_reader_refuse(&value, e, pair[0], "a string"), METADATA);
        }
        file->metadata_count++;
    } while (json_reader_accept(&p->json, ','));
    return json_reader_expect(&p->json, '}');
}

// The members of a tensor's entry.
struct entry_text {
    char dtype[24];
    uint64_t begin, end;
    bool has_dtype, has_shape, has_offsets;
};

static FALLIBLE parse_dtype(struct parser *p, struct entry_text *text) {
    char *name;
    size_t length;
    const struct json_reader at = p->json;
    err_t e = store_string(p, &name, &length);
    if (err_is(e)) {
        return json_reader_refuse(&at, e, "dtype", "the name of a dtype, such as \"BF16\"");
    }
    p->text_used -= length + 1; // the name is needed only here
    if (length >= sizeof text->dtype) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "unknown dtype, with a name of %zu bytes", length);
    }
    memcpy(text->dtype, name, length + 1);
    return OK;
}

static FALLIBLE parse_dimensions(struct parser *p, struct expertd_tensor_view *view) {
    TRY(json_reader_expect(&p->json, '['));
    if (json_reader_accept(&p->json, ']')) {
        return OK;
    }
    do {
        if (view->rank == EXPERTD_TENSOR_RANK_MAX) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "the shape has more than %d dimensions", EXPERTD_TENSOR_RANK_MAX);
        }
        TRY(json_reader_u64(&p->json, &view->shape[view->rank]));
        view->rank++;
    } while (json_reader_accept(&p->json, ','));
    return json_reader_expect(&p->json, ']');
}

static FALLIBLE parse_shape(struct parser *p, struct expertd_tensor_view *view) {
    static const char EXPECTED[] = "a list of up to 8 integers from 0 to below 2^63";
    _Static_assert(EXPERTD_TENSOR_RANK_MAX == 8, "the number in the text");
    const struct json_reader at = p->json;
    err_t e = parse_dimensions(p, view);
    return err_is(e) ? json_reader_refuse(&at, e, "shape", EXPECTED) : OK;
}

static FALLIBLE parse_begin_and_end(struct parser *p, struct entry_text *text) {
    TRY(json_reader_expect(&p->json, '['));
    TRY(json_reader_u64(&p->json, &text->begin));
    TRY(json_reader_expect(&p->json, ','));
    TRY(json_reader_u64(&p->json, &text->end));
    return json_reader_expect(&p->json, ']');
}

static FALLIBLE parse_offsets(struct parser *p, struct entry_text *text) {
    const struct json_reader at = p->json;
    err_t e = parse_begin_and_end(p, text);
    return err_is(e) ? json_reader_refuse(&at, e, "data_offsets", "two integers from 0 to below 2^63, the first byte and the end")
                     : OK;
}

// Skips unknown keys, like the safetensors crate: some writers add their own.
static FALLIBLE parse_member(struct parser *p, struct entry_text *text, struct expertd_tensor_view *view) {
    char *key;
    size_t length;
    TRY(store_string(p, &key, &length));
    p->text_used -= length + 1;
    bool *seen = strcmp(key, "dtype") == 0          ? &text->has_dtype
                 : strcmp(key, "shape") == 0        ? &text->has_shape
                 : strcmp(key, "data_offsets") == 0 ? &text->has_offsets
                                                    : NULL;
    if (seen && *seen) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is given twice", key);
    }
    TRY(json_reader_expect(&p->json, ':'));
    if (!seen) {
        return json_reader_skip(&p->json);
    }
    *seen = true;
    return seen == &text->has_dtype   ? parse_dtype(p, text)
           : seen == &text->has_shape ? parse_shape(p, view)
                                      : parse_offsets(p, text);
}

static uint64_t dtype_bits(const char *name, enum expertd_dtype *dtype) {
    *dtype = expertd_dtype_from_name(name, strlen(name));
    if (*dtype != EXPERTD_DTYPE_NONE) {
        return 8 * (uint64_t)expertd_dtype_size(*dtype);
    }
    for (size_t i = 0; i < sizeof FOREIGN_DTYPES / sizeof *FOREIGN_DTYPES; i++) {
        if (strcmp(FOREIGN_DTYPES[i].name, name) == 0) {
            return FOREIGN_DTYPES[i].bits;
        }
    }
    return 0;
}

// Checks that the members are consistent with each other and lie within the file.
static FALLIBLE check_entry(const struct parser *p, const struct entry_text *text, struct expertd_tensor_view *view) {
    if (!text->has_dtype || !text->has_shape || !text->has_offsets) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is missing", !text->has_dtype ? "dtype" : !text->has_shape ? "shape" : "data_offsets");
    }
    uint64_t bits = dtype_bits(text->dtype, &view->dtype);
    if (bits == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "unknown dtype \"%s\"", text->dtype);
    }
    uint64_t elements, all_bits;
    err_t e = expertd_tensor_elements(view->shape, view->rank, &elements);
    if (err_is(e)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s", expertd_err_message());
    }
    if (__builtin_mul_overflow(elements, bits, &all_bits)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the shape's product times %" PRIu64 " bits overflows", bits);
    }
    if (all_bits % 8) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%" PRIu64 " elements of %s do not fill whole bytes", elements, text->dtype);
    }
    if (text->end < text->begin) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "data_offsets [%" PRIu64 ", %" PRIu64 "] end before they begin", text->begin, text->end);
    }
    if (text->end - text->begin != all_bits / 8) {
        char shape[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "data_offsets hold %" PRIu64 " bytes, but %s%s needs %" PRIu64, text->end - text->begin,
             text->dtype, expertd_tensor_shape_text(view->shape, view->rank, shape), all_bits / 8);
    }
    if (text->end > p->data_bytes) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "it ends at byte %" PRIu64 " of the data, but the file has %" PRIu64 ": the file is truncated; download it again",
             text->end, p->data_bytes);
    }
    view->data = p->data + text->begin;
    view->bytes = all_bits / 8;
    if (bits == 4 && view->rank > 0 && view->shape[view->rank - 1] % 2 == 0) {
        view->dtype = EXPERTD_DTYPE_U8;
        view->shape[view->rank - 1] /= 2;
    }
    return OK;
}

FALLIBLE safetensors_check_name(const char *name, size_t length) {
    if (length == 0 || length > SAFETENSORS_NAME_BYTES_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "a tensor's name has %zu bytes: 1 to %d are allowed", length, SAFETENSORS_NAME_BYTES_MAX);
    }
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) { // names are printed to terminals and logs
            FAIL(EXPERTD_ERR_CHECKPOINT, "a tensor's name contains the control character 0x%02x", (unsigned)(unsigned char)name[i]);
        }
    }
    return OK;
}

static FALLIBLE parse_entry_members(struct parser *p, struct expertd_tensor_view *view) {
    struct entry_text text = {.has_dtype = false};
    const struct json_reader at = p->json;
    err_t e = json_reader_expect(&p->json, '{');
    if (err_is(e)) {
        return json_reader_refuse(&at, e, "the entry", "an object with dtype, shape and data_offsets");
    }
    if (!json_reader_accept(&p->json, '}')) {
        do {
            TRY(parse_member(p, &text, view));
        } while (json_reader_accept(&p->json, ','));
        TRY(json_reader_expect(&p->json, '}'));
    }
    return check_entry(p, &text, view);
}

static FALLIBLE parse_entry(struct parser *p) {
    struct safetensors *file = p->file;
    char *name;
    size_t length;
    TRY(store_string(p, &name, &length));
    TRY(json_reader_expect(&p->json, ':'));
    if (strcmp(name, METADATA) == 0) {
        return parse_metadata(p);
    }
    TRY(safetensors_check_name(name, length));
    if (file->count == SAFETENSORS_TENSORS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "more than %d tensors in one file", SAFETENSORS_TENSORS_MAX);
    }
    if (file->count == p->entries_max) {
        struct safetensors_entry *grown = grow(file->entries, &p->entries_max, sizeof *grown);
        if (!grown) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu tensors' entries", file->count);
        }
        file->entries = grown;
    }
    struct safetensors_entry *entry = &file->entries[file->count];
    *entry = (struct safetensors_entry){.name = name};
    TRY_IN(parse_entry_members(p, &entry->view), "tensor %s", name);
    file->count++;
    return OK;
}

static FALLIBLE parse_header(struct parser *p) {
    if (p->json.at == p->json.end || *p->json.at != '{') {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the header does not begin with '{'");
    }
    TRY(json_reader_expect(&p->json, '{'));
    if (!json_reader_accept(&p->json, '}')) {
        do {
            TRY(parse_entry(p));
        } while (json_reader_accept(&p->json, ','));
        TRY(json_reader_expect(&p->json, '}'));
    }
    return json_reader_end(&p->json);
}

static int compare_position(const void *left, const void *right) {
    const struct expertd_tensor_view *a = &((const struct safetensors_entry *)left)->view;
    const struct expertd_tensor_view *b = &((const struct safetensors_entry *)right)->view;
    if (a->data != b->data) {
        return (const char *)a->data < (const char *)b->data ? -1 : 1;
    }
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int compare_name(const void *left, const void *right) {
    return strcmp(((const struct safetensors_entry *)left)->name, ((const struct safetensors_entry *)right)->name);
}

// Checks that the tensors fill the data from the first byte to the last, without gap or overlap.
static FALLIBLE check_positions(const struct parser *p) {
    struct safetensors *file = p->file;
    if (file->count > 0) {
        qsort(file->entries, file->count, sizeof *file->entries, compare_position);
    }
    uint64_t end = 0;
    for (size_t i = 0; i < file->count; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        uint64_t begin = (uint64_t)((const char *)entry->view.data - p->data);
        if (begin != end) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "tensor %s begins at byte %" PRIu64 " of the data, %s byte %" PRIu64 ", where %s ends: %s",
                 entry->name, begin, begin > end ? "past" : "before", end, i ? file->entries[i - 1].name : "the header",
                 begin > end ? "a gap" : "an overlap");
        }
        end += entry->view.bytes;
    }
    if (end != p->data_bytes) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "the tensors end at byte %" PRIu64 " of the data, but the file has %" PRIu64 ": it is damaged; download it again", end,
             p->data_bytes);
    }
    return OK;
}

static FALLIBLE check_names(struct safetensors *file) {
    if (file->count > 0) {
        qsort(file->entries, file->count, sizeof *file->entries, compare_name);
    }
    for (size_t i = 1; i < file->count; i++) {
        if (strcmp(file->entries[i - 1].name, file->entries[i].name) == 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "tensor %s is given twice", file->entries[i].name);
        }
    }
    return OK;
}

static int compare_text(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static FALLIBLE check_metadata(struct safetensors *file) {
    if (file->metadata_count > 0) {
        qsort(file->metadata, file->metadata_count, 2 * sizeof *file->metadata, compare_text);
    }
    for (size_t i = 1; i < file->metadata_count; i++) {
        if (strcmp(file->metadata[2 * i - 2], file->metadata[2 * i]) == 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: \"%.64s\" is given twice", METADATA, file->metadata[2 * i]);
        }
    }
    return OK;
}

static uint64_t header_length(const unsigned char *bytes) {
    uint64_t length = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--) {
        length = length << 8 | bytes[i];
    }
    return length;
}

static FALLIBLE parse_all(struct parser *p) {
    TRY_IN(parse_header(p), "header");
    TRY(check_positions(p));
    TRY(check_names(p->file));
    return check_metadata(p->file);
}

// Whatever rule a header breaks, the remedy is the same.
static err_t with_mend(err_t e) {
    static const char AGAIN[] = "download it again";
    char message[EXPERTD_ERR_MESSAGE_MAX];
    if (e.code != EXPERTD_ERR_CHECKPOINT || strstr(expertd_err_message(), AGAIN)) {
        return e;
    }
    snprintf(message, sizeof message, "%s", expertd_err_message());
    return err_record(e.code, NULL, "%s: the file is damaged, or its writer made a mistake: %s, or convert it anew", message,
                      AGAIN);
}

static FALLIBLE parse(const char *bytes, uint64_t size, struct safetensors *file) {
    TRY(file_magic_check_binary(bytes, size));
    if (size < LENGTH_BYTES) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the file has %" PRIu64 " bytes, too few for a safetensors file%s", size,
             size ? ": download it again" : ": it is empty (an unfinished download?); download it again");
    }
    uint64_t length = header_length((const unsigned char *)bytes);
    if (length > SAFETENSORS_HEADER_BYTES_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "the header claims %" PRIu64 " bytes, more than the limit of %d: not a safetensors file, or a damaged one", length,
             SAFETENSORS_HEADER_BYTES_MAX);
    }
    if (length > size - LENGTH_BYTES) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "the header claims %" PRIu64 " bytes, but the file has %" PRIu64 ": it is truncated; download it again", length, size);
    }
    file->text = malloc(length + 1);
    if (!file->text) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a header of %" PRIu64 " bytes", length);
    }
    file->header_bytes = length;
    struct parser p = {.file = file, .data = bytes + LENGTH_BYTES + length, .data_bytes = size - LENGTH_BYTES - length};
    json_reader_init(&p.json, bytes + LENGTH_BYTES, length);
    err_t e = parse_all(&p);
    return err_is(e) ? with_mend(e) : OK;
}

FALLIBLE safetensors_parse(const char *path, const void *bytes, uint64_t size, struct safetensors *out) {
    *out = (struct safetensors){.path = strdup(path)};
    err_t e = out->path ? parse(bytes, size, out) : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for a path");
    if (err_is(e)) {
        e = err_context(e, "%s", path);
        safetensors_close(out);
    }
    return e;
}

static FALLIBLE map_file(const char *path, int fd, uint64_t size, void **map) {
    *map = NULL;
    if (size == 0) {
        return OK; // the parser refuses an empty file
    }
    void *start = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (start == MAP_FAILED) {
        char cause[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_IO, "%s: cannot map %" PRIu64 " bytes: %s", path, size, memory_cause(errno, size, false, cause));
    }
    *map = start;
    return OK;
}

FALLIBLE safetensors_open(const char *path, struct safetensors *out) {
    *out = (struct safetensors){0};
    int fd;
    uint64_t size;
    TRY(regular_file_open(path, &fd, &size));
    void *map;
    err_t e = map_file(path, fd, size, &map);
    close(fd);
    TRY(e);
    if (map) {
        mapped_add(map, size, path); // while the header is read; `out` has no path yet
    }
    e = safetensors_parse(path, map ? map : "", size, out);
    if (map) {
        mapped_remove(map);
    }
    if (err_is(e)) {
        if (map) {
            munmap(map, size);
        }
        return e;
    }
    out->map = map;
    out->map_bytes = size;
    mapped_add(map, size, out->path);
    return OK;
}

void safetensors_close(struct safetensors *file) {
    if (file->map) {
        mapped_remove(file->map);
        munmap(file->map, file->map_bytes);
    }
    free(file->entries);
    free(file->metadata);
    free(file->text);
    free(file->path);
    *file = (struct safetensors){0};
}

const struct safetensors_entry *safetensors_find(const struct safetensors *file, const char *name) {
    struct safetensors_entry key = {.name = name};
    return file->count ? bsearch(&key, file->entries, file->count, sizeof key, compare_name) : NULL;
}

size_t safetensors_lower_bound(const struct safetensors *file, const char *name) {
    size_t low = 0, high = file->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(file->entries[middle].name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const char *safetensors_metadata(const struct safetensors *file, const char *key) {
    for (size_t i = 0; i < file->metadata_count; i++) {
        if (strcmp(file->metadata[2 * i], key) == 0) {
            return file->metadata[2 * i + 1];
        }
    }
    return NULL;
}
