// The service's own cost: calls that compute nothing (every id is -1) against the daemon, beside a bare gRPC echo of the same
// bytes. Both run already; this program calls them in turn, a block here and a block there, so that whatever else the machine does
// falls on both. Prints a JSON array, a row for each way and number of tokens. `run` beside it starts all three.
//
//     service-cost DAEMON_ADDRESS DAEMON_PID ECHO_ADDRESS ECHO_PID LAYER HIDDEN SECONDS TOKENS…
#include <grpc/grpc.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "proto/client_wire.h"
#include "tests/bench/service_cost/caller.h"

enum { TOP_K = 8, ROUNDS = 20, CALLS_MAX = 1 << 20, WARM_UP_CALLS = 50, SIDES = 2, TOKENS_FROM = 8, PATH_MAX_BYTES = 64 };

// The ways in which the tensors travel. Shared memory joins them here once there is OpenRegion: the echo stays the unary one.
enum way { WAY_UNARY, WAY_STREAM, WAY_COUNT };
static const char *const WAY_NAMES[WAY_COUNT] = {"unary", "stream"};
static const char *const DAEMON_METHODS[WAY_COUNT] = {"/expertd.v1.Experts/Forward", "/expertd.v1.Experts/Stream"};

struct side {
    const char *address;
    clockid_t cpu; // of its process: user and system time
    struct caller *caller;
    size_t calls;
    int64_t cpu_ns;
    uint32_t *latency_ns; // [CALLS_MAX]
    double round_p50[ROUNDS], round_cpu[ROUNDS];
};

struct bench {
    struct side sides[SIDES]; // the daemon, the echo
    uint32_t layer, hidden;
    double seconds; // of a row
};

static int64_t cpu_now_ns(const struct side *side) {
    struct timespec t;
    INVARIANT(clock_gettime(side->cpu, &t) == 0); // the process has ended where this fails
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

// Sorts in place.
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

// ---- the request and its answer

static struct wire_tensor tensor_of(enum dtype dtype, uint64_t rows, uint64_t columns, const void *data) {
    return (struct wire_tensor){.present = true,
                                .view = {.dtype = dtype,
                                         .rank = 2,
                                         .shape = {(int64_t)rows, (int64_t)columns},
                                         .data = data,
                                         .bytes = rows * columns * dtype_size(dtype)}};
}

static struct proto_bytes encode_request(const struct bench *bench, size_t tokens) {
    size_t choices = tokens * TOP_K;
    int32_t *ids = malloc(choices * sizeof *ids);
    float *weights = malloc(choices * sizeof *weights);
    uint16_t *hidden = malloc(tokens * bench->hidden * sizeof *hidden);
    INVARIANT(ids && weights && hidden);
    for (size_t i = 0; i < choices; i++) {
        ids[i] = -1;
        weights[i] = 0.125F;
    }
    for (size_t i = 0; i < tokens * bench->hidden; i++) {
        hidden[i] = (uint16_t)(0x3f80 + i % 64); // BF16 near 1
    }
    struct wire_request request = {
        .id = 1,
        .layer = bench->layer,
        .routing = WIRE_ROUTING_ROUTES,
        .ids = tensor_of(DTYPE_I32, tokens, TOP_K, ids),
        .weights = tensor_of(DTYPE_F32, tokens, TOP_K, weights),
        .hidden = tensor_of(DTYPE_BF16, tokens, bench->hidden, hidden),
    };
    struct proto_bytes bytes;
    INVARIANT(!err_is(wire_encode_request(&request, &bytes)));
    free(ids);
    free(weights);
    free(hidden);
    return bytes;
}

// The daemon's answer has 8-byte weights_id, epoch and two dimensions before its output: what they take is asked of its encoder.
static size_t answer_bytes(const struct bench *bench, size_t tokens) {
    struct wire_response response = {.id = 1,
                                     .weights_id = 1,
                                     .placement_epoch = 1,
                                     .has_output = true,
                                     .output_dtype = DTYPE_BF16,
                                     .output_shape = {tokens, bench->hidden}};
    uint8_t header[WIRE_HEADER_MAX];
    return wire_encode_response(&response, header, sizeof header) + tokens * bench->hidden * dtype_size(DTYPE_BF16);
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

static void run_row(struct bench *bench, enum way way, size_t tokens) {
    struct proto_bytes request = encode_request(bench, tokens);
    char echo_method[PATH_MAX_BYTES];
    struct caller_options options = {.request = request.data,
                                     .request_bytes = request.length,
                                     .answer_bytes = answer_bytes(bench, tokens),
                                     .streamed = way == WAY_STREAM};
    snprintf(echo_method, sizeof echo_method, "/%s/%zu", WAY_NAMES[way], options.answer_bytes);
    for (size_t i = 0; i < SIDES; i++) {
        options.address = bench->sides[i].address;
        options.method = i == 0 ? DAEMON_METHODS[way] : echo_method;
        open_side(&bench->sides[i], &options);
    }
    int64_t block_ns = (int64_t)(bench->seconds * NS_PER_S / (SIDES * ROUNDS));
    for (size_t round = 0; round < ROUNDS; round++) {
        for (size_t i = 0; i < SIDES; i++) {
            run_block(&bench->sides[(i + round) % SIDES], round, block_ns);
        }
    }
    struct side *daemon = &bench->sides[0], *echo = &bench->sides[1];
    printf("{\"way\": \"%s\", \"tokens\": %zu, \"request_bytes\": %zu, \"answer_bytes\": %zu,", WAY_NAMES[way], tokens,
           request.length, options.answer_bytes);
    print_side("daemon", daemon);
    print_side("echo", echo);
    double p99_ratio = percentile_us(daemon->latency_ns, daemon->calls, 0.99) / percentile_us(echo->latency_ns, echo->calls, 0.99);
    printf(" \"ratio_p50\": %.3f, \"ratio_p99\": %.3f, \"ratio_cpu\": %.3f}", median_of_ratios(daemon->round_p50, echo->round_p50),
           p99_ratio, median_of_ratios(daemon->round_cpu, echo->round_cpu));
    for (size_t i = 0; i < SIDES; i++) {
        caller_destroy(bench->sides[i].caller);
    }
    free(request.data);
}

static void side_init(struct side *side, const char *address, const char *pid) {
    side->address = address;
    side->latency_ns = malloc(CALLS_MAX * sizeof *side->latency_ns);
    INVARIANT(side->latency_ns);
    if (clock_getcpuclockid((pid_t)strtol(pid, NULL, 10), &side->cpu) != 0) {
        fprintf(stderr, "service-cost: there is no process %s\n", pid);
        exit(69);
    }
}

int main(int argc, char **argv) {
    if (argc <= TOKENS_FROM) {
        fprintf(stderr, "usage: %s DAEMON_ADDRESS DAEMON_PID ECHO_ADDRESS ECHO_PID LAYER HIDDEN SECONDS TOKENS…\n", argv[0]);
        return 64;
    }
    static struct bench bench;
    side_init(&bench.sides[0], argv[1], argv[2]);
    side_init(&bench.sides[1], argv[3], argv[4]);
    bench.layer = (uint32_t)strtoul(argv[5], NULL, 10);
    bench.hidden = (uint32_t)strtoul(argv[6], NULL, 10);
    bench.seconds = strtod(argv[7], NULL);
    caller_process();
    for (int way = 0; way < WAY_COUNT; way++) {
        for (int i = TOKENS_FROM; i < argc; i++) {
            printf("%s", way == 0 && i == TOKENS_FROM ? "[" : ",\n ");
            run_row(&bench, (enum way)way, strtoul(argv[i], NULL, 10));
            fflush(stdout);
        }
    }
    printf("]\n");
    free(bench.sides[0].latency_ns);
    free(bench.sides[1].latency_ns);
    grpc_shutdown_blocking();
    return 0;
}
