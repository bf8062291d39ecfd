// The load generator's random numbers: xoshiro256** seeded by splitmix64 (Blackman and Vigna, prng.di.unimi.it). The same seed
// gives the same load. Pure; a generator belongs to one thread.
#ifndef EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_RANDOM_H
#define EXPERTD_CLIENT_EXPERTCTL_BENCH_LOAD_BENCH_RANDOM_H

#include <math.h>
#include <stdint.h>

struct bench_random {
    uint64_t state[4];
};

// Different `stream` numbers give independent generators of one seed (for a process, for a purpose).
static inline struct bench_random bench_random_seeded(uint64_t seed, uint64_t stream) {
    struct bench_random random;
    uint64_t x = seed ^ stream * UINT64_C(0xd1342543de82ef95);
    for (int i = 0; i < 4; i++) {
        x += UINT64_C(0x9e3779b97f4a7c15);
        uint64_t z = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
        random.state[i] = z ^ z >> 31;
    }
    return random;
}

static inline uint64_t bench_random_rotate(uint64_t x, int by) {
    return x << by | x >> (64 - by);
}

static inline uint64_t bench_random_next(struct bench_random *random) {
    uint64_t *s = random->state, result = bench_random_rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = bench_random_rotate(s[3], 45);
    return result;
}

// In [0, 1).
static inline double bench_random_unit(struct bench_random *random) {
    return (double)(bench_random_next(random) >> 11) * 0x1p-53;
}

// In [0, bound), bound > 0. The bias of the product (below 2^-32 for the bounds here) does not matter to a load.
static inline uint64_t bench_random_below(struct bench_random *random, uint64_t bound) {
    return (uint64_t)((unsigned __int128)bench_random_next(random) * bound >> 64);
}

// Standard normal, by Box and Muller.
static inline double bench_random_normal(struct bench_random *random) {
    double radius = sqrt(-2 * log(1 - bench_random_unit(random)));
    return radius * cos(2 * 3.14159265358979323846 * bench_random_unit(random));
}

#endif
