// Defaults that are computed at start: addresses, number of threads, folder of the model cache.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_DEFAULTS_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_DEFAULTS_H

#include "base/err.h"
#include "daemon/config/options_fields.h"

// Sets every unset field whose row has no fixed default. Replaces its origin where a variable determined the value.
FALLIBLE options_set_computed(char *const *environment, struct options *out);

// Number of CPUs that this process may use: the CPUs of its affinity mask, limited by cpu.max of its cgroup and that cgroup's
// parents (version 2, rounded up). At least 1. `cgroup_file` is /proc/self/cgroup and `cgroup_root` /sys/fs/cgroup, except in
// tests.
uint32_t options_cpu_count(const char *cgroup_file, const char *cgroup_root);

#endif
