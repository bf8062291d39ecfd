// The host's scratch for one batch. Private to expert/.
#ifndef EXPERTD_EXPERT_HOST_HOST_STATE_H
#define EXPERTD_EXPERT_HOST_HOST_STATE_H

#include "base/arena.h"
#include "expert/host/ffn.h"
#include "expert/host/node_teams.h"

// One memory node's scratch, in that node's memory.
struct host_node {
    struct arena memory;
    struct ffn_scratch ffn;
};

struct host_engine {
    char *expanded;    // [max_choices, H] in D: weighted inputs; NULL if no layer has weights on the input
    const void **rows; // [threads, max_top_k] combine's row pointers
    struct ffn_scratch ffn;
    struct node_teams *node_teams; // NULL: engine->team computes all ranks, in `ffn`
    struct host_node *nodes;       // [node_teams_count]; NULL without node_teams
    char *shared;                  // [max_tokens, H] in D: the shared experts' rows
    char *latent; // [max_tokens, L] in D: the rows that latent experts read, later each token's sum; NULL without latent experts
    float *shared_scale; // [max_tokens] sigmoid of the shared gate
};

#endif
