// One block of a simulated kernel at a time: a fiber for each CUDA thread, shared memory poisoned with NaN, barriers, and copies
// and multiplications that take effect as late as the program allows, so that whoever does not wait for them sees it. Not seen:
// weak memory between threads, blocks that run together, registers, speed. One block is simulated at a time in a process, whatever
// the host thread (runtime.h sees to that): what all of it shares lies in plain variables, which are read without a call.
#ifndef EXPERTD_KERNELS_CUDA_SIM_BLOCK_H
#define EXPERTD_KERNELS_CUDA_SIM_BLOCK_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <new>
#include <string>
#include <type_traits>

namespace sim {

struct dimensions {
    unsigned x = 1, y = 1, z = 1;
    constexpr dimensions() = default;
    constexpr dimensions(unsigned x_, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {
    }
};

// Of the CUDA thread that runs.
extern dimensions thread_index, block_index, block_size, grid_size;

struct launch {
    dimensions grid, block; // block.y = block.z = 1
    size_t shared_bytes;
    std::function<void()> kernel; // called once in each thread
};

// Runs every block to its end, one after another. False: *fault says what a thread did, and in which block; memory is as it was
// left.
bool run(const launch &what, std::string *fault);

// ---- for what stands in for instructions: called by a CUDA thread

// Ends the kernel with a message; what the hardware would trap on, hang on, or quietly get wrong.
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

unsigned thread_number();
char *shared_memory();                                 // of the block: 1024-byte aligned
uint32_t shared_address(const void *p);                // within shared memory; a fault outside it
char *shared_pointer(uint32_t address);                // the same back
void give_way();                                       // every other thread that can run gets its turn
void wait_while(const uint32_t *word, uint32_t value); // sleeps until *word differs

// bar.sync: `threads` of them meet. id 0 to 15.
void meet(unsigned id, unsigned threads);

// The lanes of a warp meet in the instruction `what`; the last to come calls all(slots), where slots[lane] is what each brought.
void meet_warp(const char *what, void *mine, void (*all)(void *const *slots));

// mbarrier: a phase ends when `count` arrivals and all announced bytes are there.
void barrier_init(const void *barrier, unsigned count);
void barrier_arrive(const void *barrier, unsigned announced_bytes);
void barrier_wait(const void *barrier, unsigned parity);    // until the phase of that parity has ended
void barrier_complete(const void *barrier, unsigned bytes); // the copy engine's

// Lands when no thread can go on without it.
void copy_later(std::function<void()> copy);

// An operation for later, with what it captured in place: a kernel has millions, and an allocation for each would take most of
// their time.
class deferred {
  public:
    template <typename Operation> deferred(const Operation &operation) : call(call_as<Operation>) {
        static_assert(sizeof operation <= sizeof captured && std::is_trivially_copyable_v<Operation>,
                      "what it captured has no room");
        new (captured) Operation(operation);
    }
    void operator()() const {
        call(captured);
    }

  private:
    template <typename Operation> static void call_as(const void *captured) {
        (*static_cast<const Operation *>(captured))();
    }
    alignas(8) unsigned char captured[112];
    void (*call)(const void *captured);
};

// Operations that a thread starts, gathers into groups and waits for: each takes effect only when it is waited for.
enum queue_kind { QUEUE_MULTIPLY, QUEUE_STORE, QUEUE_COPY, QUEUE_KINDS };
void queue_add(queue_kind kind, const deferred &operation);
void queue_commit(queue_kind kind);
void queue_wait(queue_kind kind, size_t groups_left);
// The thread's open operations take effect late, and then it arrives at the mbarrier.
void queue_arrive(queue_kind kind, const void *barrier);

// Ordinary writes to shared memory, cp.async's among them, reach the copy engine and wgmma only past a fence.proxy.async: of the
// thread that wrote, or of the one that starts the reader, once the write was there for it to see.
void mark_written(unsigned thread, uint32_t address, uint32_t bytes);
void mark_unwritten(uint32_t address); // the copy engine wrote there since; `address` and the 3 bytes behind it
void fence_written();
uint64_t fenced_until();                           // of the running thread: what a reader that it starts now may see
bool is_written(uint32_t address, uint64_t until); // and is not fenced for a reader started then

// setmaxnreg: the thread has `count` registers from now on; where they are more it waits for others' to be given back. A block
// starts with all that a multiprocessor has, in equal shares.
void registers_set(unsigned count, bool more);

} // namespace sim

#endif
