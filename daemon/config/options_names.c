// The names of the options in flags, variables and files: the lower half of options_table.h.
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/suggest.h"
#include "daemon/config/options_table.h"

const char *options_flag_name(const struct options_row *row, char out[OPTIONS_NAME_MAX]) {
    snprintf(out, OPTIONS_NAME_MAX, "--%s", row->name);
    for (char *p = out; *p; p++) {
        *p = *p == '_' ? '-' : *p;
    }
    return out;
}

const char *options_variable_name(const struct options_row *row, char out[OPTIONS_NAME_MAX]) {
    snprintf(out, OPTIONS_NAME_MAX, "EXPERTD_%s", row->name);
    for (char *p = out; *p; p++) {
        *p = (char)toupper((unsigned char)*p);
    }
    return out;
}

static bool same_name(const char *row_name, const char *name, size_t length) {
    if (strlen(row_name) != length) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if (row_name[i] != (name[i] == '-' ? '_' : name[i])) {
            return false;
        }
    }
    return true;
}

const struct options_row *options_find(const char *name, size_t length) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (same_name(OPTIONS_ROWS[i].name, name, length)) {
            return &OPTIONS_ROWS[i];
        }
    }
    return NULL;
}

const struct options_row *options_nearest(const char *name, size_t length, enum options_reach reach) {
    const char *names[OPTION_COUNT];
    size_t count = 0;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (OPTIONS_ROWS[i].reach <= reach) {
            names[count++] = OPTIONS_ROWS[i].name;
        }
    }
    const char *nearest = suggest_word(name, length, names, count);
    return nearest ? options_find(nearest, strlen(nearest)) : NULL;
}
