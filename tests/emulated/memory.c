#include "memory.h"

#include <string.h>
#include <sys/mman.h>

enum {
    ENTRIES = 512,
    GIGABYTES = GUEST_BYTES >> 30, // one page directory each
    ENTRY_PRESENT = 1,
    ENTRY_WRITE = 2,
    ENTRY_USER = 4,
    ENTRY_ACCESSED = 0x20,
    ENTRY_DIRTY = 0x40,
    TABLE = ENTRY_PRESENT | ENTRY_WRITE | ENTRY_USER | ENTRY_ACCESSED,
};
#define ENTRY_NO_EXECUTE (1ull << 63)
#define PHYSICAL_MASK 0xfffffffffffffull // Bochs may set higher bits

// The page tables, behind the guest's bytes. `pages` holds the entries of all last-level tables as one array.
struct tables {
    uint64_t level4[ENTRIES], level3[ENTRIES], level2[GIGABYTES * ENTRIES], pages[GUEST_BYTES / GUEST_PAGE];
};

// One guest per process: Bochs's callbacks carry no context.
static struct {
    uint8_t *bytes;
    struct tables *tables;
    uint64_t next_mapping;
} memory;

static uint64_t physical(const void *host) {
    return (uint64_t)((const uint8_t *)host - memory.bytes);
}

bool memory_create(void) {
    void *bytes =
        mmap(NULL, GUEST_BYTES + sizeof(struct tables), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (bytes == MAP_FAILED) {
        return false;
    }
    memory.bytes = bytes;
    memory.tables = (struct tables *)(memory.bytes + GUEST_BYTES);
    memory.next_mapping = GUEST_MAPPINGS;
    struct tables *t = memory.tables;
    t->level4[0] = physical(t->level3) | TABLE;
    for (size_t i = 0; i < GIGABYTES; i++) {
        t->level3[i] = physical(&t->level2[i * ENTRIES]) | TABLE;
    }
    for (size_t i = 0; i < GIGABYTES * ENTRIES; i++) {
        t->level2[i] = physical(&t->pages[i * ENTRIES]) | TABLE;
    }
    return true;
}

uint64_t memory_tables(void) {
    return physical(memory.tables->level4);
}

void *memory_host(uint64_t guest) {
    return guest && guest < GUEST_BYTES ? memory.bytes + guest : NULL;
}

void memory_protect(uint64_t from, uint64_t bytes, int protection) {
    uint64_t entry = protection ? ENTRY_PRESENT | ENTRY_USER | ENTRY_ACCESSED | ENTRY_DIRTY : 0;
    entry |= protection & PROT_WRITE ? ENTRY_WRITE : 0;
    entry |= protection & PROT_EXEC ? 0 : ENTRY_NO_EXECUTE;
    for (uint64_t page = from & ~(GUEST_PAGE - 1); page < from + bytes; page += GUEST_PAGE) {
        memory.tables->pages[page / GUEST_PAGE] = protection ? page | entry : 0;
    }
}

bool memory_allows(uint64_t from, uint64_t bytes, bool write) {
    uint64_t needed = ENTRY_PRESENT | (write ? ENTRY_WRITE : 0);
    if (from + bytes > GUEST_BYTES || from + bytes < from) {
        return false;
    }
    for (uint64_t page = from / GUEST_PAGE; bytes && page <= (from + bytes - 1) / GUEST_PAGE; page++) {
        if ((memory.tables->pages[page] & needed) != needed) {
            return false;
        }
    }
    return true;
}

// No address is given twice: the CPU caches decoded instructions by address, and a use after munmap must fault.
uint64_t memory_reserve(uint64_t bytes) {
    uint64_t at = memory.next_mapping, end = GUEST_STACK_TOP - GUEST_STACK_BYTES - GUEST_PAGE;
    if (bytes > end - at) {
        return 0;
    }
    memory.next_mapping = at + (bytes + GUEST_PAGE - 1) / GUEST_PAGE * GUEST_PAGE;
    return at;
}

// ---- the functions that Bochs calls for physical memory: the guest's bytes and the page tables behind them

uint8_t *mem_guest_to_host(unsigned cpu, uint64_t physical_address, unsigned how);
void mem_read_phy(unsigned cpu, uint64_t physical_address, unsigned bytes, void *to);
void mem_write_phy(unsigned cpu, uint64_t physical_address, unsigned bytes, const void *from);

uint8_t *mem_guest_to_host(unsigned cpu, uint64_t physical_address, unsigned how) {
    (void)cpu, (void)how;
    return memory.bytes + (physical_address & PHYSICAL_MASK);
}

void mem_read_phy(unsigned cpu, uint64_t physical_address, unsigned bytes, void *to) {
    memcpy(to, mem_guest_to_host(cpu, physical_address, 0), bytes);
}

void mem_write_phy(unsigned cpu, uint64_t physical_address, unsigned bytes, const void *from) {
    memcpy(mem_guest_to_host(cpu, physical_address, 1), from, bytes);
}
