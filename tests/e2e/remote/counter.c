// Counts what a process under test allocates and copies. Tests preload this library (LD_PRELOAD). It maps the file named by
// EXPERTD_TEST_COUNTER, 48 bytes, and keeps its counts there: allocations, bytes allocated and bytes copied (memcpy and memmove),
// of the program's own code and of its libraries, by the address that called. Copies that the compiler has inlined are not counted:
// those are of few bytes. expertd itself has no code for it.
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct counts {
    atomic_ullong allocations, allocated, copied;
};

static struct counts unused[2], *counts = unused; // of the program, of the libraries
static uintptr_t text_begin, text_end;            // of the program
static void *(*real_memcpy)(void *, const void *, size_t), *(*real_memmove)(void *, const void *, size_t);

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *pointer, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void *__memcpy_chk(void *restrict to, const void *restrict from, size_t bytes, size_t room);
void *__memmove_chk(void *to, const void *from, size_t bytes, size_t room);

static struct counts *of(const void *caller) {
    uintptr_t at = (uintptr_t)caller;
    return &counts[at < text_begin || at >= text_end];
}

static void allocated(const void *caller, size_t bytes) {
    struct counts *c = of(caller);
    atomic_fetch_add_explicit(&c->allocations, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&c->allocated, bytes, memory_order_relaxed);
}

// NOLINTBEGIN(readability-inconsistent-declaration-parameter-name): those of the C library are reserved names

#define CALLER __builtin_return_address(0)

void *malloc(size_t bytes) {
    allocated(CALLER, bytes);
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes) {
    allocated(CALLER, count * bytes);
    return __libc_calloc(count, bytes);
}

void *realloc(void *pointer, size_t bytes) {
    allocated(CALLER, bytes);
    return __libc_realloc(pointer, bytes);
}

void *memalign(size_t alignment, size_t bytes) {
    allocated(CALLER, bytes);
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes) {
    allocated(CALLER, bytes);
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **out, size_t alignment, size_t bytes) {
    allocated(CALLER, bytes);
    *out = __libc_memalign(alignment, bytes);
    return *out ? 0 : ENOMEM;
}

// ---- copies. Before the constructor has run, byte by byte

// `volatile` keeps the compiler from making a call of memcpy of it.
static void *copy_slowly(void *to, const void *from, size_t bytes) {
    volatile char *t = to;
    const char *f = from;
    bool down = (uintptr_t)to > (uintptr_t)from;
    for (size_t i = 0; i < bytes; i++) {
        size_t at = down ? bytes - 1 - i : i;
        t[at] = f[at];
    }
    return to;
}

static void *copy(const void *caller, void *(*real)(void *, const void *, size_t), void *to, const void *from, size_t bytes) {
    atomic_fetch_add_explicit(&of(caller)->copied, bytes, memory_order_relaxed);
    return real ? real(to, from, bytes) : copy_slowly(to, from, bytes);
}

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
    return copy(CALLER, real_memcpy, to, from, bytes);
}

void *memmove(void *to, const void *from, size_t bytes) {
    return copy(CALLER, real_memmove, to, from, bytes);
}

void *__memcpy_chk(void *restrict to, const void *restrict from, size_t bytes, size_t room) {
    if (bytes > room) {
        abort();
    }
    return copy(CALLER, real_memcpy, to, from, bytes);
}

void *__memmove_chk(void *to, const void *from, size_t bytes, size_t room) {
    if (bytes > room) {
        abort();
    }
    return copy(CALLER, real_memmove, to, from, bytes);
}

// NOLINTEND(readability-inconsistent-declaration-parameter-name)

// ---- start

// The first object is the program.
static int find_text(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size, (void)data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &info->dlpi_phdr[i];
        if (header->p_type == PT_LOAD && header->p_flags & PF_X) {
            text_begin = info->dlpi_addr + header->p_vaddr;
            text_end = text_begin + header->p_memsz;
        }
    }
    return 1;
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("EXPERTD_TEST_COUNTER");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof unused, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    dl_iterate_phdr(find_text, NULL);
    *(void **)&real_memcpy = dlsym(RTLD_NEXT, "memcpy");
    *(void **)&real_memmove = dlsym(RTLD_NEXT, "memmove");
    if (map == MAP_FAILED) {
        perror("counter");
        exit(70);
    }
    close(file);
    counts = map;
}
