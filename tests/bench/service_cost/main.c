// The overhead of the service: calls that compute nothing (every id is -1) to the daemon, compared with a bare gRPC echo of the
// same bytes. Both servers are running already. This program alternates blocks of calls to each, so that other load of the machine
// affects both. Prints a JSON array with a row for each way and number of tokens. The script `run` starts all three programs.
//
//     service-cost DAEMON_ADDRESS DAEMON_PID ECHO_ADDRESS ECHO_PID LAYER HIDDEN SECONDS WAYS TOKENS…
//
// WAYS: a comma-separated list of unary, stream, region, region-wire, region-bare.
#include <grpc/grpc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "tests/bench/service_cost/caller.h"
#include "tests/bench/service_cost/request.h"

enum { ROUNDS = 20, CALLS_MAX = 1 << 20, WARM_UP_CALLS = 50, SIDES = 2, WAYS_AT = 8, TOKENS_FROM = 9, PATH_MAX_BYTES = 64 };

// How tensors are sent, and the echo to compare with. With a region (shared memory) the messages are small. The echo then echoes
// the small messages and copies the tensor once in shared memory (region), or echoes a message with the tensors (region-wire), or
// echoes the small messages only, the lower limit of the transport's cost (region-bare).
enum way { WAY_UNARY, WAY_STREAM, WAY_REGION, WAY_REGION_WIRE, WAY_REGION_BARE, WAY_COUNT };

static const struct {
    const char *name, *daemon_method, *echo_method;
    bool in_region, echo_in_region, streamed, copied;
} WAYS[WAY_COUNT] = {
    [WAY_UNARY] = {"unary", "/expertd.v1.Experts/Forward", "/unary", .copied = false},
    [WAY_STREAM] = {"stream", "/expertd.v1.Experts/Stream", "/stream", .streamed = true},
    [WAY_REGION] = {"region", "/expertd.v1.Experts/Forward", "/copy", .in_region = true, .echo_in_region = true, .copied = true},
    [WAY_REGION_WIRE] = {"region-wire", "/expertd.v1.Experts/Forward", "/unary", .in_region = true},
    [WAY_REGION_BARE] = {"region-bare", "/expertd.v1.Experts/Forward", "/unary", .in_region = true, .echo_in_region = true},
};

struct side {
    const char *address;
    clockid_t cpu; // the CPU clock of its process: user and system time
    struct caller *caller;
    size_t calls;
    int64_t cpu_ns;
    uint32_t *latency_ns; // [CALLS_MAX]
    double round_p50[ROUNDS], round_cpu[ROUNDS];
};

struct bench {
    struct side sides[SIDES]; // the daemon, the echo
    struct client *client;    // a client of the daemon, for regions
    uint32_t layer, hidden;
    double seconds; // per row
};

static int64_t cpu_now_ns(const struct side *side) {
    struct timespec t;
    INVARIANT(clock_gettime(side->cpu, &t) == 0); // fails if the process has ended
    return (int64_t)t.tv_sec * NS_PER_S + t.tv_nsec;
}

static int by_latency(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

// Sorts latency_ns.
static double percentile_us(uint32_t *latency_ns, size_t count, double share) {
    qsort(latency_ns, count, sizeof *latency_ns, by_latency);
    return latency_ns[(size_t)(share * (double)(count - 1))] / (double)NS_PER_US;
}

static double median_of_ratios(const double *a, const double *b) {
    double ratios[ROUNDS];
    for (size_t i = 0; i < ROUNDS; i++) {
        ratios[i] = a[i] / b[i];
    }
    qsort(ratios, ROUNDS, sizeof *ratios, by_value);
    return (ratios[ROUNDS / 2] + ratios[(ROUNDS - 1) / 2]) / 2;
}

// ---- a row

static void run_block(struct side *side, size_t round, int64_t block_ns) {
    size_t first = side->calls;
    int64_t cpu_ns = cpu_now_ns(side), end_ns = clock_now_ns() + block_ns;
    do {
        INVARIANT(side->calls < CALLS_MAX);
        int64_t took_ns = caller_call(side->caller);
        side->latency_ns[side->calls++] = took_ns < UINT32_MAX ? (uint32_t)took_ns : UINT32_MAX;
    } while (clock_now_ns() < end_ns);
    cpu_ns = cpu_now_ns(side) - cpu_ns;
    side->cpu_ns += cpu_ns;
    size_t calls = side->calls - first;
    side->round_cpu[round] = (double)cpu_ns / (double)calls;
    side->round_p50[round] = percentile_us(side->latency_ns + first, calls, 0.5);
}

static void open_side(struct side *side, const struct caller_options *options) {
    side->calls = 0;
    side->cpu_ns = 0;
    side->caller = caller_create(options);
    for (size_t i = 0; i < WARM_UP_CALLS; i++) {
        (void)caller_call(side->caller);
    }
}

static void print_side(const char *name, struct side *side) {
    double cpu_us = (double)side->cpu_ns / (double)side->calls / NS_PER_US;
    double p50 = percentile_us(side->latency_ns, side->calls, 0.5), p99 = percentile_us(side->latency_ns, side->calls, 0.99);
    printf(" \"%s\": {\"calls\": %zu, \"p50_us\": %.1f, \"p99_us\": %.1f, \"cpu_us\": %.1f},", name, side->calls, p50, p99, cpu_us);
}

static void print_row(const struct bench *bench, enum way way, size_t tokens, const struct request *request) {
    struct side daemon = bench->sides[0], echo = bench->sides[1];
    printf("{\"way\": \"%s\", \"tokens\": %zu, \"request_bytes\": %zu, \"answer_bytes\": %zu,", WAYS[way].name, tokens,
           request->bytes.length, request->answer_bytes);
    print_side("daemon", &daemon);
    print_side("echo", &echo);
    double p99_ratio = percentile_us(daemon.latency_ns, daemon.calls, 0.99) / percentile_us(echo.latency_ns, echo.calls, 0.99);
    printf(" \"ratio_p50\": %.3f, \"ratio_p99\": %.3f, \"ratio_cpu\": %.3f}", median_of_ratios(daemon.round_p50, echo.round_p50),
           p99_ratio, median_of_ratios(daemon.round_cpu, echo.round_cpu));
}

static void measure(struct bench *bench, enum way way, const struct request *const requests[SIDES]) {
    char echo_method[PATH_MAX_BYTES];
    snprintf(echo_method, sizeof echo_method, "%s/%zu/%zu", WAYS[way].echo_method, requests[1]->answer_bytes,
             WAYS[way].copied ? requests[1]->output_bytes : 0);
    for (size_t i = 0; i < SIDES; i++) {
        struct caller_options options = {.address = bench->sides[i].address,
                                         .method = i == 0 ? WAYS[way].daemon_method : echo_method,
                                         .request = requests[i]->bytes.data,
                                         .request_bytes = requests[i]->bytes.length,
                                         .answer_bytes = requests[i]->answer_bytes,
                                         .streamed = WAYS[way].streamed};
        open_side(&bench->sides[i], &options);
    }
    int64_t block_ns = (int64_t)(bench->seconds * NS_PER_S / (SIDES * ROUNDS));
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < SIDES; i++) {
            run_block(&bench->sides[(i + round) % SIDES], round, block_ns);
        }
    }
    for (size_t i = 0; i < SIDES; i++) {
        caller_destroy(bench->sides[i].caller);
    }
}

static void open_region(struct bench *bench, const struct request_options *options, struct client_region *region) {
    err_t e = client_region_open(bench->client, request_region_bytes(options), 0, region);
    if (err_is(e)) {
        fprintf(stderr, "service-cost: %s\n", expertd_err_message());
        exit(69);
    }
}

static void run_row(struct bench *bench, enum way way, size_t tokens) {
    struct client_region region = {0};
    struct request_options plain = {.layer = bench->layer, .hidden = bench->hidden, .tokens = tokens}, options = plain;
    if (WAYS[way].in_region) {
        open_region(bench, &options, &region);
        options.region = &region;
    }
    struct request asked = request_create(&options), on_wire = request_create(&plain);
    measure(bench, way, (const struct request *[]){&asked, WAYS[way].echo_in_region ? &asked : &on_wire});
    if (!request_was_answered(&asked)) {
        fprintf(stderr, "service-cost: the output in the region is wrong: without experts it must be zeros\n");
        exit(1);
    }
    print_row(bench, way, tokens, &asked);
    free(asked.bytes.data);
    free(on_wire.bytes.data);
    client_region_close(&region);
}

static void side_init(struct side *side, const char *address, const char *pid) {
    side->address = address;
    side->latency_ns = malloc(CALLS_MAX * sizeof *side->latency_ns);
    INVARIANT(side->latency_ns);
    if (clock_getcpuclockid((pid_t)strtol(pid, NULL, 10), &side->cpu) != 0) {
        fprintf(stderr, "service-cost: no process %s\n", pid);
        exit(69);
    }
}

static bool is_asked(const char *ways, enum way way) {
    size_t length = strlen(WAYS[way].name);
    for (const char *at = strstr(ways, WAYS[way].name); at; at = strstr(at + length, WAYS[way].name)) {
        if ((at == ways || at[-1] == ',') && (at[length] == ',' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static void run_rows(struct bench *bench, char **argv) {
    const char *separator = "[";
    for (int way = 0; way < WAY_COUNT; way++) {
        for (char **tokens = argv + TOKENS_FROM; is_asked(argv[WAYS_AT], (enum way)way) && *tokens; tokens++) {
            printf("%s", separator);
            separator = ",\n ";
            run_row(bench, (enum way)way, strtoul(*tokens, NULL, 10));
            fflush(stdout);
        }
    }
    printf("]\n");
}

int main(int argc, char **argv) {
    if (argc <= TOKENS_FROM) {
        fprintf(stderr, "usage: %s DAEMON_ADDRESS DAEMON_PID ECHO_ADDRESS ECHO_PID LAYER HIDDEN SECONDS WAYS TOKENS…\n", argv[0]);
        return 64;
    }
    static struct bench bench;
    side_init(&bench.sides[0], argv[1], argv[2]);
    side_init(&bench.sides[1], argv[3], argv[4]);
    bench.layer = (uint32_t)strtoul(argv[5], NULL, 10);
    bench.hidden = (uint32_t)strtoul(argv[6], NULL, 10);
    bench.seconds = strtod(argv[7], NULL);
    caller_process();
    if (err_is(client_create(argv[1], &bench.client))) {
        fprintf(stderr, "service-cost: %s\n", expertd_err_message());
        return 64;
    }
    run_rows(&bench, argv);
    client_destroy(bench.client);
    free(bench.sides[0].latency_ns);
    free(bench.sides[1].latency_ns);
    grpc_shutdown_blocking();
    return 0;
}
