#include "kernels/cuda/sim/runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <new>

#include "kernels/cuda/sim/stream.h"

struct CUevent_st {
    cudaStream_t stream;
    uint64_t after; // of its operations
    bool asked;     // since it was recorded
};

namespace {

constexpr size_t MEMORY_BYTES = size_t{64} << 30;
constexpr size_t MEMORY_ALIGN = 512;

struct allocation {
    size_t bytes;
    int device; // PINNED: of the host
    void *base;
};
constexpr int PINNED = -1;

// What all threads share; the mutex guards all of it and is never held while a kernel runs. Taken after `driving`.
struct machine {
    std::mutex mutex;
    std::map<const char *, allocation> memory; // by address
    size_t used[SIM_DEVICES] = {};
    cudaError_t failed[SIM_DEVICES] = {}; // for good
    bool hung[SIM_DEVICES] = {};          // at a kernel
    bool hung_copy[SIM_DEVICES] = {};
    bool uploads_at_once = false;
    size_t memory_bytes = MEMORY_BYTES, nccl_bytes = 0;
    std::string failing; // the call that is to fail, "" none
    unsigned failing_after = 0;
    cudaError_t failing_as = cudaSuccess;
    std::string fault;
    std::map<std::string, uint64_t> calls;
};

// Made once and never destroyed: threads may be at work while the process exits. Not by new, which ThreadSanitizer takes for a
// write of the thread that came first: of these sources it sees no more than locks.
template <class thing> thing &only_one() {
    alignas(thing) static unsigned char memory[sizeof(thing)];
    static thing &made = *new (memory) thing;
    return made;
}

machine &the_machine() {
    return only_one<machine>();
}

thread_local int chosen_device;
thread_local cudaError_t last_error;

cudaError_t fail(cudaError_t error) {
    last_error = error;
    return error;
}

// The planted failure of this call, if it is due. Holds the mutex.
cudaError_t planted_here(const char *call) {
    machine &m = the_machine();
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

cudaError_t enter(const char *call) {
    std::lock_guard<std::mutex> lock(the_machine().mutex);
    cudaError_t error = planted_here(call);
    return error != cudaSuccess ? error : the_machine().failed[chosen_device];
}

cudaError_t allocate(void **out, size_t bytes, int device) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    *out = nullptr;
    cudaError_t error = planted_here(device == PINNED ? "cudaHostAlloc" : "cudaMalloc");
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
    m.memory[static_cast<char *>(memory)] = {bytes, device, memory};
    *out = memory;
    return cudaSuccess;
}

cudaError_t release(void *memory, bool pinned) {
    if (!memory) {
        return cudaSuccess;
    }
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
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

// Is [at, at + bytes) inside one allocation, of a device or of pinned memory?
bool lies_in(const void *at, size_t bytes, bool pinned) {
    if (bytes == 0) {
        return true;
    }
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    auto above = m.memory.upper_bound(static_cast<const char *>(at));
    if (above == m.memory.begin()) {
        return false;
    }
    const auto &[base, a] = *std::prev(above);
    size_t offset = static_cast<const char *>(at) - base;
    return offset <= a.bytes && bytes <= a.bytes - offset && (a.device == PINNED) == pinned;
}

cudaError_t failure_of(int device) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    return m.failed[device];
}

// Does what the device comes to now not end? A kernel that does not end keeps no copy of another stream from beginning, nor a copy
// a kernel.
bool hangs_at(const char *planted, bool *hung) {
    std::lock_guard<std::mutex> lock(the_machine().mutex);
    *hung = *hung || planted_here(planted) != cudaSuccess;
    return *hung;
}

sim::outcome run_launch(const sim::launch &what, int device) {
    machine &m = the_machine();
    std::string fault;
    if (hangs_at("hang", &m.hung[device])) {
        return sim::BLOCKED;
    }
    {
        std::lock_guard<std::mutex> lock(m.mutex);
        if (planted_here("launch") != cudaSuccess) {
            m.fault = "a planted fault";
            return {cudaErrorLaunchFailure, false};
        }
    }
    if (sim::run(what, &fault)) {
        return sim::DONE;
    }
    std::lock_guard<std::mutex> lock(m.mutex);
    m.fault = fault;
    return {cudaErrorLaunchFailure, false};
}

// Waits for it: what is blocked now stays so, for whoever would go on is the thread that waits, or one that gives no sign of it.
cudaError_t synchronize(cudaStream_t stream, uint64_t until) {
    std::lock_guard<std::recursive_mutex> lock(sim::driving());
    if (!stream->drive(until)) {
        return fail(sim::break_device(stream->device,
                                      "a stream is waited for that stands still, at what hangs or a transfer "
                                      "whose other side is not there: this would be for ever, so ask for its events, "
                                      "with a deadline"));
    }
    cudaError_t error = failure_of(stream->device);
    return error != cudaSuccess ? fail(error) : cudaSuccess;
}

} // namespace

std::recursive_mutex &sim::driving() {
    return only_one<std::recursive_mutex>();
}

cudaError_t sim::planted(const char *call) {
    std::lock_guard<std::mutex> lock(the_machine().mutex);
    return planted_here(call);
}

cudaError_t sim::break_device(int device, const std::string &fault) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    m.fault = fault;
    m.failed[device] = cudaErrorLaunchFailure;
    return cudaErrorLaunchFailure;
}

int sim::chosen() {
    return chosen_device;
}

bool sim::lies_on_device(const void *at, size_t bytes, int device) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    auto above = m.memory.upper_bound(static_cast<const char *>(at));
    if (above == m.memory.begin()) {
        return false;
    }
    const auto &[base, a] = *std::prev(above);
    size_t offset = static_cast<const char *>(at) - base;
    return offset <= a.bytes && bytes <= a.bytes - offset && a.device == device;
}

bool sim::nccl_takes(int device, size_t *taken) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    if (m.nccl_bytes > m.memory_bytes - m.used[device]) {
        return false;
    }
    m.used[device] += m.nccl_bytes;
    *taken += m.nccl_bytes;
    return true;
}

void sim::nccl_gives_back(int device, size_t taken) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    m.used[device] -= taken;
}

cudaError_t CUstream_st::put(sim::operation what) {
    std::lock_guard<std::recursive_mutex> lock(sim::driving());
    if (unsettled > 0) {
        return fail(sim::break_device(device, "work was put into a stream while a group of NCCL's has no place in it yet: ask "
                                              "ncclCommGetAsyncError until it is no longer in progress"));
    }
    waiting.push_back(std::move(what));
    taken++;
    return cudaSuccess;
}

bool CUstream_st::drive(uint64_t until) {
    while (done < until) {
        if (running) {
            return false; // whoever tries it asks for this very stream, in a circle
        }
        bool broken = failure_of(device) != cudaSuccess; // the first failure is the one that is told
        running = true;
        sim::outcome came = broken ? sim::DONE : waiting.front()();
        running = false;
        if (came.blocked) {
            return false;
        }
        waiting.pop_front();
        done++;
        if (came.error != cudaSuccess) {
            machine &m = the_machine();
            std::lock_guard<std::mutex> lock(m.mutex);
            m.failed[device] = came.error;
        }
    }
    return true;
}

void sim::launch_on(cudaStream_t stream, launch what) {
    cudaError_t error = enter("cudaLaunchKernel");
    if (error == cudaSuccess && (what.shared_bytes > SIM_SHARED_BYTES_MAX || what.grid.x == 0 || what.block.x > 1024)) {
        error = cudaErrorInvalidConfiguration;
    }
    if (error != cudaSuccess) {
        fail(error);
        return;
    }
    stream->put([what = std::move(what), device = stream->device] { return run_launch(what, device); });
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = SIM_DEVICES;
    return enter("cudaGetDeviceCount");
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= SIM_DEVICES) {
        return fail(cudaErrorInvalidDevice);
    }
    chosen_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    *out = {};
    if (device < 0 || device >= SIM_DEVICES) {
        return fail(cudaErrorInvalidDevice);
    }
    snprintf(out->name, sizeof out->name, "simulated GPU %d", device);
    out->totalGlobalMem = the_machine().memory_bytes;
    out->major = 9;
    out->multiProcessorCount = 2; // a grid of persistent blocks walks more than once
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    *total = m.memory_bytes;
    *available = m.memory_bytes - m.used[chosen_device];
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    return allocate(out, bytes, chosen_device);
}

cudaError_t cudaFree(void *memory) {
    (void)sim::planted("cudaFree");
    return release(memory, false);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    return allocate(out, bytes, PINNED);
}

cudaError_t cudaFreeHost(void *memory) {
    return release(memory, true);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    cudaError_t error = planted_here("cudaHostRegister");
    if (error == cudaSuccess && (!memory || bytes == 0 || m.memory.count(static_cast<char *>(memory)) > 0)) {
        error = cudaErrorInvalidValue;
    }
    if (error != cudaSuccess) {
        return fail(error);
    }
    m.memory[static_cast<char *>(memory)] = {bytes, PINNED, nullptr};
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *memory) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    return m.memory.erase(static_cast<char *>(memory)) == 1 ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
    *out = nullptr;
    cudaError_t error = enter("cudaStreamCreate");
    if (error == cudaSuccess) {
        *out = new CUstream_st{chosen_device, 0, 0, {}, false, 0};
    }
    return error == cudaSuccess ? error : fail(error);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete stream;
    return cudaSuccess;
}

static bool leaves_at_once() {
    std::lock_guard<std::mutex> lock(the_machine().mutex);
    return the_machine().uploads_at_once;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t error = enter("cudaMemcpyAsync");
    if (error != cudaSuccess) {
        return fail(error);
    }
    bool fits = lies_in(to, bytes, kind == cudaMemcpyDeviceToHost) && lies_in(from, bytes, kind == cudaMemcpyHostToDevice);
    if (!fits) {
        return fail(cudaErrorInvalidValue);
    }
    bool damaged = sim::planted("damage") != cudaSuccess && bytes > 0;
    error = stream->put([=, device = stream->device] {
        if (hangs_at("hangCopy", &the_machine().hung_copy[device])) {
            return sim::BLOCKED;
        }
        if (bytes > 0) {
            memcpy(to, from, bytes);
        }
        if (damaged) {
            static_cast<unsigned char *>(to)[bytes - 1] ^= 1;
        }
        return sim::DONE;
    });
    if (error == cudaSuccess && kind == cudaMemcpyHostToDevice && leaves_at_once()) {
        std::lock_guard<std::recursive_mutex> lock(sim::driving());
        (void)stream->drive(stream->taken);
    }
    return error;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    cudaError_t error = enter("cudaMemsetAsync");
    if (error == cudaSuccess && !lies_in(to, bytes, false)) {
        error = cudaErrorInvalidValue;
    }
    if (error != cudaSuccess) {
        return fail(error);
    }
    return stream->put([=] {
        memset(to, value, bytes);
        return sim::DONE;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t error = synchronize(stream, stream->taken);
    return error != cudaSuccess ? error : enter("cudaStreamSynchronize");
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, unsigned) {
    *out = new CUevent_st{nullptr, 0, false};
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    std::lock_guard<std::recursive_mutex> lock(sim::driving());
    cudaError_t error = stream->put([] { return sim::DONE; });
    *event = {stream, stream->taken, false};
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return event->stream ? synchronize(event->stream, event->after) : cudaSuccess;
}

// As a real one is seldom done at once, so this one is not when it is asked for the first time.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    std::lock_guard<std::recursive_mutex> lock(sim::driving());
    cudaError_t error = enter("cudaEventQuery");
    if (error != cudaSuccess) {
        return fail(error);
    }
    bool first = !event->asked;
    event->asked = true;
    if (event->stream && (first || !event->stream->drive(event->after))) {
        return cudaErrorNotReady;
    }
    error = event->stream ? failure_of(event->stream->device) : cudaSuccess;
    return error != cudaSuccess ? fail(error) : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    CUevent_st until = *event;
    return stream->put([until] { return until.stream && !until.stream->drive(until.after) ? sim::BLOCKED : sim::DONE; });
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *) {
    *out = {90, 90};
    cudaError_t error = enter("cudaFuncGetAttributes");
    return error != cudaSuccess ? fail(error) : cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value) {
    return value <= SIM_SHARED_BYTES_MAX ? cudaSuccess : fail(cudaErrorInvalidValue);
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last_error;
    last_error = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
    switch (error) {
    case cudaSuccess:
        return "no error";
    case cudaErrorInvalidValue:
        return "invalid argument";
    case cudaErrorMemoryAllocation:
        return "out of memory";
    case cudaErrorInvalidConfiguration:
        return "invalid configuration argument";
    case cudaErrorInvalidDevice:
        return "invalid device ordinal";
    case cudaErrorNotReady:
        return "device not ready";
    case cudaErrorLaunchFailure:
        return "unspecified launch failure";
    default:
        return "unknown error";
    }
}

// ---- tests

// What is no failure, but how the machine is.
static bool set(machine &m, const char *what, size_t kib) {
    if (strcmp(what, "uploadsAtOnce") == 0) {
        m.uploads_at_once = true;
    } else if (strcmp(what, "memoryKiB") == 0) {
        m.memory_bytes = kib << 10;
    } else if (strcmp(what, "ncclKiB") == 0) {
        m.nccl_bytes = kib << 10;
    } else {
        return false;
    }
    return true;
}

void sim_fail(const char *call, unsigned after, cudaError_t error) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    if (set(m, call, after)) {
        return;
    }
    m.failing = call;
    m.failing_after = after;
    m.failing_as = error;
}

void sim_fail_nothing(void) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    m.failing.clear();
    m.uploads_at_once = false;
    m.memory_bytes = MEMORY_BYTES;
    m.nccl_bytes = 0;
    for (int i = 0; i < SIM_DEVICES; i++) {
        m.failed[i] = cudaSuccess;
        m.hung[i] = m.hung_copy[i] = false;
    }
}

void sim_memory(size_t bytes) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    m.memory_bytes = bytes;
}

const char *sim_fault(void) {
    static thread_local std::string copy;
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    copy = m.fault;
    return copy.c_str();
}

uint64_t sim_calls(const char *call) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    auto found = m.calls.find(call);
    return found == m.calls.end() ? 0 : found->second;
}

size_t sim_allocations(void) {
    machine &m = the_machine();
    std::lock_guard<std::mutex> lock(m.mutex);
    return m.memory.size();
}
