// A Linux program as the guest starts with it: its file and its interpreter's in memory, arguments and environment on the stack.
#ifndef EXPERTD_TESTS_EMULATED_PROGRAM_H
#define EXPERTD_TESTS_EMULATED_PROGRAM_H

#include <stdbool.h>
#include <stdint.h>

struct program {
    uint64_t entry, stack;
};

// argv and envp end with NULL; argv[0] is the program's path. False where it is no program for x86-64, with a line on stderr.
bool program_load(char *const *argv, char *const *envp, struct program *out);

// Where its first byte is, for messages.
uint64_t program_base(void);

// The heap's end: moves it where it can, and says where it is then.
uint64_t program_break(uint64_t wanted);

#endif
