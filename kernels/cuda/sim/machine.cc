#include "kernels/cuda/sim/machine.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace {

constexpr size_t MEMORY_BYTES = size_t{64} << 30;
constexpr size_t MEMORY_ALIGN = 512;

struct allocation {
    size_t bytes;
    int device; // or sim::PINNED
};

// The mutex guards all of it and is never held while a kernel runs. Lock order: `driving` (stream.h) first.
struct machine {
    std::mutex mutex;
    std::map<const char *, allocation> memory; // by address
    size_t used[SIM_DEVICES] = {};
    cudaError_t failed[SIM_DEVICES] = {}; // for good
    bool hung_kernel[SIM_DEVICES] = {}, hung_copy[SIM_DEVICES] = {};
    bool uploads_at_once = false;
    size_t memory_bytes = MEMORY_BYTES, nccl_bytes = 0;
    std::string failing; // the call that is to fail; "" for none
    unsigned failing_after = 0;
    cudaError_t failing_as = cudaSuccess;
    std::string fault;
    std::map<std::string, uint64_t> calls;
};

using lock = std::lock_guard<std::mutex>;

machine &the_machine() {
    return sim::singleton<machine>();
}

thread_local int chosen_device;
thread_local cudaError_t last_error;

// The caller holds the mutex.
cudaError_t planted_locked(machine &m, const char *call) {
    m.calls[call]++;
    if (m.failing != call) {
        return cudaSuccess;
    }
    if (m.failing_after > 0) {
        m.failing_after--;
        return cudaSuccess;
    }
    m.failing.clear();
    return m.failing_as;
}

// The allocation that [at, at + bytes) lies in, or NULL. The caller holds the mutex.
const allocation *find_locked(const machine &m, const void *at, size_t bytes) {
    auto above = m.memory.upper_bound(static_cast<const char *>(at));
    if (above == m.memory.begin()) {
        return nullptr;
    }
    const auto &[base, a] = *std::prev(above);
    size_t offset = static_cast<const char *>(at) - base;
    return offset <= a.bytes && bytes <= a.bytes - offset ? &a : nullptr;
}

} // namespace

namespace sim {

int current_device() {
    return chosen_device;
}

void set_device(int device) {
    chosen_device = device;
}

cudaError_t fail(cudaError_t error) {
    last_error = error;
    return error;
}

cudaError_t clear_error() {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

cudaError_t planted(const char *call) {
    machine &m = the_machine();
    lock held(m.mutex);
    return planted_locked(m, call);
}

cudaError_t enter(const char *call) {
    machine &m = the_machine();
    lock held(m.mutex);
    cudaError_t error = planted_locked(m, call);
    return error != cudaSuccess ? error : m.failed[chosen_device];
}

bool hangs(const char *hang, int device) {
    machine &m = the_machine();
    lock held(m.mutex);
    bool &hung = strcmp(hang, "hangCopy") == 0 ? m.hung_copy[device] : m.hung_kernel[device];
    hung = hung || planted_locked(m, hang) != cudaSuccess;
    return hung;
}

void set_fault(const std::string &fault) {
    machine &m = the_machine();
    lock held(m.mutex);
    m.fault = fault;
}

void fail_device(int device, cudaError_t error) {
    machine &m = the_machine();
    lock held(m.mutex);
    m.failed[device] = error;
}

cudaError_t break_device(int device, const std::string &fault) {
    machine &m = the_machine();
    lock held(m.mutex);
    m.fault = fault;
    m.failed[device] = cudaErrorLaunchFailure;
    return cudaErrorLaunchFailure;
}

cudaError_t failure_of(int device) {
    machine &m = the_machine();
    lock held(m.mutex);
    return m.failed[device];
}

cudaError_t allocate(void **out, size_t bytes, int device) {
    machine &m = the_machine();
    lock held(m.mutex);
    *out = nullptr;
    cudaError_t error = planted_locked(m, device == PINNED ? "cudaHostAlloc" : "cudaMalloc");
    if (error != cudaSuccess) {
        return fail(error);
    }
    if (device != PINNED && bytes > m.memory_bytes - m.used[device]) {
        return fail(cudaErrorMemoryAllocation);
    }
    size_t rounded = (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
    void *memory = rounded ? aligned_alloc(MEMORY_ALIGN, rounded) : nullptr;
    if (!memory) {
        return bytes ? fail(cudaErrorMemoryAllocation) : cudaSuccess;
    }
    memset(memory, 0xff, rounded);
    if (device != PINNED) {
        m.used[device] += bytes;
    }
    m.memory[static_cast<char *>(memory)] = {bytes, device};
    *out = memory;
    return cudaSuccess;
}

cudaError_t release(void *memory, bool pinned) {
    if (!memory) {
        return cudaSuccess;
    }
    machine &m = the_machine();
    lock held(m.mutex);
    auto found = m.memory.find(static_cast<char *>(memory));
    if (found == m.memory.end() || (found->second.device == PINNED) != pinned) {
        return fail(cudaErrorInvalidValue);
    }
    if (!pinned) {
        m.used[found->second.device] -= found->second.bytes;
    }
    m.memory.erase(found);
    free(memory);
    return cudaSuccess;
}

cudaError_t pin(void *memory, size_t bytes) {
    machine &m = the_machine();
    lock held(m.mutex);
    cudaError_t error = planted_locked(m, "cudaHostRegister");
    if (error == cudaSuccess && (!memory || bytes == 0 || m.memory.count(static_cast<char *>(memory)) > 0)) {
        error = cudaErrorInvalidValue;
    }
    if (error != cudaSuccess) {
        return fail(error);
    }
    m.memory[static_cast<char *>(memory)] = {bytes, PINNED};
    return cudaSuccess;
}

cudaError_t unpin(void *memory) {
    machine &m = the_machine();
    lock held(m.mutex);
    return m.memory.erase(static_cast<char *>(memory)) == 1 ? cudaSuccess : fail(cudaErrorInvalidValue);
}

void memory_of(int device, size_t *available, size_t *total) {
    machine &m = the_machine();
    lock held(m.mutex);
    *total = m.memory_bytes;
    *available = m.memory_bytes - m.used[device];
}

bool is_allocated(const void *at, size_t bytes, bool pinned) {
    machine &m = the_machine();
    lock held(m.mutex);
    const allocation *a = bytes > 0 ? find_locked(m, at, bytes) : nullptr;
    return bytes == 0 || (a && (a->device == PINNED) == pinned);
}

bool is_allocated_on(const void *at, size_t bytes, int device) {
    machine &m = the_machine();
    lock held(m.mutex);
    const allocation *a = find_locked(m, at, bytes);
    return a && a->device == device;
}

bool uploads_at_once() {
    machine &m = the_machine();
    lock held(m.mutex);
    return m.uploads_at_once;
}

bool nccl_allocate(int device, size_t *taken) {
    machine &m = the_machine();
    lock held(m.mutex);
    if (m.nccl_bytes > m.memory_bytes - m.used[device]) {
        return false;
    }
    m.used[device] += m.nccl_bytes;
    *taken += m.nccl_bytes;
    return true;
}

void nccl_free(int device, size_t taken) {
    machine &m = the_machine();
    lock held(m.mutex);
    m.used[device] -= taken;
}

} // namespace sim

// ---- test_control.h

// Settings rather than failures. False: `name` is none of them.
static bool set(machine &m, const char *name, size_t kib) {
    if (strcmp(name, "uploadsAtOnce") == 0) {
        m.uploads_at_once = true;
    } else if (strcmp(name, "memoryKiB") == 0) {
        m.memory_bytes = kib << 10;
    } else if (strcmp(name, "ncclKiB") == 0) {
        m.nccl_bytes = kib << 10;
    } else {
        return false;
    }
    return true;
}

void sim_fail(const char *call, unsigned after, cudaError_t error) {
    machine &m = the_machine();
    lock held(m.mutex);
    if (set(m, call, after)) {
        return;
    }
    m.failing = call;
    m.failing_after = after;
    m.failing_as = error;
}

void sim_fail_nothing(void) {
    machine &m = the_machine();
    lock held(m.mutex);
    m.failing.clear();
    m.uploads_at_once = false;
    m.memory_bytes = MEMORY_BYTES;
    m.nccl_bytes = 0;
    for (int i = 0; i < SIM_DEVICES; i++) {
        m.failed[i] = cudaSuccess;
        m.hung_kernel[i] = m.hung_copy[i] = false;
    }
}

void sim_memory(size_t bytes) {
    machine &m = the_machine();
    lock held(m.mutex);
    m.memory_bytes = bytes;
}

const char *sim_fault(void) {
    static thread_local std::string copy;
    machine &m = the_machine();
    lock held(m.mutex);
    copy = m.fault;
    return copy.c_str();
}

uint64_t sim_calls(const char *call) {
    machine &m = the_machine();
    lock held(m.mutex);
    auto found = m.calls.find(call);
    return found == m.calls.end() ? 0 : found->second;
}

size_t sim_allocations(void) {
    machine &m = the_machine();
    lock held(m.mutex);
    return m.memory.size();
}
