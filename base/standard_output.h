// What a program printed: whether it has arrived.
#ifndef EXPERTD_BASE_STANDARD_OUTPUT_H
#define EXPERTD_BASE_STANDARD_OUTPUT_H

#include "base/err.h"

// Flushes standard output. EXPERTD_ERR_IO where something of what was printed there is lost: a full disk, a reader that left. For
// the end of a program, which else would say that all went well, and of each part that a reader waits for.
FALLIBLE standard_output_flush(void);

#endif
