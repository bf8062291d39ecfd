// The guest's memory: one reservation of host address space, in which guest address A is byte A. Guest-virtual and guest-physical
// addresses are equal. Page tables behind the reservation map and unmap pages, so that an access outside the program's memory
// faults.
#ifndef EXPERTD_TESTS_EMULATED_MEMORY_H
#define EXPERTD_TESTS_EMULATED_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GUEST_BYTES (16ull << 30)
#define GUEST_PAGE 4096ull
#define GUEST_PROGRAM 0x10000000ull   // load address of a position-independent program; the heap follows it
#define GUEST_HEAP_END 0xf0000000ull  // the local APIC's page is above it
#define GUEST_MAPPINGS 0x100000000ull // results of mmap, ascending from here
#define GUEST_STACK_TOP (GUEST_BYTES - GUEST_PAGE)
#define GUEST_STACK_BYTES (16ull << 20)

// Reserves the memory and writes the page tables. False if the host cannot reserve it. Call once in a process.
bool memory_create(void);

// The physical address of the top-level page table, for CR3.
uint64_t memory_tables(void);

// The host address of a guest address. NULL outside the reservation (page tables included) and for guest address 0.
void *memory_host(uint64_t guest);

// Maps the pages with PROT_READ, PROT_WRITE and PROT_EXEC of <sys/mman.h>; 0 unmaps them. The range must lie within GUEST_BYTES. If
// a page was mapped before, the caller also calls cpu_set_mode (bochs.h).
void memory_protect(uint64_t from, uint64_t bytes, int protection);

// May the program read (or write) every byte of the range?
bool memory_allows(uint64_t from, uint64_t bytes, bool write);

// Reserves `bytes` bytes of unused address space. Returns its address, or 0 if too little is left.
uint64_t memory_reserve(uint64_t bytes);

#endif
