// The program's threads, in turns on one CPU: another one is taken at a system call, where a thread waits, yields, ends or reads
// the clock (a spinning loop does). Their vector registers need not be kept: a call of a C function leaves none of them standing.
#ifndef EXPERTD_TESTS_EMULATED_THREADS_H
#define EXPERTD_TESTS_EMULATED_THREADS_H

#include <stdbool.h>
#include <stdint.h>

// Of the thread that runs.
int thread_id(void);
void thread_clear_at_end(uint64_t word); // set_tid_address
void thread_set_pointer(uint64_t base);  // arch_prctl

// clone of a thread that shares everything: the new one's number, or -EAGAIN. Numbers are from 1.
int thread_start(uint64_t flags, uint64_t stack, uint64_t parent_word, uint64_t child_word, uint64_t pointer);

// Ends of the running thread's system call, with `result` or what a FUTEX_WAIT gives: another thread goes on where one can, with
// its registers in the CPU. Where all wait for good the program ends, and stderr says so.
void thread_yield(int64_t result);
void thread_wait(uint64_t word, int64_t timeout_ns); // a negative time: for good
void thread_end(void);

// Up to `count` that wait for the word; how many there were.
int threads_wake(uint64_t word, uint32_t count);

#endif
