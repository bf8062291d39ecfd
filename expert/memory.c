#include "expert/memory.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINES_MAX = 4096, LINE_BYTES = 512, CGROUP_DEPTH_MAX = 64 };

// The number after `key` at the start of a line of a file: "MemAvailable:  123 kB", "inactive_file 123".
static bool number_of(const char *path, const char *key, uint64_t *out) {
    FILE *file = fopen(path, "re");
    if (!file) {
        return false;
    }
    char line[LINE_BYTES];
    size_t length = strlen(key);
    bool found = false;
    for (int i = 0; i < LINES_MAX && !found && fgets(line, sizeof line, file); i++) {
        if (strncmp(line, key, length) == 0) {
            char *end;
            *out = strtoull(line + length, &end, 10);
            found = end != line + length;
        }
    }
    (void)fclose(file);
    return found;
}

static void take_lesser(struct memory_limit *limit, uint64_t bytes, const char *what) {
    if (bytes < limit->bytes) {
        limit->bytes = bytes;
        snprintf(limit->what, sizeof limit->what, "%s", what);
    }
}

// Page cache counts as used in memory.current, but is dropped when somebody needs the room.
static void take_group(const char *root, const char *group, struct memory_limit *out) {
    char path[PATH_MAX];
    uint64_t max, current, inactive = 0, active = 0;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/memory.max", root, group);
    if (!number_of(path, "", &max)) {
        return; // the root group has none, and "max" is no number: no limit
    }
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/memory.current", root, group);
    if (!number_of(path, "", &current)) {
        return;
    }
    snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/memory.stat", root, group);
    (void)number_of(path, "inactive_file ", &inactive);
    (void)number_of(path, "active_file ", &active);
    uint64_t cache = inactive + active;
    uint64_t used = current > cache ? current - cache : 0;
    char what[MEMORY_LIMIT_TEXT_MAX];
    snprintf(what, sizeof what, "memory.max of control group %.256s", *group ? group : "/");
    take_lesser(out, max > used ? max - used : 0, what);
}

// The line "0::/a/b" names the group of version 2; a limit of any of its parents holds too.
static void take_groups(const char *root, struct memory_limit *out) {
    char path[PATH_MAX], line[PATH_MAX], group[PATH_MAX] = "";
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    if (!file) {
        return;
    }
    bool found = false;
    for (int i = 0; i < LINES_MAX && !found && fgets(line, sizeof line, file); i++) {
        found = strncmp(line, "0::/", 4) == 0;
    }
    (void)fclose(file);
    if (!found) {
        return;
    }
    line[strcspn(line, "\n")] = '\0';
    snprintf(group, sizeof group, "%s", strcmp(line, "0::/") == 0 ? "" : line + 3);
    for (int depth = 0; depth < CGROUP_DEPTH_MAX; depth++) {
        take_group(root, group, out);
        char *slash = strrchr(group, '/');
        if (!slash) {
            return;
        }
        *slash = '\0';
    }
}

void memory_available_at(const char *root, struct memory_limit *out) {
    *out = (struct memory_limit){.bytes = UINT64_MAX, .what = "no limit known"};
    char path[PATH_MAX];
    uint64_t kib;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    if (number_of(path, "MemAvailable:", &kib)) {
        take_lesser(out, kib > UINT64_MAX / 1024 ? UINT64_MAX : kib * 1024, "MemAvailable of /proc/meminfo");
    }
    take_groups(root, out);
}

void memory_available(struct memory_limit *out) {
    memory_available_at("", out);
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
