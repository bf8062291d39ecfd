// Fibers: a stack for each CUDA thread of a simulated block, and switching between it and the scheduler. Only one host thread at a
// time uses fibers, and a fiber stays on its host thread.
#ifndef EXPERTD_KERNELS_CUDA_SIM_FIBER_H
#define EXPERTD_KERNELS_CUDA_SIM_FIBER_H

namespace sim {

struct fiber; // suspended or running

// Creates a fiber that calls entry(argument) when it is first resumed. Stacks come from a pool.
fiber *fiber_create(void (*entry)(void *argument), void *argument);
void fiber_destroy(fiber *f); // legal at any point of its execution; no destructors run. NULL is legal

void fiber_resume(fiber *f); // called by the scheduler; returns when the fiber suspends itself
void fiber_suspend();        // called by the running fiber, also when its entry ends; then it must not be resumed

} // namespace sim

#endif
