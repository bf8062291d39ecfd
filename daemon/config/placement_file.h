// The rows per expert that `placement: balanced` starts from, as a file gives them, by the checkpoint's layer numbers:
// {"layers": {"3": [120, 7, ...], ...}} or what `expertctl placement show --json` prints, {"layers": [{"layer": 3, "rows": [120, 7,
// ...], ...}, ...]}. Read once, at load.
#ifndef EXPERTD_DAEMON_CONFIG_PLACEMENT_FILE_H
#define EXPERTD_DAEMON_CONFIG_PLACEMENT_FILE_H

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

// EXPERTD_ERR_CONFIG: the file, the byte and what is wrong there. EXPERTD_ERR_NOMEM. *out is to be deinit'ed also on error.
FALLIBLE placement_file_read(const char *path, struct placement_file *out);
FALLIBLE placement_file_parse(const char *text, size_t length, struct placement_file *out); // the same of its text
void placement_file_deinit(struct placement_file *file);                                    // legal on a zeroed struct

// The rows of a layer with num_experts experts. EXPERTD_ERR_CONFIG: it is not there, or has another number of counts.
FALLIBLE placement_file_find(const struct placement_file *file, uint32_t layer, uint32_t num_experts, const uint64_t **rows);

#endif
