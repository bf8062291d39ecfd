// The emulated CPU in 64-bit user mode, and what it does at a system call and at a fault.
#ifndef EXPERTD_TESTS_EMULATED_CPU_H
#define EXPERTD_TESTS_EMULATED_CPU_H

#include <stdbool.h>
#include <stdint.h>

#include "bochs.h"

// Makes a CPU of Bochs's model (skylake-x, icelake, tigerlake or sapphire-rapids), with the tile unit (tiles.h) or without; false,
// with a line on stderr, for another model. `library` is the package's, as dlopen gave it. After memory_create; once in a process.
bool cpu_create(void *library, const char *model, bool tiles);

// Runs the program from `entry` on; never returns, as the program ends the process (end_program).
_Noreturn void cpu_run(uint64_t entry, uint64_t stack);

// Ends the process with this status: what the program wrote is written already.
_Noreturn void end_program(int status);

// A line on stderr at the program's end: how many instructions it took from `from` up to `to`, which are the program's own
// addresses (as nm prints them); all where both are 0. After program_load.
void cpu_count(uint64_t from, uint64_t to);

// After page tables have changed where the CPU may remember them.
void cpu_forget_pages(void);

// FS's base, where the thread's own storage is.
void cpu_set_thread_pointer(uint64_t base);

#endif
