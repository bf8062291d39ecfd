// A Linux program in the guest: loads its files, its interpreter, and a stack with arguments and environment; ends it.
#ifndef EXPERTD_TESTS_EMULATED_PROGRAM_H
#define EXPERTD_TESTS_EMULATED_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

struct program {
    uint64_t entry, stack;
};

// argv and envp end with NULL; argv[0] is the program's path. False, with a line on stderr, if the file is not an x86-64 program.
bool program_load(char *const *argv, char *const *envp, struct program *out);

// The program's load address.
uint64_t program_base(void);

// brk: moves the heap's end if it can, and returns the heap's end.
uint64_t program_break(uint64_t wanted);

// Ends the process with this status. The program's output needs no flush: write calls go to the host directly.
_Noreturn void program_end(int status);

// Registers the function that program_end calls first. There is one.
void program_at_end(void (*call)(void));

#endif
