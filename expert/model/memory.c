#include "expert/model/memory.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MAX = 4096, LINE_BYTES = 512, CGROUP_DEPTH_MAX = 64 };

// What is not there says nothing, and what is hidden from this process stays so. What cannot be read now, for want of descriptors
// say, may be a limit: then nobody knows what may be taken, and nothing is.
static FALLIBLE unreadable(const char *path, int cause, struct memory_limit *limit) {
    if (cause == ENOENT || cause == ENOTDIR || cause == ENODEV) { // ENODEV: a control group that was removed meanwhile
        return OK;
    }
    if (cause == EACCES || cause == EPERM) {
        if (!limit->hidden[0]) {
            snprintf(limit->hidden, sizeof limit->hidden, "%.*s", MEMORY_LIMIT_TEXT_MAX - 1, path);
        }
        return OK;
    }
    FAIL(EXPERTD_ERR_NOMEM, "%s cannot be read: %s; so it is not known how much memory may be taken", path, strerror(cause));
}

// The number after `key` at the start of a line of a file: "MemAvailable:  123 kB", "inactive_file 123". False: there is none.
static FALLIBLE number_of(const char *path, const char *key, struct memory_limit *limit, uint64_t *out, bool *found) {
    *found = false;
    FILE *file = fopen(path, "re");
    if (!file) {
        return unreadable(path, errno, limit);
    }
    char line[LINE_BYTES];
    size_t length = strlen(key);
    errno = 0;
    for (int i = 0; i < LINES_MAX && !*found && fgets(line, sizeof line, file); i++) {
        if (strncmp(line, key, length) == 0) {
            char *end;
            *out = strtoull(line + length, &end, 10);
            *found = end != line + length;
        }
    }
    int cause = ferror(file) ? errno : 0;
    (void)fclose(file);
    return cause ? unreadable(path, cause, limit) : OK;
}

static void take_lesser(struct memory_limit *limit, uint64_t bytes, const char *what) {
    if (bytes < limit->bytes) {
        limit->bytes = bytes;
        snprintf(limit->what, sizeof limit->what, "%s", what);
    }
}

// Where a version of control groups says what its groups may take.
struct group_files {
    const char *mount, *max, *current, *inactive, *active;
};
static const struct group_files UNIFIED = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ", "active_file "};
static const struct group_files LEGACY = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                          "total_inactive_file ", "total_active_file "}; // version 1; no limit is one of 8 EiB

// Page cache counts as used, but is dropped when somebody needs the room.
static FALLIBLE take_group(const char *root, const struct group_files *files, const char *group, struct memory_limit *out) {
    char path[PATH_MAX];
    uint64_t max, current = 0, inactive = 0, active = 0;
    bool found;
    snprintf(path, sizeof path, "%s%s%s/%s", root, files->mount, group, files->max);
    TRY(number_of(path, "", out, &max, &found));
    if (!found) {
        return OK; // the root group has none, and "max" is no number: no limit
    }
    snprintf(path, sizeof path, "%s%s%s/%s", root, files->mount, group, files->current);
    TRY(number_of(path, "", out, &current, &found)); // not found: all of it, for all that is known
    snprintf(path, sizeof path, "%s%s%s/memory.stat", root, files->mount, group);
    TRY(number_of(path, files->inactive, out, &inactive, &found));
    TRY(number_of(path, files->active, out, &active, &found));
    uint64_t cache = inactive + active;
    uint64_t used = current > cache ? current - cache : 0;
    char what[MEMORY_LIMIT_TEXT_MAX];
    snprintf(what, sizeof what, "%s of control group %.256s", files->max, *group ? group : "/");
    take_lesser(out, max > used ? max - used : 0, what);
    return OK;
}

// Of a line of /proc/self/cgroup, "0::/a/b" in version 2 and "5:cpu,memory:/a/b" in version 1: the group, where memory is that
// version's there; else NULL.
static char *group_of(char *line, bool legacy) {
    char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group || group[1] != '/') {
        return NULL;
    }
    *controllers = *group = '\0';
    controllers++, group++;
    group[strcspn(group, "\n")] = '\0';
    if (!legacy) {
        return strcmp(line, "0") == 0 && !*controllers ? group : NULL;
    }
    for (char *rest = controllers, *name; (name = strsep(&rest, ","));) {
        if (strcmp(name, "memory") == 0) {
            return group;
        }
    }
    return NULL;
}

// "": the root group. False: there is none.
static FALLIBLE find_group(const char *root, bool legacy, char out[PATH_MAX], bool *found, struct memory_limit *limit) {
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    *found = false;
    FILE *file = fopen(path, "re");
    if (!file) {
        return unreadable(path, errno, limit);
    }
    errno = 0;
    for (int i = 0; i < LINES_MAX && !*found && fgets(line, sizeof line, file); i++) {
        const char *group = group_of(line, legacy);
        *found = group != NULL;
        if (group) {
            snprintf(out, PATH_MAX, "%s", strcmp(group, "/") == 0 ? "" : group);
        }
    }
    int cause = ferror(file) ? errno : 0;
    (void)fclose(file);
    return cause ? unreadable(path, cause, limit) : OK;
}

// A limit of any of the group's parents holds too. A container may see its group as the root, whatever its path is outside.
static FALLIBLE take_groups(const char *root, bool legacy, struct memory_limit *out) {
    char group[PATH_MAX] = "";
    bool found;
    TRY(find_group(root, legacy, group, &found, out));
    for (int depth = 0; found && depth < CGROUP_DEPTH_MAX; depth++) {
        TRY(take_group(root, legacy ? &LEGACY : &UNIFIED, group, out));
        char *slash = strrchr(group, '/');
        if (!slash) {
            break;
        }
        *slash = '\0';
    }
    return OK;
}

FALLIBLE memory_available_at(const char *root, struct memory_limit *out) {
    *out = (struct memory_limit){.bytes = UINT64_MAX, .what = "no limit known"};
    char path[PATH_MAX];
    uint64_t kib;
    bool found;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    TRY(number_of(path, "MemAvailable:", out, &kib, &found));
    if (found) {
        take_lesser(out, kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024, "MemAvailable of /proc/meminfo");
    }
    TRY(take_groups(root, false, out));
    return take_groups(root, true, out);
}

FALLIBLE memory_available(struct memory_limit *out) {
    return memory_available_at("", out);
}

const char *memory_text(uint64_t bytes, char text[MEMORY_TEXT_MAX]) {
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    size_t unit = 0;
    double value = (double)bytes;
    while (value >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024;
        unit++;
    }
    snprintf(text, MEMORY_TEXT_MAX, unit == 0 ? "%.0f %s" : "%.1f %s", value, units[unit]);
    return text;
}
