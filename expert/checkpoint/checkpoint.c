#include "expert/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/regular_file.h"
#include "expert/checkpoint/gguf_parts.h"
#include "expert/checkpoint/shard_index.h"

static const char CONFIG_NAME[] = "config.json";
static const char WEIGHTS_NAME[] = "model.safetensors";
static const char INDEX_NAME[] = "model.safetensors.index.json";
static const char MEMORY_SHARD[] = "shard"; // the file name that an index of checkpoint_parse must use

struct checkpoint {
    char *path;
    struct config *config;
    struct safetensors *shards; // [shard_count]; never moves, since `entries` points into it
    size_t shard_count;
    bool is_gguf;
    uint64_t header_bytes;                    // of all shards
    size_t tensors;                           // in all shards
    const struct safetensors_entry **entries; // ascending by name, into the shards
    size_t count;
};

static FALLIBLE join_path(const char *folder, const char *name, char path[PATH_MAX]) {
    int length = snprintf(path, PATH_MAX, "%s/%s", folder, name);
    if (length < 0 || length >= PATH_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s/%.256s is too long", folder, name);
    }
    return OK;
}

// Does the folder have an entry of this name? A dangling link counts.
static bool has_name(const char *folder, const char *name) {
    char path[PATH_MAX];
    struct stat status;
    return !err_is(join_path(folder, name, path)) && lstat(path, &status) == 0;
}

static bool has_suffix(const char *text, const char *suffix) {
    size_t length = strlen(text), suffix_length = strlen(suffix);
    return length >= suffix_length && strcmp(text + length - suffix_length, suffix) == 0;
}

// The alphabetically first name that ends in `suffix`; false: none.
static bool first_with_suffix(const char *folder, const char *suffix, char name[NAME_MAX + 1]) {
    DIR *dir = opendir(folder);
    bool found = false;
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        if (has_suffix(d->d_name, suffix) && (!found || strcmp(d->d_name, name) < 0)) {
            snprintf(name, NAME_MAX + 1, "%s", d->d_name);
            found = true;
        }
    }
    if (dir) {
        closedir(dir);
    }
    return found;
}

// The error for a folder with neither model.safetensors nor an index, with advice about the files that it has instead.
static err_t no_weights(const char *folder) {
    char name[NAME_MAX + 1];
    const char *advice = "";
    if (first_with_suffix(folder, ".safetensors", name)) {
        advice = "its index is missing: download it";
    } else if (first_with_suffix(folder, ".bin", name) || first_with_suffix(folder, ".pth", name) ||
               first_with_suffix(folder, ".pt", name)) {
        advice = "pickled PyTorch weights are not supported: convert them to safetensors";
    } else if (first_with_suffix(folder, ".gguf", name)) {
        advice = "the first part of the GGUF model is missing: download it";
    } else {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: neither %s nor %s exists: is the download complete?", folder,
                          WEIGHTS_NAME, INDEX_NAME);
    }
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: neither %s nor %s exists, only %s: %s", folder, WEIGHTS_NAME, INDEX_NAME,
                      name, advice);
}

static FALLIBLE make_shards(struct checkpoint *c, size_t count) {
    c->shards = calloc(count, sizeof *c->shards);
    if (!c->shards) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu shards", count);
    }
    return OK;
}

// Opens the next shard, from the folder or from the caller's memory.
static FALLIBLE open_shard(struct checkpoint *c, const struct checkpoint_bytes *bytes, const char *name) {
    struct safetensors *shard = &c->shards[c->shard_count];
    if (bytes) {
        if (c->shard_count > 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s does not exist", name);
        }
        TRY(safetensors_parse(name, bytes->weights, bytes->weights_length, shard));
    } else {
        char path[PATH_MAX];
        TRY(join_path(c->path, name, path));
        TRY(safetensors_open(path, shard));
    }
    c->shard_count++;
    c->header_bytes += shard->header_bytes;
    c->tensors += shard->count;
    return OK;
}

static int compare_entry(const void *left, const void *right) {
    const struct safetensors_entry *const *a = left, *const *b = right;
    return strcmp((*a)->name, (*b)->name);
}

// Collects all tensors of all shards in one sorted list.
static FALLIBLE list_entries(struct checkpoint *c) {
    c->entries = calloc(c->tensors + 1, sizeof(*c->entries));
    if (!c->entries) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the names of %zu tensors", c->tensors);
    }
    for (size_t s = 0; s < c->shard_count; s++) {
        for (size_t i = 0; i < c->shards[s].count; i++) {
            c->entries[c->count++] = &c->shards[s].entries[i];
        }
    }
    qsort(c->entries, c->count, sizeof(*c->entries), compare_entry);
    for (size_t i = 1; i < c->count; i++) {
        if (strcmp(c->entries[i - 1]->name, c->entries[i]->name) == 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "tensor %s is in two files, %s and %s: one of them belongs to another checkpoint",
                 c->entries[i]->name, checkpoint_file_of(c, c->entries[i - 1]), checkpoint_file_of(c, c->entries[i]));
        }
    }
    return OK;
}

// Replaces the list by the index's tensors, each of which must be in the file that the index names. Other tensors of the shards are
// not part of the model.
static FALLIBLE select_listed(struct checkpoint *c, const struct shard_index *index) {
    size_t count = 0;
    for (size_t i = 0; i < index->count; i++) {
        const struct shard_index_entry *listed = &index->entries[i];
        const struct safetensors *shard = &c->shards[shard_index_file(index, listed->file)];
        const struct safetensors_entry *entry = safetensors_find(shard, listed->tensor);
        if (!entry) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s lists tensor %.256s in %s, which does not have it: the two files belong to different downloads", INDEX_NAME,
                 listed->tensor, listed->file);
        }
        INVARIANT(count < c->count); // listed tensors are distinct, and all are in the list
        c->entries[count++] = entry;
    }
    c->count = count;
    return OK;
}

// Identifies a file independently of its name. Zeroed: unknown.
struct file_identity {
    dev_t device;
    ino_t inode;
};

// The shard must exist, and must not be an earlier shard under another name, which would be read twice.
static FALLIBLE check_file(const struct checkpoint *c, const struct shard_index *index, size_t i, struct file_identity *seen) {
    const char *file = index->files[i];
    char path[PATH_MAX];
    struct stat status;
    TRY(join_path(c->path, file, path));
    if (stat(path, &status) != 0) {
        if (errno == ENOENT) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s lists shard %s (of %zu), which is not in the folder: download it", INDEX_NAME, file,
                 index->file_count);
        }
        return OK; // open_shard reports other errors
    }
    seen[i] = (struct file_identity){status.st_dev, status.st_ino};
    for (size_t j = 0; j < i; j++) {
        if (seen[j].device == seen[i].device && seen[j].inode == seen[i].inode) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s lists shards %s and %s, which are links to one file: download the two again",
                 INDEX_NAME, index->files[j], file);
        }
    }
    return OK;
}

// Called before any shard is opened, so that an incomplete folder is refused at once.
static FALLIBLE check_files(const struct checkpoint *c, const struct shard_index *index) {
    struct file_identity *seen = calloc(index->file_count, sizeof *seen);
    if (!seen) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu shards", index->file_count);
    }
    err_t e = OK;
    for (size_t i = 0; i < index->file_count && !err_is(e); i++) {
        e = check_file(c, index, i, seen);
    }
    free(seen);
    return e;
}

// Called after each shard, so that the bounds are exceeded by one file at most.
static FALLIBLE check_totals(const struct checkpoint *c, const struct shard_index *index) {
    bool too_many = c->tensors > CHECKPOINT_TENSORS_MAX;
    if (too_many || c->header_bytes > CHECKPOINT_HEADER_BYTES_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "the shards up to %s (%zu of %zu) have %" PRIu64
             " %s, more than the %d that a checkpoint may have: do they belong to one model? Download it again",
             index->files[c->shard_count - 1], c->shard_count, index->file_count, too_many ? c->tensors : c->header_bytes,
             too_many ? "tensors" : "bytes of headers", too_many ? CHECKPOINT_TENSORS_MAX : CHECKPOINT_HEADER_BYTES_MAX);
    }
    return OK;
}

static FALLIBLE open_listed(struct checkpoint *c, const struct checkpoint_bytes *bytes, const struct shard_index *index) {
    TRY(make_shards(c, index->file_count));
    TRY(bytes ? OK : check_files(c, index));
    for (size_t i = 0; i < index->file_count; i++) {
        if (bytes && strcmp(index->files[i], MEMORY_SHARD) != 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s does not exist", index->files[i]);
        }
        TRY(open_shard(c, bytes, index->files[i]));
        TRY(check_totals(c, index));
    }
    TRY(list_entries(c));
    return select_listed(c, index);
}

static FALLIBLE open_indexed(struct checkpoint *c, const struct checkpoint_bytes *bytes, const char *text, size_t length) {
    struct shard_index index;
    TRY_IN(shard_index_parse(text, length, &index), "%s/%s", c->path, INDEX_NAME);
    err_t e = open_listed(c, bytes, &index);
    shard_index_deinit(&index);
    return e;
}

static FALLIBLE open_single(struct checkpoint *c, const struct checkpoint_bytes *bytes) {
    TRY(make_shards(c, 1));
    TRY(open_shard(c, bytes, WEIGHTS_NAME));
    return list_entries(c);
}

static FALLIBLE open_weights(struct checkpoint *c) {
    if (has_name(c->path, WEIGHTS_NAME)) {
        return open_single(c, NULL);
    }
    if (!has_name(c->path, INDEX_NAME)) {
        return no_weights(c->path);
    }
    char path[PATH_MAX], *text;
    size_t length;
    TRY(join_path(c->path, INDEX_NAME, path));
    TRY(regular_file_read(path, SHARD_INDEX_BYTES_MAX, &text, &length));
    err_t e = open_indexed(c, NULL, text, length);
    free(text);
    return e;
}

static FALLIBLE open_gguf(struct checkpoint *c, const char *file) {
    struct gguf_parts parts;
    TRY(gguf_parts_open(file, &parts));
    c->is_gguf = true;
    c->config = parts.config;
    c->shards = parts.files;
    c->shard_count = parts.count;
    for (size_t i = 0; i < parts.count; i++) {
        c->tensors += parts.files[i].count;
    }
    if (c->tensors > CHECKPOINT_TENSORS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: the %zu parts have %zu tensors, more than the %d that a checkpoint may have", file,
             parts.count, c->tensors, CHECKPOINT_TENSORS_MAX);
    }
    return list_entries(c);
}

static FALLIBLE open_folder(struct checkpoint *c) {
    struct stat status;
    char file[PATH_MAX];
    bool is_gguf;
    TRY(gguf_parts_find(c->path, file, &is_gguf));
    if (is_gguf) {
        return open_gguf(c, file);
    }
    bool exists = stat(c->path, &status) == 0;
    if (exists && !S_ISDIR(status.st_mode)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is not a folder: name the folder that holds config.json, or a GGUF file", c->path);
    }
    if ((!exists || access(c->path, R_OK | X_OK) != 0) && errno == EACCES) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s: let uid %u read it, or run this as another user", c->path, strerror(errno),
             (unsigned)geteuid());
    }
    if (!exists) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s", c->path, strerror(errno));
    }
    if (!has_name(c->path, CONFIG_NAME)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has no %s: it is not a checkpoint, or the download is incomplete", c->path, CONFIG_NAME);
    }
    char path[PATH_MAX];
    TRY(join_path(c->path, CONFIG_NAME, path));
    TRY(config_open(path, &c->config));
    return open_weights(c);
}

static FALLIBLE create(const char *path, struct checkpoint **out) {
    *out = calloc(1, sizeof **out);
    if (*out) {
        (*out)->path = strdup(path);
    }
    if (!*out || !(*out)->path) {
        checkpoint_close(*out);
        *out = NULL;
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a checkpoint");
    }
    return OK;
}

static FALLIBLE closed_on_error(err_t e, struct checkpoint **out) {
    if (err_is(e)) {
        checkpoint_close(*out);
        *out = NULL;
    }
    return e;
}

FALLIBLE checkpoint_open(const char *folder, struct checkpoint **out) {
    TRY(create(folder, out));
    return closed_on_error(open_folder(*out), out);
}

static FALLIBLE parse_all(struct checkpoint *c, const struct checkpoint_bytes *bytes) {
    TRY(config_parse(CONFIG_NAME, bytes->config_text, bytes->config_length, &c->config));
    return bytes->index_text ? open_indexed(c, bytes, bytes->index_text, bytes->index_length) : open_single(c, bytes);
}

FALLIBLE checkpoint_parse(const struct checkpoint_bytes *bytes, struct checkpoint **out) {
    TRY(create("memory", out));
    return closed_on_error(parse_all(*out, bytes), out);
}

void checkpoint_close(struct checkpoint *checkpoint) {
    if (!checkpoint) {
        return;
    }
    for (size_t s = 0; s < checkpoint->shard_count; s++) {
        safetensors_close(&checkpoint->shards[s]);
    }
    free(checkpoint->shards);
    free(checkpoint->entries);
    config_destroy(checkpoint->config);
    free(checkpoint->path);
    free(checkpoint);
}

const char *checkpoint_path(const struct checkpoint *checkpoint) {
    return checkpoint->path;
}

bool checkpoint_is_gguf(const struct checkpoint *checkpoint) {
    return checkpoint->is_gguf;
}

const struct config *checkpoint_config(const struct checkpoint *checkpoint) {
    return checkpoint->config;
}

size_t checkpoint_count(const struct checkpoint *checkpoint) {
    return checkpoint->count;
}

const struct safetensors_entry *checkpoint_at(const struct checkpoint *checkpoint, size_t i) {
    INVARIANT(i < checkpoint->count);
    return checkpoint->entries[i];
}

size_t checkpoint_lower_bound(const struct checkpoint *checkpoint, const char *name) {
    size_t low = 0, high = checkpoint->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(checkpoint->entries[middle]->name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const struct safetensors_entry *checkpoint_find(const struct checkpoint *checkpoint, const char *name) {
    size_t i = checkpoint_lower_bound(checkpoint, name);
    return i < checkpoint->count && strcmp(checkpoint->entries[i]->name, name) == 0 ? checkpoint->entries[i] : NULL;
}

const char *checkpoint_file_of(const struct checkpoint *checkpoint, const struct safetensors_entry *entry) {
    for (size_t s = 0; s < checkpoint->shard_count; s++) {
        const struct safetensors *shard = &checkpoint->shards[s];
        if (entry >= shard->entries && entry < shard->entries + shard->count) {
            return shard->path;
        }
    }
    return checkpoint->path;
}
