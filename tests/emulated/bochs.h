// The interface between the emulator and Bochs's CPU, as PyPI's bochscpu-python packages it.
// The package's shared library exports Bochs's C++ symbols and a C interface to the registers. It calls its instrumentation hooks
// and its physical memory through the dynamic linker, so that a library loaded earlier can replace them: this one does. Names and
// arguments follow bochscpu's cabi/ and Bochs's instrumentation interface. There is one CPU: every `cpu` is 0.
#ifndef EXPERTD_TESTS_EMULATED_BOCHS_H
#define EXPERTD_TESTS_EMULATED_BOCHS_H

#include <stdbool.h>
#include <stdint.h>

enum { BOCHS_CPU = 0, BOCHS_SYSCALL_BRANCH = 17, BOCHS_UNDEFINED = 6, BOCHS_PAGE_FAULT = 14 };

enum bochs_register { RAX, RCX, RDX, RBX, RSP, RBP, RSI, RDI, R8, R9, R10, R11, R12, R13, R14, R15, BOCHS_REGISTERS };
enum bochs_segment { SEGMENT_ES, SEGMENT_CS, SEGMENT_SS, SEGMENT_DS, SEGMENT_FS, SEGMENT_GS, BOCHS_SEGMENTS };

// Linux's selectors for user mode, and the attributes of their segments: present, user mode; 64-bit code or data.
enum { SELECTOR_CODE = 0x33, SELECTOR_DATA = 0x2b, ATTRIBUTES_CODE = 0xaffb, ATTRIBUTES_DATA = 0xcff3 };

// Exported by the package's library.
void cpu_new(unsigned cpu);
void cpu_loop(unsigned cpu);                // runs until a hook leaves the loop
_Noreturn void cpu_bail(unsigned cpu);      // leaves a hook: execution continues at the program counter
void cpu_set_mode(unsigned cpu);            // call after a change of control registers or page tables
uint64_t cpu_get_pc(unsigned cpu);          // in a hook of an instruction: the address of the next one
void cpu_set_pc(unsigned cpu, uint64_t at); // in a hook: takes effect with cpu_bail
uint64_t cpu_get_reg64(unsigned cpu, unsigned index);
void cpu_set_reg64(unsigned cpu, unsigned index, uint64_t value);
void cpu_set_eflags(unsigned cpu, uint32_t flags);
uint32_t cpu_get_mxcsr(unsigned cpu);
void cpu_set_mxcsr(unsigned cpu, uint32_t value);
void cpu_set_mxcsr_mask(unsigned cpu, uint32_t value);
void cpu_set_seg(unsigned cpu, unsigned segment, uint32_t present, uint16_t selector, uint64_t base, uint32_t limit,
                 uint16_t attributes);
void cpu_set_cr0(unsigned cpu, uint32_t value);
void cpu_set_cr3(unsigned cpu, uint64_t value);
void cpu_set_cr4(unsigned cpu, uint32_t value);
uint64_t cpu_get_cr2(unsigned cpu);
void cpu_set_efer(unsigned cpu, uint32_t value);
void cpu_set_xcr0(unsigned cpu, uint32_t value);
void cpu_set_star(unsigned cpu, uint64_t value);
void cpu_set_lstar(unsigned cpu, uint64_t value);
void *sim_get_param_enum(const char *name);

#endif
