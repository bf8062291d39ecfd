// --inspect: describes the model that the options name, without reading its weights, on standard output.
#ifndef EXPERTD_DAEMON_EXAMINE_INSPECT_H
#define EXPERTD_DAEMON_EXAMINE_INSPECT_H

#include "daemon/config/options.h"

// Returns the exit code: 0, or that of the refusal (65 for a checkpoint that is not served), which is part of the description.
int examine_inspect(const struct options *options);

// For --json: prints the calling thread's error `e` as one object, because the options could not be read.
void examine_inspect_error(err_t e);

#endif
