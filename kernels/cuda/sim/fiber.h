// A stack of its own for each CUDA thread of a simulated block, and the switch between it and the scheduler. One host thread at a
// time has fibers, and none leaves it. Knows nothing of CUDA.
#ifndef EXPERTD_KERNELS_CUDA_SIM_FIBER_H
#define EXPERTD_KERNELS_CUDA_SIM_FIBER_H

namespace sim {

struct fiber; // suspended, or the one that runs

// A fiber that will call entry(argument) when it is first resumed. Stacks come from a pool.
fiber *fiber_create(void (*entry)(void *argument), void *argument);
void fiber_destroy(fiber *f); // wherever it stands: what lies on its stack is forgotten. NULL is legal

void fiber_resume(fiber *f); // the scheduler: returns when the fiber suspends itself
void fiber_suspend();        // the fiber that runs; one whose entry has ended must never be resumed

} // namespace sim

#endif
