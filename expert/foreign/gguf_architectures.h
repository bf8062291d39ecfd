// The table of llama.cpp's architectures with experts: which row of the architecture table computes each of them, and what its
// metadata means there. Constant data. Sources: conversion/, src/llama-graph.cpp and src/models/ of llama.cpp.
// Private to expert/foreign/.
#ifndef EXPERTD_EXPERT_FOREIGN_GGUF_ARCHITECTURES_H
#define EXPERTD_EXPERT_FOREIGN_GGUF_ARCHITECTURES_H

#include <stddef.h>

enum { GGUF_CONDITIONS = 3, GGUF_ROW_KEYS = 12 };

// expert_gating_func
enum { GATING_NONE, GATING_SOFTMAX, GATING_SIGMOID, GATING_SOFTMAX_OF_CHOSEN, GATING_SQRT_SOFTPLUS };

// The row applies if the key has this value. Keys are those below the architecture's name: "expert_count".
struct gguf_condition {
    const char *key; // NULL ends the list
    double absent;   // the value if the file does not have the key; GATING_NONE: the key is required
    double value;
};

struct gguf_key {
    const char *key;    // NULL ends the list
    const char *row;    // the key of config.json; NULL: the value is only checked
    const char *absent; // the value as JSON if the file does not have the key; NULL: none
    const char *only;   // the permitted numbers, "0|1"; "=KEY": those that KEY has; "!": any, but required; NULL: any
};

// The shared expert.
enum gguf_shared {
    GGUF_SHARED_NONE,     // keys about one must be absent or 0
    GGUF_SHARED_BY_WIDTH, // expert_shared_feed_forward_length, else expert_shared_count times the experts' width
    GGUF_SHARED_BY_COUNT, // expert_shared_count times the experts' width; a width beside it must be equal
    GGUF_SHARED_BESIDE,   // a perceptron that is no part of the block: the keys are not read
};

// Every row has block_count, embedding_length, expert_count, expert_used_count, the experts' width and, by `shared`, the shared
// expert's. A condition's key and these are known; other keys that begin with "expert" or belong to GGUF_EXPERT_KEYS must be in
// `keys`.
struct gguf_architecture {
    const char *name;       // general.architecture
    const char *model_type; // of the architecture table
    struct gguf_condition when[GGUF_CONDITIONS];
    const char *width;     // the experts' width; NULL: expert_feed_forward_length
    const char *constants; // members of config.json that hold for all files, "\"topk_method\": \"greedy\""
    enum gguf_shared shared;
    struct gguf_key keys[GGUF_ROW_KEYS];
};

extern const struct gguf_architecture GGUF_ARCHITECTURES[];
extern const size_t GGUF_ARCHITECTURE_COUNT;

// Architectures with experts whose computation is not in the architecture table.
struct gguf_refused {
    const char *name, *reason;
};

extern const struct gguf_refused GGUF_REFUSED[];
extern const size_t GGUF_REFUSED_COUNT;

#endif
