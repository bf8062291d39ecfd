#include "expert/config/name_literal.h"

#include <ctype.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

struct run {
    char text[NAME_LITERAL_MAX], longest[NAME_LITERAL_MAX];
    size_t length, longest_length;
};

static void end_run(struct run *run) {
    if (run->length > run->longest_length) {
        memcpy(run->longest, run->text, run->length);
        run->longest_length = run->length;
    }
    run->length = 0;
}

static void add(struct run *run, char c) {
    if (run->length == NAME_LITERAL_MAX - 1) {
        end_run(run);
    }
    run->text[run->length++] = c;
}

// The character before a quantifier may be absent.
static void drop_last(struct run *run) {
    run->length -= run->length > 0;
    end_run(run);
}

// Escapes of letters and digits may take what follows, as \x41 and \Q do; these classes and places do not.
static bool is_plain_escape(const char *at) {
    return at[1] && (!isalnum((unsigned char)at[1]) || strchr("dDwWsSbBAzZ", at[1]));
}

// The end of a class that begins at '['; NULL: it has none, or contains a named class.
static const char *class_end(const char *at) {
    at += at[1] == '^' ? 2 : 1;
    for (at += *at == ']'; *at && *at != ']'; at++) {
        if (*at == '[' || (*at == '\\' && !is_plain_escape(at))) {
            return NULL;
        }
        at += *at == '\\';
    }
    return *at ? at : NULL;
}

// The end of a group that begins at '('; NULL: it has none, or it may set flags for what follows.
static const char *group_end(const char *at) {
    int depth = 0;
    for (; at && *at; at++) {
        if (*at == '\\') {
            at = is_plain_escape(at) ? at + 1 : NULL;
        } else if (*at == '[') {
            at = class_end(at);
        } else if (*at == '(') {
            bool plain = at[1] != '*' && (at[1] != '?' || (at[2] && strchr(":=!", at[2])));
            depth++;
            at = plain ? at : NULL;
        } else if (*at == ')' && --depth == 0) {
            return at;
        }
        if (!at) {
            return NULL;
        }
    }
    return NULL;
}

// Reads one element at `at` and returns the next; NULL: the expression is one whose text is not known.
static const char *read_element(const char *at, struct run *run) {
    switch (*at) {
    case '|':
        return NULL;
    case '\\':
        if (!is_plain_escape(at)) {
            return NULL;
        }
        isalnum((unsigned char)at[1]) ? end_run(run) : add(run, at[1]);
        return at + 2;
    case '(':
        end_run(run);
        at = group_end(at);
        return at ? at + 1 : NULL;
    case '[':
        end_run(run);
        at = class_end(at);
        return at ? at + 1 : NULL;
    case '{':
        drop_last(run);
        at = strchr(at, '}');
        return at ? at + 1 : NULL;
    case '*':
    case '?':
        drop_last(run);
        return at + 1;
    case '+':
    case '.':
    case '^':
    case '$':
        end_run(run);
        return at + 1;
    default:
        add(run, *at);
        return at + 1;
    }
}

void name_literal_of(const char *expression, char out[NAME_LITERAL_MAX]) {
    struct run run = {.length = 0};
    const char *at = expression;
    while (at && *at) {
        at = read_element(at, &run);
    }
    end_run(&run);
    memcpy(out, run.longest, at ? run.longest_length : 0);
    out[at ? run.longest_length : 0] = '\0';
}
