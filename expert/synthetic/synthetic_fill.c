#include "expert/synthetic/synthetic_fill.h"

#include <string.h>

enum {
    WORD_VALUES = 8,   // values of one 64-bit word: one for each byte
    BYTE_VALUES = 256, // the odd integers -255, -253 ... 255: exact in BF16's eight bits, symmetric, never 0
    VARIANCE = 21845,  // of these integers: (256 * 256 - 1) / 3
    VECTOR_SHIFT = 12, // for vectors: a standard deviation of 147.8 / 4096 = 0.036
    SHIFT_MAX = 31,
};

// splitmix64's output function (Steele, Lea, Flood 2014): a bijection whose outputs over a counter pass as random.
static uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t synthetic_word(uint64_t key, uint64_t index) {
    return mix(key + (index + 1) * 0x9e3779b97f4a7c15u);
}

// The right shift s that brings the standard deviation closest to 1 / sqrt(k): the smallest with VARIANCE * k / 4^s < 2.
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
        if (count - i >= WORD_VALUES) { // one store for a full word: ThreadSanitizer checks every store
            memcpy(to + i, values, sizeof values);
        } else {
            memcpy(to + i, values, (count - i) * sizeof *values);
        }
    }
}
