// Shards whose names carry their number, such as model-00002-of-00005.safetensors, in a folder without an index. Pure, apart from
// reading the folder; one owner. Private to expert/files/.
#ifndef EXPERTD_EXPERT_FILES_NUMBERED_FILES_H
#define EXPERTD_EXPERT_FILES_NUMBERED_FILES_H

#include <limits.h>
#include <stddef.h>

#include "base/err.h"

struct numbered_files {
    char **names; // [count], ascending by number; owned
    size_t count, total;
    size_t missing;                   // 0: the set is complete
    char first_missing[NAME_MAX + 1]; // the first file that is missing
};

// The folder's set; count 0: it has none. stem: the text before the number, "consolidated"; then its files may also be called
// consolidated.00.safetensors and so on, whose number is not known. NULL: any text, but adapters and files of other formats
// (adapter_model-…, consolidated-…) do not count.
// EXPERTD_ERR_CHECKPOINT: the folder has files of two sets, or two files with one number; the message names two of them.
FALLIBLE numbered_files_find(const char *folder, const char *stem, struct numbered_files *out);
void numbered_files_deinit(struct numbered_files *files); // legal on a zeroed struct

#endif
