// port-cost: the cost of an instruction in a stream of VDPBF16PS, as the number of products that a core executes less per copy of
// it.
//
//   port-cost [NAME…]     a table of all instructions in ports.S, or of those whose names begin with NAME
//
// Loops of 24 products without the instruction and with 8 and 16 copies of it alternate; a figure is the median over all
// rounds. 0: the instruction uses ports that products do not use. The figure may be larger with 16 copies than with 8, when
// those ports are full.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

enum { PRODUCTS = 24, ITERATIONS = 20000, ROUNDS = 31, COPIES_MOST = 16, LINES = 4, LINE = 64 };

#if defined(__x86_64__)

typedef void port_loop(char *lines, long iterations);

extern const struct port {
    const char *name;
    port_loop *without, *with[2]; // with: 8 and 16 copies
} ports[];                        // terminated by an entry without a name

static double run_ns(port_loop *loop) {
    static char lines[LINES * LINE] __attribute__((aligned(LINE)));
    int64_t began = clock_now_ns();
    loop(lines, ITERATIONS);
    return (double)(clock_now_ns() - began);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// The lost products per copy, with `copies` copies.
static double cost(const struct port *port, size_t with, size_t copies) {
    double costs[ROUNDS];
    for (size_t i = 0; i < ROUNDS; i++) {
        double without = run_ns(port->without);
        costs[i] = (run_ns(port->with[with]) / without - 1) * PRODUCTS / (double)copies;
    }
    qsort(costs, ROUNDS, sizeof *costs, ascending);
    return costs[ROUNDS / 2];
}

static int wanted(const char *name, int argc, char **argv) {
    int any = argc < 2;
    for (int i = 1; i < argc; i++) {
        any |= strncmp(name, argv[i], strlen(argv[i])) == 0;
    }
    return any;
}

int main(int argc, char **argv) {
    if (!__builtin_cpu_supports("avx512bf16") || !__builtin_cpu_supports("avx512vbmi") || !__builtin_cpu_supports("gfni") ||
        !__builtin_cpu_supports("avx512vbmi2")) {
        fprintf(stderr, "port-cost: this CPU lacks AVX-512 with BF16, VBMI, VBMI2 and GFNI\n");
        return 69;
    }
    size_t listed = 0;
    for (const struct port *port = ports; port->name; port++) {
        listed += (size_t)wanted(port->name, argc, argv);
    }
    if (listed == 0) {
        fprintf(stderr, "usage: port-cost [NAME...]: no instruction's name begins with NAME; without arguments all are listed\n");
        return 64;
    }
    printf("%-16s %6s %6s\n", "LOST PRODUCTS", "OF 8", "OF 16");
    for (const struct port *port = ports; port->name; port++) {
        if (wanted(port->name, argc, argv)) {
            printf("%-16s %6.2f %6.2f\n", port->name, cost(port, 0, COPIES_MOST / 2), cost(port, 1, COPIES_MOST));
            fflush(stdout);
        }
    }
    return 0;
}

#else

int main(void) {
    fprintf(stderr, "port-cost: x86-64 with AVX-512 only\n");
    return 69;
}

#endif
