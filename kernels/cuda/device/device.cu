// The module's function table (device.h): devices, memory, copies and launches by CUDA's runtime. Compiled twice: by nvcc, and for
// the simulated GPU.
#include <cstdio>
#include <cstring>
#include <initializer_list>
#include <ptx.cuh>

#include "kernels/cuda/common/launchers.h"
#include "kernels/device/device_codes.h"
#include "kernels/device/device_links.h"

struct expertd_device {
    int number;
    cudaStream_t stream;
    cudaEvent_t done;                           // a thread that waits for it sleeps
    cudaStream_t up, down;                      // copies that overlap with kernels
    cudaEvent_t uploaded, computed, downloaded; // the latest of each; streams wait for the first two
    int multiprocessors;
};

namespace {

#if defined(__CUDACC__)
constexpr char KIND[] = "cuda";

const char *failure_details() {
    return "";
}

// Have GPUs of this compute capability passed tests/gpu/run: every variant with the scalar twin's bits, fp32 with the CPU's bits,
// and the daemon's answers equal to the golden cases (tests/gpu/results)?
bool is_proven(int major) {
    return major == 9;
}

void arithmetic_of(const cudaDeviceProp &properties, struct expertd_device_facts *out) {
    snprintf(out->arithmetic, sizeof out->arithmetic, "sm_%d%d", properties.major, properties.minor);
    snprintf(out->arithmetic_f32, sizeof out->arithmetic_f32, "%s", is_proven(properties.major) ? "cpu" : out->arithmetic);
}

// Creates no CUDA context.
int proven(uint32_t number) {
    int major = 0;
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, (int)number) == cudaSuccess && is_proven(major);
}

constexpr void (*PLANT_FAILURE)(const char *, unsigned) = nullptr;
constexpr uint64_t (*CALLS)(const char *) = nullptr;
#else
constexpr char KIND[] = "sim";

bool is_proven(int) {
    return true; // the unit tests prove it
}

int proven(uint32_t) {
    return true;
}

const char *failure_details() {
    return sim_fault();
}

void arithmetic_of(const cudaDeviceProp &, struct expertd_device_facts *out) {
    snprintf(out->arithmetic, sizeof out->arithmetic, "sm_90");
    snprintf(out->arithmetic_f32, sizeof out->arithmetic_f32, "cpu");
}

void PLANT_FAILURE(const char *call, unsigned after) {
    if (call) {
        sim_fail(call, after, strcmp(call, "cudaMalloc") == 0 ? cudaErrorMemoryAllocation : cudaErrorUnknown);
    } else {
        sim_fail_nothing();
    }
}

constexpr uint64_t (*CALLS)(const char *) = sim_calls;
#endif

constexpr int CAPABILITY_LEAST = 8;

enum expertd_device_code failed(cudaError_t code, const char *action, struct expertd_device_error *error) {
    const char *details = code == cudaErrorLaunchFailure ? failure_details() : "";
    snprintf(error->message, sizeof error->message, "%s: %s%s%s", action, cudaGetErrorString(code), *details ? ": " : "", details);
    return code == cudaErrorMemoryAllocation ? EXPERTD_DEVICE_NOMEM : EXPERTD_DEVICE_FAILED;
}

enum expertd_device_code done(cudaError_t code, const char *action, struct expertd_device_error *error) {
    return code == cudaSuccess ? EXPERTD_DEVICE_OK : failed(code, action, error);
}

// Selects the device for the calling thread. Clears the error of an earlier call, which has been reported, so that it is not taken
// for an error of this one.
cudaError_t enter(const struct expertd_device *d) {
    (void)cudaGetLastError();
    return cudaSetDevice(d->number);
}

enum expertd_device_code count_devices(uint32_t *out, struct expertd_device_error *error) {
    int count = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    *out = (uint32_t)count;
    return code == cudaSuccess ? EXPERTD_DEVICE_OK : (failed(code, "counting GPUs", error), EXPERTD_DEVICE_MISSING);
}

enum expertd_device_code open_streams(struct expertd_device *d, struct expertd_device_error *error) {
    cudaError_t code = cudaSuccess;
    for (cudaStream_t *stream : {&d->stream, &d->up, &d->down}) {
        code = code == cudaSuccess ? cudaStreamCreateWithFlags(stream, cudaStreamNonBlocking) : code;
    }
    for (cudaEvent_t *event : {&d->done, &d->uploaded, &d->computed, &d->downloaded}) {
        code = code == cudaSuccess ? cudaEventCreateWithFlags(event, cudaEventBlockingSync | cudaEventDisableTiming) : code;
    }
    return done(code, "creating a stream", error);
}

void close_device(struct expertd_device *d) {
    if (d) {
        (void)enter(d);
        for (cudaEvent_t event : {d->done, d->uploaded, d->computed, d->downloaded}) {
            (void)(event ? cudaEventDestroy(event) : cudaSuccess);
        }
        for (cudaStream_t stream : {d->stream, d->up, d->down}) {
            (void)(stream ? cudaStreamDestroy(stream) : cudaSuccess);
        }
        delete d;
    }
}

// Refuses a device for which the module has neither a cubin nor PTX, on which every launch would fail.
enum expertd_device_code check_code(const cudaDeviceProp &properties, struct expertd_device_error *error) {
    cudaError_t code = (cudaError_t)cuda_has_code();
    if (code == cudaSuccess) {
        return EXPERTD_DEVICE_OK;
    }
    snprintf(error->message, sizeof error->message,
             "%.100s has compute capability %d.%d, for which this module contains no kernels: %s", properties.name,
             properties.major, properties.minor, cudaGetErrorString(code));
    return EXPERTD_DEVICE_MISSING;
}

enum expertd_device_code open_device(uint32_t number, struct expertd_device **out, struct expertd_device_error *error) {
    cudaDeviceProp properties;
    *out = nullptr;
    cudaError_t code = cudaGetDeviceProperties(&properties, (int)number);
    if (code != cudaSuccess) {
        (void)failed(code, "querying its properties", error);
        return EXPERTD_DEVICE_MISSING;
    }
    if (properties.major < CAPABILITY_LEAST) {
        snprintf(error->message, sizeof error->message, "%.100s has compute capability %d.%d; the kernels need at least 8.0",
                 properties.name, properties.major, properties.minor);
        return EXPERTD_DEVICE_MISSING;
    }
    struct expertd_device *d = new expertd_device{};
    d->number = (int)number;
    d->multiprocessors = properties.multiProcessorCount;
    code = enter(d);
    enum expertd_device_code opened = code == cudaSuccess ? open_streams(d, error) : failed(code, "selecting it", error);
    opened = opened == EXPERTD_DEVICE_OK ? check_code(properties, error) : opened;
    if (opened != EXPERTD_DEVICE_OK) {
        close_device(d);
        return opened;
    }
    *out = d;
    return EXPERTD_DEVICE_OK;
}

// The device's variants, and the subset of variants that give equal bits. fp32 sums are IEEE fmas in an order that the source
// fixes, so the tile's shape does not change them. The arithmetic of tensor cores is not documented: variants count as equal only
// on GPUs where gpu-check has compared them. On other GPUs one variant computes everything: with wgmma the tile for prefill, since
// decode is bound by memory with any tile.
void variants_of(const cudaDeviceProp &properties, struct expertd_device_facts *out) {
    const uint32_t fma = 1u << EXPERTD_DEVICE_FMA_16 | 1u << EXPERTD_DEVICE_FMA_64;
    const uint32_t mma = 1u << EXPERTD_DEVICE_MMA_16 | 1u << EXPERTD_DEVICE_MMA_32 | 1u << EXPERTD_DEVICE_MMA_64;
    const uint32_t wgmma = 1u << EXPERTD_DEVICE_WGMMA_8 | 1u << EXPERTD_DEVICE_WGMMA_16 | 1u << EXPERTD_DEVICE_WGMMA_32 |
                           1u << EXPERTD_DEVICE_WGMMA_64 | 1u << EXPERTD_DEVICE_WGMMA_128;
    const bool hopper = properties.major == 9; // code for sm_90a runs on no later GPU
    out->f32 = {fma, fma, EXPERTD_DEVICE_FMA_64, false};
    out->bf16 = {mma | (hopper ? wgmma : 0), 0, hopper ? EXPERTD_DEVICE_WGMMA_128 : EXPERTD_DEVICE_MMA_64, false};
    out->bf16.equal = is_proven(properties.major) ? out->bf16.has : 0;
}

enum expertd_device_code describe(struct expertd_device *d, struct expertd_device_facts *out, struct expertd_device_error *error) {
    cudaDeviceProp properties;
    size_t available = 0, all = 0;
    *out = {};
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaGetDeviceProperties(&properties, d->number) : code;
    code = code == cudaSuccess ? cudaMemGetInfo(&available, &all) : code;
    if (code == cudaSuccess) {
        snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, properties.name);
        arithmetic_of(properties, out);
        variants_of(properties, out);
        out->memory_bytes = all;
        out->memory_available = available;
    }
    return done(code, "querying its properties", error);
}

enum expertd_device_code reserve(struct expertd_device *d, size_t bytes, void **out, struct expertd_device_error *error) {
    *out = nullptr;
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaMalloc(out, bytes) : code;
    return done(code, "reserving memory", error);
}

void release(struct expertd_device *d, void *memory) {
    if (memory && enter(d) == cudaSuccess) {
        (void)cudaFree(memory);
    }
}

enum expertd_device_code pin(struct expertd_device *d, void *memory, size_t bytes, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaHostRegister(memory, bytes, cudaHostRegisterPortable) : code;
    return done(code, "pinning host memory", error);
}

void unpin(struct expertd_device *d, void *memory) {
    if (enter(d) == cudaSuccess) {
        (void)cudaHostUnregister(memory);
    }
}

enum expertd_device_code copy(struct expertd_device *d, enum expertd_device_copy_kind kind, void *to, const void *from,
                              size_t bytes, struct expertd_device_error *error) {
    static const enum cudaMemcpyKind KINDS[] = {cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice};
    cudaError_t code = enter(d);
    code = code == cudaSuccess && bytes > 0 ? cudaMemcpyAsync(to, from, bytes, KINDS[kind], d->stream) : code;
    return done(code,
                kind == EXPERTD_DEVICE_UPLOAD     ? "copying to it"
                : kind == EXPERTD_DEVICE_DOWNLOAD ? "copying from it"
                                                  : "copying within it",
                error);
}

enum expertd_device_code copy_from(struct expertd_device *d, void *to, struct expertd_device *other, const void *from, size_t bytes,
                                   struct expertd_device_error *error) {
    cudaError_t code = enter(other);
    code = code == cudaSuccess ? cudaEventRecord(other->done, other->stream) : code;
    code = code == cudaSuccess ? enter(d) : code;
    code = code == cudaSuccess ? cudaStreamWaitEvent(d->stream, other->done, 0) : code;
    code = code == cudaSuccess && bytes > 0 ? cudaMemcpyPeerAsync(to, d->number, from, other->number, bytes, d->stream) : code;
    return done(code, "copying from another device", error);
}

enum expertd_device_code wait(struct expertd_device *d, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaEventRecord(d->done, d->stream) : code;
    code = code == cudaSuccess ? cudaEventSynchronize(d->done) : code;
    return done(code, "waiting for its work", error);
}

enum expertd_device_code upload_async(struct expertd_device *d, void *to, const void *from, size_t bytes,
                                      struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess && bytes > 0 ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, d->up) : code;
    code = code == cudaSuccess ? cudaEventRecord(d->uploaded, d->up) : code;
    return done(code, "copying to it", error);
}

enum expertd_device_code await_upload(struct expertd_device *d, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaStreamWaitEvent(d->stream, d->uploaded, 0) : code;
    return done(code, "waiting for a copy to it", error);
}

enum expertd_device_code download_async(struct expertd_device *d, void *to, const void *from, size_t bytes,
                                        struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaEventRecord(d->computed, d->stream) : code;
    code = code == cudaSuccess ? cudaStreamWaitEvent(d->down, d->computed, 0) : code;
    code = code == cudaSuccess && bytes > 0 ? cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, d->down) : code;
    code = code == cudaSuccess ? cudaEventRecord(d->downloaded, d->down) : code;
    return done(code, "copying from it", error);
}

enum expertd_device_code wait_downloads(struct expertd_device *d, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaEventSynchronize(d->downloaded) : code;
    return done(code, "waiting for its answers", error);
}

enum expertd_device_code mark(struct expertd_device *d, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaEventRecord(d->done, d->stream) : code;
    return done(code, "marking its work", error);
}

enum expertd_device_code finished(struct expertd_device *d, int *out, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaEventQuery(d->done) : code;
    *out = code == cudaSuccess;
    return code == cudaErrorNotReady ? EXPERTD_DEVICE_OK : done(code, "querying its work", error);
}

enum expertd_device_code finished_downloads(struct expertd_device *d, int *out, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? cudaEventQuery(d->downloaded) : code;
    *out = code == cudaSuccess;
    return code == cudaErrorNotReady ? EXPERTD_DEVICE_OK : done(code, "querying its answers", error);
}

template <typename Args, int (*LAUNCHER)(const Args *, struct CUstream_st *)>
enum expertd_device_code launch(struct expertd_device *d, const Args *args, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? (cudaError_t)LAUNCHER(args, d->stream) : code;
    return done(code, "starting a kernel", error);
}

// The launchers for quantised weights: one for fp32 rows; for bf16 rows one for each code, by mma.sync and by wgmma.
template <typename Args> struct quantised_launchers {
    int (*f32)(const Args *, CUstream_st *), (*mma[EXPERTD_CODE_COUNT])(const Args *, CUstream_st *);
    int (*wgmma[EXPERTD_CODE_COUNT])(const Args *, int multiprocessors, CUstream_st *);
};
constexpr quantised_launchers<expertd_device_gate_up> QUANTISED_GATE_UP = {
    cuda_quantised_gate_up_f32,
    {cuda_quantised_gate_up_fp8, cuda_quantised_gate_up_fp8, cuda_quantised_gate_up_e2m1, cuda_quantised_gate_up_int4,
     cuda_quantised_gate_up_int8},
    {cuda_quantised_gate_up_fp8_wgmma, cuda_quantised_gate_up_fp8_wgmma, cuda_quantised_gate_up_e2m1_wgmma,
     cuda_quantised_gate_up_int4_wgmma, cuda_quantised_gate_up_int8_wgmma}};
constexpr quantised_launchers<expertd_device_down> QUANTISED_DOWN = {
    cuda_quantised_down_f32,
    {cuda_quantised_down_fp8, cuda_quantised_down_fp8, cuda_quantised_down_e2m1, cuda_quantised_down_int4,
     cuda_quantised_down_int8},
    {cuda_quantised_down_fp8_wgmma, cuda_quantised_down_fp8_wgmma, cuda_quantised_down_e2m1_wgmma, cuda_quantised_down_int4_wgmma,
     cuda_quantised_down_int8_wgmma}};
static_assert(EXPERTD_CODE_E4M3 == 0 && EXPERTD_CODE_E5M2 == 1 && EXPERTD_CODE_E2M1 == 2 && EXPERTD_CODE_INT4 == 3 &&
                  EXPERTD_CODE_INT8 == 4,
              "the launchers are in the order of the codes");

template <typename Args>
int start_quantised(const struct expertd_device *d, const Args *a, const expertd_device_matrix &m,
                    const quantised_launchers<Args> &launchers) {
    const enum expertd_weight_code code = m.quantised.format.code;
    return a->rows.dtype != EXPERTD_DTYPE_BF16        ? launchers.f32(a, d->stream)
           : a->rows.variant < EXPERTD_DEVICE_WGMMA_8 ? launchers.mma[code](a, d->stream)
                                                      : launchers.wgmma[code](a, d->multiprocessors, d->stream);
}

// The launcher depends on whether the weights are quantised, and on the variant for which the rows were cut into tiles.
int start_gate_up(const struct expertd_device *d, const struct expertd_device_gate_up *a) {
    if (a->up.quantised.scales) {
        return start_quantised(d, a, a->up, QUANTISED_GATE_UP);
    }
    return a->rows.variant < EXPERTD_DEVICE_MMA_16    ? cuda_gate_up_fma(a, d->stream)
           : a->rows.variant < EXPERTD_DEVICE_WGMMA_8 ? cuda_gate_up_mma(a, d->stream)
                                                      : cuda_gate_up_wgmma(a, d->multiprocessors, d->stream);
}

int start_down(const struct expertd_device *d, const struct expertd_device_down *a) {
    if (a->down.quantised.scales) {
        return start_quantised(d, a, a->down, QUANTISED_DOWN);
    }
    return a->rows.variant < EXPERTD_DEVICE_MMA_16    ? cuda_down_fma(a, d->stream)
           : a->rows.variant < EXPERTD_DEVICE_WGMMA_8 ? cuda_down_mma(a, d->stream)
                                                      : cuda_down_wgmma(a, d->multiprocessors, d->stream);
}

enum expertd_device_code gate_up(struct expertd_device *d, const struct expertd_device_gate_up *a,
                                 struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? (cudaError_t)start_gate_up(d, a) : code;
    return done(code, "starting a kernel", error);
}

enum expertd_device_code down(struct expertd_device *d, const struct expertd_device_down *a, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? (cudaError_t)start_down(d, a) : code;
    return done(code, "starting a kernel", error);
}

enum expertd_device_code grouped_gemm(struct expertd_device *d, const struct expertd_device_grouped_gemm *a,
                                      struct expertd_device_error *error) {
    const struct expertd_device_down plain = {a->rows, a->b, nullptr, nullptr, a->out, a->out_stride};
    return down(d, &plain, error);
}

enum expertd_device_code fp8_gemm(struct expertd_device *d, const struct expertd_device_fp8_gemm *args,
                                  struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    code = code == cudaSuccess ? (cudaError_t)cuda_fp8_gemm_sm90(args, d->multiprocessors, d->stream) : code;
    return done(code, "starting a kernel", error);
}

} // namespace

extern "C" struct CUstream_st *device_enter(struct expertd_device *d, struct expertd_device_error *error) {
    cudaError_t code = enter(d);
    return code == cudaSuccess ? d->stream : ((void)failed(code, "selecting it", error), nullptr);
}

extern "C" __attribute__((visibility("default"))) const struct expertd_device_table expertd_device_table = {
    EXPERTD_DEVICE_VERSION,
    sizeof(struct expertd_device_table),
    KIND,
    count_devices,
    proven,
    open_device,
    close_device,
    describe,
    reserve,
    release,
    pin,
    unpin,
    copy,
    copy_from,
    wait,
    upload_async,
    await_upload,
    download_async,
    wait_downloads,
    mark,
    finished,
    finished_downloads,
    launch<expertd_device_convert_input, cuda_convert_input>,
    launch<expertd_device_logits, cuda_logits>,
    launch<expertd_device_choose, cuda_choose>,
    launch<expertd_device_weigh, cuda_weigh>,
    gate_up,
    down,
    launch<expertd_device_combine, cuda_combine>,
    grouped_gemm,
    fp8_gemm,
    launch<expertd_device_product, cuda_product>,
    launch<expertd_device_group_metadata, cuda_group_metadata>,
    &expertd_device_links,
    PLANT_FAILURE,
    CALLS,
};
