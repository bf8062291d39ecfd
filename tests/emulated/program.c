#include "program.h"

#include <elf.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"

enum { SEGMENTS_MAX = 32, WORDS_MAX = 4096, TICKS = 100 };

struct image {
    uint64_t base, entry, headers, end;
    uint16_t headers_count;
    char interpreter[256];
};

static struct { uint64_t base, heap, heap_end; } loaded;
static void (*at_end)(void);

uint64_t program_base(void) {
    return loaded.base;
}

uint64_t program_break(uint64_t wanted) {
    if (wanted >= loaded.heap && wanted < GUEST_HEAP_END) {
        uint64_t end = (wanted + GUEST_PAGE - 1) / GUEST_PAGE * GUEST_PAGE;
        if (end > loaded.heap_end) {
            memory_protect(loaded.heap_end, end - loaded.heap_end, PROT_READ | PROT_WRITE);
            loaded.heap_end = end;
        }
        return wanted;
    }
    return loaded.heap;
}

static bool load_segment(int file, const Elf64_Phdr *segment, uint64_t base) {
    uint64_t from = (base + segment->p_vaddr) & ~(GUEST_PAGE - 1);
    uint64_t bytes = base + segment->p_vaddr + segment->p_memsz - from;
    int protection = (segment->p_flags & PF_R ? PROT_READ : 0) | (segment->p_flags & PF_W ? PROT_WRITE : 0) |
                     (segment->p_flags & PF_X ? PROT_EXEC : 0);
    memory_protect(from, bytes, protection);
    ssize_t got = pread(file, memory_host(base + segment->p_vaddr), segment->p_filesz, (off_t)segment->p_offset);
    return got == (ssize_t)segment->p_filesz;
}

static bool load_segments(int file, const Elf64_Ehdr *header, uint64_t base, struct image *out) {
    Elf64_Phdr segments[SEGMENTS_MAX];
    size_t bytes = header->e_phnum * sizeof *segments;
    if (header->e_phnum > SEGMENTS_MAX || pread(file, segments, bytes, (off_t)header->e_phoff) != (ssize_t)bytes) {
        return false;
    }
    *out = (struct image){.base = base,
                          .entry = base + header->e_entry,
                          .headers = base + header->e_phoff, // linkers put the headers into the first segment
                          .headers_count = header->e_phnum};
    for (int i = 0; i < header->e_phnum; i++) {
        const Elf64_Phdr *s = &segments[i];
        if (s->p_vaddr > GUEST_BYTES || s->p_memsz > GUEST_BYTES || s->p_filesz > s->p_memsz) {
            return false;
        }
        uint64_t end = base + s->p_vaddr + s->p_memsz;
        if (s->p_type == PT_LOAD) {
            if (end > GUEST_BYTES || !load_segment(file, s, base)) {
                return false;
            }
            out->end = end > out->end ? end : out->end;
        } else if (s->p_type == PT_INTERP) {
            if (s->p_filesz >= sizeof out->interpreter ||
                pread(file, out->interpreter, s->p_filesz, (off_t)s->p_offset) != (ssize_t)s->p_filesz) {
                return false;
            }
        }
    }
    return true;
}

static bool load_file(const char *path, uint64_t base, struct image *out) {
    Elf64_Ehdr header;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    bool good = file >= 0 && pread(file, &header, sizeof header, 0) == sizeof header &&
                memcmp(header.e_ident, ELFMAG, SELFMAG) == 0 && header.e_machine == EM_X86_64 &&
                (header.e_type == ET_DYN || header.e_type == ET_EXEC) &&
                load_segments(file, &header, header.e_type == ET_DYN ? base : 0, out);
    if (file >= 0) {
        close(file);
    }
    if (!good) {
        fprintf(stderr, "emulated: %s is not a readable x86-64 program\n", path);
    }
    return good;
}

// The initial stack: strings grow down from the top at `at`; `words` collects argc, argv, envp and the auxiliary vector.
struct stack {
    uint64_t at, words[WORDS_MAX];
    size_t count;
};

static uint64_t push_bytes(struct stack *stack, const void *bytes, size_t size) {
    if (size > stack->at - (GUEST_STACK_TOP - GUEST_STACK_BYTES / 2)) {
        stack->count = WORDS_MAX; // make_stack reports the overflow
        return 0;
    }
    stack->at -= size;
    memcpy(memory_host(stack->at), bytes, size);
    return stack->at;
}

static void add_word(struct stack *stack, uint64_t word) {
    if (stack->count < WORDS_MAX) {
        stack->words[stack->count++] = word;
    }
}

static void add_strings(struct stack *stack, char *const *strings) {
    for (; *strings; strings++) {
        add_word(stack, push_bytes(stack, *strings, strlen(*strings) + 1));
    }
    add_word(stack, 0);
}

static void add_auxiliary(struct stack *stack, const struct image *image, uint64_t interpreter, const char *path) {
    static const uint8_t RANDOM[16] = {4, 8, 15, 16, 23, 42}; // the same in every run
    const uint64_t pairs[][2] = {
        {AT_PHDR, image->headers},
        {AT_PHENT, sizeof(Elf64_Phdr)},
        {AT_PHNUM, image->headers_count},
        {AT_PAGESZ, GUEST_PAGE},
        {AT_BASE, interpreter},
        {AT_FLAGS, 0},
        {AT_ENTRY, image->entry},
        {AT_UID, getuid()},
        {AT_EUID, geteuid()},
        {AT_GID, getgid()},
        {AT_EGID, getegid()},
        {AT_SECURE, 0},
        {AT_CLKTCK, TICKS},
        {AT_RANDOM, push_bytes(stack, RANDOM, sizeof RANDOM)},
        {AT_EXECFN, push_bytes(stack, path, strlen(path) + 1)},
        {AT_NULL, 0}, // no vDSO: clocks are read by system calls, which switch threads
    };
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        add_word(stack, pairs[i][0]);
        add_word(stack, pairs[i][1]);
    }
}

static uint64_t make_stack(char *const *argv, char *const *envp, const struct image *image, uint64_t interpreter) {
    static struct stack stack;
    memory_protect(GUEST_STACK_TOP - GUEST_STACK_BYTES, GUEST_STACK_BYTES, PROT_READ | PROT_WRITE);
    stack.at = GUEST_STACK_TOP;
    add_word(&stack, 0);
    add_strings(&stack, argv);
    stack.words[0] = stack.count - 2;
    add_strings(&stack, envp);
    add_auxiliary(&stack, image, interpreter, argv[0]);
    uint64_t start = (stack.at - stack.count * sizeof *stack.words) & ~15ull;
    memcpy(memory_host(start), stack.words, stack.count * sizeof *stack.words);
    return stack.count < WORDS_MAX ? start : 0;
}

bool program_load(char *const *argv, char *const *envp, struct program *out) {
    struct image image, interpreter = {0};
    if (!load_file(argv[0], GUEST_PROGRAM, &image)) {
        return false;
    }
    loaded.base = image.base;
    loaded.heap = loaded.heap_end = (image.end + GUEST_PAGE) / GUEST_PAGE * GUEST_PAGE;
    if (image.interpreter[0] && !load_file(image.interpreter, memory_reserve(64ull << 20), &interpreter)) {
        return false;
    }
    *out = (struct program){.entry = interpreter.entry ? interpreter.entry : image.entry,
                            .stack = make_stack(argv, envp, &image, interpreter.base)};
    if (!out->stack) {
        fprintf(stderr, "emulated: arguments and environment are too large\n");
    }
    return out->stack != 0;
}

void program_at_end(void (*call)(void)) {
    at_end = call;
}

_Noreturn void program_end(int status) {
    if (at_end) {
        at_end();
    }
    _exit(status);
}
