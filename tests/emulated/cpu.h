// The emulated CPU in 64-bit user mode, its system calls and its faults.
#ifndef EXPERTD_TESTS_EMULATED_CPU_H
#define EXPERTD_TESTS_EMULATED_CPU_H

#include <stdbool.h>
#include <stdint.h>

#include "bochs.h"

// Creates a CPU of one of Bochs's models (skylake-x, icelake, tigerlake, sapphire-rapids), with or without the tile unit (tiles.h).
// Returns false, with a line on stderr, for any other model. `library`: the dlopen handle of the package. Call once in a process,
// after memory_create.
bool cpu_create(void *library, const char *model, bool tiles);

// Runs the program from `entry`. The program ends the process (program_end).
_Noreturn void cpu_run(uint64_t entry, uint64_t stack);

// Prints the number of instructions executed in [from, to) on stderr at the program's end. The addresses are the program's own, as
// nm prints them; both 0: counts all instructions. Call after program_load.
void cpu_count(uint64_t from, uint64_t to);

#endif
