// The state of an open checkpoint, for checkpoint.c and checkpoint_require.c. Private to expert/checkpoint/.
#ifndef EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_STATE_H
#define EXPERTD_EXPERT_CHECKPOINT_CHECKPOINT_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/safetensors.h"
#include "expert/files/weight_files.h"

enum file_state { FILE_NOT_READ, FILE_READ, FILE_FAILED };

struct checkpoint_notes;
struct config;
struct quantisation_source;

struct shard_file {
    char *path; // for messages, and to open it
    enum file_state state;
    dev_t device; // with the inode, identifies a file that was read independently of its name
    ino_t inode;
    off_t bytes; // with the time of change, before it was read
    struct timespec changed;
    struct safetensors shard;
    bool unfinished;          // a control file of a download lies beside it
    struct err_copy *failure; // FILE_FAILED
};

// The entry comes first, so that a pointer to it is a pointer to the tensor.
struct listed_tensor {
    struct safetensors_entry entry; // view.data NULL: not read
    uint32_t file, second;          // the files that hold it; second: another one, without an index; equal to `file`: none
};

struct checkpoint {
    char *path;
    struct config *config;
    struct quantisation_source *quantisation; // read by checkpoint_quantisation
    struct checkpoint_notes *notes;           // NULL after checkpoint_take_notes
    struct weight_files names;                // its index, or the files, own the tensors' names
    struct shard_file *files;                 // [names.count]
    struct safetensors stray;                 // a model.safetensors that the index does not name; zeroed: none that can be read
    uint64_t header_bytes;                    // of all files that were read
    size_t tensors;                           // in all files that were read
    size_t read_count;                        // files that were read
    struct listed_tensor *listed;             // [count], ascending by name
    size_t count;
    bool noted_unlisted;
    bool is_gguf;
    char *missing;      // of a GGUF model: which parts are missing, for messages; NULL: none
    const void *memory; // of checkpoint_parse: the one file; NULL: a folder
    size_t memory_bytes;
};

// The error of a file that is there and could not be read.
err_t checkpoint_file_failure(const struct checkpoint *checkpoint, const struct shard_file *file);

#endif
