#include "daemon/grpc/queue/tuning.h"

#include <grpc/support/log.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "daemon/grpc/security/rpc_tls.h"
#include "daemon/log/log.h"

// glibc refuses a threshold above half a heap's size, which is 32 MiB on 64-bit machines.
enum {
    MIB = 1 << 20,
    MMAP_THRESHOLD = 32 * MIB,
    TRIM_THRESHOLD = 2000000000,
    TOP_PAD = 64 * MIB,
    READ_CHUNK = MIB,
    LOOKAHEAD = 65536,
    KEEPALIVE_TIME_MS = 30000,
    KEEPALIVE_TIMEOUT_MS = 15000,
    PING_INTERVAL_MIN_MS = 5000,
    DIAL_LOOKAHEAD = MIB, // the peers that this process dials are few
};

// Most of gRPC's errors are caused by peers (a broken connection, an unsupported encoding). Peers must not be able to fill the log,
// so these are logged for debugging only. A failed assertion, which aborts the process, is logged as an error.
static void on_log(gpr_log_func_args *args) {
    char text[1024];
    bool fatal = strncmp(args->message, "assertion failed", strlen("assertion failed")) == 0;
    log_line(fatal ? LOG_LEVEL_ERROR : LOG_LEVEL_DEBUG, "grpc", "message=%s", log_quote(args->message, text, sizeof text));
}

static void tune(void) {
    gpr_set_log_function(on_log);
    // Reads of 1 MiB instead of 64 KiB: a 16 MB message has some ten slices instead of 290. A value set by the operator is kept.
    setenv("GRPC_EXPERIMENTS", "-tcp_read_chunks", 0);
    // The only strategy with which the threads of one server can poll the sockets of another (rpc_options.watcher).
    setenv("GRPC_POLL_STRATEGY", "epoll1", 1);
    // Without these, glibc returns the pages of each large message to the kernel, and the next message faults them in again.
    mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD);
    mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD);
    mallopt(M_TOP_PAD, TOP_PAD);
}

void tuning_process(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, tune);
}

// gRPC does not write to the key; its type lacks the const.
static grpc_arg integer(const char *key, int value) {
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)(uintptr_t)key, .value.integer = value};
}

static grpc_arg quota_arg(grpc_resource_quota *quota) {
    return (grpc_arg){.type = GRPC_ARG_POINTER,
                      .key = (char *)(uintptr_t)GRPC_ARG_RESOURCE_QUOTA,
                      .value.pointer = {.p = quota, .vtable = grpc_resource_quota_arg_vtable()}};
}

static grpc_channel_args store(struct tuning *tuning, const grpc_arg *args, size_t count) {
    INVARIANT(count <= TUNING_ARGS);
    for (size_t i = 0; i < count; i++) {
        tuning->args[i] = args[i];
    }
    return (grpc_channel_args){.num_args = count, .args = tuning->args};
}

grpc_channel_args tuning_server_args(struct tuning *tuning, unsigned max_calls, grpc_resource_quota *quota) {
    int streams = max_calls > INT_MAX / 2 ? INT_MAX : (int)(2 * max_calls);
    const grpc_arg args[] = {
        integer(GRPC_ARG_TCP_READ_CHUNK_SIZE, READ_CHUNK),
        integer(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, READ_CHUNK),
        integer(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 * READ_CHUNK),
        // The transport receives this much of a message that was not requested yet, and no more.
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        integer(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, LOOKAHEAD),
        // gRPC checks its own limit only when all of the message has arrived: it saves no memory, and its error has no details.
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1),
        integer(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        // No compression is offered, and no message is decompressed.
        integer(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        // Keepalive detects half-open connections.
        integer(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_TIME_MS),
        integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        integer(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        // Clients may ping more often than gRPC's default of five minutes.
        integer(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, PING_INTERVAL_MIN_MS),
        // Of TLS connections: the TLS handshake and the peer's HTTP/2 settings together.
        integer(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, RPC_HANDSHAKE_MS),
        // Greater than max_calls, so that a client with one connection gets a refusal instead of waiting for a stream.
        integer(GRPC_ARG_MAX_CONCURRENT_STREAMS, streams),
        quota_arg(quota),
    };
    return store(tuning, args, sizeof args / sizeof *args);
}

grpc_channel_args tuning_dial_args(struct tuning *tuning, const struct tuning_dial *dial) {
    bool pings = dial->keepalive_time_ms > 0;
    const grpc_arg args[] = {
        integer(GRPC_ARG_TCP_READ_CHUNK_SIZE, READ_CHUNK),
        integer(GRPC_ARG_TCP_MIN_READ_CHUNK_SIZE, READ_CHUNK),
        integer(GRPC_ARG_TCP_MAX_READ_CHUNK_SIZE, 4 * READ_CHUNK),
        integer(GRPC_ARG_HTTP2_BDP_PROBE, 0),
        integer(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, DIAL_LOOKAHEAD),
        integer(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, -1),
        integer(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        integer(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        integer(GRPC_ARG_KEEPALIVE_TIME_MS, pings ? (int)dial->keepalive_time_ms : INT_MAX),
        integer(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, pings ? (int)dial->keepalive_timeout_ms : INT_MAX),
        integer(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0), // no limit
        integer(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, dial->reconnect_ms),
        // A connection of its own for each channel, to the address itself, without settings from DNS.
        integer(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        integer(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        integer(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        integer(GRPC_ARG_ENABLE_RETRIES, 0),
        quota_arg(dial->quota),
    };
    return store(tuning, args, sizeof args / sizeof *args);
}
