// The machine's memory nodes and their CPUs, as far as this process may use them, and which rank belongs to which node.
// Read once, at start; immutable; any thread.
#ifndef EXPERTD_SHARD_TOPOLOGY_H
#define EXPERTD_SHARD_TOPOLOGY_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

enum { TOPOLOGY_NODES_MAX = 64, TOPOLOGY_CPUS_MAX = 4096 };

struct topology_cpus {
    uint64_t bits[TOPOLOGY_CPUS_MAX / 64];
};

struct topology_node {
    uint32_t number; // the kernel's
    uint32_t count;  // CPUs in the set
    struct topology_cpus cpus;
};

struct topology {
    uint32_t count, cpus; // nodes, and CPUs of all of them
    struct topology_node nodes[TOPOLOGY_NODES_MAX];
};

// A list as sysfs writes it: "0-3,8,10-11\n", "" for none. EXPERTD_ERR_IO: it is none, or a number is past the greatest.
FALLIBLE topology_parse_cpus(const char *text, struct topology_cpus *out);

// The nodes below root ("" but in tests: root/sys/devices/system/node/node*/cpulist) with the CPUs of theirs that are in `allowed`;
// nodes without any are left out. Where nothing is to be read there is one node with all of `allowed`.
void topology_read(const char *root, const struct topology_cpus *allowed, struct topology *out);
void topology_allowed(struct topology_cpus *out); // the CPUs of the calling thread's affinity

// One team per node pays where every node gets a rank; else one team serves all ranks, one after another.
static inline uint32_t topology_teams(const struct topology *topology, uint32_t ranks) {
    return topology && topology->count > 1 && ranks >= topology->count ? topology->count : 1;
}

// Ranks are spread over the nodes contiguously.
static inline uint32_t topology_node_of_rank(uint32_t teams, uint32_t ranks, uint32_t rank) {
    return (uint32_t)((uint64_t)rank * teams / ranks);
}

// The node of a rank's memory; NULL where one team serves all.
static inline const struct topology_node *topology_home(const struct topology *topology, uint32_t ranks, uint32_t rank) {
    uint32_t teams = topology_teams(topology, ranks);
    return teams > 1 ? &topology->nodes[topology_node_of_rank(teams, ranks, rank)] : NULL;
}

// The calling thread, and those that it creates from here on, run on the node's CPUs. EXPERTD_ERR_UNAVAILABLE.
FALLIBLE topology_pin(const struct topology_node *node);

// Pages of [memory, memory + bytes) that are touched from here on come from the node where it has any left. Advice: what the kernel
// refuses is left as it is. NULL is legal: nothing is asked.
void topology_prefer(const struct topology_node *node, void *memory, size_t bytes);

#endif
