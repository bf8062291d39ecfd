// The program's threads, run by turns on one CPU. Threads are switched at system calls only: when a thread waits, yields, ends or
// reads the clock (as a spinning loop does). Vector registers are not saved: the C library's wrapper of a system call is a function
// call, which preserves none.
#ifndef EXPERTD_TESTS_EMULATED_THREADS_H
#define EXPERTD_TESTS_EMULATED_THREADS_H

#include <stdbool.h>
#include <stdint.h>

// These apply to the running thread.
int thread_id(void);
void thread_clear_at_end(uint64_t word); // set_tid_address
void thread_set_pointer(uint64_t base);  // arch_prctl

// clone of a thread that shares everything. Returns the new thread's number (from 2 up), or -EAGAIN.
int thread_start(uint64_t flags, uint64_t stack, uint64_t parent_word, uint64_t child_word, uint64_t pointer);

// Each ends the running thread's system call, with `result` or the result of a FUTEX_WAIT, and loads the registers of the next
// ready thread into the CPU. If every thread waits without a timeout the program ends, with a line on stderr.
void thread_yield(int64_t result);
void thread_wait(uint64_t word, int64_t timeout_ns); // negative: no timeout
void thread_end(void);

// Wakes up to `count` threads that wait for the word. Returns how many it woke.
int threads_wake(uint64_t word, uint32_t count);

#endif
