// The part of NCCL that shard/nccl.cc uses, between the simulated GPUs of this process, with the names of the real <nccl.h>. C and
// C++.
//
// As lazy and as strict as the rest of the simulation. A join ends when every rank has joined and has asked twice; a group gets its
// place in its streams when it is asked about for the third time, and work put there before that is a fault. A transfer moves its
// bytes when the streams of both sides have reached their groups, and not before everything in both groups has its other side. The
// last rank's abort waits for what stands before the groups of all in their streams, as long as that takes. Told with a message
// instead of a hang or a wrong answer: counts that differ, memory of another device or of nobody, another device's stream, no
// bytes, a communicator that is gone, a blocking one, a stream that is waited for while it stands still for ever. It cannot see:
// transports, topology, speed, what an abort leaves half written, ranks in other processes.
#ifndef EXPERTD_KERNELS_CUDA_SIM_NCCL_H
#define EXPERTD_KERNELS_CUDA_SIM_NCCL_H

#include "kernels/cuda/sim/runtime.h"

#define SIM_NCCL 1

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    ncclSuccess = 0,
    ncclUnhandledCudaError = 1,
    ncclSystemError = 2,
    ncclInternalError = 3,
    ncclInvalidArgument = 4,
    ncclInvalidUsage = 5,
    ncclRemoteError = 6,
    ncclInProgress = 7
} ncclResult_t;
typedef enum { ncclUint8 = 1 } ncclDataType_t;
typedef struct ncclComm *ncclComm_t;
typedef struct {
    char internal[128];
} ncclUniqueId;
typedef struct {
    int blocking;
} ncclConfig_t;
#define NCCL_CONFIG_INITIALIZER                                                                                                    \
    { 1 }

ncclResult_t ncclGetVersion(int *version);
ncclResult_t ncclGetUniqueId(ncclUniqueId *id);
const char *ncclGetErrorString(ncclResult_t result);
const char *ncclGetLastError(ncclComm_t comm);
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);
ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclSend(const void *from, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);
ncclResult_t ncclRecv(void *to, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream);

// sim_fail takes each of these names too, and: "ncclLibrary" (it is not there), "ncclNeverJoins" (the join that is lost),
// "ncclJoin" (an error once all have joined), "ncclTransfer" (an error when a group is reached), "ncclStuck" (a group whose rank
// never answers), "ncclLate" (one that does after SIM_NCCL_LATE_MS).
enum { SIM_NCCL_LATE_MS = 60, SIM_NCCL_LOOK_MS = 2 };
int sim_nccl_is_there(void);
size_t sim_nccl_communicators(void); // that were not destroyed

#ifdef __cplusplus
} // extern "C"
#endif

#endif
