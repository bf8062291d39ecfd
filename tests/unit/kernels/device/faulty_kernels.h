// Kernels that each make one mistake, for the test that the simulation notices it.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_DEVICE_FAULTY_KERNELS_H
#define EXPERTD_TESTS_UNIT_KERNELS_DEVICE_FAULTY_KERNELS_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st;

// Each takes `tensor`, 64 x 64 bf16 on the device, and `out`, a word there; launched as one block of 128 threads.
enum faulty_kernel {
    FAULTY_NONE,          // loads a tile, waits, and counts its elements that are 1 into out
    FAULTY_DOES_NOT_WAIT, // the same without waiting: what it reads is not there yet
    FAULTY_WAITS_FOREVER, // for a barrier at which nobody arrives
    FAULTY_ARRIVES_TOO_OFTEN,
    FAULTY_USES_NO_BARRIER, // one that was never initialised
    FAULTY_LOADS_UNALIGNED,
    FAULTY_STORES_UNFENCED,         // gives the copy engine what ordinary stores wrote, without the fence between
    FAULTY_ENDS_TOO_EARLY,          // while the copy engine still reads its shared memory
    FAULTY_DIVERGES,                // lanes of one warp in two collective instructions
    FAULTY_DISAGREES,               // on how many threads meet at a barrier
    FAULTY_MULTIPLIES_UNFENCED,     // wgmma on what cp.async brought, without the fence between
    FAULTY_FENCES_TOO_EARLY,        // before the copies are there
    FAULTY_GIVES_BACK_TOO_EARLY,    // copies over an operand that wgmma still reads
    FAULTY_WRITES_OPERAND,          // the registers of wgmma's first operand, before it is waited for
    FAULTY_LOADS_BYTES_UNALIGNED,   // by the copy engine
    FAULTY_COPIES_ARRIVE_TOO_OFTEN, // at an mbarrier
    FAULTY_MIXES_COPIES,            // an mbarrier is told of copies that are also in groups
    FAULTY_COPIES_UNALIGNED,
    FAULTY_LEAVES_COPIES, // ends while cp.async is under way
    FAULTY_READS_MATRIX_UNALIGNED,
    FAULTY_TAKES_TOO_MANY_REGISTERS, // that nobody gives back
    FAULTY_RAISES_REGISTERS_DOWN,    // setmaxnreg.inc to fewer
    FAULTY_TRAPS,
};
int faulty_kernel_launch(enum faulty_kernel kind, void *tensor, uint32_t *out, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif
