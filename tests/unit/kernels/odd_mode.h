// Floating-point modes that no kernel may compute in: FLOAT_MODE_ODD rounds upward and has all flags set; FLOAT_MODE_TRAPPING
// unmasks all exceptions.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_ODD_MODE_H
#define EXPERTD_TESTS_UNIT_KERNELS_ODD_MODE_H

#include "kernels/cpu/common/float_mode.h"

#if defined(__x86_64__)
#define FLOAT_MODE_FLAGS ((float_mode)0x3f)
#define FLOAT_MODE_UPWARD ((float_mode)0x5f80)
#define FLOAT_MODE_TRAPPING ((float_mode)0)
#else // aarch64: FPCR.RMode; the flags IOC to IXC and IDC of FPSR
#define FLOAT_MODE_FLAGS ((float_mode)0x9f << 32)
#define FLOAT_MODE_UPWARD ((float_mode)1 << 22)
#define FLOAT_MODE_TRAPPING FLOAT_MODE_IEEE // few CPUs can trap, and qemu cannot
#endif
#define FLOAT_MODE_ODD (FLOAT_MODE_UPWARD | FLOAT_MODE_FLAGS)

#endif
