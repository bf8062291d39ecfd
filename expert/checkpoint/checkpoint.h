// An open checkpoint: a folder in Hugging Face's format, with config.json and the names of all tensors in its safetensors files; or
// llama.cpp's GGUF files, whose metadata takes the place of config.json. It has no notion of layers; see layout/.
//
// First the names, then the tensors. With an index, checkpoint_open reads the names from the index alone. The owner then calls
// checkpoint_read for each part of the model that it needs, which maps and validates the files of that part, and
// checkpoint_require, which reports what is missing there. So files that hold only other parts may be absent or damaged. Without an
// index, checkpoint_open reads all files. After the last checkpoint_read it is immutable, except for its notes and the
// quantisation; any thread. Pages are read when they are touched.
#ifndef EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_H
#define EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "base/safetensors.h"
#include "expert/checkpoint/checkpoint_notes.h"
#include "expert/config/config.h"
#include "expert/config/quantisation.h"

// Limits for all shards together. They bound the memory and time spent on a folder before it is known to hold a model. The largest
// known model (Kimi-K2 in 4 bits) has some 210000 tensors in headers of some 30 MB.
enum { CHECKPOINT_TENSORS_MAX = 1 << 20, CHECKPOINT_HEADER_BYTES_MAX = 128 << 20 };

struct checkpoint; // owns the mappings, the names and the configuration

// EXPERTD_ERR_CHECKPOINT names the file, the tensor and the broken rule; for a folder that is no checkpoint, what it is instead.
// EXPERTD_ERR_IO: a file cannot be read at the moment. Files may be symbolic links, as in a hub cache.
FALLIBLE checkpoint_open(const char *folder, struct checkpoint **out);
void checkpoint_close(struct checkpoint *checkpoint); // NULL is legal; invalidates every pointer into the checkpoint

// The same from the caller's memory, for the fuzzer: one safetensors file, with an index unless index_text is NULL; or one GGUF
// file.
struct checkpoint_bytes {
    const char *config_text; // NULL: a GGUF file
    size_t config_length;
    const char *index_text; // or NULL
    size_t index_length;
    const void *weights; // the bytes of "model.safetensors"; with an index, of "shard". Must outlive the checkpoint
    size_t weights_length;
};
FALLIBLE checkpoint_parse(const struct checkpoint_bytes *bytes, struct checkpoint **out);

// Reads the headers of all files that hold a tensor whose name begins with `prefix`, so that these tensors can be found. Files that
// are missing or damaged are skipped: checkpoint_require reports them. EXPERTD_ERR_CHECKPOINT: the headers exceed the limits above.
FALLIBLE checkpoint_read(struct checkpoint *checkpoint, const char *prefix);

// EXPERTD_ERR_CHECKPOINT: a tensor whose name begins with `prefix` cannot be used: its file is missing or damaged, or lacks it, or
// two files hold it and no index tells which of them counts. Call after checkpoint_read of the same or a shorter prefix.
FALLIBLE checkpoint_require(const struct checkpoint *checkpoint, const char *prefix);

// Are parts of a GGUF model missing, whose tensors are then not among those below?
bool checkpoint_lacks_parts(const struct checkpoint *checkpoint);
// The error for a tensor that is in none of the parts that are there; OK: no parts are missing. `what`: "tensor blk.3.ffn_up_exps".
FALLIBLE checkpoint_require_parts(const struct checkpoint *checkpoint, const char *what);

// EXPERTD_ERR_CHECKPOINT: a file was written since it was read, so that its tensors may be of two versions. A file that was
// replaced is no error: the old one is still mapped.
FALLIBLE checkpoint_check_unchanged(const struct checkpoint *checkpoint);

const char *checkpoint_path(const struct checkpoint *checkpoint); // the folder, as given to checkpoint_open
const struct config *checkpoint_config(const struct checkpoint *checkpoint);
bool checkpoint_is_gguf(const struct checkpoint *checkpoint);

// The quantisation section of config.json, read at the first call; by the thread that reads the checkpoint. Owned by the
// checkpoint. Errors as quantisation_read.
FALLIBLE checkpoint_quantisation(const struct checkpoint *checkpoint, const struct quantisation **out);

// The same for tensors of MLX: its own section if config.json has it.
FALLIBLE checkpoint_mlx_quantisation(const struct checkpoint *checkpoint, const struct quantisation **out);

// For checkpoint_notes_add, by the thread that reads the checkpoint. Owned by the checkpoint, until checkpoint_take_notes gives
// them to the caller, who frees them; none can be added then.
struct checkpoint_notes *checkpoint_notes_of(const struct checkpoint *checkpoint);
struct checkpoint_notes *checkpoint_take_notes(struct checkpoint *checkpoint);

// Notes that a file that was read holds a tensor whose name begins with `prefix` and that the index does not list. The index
// decides, so the tensor is not part of the model; but programs that read complete files would use it.
void checkpoint_note_unlisted(struct checkpoint *checkpoint, const char *prefix);

// Notes the tensors whose names begin with `prefix` and that a file of the index has beside the one that the index names, if
// programs that read complete files in the order of their names would take that copy. The index decides here. Only of files that
// were read.
void checkpoint_note_copies(const struct checkpoint *checkpoint, const char *prefix);

// Calls `visit` for each tensor below `prefix` that a listed file has and the index does not list, until one returns an error. Only
// after checkpoint_note_unlisted has found a tensor.
typedef err_t unlisted_visitor(void *context, const struct safetensors_entry *entry, const char *file);
FALLIBLE checkpoint_each_unlisted(const struct checkpoint *checkpoint, const char *prefix, unlisted_visitor *visit, void *context);

// The names of all tensors, in ascending byte order; names are unique. view.data is NULL for a tensor that was not read.
size_t checkpoint_count(const struct checkpoint *checkpoint);
const struct safetensors_entry *checkpoint_at(const struct checkpoint *checkpoint, size_t i);
// NULL: there is no such tensor, or it was not read.
const struct safetensors_entry *checkpoint_find(const struct checkpoint *checkpoint, const char *name);

// The index of the first tensor whose name is >= `name`; checkpoint_count: none. With a prefix as `name`: the first name that has
// it.
size_t checkpoint_lower_bound(const struct checkpoint *checkpoint, const char *name);

// The path of the file that holds the tensor, for messages.
const char *checkpoint_file_of(const struct checkpoint *checkpoint, const struct safetensors_entry *entry);

#endif
