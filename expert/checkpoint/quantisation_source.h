// Where a checkpoint describes its quantisation: config.json, and the file that older quantisers write beside it. Private to
// expert/checkpoint/.
#ifndef EXPERTD_EXPERT_CHECKPOINT_QUANTISATION_SOURCE_H
#define EXPERTD_EXPERT_CHECKPOINT_QUANTISATION_SOURCE_H

#include "expert/checkpoint/checkpoint_notes.h"
#include "expert/config/quantisation.h"

struct quantisation_source {
    struct quantisation quantisation;
    struct quantisation mlx; // MLX's own section
    struct config *file;     // beside config.json; NULL: none
};

// Reads both; folder NULL: there is no file. A file that cannot be read is an error only if config.json has no section; else a
// note. Errors as quantisation_read.
FALLIBLE quantisation_source_read(struct quantisation_source *source, const struct config *config, const char *folder,
                                  struct checkpoint_notes *notes);
void quantisation_source_deinit(struct quantisation_source *source); // legal on a zeroed struct

#endif
