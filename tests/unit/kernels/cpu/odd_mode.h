// Floating-point modes that no kernel computes in: rounding upward, with every flag raised; and with every exception a signal.
#ifndef EXPERTD_TESTS_UNIT_KERNELS_CPU_ODD_MODE_H
#define EXPERTD_TESTS_UNIT_KERNELS_CPU_ODD_MODE_H

#include "kernels/cpu/common/float_mode.h"

#if defined(__x86_64__)
#define FLOAT_MODE_FLAGS ((float_mode)0x3f)
#define FLOAT_MODE_UPWARD ((float_mode)0x5f80)
#define FLOAT_MODE_TRAPPING ((float_mode)0)
#else // aarch64: FPCR.RMode, and IOC to IXC with IDC of FPSR
#define FLOAT_MODE_FLAGS ((float_mode)0x9f << 32)
#define FLOAT_MODE_UPWARD ((float_mode)1 << 22)
#define FLOAT_MODE_TRAPPING FLOAT_MODE_IEEE // few CPUs trap, and qemu does not
#endif
#define FLOAT_MODE_ODD (FLOAT_MODE_UPWARD | FLOAT_MODE_FLAGS)

#endif
