// Tests of the emulator itself. tests/emulated/run runs each mode and checks the exit status:
//   past-the-end   reads a byte where no memory is mapped: must end with SIGSEGV
//   one-tile       multiplies a tile by itself, which is undefined: must end with SIGILL
//   tiles          compares products of partly filled tiles with plain C loops
//   threads        two threads take turns with a condition variable; then a timed wait must time out
#include <errno.h>
#include <immintrin.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, M = 5, K = 3, N = 7, TURNS = 100 }; // K and N in words of four bytes

struct configuration {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

static int past_the_end(void) {
    const unsigned char *page = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED || munmap((void *)(page + PAGE), PAGE) != 0) {
        return 2;
    }
    volatile const unsigned char *end = page + PAGE;
    return end[-1] + end[0];
}

__attribute__((target("amx-tile,amx-bf16,amx-int8"))) static void configure(void) {
    static struct configuration c __attribute__((aligned(64)));
    c = (struct configuration){.palette = 1, .row_bytes = {4 * N, 4 * K, 4 * N}, .rows = {M, M, K}};
    syscall(SYS_arch_prctl, 0x1023, 18);
    _tile_loadconfig(&c);
}

__attribute__((target("amx-tile,amx-bf16,amx-int8"))) static int one_tile(void) {
    configure();
    __asm__ volatile(".byte 0xc4, 0xe2, 0x72, 0x5c, 0xc1"); // TDPBF16PS tmm0, tmm1, tmm1
    return 0;
}

static void fill(void *to, size_t bytes, unsigned step) {
    for (size_t i = 0; i < bytes; i++) {
        ((uint8_t *)to)[i] = (uint8_t)(5 + i * step);
    }
}

__attribute__((target("amx-tile,amx-bf16,amx-int8"))) static int tiles(void) {
    static int8_t a[M][4 * K], b[K][4 * N];
    static int32_t sums[M][16], want[M][16]; // a tile's rows, and bytes beside them that must not change
    fill(a, sizeof a, 37);
    fill(b, sizeof b, 91);
    for (int m = 0; m < M; m++) {
        for (int n = 0; n < 16; n++) {
            sums[m][n] = want[m][n] = 1000 * m + n;
            for (int i = 0; n < N && i < 4 * K; i++) {
                want[m][n] += a[m][i] * b[i / 4][4 * n + i % 4];
            }
        }
    }
    configure();
    _tile_loadd(0, sums, sizeof sums[0]);
    _tile_loadd(1, a, sizeof a[0]);
    _tile_loadd(2, b, sizeof b[0]);
    _tile_dpbssd(0, 1, 2);
    _tile_stored(0, sums, sizeof sums[0]);
    _tile_release();
    return memcmp(sums, want, sizeof sums) != 0;
}

static struct {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int turns;
} shared = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

static void *take_turns(void *parity) {
    pthread_mutex_lock(&shared.lock);
    while (shared.turns < TURNS) {
        if (shared.turns % 2 == (int)(intptr_t)parity) {
            shared.turns++;
            pthread_cond_broadcast(&shared.changed);
        } else {
            pthread_cond_wait(&shared.changed, &shared.lock);
        }
    }
    pthread_mutex_unlock(&shared.lock);
    return NULL;
}

static int threads(void) {
    pthread_t other;
    if (pthread_create(&other, NULL, take_turns, (void *)1)) {
        return 2;
    }
    take_turns((void *)0);
    pthread_join(other, NULL);
    struct timespec soon;
    clock_gettime(CLOCK_REALTIME, &soon);
    soon.tv_nsec = soon.tv_nsec > 900000000 ? 999999999 : soon.tv_nsec + 20000000;
    pthread_mutex_lock(&shared.lock);
    int waited = pthread_cond_timedwait(&shared.changed, &shared.lock, &soon);
    pthread_mutex_unlock(&shared.lock);
    return shared.turns != TURNS || waited != ETIMEDOUT;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        int (*run)(void);
    } MODES[] = {{"past-the-end", past_the_end}, {"one-tile", one_tile}, {"tiles", tiles}, {"threads", threads}};
    for (size_t i = 0; argc == 2 && i < sizeof MODES / sizeof *MODES; i++) {
        if (strcmp(argv[1], MODES[i].name) == 0) {
            return MODES[i].run();
        }
    }
    fprintf(stderr, "emulated-probe: unknown mode; modes: past-the-end, one-tile, tiles, threads\n");
    return 64;
}
