// The input stage on devices: the callers' rows are copied to the first device as they were sent, and converted to D there. The
// copies run beside the batch that is computed. Private to expert/.
#ifndef EXPERTD_EXPERT_DEVICE_DEVICE_INPUT_H
#define EXPERTD_EXPERT_DEVICE_DEVICE_INPUT_H

#include "expert/layer/batch.h"

// Starts the copies. Adds to *rows_direct the rows that the host did not copy.
err_t device_input(struct batch *b, uint64_t *rows_direct);
// Waits for the copies and converts the rows: they are in D for every later operation on the device.
FALLIBLE device_input_convert(struct batch *b);
// After an error: waits until no copy is under way.
void device_input_abandon(struct batch *b);

#endif
