// <nccl.h> for the simulated GPU: the part of NCCL that shard/nccl.cc uses, between the simulated GPUs of this process. C and C++.
//
// It is as lazy and as strict as the rest of the simulation:
// - A join ends when every rank has joined and has polled ncclCommGetAsyncError twice.
// - A group gets its position in its streams at the third poll. Work that is put into such a stream before is a fault.
// - A transfer moves its bytes when the streams of both ranks have reached their groups and all transfers in both have their peers.
// - The last rank's abort waits for the work that precedes the groups of all ranks in their streams, for as long as that takes.
// It reports with a message, instead of a hang or a wrong result: counts that differ, memory that is freed or of another device,
// another device's stream, transfers of no bytes, a communicator that does not exist, a blocking communicator, waiting for a stream
// that is blocked for ever. Not simulated: transports, topology, speed, partly written memory after an abort, ranks in other
// processes.
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

// sim_fail (test_control.h) accepts the names of these functions, and
//   "ncclLibrary"     the library is missing
//   "ncclNeverJoins"  a rank's join is lost
//   "ncclJoin"        an error after all ranks have joined
//   "ncclTransfer"    an error when a stream reaches a group
//   "ncclStuck"       a group whose rank never answers
//   "ncclLate"        a group whose rank answers after SIM_NCCL_LATE_MS
enum { SIM_NCCL_LATE_MS = 60, SIM_NCCL_POLL_MS = 2 };
int sim_nccl_is_there(void);         // false: "ncclLibrary" is planted
size_t sim_nccl_communicators(void); // number of communicators that were not destroyed

#ifdef __cplusplus
} // extern "C"
#endif

#endif
