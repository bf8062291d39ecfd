// The simulated GPU itself: each mistake that it must detect is made once; memory, streams and planted failures.
#include "tests/unit/kernels/kernel_test.h"

#include "faulty_kernels.h"
#include "kernels/cuda/sim/runtime.h"

enum { TENSOR_BYTES = 64 * 64 * 2 };

struct gpu {
    cudaStream_t stream;
    void *tensor, *out;
    uint16_t *host_tensor;
    uint32_t *host_out;
};

static int make_gpu(void **state) {
    static struct gpu gpu;
    bool made = cudaStreamCreateWithFlags(&gpu.stream, cudaStreamNonBlocking) == cudaSuccess &&
                cudaMalloc(&gpu.tensor, TENSOR_BYTES) == cudaSuccess && cudaMalloc(&gpu.out, 4) == cudaSuccess &&
                cudaHostAlloc((void **)&gpu.host_tensor, TENSOR_BYTES, cudaHostAllocDefault) == cudaSuccess &&
                cudaHostAlloc((void **)&gpu.host_out, 4, cudaHostAllocDefault) == cudaSuccess;
    for (size_t i = 0; made && i < TENSOR_BYTES / 2; i++) {
        gpu.host_tensor[i] = 0x3f80;
    }
    *state = &gpu;
    return made ? 0 : -1;
}

static int drop_gpu(void **state) {
    struct gpu *gpu = *state;
    sim_fail_nothing();
    cudaFree(gpu->tensor), cudaFree(gpu->out), cudaFreeHost(gpu->host_tensor), cudaFreeHost(gpu->host_out);
    cudaStreamDestroy(gpu->stream);
    return sim_allocations() == 0 ? 0 : -1;
}

static cudaError_t run(struct gpu *gpu, enum faulty_kernel kind) {
    assert_int_equal(cudaMemcpyAsync(gpu->tensor, gpu->host_tensor, TENSOR_BYTES, cudaMemcpyHostToDevice, gpu->stream),
                     cudaSuccess);
    assert_int_equal(faulty_kernel_launch(kind, gpu->tensor, gpu->out, gpu->stream), cudaSuccess);
    assert_int_equal(cudaMemcpyAsync(gpu->host_out, gpu->out, 4, cudaMemcpyDeviceToHost, gpu->stream), cudaSuccess);
    return cudaStreamSynchronize(gpu->stream);
}

static void a_load_arrives_only_when_it_is_waited_for(void **state) {
    struct gpu *gpu = *state;
    assert_int_equal(run(gpu, FAULTY_NONE), cudaSuccess);
    assert_int_equal(*gpu->host_out, 64 * 64);
    assert_int_equal(run(gpu, FAULTY_DOES_NOT_WAIT), cudaSuccess);
    assert_int_equal(*gpu->host_out, 0); // shared memory is poisoned
}

static void every_mistake_is_reported(void **state) {
    struct gpu *gpu = *state;
    static const struct {
        enum faulty_kernel kind;
        const char *message;
    } MISTAKES[] = {
        {FAULTY_WAITS_FOREVER, "deadlock: 128 threads"},
        {FAULTY_ARRIVES_TOO_OFTEN, "more arrivals at an mbarrier than its count of 1"},
        {FAULTY_USES_NO_BARRIER, "an mbarrier that was not initialised"},
        {FAULTY_LOADS_UNALIGNED, "no multiple of 1024"},
        {FAULTY_STORES_UNFENCED, "without fence.proxy.async"},
        {FAULTY_ENDS_TOO_EARLY, "ended while operations"},
        {FAULTY_DIVERGES, "others of its warp execute bar.warp.sync"},
        {FAULTY_DISAGREES, "waits for 64 threads, others for 128"},
        {FAULTY_MULTIPLIES_UNFENCED, "wgmma reads shared memory that was written without fence.proxy.async"},
        {FAULTY_FENCES_TOO_EARLY, "wgmma reads shared memory that was written without fence.proxy.async"},
        {FAULTY_RELEASES_TOO_EARLY, "wgmma reads shared memory that was written without fence.proxy.async"},
        {FAULTY_WRITES_OPERAND, "registers that wgmma reads were written before it was waited for"},
        {FAULTY_LOADS_BYTES_UNALIGNED, "the copy engine is given 16 bytes that are not aligned to 16"},
        {FAULTY_COPIES_ARRIVE_TOO_OFTEN, "more arrivals of copies at an mbarrier than its count of 1"},
        {FAULTY_MIXES_COPIES, "already committed to groups"},
        {FAULTY_COPIES_UNALIGNED, "a copy of 16 of 16 bytes that is not aligned"},
        {FAULTY_LEAVES_COPIES, "ended while operations"},
        {FAULTY_READS_MATRIX_UNALIGNED, "ldmatrix of a row that is not aligned"},
        {FAULTY_TAKES_TOO_MANY_REGISTERS, "deadlock: 128 threads"},
        {FAULTY_RAISES_REGISTERS_DOWN, "setmaxnreg to 40 registers from 248"},
        {FAULTY_TRAPS, "trap"},
    };
    for (size_t i = 0; i < COUNT_OF(MISTAKES); i++) {
        assert_int_equal(run(gpu, MISTAKES[i].kind), cudaErrorLaunchFailure);
        if (!strstr(sim_fault(), MISTAKES[i].message)) {
            fail_msg("kernel %d: \"%s\" does not contain \"%s\"", (int)MISTAKES[i].kind, sim_fault(), MISTAKES[i].message);
        }
        // Every later call for the device fails, as on a real GPU.
        assert_int_equal(cudaMemsetAsync(gpu->out, 0, 4, gpu->stream), cudaErrorLaunchFailure);
        sim_fail_nothing();
        cudaGetLastError();
    }
}

static void a_stream_executes_nothing_before_it_is_waited_for(void **state) {
    struct gpu *gpu = *state;
    *gpu->host_out = 7;
    assert_int_equal(cudaMemcpyAsync(gpu->out, gpu->host_out, 4, cudaMemcpyHostToDevice, gpu->stream), cudaSuccess);
    *gpu->host_out = 8; // too early: the copy has not read it yet
    assert_int_equal(cudaMemcpyAsync(gpu->host_out, gpu->out, 4, cudaMemcpyDeviceToHost, gpu->stream), cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(gpu->stream), cudaSuccess);
    assert_int_equal(*gpu->host_out, 8);
}

static void copies_past_an_allocation_and_from_pageable_memory_are_refused(void **state) {
    struct gpu *gpu = *state;
    uint32_t pageable = 0;
    assert_int_equal(cudaMemcpyAsync(gpu->out, gpu->host_tensor, 8, cudaMemcpyHostToDevice, gpu->stream), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(gpu->out, &pageable, 4, cudaMemcpyHostToDevice, gpu->stream), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpyAsync(gpu->host_out, gpu->host_tensor, 4, cudaMemcpyDeviceToHost, gpu->stream),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaFree((char *)gpu->tensor + 4), cudaErrorInvalidValue);
}

static void memory_is_limited_and_planted_failures_occur(void **state) {
    (void)state;
    void *memory;
    size_t available, all;
    sim_memory(1 << 20);
    assert_int_equal(cudaMalloc(&memory, 2 << 20), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMemGetInfo(&available, &all), cudaSuccess);
    assert_int_equal(all, 1 << 20);
    assert_true(available < all); // the fixture has allocated some
    sim_memory((size_t)64 << 30);
    sim_fail("cudaMalloc", 1, cudaErrorUnknown);
    assert_int_equal(cudaMalloc(&memory, 16), cudaSuccess);
    cudaFree(memory);
    assert_int_equal(cudaMalloc(&memory, 16), cudaErrorUnknown);
    assert_int_equal(cudaMalloc(&memory, 16), cudaSuccess);
    cudaFree(memory);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_load_arrives_only_when_it_is_waited_for, make_gpu, drop_gpu),
        cmocka_unit_test_setup_teardown(every_mistake_is_reported, make_gpu, drop_gpu),
        cmocka_unit_test_setup_teardown(a_stream_executes_nothing_before_it_is_waited_for, make_gpu, drop_gpu),
        cmocka_unit_test_setup_teardown(copies_past_an_allocation_and_from_pageable_memory_are_refused, make_gpu, drop_gpu),
        cmocka_unit_test_setup_teardown(memory_is_limited_and_planted_failures_occur, make_gpu, drop_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
