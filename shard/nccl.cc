// Links between devices over NCCL: the module's side of device_links.h, and the only file that uses NCCL. It is part of the module,
// not of expertd, and compiled twice: by nvcc, and for the simulated GPU, where <nccl.h> is kernels/cuda/sim/nccl.h.
//
// The library is loaded at run time, since a machine with one GPU does not need it. Communicators are non-blocking: no call waits
// for a peer, so that a rank that never answers can be aborted.
#include <dlfcn.h>
#include <nccl.h>

#include <cstdio>
#include <cstring>

#include "kernels/device/device_links.h"

struct device_link {
    ncclComm_t comm;
    struct expertd_device *device;
};

namespace {

constexpr int VERSION_LEAST = 21800; // the first with this ncclConfig_t, and with an abort that ends operations in progress

// The functions in use, without the prefix "nccl".
#define NCCL_FUNCTIONS(X)                                                                                                          \
    X(GetVersion)                                                                                                                  \
    X(GetUniqueId)                                                                                                                 \
    X(GetErrorString)                                                                                                              \
    X(GetLastError)                                                                                                                \
    X(GroupStart)                                                                                                                  \
    X(GroupEnd)                                                                                                                    \
    X(CommInitRankConfig)                                                                                                          \
    X(CommGetAsyncError)                                                                                                           \
    X(CommFinalize)                                                                                                                \
    X(CommDestroy)                                                                                                                 \
    X(CommAbort)                                                                                                                   \
    X(Send)                                                                                                                        \
    X(Recv)

struct nccl {
#define POINTER(name) decltype(&nccl##name) name;
    NCCL_FUNCTIONS(POINTER)
#undef POINTER
} nccl; // written only by load, before any link exists

enum expertd_device_code failed(ncclResult_t result, ncclComm_t comm, const char *action, struct expertd_device_error *error) {
    const char *more = nccl.GetLastError(comm);
    snprintf(error->message, sizeof error->message, "NCCL, %s: %s%s%.180s", action, nccl.GetErrorString(result),
             more && *more ? ": " : "", more ? more : "");
    return EXPERTD_DEVICE_FAILED;
}

// ncclInProgress is no failure.
enum expertd_device_code started(ncclResult_t result, ncclComm_t comm, const char *action, struct expertd_device_error *error) {
    return result == ncclSuccess || result == ncclInProgress ? EXPERTD_DEVICE_OK : failed(result, comm, action, error);
}

#if defined(SIM_NCCL)
enum expertd_device_code find_functions(struct expertd_device_error *error) {
    if (!sim_nccl_is_there()) {
        snprintf(error->message, sizeof error->message, "the simulated libnccl.so.2 is missing: a planted failure");
        return EXPERTD_DEVICE_MISSING;
    }
#define LINKED(name) nccl.name = nccl##name;
    NCCL_FUNCTIONS(LINKED)
#undef LINKED
    return EXPERTD_DEVICE_OK;
}
#else
enum expertd_device_code find_functions(struct expertd_device_error *error) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(error->message, sizeof error->message,
                 "NCCL cannot be loaded (%.200s): install it (libnccl2, or pip's nvidia-nccl-cu13, on LD_LIBRARY_PATH)", dlerror());
        return EXPERTD_DEVICE_MISSING;
    }
    const char *missing = nullptr;
#define LOOK_UP(name)                                                                                                              \
    nccl.name = (decltype(nccl.name))dlsym(library, "nccl" #name);                                                                 \
    missing = nccl.name ? missing : "nccl" #name;
    NCCL_FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    if (missing) {
        snprintf(error->message, sizeof error->message, "libnccl.so.2 has no %s: NCCL 2.18 or later is needed", missing);
        return EXPERTD_DEVICE_MISSING;
    }
    return EXPERTD_DEVICE_OK;
}
#endif

enum expertd_device_code load(char version[DEVICE_LINKS_TEXT_MAX], struct expertd_device_error *error) {
    int number = 0;
    enum expertd_device_code code = find_functions(error);
    if (code != EXPERTD_DEVICE_OK) {
        return code;
    }
    bool known = nccl.GetVersion(&number) == ncclSuccess && number >= VERSION_LEAST;
    snprintf(version, DEVICE_LINKS_TEXT_MAX, "%d.%d.%d", number / 10000, number / 100 % 100, number % 100);
    if (!known) {
        snprintf(error->message, sizeof error->message, "libnccl.so.2 is version %s: NCCL 2.18 or later is needed", version);
        return EXPERTD_DEVICE_MISSING;
    }
    return EXPERTD_DEVICE_OK;
}

static_assert(sizeof(ncclUniqueId) == sizeof(struct device_link_id), "an id is sent as plain bytes");

enum expertd_device_code make_id(struct device_link_id *out, struct expertd_device_error *error) {
    ncclUniqueId id;
    ncclResult_t result = nccl.GetUniqueId(&id);
    memcpy(out->bytes, &id, sizeof id);
    return result == ncclSuccess ? EXPERTD_DEVICE_OK : failed(result, nullptr, "making an id", error);
}

enum expertd_device_code begin(struct expertd_device_error *error) {
    ncclResult_t result = nccl.GroupStart();
    return result == ncclSuccess ? EXPERTD_DEVICE_OK : failed(result, nullptr, "opening a group", error);
}

enum expertd_device_code end(struct expertd_device_error *error) {
    return started(nccl.GroupEnd(), nullptr, "closing a group", error);
}

enum expertd_device_code join(struct expertd_device *device, const struct device_link_id *id, uint32_t rank, uint32_t ranks,
                              struct device_link **out, struct expertd_device_error *error) {
    *out = nullptr;
    if (!device_enter(device, error)) {
        return EXPERTD_DEVICE_FAILED;
    }
    ncclUniqueId unique;
    memcpy(&unique, id->bytes, sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    struct device_link *link = new device_link{nullptr, device};
    ncclResult_t result = nccl.CommInitRankConfig(&link->comm, (int)ranks, unique, (int)rank, &config);
    enum expertd_device_code code = started(result, link->comm, "joining", error);
    if (code != EXPERTD_DEVICE_OK && !link->comm) {
        delete link;
        return code;
    }
    *out = link; // also after a failure, so that its communicator can be aborted
    return code;
}

enum expertd_device_code transfer(struct device_link *link, const struct device_transfer *transfers, size_t count,
                                  struct expertd_device_error *error) {
    cudaStream_t stream = device_enter(link->device, error);
    if (!stream) {
        return EXPERTD_DEVICE_FAILED;
    }
    enum expertd_device_code code = begin(error);
    if (code != EXPERTD_DEVICE_OK) {
        return code;
    }
    for (size_t i = 0; i < count && code == EXPERTD_DEVICE_OK; i++) {
        const struct device_transfer *t = &transfers[i];
        ncclResult_t result = t->incoming ? nccl.Recv(t->memory, t->bytes, ncclUint8, (int)t->peer, link->comm, stream)
                                          : nccl.Send(t->memory, t->bytes, ncclUint8, (int)t->peer, link->comm, stream);
        code = started(result, link->comm, t->incoming ? "receiving" : "sending", error);
    }
    struct expertd_device_error second; // only the first failure is reported
    enum expertd_device_code closed = end(code == EXPERTD_DEVICE_OK ? error : &second);
    return code == EXPERTD_DEVICE_OK ? closed : code;
}

enum expertd_device_code settled(struct device_link *link, int *busy, struct expertd_device_error *error) {
    ncclResult_t state = ncclSuccess;
    *busy = 0;
    if (!device_enter(link->device, error)) {
        return EXPERTD_DEVICE_FAILED;
    }
    ncclResult_t result = nccl.CommGetAsyncError(link->comm, &state);
    if (result != ncclSuccess) {
        return failed(result, link->comm, "querying its state", error);
    }
    *busy = state == ncclInProgress;
    return started(state, link->comm, "in progress", error);
}

enum expertd_device_code leave(struct device_link *link, struct expertd_device_error *error) {
    return device_enter(link->device, error) ? started(nccl.CommFinalize(link->comm), link->comm, "leaving", error)
                                             : EXPERTD_DEVICE_FAILED;
}

void end_link(struct device_link *link, ncclResult_t (*end)(ncclComm_t)) {
    struct expertd_device_error error;
    if (link) {
        (void)device_enter(link->device, &error); // a lost device's communicator is freed as well
        (void)end(link->comm);
        delete link;
    }
}

void destroy(struct device_link *link) {
    end_link(link, nccl.CommDestroy);
}

void abort_link(struct device_link *link) {
    end_link(link, nccl.CommAbort);
}

} // namespace

extern "C" const struct expertd_device_links expertd_device_links = {load,     make_id, begin, end,     join,
                                                                     transfer, settled, leave, destroy, abort_link};
