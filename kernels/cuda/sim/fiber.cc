// The switch is 20 instructions on x86-64, ucontext elsewhere. AddressSanitizer is told of each: of swapcontext, which it knows by
// itself, it would clear the whole stack's shadow every time.
#include "kernels/cuda/sim/fiber.h"

#include <cstdint>
#include <cstdlib>
#include <sys/mman.h>
#include <ucontext.h>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace sim {

namespace {

constexpr size_t STACK_BYTES = 256 << 10; // touched as far as a kernel needs
constexpr size_t GUARD_BYTES = 4096;      // below it: a kernel that overruns dies at once

struct stacks {
    std::vector<char *> free;
    ~stacks() {
        for (char *stack : free) {
            munmap(stack, STACK_BYTES);
        }
    }
};
stacks pool;

char *take_stack() {
    if (!pool.free.empty()) {
        char *stack = pool.free.back();
        pool.free.pop_back();
        return stack;
    }
    void *stack =
        mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, GUARD_BYTES, PROT_NONE) != 0) {
        abort(); // the machine has no address space left for 256 KiB
    }
    return static_cast<char *>(stack);
}

} // namespace

#if defined(__x86_64__)

struct fiber {
    char *stack;
    void *pointer; // of its stack, while it is suspended
    void (*entry)(void *);
    void *argument;
    void *frames; // AddressSanitizer's
};

// Saves what a callee must keep, leaves the stack pointer in *from and goes on where `to` was left.
extern "C" void expertd_sim_switch(void **from, void *to);
asm(R"(
.text
.globl expertd_sim_switch
.hidden expertd_sim_switch
.type expertd_sim_switch, @function
expertd_sim_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size expertd_sim_switch, .-expertd_sim_switch
)");

namespace {
void *scheduler; // its stack, while a fiber runs
fiber *running;

#if defined(__SANITIZE_ADDRESS__)
// The scheduler's stack, as AddressSanitizer has it: learnt when a fiber is entered from it.
const void *scheduler_bottom;
size_t scheduler_bytes;
void *scheduler_frames; // it keeps those that outlive a return there, where it is asked to look for their use

// The frames above where it stands are no frames of the next one; those below have ended, and are clean.
void forget_frames(fiber *f) {
    __asan_unpoison_memory_region(f->pointer, static_cast<size_t>(f->stack + STACK_BYTES - static_cast<char *>(f->pointer)));
}
void entered() {
    __sanitizer_finish_switch_fiber(running->frames, &scheduler_bottom, &scheduler_bytes);
}
void switch_in(fiber *f) {
    __sanitizer_start_switch_fiber(&scheduler_frames, f->stack + GUARD_BYTES, STACK_BYTES - GUARD_BYTES);
    expertd_sim_switch(&scheduler, f->pointer);
    __sanitizer_finish_switch_fiber(scheduler_frames, nullptr, nullptr);
}
void switch_out(fiber *f) {
    __sanitizer_start_switch_fiber(&f->frames, scheduler_bottom, scheduler_bytes);
    expertd_sim_switch(&f->pointer, scheduler);
    entered();
}
#else
void forget_frames(fiber *) {
}
void entered() {
}
void switch_in(fiber *f) {
    expertd_sim_switch(&scheduler, f->pointer);
}
void switch_out(fiber *f) {
    expertd_sim_switch(&f->pointer, scheduler);
}
#endif

void begin() {
    entered();
    running->entry(running->argument);
    abort(); // an entry ends by suspending itself
}
} // namespace

fiber *fiber_create(void (*entry)(void *), void *argument) {
    char *stack = take_stack();
    // As if `begin` had been called: its return address is aligned as after a call, six registers lie below.
    uintptr_t *top = reinterpret_cast<uintptr_t *>(stack + STACK_BYTES) - 2;
    *top = reinterpret_cast<uintptr_t>(begin);
    for (int i = 1; i <= 6; i++) {
        top[-i] = 0;
    }
    return new fiber{stack, top - 6, entry, argument, nullptr};
}

void fiber_resume(fiber *f) {
    running = f;
    switch_in(f);
}

void fiber_suspend() {
    switch_out(running);
}

#else

struct fiber {
    char *stack;
    ucontext_t context;
    void (*entry)(void *);
    void *argument;
};

namespace {
ucontext_t scheduler;
fiber *running;

void begin() {
    running->entry(running->argument);
    abort();
}
void forget_frames(fiber *) {
}
} // namespace

fiber *fiber_create(void (*entry)(void *), void *argument) {
    fiber *f = new fiber{take_stack(), {}, entry, argument};
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack + GUARD_BYTES;
    f->context.uc_stack.ss_size = STACK_BYTES - GUARD_BYTES;
    f->context.uc_link = nullptr;
    makecontext(&f->context, begin, 0);
    return f;
}

void fiber_resume(fiber *f) {
    running = f;
    swapcontext(&scheduler, &f->context);
}

void fiber_suspend() {
    swapcontext(&running->context, &scheduler);
}

#endif

void fiber_destroy(fiber *f) {
    if (f) {
        forget_frames(f);
        pool.free.push_back(f->stack);
        delete f;
    }
}

} // namespace sim
