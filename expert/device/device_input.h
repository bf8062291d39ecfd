// The input stage on devices: copies the callers' rows to the first device unconverted, and converts them to D there. The copies
// run while the previous batch is computed. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_INPUT_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_INPUT_H

#include "expert/layer/batch.h"

// Starts the copies. Adds to *rows_direct the rows that the host did not copy.
err_t device_input(struct batch *b, uint64_t *rows_direct);
// Lets the device wait for the copies and convert the rows. Operations that are enqueued later read rows in D.
FALLIBLE device_input_convert(struct batch *b);
// After an error: waits until no copy is running.
void device_input_abandon(struct batch *b);

#endif
