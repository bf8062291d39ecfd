// Loops of one multiplying instruction on registers: the upper limit of kernels with that instruction.
#ifndef EXPERTD_TESTS_BENCH_KERNELS_MEASURE_PEAK_H
#define EXPERTD_TESTS_BENCH_KERNELS_MEASURE_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "expertd/kernels/team.h"

enum peak_kind { PEAK_FMA_F32, PEAK_VDPBF16PS, PEAK_VPDPBUSD, PEAK_VPMADDWD, PEAK_AMX_BF16, PEAK_AMX_INT8, PEAK_COUNT };

const char *peak_name(enum peak_kind kind); // "VDPBF16PS"
bool peak_usable(enum peak_kind kind);      // the CPU has it and the operating system permits its use

// Runs the loop for about `span_ns` on every thread of the team. Returns the operations per second of all threads together (a
// multiplication with an addition counts two). The kind must be usable.
double peak_rate(enum peak_kind kind, struct expertd_team *team, int64_t span_ns);

#endif
