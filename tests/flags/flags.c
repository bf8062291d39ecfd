#include "tests/flags/flags.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/suggest.h"

enum { NAMES_MAX = 64 };

FALLIBLE flags_find(const char *kind, const char *word, size_t length, const char *const *names, size_t count, const char *help,
                    size_t *out) {
    for (size_t i = 0; i < count; i++) {
        if (strlen(names[i]) == length && memcmp(names[i], word, length) == 0) {
            *out = i;
            return OK;
        }
    }
    const char *near = suggest_word(word, length, names, count);
    FAIL(EXPERTD_ERR_USAGE, "unknown %s %.*s%s%s; %s", kind, (int)length, word, near ? ": did you mean " : "", near ? near : "",
         help);
}

FALLIBLE flags_take(const struct flag_row *flags, size_t count, void *options, int argc, char *const *argv, int *i) {
    const char *word = argv[*i], *equals = strchr(word, '='), *names[NAMES_MAX];
    INVARIANT(count <= NAMES_MAX);
    for (size_t f = 0; f < count; f++) {
        names[f] = flags[f].name;
    }
    size_t found = 0;
    TRY(flags_find("flag", word, equals ? (size_t)(equals - word) : strlen(word), names, count, "--help lists them", &found));
    const struct flag_row *flag = &flags[found];
    if (flag->value && !equals && *i + 1 == argc) {
        FAIL(EXPERTD_ERR_USAGE, "%s takes a value: %s %s", flag->name, flag->name, flag->value);
    }
    if (!flag->value && equals) {
        FAIL(EXPERTD_ERR_USAGE, "%s takes no value", flag->name);
    }
    return flag->set(options, !flag->value ? NULL : equals ? equals + 1 : argv[++*i]);
}

void flags_help(const struct flag_row *flags, size_t count, FILE *out) {
    for (size_t i = 0; i < count; i++) {
        char left[48];
        snprintf(left, sizeof left, "%s %s", flags[i].name, flags[i].value ? flags[i].value : "");
        fprintf(out, "  %-24s%s\n", left, flags[i].help);
    }
}

FALLIBLE flags_number_prefix(const char *flag, const char *text, uint64_t min, uint64_t max, const char **end, uint64_t *out) {
    char *stop = (char *)text;
    errno = 0;
    *out = isdigit((unsigned char)text[0]) ? strtoull(text, &stop, 10) : 0;
    if (stop == text || errno || *out < min || *out > max) {
        FAIL(EXPERTD_ERR_USAGE, "%s %s: an integer from %llu to %llu is expected", flag, text, (unsigned long long)min,
             (unsigned long long)max);
    }
    *end = stop;
    return OK;
}

FALLIBLE flags_number(const char *flag, const char *text, uint64_t min, uint64_t max, uint64_t *out) {
    const char *end = NULL;
    TRY(flags_number_prefix(flag, text, min, max, &end, out));
    if (*end) {
        FAIL(EXPERTD_ERR_USAGE, "%s %s: '%s' after the number; a number alone is expected", flag, text, end);
    }
    return OK;
}

FALLIBLE flags_numbers(const char *flag, const char *text, uint64_t min, uint64_t max, uint32_t *list, size_t list_max,
                       size_t *count) {
    *count = 0;
    for (const char *at = text;; at++) {
        const char *end = NULL;
        uint64_t number = 0;
        TRY(flags_number_prefix(flag, at, min, max, &end, &number));
        if (*count == list_max || (*end && *end != ',')) {
            FAIL(EXPERTD_ERR_USAGE, "%s %s: up to %zu numbers separated by commas are expected, such as 1,8", flag, text, list_max);
        }
        list[(*count)++] = (uint32_t)number;
        if (!*end) {
            return OK;
        }
        at = end;
    }
}

FALLIBLE flags_names(const char *flag, const char *list, err_t (*take)(void *context, const char *name, size_t length),
                     void *context) {
    for (const char *at = list;; at++) {
        size_t length = strcspn(at, ",");
        if (length == 0) {
            FAIL(EXPERTD_ERR_USAGE, "%s '%s': names separated by commas are expected", flag, list);
        }
        TRY(take(context, at, length));
        at += length;
        if (!*at) {
            return OK;
        }
    }
}
