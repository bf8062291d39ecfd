// Entry point of the emulator: runs an x86-64 Linux program on an emulated CPU, for tests/emulated/run. The CPU is Bochs's, from
// the shared library of PyPI's bochscpu-python. That library is an extension of Python, so this one is loaded by a Python process
// too.
#include <dlfcn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "memory.h"
#include "program.h"

enum { CANNOT = 69 };

extern char **environ;

// The package was built with a newer C library than Debian 12's and imports strtoull and sscanf by their newer symbol names.
unsigned long long isoc23_strtoull(const char *text, char **end, int base) __asm__("__isoc23_strtoull");
int isoc23_sscanf(const char *text, const char *format, ...) __asm__("__isoc23_sscanf") __attribute__((format(scanf, 2, 3)));

unsigned long long isoc23_strtoull(const char *text, char **end, int base) {
    return strtoull(text, end, base);
}

int isoc23_sscanf(const char *text, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    int read = vsscanf(text, format, arguments);
    va_end(arguments);
    return read;
}

// Runs argv (argv[0]: the program's path; ends with NULL) with this process's environment on Bochs's `model`, with or without the
// tile unit. `package`: the path of bochscpu's shared library. `counted`: the two arguments of cpu_count, or NULL. Ends the process
// with the program's status. Returns only if the program cannot start.
int emulate(const char *package, const char *model, int tiles, const uint64_t *counted, char *const *argv);

int emulate(const char *package, const char *model, int tiles, const uint64_t *counted, char *const *argv) {
    void *library = dlopen(package, RTLD_LAZY | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "emulated: %s\n", dlerror());
        return CANNOT;
    }
    if (tiles && !__builtin_cpu_supports("fma")) {
        fprintf(stderr, "emulated: the tile unit needs a host CPU with FMA\n");
        return CANNOT;
    }
    if (!memory_create()) {
        fprintf(stderr, "emulated: cannot reserve %llu GiB of address space\n", GUEST_BYTES >> 30);
        return CANNOT;
    }
    struct program program;
    if (!cpu_create(library, model, tiles) || !program_load(argv, environ, &program)) {
        return CANNOT;
    }
    if (counted) {
        cpu_count(counted[0], counted[1]);
    }
    cpu_run(program.entry, program.stack);
}
