// Kernels that each make one mistake that the simulation must detect.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_CUDA_FAULTY_KERNELS_H
#define EXPERTD_TESTS_UNIT_KERNELS_CUDA_FAULTY_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

// Each kernel gets `tensor`, 64 x 64 bf16 on the device, and `out`, a word on the device. Launched as one block of 128 threads.
enum faulty_kernel {
    FAULTY_NONE,          // loads a tile, waits, and counts its elements that are 1 into out
    FAULTY_DOES_NOT_WAIT, // the same without waiting for the tile
    FAULTY_WAITS_FOREVER, // for a barrier at which no thread arrives
    FAULTY_ARRIVES_TOO_OFTEN,
    FAULTY_USES_NO_BARRIER, // uses a barrier that was never initialised
    FAULTY_LOADS_UNALIGNED,
    FAULTY_STORES_UNFENCED,         // stores ordinary writes by the copy engine without a fence
    FAULTY_ENDS_TOO_EARLY,          // ends while the copy engine still reads its shared memory
    FAULTY_DIVERGES,                // lanes of one warp execute different collective instructions
    FAULTY_DISAGREES,               // threads pass different thread counts to a barrier
    FAULTY_MULTIPLIES_UNFENCED,     // starts wgmma on data of cp.async without a fence
    FAULTY_FENCES_TOO_EARLY,        // executes the fence before the copies have arrived
    FAULTY_RELEASES_TOO_EARLY,      // overwrites an operand that wgmma still reads
    FAULTY_WRITES_OPERAND,          // writes registers of wgmma's first operand before it is waited for
    FAULTY_LOADS_BYTES_UNALIGNED,   // by the copy engine
    FAULTY_COPIES_ARRIVE_TOO_OFTEN, // at an mbarrier
    FAULTY_MIXES_COPIES,            // arrives at an mbarrier for copies that are also in groups
    FAULTY_COPIES_UNALIGNED,
    FAULTY_LEAVES_COPIES, // ends while cp.async is in flight
    FAULTY_READS_MATRIX_UNALIGNED,
    FAULTY_TAKES_TOO_MANY_REGISTERS, // that no other thread releases
    FAULTY_RAISES_REGISTERS_DOWN,    // setmaxnreg.inc to fewer
    FAULTY_TRAPS,
};
int faulty_kernel_launch(enum faulty_kernel kind, void *tensor, uint32_t *out, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
