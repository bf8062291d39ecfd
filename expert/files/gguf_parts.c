#include "expert/files/gguf_parts.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "base/gguf/gguf.h"
#include "expert/files/folder_kind.h"
#include "expert/foreign/gguf_config.h"

static const char SUFFIX[] = ".gguf";
static const char OTHER_SUFFIX[] = ".safetensors";
enum { NUMBERS = sizeof "-00001-of-00003" - 1, CANDIDATES_TEXT_MAX = 512 };

static bool has_suffix(const char *text, const char *suffix) {
    size_t length = strlen(text), suffix_length = strlen(suffix);
    return length > suffix_length && strcmp(text + length - suffix_length, suffix) == 0;
}

// ---- names

// The numbers of a part's name, "-00002-of-00003.gguf"; false: the name has none.
static bool part_numbers(const char *file, unsigned *number, unsigned *count) {
    size_t length = strlen(file);
    if (!has_suffix(file, SUFFIX) || length < NUMBERS + sizeof SUFFIX - 1) {
        return false;
    }
    char end;
    const char *at = file + length - (sizeof SUFFIX - 1) - NUMBERS;
    return sscanf(at, "-%5u-of-%5u%c", number, count, &end) == 3 && end == '.';
}

static FALLIBLE part_name(const char *file, unsigned number, unsigned count, char out[PATH_MAX]) {
    size_t stem = strlen(file) - (sizeof SUFFIX - 1) - NUMBERS;
    int length = snprintf(out, PATH_MAX, "%.*s-%05u-of-%05u%s", (int)stem, file, number, count, SUFFIX);
    if (length < 0 || length >= PATH_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s is too long", file);
    }
    return OK;
}

// ---- finding

static bool is_later_part(const char *name) {
    unsigned number, count;
    return part_numbers(name, &number, &count) && number > 1;
}

// Which files count as models by their names.
enum names {
    NAMES_PLAIN,
    // Also with "imatrix": files of the importance matrix of a quantisation have it, and some models that were quantised by one.
    NAMES_IMATRIX,
};

// A file that a model begins with. Many repositories add the projector for images (mmproj).
static bool begins_model(const char *name, enum names names) {
    bool beside = strcasestr(name, "mmproj") || (names == NAMES_PLAIN && strcasestr(name, "imatrix"));
    return has_suffix(name, SUFFIX) && !is_later_part(name) && !beside;
}

struct candidates {
    size_t count;
    bool has_safetensors;
    char later[NAME_MAX + 1];       // a later part of a model; "": none
    char first[2 * NAME_MAX + 2];   // below the folder
    char text[CANDIDATES_TEXT_MAX]; // "a.gguf, b.gguf"
};

static void add_candidate(struct candidates *candidates, const char *name) {
    size_t used = strlen(candidates->text);
    snprintf(candidates->text + used, sizeof candidates->text - used, "%s%s", used ? ", " : "", name);
    if (candidates->count++ == 0) {
        snprintf(candidates->first, sizeof candidates->first, "%s", name);
    }
}

// Does the name end in the quantisation, before the numbers of a part, behind a character that is neither a letter nor a digit?
static bool is_in(const char *name, const char *quantisation) {
    unsigned number, count;
    size_t length = strlen(name) - (sizeof SUFFIX - 1), wanted = strlen(quantisation);
    length -= part_numbers(name, &number, &count) ? NUMBERS : 0;
    return length > wanted && strncasecmp(name + length - wanted, quantisation, wanted) == 0 &&
           !isalnum((unsigned char)name[length - wanted - 1]);
}

// Adds the models of folder/below in the quantisation to `out`, and all models to `all`; below NULL: the folder itself.
static void list_quantisation(const char *folder, const char *below, const char *quantisation, enum names names,
                              struct candidates *out, struct candidates *all) {
    char path[PATH_MAX], name[2 * NAME_MAX + 2];
    int length = snprintf(path, sizeof path, "%s%s%s", folder, below ? "/" : "", below ? below : "");
    DIR *dir = length > 0 && length < (int)sizeof path ? opendir(path) : NULL;
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        if (is_later_part(d->d_name) && is_in(d->d_name, quantisation)) {
            snprintf(out->later, sizeof out->later, "%s", d->d_name);
        }
        if (!begins_model(d->d_name, names)) {
            continue;
        }
        snprintf(name, sizeof name, "%s%s%s", below ? below : "", below ? "/" : "", d->d_name);
        add_candidate(all, name);
        if (is_in(d->d_name, quantisation)) {
            add_candidate(out, name);
        }
    }
    if (dir) {
        closedir(dir);
    }
}

// The same in the folder and the folders in it.
static void list_repository(const char *folder, const char *quantisation, enum names names, struct candidates *out,
                            struct candidates *all) {
    *out = *all = (struct candidates){0};
    list_quantisation(folder, NULL, quantisation, names, out, all);
    DIR *dir = opendir(folder);
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        if (d->d_name[0] != '.') {
            list_quantisation(folder, d->d_name, quantisation, names, out, all);
        }
    }
    if (dir) {
        closedir(dir);
    }
}

FALLIBLE gguf_parts_of_quantisation(const char *folder, const char *quantisation, char file[PATH_MAX]) {
    struct candidates found, all;
    list_repository(folder, quantisation, NAMES_PLAIN, &found, &all);
    if (found.count == 0 && !found.later[0]) {
        list_repository(folder, quantisation, NAMES_IMATRIX, &found, &all);
    }
    if (found.count == 0 && found.later[0]) {
        char command[FOLDER_COMMAND_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s holds %s, but not the first part of that model, -00001-of-...: download all parts%s",
             folder, found.later, folder_download_command(folder, command));
    }
    if (found.count != 1) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s holds %s GGUF model in %s; there are: %s", folder, found.count ? "more than one" : "no",
             quantisation,
             found.count ? found.text
             : all.count ? all.text
                         : "none");
    }
    int length = snprintf(file, PATH_MAX, "%s/%s", folder, found.first);
    if (length < 0 || length >= PATH_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s/%s is too long", folder, found.first);
    }
    return OK;
}

static void list_folder(const char *path, enum names names, struct candidates *out) {
    *out = (struct candidates){0};
    DIR *dir = opendir(path);
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        out->has_safetensors = out->has_safetensors || has_suffix(d->d_name, OTHER_SUFFIX);
        if (begins_model(d->d_name, names)) {
            add_candidate(out, d->d_name);
        }
    }
    if (dir) {
        closedir(dir);
    }
}

FALLIBLE gguf_parts_find(const char *path, char file[PATH_MAX], bool *found) {
    struct stat status;
    struct candidates candidates;
    *found = false;
    if (stat(path, &status) != 0) {
        return OK;
    }
    if (!S_ISDIR(status.st_mode)) {
        *found = strlen(path) < PATH_MAX && (has_suffix(path, SUFFIX) || gguf_is(path));
        snprintf(file, PATH_MAX, "%s", path);
        return OK;
    }
    list_folder(path, NAMES_PLAIN, &candidates);
    if (candidates.count == 0) {
        list_folder(path, NAMES_IMATRIX, &candidates);
    }
    if (candidates.has_safetensors || candidates.count == 0) {
        return OK;
    }
    if (candidates.count > 1) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s holds several models: %s: name one of the files, or of a repository in the hub's cache ORG/NAME:QUANT", path,
             candidates.text);
    }
    int length = snprintf(file, PATH_MAX, "%s/%s", path, candidates.first);
    if (length < 0 || length >= PATH_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s/%s is too long", path, candidates.first);
    }
    *found = true;
    return OK;
}

// ---- opening

// A number of the split; absent: `fallback`.
static FALLIBLE split_number(const struct gguf *file, const char *key, unsigned fallback, unsigned *out) {
    const struct gguf_value *value = gguf_find(file, key);
    double number = fallback;
    if (value && (value->kind == GGUF_ARRAY || !gguf_number(value, 0, &number) || !gguf_is_integer(value) || number < 0 ||
                  number > INT32_MAX)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is not a count", file->tensors.path, key);
    }
    *out = (unsigned)number;
    return OK;
}

static FALLIBLE check_part(const struct gguf *file, unsigned index, unsigned count) {
    unsigned no, parts;
    TRY(split_number(file, "split.no", 0, &no));
    TRY(split_number(file, "split.count", 1, &parts));
    if (no != index || parts != count) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: split.no is %u and split.count is %u, but by its name it is part %u of %u (counted from 1): the files belong to "
             "different models, or were renamed",
             file->tensors.path, no, parts, index + 1, count);
    }
    return OK;
}

// Later parts need not repeat the architecture.
static FALLIBLE check_architecture(const struct gguf *first, const char *file, const struct gguf *part) {
    static const char KEY[] = "general.architecture";
    const struct gguf_value *a = gguf_find(first, KEY), *b = gguf_find(part, KEY);
    bool texts = a && b && a->kind == GGUF_STRING && b->kind == GGUF_STRING;
    if (b && !(texts && a->count == b->count && memcmp(a->data, b->data, a->count) == 0)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s is not that of %s: the files belong to different models", part->tensors.path, KEY,
             file);
    }
    return OK;
}

// Opens the next part and moves its tensors to `out`.
static FALLIBLE open_part(const struct gguf *first, const char *path, unsigned index, unsigned count, struct gguf_parts *out) {
    struct gguf part;
    TRY(gguf_open(path, &part));
    err_t e = check_part(&part, index, count);
    e = err_is(e) ? e : check_architecture(first, out->files[0].path, &part);
    if (!err_is(e)) {
        out->files[out->count++] = part.tensors;
        part.tensors = (struct safetensors){0};
    }
    gguf_close(&part);
    return e;
}

// A missing part without tensors does not count as missing.
static FALLIBLE check_total(const char *file, unsigned expected, struct gguf_parts *parts) {
    size_t total = 0;
    for (size_t i = 0; i < parts->count; i++) {
        total += parts->files[i].count;
    }
    if (expected > 0 && (parts->missing[0] ? total > expected : total != expected)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: split.tensors.count is %u, but the %zu parts have %zu tensors: one of them is another model's", file, expected,
             parts->count, total);
    }
    if (expected > 0 && total == expected) {
        parts->missing[0] = '\0';
    }
    return OK;
}

// In the hub's cache a part is a link to a blob, which an interrupted download leaves out.
static bool is_missing(const char *path) {
    struct stat status;
    return stat(path, &status) != 0 && errno == ENOENT;
}

// Opens parts 2 to `count`, as far as they are there.
static FALLIBLE open_later(const struct gguf *first, const char *file, unsigned count, struct gguf_parts *out) {
    char path[PATH_MAX], names[GGUF_MISSING_TEXT_MAX - 64] = "";
    unsigned missing = 0;
    size_t used = 0;
    for (unsigned i = 1; i < count; i++) {
        TRY(part_name(file, i + 1, count, path));
        if (!is_missing(path)) {
            TRY(open_part(first, path, i, count, out));
            continue;
        }
        const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
        if (used + strlen(name) + sizeof ", ..." < sizeof names) {
            used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", missing ? ", " : "", name);
        } else if (strcmp(names + used - 3, "...") != 0) {
            used += (size_t)snprintf(names + used, sizeof names - used, ", ...");
        }
        missing++;
    }
    if (missing > 0) {
        snprintf(out->missing, sizeof out->missing, "%u of %u parts %s missing (%s)", missing, count, missing == 1 ? "is" : "are",
                 names);
    }
    return OK;
}

static FALLIBLE open_others(const struct gguf *first, const char *file, unsigned count, unsigned tensors, struct gguf_parts *out) {
    unsigned number = 1, of = 1;
    if (count == 1 && part_numbers(file, &number, &of) && of > 1) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: by its name it is part %u of %u, but it has no split.count, or one of at most 1: the file was renamed, or is not "
             "one of llama.cpp's parts (join those of other tools)",
             file, number, of);
    }
    if (count > 1 && (!part_numbers(file, &number, &of) || of != count)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: split.count is %u, but the name does not end in -00001-of-%05u%s: give the parts their names", file, count, count,
             SUFFIX);
    }
    TRY(open_later(first, file, count, out));
    return check_total(file, count > 1 ? tensors : 0, out);
}

static FALLIBLE open_all(const char *file, struct gguf *first, struct gguf_parts *out) {
    unsigned no, count, tensors;
    TRY(split_number(first, "split.no", 0, &no));
    TRY(split_number(first, "split.count", 1, &count));
    TRY(split_number(first, "split.tensors.count", 0, &tensors));
    count = count == 0 ? 1 : count;
    if (no != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: split.no is %u: this is a later part of the model; name the first, -00001-of-%05u%s",
             file, no, count, SUFFIX);
    }
    if (count > GGUF_PARTS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: split.count is %u: at most %d parts are supported", file, count, GGUF_PARTS_MAX);
    }
    out->files = calloc(count, sizeof *out->files);
    if (!out->files) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %u files", count);
    }
    out->files[out->count++] = first->tensors;
    first->tensors = (struct safetensors){0};
    TRY(open_others(first, file, count, tensors, out));
    const struct gguf_config_parts parts = {.files = out->files, .count = out->count, .complete = !out->missing[0]};
    return gguf_config_make(first, &parts, &out->config);
}

// Takes what `first` holds, also on error.
static FALLIBLE open_from(const char *file, struct gguf *first, struct gguf_parts *out) {
    err_t e = open_all(file, first, out);
    gguf_close(first);
    if (err_is(e)) {
        gguf_parts_close(out);
    }
    return e;
}

FALLIBLE gguf_parts_open(const char *file, struct gguf_parts *out) {
    struct gguf first;
    *out = (struct gguf_parts){0};
    TRY(gguf_open(file, &first));
    return open_from(file, &first, out);
}

FALLIBLE gguf_parts_parse(const char *name, const void *bytes, size_t size, struct gguf_parts *out) {
    struct gguf first;
    *out = (struct gguf_parts){0};
    TRY(gguf_parse(name, bytes, size, &first));
    return open_from(name, &first, out);
}

void gguf_parts_close(struct gguf_parts *parts) {
    for (size_t i = 0; i < parts->count; i++) {
        safetensors_close(&parts->files[i]);
    }
    free(parts->files);
    config_destroy(parts->config);
    *parts = (struct gguf_parts){0};
}
