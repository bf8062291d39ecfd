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
static const struct err_row ROWS[EXPERTD_ERR_CODE_COUNT] = {
    [EXPERTD_ERR_OK] = {"OK", 0},
    [EXPERTD_ERR_USAGE] = {"USAGE", 64},
    [EXPERTD_ERR_CHECKPOINT] = {"CHECKPOINT", 65},
    [EXPERTD_ERR_UNAVAILABLE] = {"UNAVAILABLE", 69},
    [EXPERTD_ERR_INTERNAL] = {"INTERNAL", 70},
    [EXPERTD_ERR_CONFIG] = {"CONFIG", 78},
    [EXPERTD_ERR_IO] = {"IO", 69},
    [EXPERTD_ERR_NOMEM] = {"NOMEM", 69},
    [EXPERTD_ERR_MALFORMED] = {"MALFORMED", 70},
    [EXPERTD_ERR_MODEL_UNKNOWN] = {"MODEL_UNKNOWN", 70},
    [EXPERTD_ERR_LAYER_UNKNOWN] = {"LAYER_UNKNOWN", 70},
    [EXPERTD_ERR_REGION_UNKNOWN] = {"REGION_UNKNOWN", 70},
    [EXPERTD_ERR_SHAPE_MISMATCH] = {"SHAPE_MISMATCH", 70},
    [EXPERTD_ERR_DTYPE_UNSUPPORTED] = {"DTYPE_UNSUPPORTED", 70},
    [EXPERTD_ERR_EXPERT_OUT_OF_RANGE] = {"EXPERT_OUT_OF_RANGE", 70},
    [EXPERTD_ERR_UNKNOWN_FIELD] = {"UNKNOWN_FIELD", 70},
    [EXPERTD_ERR_TENSOR_BYTES] = {"TENSOR_BYTES", 70},
    [EXPERTD_ERR_INVALID] = {"INVALID", 70},
    [EXPERTD_ERR_WEIGHTS_CHANGED] = {"WEIGHTS_CHANGED", 70},
    [EXPERTD_ERR_NO_ROUTER] = {"NO_ROUTER", 70},
    [EXPERTD_ERR_NO_SHARED_EXPERTS] = {"NO_SHARED_EXPERTS", 70},
    [EXPERTD_ERR_QUEUE_FULL] = {"QUEUE_FULL", 70},
    [EXPERTD_ERR_TOO_LARGE] = {"TOO_LARGE", 70},
    [EXPERTD_ERR_DRAINING] = {"DRAINING", 70},
    [EXPERTD_ERR_SHARD_LOST] = {"SHARD_LOST", 70},
    [EXPERTD_ERR_LOADING] = {"LOADING", 70},
    [EXPERTD_ERR_DEADLINE] = {"DEADLINE", 70},
    [EXPERTD_ERR_CANCELLED] = {"CANCELLED", 70},
    [EXPERTD_ERR_PERMISSION] = {"PERMISSION", 70},
    [EXPERTD_ERR_UNIMPLEMENTED] = {"UNIMPLEMENTED", 70},
};

// Static, because reporting a failed allocation must not allocate.
static _Thread_local char message[EXPERTD_ERR_MESSAGE_MAX];
static _Thread_local char field_name[EXPERTD_ERR_FIELD_MAX];

err_t err_record(enum expertd_err_code code, const char *field, const char *format, ...) {
    INVARIANT(code > EXPERTD_ERR_OK && code < EXPERTD_ERR_CODE_COUNT);
    char text[EXPERTD_ERR_MESSAGE_MAX]; // a separate buffer, because `message` may be among the arguments
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
    char text[EXPERTD_ERR_MESSAGE_MAX];
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

const char *expertd_err_message(void) {
    return message;
}

const char *expertd_err_field(void) {
    return field_name;
}

const char *expertd_err_name(enum expertd_err_code code) {
    return (unsigned)code < EXPERTD_ERR_CODE_COUNT ? ROWS[code].name : "UNKNOWN";
}

int err_exit_code(enum expertd_err_code code) {
    return (unsigned)code < EXPERTD_ERR_CODE_COUNT ? ROWS[code].exit_code : 70;
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
