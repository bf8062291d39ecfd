// Switching takes 20 instructions on x86-64 and uses ucontext elsewhere. Each switch is announced to AddressSanitizer. It would
// intercept swapcontext by itself, but clear the whole stack's shadow every time.
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

constexpr size_t STACK_BYTES = 256 << 10; // address space; pages are allocated on use
constexpr size_t GUARD_BYTES = 4096;      // at its low end, so that a stack overflow faults

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
        abort(); // no address space left for 256 KiB
    }
    return static_cast<char *>(stack);
}

} // namespace

#if defined(__x86_64__)

struct fiber {
    char *stack;
    void *pointer; // the stack pointer while it is suspended
    void (*entry)(void *);
    void *argument;
    void *fake_stack; // of AddressSanitizer
};

// Saves the callee-saved registers, stores the stack pointer in *from and continues at the stack pointer `to`.
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
void *scheduler; // the scheduler's stack pointer while a fiber runs
fiber *running;

#if defined(__SANITIZE_ADDRESS__)
// The scheduler's stack as AddressSanitizer reports it when a fiber is entered.
const void *scheduler_bottom;
size_t scheduler_bytes;
void *scheduler_fake_stack; // with detect_stack_use_after_return

// Unpoisons the fiber's live frames, for the next fiber on this stack. Frames below the stack pointer have returned and are clean.
void forget_frames(fiber *f) {
    __asan_unpoison_memory_region(f->pointer, static_cast<size_t>(f->stack + STACK_BYTES - static_cast<char *>(f->pointer)));
}
void entered() {
    __sanitizer_finish_switch_fiber(running->fake_stack, &scheduler_bottom, &scheduler_bytes);
}
void switch_in(fiber *f) {
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, f->stack + GUARD_BYTES, STACK_BYTES - GUARD_BYTES);
    expertd_sim_switch(&scheduler, f->pointer);
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
}
void switch_out(fiber *f) {
    __sanitizer_start_switch_fiber(&f->fake_stack, scheduler_bottom, scheduler_bytes);
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
    abort(); // an entry must end by suspending itself
}
} // namespace

fiber *fiber_create(void (*entry)(void *), void *argument) {
    char *stack = take_stack();
    // As if `begin` had been called: the return address, aligned as after a call, with six saved registers below it.
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
