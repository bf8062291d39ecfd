// The file of digests of --verify: one line for each layer, with its weights id, and one for each expert. They are digests of the
// tensors as stored, so that they do not depend on the machine, --widen or --shards. Private to daemon/examine/.
//
//     expertd digests 1
//     layer 3 34c2bc1448ae0293
//     layer 3 expert 0 8f1f0bb4c2a9d655
#ifndef EXPERTD_DAEMON_EXAMINE_DIGEST_FILE_H
#define EXPERTD_DAEMON_EXAMINE_DIGEST_FILE_H

#include <stdbool.h>

#include "expert/model/model.h"

// Replaces the file atomically. EXPERTD_ERR_IO.
FALLIBLE digest_file_write(const char *path, const struct model *model);

// Creates the temporary file and removes it, so that faults of the path are reported before a long load. EXPERTD_ERR_IO.
FALLIBLE digest_file_check_target(const char *path);

// Reads the file only, so that its faults are reported before a long load. EXPERTD_ERR_CHECKPOINT: not such a file.
FALLIBLE digest_file_check(const char *path);

// Prints each difference, up to a limit, and sets *differing to their number. some_layers: the model has only some of its layers,
// so that further layers of the file are no difference. EXPERTD_ERR_CHECKPOINT: not such a file.
FALLIBLE digest_file_compare(const char *path, const struct model *model, bool some_layers, size_t *differing);

#endif
