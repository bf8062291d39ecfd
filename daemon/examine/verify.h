// --verify: reads the model as a start would, and reports on standard output whether it is sound.
#ifndef EXPERTD_DAEMON_EXAMINE_VERIFY_H
#define EXPERTD_DAEMON_EXAMINE_VERIFY_H

#include "daemon/config/options.h"

// Returns the exit code: 0 sound; 65 refused, unsound values, or other digests than --compare-digests; otherwise that of a start.
// Weights are packed as for a start and released expert by expert, so that a model larger than memory can be verified.
int examine_verify(const struct options *options);

#endif
