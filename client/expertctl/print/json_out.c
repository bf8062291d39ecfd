#include "client/expertctl/print/json_out.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/process/standard_output.h"

const char *json_hex(uint64_t id, char text[JSON_HEX_TEXT]) {
    snprintf(text, JSON_HEX_TEXT, "%016" PRIx64, id);
    return text;
}

json_t *json_text(const char *text) {
    json_t *string = json_string(text ? text : "");
    return string ? string : json_null();
}

FALLIBLE json_print_take(json_t *object) {
    if (!object) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the JSON output");
    }
    int failed = json_dumpf(object, stdout, JSON_INDENT(2) | JSON_ENSURE_ASCII);
    json_decref(object);
    if (failed) {
        FAIL(EXPERTD_ERR_IO, "standard output: %s", strerror(errno));
    }
    putchar('\n');
    return standard_output_flush();
}
