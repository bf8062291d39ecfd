// The simulated NCCL itself: transfers arrive, not too early, and each mistake that it must detect is made once.
#include "tests/unit/kernels/kernel_test.h"

#include "kernels/cuda/sim/nccl.h"

enum { RANKS = 3, BYTES = 64, POLLS_MAX = 8 };

struct clique {
    ncclComm_t comm[RANKS];
    cudaStream_t stream[RANKS];
    cudaEvent_t event[RANKS];
    unsigned char *device[RANKS], *host[RANKS]; // device memory, and pinned memory
};

static void start_joining(struct clique *c) {
    ncclUniqueId id;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
        cudaSetDevice(r);
        assert_int_equal(ncclCommInitRankConfig(&c->comm[r], RANKS, id, r, &config), ncclInProgress);
    }
    assert_int_equal(ncclGroupEnd(), ncclInProgress);
}

// Polls until the state is no longer ncclInProgress, and returns it. The first polls must return ncclInProgress.
static ncclResult_t settled(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    int polls = 0;
    for (; state == ncclInProgress && polls < POLLS_MAX; polls++) {
        assert_int_equal(ncclCommGetAsyncError(comm, &state), ncclSuccess);
    }
    assert_true(state != ncclSuccess || polls > 2);
    return state;
}

static void settle_all(struct clique *c) {
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(settled(c->comm[r]), ncclSuccess);
    }
}

static int make(void **state) {
    static struct clique c;
    c = (struct clique){0};
    bool made = true;
    for (int r = 0; r < RANKS; r++) {
        cudaSetDevice(r);
        made = made && cudaStreamCreateWithFlags(&c.stream[r], cudaStreamNonBlocking) == cudaSuccess &&
               cudaEventCreateWithFlags(&c.event[r], cudaEventDisableTiming) == cudaSuccess &&
               cudaMalloc((void **)&c.device[r], BYTES) == cudaSuccess &&
               cudaHostAlloc((void **)&c.host[r], BYTES, cudaHostAllocDefault) == cudaSuccess;
        memset(c.host[r], r + 1, BYTES);
    }
    start_joining(&c);
    settle_all(&c);
    *state = &c;
    return made ? 0 : -1;
}

static void abort_all(struct clique *c) {
    for (int r = 0; r < RANKS; r++) {
        if (c->comm[r]) {
            (void)ncclCommAbort(c->comm[r]);
        }
        c->comm[r] = NULL;
    }
}

static int drop(void **state) {
    struct clique *c = *state;
    sim_fail_nothing();
    abort_all(c);
    for (int r = 0; r < RANKS; r++) {
        cudaSetDevice(r);
        cudaEventDestroy(c->event[r]), cudaStreamDestroy(c->stream[r]), cudaFree(c->device[r]), cudaFreeHost(c->host[r]);
    }
    cudaGetLastError();
    return sim_allocations() == 0 && sim_nccl_communicators() == 0 ? 0 : -1;
}

static void upload(struct clique *c, int rank) {
    cudaSetDevice(rank);
    assert_int_equal(cudaMemcpyAsync(c->device[rank], c->host[rank], BYTES, cudaMemcpyHostToDevice, c->stream[rank]), cudaSuccess);
}

// Sends rank 0's bytes to every other rank in one group.
static ncclResult_t send_to_all(struct clique *c, size_t sent, size_t expected) {
    upload(c, 0);
    assert_int_equal(ncclGroupStart(), ncclSuccess);
    for (int r = 1; r < RANKS; r++) {
        assert_int_equal(ncclSend(c->device[0], sent, ncclUint8, r, c->comm[0], c->stream[0]), ncclSuccess);
        assert_int_equal(ncclRecv(c->device[r], expected, ncclUint8, 0, c->comm[r], c->stream[r]), ncclSuccess);
    }
    return ncclGroupEnd();
}

// Has the rank's stream executed all of its work?
static cudaError_t query(struct clique *c, int rank) {
    cudaSetDevice(rank);
    assert_int_equal(cudaEventRecord(c->event[rank], c->stream[rank]), cudaSuccess);
    assert_int_equal(cudaEventQuery(c->event[rank]), cudaErrorNotReady); // never at the first query
    return cudaEventQuery(c->event[rank]);
}

static void expect_bytes(struct clique *c, int rank, int value) {
    unsigned char *back = c->host[rank];
    cudaSetDevice(rank);
    memset(back, 0xee, BYTES);
    assert_int_equal(cudaMemcpyAsync(back, c->device[rank], BYTES, cudaMemcpyDeviceToHost, c->stream[rank]), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(c->stream[rank]), cudaSuccess);
    for (size_t i = 0; i < BYTES; i++) {
        assert_int_equal(back[i], value);
    }
}

static void transfers_arrive_when_both_sides_have_started(void **state) {
    struct clique *c = *state;
    assert_int_equal(send_to_all(c, BYTES, BYTES), ncclInProgress);
    settle_all(c);
    for (int r = 1; r < RANKS; r++) {
        expect_bytes(c, r, 1);
    }
    assert_int_equal(cudaStreamSynchronize(c->stream[0]), cudaSuccess);
}

static void a_sender_is_blocked_until_its_peer_receives(void **state) {
    struct clique *c = *state;
    upload(c, 0);
    assert_int_equal(ncclSend(c->device[0], BYTES, ncclUint8, 1, c->comm[0], c->stream[0]), ncclInProgress);
    assert_int_equal(settled(c->comm[0]), ncclSuccess);
    assert_int_equal(query(c, 0), cudaErrorNotReady);
    assert_int_equal(ncclRecv(c->device[1], BYTES, ncclUint8, 0, c->comm[1], c->stream[1]), ncclInProgress);
    assert_int_equal(settled(c->comm[1]), ncclSuccess);
    assert_int_equal(query(c, 0), cudaSuccess);
    expect_bytes(c, 1, 1);
}

static void two_ranks_that_both_send_first_are_blocked(void **state) {
    struct clique *c = *state;
    for (int r = 0; r < 2; r++) {
        upload(c, r);
        assert_int_equal(ncclSend(c->device[r], BYTES, ncclUint8, 1 - r, c->comm[r], c->stream[r]), ncclInProgress);
        assert_int_equal(settled(c->comm[r]), ncclSuccess);
    }
    assert_int_equal(query(c, 0), cudaErrorNotReady);
    assert_int_equal(cudaStreamSynchronize(c->stream[0]), cudaErrorLaunchFailure);
    assert_non_null(strstr(sim_fault(), "would never end"));
}

static void counts_that_differ_are_a_fault(void **state) {
    struct clique *c = *state;
    assert_int_equal(send_to_all(c, BYTES, BYTES / 2), ncclInProgress);
    settle_all(c);
    (void)query(c, 1);
    assert_non_null(strstr(sim_fault(), "rank 0 sends 64 bytes to rank"));
    assert_non_null(strstr(sim_fault(), "expects 32"));
    assert_int_equal(cudaStreamSynchronize(c->stream[1]), cudaErrorLaunchFailure);
}

static void work_before_an_unsettled_group_is_a_fault(void **state) {
    struct clique *c = *state;
    assert_int_equal(send_to_all(c, BYTES, BYTES), ncclInProgress);
    cudaSetDevice(1);
    assert_int_equal(cudaMemsetAsync(c->device[1], 0, BYTES, c->stream[1]), cudaErrorLaunchFailure);
    assert_non_null(strstr(sim_fault(), "ncclCommGetAsyncError"));
}

static void freed_memory_is_a_fault(void **state) {
    struct clique *c = *state;
    assert_int_equal(send_to_all(c, BYTES, BYTES), ncclInProgress);
    settle_all(c);
    cudaSetDevice(1);
    assert_int_equal(cudaFree(c->device[1]), cudaSuccess);
    c->device[1] = NULL;
    (void)query(c, 1);
    assert_non_null(strstr(sim_fault(), "freed"));
}

static void wrong_arguments_are_refused_with_a_reason(void **state) {
    struct clique *c = *state;
    ncclUniqueId id;
    ncclComm_t comm;
    ncclConfig_t blocking = NCCL_CONFIG_INITIALIZER;
    unsigned char *memory = c->device[0];
    assert_int_equal(ncclGetUniqueId(&id), ncclSuccess);
    assert_int_equal(ncclCommInitRankConfig(&comm, 1, id, 0, &blocking), ncclInvalidArgument);
    assert_int_equal(ncclSend(memory, 0, ncclUint8, 1, c->comm[0], c->stream[0]), ncclInvalidArgument);
    assert_non_null(strstr(ncclGetLastError(NULL), "no bytes"));
    assert_int_equal(ncclSend(memory, BYTES, ncclUint8, RANKS, c->comm[0], c->stream[0]), ncclInvalidArgument);
    assert_int_equal(ncclSend(memory, BYTES, ncclUint8, 1, c->comm[0], c->stream[1]), ncclInvalidArgument);
    assert_non_null(strstr(ncclGetLastError(NULL), "stream of another device"));
    assert_int_equal(ncclSend(c->device[1], BYTES, ncclUint8, 1, c->comm[0], c->stream[0]), ncclInvalidArgument);
    assert_int_equal(ncclSend(c->host[0], BYTES, ncclUint8, 1, c->comm[0], c->stream[0]), ncclInvalidArgument);
    assert_int_equal(ncclSend(memory + 1, BYTES, ncclUint8, 1, c->comm[0], c->stream[0]), ncclInvalidArgument);
    assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
    assert_int_equal(ncclCommDestroy(c->comm[0]), ncclInvalidUsage); // not finalised
}

static void an_aborted_communicator_is_gone_and_its_stream_continues(void **state) {
    struct clique *c = *state;
    ncclComm_t gone = c->comm[0];
    ncclResult_t result;
    upload(c, 0);
    assert_int_equal(ncclRecv(c->device[0], BYTES, ncclUint8, 1, c->comm[0], c->stream[0]), ncclInProgress);
    assert_int_equal(settled(c->comm[0]), ncclSuccess);
    assert_int_equal(query(c, 0), cudaErrorNotReady);
    abort_all(c);
    assert_int_equal(query(c, 0), cudaSuccess);
    expect_bytes(c, 0, 0xff); // undefined after an abort
    assert_int_equal(ncclSend(c->device[0], BYTES, ncclUint8, 1, gone, c->stream[0]), ncclInvalidArgument);
    assert_int_equal(ncclCommGetAsyncError(gone, &result), ncclInvalidArgument);
    assert_non_null(strstr(ncclGetLastError(NULL), "does not exist"));
}

static void planted_failures_occur(void **state) {
    struct clique *c = *state;
    sim_fail("ncclStuck", 0, cudaErrorUnknown);
    assert_int_equal(send_to_all(c, BYTES, BYTES), ncclInProgress);
    settle_all(c);
    assert_int_equal(query(c, 1), cudaErrorNotReady);
    assert_int_equal(query(c, 1), cudaErrorNotReady);
    abort_all(c);
    assert_int_equal(query(c, 1), cudaSuccess);
    start_joining(c);
    settle_all(c);
    sim_fail("ncclTransfer", 0, cudaErrorUnknown);
    assert_int_equal(send_to_all(c, BYTES, BYTES), ncclInProgress);
    settle_all(c);
    assert_int_equal(query(c, 1), cudaErrorNotReady);
    assert_int_equal(settled(c->comm[2]), ncclRemoteError); // every rank gets the error
    abort_all(c);
    sim_fail("ncclNeverJoins", 1, cudaErrorUnknown);
    start_joining(c);
    assert_int_equal(settled(c->comm[0]), ncclInProgress);
    abort_all(c);
    sim_fail("ncclJoin", 0, cudaErrorUnknown);
    start_joining(c);
    assert_int_equal(settled(c->comm[0]), ncclSystemError);
}

static void ranks_leave_in_order(void **state) {
    struct clique *c = *state;
    assert_int_equal(ncclGroupStart(), ncclSuccess);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ncclCommFinalize(c->comm[r]), ncclInProgress);
    }
    assert_int_equal(ncclGroupEnd(), ncclInProgress);
    assert_int_equal(ncclCommDestroy(c->comm[0]), ncclInvalidUsage); // still in progress
    settle_all(c);
    for (int r = 0; r < RANKS; r++) {
        assert_int_equal(ncclCommDestroy(c->comm[r]), ncclSuccess);
        c->comm[r] = NULL;
    }
    assert_int_equal(sim_nccl_communicators(), 0);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, make, drop)
    const struct CMUnitTest tests[] = {
        TEST(transfers_arrive_when_both_sides_have_started),
        TEST(a_sender_is_blocked_until_its_peer_receives),
        TEST(two_ranks_that_both_send_first_are_blocked),
        TEST(counts_that_differ_are_a_fault),
        TEST(work_before_an_unsettled_group_is_a_fault),
        TEST(freed_memory_is_a_fault),
        TEST(wrong_arguments_are_refused_with_a_reason),
        TEST(an_aborted_communicator_is_gone_and_its_stream_continues),
        TEST(planted_failures_occur),
        TEST(ranks_leave_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
