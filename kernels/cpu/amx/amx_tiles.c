// Whether the CPU has AMX, and Linux lets this process use it.
#include "kernels/cpu/amx/amx_tiles.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    CPUID_FEATURES = 7,
    EDX_AMX_BF16 = 1 << 22,
    EDX_AMX_TILE = 1 << 24,
    EDX_AMX_INT8 = 1 << 25,
    EDX_NEEDED = EDX_AMX_BF16 | EDX_AMX_TILE | EDX_AMX_INT8,
    REQUEST_PERMISSION = 0x1023, // ARCH_REQ_XCOMP_PERM of Linux's asm/prctl.h
    STATE_TILE_DATA = 18,        // XFEATURE_XTILEDATA
};

static bool cpu_has_amx(void) {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(CPUID_FEATURES, 0, &eax, &ebx, &ecx, &edx) && (edx & EDX_NEEDED) == EDX_NEEDED;
}

bool amx_is_usable(void) {
    return cpu_has_amx() && syscall(SYS_arch_prctl, REQUEST_PERMISSION, STATE_TILE_DATA) == 0;
}
#else
bool amx_is_usable(void) {
    return false;
}
#endif
