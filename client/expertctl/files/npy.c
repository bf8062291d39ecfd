#include "client/expertctl/files/npy.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/mapped.h"
#include "base/regular_file.h"

static const char MAGIC[] = {'\x93', 'N', 'U', 'M', 'P', 'Y'};

enum {
    PREAMBLE_V1 = 10, // magic, two bytes of version, 16 bits of header length
    PREAMBLE_V2 = 12, // the same with 32 bits
    HEADER_MAX = 64 << 10,
    HEADER_ALIGN = 64, // np.save pads to this, so that mapped data is aligned
    WORD_MAX = 32,
};

struct descr_row {
    const char *kind; // without the byte order
    enum expertd_dtype dtype;
};

// A dtype is written as in its first row.
static const struct descr_row DESCRS[] = {
    {"f4", EXPERTD_DTYPE_F32},     {"f2", EXPERTD_DTYPE_F16},     {"f8", EXPERTD_DTYPE_F64},  {"i4", EXPERTD_DTYPE_I32},
    {"i8", EXPERTD_DTYPE_I64},     {"i2", EXPERTD_DTYPE_I16},     {"i1", EXPERTD_DTYPE_I8},   {"u2", EXPERTD_DTYPE_U16},
    {"V2", EXPERTD_DTYPE_U16},     {"u1", EXPERTD_DTYPE_U8},      {"V1", EXPERTD_DTYPE_U8},   {"u4", EXPERTD_DTYPE_U32},
    {"u8", EXPERTD_DTYPE_U64},     {"b1", EXPERTD_DTYPE_BOOL},    {"u2", EXPERTD_DTYPE_BF16}, {"u1", EXPERTD_DTYPE_F8_E4M3},
    {"u1", EXPERTD_DTYPE_F8_E5M2}, {"u1", EXPERTD_DTYPE_F8_E8M0},
};
enum { DESCR_COUNT = sizeof DESCRS / sizeof *DESCRS };

// Position in the header, which is the text of a Python dict. `at` never passes `end`.
struct cursor {
    const char *path, *at, *end;
};

static void skip_spaces(struct cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) {
        c->at++;
    }
}

static bool accept(struct cursor *c, char wanted) {
    skip_spaces(c);
    if (c->at == c->end || *c->at != wanted) {
        return false;
    }
    c->at++;
    return true;
}

static FALLIBLE expect(struct cursor *c, char wanted) {
    if (!accept(c, wanted)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the header is not a Python dict: '%c' expected; is the file damaged?", c->path, wanted);
    }
    return OK;
}

static FALLIBLE read_quoted(struct cursor *c, char word[WORD_MAX]) {
    skip_spaces(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the header is not a Python dict: a quoted text expected; is the file damaged?", c->path);
    }
    char quote = *c->at++;
    const char *close = memchr(c->at, quote, (size_t)(c->end - c->at));
    if (!close || close - c->at >= WORD_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: a text in the header does not end within %d bytes; is the file damaged?", c->path,
             WORD_MAX - 1);
    }
    size_t length = (size_t)(close - c->at);
    memcpy(word, c->at, length);
    word[length] = '\0';
    if (strlen(word) != length) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: a zero byte in a text of the header; is the file damaged?", c->path);
    }
    c->at = close + 1;
    return OK;
}

static FALLIBLE read_descr(struct cursor *c, struct npy *out) {
    skip_spaces(c);
    if (c->at < c->end && (*c->at == '[' || *c->at == '(')) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: a structured array (fields) is not one tensor; save one of its fields: np.save(f, a['field'])", c->path);
    }
    char word[WORD_MAX];
    TRY(read_quoted(c, word));
    const char *kind = word[0] && strchr("<>|=", word[0]) ? word + 1 : word;
    for (size_t i = 0; i < DESCR_COUNT; i++) {
        if (strcmp(DESCRS[i].kind, kind) != 0) {
            continue;
        }
        if (word[0] == '>' && expertd_dtype_size(DESCRS[i].dtype) > 1 && kind[0] != 'V') {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: big-endian data ('%s'); save it with np.save(f, a.astype('<%s'))", c->path, word,
                 kind);
        }
        out->view.dtype = DESCRS[i].dtype;
        snprintf(out->descr, sizeof out->descr, "%.*s", NPY_DESCR_MAX - 1, word);
        return OK;
    }
    if (kind[0] == 'O') {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: an array of Python objects is a pickle, which expertctl never opens; save an array of numbers", c->path);
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: dtype '%s' is not supported; save it as <f4, <f2, <i4, <i8, or the bits of bf16 as <u2",
         c->path, word);
}

static FALLIBLE read_order(struct cursor *c) {
    skip_spaces(c);
    size_t left = (size_t)(c->end - c->at);
    if (left >= 5 && memcmp(c->at, "False", 5) == 0) {
        c->at += 5;
        return OK;
    }
    if (left >= 4 && memcmp(c->at, "True", 4) == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: Fortran order; rows must lie together: np.save(f, np.ascontiguousarray(a))", c->path);
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "%s: fortran_order is neither True nor False; is the file damaged?", c->path);
}

static FALLIBLE read_extent(struct cursor *c, uint64_t *out) {
    skip_spaces(c);
    if (c->at == c->end || !isdigit((unsigned char)*c->at)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: shape is not a tuple of numbers; is the file damaged?", c->path);
    }
    uint64_t value = 0;
    for (; c->at < c->end && isdigit((unsigned char)*c->at); c->at++) {
        uint64_t digit = (uint64_t)(*c->at - '0');
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) || __builtin_add_overflow(value, digit, &value)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: a number in shape is beyond 64 bits", c->path);
        }
    }
    if (c->at < c->end && *c->at == 'L') { // written by Python 2
        c->at++;
    }
    *out = value;
    return OK;
}

static FALLIBLE read_shape(struct cursor *c, struct expertd_tensor_view *view) {
    TRY(expect(c, '('));
    while (!accept(c, ')')) {
        if (view->rank == EXPERTD_TENSOR_RANK_MAX) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s: more than %d dimensions", c->path, EXPERTD_TENSOR_RANK_MAX);
        }
        TRY(read_extent(c, &view->shape[view->rank]));
        view->rank++;
        if (!accept(c, ',')) {
            return expect(c, ')');
        }
    }
    return OK;
}

enum { HAVE_DESCR = 1, HAVE_ORDER = 2, HAVE_SHAPE = 4, HAVE_ALL = 7 };

static FALLIBLE read_entry(struct cursor *c, struct npy *out, unsigned *have) {
    char key[WORD_MAX];
    TRY(read_quoted(c, key));
    TRY(expect(c, ':'));
    unsigned which = strcmp(key, "descr") == 0           ? HAVE_DESCR
                     : strcmp(key, "fortran_order") == 0 ? HAVE_ORDER
                     : strcmp(key, "shape") == 0         ? HAVE_SHAPE
                                                         : 0;
    if (which == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the header has a key that the .npy format does not know; is the file damaged?", c->path);
    }
    if (*have & which) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the header says %s twice", c->path, key);
    }
    *have |= which;
    return which == HAVE_DESCR ? read_descr(c, out) : which == HAVE_ORDER ? read_order(c) : read_shape(c, &out->view);
}

static FALLIBLE read_header(struct cursor *c, struct npy *out) {
    unsigned have = 0;
    TRY(expect(c, '{'));
    while (!accept(c, '}')) { // ends: each turn reads one of three keys, and none may come twice
        TRY(read_entry(c, out, &have));
        if (!accept(c, ',')) {
            TRY(expect(c, '}'));
            break;
        }
    }
    skip_spaces(c);
    if (c->at != c->end) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: something follows the dict in the header; is the file damaged?", c->path);
    }
    if (have != HAVE_ALL) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the header lacks %s", c->path,
             !(have & HAVE_DESCR)   ? "descr"
             : !(have & HAVE_ORDER) ? "fortran_order"
                                    : "shape");
    }
    return OK;
}

// Finds the header; *start and *end are offsets into the file.
static FALLIBLE find_header(const char *path, const uint8_t *bytes, uint64_t size, uint64_t *start, uint64_t *end) {
    if (size < PREAMBLE_V1 || memcmp(bytes, MAGIC, sizeof MAGIC) != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: not a .npy file: it does not begin with \\x93NUMPY", path);
    }
    uint8_t version = bytes[6];
    if (version != 1 && version != 2) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: .npy version %u is not supported; np.save writes version 1 for plain arrays", path,
             version);
    }
    *start = version == 1 ? PREAMBLE_V1 : PREAMBLE_V2;
    if (size < *start) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the file ends within its header", path);
    }
    uint64_t length = (uint64_t)bytes[8] | (uint64_t)bytes[9] << 8;
    if (version == 2) {
        length |= (uint64_t)bytes[10] << 16 | (uint64_t)bytes[11] << 24;
    }
    if (length > HEADER_MAX || length > size - *start) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the header claims %" PRIu64 " bytes; the file has %" PRIu64 " more and the limit is %d",
             path, length, size - *start, HEADER_MAX);
    }
    *end = *start + length;
    return OK;
}

FALLIBLE npy_parse(const char *path, const void *bytes, uint64_t size, struct npy *out) {
    *out = (struct npy){0};
    uint64_t start = 0, end = 0, wanted = 0;
    TRY(find_header(path, bytes, size, &start, &end));
    struct cursor cursor = {path, (const char *)bytes + start, (const char *)bytes + end};
    TRY(read_header(&cursor, out));
    if (err_is(expertd_tensor_bytes(out->view.dtype, out->view.shape, out->view.rank, &wanted))) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the product of its shape overflows; is the file damaged?", path);
    }
    if (wanted != size - end) {
        char text[EXPERTD_TENSOR_SHAPE_TEXT_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: '%s' of shape %s takes %" PRIu64 " bytes, the file holds %" PRIu64 "; is it cut off?",
             path, out->descr, expertd_tensor_shape_text(out->view.shape, out->view.rank, text), wanted, size - end);
    }
    out->view.data = (const uint8_t *)bytes + end;
    out->view.bytes = wanted;
    return OK;
}

static FALLIBLE map_file(const char *path, void **map, uint64_t *bytes) {
    int fd = -1;
    TRY(regular_file_open(path, &fd, bytes));
    void *at = *bytes > 0 ? mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    int cause = errno;
    close(fd);
    if (*bytes == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the file is empty", path);
    }
    if (at == MAP_FAILED) {
        FAIL(EXPERTD_ERR_IO, "%s: cannot be mapped: %s", path, strerror(cause));
    }
    mapped_add(at, *bytes, path);
    *map = at;
    return OK;
}

FALLIBLE npy_open(const char *path, struct npy *out) {
    *out = (struct npy){0};
    void *map = NULL;
    uint64_t bytes = 0;
    TRY(map_file(path, &map, &bytes));
    err_t e = npy_parse(path, map, bytes, out);
    if (err_is(e)) {
        mapped_remove(map);
        munmap(map, bytes);
        *out = (struct npy){0};
        return e;
    }
    out->map = map;
    out->map_bytes = bytes;
    return OK;
}

void npy_close(struct npy *file) {
    if (file->map) {
        mapped_remove(file->map);
        munmap(file->map, file->map_bytes);
    }
    *file = (struct npy){0};
}

static const char *descr_kind(enum expertd_dtype dtype) {
    for (size_t i = 0; i < DESCR_COUNT; i++) {
        if (DESCRS[i].dtype == dtype) {
            return DESCRS[i].kind;
        }
    }
    return NULL;
}

enum { HEADER_TEXT_MAX = 512 };

// Writes preamble and header into text. Returns their length, a multiple of HEADER_ALIGN.
static size_t format_header(const struct expertd_tensor_view *view, char text[HEADER_TEXT_MAX]) {
    memcpy(text, MAGIC, sizeof MAGIC);
    text[6] = 1;
    text[7] = 0;
    size_t used = PREAMBLE_V1;
    used += (size_t)snprintf(text + used, HEADER_TEXT_MAX - used, "{'descr': '%c%s', 'fortran_order': False, 'shape': (",
                             expertd_dtype_size(view->dtype) == 1 ? '|' : '<', descr_kind(view->dtype));
    for (uint32_t i = 0; i < view->rank; i++) {
        used += (size_t)snprintf(text + used, HEADER_TEXT_MAX - used, "%s%" PRIu64, i ? ", " : "", view->shape[i]);
    }
    used += (size_t)snprintf(text + used, HEADER_TEXT_MAX - used, "%s), }", view->rank == 1 ? "," : "");
    size_t padded = (used + 1 + HEADER_ALIGN - 1) / HEADER_ALIGN * HEADER_ALIGN;
    memset(text + used, ' ', padded - used - 1);
    text[padded - 1] = '\n';
    text[8] = (char)((padded - PREAMBLE_V1) & 0xff);
    text[9] = (char)((padded - PREAMBLE_V1) >> 8);
    return padded;
}

static FALLIBLE write_contents(int fd, const struct expertd_tensor_view *view) {
    char header[HEADER_TEXT_MAX];
    TRY(regular_file_write(fd, header, format_header(view, header)));
    return regular_file_write(fd, view->data, view->bytes);
}

FALLIBLE npy_write(const char *path, const struct expertd_tensor_view *view) {
    if (!descr_kind(view->dtype)) {
        FAIL(EXPERTD_ERR_DTYPE_UNSUPPORTED, "%s: NumPy has no type for %s", path, expertd_dtype_name(view->dtype));
    }
    INVARIANT(view->rank <= EXPERTD_TENSOR_RANK_MAX);
    struct regular_file_new file;
    err_t e = regular_file_begin(path, REGULAR_FILE_OR_STREAM, &file);
    if (!err_is(e)) {
        e = regular_file_end(&file, write_contents(file.fd, view));
    }
    return err_context(e, "%s: cannot be written", path);
}
