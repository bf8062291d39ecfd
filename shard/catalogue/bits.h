// Sets of small numbers as bits in 64-bit words.
#ifndef EXPERTD_SHARD_CATALOGUE_BITS_H
#define EXPERTD_SHARD_CATALOGUE_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BITS_PER_WORD = 64 };

static inline size_t bits_words(size_t bits) {
    return (bits + BITS_PER_WORD - 1) / BITS_PER_WORD;
}

static inline bool bits_test(const uint64_t *words, uint32_t bit) {
    return words[bit / BITS_PER_WORD] >> (bit % BITS_PER_WORD) & 1;
}

static inline void bits_set(uint64_t *words, uint32_t bit) {
    words[bit / BITS_PER_WORD] |= (uint64_t)1 << (bit % BITS_PER_WORD);
}

static inline void bits_clear(uint64_t *words, uint32_t bit) {
    words[bit / BITS_PER_WORD] &= ~((uint64_t)1 << (bit % BITS_PER_WORD));
}

static inline void bits_put(uint64_t *words, uint32_t bit, bool value) {
    value ? bits_set(words, bit) : bits_clear(words, bit);
}

static inline bool bits_any(const uint64_t *words, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (words[i]) {
            return true;
        }
    }
    return false;
}

// The smallest member of the set in [from, end), or `end`.
static inline uint32_t bits_next(const uint64_t *words, uint32_t from, uint32_t end) {
    while (from < end) {
        uint64_t rest = words[from / BITS_PER_WORD] >> (from % BITS_PER_WORD);
        if (rest) {
            uint32_t found = from + (uint32_t)__builtin_ctzll(rest);
            return found < end ? found : end;
        }
        from += BITS_PER_WORD - from % BITS_PER_WORD;
    }
    return end;
}

#define BITS_FOR_EACH(bit, words, end)                                                                                             \
    for (uint32_t bit = bits_next((words), 0, (end)); bit < (end); bit = bits_next((words), bit + 1, (end)))

#endif
