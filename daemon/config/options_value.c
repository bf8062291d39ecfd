#include "daemon/config/options_value.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "daemon/config/options_address.h"
#include "daemon/config/options_hosts.h"
#include "expertd/kernels/devices.h"
#include "proto/tls/tls_identity.h"

static void *field_of(const struct options_row *row, struct options *options) {
    return (char *)options + row->offset;
}

static const void *const_field_of(const struct options_row *row, const struct options *options) {
    return (const char *)options + row->offset;
}

static FALLIBLE set_text(char **field, const char *text) {
    char *copy = strdup(text);
    if (!copy) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a value of %zu bytes", strlen(text));
    }
    free(*field);
    *field = copy;
    return OK;
}

static FALLIBLE parse_listen(char *const *texts, size_t count, enum expertd_err_code code, struct options *out) {
    if (count > OPTIONS_LISTEN_MAX) {
        FAIL(code, "%zu addresses are more than the %d that are served", count, OPTIONS_LISTEN_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        TRY(options_address_check(texts[i], true, code));
        for (size_t j = 0; j < i; j++) {
            bool free_port = !options_unix_path(texts[i]) && options_address_port(texts[i]) == 0;
            if (strcmp(texts[i], texts[j]) == 0 && !free_port) {
                FAIL(code, "\"%s\" is given twice", texts[i]);
            }
        }
    }
    options_value_clear(&OPTIONS_ROWS[OPTION_LISTEN], out);
    for (size_t i = 0; i < count; i++) {
        TRY(set_text(&out->listen[i], texts[i]));
        out->listen_count = i + 1;
    }
    return OK;
}

enum { CHOICES_TEXT_MAX = 160 }; // enough for --kernels, which has the longest list

// Writes "a|b|c" as "a, b or c" to `out`.
static const char *choices_text(const char *choices, char out[CHOICES_TEXT_MAX]) {
    size_t used = 0;
    const char *last = strrchr(choices, '|');
    for (const char *p = choices; *p && used + 5 < CHOICES_TEXT_MAX; p++) {
        const char *piece = *p != '|' ? (char[2]){*p, '\0'} : p == last ? " or " : ", ";
        memcpy(out + used, piece, strlen(piece));
        used += strlen(piece);
    }
    out[used] = '\0';
    return out;
}

static FALLIBLE check_choice(const char *choices, const char *text, enum expertd_err_code code) {
    size_t length = strlen(text);
    for (const char *p = choices; *p; p += strspn(p, "|")) {
        size_t choice = strcspn(p, "|");
        if (choice == length && memcmp(p, text, length) == 0) {
            return OK;
        }
        p += choice;
    }
    char all[CHOICES_TEXT_MAX];
    FAIL(code, "\"%s\" is not %s", text, choices_text(choices, all));
}

static FALLIBLE check_device(const char *text, enum expertd_err_code code) {
    struct expertd_devices_request request;
    if (strcmp(text, "auto") == 0 || strcmp(text, "cpu") == 0 || !err_is(expertd_devices_parse(text, &request))) {
        return OK;
    }
    FAIL(code, "\"%s\" is not a device: write auto, cpu, cuda (every GPU), cuda:0,1 (these GPUs), sim or sim:N (simulated GPUs)",
         text);
}

// Parses decimal digits; strtoull would also accept a sign, spaces and octal. Returns the rest of the text, or NULL if there is no
// digit or the number exceeds 64 bits.
static const char *parse_digits(const char *text, uint64_t *out) {
    uint64_t sum = 0;
    const char *p = text;
    for (; *p >= '0' && *p <= '9'; p++) {
        if (__builtin_mul_overflow(sum, (uint64_t)10, &sum) || __builtin_add_overflow(sum, (uint64_t)(*p - '0'), &sum)) {
            return NULL;
        }
    }
    *out = sum;
    return p == text ? NULL : p;
}

static FALLIBLE parse_number(const struct options_row *row, const char *text, enum expertd_err_code code, uint32_t *out) {
    uint64_t number;
    const char *end = parse_digits(text, &number);
    if (!end || *end || number < row->least || number > row->greatest) {
        FAIL(code, "\"%s\" is not an integer from %" PRIu64 " to %" PRIu64, text, row->least, row->greatest);
    }
    *out = (uint32_t)number;
    return OK;
}

struct unit {
    const char *name;
    unsigned shift;
};
static const struct unit UNITS[] = {{"TiB", 40}, {"GiB", 30}, {"MiB", 20}, {"KiB", 10}, {"", 0}};
enum { UNIT_COUNT = sizeof UNITS / sizeof UNITS[0] };

// Uses the largest unit that divides `bytes`, so nothing is rounded.
static const char *bytes_text(uint64_t bytes, char out[OPTIONS_NAME_MAX]) {
    size_t u = 0;
    while (bytes == 0 || bytes & ((1ull << UNITS[u].shift) - 1)) {
        if (++u + 1 >= UNIT_COUNT) {
            break;
        }
    }
    snprintf(out, OPTIONS_NAME_MAX, "%" PRIu64 "%s", bytes >> UNITS[u].shift, UNITS[u].name);
    return out;
}

static bool scale_bytes(const char *unit, uint64_t *bytes) {
    for (size_t u = 0; u < UNIT_COUNT; u++) {
        if (strcmp(unit, UNITS[u].name) == 0) {
            return !__builtin_mul_overflow(*bytes, (uint64_t)1 << UNITS[u].shift, bytes);
        }
    }
    return false;
}

static FALLIBLE parse_bytes(const struct options_row *row, const char *text, enum expertd_err_code code, uint64_t *out) {
    uint64_t bytes;
    const char *end = parse_digits(text, &bytes);
    if (!end || !scale_bytes(end, &bytes) || bytes < row->least || bytes > row->greatest) {
        char least[OPTIONS_NAME_MAX], greatest[OPTIONS_NAME_MAX];
        FAIL(code, "\"%s\" is not a size from %s to %s: write bytes, or an integer with KiB, MiB, GiB or TiB", text,
             bytes_text(row->least, least), bytes_text(row->greatest, greatest));
    }
    *out = bytes;
    return OK;
}

static FALLIBLE parse_layers(const char *text, enum expertd_err_code code, struct options *out) {
    if (strcmp(text, "all") == 0) {
        out->have_layers = false;
        out->first_layer = out->last_layer = 0;
        return OK;
    }
    uint64_t first = 0;
    const char *end = parse_digits(text, &first);
    uint64_t last = first;
    if (end && *end == '-') {
        end = parse_digits(end + 1, &last);
    }
    if (!end || *end || first > UINT32_MAX || last > UINT32_MAX) {
        FAIL(code, "\"%s\" is not a range of layers: write A-B, as in 0-23, one number, or all", text);
    }
    if (first > last) {
        FAIL(code, "\"%s\" ends before it starts: write %" PRIu64 "-%" PRIu64, text, last, first);
    }
    out->have_layers = true;
    out->first_layer = (uint32_t)first;
    out->last_layer = (uint32_t)last;
    return OK;
}

static FALLIBLE parse_dtype(const char *text, enum expertd_err_code code, enum expertd_dtype *out) {
    TRY(check_choice("auto|bf16|f32", text, code));
    *out = text[0] == 'a' ? EXPERTD_DTYPE_NONE : text[0] == 'b' ? EXPERTD_DTYPE_BF16 : EXPERTD_DTYPE_F32;
    return OK;
}

static FALLIBLE parse_bool(const char *text, enum expertd_err_code code, bool *out) {
    TRY(check_choice("true|false", text, code));
    *out = text[0] == 't';
    return OK;
}

static FALLIBLE check_uids(const char *text, enum expertd_err_code code) {
    if (strcmp(text, "any") == 0 || strcmp(text, "self") == 0) {
        return OK;
    }
    const char *p = text;
    for (;;) {
        uint64_t uid;
        p = parse_digits(p, &uid);
        // (uid_t)-1 means "no user" to the kernel
        if (!p || uid >= UINT32_MAX || (*p && *p != ',')) {
            FAIL(code, "\"%s\" is not any, self or a comma-separated list of numeric user ids, as in 0,1000", text);
        }
        if (!*p) {
            return OK;
        }
        p++;
    }
}

static FALLIBLE check_http(const char *text, enum expertd_err_code code) {
    return strcmp(text, "off") == 0 ? OK : options_address_check(text, false, code);
}

static FALLIBLE check_socket(const char *text, enum expertd_err_code code) {
    if (strcmp(text, "off") == 0) {
        return OK;
    }
    return options_address_check(text, true, code);
}

static FALLIBLE check_syntax(const struct options_row *row, const char *text, enum expertd_err_code code) {
    switch (row->type) {
    case OPTIONS_ADDRESS:
        return check_http(text, code);
    case OPTIONS_SOCKET:
        return check_socket(text, code);
    case OPTIONS_CHOICE:
        return check_choice(row->choices, text, code);
    case OPTIONS_DEVICE:
        return check_device(text, code);
    case OPTIONS_UIDS:
        return check_uids(text, code);
    case OPTIONS_HOSTS:
        return options_hosts_check(text, code);
    case OPTIONS_IDENTITIES:
        return tls_identity_check(text, code);
    default:
        return OK;
    }
}

// Refuses empty and long values, control characters and invalid UTF-8: YAML and log lines would have to escape the last two.
static FALLIBLE check_text(const char *text, enum expertd_err_code code) {
    size_t length = strlen(text);
    if (length == 0) {
        FAIL(code, "the value is empty");
    }
    if (length >= OPTIONS_VALUE_MAX) {
        FAIL(code, "the value has %zu bytes, more than the limit of %d", length, OPTIONS_VALUE_MAX - 1);
    }
    size_t at;
    if (!printable_is(text, &at)) {
        FAIL(code, "the value contains a control character or invalid UTF-8 at byte %zu", at);
    }
    return OK;
}

FALLIBLE options_value_parse(const struct options_row *row, char *const *texts, size_t count, enum expertd_err_code code,
                             struct options *out) {
    void *field = field_of(row, out);
    for (size_t i = 0; i < count && row->type != OPTIONS_SWITCH; i++) {
        TRY(check_text(texts[i], code));
    }
    if (row->type != OPTIONS_LISTEN && count != 1) {
        FAIL(code, "takes one value, not %zu", count);
    }
    switch (row->type) {
    case OPTIONS_LISTEN:
        return parse_listen(texts, count, code, out);
    case OPTIONS_NUMBER:
        return parse_number(row, texts[0], code, field);
    case OPTIONS_BYTES:
        return parse_bytes(row, texts[0], code, field);
    case OPTIONS_LAYERS:
        return parse_layers(texts[0], code, out);
    case OPTIONS_DTYPE:
        return parse_dtype(texts[0], code, field);
    case OPTIONS_BOOL:
        return parse_bool(texts[0], code, field);
    case OPTIONS_SWITCH:
        *(bool *)field = true;
        return OK;
    default:
        TRY(check_syntax(row, texts[0], code));
        return set_text(field, texts[0]);
    }
}

static const char *layers_text(const struct options *options, char buffer[OPTIONS_NAME_MAX]) {
    if (!options->have_layers) {
        return "all";
    }
    snprintf(buffer, OPTIONS_NAME_MAX, "%" PRIu32 "-%" PRIu32, options->first_layer, options->last_layer);
    return buffer;
}

static const char *dtype_text(enum expertd_dtype dtype) {
    return dtype == EXPERTD_DTYPE_BF16 ? "bf16" : dtype == EXPERTD_DTYPE_F32 ? "f32" : "auto";
}

const char *options_value_text(const struct options_row *row, const struct options *options, size_t index,
                               char buffer[OPTIONS_NAME_MAX]) {
    const void *field = const_field_of(row, options);
    if (row->type == OPTIONS_LISTEN) {
        return index < options->listen_count ? options->listen[index] : NULL;
    }
    if (index) {
        return NULL;
    }
    switch (row->type) {
    case OPTIONS_NUMBER:
        snprintf(buffer, OPTIONS_NAME_MAX, "%" PRIu32, *(const uint32_t *)field);
        return buffer;
    case OPTIONS_BYTES:
        return bytes_text(*(const uint64_t *)field, buffer);
    case OPTIONS_LAYERS:
        return layers_text(options, buffer);
    case OPTIONS_DTYPE:
        return dtype_text(*(const enum expertd_dtype *)field);
    case OPTIONS_BOOL:
        return *(const bool *)field ? "true" : "false";
    case OPTIONS_SWITCH:
        return *(const bool *)field ? "true" : NULL;
    default:
        return *(char *const *)field;
    }
}

static void clear_listen(struct options *options) {
    for (size_t i = 0; i < OPTIONS_LISTEN_MAX; i++) {
        free(options->listen[i]);
        options->listen[i] = NULL;
    }
    options->listen_count = 0;
}

void options_value_clear(const struct options_row *row, struct options *options) {
    switch (row->type) {
    case OPTIONS_LISTEN:
        clear_listen(options);
        break;
    case OPTIONS_NUMBER:
    case OPTIONS_BYTES:
    case OPTIONS_LAYERS:
    case OPTIONS_DTYPE:
    case OPTIONS_BOOL:
    case OPTIONS_SWITCH:
        break;
    default:
        free(*(char **)field_of(row, options));
        *(char **)field_of(row, options) = NULL;
        break;
    }
}
