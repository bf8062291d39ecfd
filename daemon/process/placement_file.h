// Reads the file of --placement-counts: the rows that each expert received, from which `placement: balanced` computes the first
// placement. Layers have the checkpoint's numbers. Two forms are read: {"layers": {"3": [120, 7, ...], ...}}, and the output of
// `expertctl placement show --json`, {"layers": [{"layer": 3, "rows": [120, 7, ...], ...}, ...]}.
#ifndef EXPERTD_DAEMON_PROCESS_PLACEMENT_FILE_H
#define EXPERTD_DAEMON_PROCESS_PLACEMENT_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct placement_counts { // of one layer
    uint32_t layer;
    uint64_t *rows; // [num_rows]
    size_t num_rows;
};

struct placement_file {
    struct placement_counts *layers; // [count], in the file's order
    size_t count;
};

// EXPERTD_ERR_CONFIG: the file cannot be read or is wrong. EXPERTD_ERR_NOMEM. Call placement_file_deinit also after an error.
FALLIBLE placement_file_read(const char *path, struct placement_file *out);
FALLIBLE placement_file_parse(const char *text, size_t length, struct placement_file *out); // the same for text in memory
void placement_file_deinit(struct placement_file *file);                                    // legal on a zeroed struct

// Sets *rows to the num_experts counts of the layer, borrowed from `file`. EXPERTD_ERR_CONFIG: the file does not have the layer, or
// has another number of counts for it.
FALLIBLE placement_file_find(const struct placement_file *file, uint32_t layer, uint32_t num_experts, const uint64_t **rows);

#endif
