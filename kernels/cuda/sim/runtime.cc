#include "kernels/cuda/sim/runtime.h"

#include <cstdio>
#include <cstring>

#include "kernels/cuda/sim/machine.h"
#include "kernels/cuda/sim/stream.h"

struct CUevent_st {
    cudaStream_t stream;
    uint64_t until; // the number of its operations that precede the event
    bool queried;   // since it was recorded
};

// Work that is blocked now stays blocked: the only thread that could unblock it is waiting here, or the wait has no deadline.
static cudaError_t synchronize(cudaStream_t stream, uint64_t until) {
    std::lock_guard<std::recursive_mutex> lock(sim::driving());
    if (!stream->drive(until)) {
        return sim::fail(sim::break_device(stream->device,
                                           "waiting for a stream would never end: its next operation hangs, or is a "
                                           "transfer whose peer has not joined it. Query its events, with a deadline, instead"));
    }
    cudaError_t error = sim::failure_of(stream->device);
    return error != cudaSuccess ? sim::fail(error) : cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count) {
    *count = SIM_DEVICES;
    return sim::enter("cudaGetDeviceCount");
}

cudaError_t cudaSetDevice(int device) {
    if (device < 0 || device >= SIM_DEVICES) {
        return sim::fail(cudaErrorInvalidDevice);
    }
    sim::set_device(device);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *out, int device) {
    *out = {};
    if (device < 0 || device >= SIM_DEVICES) {
        return sim::fail(cudaErrorInvalidDevice);
    }
    snprintf(out->name, sizeof out->name, "simulated GPU %d", device);
    size_t available;
    sim::memory_of(device, &available, &out->totalGlobalMem);
    out->major = 9;
    out->multiProcessorCount = 2; // few, so that a grid of persistent blocks loops more than once
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    sim::memory_of(sim::current_device(), available, total);
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes) {
    return sim::allocate(out, bytes, sim::current_device());
}

cudaError_t cudaFree(void *memory) {
    (void)sim::planted("cudaFree");
    return sim::release(memory, false);
}

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned) {
    return sim::allocate(out, bytes, sim::PINNED);
}

cudaError_t cudaFreeHost(void *memory) {
    return sim::release(memory, true);
}

cudaError_t cudaHostRegister(void *memory, size_t bytes, unsigned) {
    return sim::pin(memory, bytes);
}

cudaError_t cudaHostUnregister(void *memory) {
    return sim::unpin(memory);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, unsigned) {
    *out = nullptr;
    cudaError_t error = sim::enter("cudaStreamCreate");
    if (error == cudaSuccess) {
        *out = new CUstream_st{sim::current_device(), 0, 0, {}, false, 0};
    }
    return error == cudaSuccess ? error : sim::fail(error);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    delete stream;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    cudaError_t error = sim::enter("cudaMemcpyAsync");
    if (error != cudaSuccess) {
        return sim::fail(error);
    }
    bool fits = sim::is_allocated(to, bytes, kind == cudaMemcpyDeviceToHost) &&
                sim::is_allocated(from, bytes, kind == cudaMemcpyHostToDevice);
    if (!fits) {
        return sim::fail(cudaErrorInvalidValue);
    }
    bool damaged = sim::planted("damage") != cudaSuccess && bytes > 0;
    error = stream->put([=, device = stream->device] {
        if (sim::hangs("hangCopy", device)) {
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
    if (error == cudaSuccess && kind == cudaMemcpyHostToDevice && sim::uploads_at_once()) {
        std::lock_guard<std::recursive_mutex> lock(sim::driving());
        (void)stream->drive(stream->put_count);
    }
    return error;
}

cudaError_t cudaMemcpyPeerAsync(void *to, int, const void *from, int, size_t bytes, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    cudaError_t error = sim::enter("cudaMemsetAsync");
    if (error == cudaSuccess && !sim::is_allocated(to, bytes, false)) {
        error = cudaErrorInvalidValue;
    }
    if (error != cudaSuccess) {
        return sim::fail(error);
    }
    return stream->put([=] {
        memset(to, value, bytes);
        return sim::DONE;
    });
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    cudaError_t error = synchronize(stream, stream->put_count);
    return error != cudaSuccess ? error : sim::enter("cudaStreamSynchronize");
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
    *event = {stream, stream->put_count, false};
    return error;
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return event->stream ? synchronize(event->stream, event->until) : cudaSuccess;
}

// The first query is never done, as is usual for a real event.
cudaError_t cudaEventQuery(cudaEvent_t event) {
    std::lock_guard<std::recursive_mutex> lock(sim::driving());
    cudaError_t error = sim::enter("cudaEventQuery");
    if (error != cudaSuccess) {
        return sim::fail(error);
    }
    bool first = !event->queried;
    event->queried = true;
    if (event->stream && (first || !event->stream->drive(event->until))) {
        return cudaErrorNotReady;
    }
    error = event->stream ? sim::failure_of(event->stream->device) : cudaSuccess;
    return error != cudaSuccess ? sim::fail(error) : cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    return stream->put([e = *event] { return e.stream && !e.stream->drive(e.until) ? sim::BLOCKED : sim::DONE; });
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *) {
    *out = {90, 90};
    cudaError_t error = sim::enter("cudaFuncGetAttributes");
    return error != cudaSuccess ? sim::fail(error) : cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, enum cudaFuncAttribute, int value) {
    return value <= SIM_SHARED_BYTES_MAX ? cudaSuccess : sim::fail(cudaErrorInvalidValue);
}

cudaError_t cudaGetLastError(void) {
    return sim::clear_error();
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
