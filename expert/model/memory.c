#include "expert/model/memory.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MAX = 4096, LINE_BYTES = 512, CGROUP_DEPTH_MAX = 64 };

// A file that does not exist, or that this process has no permission to read, sets no limit. A file that cannot be read for another
// reason, such as a lack of descriptors, may contain a limit, so the load is refused.
static FALLIBLE unreadable(const char *path, int cause, struct memory_limit *limit) {
    if (cause == ENOENT || cause == ENOTDIR || cause == ENODEV) { // ENODEV: the control group was removed meanwhile
        return OK;
    }
    if (cause == EACCES || cause == EPERM) {
        if (!limit->hidden[0]) {
            snprintf(limit->hidden, sizeof limit->hidden, "%.*s", MEMORY_LIMIT_TEXT_MAX - 1, path);
        }
        return OK;
    }
    FAIL(EXPERTD_ERR_NOMEM, "%s cannot be read: %s, so that the memory limit is unknown", path, strerror(cause));
}

// The number after `key` at the beginning of a line: "MemAvailable:  123 kB", "inactive_file 123". *found false: none.
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

static void lower_limit(struct memory_limit *limit, uint64_t bytes, const char *what) {
    if (bytes < limit->bytes) {
        limit->bytes = bytes;
        snprintf(limit->what, sizeof limit->what, "%s", what);
    }
}

// The files of one version of control groups.
struct group_files {
    const char *mount, *max, *current, *inactive, *active;
};
static const struct group_files UNIFIED = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file ", "active_file "};
static const struct group_files LEGACY = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                          "total_inactive_file ",
                                          "total_active_file "}; // version 1; without a limit the file has 8 EiB

// The page cache counts as used, but is reclaimed when memory is needed.
static FALLIBLE apply_group(const char *root, const struct group_files *files, const char *group, struct memory_limit *out) {
    char path[PATH_MAX];
    uint64_t max, current = 0, inactive = 0, active = 0;
    bool found;
    snprintf(path, sizeof path, "%s%s%s/%s", root, files->mount, group, files->max);
    TRY(number_of(path, "", out, &max, &found));
    if (!found) {
        return OK; // no limit: the root group has no such file, and "max" is not a number
    }
    snprintf(path, sizeof path, "%s%s%s/%s", root, files->mount, group, files->current);
    TRY(number_of(path, "", out, &current, &found)); // not found: assume that nothing is in use
    snprintf(path, sizeof path, "%s%s%s/memory.stat", root, files->mount, group);
    TRY(number_of(path, files->inactive, out, &inactive, &found));
    TRY(number_of(path, files->active, out, &active, &found));
    uint64_t cache = inactive + active;
    uint64_t used = current > cache ? current - cache : 0;
    char what[MEMORY_LIMIT_TEXT_MAX];
    snprintf(what, sizeof what, "%s of control group %.256s", files->max, *group ? group : "/");
    lower_limit(out, max > used ? max - used : 0, what);
    return OK;
}

// The group in a line of /proc/self/cgroup, "0::/a/b" in version 2 and "5:cpu,memory:/a/b" in version 1; NULL: the line does not
// apply to memory in that version.
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

// out "": the root group. *found false: none.
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

// The limits of the group's parents apply too. In a container the group may appear as the root.
static FALLIBLE apply_groups(const char *root, bool legacy, struct memory_limit *out) {
    char group[PATH_MAX] = "";
    bool found;
    TRY(find_group(root, legacy, group, &found, out));
    for (int depth = 0; found && depth < CGROUP_DEPTH_MAX; depth++) {
        TRY(apply_group(root, legacy ? &LEGACY : &UNIFIED, group, out));
        char *slash = strrchr(group, '/');
        if (!slash) {
            break;
        }
        *slash = '\0';
    }
    return OK;
}

// The limits of this process on its memory, and the memory that counts towards each: the kernel's text of getrlimit, and VmSize and
// VmData in KiB. Mapped files belong to the address space, but not to the data.
static const struct process_limit {
    const char *limit, *used, *what;
} PROCESS_LIMITS[] = {
    {"Max address space", "VmSize:", "RLIMIT_AS of this process; raise it with ulimit -v or LimitAS"},
    {"Max data size", "VmData:", "RLIMIT_DATA of this process; raise it with ulimit -d or LimitDATA"},
};

static FALLIBLE apply_process_limits(const char *root, struct memory_limit *out) {
    char limits[PATH_MAX], status[PATH_MAX];
    snprintf(limits, sizeof limits, "%s/proc/self/limits", root);
    snprintf(status, sizeof status, "%s/proc/self/status", root);
    for (size_t i = 0; i < sizeof PROCESS_LIMITS / sizeof *PROCESS_LIMITS; i++) {
        uint64_t most, used_kib = 0;
        bool found;
        TRY(number_of(limits, PROCESS_LIMITS[i].limit, out, &most, &found)); // "unlimited" is no number
        if (!found) {
            continue;
        }
        TRY(number_of(status, PROCESS_LIMITS[i].used, out, &used_kib, &found)); // not found: assume that nothing is in use
        uint64_t used = used_kib > UINT64_MAX / 1024 ? UINT64_MAX : used_kib * 1024;
        lower_limit(out, most > used ? most - used : 0, PROCESS_LIMITS[i].what);
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
        lower_limit(out, kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024, "MemAvailable of /proc/meminfo");
    }
    TRY(apply_process_limits(root, out));
    TRY(apply_groups(root, false, out));
    return apply_groups(root, true, out);
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
