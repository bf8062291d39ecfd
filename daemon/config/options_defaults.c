#include "daemon/config/options_defaults.h"

#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/config/hub_cache.h"
#include "daemon/config/options_address.h"
#include "daemon/config/options_sources.h"
#include "daemon/config/options_table.h"
#include "daemon/config/options_value.h"

static const char DEFAULT_TCP[] = "127.0.0.1:7411";

// ---- CPUs

static uint32_t affinity_count(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) {
        return 1; // more than 1024 CPUs do not fit into cpu_set_t: the user must set --threads
    }
    int count = CPU_COUNT(&set);
    return count > 0 ? (uint32_t)count : 1;
}

// The number of CPUs that cpu.max of a cgroup folder allows. UINT32_MAX: no limit.
static uint32_t quota_count(const char *folder) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/cpu.max", folder) >= (int)sizeof path) {
        return UINT32_MAX;
    }
    FILE *file = fopen(path, "re");
    if (!file) {
        return UINT32_MAX;
    }
    unsigned long long quota = 0, period = 0; // "max 100000" matches neither
    int fields = fscanf(file, "%llu %llu", &quota, &period);
    fclose(file);
    if (fields != 2 || !quota || !period || quota / period >= UINT32_MAX - 1) {
        return UINT32_MAX;
    }
    return (uint32_t)(quota / period + (quota % period != 0));
}

// Copies the path after "0::" in /proc/self/cgroup to `out`; "" if the process has no cgroup of version 2.
static void own_cgroup(const char *cgroup_file, char *out, size_t size) {
    char line[PATH_MAX];
    out[0] = '\0';
    FILE *file = fopen(cgroup_file, "re");
    if (!file) {
        return;
    }
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::/", 4) == 0) {
            snprintf(out, size, "%s", line + 3);
        }
    }
    fclose(file);
}

uint32_t options_cpu_count(const char *cgroup_file, const char *cgroup_root) {
    char own[PATH_MAX], folder[2 * PATH_MAX];
    own_cgroup(cgroup_file, own, sizeof own);
    uint32_t count = affinity_count();
    // Parents may have lower limits. Inside a container, the root is the container's own cgroup.
    for (;;) {
        snprintf(folder, sizeof folder, "%s%s", cgroup_root, own);
        uint32_t allowed = quota_count(folder);
        count = allowed < count ? allowed : count;
        char *slash = strrchr(own, '/');
        if (!slash) {
            return count;
        }
        *slash = '\0';
    }
}

// ---- addresses and folders

static FALLIBLE set_value(enum options_key key, char *text, struct options *out) {
    return options_value_parse(&OPTIONS_ROWS[key], &text, 1, EXPERTD_ERR_CONFIG, out);
}

// Writes "unix:FOLDER/expertd.sock" to `out`. False: the path is too long for a socket.
static bool socket_in(const char *folder, char out[UNIX_PATH_MAX + 6]) {
    size_t length = strcspn(folder, ":"); // $RUNTIME_DIRECTORY may list several folders, separated by colons
    int used = snprintf(out, UNIX_PATH_MAX + 6, "unix:%.*s/expertd.sock", (int)(length < INT_MAX ? length : INT_MAX), folder);
    return length > 0 && used < UNIX_PATH_MAX + 6;
}

static FALLIBLE default_listen(char *const *environment, struct options *out) {
    char path[UNIX_PATH_MAX + 6], tcp[sizeof DEFAULT_TCP];
    memcpy(tcp, DEFAULT_TCP, sizeof tcp);
    const char *folder = options_variable(environment, "RUNTIME_DIRECTORY");
    if (!folder) {
        folder = options_variable(environment, "XDG_RUNTIME_DIR");
    }
    char *both[] = {path, tcp}, *one[] = {tcp};
    const struct options_row *row = &OPTIONS_ROWS[OPTION_LISTEN];
    if (folder && socket_in(folder, path) && !err_is(options_value_parse(row, both, 2, EXPERTD_ERR_CONFIG, out))) {
        return OK;
    }
    return options_value_parse(row, one, 1, EXPERTD_ERR_CONFIG, out);
}

// FOLDER/NAME-admin.sock next to the first listening socket FOLDER/NAME.sock. "off": there is no Unix socket, or the path would be
// too long.
static FALLIBLE default_admin(struct options *out) {
    char address[2 * UNIX_PATH_MAX] = "off";
    for (size_t i = 0; i < out->listen_count; i++) {
        const char *path = options_unix_path(out->listen[i]);
        if (path) {
            size_t length = strlen(path);
            const char *name = strrchr(path, '/') ? strrchr(path, '/') + 1 : path;
            const char *dot = strrchr(name, '.');
            length -= dot && dot > name && strcmp(dot, ".sock") == 0 ? strlen(dot) : 0;
            snprintf(address, sizeof address, "unix:%.*s-admin.sock", (int)length, path);
            break;
        }
    }
    if (err_is(set_value(OPTION_ADMIN, address, out))) {
        memcpy(address, "off", sizeof "off");
        return set_value(OPTION_ADMIN, address, out);
    }
    return OK;
}

static FALLIBLE default_cache(char *const *environment, struct options *out) {
    char path[OPTIONS_VALUE_MAX], origin[OPTIONS_NAME_MAX];
    const char *variable;
    if (!hub_cache_find(environment, path, sizeof path, &variable)) {
        return OK;
    }
    TRY_IN(set_value(OPTION_HF_CACHE, path, out), "%s", variable);
    snprintf(origin, sizeof origin, "environment %s", variable);
    char *copy = strdup(origin);
    if (!copy) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the origin of a value");
    }
    free(out->origins[OPTION_HF_CACHE]);
    out->origins[OPTION_HF_CACHE] = copy;
    return OK;
}

FALLIBLE options_set_computed(char *const *environment, struct options *out) {
    out->journal = options_variable(environment, "JOURNAL_STREAM") != NULL;
    if (!out->listen_count) {
        TRY(default_listen(environment, out));
    }
    if (!out->threads) {
        out->threads = options_cpu_count("/proc/self/cgroup", "/sys/fs/cgroup");
    }
    if (!out->admin) {
        TRY(default_admin(out));
    }
    return out->hf_cache ? OK : default_cache(environment, out);
}
