#include "kernels/cuda/sim/block.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <vector>

#include "kernels/cuda/sim/fiber.h"

namespace sim {

dimensions thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t SHARED_ALIGN = 1024;
constexpr unsigned WARP = 32, NAMED_BARRIERS = 16, THREADS_MAX = 1024;
constexpr unsigned REGISTERS = 65536, REGISTERS_OF_THREAD = 248; // a multiple of 8 below 255

struct queue {
    std::vector<deferred> operations; // of the committed groups, then the uncommitted ones
    std::vector<size_t> ends;         // the index after each group's last operation
};

struct thread {
    fiber *stack = nullptr; // NULL: not begun, or ended
    queue queues[QUEUE_KINDS];
    std::vector<uint32_t> unfenced; // words of shared memory that it wrote since its last fence
    uint64_t fenced = 0;            // when it last executed fence.proxy.async
    unsigned registers = 0;
};

// A thread sleeps while *word == value. These structs have an array of their own, which the scheduler reads in each round, without
// the rest of each thread.
struct sleep {
    const uint32_t *word;
    uint32_t value;
};
constexpr uint32_t NEVER = 1, ALWAYS = 0;
constexpr sleep AWAKE = {&NEVER, 0}, ENDED = {&ALWAYS, 0};

struct named_barrier {
    uint32_t arrived, generation, threads;
};

struct warp {
    uint32_t arrived = 0, generation = 0;
    const char *instruction = nullptr;
    void *operands[WARP];
};

struct phase_barrier {
    unsigned count, pending;
    int64_t bytes; // announced and not arrived yet; negative if a copy arrives before its announcement
    uint32_t phase;
};

// The latest generic write to a word of shared memory. time 0: written by the copy engine, or fenced since.
struct write {
    uint64_t time;
    unsigned thread;
};

struct block {
    explicit block(const launch &l)
        : request(l), threads(l.block.x), sleeps(l.block.x), warps((l.block.x + WARP - 1) / WARP),
          written((l.shared_bytes + 3) / 4), memory(l.shared_bytes + SHARED_ALIGN) {
        uintptr_t base = (reinterpret_cast<uintptr_t>(memory.data()) + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
        shared = reinterpret_cast<char *>(base);
    }
    ~block() {
        for (thread &t : threads) {
            fiber_destroy(t.stack);
        }
    }
    // Resets the state for the next block. `written` is kept: all earlier writes count as fenced.
    void begin() {
        memset(shared, 0xff, request.shared_bytes); // NaN as float and as bf16
        unsigned share = std::min(REGISTERS / request.block.x / 8 * 8, REGISTERS_OF_THREAD);
        for (thread &t : threads) {
            t.unfenced.clear();
            t.fenced = time;
            t.registers = share;
        }
        std::fill(sleeps.begin(), sleeps.end(), AWAKE);
        left = static_cast<unsigned>(threads.size());
        std::fill(warps.begin(), warps.end(), warp());
        std::fill(named, named + NAMED_BARRIERS, named_barrier());
        phases.clear();
        registers_free = registers_changed = 0;
    }
    const launch &request;
    std::vector<thread> threads;
    std::vector<sleep> sleeps; // by thread
    std::vector<warp> warps;
    named_barrier named[NAMED_BARRIERS] = {};
    std::map<const void *, phase_barrier> phases;
    std::deque<std::function<void()>> in_flight; // copies into shared memory, oldest first
    std::vector<write> written;                  // by word of shared memory
    uint64_t time = 0;                           // counts writes
    unsigned registers_free = 0;                 // released by setmaxnreg
    uint32_t registers_changed = 0;
    std::vector<char> memory;
    char *shared;
    unsigned left = 0;    // number of threads that have not ended
    unsigned running = 0; // the running thread
    std::string message;  // the first fault; empty: none
};

block *current;

thread &self() {
    return current->threads[current->running];
}

// A thread must not end while its operations need the block's memory.
void check_end() {
    thread &t = self();
    for (const queue &q : t.queues) {
        if (!q.operations.empty() || !q.ends.empty()) {
            fault("thread %u ended while operations that it started were in flight", current->running);
        }
    }
}

void thread_main(void *) {
    current->request.kernel();
    check_end();
    current->sleeps[current->running] = ENDED;
    current->left--;
    fiber_suspend();
}

void run_thread(unsigned number) {
    thread &t = current->threads[number];
    current->sleeps[number] = AWAKE;
    if (!t.stack) {
        t.stack = fiber_create(thread_main, nullptr);
    }
    current->running = number;
    thread_index = {number, 0, 0};
    fiber_resume(t.stack);
    if (current->sleeps[number].word == ENDED.word) { // its stack is free for another thread
        fiber_destroy(t.stack);
        t.stack = nullptr;
    }
}

// Runs every runnable thread once. False: no thread was runnable.
bool run_round() {
    bool ran = false;
    const sleep *sleeps = current->sleeps.data();
    for (unsigned i = 0, threads = current->request.block.x; i < threads; i++) {
        if (*sleeps[i].word != sleeps[i].value) {
            run_thread(i);
            ran = true;
            if (!current->message.empty()) {
                break;
            }
        }
    }
    return ran;
}

bool land_copy() {
    if (current->in_flight.empty()) {
        return false;
    }
    std::function<void()> copy = std::move(current->in_flight.front());
    current->in_flight.pop_front();
    copy();
    return true;
}

void run_block() {
    block &b = *current;
    for (;;) {
        while (b.message.empty() && run_round()) {
        }
        if (!b.message.empty() || b.left == 0) {
            break;
        }
        if (!land_copy()) {
            b.message = "deadlock: " + std::to_string(b.left) + " threads wait for each other";
            break;
        }
    }
    if (b.message.empty() && !b.in_flight.empty()) {
        b.message = "the block ended while copies into its shared memory were in flight";
    }
}

bool check_launch(const launch &request, std::string *fault) {
    const dimensions &g = request.grid, &b = request.block;
    if (b.x == 0 || b.y != 1 || b.z != 1 || b.x > THREADS_MAX || g.x == 0 || g.y == 0 || g.z == 0 || g.y > 65535 || g.z > 65535) {
        *fault = "invalid configuration: blocks of " + std::to_string(b.x) + " x " + std::to_string(b.y) + ", a grid of " +
                 std::to_string(g.x) + " x " + std::to_string(g.y);
        return false;
    }
    return true;
}

} // namespace

bool run(const launch &request, std::string *fault) {
    if (!check_launch(request, fault)) {
        return false;
    }
    block_size = request.block;
    grid_size = request.grid;
    if (current) {
        abort(); // nested or concurrent use
    }
    block b(request);
    current = &b;
    for (unsigned z = 0; z < request.grid.z; z++) {
        for (unsigned y = 0; y < request.grid.y; y++) {
            for (unsigned x = 0; x < request.grid.x && b.message.empty(); x++) {
                b.begin();
                block_index = {x, y, z};
                run_block();
            }
        }
    }
    current = nullptr;
    if (!b.message.empty()) {
        *fault = "block " + std::to_string(block_index.x) + "," + std::to_string(block_index.y) + ": " + b.message;
    }
    return b.message.empty();
}

void fault(const char *format, ...) {
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    if (current->message.empty()) {
        current->message = text;
    }
    for (;;) {
        fiber_suspend(); // never resumed: the kernel has ended
    }
}

unsigned thread_number() {
    return current->running;
}

char *shared_memory() {
    return current->shared;
}

uint32_t shared_address(const void *p) {
    size_t at = static_cast<size_t>(static_cast<const char *>(p) - current->shared);
    if (at > current->request.shared_bytes) {
        fault("thread %u uses an address outside shared memory as a shared address", current->running);
    }
    return static_cast<uint32_t>(at);
}

char *shared_pointer(uint32_t address) {
    return current->shared + address;
}

void yield() {
    fiber_suspend();
}

void wait_while(const uint32_t *word, uint32_t value) {
    while (*word == value) {
        current->sleeps[current->running] = {word, value};
        fiber_suspend();
    }
}

void sync_threads(unsigned id, unsigned threads) {
    named_barrier &b = current->named[id];
    if (b.arrived > 0 && b.threads != threads) {
        fault("barrier %u: thread %u waits for %u threads, others for %u", id, current->running, threads, b.threads);
    }
    b.threads = threads;
    uint32_t generation = b.generation;
    if (++b.arrived == threads) {
        b.arrived = 0;
        b.generation++;
        return;
    }
    wait_while(&b.generation, generation);
}

void sync_lanes(const char *instruction, void *operands, void (*execute)(void *const *)) {
    unsigned number = current->running, first = number / WARP * WARP;
    unsigned lanes = std::min<unsigned>(WARP, static_cast<unsigned>(current->threads.size()) - first);
    warp &w = current->warps[number / WARP];
    if (w.arrived > 0 && w.instruction != instruction && strcmp(w.instruction, instruction) != 0) {
        fault("thread %u executes %s while others of its warp execute %s", number, instruction, w.instruction);
    }
    w.instruction = instruction;
    w.operands[number - first] = operands;
    uint32_t generation = w.generation;
    if (++w.arrived == lanes) {
        execute(w.operands);
        w.arrived = 0;
        w.generation++;
        return;
    }
    wait_while(&w.generation, generation);
}

// ---- mbarriers

namespace {

phase_barrier &phase_at(const void *barrier) {
    auto found = current->phases.find(barrier);
    if (found == current->phases.end()) {
        fault("thread %u uses an mbarrier that was not initialised", current->running);
    }
    return found->second;
}

void end_phase(phase_barrier &b) {
    if (b.pending == 0 && b.bytes == 0) {
        b.phase ^= 1;
        b.pending = b.count;
    }
}

} // namespace

void barrier_init(const void *barrier, unsigned count) {
    current->phases[barrier] = {count, count, 0, 0};
}

void barrier_arrive(const void *barrier, unsigned announced_bytes) {
    phase_barrier &b = phase_at(barrier);
    if (b.pending == 0) {
        fault("thread %u: more arrivals at an mbarrier than its count of %u", current->running, b.count);
    }
    b.bytes += announced_bytes;
    b.pending--;
    end_phase(b);
}

void barrier_wait(const void *barrier, unsigned parity) {
    phase_barrier &b = phase_at(barrier);
    wait_while(&b.phase, parity);
}

void barrier_complete(const void *barrier, unsigned bytes) {
    auto found = current->phases.find(barrier);
    if (found != current->phases.end()) {
        found->second.bytes -= bytes;
        end_phase(found->second);
    }
}

// ---- deferred operations

void copy_later(std::function<void()> copy) {
    current->in_flight.push_back(std::move(copy));
}

void queue_add(queue_kind kind, const deferred &operation) {
    self().queues[kind].operations.push_back(operation);
}

void queue_commit(queue_kind kind) {
    queue &q = self().queues[kind];
    q.ends.push_back(q.operations.size());
}

void queue_wait(queue_kind kind, size_t groups_left) {
    queue &q = self().queues[kind];
    if (q.ends.size() <= groups_left) {
        return;
    }
    const size_t groups = q.ends.size() - groups_left, operations = q.ends[groups - 1];
    for (size_t i = 0; i < operations; i++) {
        q.operations[i]();
    }
    q.operations.erase(q.operations.begin(), q.operations.begin() + static_cast<ptrdiff_t>(operations));
    q.ends.erase(q.ends.begin(), q.ends.begin() + static_cast<ptrdiff_t>(groups));
    for (size_t &end : q.ends) {
        end -= operations;
    }
}

void queue_arrive(queue_kind kind, const void *barrier) {
    queue &q = self().queues[kind];
    if (!q.ends.empty()) {
        fault("thread %u: an mbarrier waits for the thread's copies, of which some are already committed to groups",
              current->running);
    }
    phase_barrier &b = phase_at(barrier);
    copy_later([operations = std::move(q.operations), &b] {
        for (const deferred &operation : operations) {
            operation();
        }
        if (b.pending == 0) { // fault() would need a running thread
            current->message = "more arrivals of copies at an mbarrier than its count of " + std::to_string(b.count);
            return;
        }
        b.pending--;
        end_phase(b);
    });
    q.operations.clear();
}

// ---- registers

void registers_set(unsigned count, bool more) {
    thread &t = self();
    if (more != (count > t.registers)) {
        fault("thread %u: setmaxnreg to %u registers from %u", current->running, count, t.registers);
    }
    while (more && current->registers_free < count - t.registers) {
        wait_while(&current->registers_changed, current->registers_changed);
    }
    current->registers_free += t.registers - count; // modulo 2^32: a negative difference reduces the count
    t.registers = count;
    current->registers_changed++;
}

// ---- the generic and the async proxy

void mark_generic_write(unsigned thread, uint32_t address, uint32_t bytes) {
    uint64_t time = ++current->time;
    for (uint32_t word = address / 4; word < (address + bytes + 3) / 4; word++) {
        current->written[word] = {time, thread};
        current->threads[thread].unfenced.push_back(word);
    }
}

void mark_async_write(uint32_t address) {
    current->written[address / 4].time = 0;
}

void fence_proxy() {
    thread &t = self();
    for (uint32_t word : t.unfenced) {
        if (current->written[word].thread == current->running) {
            current->written[word].time = 0;
        }
    }
    t.unfenced.clear();
    t.fenced = current->time;
}

uint64_t fence_time() {
    return self().fenced;
}

bool is_unfenced(uint32_t address, uint64_t time) {
    return current->written[address / 4].time > time;
}

} // namespace sim
