#include "expert/config/json_text.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/file_magic.h"

static const struct bare_number BARE_NUMBERS[] = {
    {"NaN", "\"\\uFDD0NaN\"", "\xef\xb7\x90NaN", NAN},
    {"-Infinity", "\"\\uFDD0-Infinity\"", "\xef\xb7\x90-Infinity", -INFINITY},
    {"Infinity", "\"\\uFDD0Infinity\"", "\xef\xb7\x90Infinity", INFINITY},
};
enum { BARE_NUMBER_COUNT = sizeof BARE_NUMBERS / sizeof *BARE_NUMBERS };

// The bare number at `at` if the value ends there; NULL: none. In any other place jansson rejects the text.
static const struct bare_number *bare_number_at(const char *at, const char *end) {
    for (size_t i = 0; i < BARE_NUMBER_COUNT; i++) {
        size_t length = strlen(BARE_NUMBERS[i].written);
        if ((size_t)(end - at) < length || memcmp(at, BARE_NUMBERS[i].written, length) != 0) {
            continue;
        }
        const char *next = at + length;
        while (next < end && strchr(" \t\r\n", *next) && *next) {
            next++;
        }
        return next < end && (*next == ',' || *next == ']' || *next == '}') ? &BARE_NUMBERS[i] : NULL;
    }
    return NULL;
}

// The end of the string that begins at `at`: past its closing quote.
static const char *string_end(const char *at, const char *end) {
    for (at++; at < end && *at != '"'; at++) {
        at += *at == '\\' && end - at > 1;
    }
    return at < end ? at + 1 : end;
}

size_t json_text_quote(const char *text, size_t length, char *out) {
    const char *at = text, *end = text + length;
    size_t used = 0;
    while (at < end) {
        const char *next = *at == '"' ? string_end(at, end) : at + 1;
        const char *from = at;
        size_t bytes = (size_t)(next - at);
        const struct bare_number *bare = *at == 'N' || *at == 'I' || *at == '-' ? bare_number_at(at, end) : NULL;
        if (bare) {
            next = at + strlen(bare->written);
            from = bare->quoted;
            bytes = strlen(bare->quoted);
        }
        if (out) {
            memcpy(out + used, from, bytes);
        }
        used += bytes;
        at = next;
    }
    return used;
}

const struct bare_number *bare_number_find(const char *string) {
    for (size_t i = 0; i < BARE_NUMBER_COUNT; i++) {
        if (strcmp(string, BARE_NUMBERS[i].text) == 0) {
            return &BARE_NUMBERS[i];
        }
    }
    return NULL;
}

size_t json_text_mark(const char *bytes, size_t length) {
    return length >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

FALLIBLE json_text_check(const char *bytes, size_t length) {
    TRY(file_magic_check(bytes, length));
    if (strspn(bytes, " \t\r\n") == length) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "bad JSON: the file is empty (an unfinished download?): download it again");
    }
    bool utf16 = length >= 2 && (memcmp(bytes, "\xff\xfe", 2) == 0 || memcmp(bytes, "\xfe\xff", 2) == 0 || !bytes[0] != !bytes[1]);
    if (utf16) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "bad JSON: the file is in UTF-16: save it as UTF-8 or download it again");
    }
    const char *nul = memchr(bytes, '\0', length); // jansson would stop there and ignore the rest
    if (nul) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "bad JSON: byte %zu of %zu is NUL: the file is damaged; download it again",
             (size_t)(nul - bytes) + 1, length);
    }
    return OK;
}
