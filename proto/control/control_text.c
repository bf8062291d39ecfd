#include "proto/control/control_text.h"

#include <string.h>

#include "proto/wire/wire_reader.h"

FALLIBLE control_check_size(const char *message, size_t length) {
    if (length > CONTROL_REQUEST_MAX) {
        FAIL(EXPERTD_ERR_TOO_LARGE, "a %s of %zu bytes exceeds the limit of %d", message, length, CONTROL_REQUEST_MAX);
    }
    return OK;
}

FALLIBLE control_check_text(const char *field, const char *text) {
    if (!wire_text_valid((const uint8_t *)text, strlen(text))) {
        FAIL_FIELD(EXPERTD_ERR_MALFORMED, field, "%s: the text is not UTF-8", field);
    }
    return OK;
}

char *control_clean_text(const char *text, char *out, size_t capacity) {
    const uint8_t *bytes = (const uint8_t *)(text ? text : "");
    size_t length = strlen((const char *)bytes);
    size_t used = 0;
    for (size_t at = 0; at < length;) {
        size_t count = wire_character_bytes(bytes + at, length - at);
        size_t written = count ? count : 1;
        if (written >= capacity - used) {
            break;
        }
        memcpy(out + used, count ? bytes + at : (const uint8_t *)"?", written);
        at += written;
        used += written;
    }
    out[used] = '\0';
    return out;
}
