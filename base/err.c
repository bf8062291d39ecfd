#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct err_row {
    const char *name;
    int exit_code;
};

// sysexits.h: 64 usage, 65 data, 69 unavailable, 70 software, 78 configuration.
static const struct err_row ROWS[ERR_CODE_COUNT] = {
    [ERR_OK] = {"OK", 0},
    [ERR_USAGE] = {"USAGE", 64},
    [ERR_CHECKPOINT] = {"CHECKPOINT", 65},
    [ERR_UNAVAILABLE] = {"UNAVAILABLE", 69},
    [ERR_INTERNAL] = {"INTERNAL", 70},
    [ERR_CONFIG] = {"CONFIG", 78},
    [ERR_IO] = {"IO", 69},
    [ERR_NOMEM] = {"NOMEM", 69},
    [ERR_MALFORMED] = {"MALFORMED", 70},
    [ERR_MODEL_UNKNOWN] = {"MODEL_UNKNOWN", 70},
    [ERR_LAYER_UNKNOWN] = {"LAYER_UNKNOWN", 70},
    [ERR_REGION_UNKNOWN] = {"REGION_UNKNOWN", 70},
    [ERR_SHAPE_MISMATCH] = {"SHAPE_MISMATCH", 70},
    [ERR_DTYPE_UNSUPPORTED] = {"DTYPE_UNSUPPORTED", 70},
    [ERR_EXPERT_OUT_OF_RANGE] = {"EXPERT_OUT_OF_RANGE", 70},
    [ERR_UNKNOWN_FIELD] = {"UNKNOWN_FIELD", 70},
    [ERR_TENSOR_BYTES] = {"TENSOR_BYTES", 70},
    [ERR_INVALID] = {"INVALID", 70},
    [ERR_WEIGHTS_CHANGED] = {"WEIGHTS_CHANGED", 70},
    [ERR_NO_ROUTER] = {"NO_ROUTER", 70},
    [ERR_NO_SHARED_EXPERTS] = {"NO_SHARED_EXPERTS", 70},
    [ERR_QUEUE_FULL] = {"QUEUE_FULL", 70},
    [ERR_TOO_LARGE] = {"TOO_LARGE", 70},
    [ERR_DRAINING] = {"DRAINING", 70},
    [ERR_SHARD_LOST] = {"SHARD_LOST", 70},
    [ERR_LOADING] = {"LOADING", 70},
    [ERR_DEADLINE] = {"DEADLINE", 70},
    [ERR_CANCELLED] = {"CANCELLED", 70},
    [ERR_PERMISSION] = {"PERMISSION", 70},
    [ERR_UNIMPLEMENTED] = {"UNIMPLEMENTED", 70},
};

// Thread-local and not allocated: the report of a failed allocation must not allocate.
static _Thread_local char message[ERR_MESSAGE_MAX];
static _Thread_local char field_name[ERR_FIELD_MAX];

err_t err_record(enum err_code code, const char *field, const char *format, ...) {
    INVARIANT(code > ERR_OK && code < ERR_CODE_COUNT);
    char text[ERR_MESSAGE_MAX]; // apart from `message`, which may be among the arguments
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    memcpy(message, text, sizeof message);
    snprintf(field_name, sizeof field_name, "%s", field ? field : "");
    return (err_t){code};
}

err_t err_context(err_t e, const char *format, ...) {
    if (!err_is(e)) {
        return e;
    }
    char text[ERR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used + 3 < sizeof text) {
        snprintf(text + used, sizeof text - (size_t)used, ": %.*s", (int)(sizeof text - (size_t)used - 3), message);
    }
    memcpy(message, text, sizeof message);
    return e;
}

const char *err_message(void) {
    return message;
}

const char *err_field(void) {
    return field_name;
}

const char *err_name(enum err_code code) {
    return (unsigned)code < ERR_CODE_COUNT ? ROWS[code].name : "UNKNOWN";
}

int err_exit_code(enum err_code code) {
    return (unsigned)code < ERR_CODE_COUNT ? ROWS[code].exit_code : 70;
}

void err_save(err_t e, struct err_copy *out) {
    out->code = e.code;
    memcpy(out->field, field_name, sizeof out->field);
    memcpy(out->message, message, sizeof out->message);
}

err_t err_restore(const struct err_copy *saved) {
    memcpy(field_name, saved->field, sizeof field_name);
    memcpy(message, saved->message, sizeof message);
    return (err_t){saved->code};
}

_Noreturn void invariant_failed(const char *condition, const char *file, int line) {
    fprintf(stderr, "expertd: broken invariant at %s:%d: %s\n", file, line, condition);
    abort();
}
