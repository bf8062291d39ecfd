#include "cpu.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "memory.h"
#include "program.h"
#include "system_calls.h"
#include "tiles.h"

enum {
    CR0 = 0x80050033, // paging, protection, write protection, alignment mask, numeric errors, monitor
    CR4 = 0x506a0,    // PAE, global pages, SSE and its exceptions, FSGSBASE, XSAVE
    EFER = 0xd01,     // SYSCALL, long mode enabled and active, no-execute
    XCR0 = 0xe7,      // x87, SSE, AVX, AVX-512; tiles.c needs no bit here
    MXCSR = 0x1f80,
    MXCSR_MASK = 0xffff, // the default
    FLAGS = 2,
    FATAL = 128, // + the signal's number: a shell's exit status
    SIGNAL_ILL = 4,
    SIGNAL_SEGV = 11,
};
#define SYSCALL_ENTRY 0x1000ull // a page that holds SYSRETQ
#define STAR_SELECTORS (0x23ull << 48 | 0x10ull << 32)

static const struct {
    const char *name;
    int index; // in bochscpu's enum cpu.model
} MODELS[] = {{"skylake-x", 26}, {"icelake", 28}, {"tigerlake", 29}, {"sapphire-rapids", 30}};

struct cpuid_leaf {
    uint32_t eax, ebx, ecx, edx;
};
typedef void leaf_function(const void *self, uint32_t subleaf, struct cpuid_leaf *leaf);

static struct {
    uint64_t instructions, counted_from, counted_bytes;
    leaf_function *features; // Bochs's CPUID leaf 7 of Sapphire Rapids
    bool tiles, counts;
} cpu;

static void print_count(void) {
    fprintf(stderr, "emulated: %" PRIu64 " instructions\n", cpu.instructions);
}

void cpu_count(uint64_t from, uint64_t to) {
    program_at_end(print_count);
    cpu.counts = true;
    cpu.counted_from = to ? program_base() + from : 0;
    cpu.counted_bytes = to ? to - from : UINT64_MAX;
}

bool cpu_create(void *library, const char *model, bool tiles) {
    union {
        void *found;
        void (*set)(void *parameter, long index);
        leaf_function *features;
    } set = {dlsym(library, "_ZN15bx_param_enum_c3setEl")},
      leaf = {dlsym(library, "_ZNK17sapphire_rapids_t20get_std_cpuid_leaf_7EjP16cpuid_function_t")};
    if (!set.found || !leaf.found) {
        fprintf(
            stderr,
            "emulated: bochscpu-python has another version than deploy/install-deps installs; run deploy/install-deps --check\n");
        return false;
    }
    cpu.features = leaf.features;
    cpu.tiles = tiles;
    for (size_t i = 0; i < sizeof MODELS / sizeof *MODELS; i++) {
        if (strcmp(model, MODELS[i].name) == 0) {
            set.set(sim_get_param_enum("cpu.model"), MODELS[i].index);
            cpu_new(BOCHS_CPU);
            return true;
        }
    }
    fprintf(stderr, "emulated: unknown CPU %s\n", model);
    return false;
}

_Noreturn void cpu_run(uint64_t entry, uint64_t stack) {
    static const uint8_t SYSRETQ[] = {0x48, 0x0f, 0x07};
    memcpy(memory_host(SYSCALL_ENTRY), SYSRETQ, sizeof SYSRETQ);
    memory_protect(SYSCALL_ENTRY, GUEST_PAGE, PROT_READ | PROT_EXEC);
    for (unsigned segment = 0; segment < BOCHS_SEGMENTS; segment++) {
        bool code = segment == SEGMENT_CS;
        cpu_set_seg(BOCHS_CPU, segment, 1, code ? SELECTOR_CODE : SELECTOR_DATA, 0, UINT32_MAX,
                    code ? ATTRIBUTES_CODE : ATTRIBUTES_DATA);
    }
    cpu_set_cr0(BOCHS_CPU, CR0);
    cpu_set_cr3(BOCHS_CPU, memory_tables());
    cpu_set_cr4(BOCHS_CPU, CR4);
    cpu_set_efer(BOCHS_CPU, EFER);
    cpu_set_xcr0(BOCHS_CPU, XCR0);
    cpu_set_star(BOCHS_CPU, STAR_SELECTORS);
    cpu_set_lstar(BOCHS_CPU, SYSCALL_ENTRY);
    cpu_set_mxcsr_mask(BOCHS_CPU, MXCSR_MASK);
    cpu_set_mxcsr(BOCHS_CPU, MXCSR);
    cpu_set_eflags(BOCHS_CPU, FLAGS);
    cpu_set_reg64(BOCHS_CPU, RSP, stack);
    cpu_set_pc(BOCHS_CPU, entry);
    cpu_set_mode(BOCHS_CPU);
    for (;;) {
        cpu_loop(BOCHS_CPU);
    }
}

static _Noreturn void die_of_fault(unsigned vector, unsigned error) {
    uint64_t next = cpu_get_pc(BOCHS_CPU);
    fprintf(stderr,
            "emulated: exception %u (error %#x) in the instruction before %#" PRIx64 " (program + %#" PRIx64 "), address %#" PRIx64
            "\n",
            vector, error, next, next - program_base(), cpu_get_cr2(BOCHS_CPU));
    program_end(FATAL + (vector == BOCHS_UNDEFINED ? SIGNAL_ILL : SIGNAL_SEGV));
}

// ---- the hooks that Bochs calls; they replace the package's. The unused ones do nothing

void bx_instr_before_execution(unsigned id, void *instruction);
void bx_instr_exception(unsigned id, unsigned vector, unsigned error);
void bx_instr_far_branch(unsigned id, unsigned what, uint16_t from_segment, uint64_t from, uint16_t to_segment, uint64_t to);
void sapphire_rapids_features(const void *self, uint32_t subleaf, struct cpuid_leaf *leaf) __asm__(
    "_ZNK17sapphire_rapids_t20get_std_cpuid_leaf_7EjP16cpuid_function_t");

void bx_instr_before_execution(unsigned id, void *instruction) {
    (void)id, (void)instruction;
    if (cpu.counts) {
        cpu.instructions += cpu_get_pc(BOCHS_CPU) - cpu.counted_from < cpu.counted_bytes;
    }
}

// This build of Bochs reports tile instructions as undefined ones.
void bx_instr_exception(unsigned id, unsigned vector, unsigned error) {
    (void)id;
    bool done = vector == BOCHS_UNDEFINED && cpu.tiles && tiles_execute(cpu_get_pc(BOCHS_CPU));
    if (!done) {
        die_of_fault(vector, error);
    }
    cpu_set_pc(BOCHS_CPU, cpu_get_pc(BOCHS_CPU)); // continue after the instruction
    cpu_bail(BOCHS_CPU);
}

void bx_instr_far_branch(unsigned id, unsigned what, uint16_t from_segment, uint64_t from, uint16_t to_segment, uint64_t to) {
    (void)id, (void)from_segment, (void)from, (void)to_segment, (void)to;
    if (what == BOCHS_SYSCALL_BRANCH) {
        serve_system_call();
    }
}

void sapphire_rapids_features(const void *self, uint32_t subleaf, struct cpuid_leaf *leaf) {
    cpu.features(self, subleaf, leaf);
    leaf->edx |= subleaf == 0 && cpu.tiles ? TILES_CPUID_EDX : 0;
}

// Hooks without an effect; their arguments are not needed.
#define IGNORED(name)                                                                                                              \
    void name(void);                                                                                                               \
    void name(void) {                                                                                                              \
    }
IGNORED(bx_instr_after_execution)
IGNORED(bx_instr_opcode)
IGNORED(bx_instr_lin_access)
IGNORED(bx_instr_phy_access)
IGNORED(bx_instr_repeat_iteration)
IGNORED(bx_instr_cnear_branch_taken)
IGNORED(bx_instr_cnear_branch_not_taken)
IGNORED(bx_instr_ucnear_branch)
IGNORED(bx_instr_prefetch_hint)
IGNORED(bx_instr_tlb_cntrl)
