// A program of x86-64 Linux on an emulated CPU, in user mode: what tests/emulated/run calls. The CPU is Bochs's, from the shared
// library of PyPI's bochscpu-python, which is made for Python: so this is a library, too, that a Python process loads first.
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

// The package was built with a C library newer than Debian 12's, whose strtoull and sscanf it asks for by their new names.
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

// Runs argv (argv[0]: the program's path; ends with NULL) with this process's environment, on Bochs's `model`, with the tile unit
// or without; `package`: the path of bochscpu's shared library. `counted`: from and to, as cpu_count takes them, or NULL. Ends the
// process with the program's status, and returns only where it cannot be begun.
int emulate(const char *package, const char *model, int tiles, const uint64_t *counted, char *const *argv);

int emulate(const char *package, const char *model, int tiles, const uint64_t *counted, char *const *argv) {
    void *library = dlopen(package, RTLD_LAZY | RTLD_GLOBAL);
    if (!library) {
        fprintf(stderr, "emulated: %s\n", dlerror());
        return CANNOT;
    }
    if (tiles && !__builtin_cpu_supports("fma")) {
        fprintf(stderr, "emulated: the tile unit's sums want a machine with FMA\n");
        return CANNOT;
    }
    if (!memory_create()) {
        fprintf(stderr, "emulated: %llu GiB of address space cannot be had\n", GUEST_BYTES >> 30);
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
