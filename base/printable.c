#include "base/printable.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

size_t printable_length(const char *text) {
    const unsigned char *p = (const unsigned char *)text;
    if (*p < 0x80) {
        return *p >= 0x20 && *p != 0x7f;
    }
    size_t length = *p >= 0xf0 && *p <= 0xf4 ? 4 : (*p & 0xf0) == 0xe0 ? 3 : *p >= 0xc2 && *p < 0xe0 ? 2 : 0;
    uint32_t point = length ? *p & (0xffu >> (length + 1)) : 0;
    for (size_t i = 1; i < length; i++) {
        if ((p[i] & 0xc0) != 0x80) {
            return 0;
        }
        point = point << 6 | (p[i] & 0x3f);
    }
    static const uint32_t LEAST[] = {0, 0, 0xa0, 0x800, 0x10000}; // smaller values: C1 controls and overlong forms
    bool refused = point < LEAST[length] || (point >= 0xd800 && point <= 0xdfff) || point == 0x2028 || point == 0x2029 ||
                   point == 0xfeff || point == 0xfffe || point == 0xffff || point > 0x10ffff;
    return refused ? 0 : length;
}

bool printable_is(const char *text, size_t *at) {
    size_t length = strlen(text), step = 1;
    for (*at = 0; *at < length && step > 0; *at += step) {
        step = printable_length(text + *at);
    }
    return *at == length;
}

const char *printable_escape(const char *text, char *out, size_t out_bytes) {
    enum { PIECE_MAX = 5 };
    size_t used = 0;
    while (*text && used + PIECE_MAX <= out_bytes) {
        size_t length = printable_length(text);
        if (length > 0 && *text != '\\') {
            memcpy(out + used, text, length);
            used += length;
        } else {
            used += (size_t)snprintf(out + used, PIECE_MAX, *text == '\\' ? "\\\\" : "\\x%02x", (unsigned)(unsigned char)*text);
        }
        text += length ? length : 1;
    }
    out[used] = '\0';
    return out;
}
