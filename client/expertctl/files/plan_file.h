// Placements and counts as JSON: what `placement show --json` and `placement plan --output` write, and `plan --counts` and `apply`
// read. One object: {"layers": [{"layer": L, "epoch": N, "ranks": R, "experts": [[ranks of expert 0], …], "rows": [rows of expert
// 0, …]}, …]}; other keys are left alone.
#ifndef EXPERTD_CLIENT_EXPERTCTL_FILES_PLAN_FILE_H
#define EXPERTD_CLIENT_EXPERTCTL_FILES_PLAN_FILE_H

#include "proto/admin/admin.h"

struct json_t;

// A placement as such an entry; NULL where memory is not to be had.
struct json_t *plan_file_entry(const struct proto_placement *placement);

// EXPERTD_ERR_IO where the file cannot be read, EXPERTD_ERR_CHECKPOINT where it is no such object; the message names the file and
// the place. On error *out is zeroed; else proto_placements_deinit is the caller's.
FALLIBLE plan_file_read(const char *path, struct proto_placements *out);

// The "rows" of each layer. On error *out and *count are zeroed; else plan_file_free_counts is the caller's.
FALLIBLE plan_file_read_counts(const char *path, struct proto_counts **out, size_t *count);
void plan_file_free_counts(struct proto_counts *counts, size_t count);

// Takes `object`. The file is there whole or not at all.
FALLIBLE plan_file_write_take(const char *path, struct json_t *object);

#endif
