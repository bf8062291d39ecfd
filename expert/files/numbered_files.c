#include "expert/files/numbered_files.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "expert/files/shard_index.h"

static const char SUFFIX[] = ".safetensors", OF[] = "-of-";
enum { DIGITS_MAX = 6 };

// Names that stand before the number in files that are not a model's shards.
static const char CONSOLIDATED[] = "consolidated";
static const char *const OTHER_STEMS[] = {"adapter_model", "adapters", CONSOLIDATED};

struct numbered {
    int stem;                 // length of the text before "-00002-of-00005.safetensors" or ".02.safetensors"
    int digits;               // of the number
    const char *name, *after; // the name, and its part after the number
    size_t number, total;     // total 0: the name does not tell
};

// The digits that end at `end` and begin after `start`, preceded by the separator; NULL: none.
static const char *number_before(const char *start, const char *end, char separator, size_t *out) {
    const char *at = end;
    while (at > start && at[-1] >= '0' && at[-1] <= '9') {
        at--;
    }
    if (at == end || end - at > DIGITS_MAX || at == start || at[-1] != separator) {
        return NULL;
    }
    *out = strtoul(at, NULL, 10);
    return at;
}

static bool parse_name(const char *name, struct numbered *out) {
    size_t length = strlen(name), suffix = sizeof SUFFIX - 1;
    *out = (struct numbered){.name = name};
    if (length <= suffix || strcmp(name + length - suffix, SUFFIX) != 0) {
        return false;
    }
    const char *end = name + length - suffix, *total = number_before(name, end, '-', &out->total);
    const char *of = total ? total - (sizeof OF - 1) : NULL;
    bool has_total = of && of > name && memcmp(of, OF, sizeof OF - 1) == 0;
    out->after = has_total ? of : end;
    const char *number = number_before(name, out->after, has_total ? '-' : '.', &out->number);
    if (!number || (total && !has_total)) {
        return false;
    }
    out->digits = (int)(out->after - number);
    out->stem = (int)(number - 1 - name);
    return true;
}

static bool has_stem(const struct numbered *numbered, const char *stem) {
    return strlen(stem) == (size_t)numbered->stem && strncmp(numbered->name, stem, (size_t)numbered->stem) == 0;
}

static int is_consolidated(const struct dirent *entry) {
    struct numbered numbered;
    return parse_name(entry->d_name, &numbered) && has_stem(&numbered, CONSOLIDATED);
}

static int is_shard(const struct dirent *entry) {
    struct numbered numbered;
    if (!parse_name(entry->d_name, &numbered) || numbered.total == 0) {
        return 0;
    }
    for (size_t i = 0; i < sizeof OTHER_STEMS / sizeof *OTHER_STEMS; i++) {
        if (has_stem(&numbered, OTHER_STEMS[i])) {
            return 0;
        }
    }
    return 1;
}

static int by_number(const struct dirent **a, const struct dirent **b) {
    struct numbered left = {0}, right = {0};
    INVARIANT(parse_name((*a)->d_name, &left) && parse_name((*b)->d_name, &right)); // is_shard was true
    if (left.number != right.number) {
        return left.number < right.number ? -1 : 1;
    }
    return strcmp((*a)->d_name, (*b)->d_name);
}

static FALLIBLE check_one_set(const char *folder, const struct numbered *first, const struct numbered *other) {
    bool same =
        first->stem == other->stem && memcmp(first->name, other->name, (size_t)first->stem) == 0 && first->total == other->total;
    if (!same || first->number == other->number) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s has no index, and both %s and %s, which %s: cannot tell which of them belongs to the model; move the other away",
             folder, first->name, other->name, same ? "have one number" : "belong to different sets of shards");
    }
    return OK;
}

// Numbers count from 1; some writers count from 0.
static void find_missing(const struct numbered *numbered, struct numbered_files *out) {
    size_t next = numbered[0].number == 0 ? 0 : 1, end = next + out->total;
    for (size_t i = 0; next < end; next++) {
        if (i < out->count && numbered[i].number == next) {
            i++;
            continue;
        }
        if (out->missing++ == 0) {
            snprintf(out->first_missing, sizeof out->first_missing, "%.*s%0*zu%s", numbered->stem + 1, numbered->name,
                     numbered->digits, next, numbered->after);
        }
    }
}

static FALLIBLE check(const char *folder, struct numbered_files *out) {
    if (out->count > SHARD_INDEX_SHARDS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has %zu numbered shards: at most %d are supported", folder, out->count,
             SHARD_INDEX_SHARDS_MAX);
    }
    struct numbered *numbered = calloc(out->count + 1, sizeof *numbered);
    if (!numbered) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the names of %zu shards", out->count);
    }
    err_t e = OK;
    for (size_t i = 0; i < out->count && !err_is(e); i++) {
        INVARIANT(out->names[i] && parse_name(out->names[i], &numbered[i]));
        e = i ? check_one_set(folder, &numbered[i - 1], &numbered[i]) : OK;
    }
    if (!err_is(e) && out->count > 0) {
        size_t past = numbered[out->count - 1].number + (numbered[0].number == 0);
        out->total = numbered[0].total ? numbered[0].total : past;
        find_missing(numbered, out);
    }
    free(numbered);
    return e;
}

FALLIBLE numbered_files_find(const char *folder, const char *stem, struct numbered_files *out) {
    struct dirent **entries = NULL;
    INVARIANT(!stem || strcmp(stem, CONSOLIDATED) == 0); // scandir's filters take no argument
    int count = scandir(folder, &entries, stem ? is_consolidated : is_shard, by_number);
    *out = (struct numbered_files){0};
    if (count <= 0) {
        free(entries);
        return OK; // a folder that cannot be read is reported by its other files
    }
    out->names = calloc((size_t)count, sizeof *out->names);
    bool enough = out->names != NULL;
    for (int i = 0; i < count; i++) {
        if (enough) {
            out->names[i] = strdup(entries[i]->d_name);
            enough = out->names[i] != NULL;
            out->count += enough;
        }
        free(entries[i]);
    }
    free(entries);
    err_t e = enough ? check(folder, out) : err_record(EXPERTD_ERR_NOMEM, NULL, "no memory for the names of %d shards", count);
    if (err_is(e)) {
        numbered_files_deinit(out);
    }
    return e;
}

void numbered_files_deinit(struct numbered_files *files) {
    for (size_t i = 0; files->names && i < files->count; i++) {
        free(files->names[i]);
    }
    free(files->names);
    *files = (struct numbered_files){0};
}
