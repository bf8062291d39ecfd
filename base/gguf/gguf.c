#include "base/gguf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/file_magic.h"
#include "base/mapped.h"
#include "base/memory_cause.h"
#include "base/regular_file.h"

enum { VERSION_MIN = 2, VERSION_MAX = 3, RANK_MAX = 4, DEFAULT_ALIGNMENT = 32, ALIGNMENT_MAX = 1 << 20, NAME_SHOWN_MAX = 128 };

static const char MAGIC[4] = {'G', 'G', 'U', 'F'};
static const char ALIGNMENT_KEY[] = "general.alignment";

static const uint8_t KIND_BYTES[GGUF_KINDS] = {
    [GGUF_U8] = 1,  [GGUF_I8] = 1,   [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
};

// The header is walked twice: first to check it and to measure names and keys, then to store them.
struct parser {
    const unsigned char *start, *at, *end; // of the file
    bool store;
    uint32_t version;
    uint64_t tensor_count, pair_count;
    struct gguf *file;
    size_t key_bytes, name_bytes; // measured, then used
    size_t key_bytes_max, name_bytes_max;
    size_t tensors_max, pairs_max;
    uint64_t alignment;
};

// ---- primitives ----

static err_t truncated(const struct parser *p) {
    return err_record(
        EXPERTD_ERR_CHECKPOINT, NULL,
        "the header continues past byte %zu, the end of the file: the file is truncated or damaged; download it again",
        (size_t)(p->end - p->start));
}

static FALLIBLE take_bytes(struct parser *p, uint64_t count, const unsigned char **out) {
    if (count > (uint64_t)(p->end - p->at)) {
        return truncated(p);
    }
    *out = p->at;
    p->at += count;
    if (p->at - p->start > GGUF_HEADER_BYTES_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the header has more than %d bytes: the file is damaged; download it again",
             GGUF_HEADER_BYTES_MAX);
    }
    return OK;
}

static uint64_t little_endian(const unsigned char *bytes, size_t count) {
    uint64_t value = 0;
    while (count-- > 0) {
        value = value << 8 | bytes[count];
    }
    return value;
}

static FALLIBLE take_u32(struct parser *p, uint32_t *out) {
    const unsigned char *bytes = NULL;
    TRY(take_bytes(p, sizeof *out, &bytes));
    *out = (uint32_t)little_endian(bytes, sizeof *out);
    return OK;
}

static FALLIBLE take_u64(struct parser *p, uint64_t *out) {
    const unsigned char *bytes = NULL;
    TRY(take_bytes(p, sizeof *out, &bytes));
    *out = little_endian(bytes, sizeof *out);
    return OK;
}

// A key or a name: it is printed to terminals and logs.
static FALLIBLE take_name(struct parser *p, const char *what, uint64_t bytes_max, const char **out, size_t *length) {
    uint64_t bytes;
    const unsigned char *text = NULL;
    TRY(take_u64(p, &bytes));
    if (bytes == 0 || bytes > bytes_max) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "a %s has %" PRIu64 " bytes: 1 to %" PRIu64 " are allowed", what, bytes, bytes_max);
    }
    TRY(take_bytes(p, bytes, &text));
    INVARIANT(text != NULL);
    for (uint64_t i = 0; i < bytes; i++) {
        if (text[i] < 0x20 || text[i] == 0x7f) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "a %s contains the control character 0x%02x", what, (unsigned)text[i]);
        }
    }
    *out = (const char *)text;
    *length = bytes;
    return OK;
}

// Somebody may write to the file between the two walks.
static FALLIBLE has_space(bool has) {
    if (!has) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the header changed while it was read: do not write into a file that is being loaded");
    }
    return OK;
}

// Copies the name behind the names stored before it.
static const char *store_name(char *text, size_t *used, const char *name, size_t length) {
    char *out = memcpy(text + *used, name, length);
    out[length] = '\0';
    *used += length + 1;
    return out;
}

// ---- values of metadata ----

static FALLIBLE take_kind(struct parser *p, enum gguf_kind *out) {
    uint32_t kind;
    TRY(take_u32(p, &kind));
    if (kind >= GGUF_KINDS) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "its type is %" PRIu32 ": types 0 to %d are known", kind, GGUF_KINDS - 1);
    }
    *out = (enum gguf_kind)kind;
    return OK;
}

static FALLIBLE take_string(struct parser *p, struct gguf_value *out) {
    TRY(take_u64(p, &out->count));
    return take_bytes(p, out->count, &out->data);
}

static FALLIBLE take_number(struct parser *p, enum gguf_kind kind, uint64_t count, const unsigned char **data) {
    uint64_t bytes;
    if (__builtin_mul_overflow(count, (uint64_t)KIND_BYTES[kind], &bytes)) {
        return truncated(p);
    }
    TRY(take_bytes(p, bytes, data));
    for (uint64_t i = 0; kind == GGUF_BOOL && i < count; i++) {
        if ((*data)[i] > 1) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "a truth value is %u: expected 0 or 1", (unsigned)(*data)[i]);
        }
    }
    return OK;
}

// The depth is bounded, so that the recursion is.
static FALLIBLE take_array(struct parser *p, int depth, struct gguf_value *out) { // NOLINT(misc-no-recursion)
    if (depth == GGUF_DEPTH_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "arrays are nested more than %d deep", GGUF_DEPTH_MAX);
    }
    TRY(take_kind(p, &out->element));
    TRY(take_u64(p, &out->count));
    out->data = p->at;
    if (KIND_BYTES[out->element] > 0) {
        return take_number(p, out->element, out->count, &out->data);
    }
    for (uint64_t i = 0; i < out->count; i++) { // each element takes bytes, so a false count ends at the end of the file
        struct gguf_value element;
        TRY(out->element == GGUF_STRING ? take_string(p, &element) : take_array(p, depth + 1, &element));
    }
    return OK;
}

static FALLIBLE take_value(struct parser *p, struct gguf_value *out) {
    TRY(take_kind(p, &out->kind));
    return out->kind == GGUF_STRING  ? take_string(p, out)
           : out->kind == GGUF_ARRAY ? take_array(p, 0, out)
                                     : take_number(p, out->kind, 1, &out->data);
}

static FALLIBLE take_alignment(struct parser *p, const struct gguf_value *value) {
    if (value->kind != GGUF_U32) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "it is no number of 32 bits without a sign, which llama.cpp requires");
    }
    uint64_t alignment = little_endian(value->data, sizeof(uint32_t));
    if (alignment == 0 || alignment > ALIGNMENT_MAX || (alignment & (alignment - 1)) != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "it is %" PRIu64 ": expected an unsigned power of two up to %d", alignment, ALIGNMENT_MAX);
    }
    p->alignment = alignment;
    return OK;
}

static FALLIBLE take_pair(struct parser *p) {
    const char *key = NULL;
    size_t length = 0;
    struct gguf_value value = {0};
    TRY(take_name(p, "key", GGUF_KEY_BYTES_MAX, &key, &length));
    int shown = length < NAME_SHOWN_MAX ? (int)length : NAME_SHOWN_MAX;
    TRY_IN(take_value(p, &value), "%.*s", shown, key);
    if (length == sizeof ALIGNMENT_KEY - 1 && memcmp(key, ALIGNMENT_KEY, length) == 0) {
        TRY_IN(take_alignment(p, &value), ALIGNMENT_KEY);
    }
    if (p->store) {
        struct gguf *file = p->file;
        TRY(has_space(file->count < p->pairs_max && length < p->key_bytes_max - p->key_bytes));
        file->pairs[file->count++] = (struct gguf_pair){store_name(file->text, &p->key_bytes, key, length), value};
    } else {
        p->key_bytes += length + 1;
    }
    return OK;
}

// ---- tensors ----

// A fourth dimension of 1 is the padding of writers that store all of ggml's four.
static void drop_fourth(struct expertd_tensor_view *view) {
    if (view->rank == RANK_MAX && view->shape[0] == 1) {
        view->rank--;
        memmove(view->shape, view->shape + 1, view->rank * sizeof *view->shape);
    }
}

static FALLIBLE take_shape(struct parser *p, struct expertd_tensor_view *view) {
    TRY(take_u32(p, &view->rank));
    if (view->rank > RANK_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "it has %" PRIu32 " dimensions: at most %d are allowed", view->rank, RANK_MAX);
    }
    for (uint32_t i = view->rank; i > 0; i--) { // the file has the innermost dimension first
        TRY(take_u64(p, &view->shape[i - 1]));
    }
    drop_fourth(view);
    return OK;
}

// The tensor's bytes; the innermost dimension has whole blocks.
static FALLIBLE size_of(const struct ggml_type *type, struct expertd_tensor_view *view) {
    uint64_t elements, inner = view->rank > 0 ? view->shape[view->rank - 1] : 1;
    if (err_is(expertd_tensor_elements(view->shape, view->rank, &elements))) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s", expertd_err_message());
    }
    if (inner % type->elements != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "its rows have %" PRIu64 " elements, which do not fill blocks of %s, %" PRIu32 " elements each", inner, type->name,
             type->elements);
    }
    if (__builtin_mul_overflow(elements / type->elements, (uint64_t)type->bytes, &view->bytes) || view->bytes > INT64_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "its size overflows");
    }
    return OK;
}

static FALLIBLE take_type(struct parser *p, struct safetensors_entry *entry) {
    uint32_t id;
    TRY(take_u32(p, &id));
    const struct ggml_type *type = ggml_type_of(id);
    const struct ggml_withdrawn *old = ggml_withdrawn_type(id);
    if (old) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "its type is %" PRIu32 ", %s, which llama.cpp has withdrawn: use the model's %s file", id,
             old->name, old->instead);
    }
    if (ggml_ik_type(id)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "its type is %" PRIu32
             ", %s of ik_llama.cpp, which is not served: use a file of the model in llama.cpp's types (Q4_K_M, "
             "Q6_K, ...)",
             id, ggml_ik_type(id));
    }
    if (!type) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "its type is %" PRIu32
             ", which is unknown: the file was written by a newer llama.cpp or a fork, or is damaged; use a file "
             "of the model in another quantisation, or download it again",
             id);
    }
    entry->view.dtype = type->dtype;
    entry->blocks = type->dtype == EXPERTD_DTYPE_NONE ? type : NULL;
    return size_of(type, &entry->view);
}

static FALLIBLE take_tensor_info(struct parser *p, struct safetensors_entry *entry, uint64_t *offset) {
    TRY(take_shape(p, &entry->view));
    TRY(take_type(p, entry));
    TRY(take_u64(p, offset));
    if (*offset % p->alignment != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "it begins at byte %" PRIu64 " of the data, which is not a multiple of %s, %" PRIu64, *offset,
             ALIGNMENT_KEY, p->alignment);
    }
    return OK;
}

static FALLIBLE take_tensor(struct parser *p) {
    struct safetensors *tensors = &p->file->tensors;
    struct safetensors_entry entry = {0};
    const char *name = NULL;
    size_t length = 0;
    uint64_t offset = 0;
    TRY(take_name(p, "tensor's name", SAFETENSORS_NAME_BYTES_MAX, &name, &length));
    TRY_IN(take_tensor_info(p, &entry, &offset), "tensor %.*s", (int)length, name);
    if (!p->store) {
        p->name_bytes += length + 1;
        return OK;
    }
    TRY(has_space(tensors->count < p->tensors_max && length < p->name_bytes_max - p->name_bytes));
    entry.name = store_name(tensors->text, &p->name_bytes, name, length);
    entry.view.data = (const void *)(uintptr_t)offset; // place_tensors makes it a pointer
    tensors->entries[tensors->count++] = entry;
    return OK;
}

// ---- the header ----

static FALLIBLE take_version(struct parser *p) {
    TRY(take_u32(p, &p->version));
    if ((p->version & 0xffff) == 0 && p->version != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the file is big-endian, which is not supported: use the little-endian file of the model");
    }
    if (p->version < VERSION_MIN || p->version > VERSION_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "GGUF version %" PRIu32 " is not supported: expected %d or %d%s", p->version, VERSION_MIN,
             VERSION_MAX, p->version == 1 ? "; convert the model again with a llama.cpp of today" : "");
    }
    return OK;
}

static FALLIBLE take_counts(struct parser *p) {
    const unsigned char *magic = NULL;
    TRY(take_bytes(p, sizeof MAGIC, &magic));
    TRY(take_version(p));
    TRY(take_u64(p, &p->tensor_count));
    TRY(take_u64(p, &p->pair_count));
    if (p->tensor_count > SAFETENSORS_TENSORS_MAX || p->pair_count > GGUF_PAIRS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "the header claims %" PRIu64 " tensors and %" PRIu64 " keys: at most %d and %d are supported; the file may be damaged",
             p->tensor_count, p->pair_count, SAFETENSORS_TENSORS_MAX, GGUF_PAIRS_MAX);
    }
    return OK;
}

static FALLIBLE walk(struct parser *p, bool store) {
    p->store = store;
    p->at = p->start;
    p->key_bytes = p->name_bytes = 0;
    p->alignment = DEFAULT_ALIGNMENT;
    TRY(take_counts(p));
    for (uint64_t i = 0; i < p->pair_count; i++) {
        TRY(take_pair(p));
    }
    for (uint64_t i = 0; i < p->tensor_count; i++) {
        TRY(take_tensor(p));
    }
    return OK;
}

// The counts are those of a header that was walked to its end.
static FALLIBLE reserve(struct parser *p) {
    struct gguf *file = p->file;
    p->key_bytes_max = p->key_bytes, p->name_bytes_max = p->name_bytes;
    p->tensors_max = p->tensor_count, p->pairs_max = p->pair_count;
    file->pairs = calloc(p->pair_count + 1, sizeof *file->pairs);
    file->text = malloc(p->key_bytes + 1);
    file->tensors.entries = calloc(p->tensor_count + 1, sizeof *file->tensors.entries);
    file->tensors.text = malloc(p->name_bytes + 1);
    if (!file->pairs || !file->text || !file->tensors.entries || !file->tensors.text) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %" PRIu64 " keys and %" PRIu64 " tensors", p->pair_count, p->tensor_count);
    }
    return OK;
}

static uint64_t align(uint64_t offset, uint64_t alignment) {
    return (offset + alignment - 1) / alignment * alignment;
}

static int compare_offset(const void *left, const void *right) {
    const struct safetensors_entry *a = left, *b = right;
    const uintptr_t at = (uintptr_t)a->view.data, other = (uintptr_t)b->view.data;
    return at != other ? (at > other) - (at < other) : (a->view.bytes > b->view.bytes) - (a->view.bytes < b->view.bytes);
}

// Checks that the tensors fill the data from its first byte to its last, each padded to the alignment, and points them there.
static FALLIBLE place_tensors(struct parser *p) {
    struct safetensors *tensors = &p->file->tensors;
    const uint64_t size = (uint64_t)(p->end - p->start), data = align((uint64_t)(p->at - p->start), p->alignment);
    uint64_t next = 0, end = 0; // where the next tensor begins; where the last one ends
    tensors->header_bytes = data;
    qsort(tensors->entries, tensors->count, sizeof *tensors->entries, compare_offset);
    for (size_t i = 0; i < tensors->count; i++) {
        struct safetensors_entry *entry = &tensors->entries[i];
        uint64_t offset = (uintptr_t)entry->view.data, available = data <= size ? size - data : 0;
        if (offset != next) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "tensor %s begins at byte %" PRIu64 " of the data, %s byte %" PRIu64 ", where %s ends: %s",
                 entry->name, offset, offset > next ? "past" : "before", next, i ? tensors->entries[i - 1].name : "the header",
                 offset > next ? "a gap" : "an overlap");
        }
        if (offset > available || entry->view.bytes > available - offset) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "tensor %s ends at byte %" PRIu64 " of the data, but the file has %" PRIu64
                 ": the file is truncated; download it again",
                 entry->name, offset + entry->view.bytes, available);
        }
        entry->view.data = p->start + data + offset;
        end = offset + entry->view.bytes;
        next = align(end, p->alignment);
    }
    if (size > data + next) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "the tensors end at byte %" PRIu64 " of the file, but it has %" PRIu64 ": it is damaged; download it again",
             data + end, size);
    }
    return OK;
}

static int compare_name(const void *left, const void *right) {
    return strcmp(((const struct safetensors_entry *)left)->name, ((const struct safetensors_entry *)right)->name);
}

static int compare_key(const void *left, const void *right) {
    return strcmp(((const struct gguf_pair *)left)->key, ((const struct gguf_pair *)right)->key);
}

static FALLIBLE check_unique(struct gguf *file) {
    struct safetensors *tensors = &file->tensors;
    qsort(tensors->entries, tensors->count, sizeof *tensors->entries, compare_name);
    for (size_t i = 1; i < tensors->count; i++) {
        if (strcmp(tensors->entries[i - 1].name, tensors->entries[i].name) == 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "tensor %s is given twice", tensors->entries[i].name);
        }
    }
    qsort(file->pairs, file->count, sizeof *file->pairs, compare_key);
    for (size_t i = 1; i < file->count; i++) {
        if (strcmp(file->pairs[i - 1].key, file->pairs[i].key) == 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%.*s is given twice", NAME_SHOWN_MAX, file->pairs[i].key);
        }
    }
    return OK;
}

static FALLIBLE parse(const unsigned char *bytes, uint64_t size, struct gguf *file) {
    struct parser p = {.start = bytes, .end = bytes + size, .file = file};
    TRY(file_magic_check_binary(bytes, size));
    if (size < sizeof MAGIC || memcmp(bytes, MAGIC, sizeof MAGIC) != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "it does not begin with \"GGUF\": it is not a GGUF file%s",
             size ? "" : ", it is empty (an unfinished download?)");
    }
    TRY(walk(&p, false));
    TRY(reserve(&p));
    TRY(walk(&p, true));
    TRY(place_tensors(&p));
    return check_unique(file);
}

FALLIBLE gguf_parse(const char *path, const void *bytes, uint64_t size, struct gguf *out) {
    *out = (struct gguf){.tensors.path = strdup(path)};
    err_t e = out->tensors.path ? parse(bytes, size, out) : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for a path");
    if (err_is(e)) {
        e = err_context(e, "%s", path);
        gguf_close(out);
    }
    return e;
}

// ---- the file ----

bool gguf_is(const char *path) {
    char magic[sizeof MAGIC];
    int fd;
    uint64_t size;
    if (err_is(regular_file_open(path, &fd, &size))) {
        return false;
    }
    bool is = pread(fd, magic, sizeof magic, 0) == (ssize_t)sizeof magic && memcmp(magic, MAGIC, sizeof magic) == 0;
    close(fd);
    return is;
}

FALLIBLE gguf_open(const char *path, struct gguf *out) {
    *out = (struct gguf){0};
    int fd;
    uint64_t size;
    TRY(regular_file_open(path, &fd, &size));
    void *map = size > 0 ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    int cause = errno;
    close(fd);
    if (map == MAP_FAILED) {
        char text[MEMORY_CAUSE_MAX];
        FAIL(EXPERTD_ERR_IO, "%s: cannot map %" PRIu64 " bytes: %s", path, size, memory_cause(cause, size, false, text));
    }
    if (map) {
        mapped_add(map, size, path); // while the header is read; `out` has no path yet
    }
    err_t e = gguf_parse(path, map ? map : "", size, out);
    if (map) {
        mapped_remove(map);
    }
    if (err_is(e)) {
        if (map) {
            munmap(map, size);
        }
        return e;
    }
    out->tensors.map = map;
    out->tensors.map_bytes = size;
    mapped_add(map, size, out->tensors.path);
    return OK;
}

void gguf_close(struct gguf *file) {
    safetensors_close(&file->tensors);
    free(file->pairs);
    free(file->text);
    *file = (struct gguf){0};
}

// ---- values ----

const struct gguf_value *gguf_find(const struct gguf *file, const char *key) {
    const struct gguf_pair sought = {.key = key};
    const struct gguf_pair *pair = file->count ? bsearch(&sought, file->pairs, file->count, sizeof sought, compare_key) : NULL;
    return pair ? &pair->value : NULL;
}

static double number_at(enum gguf_kind kind, const unsigned char *at) {
    const uint64_t bits = little_endian(at, KIND_BYTES[kind]);
    double wide;
    switch (kind) {
    case GGUF_I8:
        return (int8_t)bits;
    case GGUF_I16:
        return (int16_t)bits;
    case GGUF_I32:
        return (int32_t)bits;
    case GGUF_I64:
        return (double)(int64_t)bits;
    case GGUF_F32:
        return expertd_f32_from_bits((uint32_t)bits);
    case GGUF_F64:
        memcpy(&wide, &bits, sizeof wide);
        return wide;
    default:
        return (double)bits;
    }
}

bool gguf_number(const struct gguf_value *value, uint64_t i, double *out) {
    bool array = value->kind == GGUF_ARRAY;
    enum gguf_kind kind = array ? value->element : value->kind;
    if (KIND_BYTES[kind] == 0 || (array && i >= value->count)) {
        return false;
    }
    *out = number_at(kind, value->data + (array ? i * KIND_BYTES[kind] : 0));
    return true;
}

bool gguf_is_integer(const struct gguf_value *value) {
    enum gguf_kind kind = value->kind == GGUF_ARRAY ? value->element : value->kind;
    return KIND_BYTES[kind] > 0 && kind != GGUF_F32 && kind != GGUF_F64 && kind != GGUF_BOOL;
}

bool gguf_is_text(const struct gguf_value *value, const char *text) {
    size_t length = strlen(text);
    return value->kind == GGUF_STRING && value->count == length && memcmp(value->data, text, length) == 0;
}
