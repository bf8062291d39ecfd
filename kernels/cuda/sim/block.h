// Executes the blocks of a simulated kernel one after another: a fiber for each CUDA thread, shared memory filled with NaN,
// barriers, and copies and multiplications that take effect as late as the program allows, so that a missing wait shows. Not
// simulated: weak memory order between threads, concurrent blocks, register pressure, speed. At most one block is simulated at a
// time in a process (stream.h guarantees it), so the state is in plain variables, which are read without a call.
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

// Those of the running CUDA thread.
extern dimensions thread_index, block_index, block_size, grid_size;

struct launch {
    dimensions grid, block; // block.y = block.z = 1
    size_t shared_bytes;
    std::function<void()> kernel; // called once by each thread
};

// Runs every block to its end, one after another. False: *fault describes the fault of a thread and its block; memory keeps what
// the kernel has written.
bool run(const launch &request, std::string *fault);

// ---- for the simulated instructions: called by a CUDA thread

// Ends the kernel with a message: the hardware would trap, hang, or silently compute a wrong result.
[[noreturn]] void fault(const char *format, ...) __attribute__((format(printf, 1, 2)));

unsigned thread_number();
char *shared_memory();                                 // the block's, 1024-byte aligned
uint32_t shared_address(const void *p);                // the offset in shared memory; a fault for other addresses
char *shared_pointer(uint32_t address);                // the inverse of shared_address
void yield();                                          // lets every other runnable thread run once
void wait_while(const uint32_t *word, uint32_t value); // sleeps until *word differs

// bar.sync: waits until `threads` threads have called it. id: 0 to 15.
void sync_threads(unsigned id, unsigned threads);

// Executes a warp-collective instruction. Each lane passes its operands; the last lane to arrive calls execute(operands), which has
// those of all lanes by lane number.
void sync_lanes(const char *instruction, void *operands, void (*execute)(void *const *operands));

// mbarrier: a phase ends after `count` arrivals and all announced bytes.
void barrier_init(const void *barrier, unsigned count);
void barrier_arrive(const void *barrier, unsigned announced_bytes);
void barrier_wait(const void *barrier, unsigned parity);    // until the phase with that parity has ended
void barrier_complete(const void *barrier, unsigned bytes); // called by the copy engine

// Executes the copy when no thread can continue without it.
void copy_later(std::function<void()> copy);

// A deferred operation with its captured values in place. A kernel has millions of them, and an allocation for each would take
// most of the time.
class deferred {
  public:
    template <typename Operation> deferred(const Operation &operation) : call(call_as<Operation>) {
        static_assert(sizeof operation <= sizeof captured && std::is_trivially_copyable_v<Operation>,
                      "the captured values do not fit");
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

// Operations that a thread starts, commits in groups and waits for. Each takes effect only when the thread waits for it.
enum queue_kind { QUEUE_MULTIPLY, QUEUE_STORE, QUEUE_COPY, QUEUE_KINDS };
void queue_add(queue_kind kind, const deferred &operation);
void queue_commit(queue_kind kind);
void queue_wait(queue_kind kind, size_t groups_left);
// The thread's uncommitted operations take effect later, and then arrive at the mbarrier.
void queue_arrive(queue_kind kind, const void *barrier);

// Writes through the generic proxy (ordinary stores, stmatrix, cp.async) are visible to the copy engine and wgmma only after a
// fence.proxy.async, either of the writing thread or, once the write has happened, of the thread that starts the reader.
void mark_generic_write(unsigned thread, uint32_t address, uint32_t bytes);
void mark_async_write(uint32_t address); // the copy engine has overwritten the 4 bytes at `address`
void fence_proxy();
uint64_t fence_time(); // of the running thread: a reader that it starts now sees writes up to this time
// Was `address` written through the generic proxy after that time and not fenced since?
bool is_unfenced(uint32_t address, uint64_t time);

// setmaxnreg: the thread has `count` registers from now on. If these are more, it waits until other threads have released enough.
// At first the threads of a block share all registers of a multiprocessor equally.
void registers_set(unsigned count, bool more);

} // namespace sim

#endif
