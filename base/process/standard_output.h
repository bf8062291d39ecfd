// Flushes standard output and reports lost output.
#ifndef EXPERTD_BASE_PROCESS_STANDARD_OUTPUT_H
#define EXPERTD_BASE_PROCESS_STANDARD_OUTPUT_H

#include "base/err.h"

// EXPERTD_ERR_IO: some output was lost, for example because the disk is full or the reader has closed the pipe. Call it at the end
// of a program, which would otherwise report success, and after each part of the output for which a reader waits.
FALLIBLE standard_output_flush(void);

#endif
