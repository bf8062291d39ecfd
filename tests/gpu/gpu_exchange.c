// gpu-exchange --device cuda[:N]|sim: two ranks exchange rows over NCCL: exact counts, sides without rows, a rank that stops, a new
// communicator. On a GPU the ranks are two processes that share it. NCCL treats them as two machines (NCCL_HOSTID), so this shows
// correctness, not speed. In simulation, which is limited to one process, they are two threads with one device each. One line per
// check; the last line is "N passed, N failed". Exit status 1 if a check failed, 69 if something is missing.
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "expertd/kernels/devices.h"
#include "kernels/device/device_links.h"

enum { RANKS = 2, BYTES_MAX = 1 << 22, JOIN_S = 60, TRANSFER_S = 10, SILENT_MS = 500 };

// One rank: a thread or a process.
struct rank {
    struct expertd_devices_request request; // one device
    int number, peer;                       // peer: a socket to the other rank
    struct expertd_devices *devices;
    struct device_link *link;
    struct arena host; // pinned: BYTES_MAX to send, then BYTES_MAX received
    char *memory;      // the same on the device
    int passed, failed;
};

static void report(struct rank *r, int good, const char *finding) {
    printf("%s: rank %d: %s\n", good ? "ok" : "FAILED", r->number, finding);
    *(good ? &r->passed : &r->failed) += 1;
}

// Ends the process: further checks are impossible.
static void give_up(const struct rank *r, const char *why) {
    printf("FAILED: rank %d: %s\n", r->number, why);
    fflush(stdout);
    _exit(69);
}

static void must_succeed(const struct rank *r, enum expertd_device_code code, const struct expertd_device_error *error) {
    if (code != EXPERTD_DEVICE_OK) {
        give_up(r, error->message);
    }
}

static const struct expertd_device_table *table_of(const struct rank *r) {
    return r->devices->table;
}

static struct expertd_device *device_of(const struct rank *r) {
    return r->devices->all[0];
}

static void short_sleep(void) {
    nanosleep(&(struct timespec){.tv_nsec = 50 * NS_PER_US}, NULL);
}

// ---- messages between the ranks without NCCL

static void send_message(const struct rank *r, const void *data, size_t bytes) {
    if (write(r->peer, data, bytes) != (ssize_t)bytes) {
        give_up(r, "the other rank is gone");
    }
}

static void receive_message(const struct rank *r, void *data, size_t bytes) {
    struct pollfd wait = {.fd = r->peer, .events = POLLIN};
    for (size_t got = 0; got < bytes;) {
        ssize_t more = poll(&wait, 1, JOIN_S * 1000) == 1 ? read(r->peer, (char *)data + got, bytes - got) : 0;
        if (more <= 0) {
            give_up(r, "the other rank is gone");
        }
        got += (size_t)more;
    }
}

// Waits for the other rank.
static void synchronise(const struct rank *r) {
    char byte = 0;
    send_message(r, &byte, 1);
    receive_message(r, &byte, 1);
}

// ---- the communicator

// Waits until NCCL has finished its operation. False: the deadline has passed. An error ends the process.
static int settle(const struct rank *r, int64_t deadline_ns) {
    for (int busy = 1; busy;) {
        struct expertd_device_error error;
        must_succeed(r, table_of(r)->links->settled(r->link, &busy, &error), &error);
        if (busy && clock_now_ns() > deadline_ns) {
            return 0;
        }
        short_sleep();
    }
    return 1;
}

static int64_t after_ms(int64_t ms) {
    return clock_add_ns(clock_now_ns(), ms * NS_PER_MS);
}

static void join(struct rank *r) {
    struct expertd_device_error error;
    struct device_link_id id;
    if (r->number == 0) {
        must_succeed(r, table_of(r)->links->make_id(&id, &error), &error);
        send_message(r, &id, sizeof id);
    } else {
        receive_message(r, &id, sizeof id);
    }
    must_succeed(r, table_of(r)->links->join(device_of(r), &id, (uint32_t)r->number, RANKS, &r->link, &error), &error);
    report(r, settle(r, after_ms(JOIN_S * 1000)), "joined");
}

// ---- transfers

static int ended(const struct rank *r) {
    struct expertd_device_error error;
    int out = 0;
    must_succeed(r, table_of(r)->finished(device_of(r), &out, &error), &error);
    return out;
}

static int wait_until(const struct rank *r, int64_t deadline_ns) {
    struct expertd_device_error error;
    must_succeed(r, table_of(r)->mark(device_of(r), &error), &error);
    while (!ended(r)) {
        if (clock_now_ns() > deadline_ns) {
            return 0;
        }
        short_sleep();
    }
    return 1;
}

static unsigned char byte_of(int rank, size_t round, size_t at) {
    return (unsigned char)(at * 31 + at / 251 + round * 7 + (size_t)rank * 101);
}

// Puts the round's transfers into the stream. Both ranks omit a transfer of no bytes.
static void transfer(const struct rank *r, size_t round, size_t out_bytes, size_t in_bytes) {
    struct expertd_device_error error;
    struct device_transfer all[2];
    size_t count = 0;
    unsigned char *out = (unsigned char *)r->host.base;
    for (size_t i = 0; i < out_bytes; i++) {
        out[i] = byte_of(r->number, round, i);
    }
    memset(out + BYTES_MAX, 0xee, in_bytes);
    must_succeed(r, table_of(r)->copy(device_of(r), EXPERTD_DEVICE_UPLOAD, r->memory, out, out_bytes, &error), &error);
    if (out_bytes > 0) {
        all[count++] = (struct device_transfer){.memory = r->memory, .bytes = out_bytes, .peer = (uint32_t)!r->number};
    }
    if (in_bytes > 0) {
        all[count++] = (struct device_transfer){
            .memory = r->memory + BYTES_MAX, .bytes = in_bytes, .peer = (uint32_t)!r->number, .incoming = 1};
    }
    if (count > 0) {
        must_succeed(r, table_of(r)->links->transfer(r->link, all, count, &error), &error);
    }
}

static void exchange(struct rank *r, size_t round, const size_t bytes[RANKS]) {
    struct expertd_device_error error;
    size_t in_bytes = bytes[!r->number], wrong = 0;
    const unsigned char *in = (const unsigned char *)r->host.base + BYTES_MAX;
    char text[120];
    transfer(r, round, bytes[r->number], in_bytes);
    int arrived = settle(r, after_ms(TRANSFER_S * 1000));
    must_succeed(
        r,
        table_of(r)->copy(device_of(r), EXPERTD_DEVICE_DOWNLOAD, r->host.base + BYTES_MAX, r->memory + BYTES_MAX, in_bytes, &error),
        &error);
    arrived = arrived && wait_until(r, after_ms(TRANSFER_S * 1000));
    for (size_t i = 0; arrived && i < in_bytes; i++) {
        wrong += in[i] != byte_of(!r->number, round, i);
    }
    snprintf(text, sizeof text, "%zu bytes sent, %zu received, %zu of them wrong%s", bytes[r->number], in_bytes, wrong,
             arrived ? "" : ", not received in time");
    report(r, arrived && wrong == 0, text);
}

// Rank 1 does not answer. Rank 0 must not see its transfers end, and its stream must continue after an abort. Then both join again.
static void survive_silence(struct rank *r) {
    if (r->number == 0) {
        transfer(r, 0, 64, 64);
        int answered = settle(r, after_ms(SILENT_MS)) && wait_until(r, after_ms(SILENT_MS));
        report(r, !answered, "transfers with a silent rank do not end");
    }
    synchronise(r);
    table_of(r)->links->abort(r->link);
    r->link = NULL;
    report(r, wait_until(r, after_ms(TRANSFER_S * 1000)), "the stream continues after the abort");
    synchronise(r);
    join(r);
}

static void leave(struct rank *r) {
    struct expertd_device_error error;
    must_succeed(r, table_of(r)->links->leave(r->link, &error), &error);
    report(r, settle(r, after_ms(TRANSFER_S * 1000)), "left");
    table_of(r)->links->destroy(r->link);
}

static void prepare(struct rank *r) {
    struct expertd_device_error error;
    char version[DEVICE_LINKS_TEXT_MAX];
    if (err_is(expertd_devices_open(&r->request, &r->devices)) || err_is(arena_init(&r->host, 2 * BYTES_MAX))) {
        give_up(r, expertd_err_message());
    }
    must_succeed(r, table_of(r)->links->load(version, &error), &error);
    printf("rank %d: %s, NCCL %s\n", r->number, r->devices->facts.name, version);
    must_succeed(r, table_of(r)->pin(device_of(r), r->host.base, r->host.bytes, &error), &error);
    must_succeed(r, table_of(r)->reserve(device_of(r), 2 * BYTES_MAX, (void **)&r->memory, &error), &error);
}

static void *run(void *context) {
    static const size_t ROUNDS[][RANKS] = {{64, 64}, {4096, 12288}, {0, 4096}, {4096, 0}, {0, 0}, {BYTES_MAX, 192}, {1, 3}};
    struct rank *r = context;
    prepare(r);
    join(r);
    for (size_t i = 0; i < sizeof ROUNDS / sizeof *ROUNDS; i++) {
        exchange(r, i, ROUNDS[i]);
    }
    survive_silence(r);
    exchange(r, 100, ROUNDS[1]);
    leave(r);
    table_of(r)->release(device_of(r), r->memory);
    table_of(r)->unpin(device_of(r), r->host.base);
    arena_deinit(&r->host);
    expertd_devices_close(r->devices);
    return NULL;
}

// ---- threads, or processes

static int print_result(int passed, int failed) {
    printf("%d passed, %d failed\n", passed, failed);
    return failed > 0;
}

static int run_threads(int sockets[RANKS]) {
    struct rank ranks[RANKS];
    pthread_t threads[RANKS];
    for (int i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.request = {.kind = "sim", .count = 1, .numbers = {(uint32_t)i}}, .number = i, .peer = sockets[i]};
        if (pthread_create(&threads[i], NULL, run, &ranks[i]) != 0) {
            give_up(&ranks[i], "cannot start a thread");
        }
    }
    for (int i = 0; i < RANKS; i++) {
        pthread_join(threads[i], NULL);
    }
    return print_result(ranks[0].passed + ranks[1].passed, ranks[0].failed + ranks[1].failed);
}

// Makes NCCL treat two processes on one GPU as two machines that communicate over the loopback interface.
static void imitate_two_machines(int rank) {
    char host[32];
    snprintf(host, sizeof host, "gpu-exchange-%d", rank);
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
    setenv("NCCL_NET", "Socket", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    setenv("NCCL_MNNVL_ENABLE", "0", 1);
}

// Forks before CUDA is used. Each child is a rank and prints its result.
static int run_processes(const struct expertd_devices_request *request, int sockets[RANKS]) {
    pid_t children[RANKS];
    int worst = 0;
    for (int i = 0; i < RANKS; i++) {
        fflush(stdout);
        children[i] = fork();
        if (children[i] == 0) {
            struct rank rank = {.request = *request, .number = i, .peer = sockets[i]};
            close(sockets[!i]);
            imitate_two_machines(i);
            run(&rank);
            int status = print_result(rank.passed, rank.failed);
            fflush(stdout);
            _exit(status);
        }
    }
    close(sockets[0]);
    close(sockets[1]);
    for (int i = 0; i < RANKS; i++) {
        int status = 0;
        if (children[i] < 0 || waitpid(children[i], &status, 0) < 0 || !WIFEXITED(status)) {
            worst = worst ? worst : 1;
        } else if (WEXITSTATUS(status) > worst) {
            worst = WEXITSTATUS(status);
        }
    }
    printf("%s\n", worst ? "FAILED: a rank" : "both ranks passed");
    return worst;
}

int main(int argc, char **argv) {
    int sockets[RANKS];
    struct expertd_devices_request request;
    if (argc != 3 || strcmp(argv[1], "--device") != 0 || err_is(expertd_devices_parse(argv[2], &request)) || request.count > 1) {
        fprintf(stderr, "usage: gpu-exchange --device cuda[:N]|sim\n");
        return 64;
    }
    request.count = 1; // "cuda" means all GPUs: use the first one
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) {
        perror("gpu-exchange: socketpair");
        return 70;
    }
    return strcmp(request.kind, "sim") == 0 ? run_threads(sockets) : run_processes(&request, sockets);
}
