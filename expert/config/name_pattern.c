#include "expert/config/name_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdint.h>
#include <string.h>

// Limits of one expression and of one comparison. Expressions in known models have some 100 characters and take some 1000 steps.
enum { PATTERN_BYTES_MAX = 4096, NESTING_MAX = 50, STEPS_MAX = 100000, HEAP_KIB_MAX = 4096 };

static err_t bad_pattern(const struct name_pattern *pattern, int error) {
    PCRE2_UCHAR reason[128] = "";
    (void)pcre2_get_error_message(error, reason, sizeof reason);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "the expression \"%.128s\" cannot be used: %s", pattern->text, (char *)reason);
}

static pcre2_code *compile(const char *text, size_t length, int *error) {
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    pcre2_code *code = NULL;
    size_t at;
    *error = PCRE2_ERROR_NOMEMORY;
    if (context) {
        pcre2_set_max_pattern_length(context, PATTERN_BYTES_MAX);
        pcre2_set_parens_nest_limit(context, NESTING_MAX);
        code = pcre2_compile((PCRE2_SPTR)text, length, PCRE2_NEVER_UTF | PCRE2_NEVER_BACKSLASH_C, error, &at, context);
    }
    pcre2_compile_context_free(context);
    return code;
}

// Converts a glob pattern to an expression. A match may end before a '.': the pattern then names a container of the module.
static size_t expression_of_glob(const char *glob, char out[PATTERN_BYTES_MAX]) {
    static const char END[] = "(\\.|\\z)";
    size_t used = 0;
    for (const char *c = glob; *c && used < PATTERN_BYTES_MAX - sizeof END - 2; c++) {
        const char *bracket = *c == '[' ? strchr(c + 2 - (c[1] == '\0'), ']') : NULL;
        if (bracket && (size_t)(bracket - c) < PATTERN_BYTES_MAX - sizeof END - used) {
            size_t length = (size_t)(bracket - c) + 1;
            memcpy(out + used, c, length);
            if (length > 2 && out[used + 1] == '!') {
                out[used + 1] = '^';
            }
            used += length;
            c = bracket;
        } else if (*c == '*' || *c == '?') {
            out[used++] = '.';
            if (*c == '*') {
                out[used++] = '*';
            }
        } else {
            if (strchr("\\^$.|+()[]{}", *c)) {
                out[used++] = '\\';
            }
            out[used++] = *c;
        }
    }
    memcpy(out + used, END, sizeof END);
    return used + sizeof END - 1;
}

FALLIBLE name_pattern_init(struct name_pattern *pattern, enum name_match match, const char *text) {
    *pattern = (struct name_pattern){.match = match, .text = text};
    int error = 0;
    if (match == NAME_GLOB) {
        char expression[PATTERN_BYTES_MAX];
        if (strlen(text) > PATTERN_BYTES_MAX / 4) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "the pattern \"%.64s...\" is longer than %d bytes", text, PATTERN_BYTES_MAX / 4);
        }
        pattern->program = compile(expression, expression_of_glob(text, expression), &error);
        name_literal_of(expression, pattern->literal);
    } else if (match == NAME_START || match == NAME_ANYWHERE) {
        pattern->program = compile(text, strlen(text), &error);
        name_literal_of(text, pattern->literal);
    } else {
        return OK;
    }
    return pattern->program ? OK : bad_pattern(pattern, error);
}

void name_pattern_deinit(struct name_pattern *pattern) {
    pcre2_code_free(pattern->program); // NULL is legal
    *pattern = (struct name_pattern){0};
}

static bool has_components(const char *name, const char *run) {
    size_t length = strlen(run);
    for (const char *at = length ? strstr(name, run) : NULL; at; at = strstr(at + 1, run)) {
        bool begins = at == name || at[-1] == '.';
        if (begins && (at[length] == '\0' || at[length] == '.')) {
            return true;
        }
    }
    return false;
}

static int run_program(const struct name_pattern *pattern, const char *name) {
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    int result = PCRE2_ERROR_NOMEMORY;
    if (context && data) {
        pcre2_set_match_limit(context, STEPS_MAX);
        pcre2_set_heap_limit(context, HEAP_KIB_MAX);
        uint32_t anchored = pattern->match == NAME_ANYWHERE ? 0 : PCRE2_ANCHORED;
        result = pcre2_match(pattern->program, (PCRE2_SPTR)name, strlen(name), 0, anchored, data, context);
    }
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    return result;
}

FALLIBLE name_pattern_matches(const struct name_pattern *pattern, const char *name, bool *matches) {
    if (!pattern->program) {
        *matches = pattern->match == NAME_EXACT ? strcmp(pattern->text, name) == 0 : has_components(name, pattern->text);
        return OK;
    }
    if (pattern->literal[0] && !strstr(name, pattern->literal)) {
        *matches = false;
        return OK;
    }
    int result = run_program(pattern, name);
    *matches = result >= 0; // 0: more groups than the match data holds
    return result >= 0 || result == PCRE2_ERROR_NOMATCH ? OK : bad_pattern(pattern, result);
}
