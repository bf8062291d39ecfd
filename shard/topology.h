// The machine's memory (NUMA) nodes with the CPUs that this process may use, and the node of each rank. Read once at start, then
// immutable; any thread.
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
    uint32_t number; // the kernel's number of the node
    uint32_t count;  // CPUs in the set
    struct topology_cpus cpus;
};

struct topology {
    uint32_t count, cpus; // number of nodes, and of CPUs in all nodes
    struct topology_node nodes[TOPOLOGY_NODES_MAX];
};

// Parses a CPU list of sysfs: "0-3,8,10-11\n"; "" is an empty list. EXPERTD_ERR_IO: not a list, or a CPU from TOPOLOGY_CPUS_MAX on.
FALLIBLE topology_parse_cpus(const char *text, struct topology_cpus *out);

// Reads the nodes from root/sys/devices/system/node/node*/cpulist; root is "" except in tests. A node gets only its CPUs that are
// in `allowed`; nodes without such CPUs are omitted. If no node can be read, there is one node with all of `allowed`.
void topology_read(const char *root, const struct topology_cpus *allowed, struct topology *out);
void topology_allowed(struct topology_cpus *out); // the calling thread's CPU affinity

// The number of thread teams: one per node if every node has at least one rank, otherwise one team that serves all ranks in turn.
static inline uint32_t topology_teams(const struct topology *topology, uint32_t ranks) {
    return topology && topology->count > 1 && ranks >= topology->count ? topology->count : 1;
}

// Consecutive ranks share a node.
static inline uint32_t topology_node_of_rank(uint32_t teams, uint32_t ranks, uint32_t rank) {
    return (uint32_t)((uint64_t)rank * teams / ranks);
}

// The node of a rank's memory; NULL if one team serves all ranks.
static inline const struct topology_node *topology_home(const struct topology *topology, uint32_t ranks, uint32_t rank) {
    uint32_t teams = topology_teams(topology, ranks);
    return teams > 1 ? &topology->nodes[topology_node_of_rank(teams, ranks, rank)] : NULL;
}

// Pins the calling thread, and the threads that it creates later, to the node's CPUs. EXPERTD_ERR_UNAVAILABLE.
FALLIBLE topology_pin(const struct topology_node *node);

// Advises the kernel to allocate pages of [memory, memory + bytes) that are touched from now on from the node's memory. A failure
// is ignored. node may be NULL: no effect.
void topology_prefer(const struct topology_node *node, void *memory, size_t bytes);

#endif
