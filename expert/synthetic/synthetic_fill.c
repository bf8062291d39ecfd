// The values of synthetic models' tensors. Part of every synthetic model's weights_id: never to be changed for a given seed.
#include <string.h>

#include "expert/synthetic/synthetic.h"

enum {
    WORD_VALUES = 8,   // one 64-bit word gives eight values, a byte each
    BYTE_VALUES = 256, // odd numbers -255, -253 ... 255: exact in BF16's eight bits, symmetric, never 0
    VARIANCE = 21845,  // of these: (256 * 256 - 1) / 3
    VECTOR_SHIFT = 12, // of biases: a deviation of 147.8 / 4096 = 0.036
    SHIFT_MAX = 31,
};

bool synthetic_has(const struct layer_params *params, uint32_t expert, enum supply_tensor tensor) {
    bool shared = expert == SUPPLY_SHARED;
    const struct expertd_activation *activation = shared ? &params->shared_activation : &params->activation;
    bool expert_there = !shared || shared_has_expert(params->shared);
    bool biased = !shared && params->expert_has_bias;
    switch (tensor) {
    case SUPPLY_GATE:
        return expert_there && expertd_activation_is_gated(activation);
    case SUPPLY_UP:
    case SUPPLY_DOWN:
        return expert_there;
    case SUPPLY_GATE_BIAS:
        return biased && expertd_activation_is_gated(activation);
    case SUPPLY_UP_BIAS:
        return biased;
    case SUPPLY_DOWN_BIAS:
        return biased || (shared && params->shared == SHARED_BIAS);
    case SUPPLY_ROUTER:
        return params->has_router;
    case SUPPLY_ROUTER_BIAS:
        return params->has_router && params->router_has_bias;
    case SUPPLY_SELECTION_BIAS:
        return params->has_router && params->router_has_selection_bias;
    case SUPPLY_SHARED_GATE:
        return params->shared == SHARED_SIGMOID;
    case SUPPLY_LATENT_IN:
    case SUPPLY_LATENT_OUT:
        return params->latent_size > 0;
    case SUPPLY_OUTPUT_NORM:
        return params->has_output_norm;
    case SUPPLY_TENSORS:
        break;
    }
    return false;
}

// splitmix64's output function (Steele, Lea, Flood 2014): a bijection whose outputs over a counter pass as random.
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t synthetic_word(uint64_t key, uint64_t index) {
    return mix(key + (index + 1) * 0x9e3779b97f4a7c15u);
}

// The shift s that brings the deviation nearest to 1 / sqrt(k): the least with VARIANCE * k / 4^s < 2.
static int shift_of(size_t k) {
    int shift = 0;
    while (shift < SHIFT_MAX && (uint64_t)2 << (2 * shift) <= (uint64_t)VARIANCE * k) {
        shift++;
    }
    return shift;
}

static void fill_table(int shift, uint16_t table[BYTE_VALUES]) {
    float unit = 1;
    for (int i = 0; i < shift; i++) {
        unit *= 0.5f;
    }
    for (int byte = 0; byte < BYTE_VALUES; byte++) {
        table[byte] = expertd_bf16_from_f32((float)(2 * byte - 255) * unit);
    }
}

uint64_t synthetic_key(uint64_t seed, uint32_t layer, uint32_t expert, enum supply_tensor tensor) {
    return mix(mix(mix(seed + 1) + layer + 1) ^ (((uint64_t)expert << 8) + (uint64_t)tensor));
}

void synthetic_fill(uint64_t seed, uint32_t layer, uint32_t expert, enum supply_tensor tensor, size_t n, size_t k, void *out) {
    uint64_t key = synthetic_key(seed, layer, expert, tensor);
    uint16_t table[BYTE_VALUES];
    bool vector = n == 1 && tensor != SUPPLY_SHARED_GATE && tensor != SUPPLY_ROUTER;
    fill_table(vector ? VECTOR_SHIFT : shift_of(k), table);
    size_t count = n * k;
    uint16_t *to = out;
    for (size_t i = 0; i < count; i += WORD_VALUES) {
        uint64_t word = synthetic_word(key, i / WORD_VALUES);
        uint16_t values[WORD_VALUES];
        for (size_t j = 0; j < WORD_VALUES; j++) {
            values[j] = table[(word >> (8 * j)) & 0xffu];
        }
        if (count - i >= WORD_VALUES) { // a whole word is one store: ThreadSanitizer looks at each
            memcpy(to + i, values, sizeof values);
        } else {
            memcpy(to + i, values, (count - i) * sizeof *values);
        }
    }
}
