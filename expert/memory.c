#include "expert/memory.h"

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
    FAIL(ERR_NOMEM, "%s cannot be read: %s; so it is not known how much memory may be taken", path, strerror(cause));
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

// Page cache counts as used in memory.current, but is dropped when somebody needs the room.
static FALLIBLE take_group(const char *root, const char *group, struct memory_limit *out) {
    char path[PATH_MAX];
    uint64_t max, current = 0, inactive = 0, active = 0;
    bool found;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/memory.max", root, group);
    TRY(number_of(path, "", out, &max, &found));
    if (!found) {
        return OK; // the root group has none, and "max" is no number: no limit
    }
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/memory.current", root, group);
    TRY(number_of(path, "", out, &current, &found)); // not found: all of it, for all that is known
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/memory.stat", root, group);
    TRY(number_of(path, "inactive_file ", out, &inactive, &found));
    TRY(number_of(path, "active_file ", out, &active, &found));
    uint64_t cache = inactive + active;
    uint64_t used = current > cache ? current - cache : 0;
    char what[MEMORY_LIMIT_TEXT_MAX];
    snprintf(what, sizeof what, "memory.max of control group %.256s", *group ? group : "/");
    take_lesser(out, max > used ? max - used : 0, what);
    return OK;
}

// The line "0::/a/b" names the group of version 2. False: there is none.
static FALLIBLE find_group(const char *root, char group[PATH_MAX], bool *found, struct memory_limit *limit) {
    char path[PATH_MAX], line[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    *found = false;
    FILE *file = fopen(path, "re");
    if (!file) {
        return unreadable(path, errno, limit);
    }
    errno = 0;
    for (int i = 0; i < LINES_MAX && !*found && fgets(line, sizeof line, file); i++) {
        *found = strncmp(line, "0::/", 4) == 0;
    }
    int cause = ferror(file) ? errno : 0;
    (void)fclose(file);
    if (cause) {
        return unreadable(path, cause, limit);
    }
    if (*found) {
        line[strcspn(line, "\n")] = '\0';
        snprintf(group, PATH_MAX, "%s", strcmp(line, "0::/") == 0 ? "" : line + 3);
    }
    return OK;
}

// A limit of any of the group's parents holds too.
static FALLIBLE take_groups(const char *root, struct memory_limit *out) {
    char group[PATH_MAX] = "";
    bool found;
    TRY(find_group(root, group, &found, out));
    for (int depth = 0; found && depth < CGROUP_DEPTH_MAX; depth++) {
        TRY(take_group(root, group, out));
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
    return take_groups(root, out);
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
