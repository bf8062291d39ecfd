// A thread team for each memory node, pinned to the node's CPUs, with a leader thread that drives it. The ranks of different nodes
// compute at the same time; those of one node compute one after another. One thread owns the teams, starts each run and waits
// for its end.
#ifndef EXPERTD_EXPERT_HOST_NODE_TEAMS_H
#define EXPERTD_EXPERT_HOST_NODE_TEAMS_H

#include <stdint.h>

#include "base/err.h"
#include "expertd/kernels/team.h"
#include "shard/topology.h"

struct node_teams;

struct node_teams_options {
    const struct topology *topology; // borrowed
    unsigned threads;                // of all teams; divided in proportion to the nodes' CPUs, at least one each
    unsigned spin_us;
};

FALLIBLE node_teams_create(const struct node_teams_options *options, struct node_teams **out);
void node_teams_destroy(struct node_teams *teams); // joins all threads; NULL is legal
uint32_t node_teams_count(const struct node_teams *teams);
const struct topology_node *node_teams_node(const struct node_teams *teams, uint32_t node);

// Calls body(context, node, team) once for every node, on the node's leader. Returns when all calls have returned; the error is
// that of the lowest node that failed.
FALLIBLE node_teams_run(struct node_teams *teams, err_t (*body)(void *context, uint32_t node, struct expertd_team *team),
                        void *context);

#endif
