#include "daemon/config/hub_cache.h"

#include <limits.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/config/options_sources.h"

struct source {
    const char *variable, *subfolder;
};

// In the order of huggingface_hub. The variables of old versions of transformers count where none of its own is set.
static const struct source SOURCES[] = {
    {"HF_HUB_CACHE", ""},
    {"HUGGINGFACE_HUB_CACHE", ""},
    {"HF_HOME", "/hub"},
    {"TRANSFORMERS_CACHE", ""},
    {"PYTORCH_TRANSFORMERS_CACHE", ""},
    {"PYTORCH_PRETRAINED_BERT_CACHE", ""},
    {"XDG_CACHE_HOME", "/huggingface/hub"},
    {"HOME", "/.cache/huggingface/hub"},
};

// A text that grows up to a limit.
struct text {
    char *start;
    size_t used, max;
    bool fits;
};

static void append(struct text *text, const char *from, size_t length) {
    text->fits = text->fits && length < text->max - text->used;
    if (text->fits) {
        memcpy(text->start + text->used, from, length);
        text->used += length;
        text->start[text->used] = '\0';
    }
}

// The home folder of a user; length 0: this process's user. NULL: unknown.
static const char *home_of(char *const *environment, const char *user, size_t length) {
    char name[NAME_MAX + 1];
    const char *home = length == 0 ? options_variable(environment, "HOME") : NULL;
    if (home || length >= sizeof name) {
        return home;
    }
    snprintf(name, sizeof name, "%.*s", (int)length, user);
    const struct passwd *entry = length ? getpwnam(name) : getpwuid(getuid());
    return entry ? entry->pw_dir : NULL;
}

// Length of the variable's name after '$', with the braces of ${NAME}; 0: no name.
static size_t reference_length(const char *text) {
    static const char WORD[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const char *brace = *text == '{' ? strchr(text, '}') : NULL;
    return brace ? (size_t)(brace - text) + 1 : strspn(text, WORD);
}

static const char *value_of(char *const *environment, const char *reference, size_t length) {
    char name[NAME_MAX + 1];
    bool braces = *reference == '{';
    if (length == 0 || length >= sizeof name) {
        return NULL;
    }
    snprintf(name, sizeof name, "%.*s", (int)(length - (braces ? 2 : 0)), reference + (braces ? 1 : 0));
    return options_variable(environment, name);
}

static void expand(char *const *environment, const char *from, struct text *out) {
    if (*from == '~') {
        size_t length = strcspn(from + 1, "/");
        const char *home = home_of(environment, from + 1, length);
        append(out, home ? home : from, home ? strlen(home) : 1 + length);
        from += 1 + length;
    }
    while (*from) {
        size_t plain = strcspn(from, "$");
        append(out, from, plain);
        from += plain;
        if (*from) {
            size_t length = reference_length(from + 1);
            const char *value = value_of(environment, from + 1, length);
            append(out, value ? value : from, value ? strlen(value) : 1 + length);
            from += 1 + length;
        }
    }
}

bool hub_cache_find(char *const *environment, char *path, size_t path_bytes, const char **variable) {
    for (size_t i = 0; i < sizeof SOURCES / sizeof *SOURCES; i++) {
        const char *folder = options_variable(environment, SOURCES[i].variable);
        struct text text = {.start = path, .max = path_bytes, .fits = true};
        if (folder) {
            expand(environment, folder, &text);
            append(&text, SOURCES[i].subfolder, strlen(SOURCES[i].subfolder));
        }
        if (folder && text.fits) {
            *variable = SOURCES[i].variable;
            return true;
        }
    }
    return false;
}
