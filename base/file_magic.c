#include "base/file_magic.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#define AGAIN "download it again; does it need a login (hf auth login)?"
#define UNPACK "unpack it, and name the folder that holds config.json"
#define BEFORE_GGUF                                                                                                                \
    "it is a file of llama.cpp from before GGUF (2023)",                                                                           \
        "convert the original checkpoint anew, with llama.cpp's convert_hf_to_gguf.py"
#define PICKLE "it is a pickle of PyTorch (torch.save), which is not supported", "convert the weights to safetensors"
#define FRAMEWORK "which is not supported", "use the model's safetensors"

static const char ZEROS[16];

struct row {
    struct file_magic magic;
    const char *bytes;
    unsigned length;
    unsigned offset;
    const char *within; // a text that the beginning must also contain; NULL: none
};

#define AT(at, text) .bytes = (text), .length = sizeof(text) - 1, .offset = (at)

// Texts are compared without regard to case, after white space and a byte-order mark.
static const struct row TEXTS[] = {
    {{"it is a Git LFS pointer, not the file itself", "fetch it with `git lfs pull`"},
     AT(0, "version https://git-lfs.github.com/spec/")},
    {{"it is a Git LFS pointer, not the file itself", "fetch it with `git lfs pull`"},
     AT(0, "version https://hawser.github.com/spec/")},
    {{"it is a pointer of git-xet, not the file itself", "fetch it with `git xet checkout`, or hf download"},
     AT(0, "# xet version ")},
    {{"it is an HTML page, not the file itself", AGAIN}, AT(0, "<!doctype html")},
    {{"it is an HTML page, not the file itself", AGAIN}, AT(0, "<html")},
    {{"it is an HTML page, not the file itself", AGAIN}, AT(0, "<head")},
    {{"it is an XML document, such as an error of a storage service, not the file itself", AGAIN}, AT(0, "<?xml")},
    {{"it is an XML document, such as an error of a storage service, not the file itself", AGAIN}, AT(0, "<error")},
};

// The first row that matches counts.
static const struct row ROWS[] = {
    {{BEFORE_GGUF}, AT(0, "lmgg")}, // "ggml", little-endian
    {{BEFORE_GGUF}, AT(0, "fmgg")}, // ggmf
    {{BEFORE_GGUF}, AT(0, "tjgg")}, // ggjt
    {{"it is a LoRA adapter of llama.cpp from before GGUF, not a model", "name the model"}, AT(0, "algg")},
    {{"it is a saved session of llama.cpp, not a model", "name the model's .gguf file"}, AT(0, "nsgg")},
    {{"it is a saved session of llama.cpp, not a model", "name the model's .gguf file"}, AT(0, "qsgg")},
    {{PICKLE}, AT(0, "PK\3\4"), .within = "data.pkl"},
    {{"it is a zip archive", UNPACK}, AT(0, "PK\3\4")},
    {{PICKLE}, AT(0, "\x80\x02\x8a\x0al\xfc\x9c")}, // torch.save before 1.6
    {{"it is a Python pickle, which is not supported", "convert the weights to safetensors"}, AT(0, "\x80\x02}")},
    {{"it is a Python pickle, which is not supported", "convert the weights to safetensors"}, AT(0, "\x80\x04\x95")},
    {{"it is compressed (gzip)", UNPACK}, AT(0, "\x1f\x8b\x08")},
    {{"it is compressed (zstd)", UNPACK}, AT(0, "\x28\xb5\x2f\xfd")},
    {{"it is compressed (xz)", UNPACK},
     AT(0, "\xfd"
           "7zXZ")},
    {{"it is compressed (bzip2)", UNPACK}, AT(0, "BZh")},
    {{"it is compressed (lz4)", UNPACK}, AT(0, "\x04\x22\x4d\x18")},
    {{"it is a 7z archive", UNPACK}, AT(0, "7z\xbc\xaf\x27\x1c")},
    {{"it is a rar archive", UNPACK}, AT(0, "Rar!\x1a\x07")},
    {{"it is a tar archive", UNPACK}, AT(257, "ustar")},
    {{"it is an HDF5 file (Keras, TensorFlow), " FRAMEWORK}, AT(0, "\x89HDF\r\n\x1a\n")},
    {{"it is an array of NumPy, " FRAMEWORK}, AT(0, "\x93NUMPY")},
    {{"it is a model of TensorFlow Lite, " FRAMEWORK}, AT(4, "TFL3")},
    {{"it is a Parquet file, a data set", "name a model"}, AT(0, "PAR1")},
    {{"it is an Arrow file, a data set", "name a model"}, AT(0, "ARROW1")},
    {{"it begins with zeros: a download reserved its size and did not finish", "download it again"},
     .bytes = ZEROS,
     .length = sizeof ZEROS},
};

static bool contains(const char *bytes, size_t length, const char *text) {
    return memmem(bytes, length, text, strlen(text)) != NULL;
}

static const struct file_magic *find_text(const char *bytes, size_t length) {
    size_t at = length >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    while (at < length && strchr(" \t\r\n", bytes[at]) && bytes[at]) {
        at++;
    }
    for (size_t i = 0; i < sizeof TEXTS / sizeof *TEXTS; i++) {
        if (length - at >= TEXTS[i].length && strncasecmp(bytes + at, TEXTS[i].bytes, TEXTS[i].length) == 0) {
            return &TEXTS[i].magic;
        }
    }
    return NULL;
}

// The length of a header, and the header's first character. Any magic number may be such a length.
static bool is_safetensors(const char *bytes, size_t length) {
    return length > 8 && memcmp(bytes + 4, "\0\0\0\0{", 5) == 0;
}

const struct file_magic *file_magic_find(const void *bytes, size_t length) {
    if (is_safetensors(bytes, length)) {
        return NULL;
    }
    const size_t most = length < FILE_MAGIC_BYTES ? length : FILE_MAGIC_BYTES;
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        const struct row *row = &ROWS[i];
        bool begins = most >= row->offset + row->length && memcmp((const char *)bytes + row->offset, row->bytes, row->length) == 0;
        if (begins && (!row->within || contains(bytes, most, row->within))) {
            return &row->magic;
        }
    }
    return find_text(bytes, most);
}

FALLIBLE file_magic_check(const void *bytes, size_t length) {
    const struct file_magic *magic = length ? file_magic_find(bytes, length) : NULL;
    if (magic) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s", magic->what, magic->mend);
    }
    return OK;
}

enum { TEXT_LEAST = 8, TEXT_SHOWN_MAX = 60 };

// The printable beginning of the file's first line.
static size_t first_line(const char *bytes, size_t length, char text[TEXT_SHOWN_MAX + 1]) {
    size_t used = 0;
    while (used < length && used < TEXT_SHOWN_MAX && isprint((unsigned char)bytes[used])) {
        text[used] = bytes[used];
        used++;
    }
    text[used] = '\0';
    return used;
}

// The first bytes of binary formats are a length or a magic number, never eight printable characters.
FALLIBLE file_magic_check_binary(const void *bytes, size_t length) {
    char text[TEXT_SHOWN_MAX + 1];
    TRY(file_magic_check(bytes, length));
    const size_t printable = length ? first_line(bytes, length, text) : 0;
    if (printable >= TEXT_LEAST) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "it is text, not weights (\"%s\"): was an error message saved in its place? " AGAIN, text);
    }
    return OK;
}
