// The guest's memory: one reservation of the host's, in which guest address A, virtual and physical alike, is byte A. Pages are
// given and taken by their entries in page tables that lie behind it, so that a byte read where the program has no memory is a
// fault.
#ifndef EXPERTD_TESTS_EMULATED_MEMORY_H
#define EXPERTD_TESTS_EMULATED_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GUEST_BYTES (16ull << 30)
#define GUEST_PAGE 4096ull
#define GUEST_PROGRAM 0x10000000ull   // where a position-independent program is put; its heap lies behind it
#define GUEST_HEAP_END 0xf0000000ull  // the local APIC's page is above it
#define GUEST_MAPPINGS 0x100000000ull // what mmap gives, upwards
#define GUEST_STACK_TOP (GUEST_BYTES - GUEST_PAGE)
#define GUEST_STACK_BYTES (16ull << 20)

// Reserves it and writes the tables; false where the host has no such range. Once in a process.
bool memory_create(void);

// The physical address of the first table, for CR3.
uint64_t memory_tables(void);

// The host's address of a guest's; NULL outside the reservation, tables included, and for a guest's NULL.
void *memory_host(uint64_t guest);

// protection: PROT_READ, PROT_WRITE, PROT_EXEC of <sys/mman.h>; 0 takes the pages away. Whole pages within GUEST_BYTES. The caller
// lets the CPU forget what it knew (cpu_set_mode) where pages had been given before.
void memory_protect(uint64_t from, uint64_t bytes, int protection);

// May the program read (or write) all of them?
bool memory_allows(uint64_t from, uint64_t bytes, bool write);

// So many bytes of address space that was never given, or 0 where there is no more.
uint64_t memory_reserve(uint64_t bytes);

#endif
