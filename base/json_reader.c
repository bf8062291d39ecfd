#include "base/json_reader.h"

#include <string.h>

// Describes the next input byte, for a message.
struct found {
    char text[24];
};

static const char *found_text(const struct json_reader *r, struct found *found) {
    if (r->at == r->end) {
        return "the end of the text";
    }
    unsigned char c = (unsigned char)*r->at;
    if (c > 0x20 && c < 0x7f) {
        memcpy(found->text, "'?'", 4);
        found->text[1] = (char)c;
    } else {
        static const char DIGITS[] = "0123456789abcdef";
        memcpy(found->text, "byte 0x??", 10);
        found->text[7] = DIGITS[c >> 4];
        found->text[8] = DIGITS[c & 15];
    }
    return found->text;
}

static err_t bad(const struct json_reader *r, const char *expected) {
    struct found found;
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "bad JSON at byte %zu: expected %s, found %s", (size_t)(r->at - r->start),
                      expected, found_text(r, &found));
}

void json_reader_init(struct json_reader *reader, const char *text, size_t length) {
    *reader = (struct json_reader){.start = text, .at = text, .end = text + length};
}

static void skip_space(struct json_reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\t' || *r->at == '\r')) {
        r->at++;
    }
}

bool json_reader_accept(struct json_reader *r, char c) {
    skip_space(r);
    if (r->at == r->end || *r->at != c) {
        return false;
    }
    r->at++;
    return true;
}

FALLIBLE json_reader_expect(struct json_reader *r, char c) {
    if (json_reader_accept(r, c)) {
        return OK;
    }
    char expected[] = "'?'";
    expected[1] = c;
    return bad(r, expected);
}

bool json_reader_accept_null(struct json_reader *r) {
    static const char WORD[] = {'n', 'u', 'l', 'l'};
    skip_space(r);
    if ((size_t)(r->end - r->at) < sizeof WORD || memcmp(r->at, WORD, sizeof WORD) != 0) {
        return false;
    }
    r->at += sizeof WORD;
    return true;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    char lower = (char)(c | 0x20);
    return lower >= 'a' && lower <= 'f' ? lower - 'a' + 10 : -1;
}

// Reads the four digits after \u.
static FALLIBLE read_hex4(struct json_reader *r, uint32_t *out) {
    *out = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int digit = r->at < r->end ? hex_digit(*r->at) : -1;
        if (digit < 0) {
            return bad(r, "four hexadecimal digits");
        }
        *out = *out << 4 | (uint32_t)digit;
    }
    return OK;
}

static FALLIBLE read_unicode_escape(struct json_reader *r, uint32_t *code) {
    TRY(read_hex4(r, code));
    if (*code >= 0xd800 && *code < 0xdc00) {
        uint32_t low;
        if (r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u') {
            return bad(r, "the second half of a surrogate pair");
        }
        r->at += 2;
        TRY(read_hex4(r, &low));
        if (low < 0xdc00 || low >= 0xe000) {
            return bad(r, "the second half of a surrogate pair");
        }
        *code = 0x10000 + ((*code - 0xd800) << 10) + (low - 0xdc00);
    } else if (*code >= 0xdc00 && *code < 0xe000) {
        return bad(r, "the first half of a surrogate pair");
    }
    return *code ? OK : bad(r, "a character other than U+0000");
}

// Returns the number of bytes written, 1 to 4.
static size_t put_utf8(uint32_t code, char *out) {
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xc0 | code >> 6);
        out[1] = (char)(0x80 | (code & 0x3f));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xe0 | code >> 12);
        out[1] = (char)(0x80 | (code >> 6 & 0x3f));
        out[2] = (char)(0x80 | (code & 0x3f));
        return 3;
    }
    out[0] = (char)(0xf0 | code >> 18);
    out[1] = (char)(0x80 | (code >> 12 & 0x3f));
    out[2] = (char)(0x80 | (code >> 6 & 0x3f));
    out[3] = (char)(0x80 | (code & 0x3f));
    return 4;
}

// Reads a character of two to four bytes. Refuses overlong forms, surrogates and values above U+10FFFF (Unicode, table 3-7).
static FALLIBLE read_utf8(struct json_reader *r, uint32_t *code) {
    unsigned char first = (unsigned char)*r->at;
    size_t length = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    static const uint32_t LEAST[] = {0, 0, 0x80, 0x800, 0x10000};
    if (first < 0xc2 || first > 0xf4 || (size_t)(r->end - r->at) < length) {
        return bad(r, "UTF-8");
    }
    uint32_t value = first & (0xffu >> (length + 1));
    for (size_t i = 1; i < length; i++) {
        unsigned char next = (unsigned char)r->at[i];
        if ((next & 0xc0) != 0x80) {
            return bad(r, "UTF-8");
        }
        value = value << 6 | (next & 0x3fu);
    }
    if (value < LEAST[length] || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
        return bad(r, "UTF-8");
    }
    r->at += length;
    *code = value;
    return OK;
}

static FALLIBLE read_escape(struct json_reader *r, uint32_t *code) {
    static const char LETTERS[] = "\"\\/bfnrt", MEANT[] = "\"\\/\b\f\n\r\t";
    char c = r->at < r->end ? *r->at : '\0';
    if (c == 'u') {
        r->at++;
        return read_unicode_escape(r, code);
    }
    const char *letter = c ? strchr(LETTERS, c) : NULL;
    if (!letter) {
        return bad(r, "an escape");
    }
    r->at++;
    *code = (uint32_t)MEANT[letter - LETTERS];
    return OK;
}

FALLIBLE json_reader_string(struct json_reader *r, char *out, size_t *length) {
    TRY(json_reader_expect(r, '"'));
    size_t used = 0;
    while (r->at < r->end && *r->at != '"') {
        unsigned char c = (unsigned char)*r->at;
        uint32_t code = c;
        if (c < 0x20) {
            return bad(r, "a character (a control character needs an escape)");
        }
        if (c == '\\') {
            r->at++;
            TRY(read_escape(r, &code));
        } else if (c >= 0x80) {
            TRY(read_utf8(r, &code));
        } else {
            r->at++;
        }
        char utf8[4];
        size_t bytes = put_utf8(code, utf8);
        if (out) {
            memcpy(out + used, utf8, bytes);
        }
        used += bytes;
    }
    if (r->at == r->end) {
        return bad(r, "'\"'");
    }
    r->at++;
    if (out) {
        out[used] = '\0';
    }
    if (length) {
        *length = used;
    }
    return OK;
}

static bool digit_next(const struct json_reader *r) {
    return r->at < r->end && *r->at >= '0' && *r->at <= '9';
}

FALLIBLE json_reader_u64(struct json_reader *r, uint64_t *out) {
    skip_space(r);
    const char *first = r->at;
    uint64_t value = 0;
    while (digit_next(r)) {
        uint64_t digit = (uint64_t)(*r->at - '0');
        if (__builtin_mul_overflow(value, (uint64_t)10, &value) || __builtin_add_overflow(value, digit, &value) ||
            value > INT64_MAX) {
            return bad(r, "a number below 2^63");
        }
        r->at++;
    }
    bool leading_zero = r->at - first > 1 && *first == '0';
    bool is_fraction = r->at < r->end && (*r->at == '.' || *r->at == 'e' || *r->at == 'E');
    if (r->at == first || leading_zero || is_fraction) {
        return bad(r, "an integer of 0 or more");
    }
    *out = value;
    return OK;
}

static void skip_digits(struct json_reader *r) {
    while (digit_next(r)) {
        r->at++;
    }
}

// -? (0 | [1-9][0-9]*) (. [0-9]+)? ([eE] [+-]? [0-9]+)?
static FALLIBLE skip_number(struct json_reader *r) {
    r->at += *r->at == '-';
    if (!digit_next(r)) {
        return bad(r, "a value");
    }
    if (*r->at == '0') {
        r->at++;
    } else {
        skip_digits(r);
    }
    if (r->at < r->end && *r->at == '.') {
        r->at++;
        if (!digit_next(r)) {
            return bad(r, "a digit");
        }
        skip_digits(r);
    }
    if (r->at < r->end && (*r->at == 'e' || *r->at == 'E')) {
        r->at++;
        r->at += r->at < r->end && (*r->at == '+' || *r->at == '-');
        if (!digit_next(r)) {
            return bad(r, "a digit");
        }
        skip_digits(r);
    }
    return OK;
}

static FALLIBLE skip_scalar(struct json_reader *r) {
    static const char *const WORDS[] = {"true", "false", "null"};
    skip_space(r);
    if (r->at == r->end) {
        return bad(r, "a value");
    }
    if (*r->at == '"') {
        return json_reader_string(r, NULL, NULL);
    }
    for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++) {
        size_t length = strlen(WORDS[i]);
        if ((size_t)(r->end - r->at) >= length && memcmp(r->at, WORDS[i], length) == 0) {
            r->at += length;
            return OK;
        }
    }
    return skip_number(r);
}

// Skips the name and the colon of an object's member.
static FALLIBLE skip_name(struct json_reader *r) {
    TRY(json_reader_string(r, NULL, NULL));
    return json_reader_expect(r, ':');
}

// Enters the next value if it is an array or object with elements (*opened); otherwise skips it.
static FALLIBLE skip_open(struct json_reader *r, bool *opened, bool *is_object) {
    *opened = false;
    *is_object = json_reader_accept(r, '{');
    if (!*is_object && !json_reader_accept(r, '[')) {
        return skip_scalar(r);
    }
    *opened = !json_reader_accept(r, *is_object ? '}' : ']');
    return *opened && *is_object ? skip_name(r) : OK;
}

FALLIBLE json_reader_skip(struct json_reader *r) {
    uint64_t objects = 0; // bit d: 1 if the value open at depth d is an object, 0 if it is an array
    unsigned depth = 0;
    do {
        bool opened, is_object;
        TRY(skip_open(r, &opened, &is_object));
        if (opened) {
            if (depth == JSON_READER_DEPTH_MAX) {
                return bad(r, "at most 64 levels of nesting");
            }
            objects = (objects & ~(1ull << depth)) | (uint64_t)is_object << depth;
            depth++;
            continue;
        }
        while (depth > 0) {
            is_object = objects >> (depth - 1) & 1;
            if (json_reader_accept(r, ',')) {
                if (is_object) {
                    TRY(skip_name(r));
                }
                break;
            }
            TRY(json_reader_expect(r, is_object ? '}' : ']'));
            depth--;
        }
    } while (depth > 0);
    return OK;
}

enum { VALUE_SHOWN_MAX = 64 };

err_t json_reader_refuse(const struct json_reader *at, err_t e, const char *name, const char *expected) {
    struct err_copy saved;
    struct json_reader end = *at;
    char text[VALUE_SHOWN_MAX + 1];
    if (e.code == EXPERTD_ERR_NOMEM) {
        return e;
    }
    err_save(e, &saved);
    skip_space(&end);
    const char *from = end.at;
    if (err_is(json_reader_skip(&end))) {
        return err_restore(&saved);
    }
    size_t length = (size_t)(end.at - from), shown = length < VALUE_SHOWN_MAX ? length : VALUE_SHOWN_MAX;
    for (size_t i = 0; i < shown; i++) {
        text[i] = (unsigned char)from[i] < 0x20 || from[i] == 0x7f ? '?' : from[i];
    }
    text[shown] = '\0';
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s is %s%s: expected %s", name, text, shown < length ? "..." : "", expected);
}

FALLIBLE json_reader_end(struct json_reader *r) {
    skip_space(r);
    return r->at == r->end ? OK : bad(r, "the end of the text");
}
