// Placements and row counts as JSON. `placement show --json` and `placement plan --output` write them; `plan --counts` and `apply`
// read them. One object: {"layers": [{"layer": L, "epoch": N, "ranks": R, "experts": [[ranks of expert 0], …], "rows": [rows of
// expert 0, …]}, …]}; other keys are ignored.
#ifndef EXPERTD_CLIENT_EXPERTCTL_FILES_PLAN_FILE_H
#define EXPERTD_CLIENT_EXPERTCTL_FILES_PLAN_FILE_H

#include "proto/admin/admin.h"

struct json_t;

// A placement as an entry of "layers"; NULL without memory.
struct json_t *plan_file_entry(const struct proto_placement *placement);

// EXPERTD_ERR_IO: the file cannot be read. EXPERTD_ERR_CHECKPOINT: it has another form; the message names the file and the place.
// On error *out is zeroed; otherwise the caller releases it with proto_placements_deinit.
FALLIBLE plan_file_read(const char *path, struct proto_placements *out);

// Reads the "rows" of each layer. On error *out and *count are zeroed; otherwise the caller releases them with
// plan_file_free_counts.
FALLIBLE plan_file_read_counts(const char *path, struct proto_counts **out, size_t *count);
void plan_file_free_counts(struct proto_counts *counts, size_t count);

// Takes ownership of `object`. No partial file is ever visible.
FALLIBLE plan_file_write_take(const char *path, struct json_t *object);

#endif
