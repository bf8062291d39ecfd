// Defaults that depend on the machine and its user: addresses, threads, the model cache.
#ifndef EXPERTD_DAEMON_CONFIG_OPTIONS_DEFAULTS_H
#define EXPERTD_DAEMON_CONFIG_OPTIONS_DEFAULTS_H

#include "base/err.h"
#include "daemon/config/options.h"

// Sets every row without a fixed default whose field is still unset; *origin of it (in origins[]) is replaced where more is to be
// said than "default".
FALLIBLE options_set_computed(char *const *environment, struct options *out);

// CPUs that this process may keep busy: its affinity mask, less where a cgroup's cpu.max (version 2) allows less time, rounded up.
// `cgroup_file` is /proc/self/cgroup and `cgroup_root` /sys/fs/cgroup, but for tests. At least 1.
uint32_t options_cpu_count(const char *cgroup_file, const char *cgroup_root);

#endif
