#include "expert/checkpoint/checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "expert/checkpoint/checkpoint_notes.h"
#include "expert/checkpoint/checkpoint_state.h"
#include "expert/checkpoint/quantisation_source.h"
#include "expert/files/folder_kind.h"
#include "expert/files/gguf_parts.h"
#include "expert/files/weight_files.h"
#include "expert/foreign/mistral_config.h"

static const char MEMORY_SHARD[] = "shard"; // the file name that an index of checkpoint_parse must use

static FALLIBLE make_files(struct checkpoint *c) {
    c->files = calloc(c->names.count + 1, sizeof *c->files);
    if (!c->files) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu shards", c->names.count);
    }
    for (size_t i = 0; i < c->names.count; i++) {
        bool made = c->memory ? (c->files[i].path = strdup(c->names.names[i])) != NULL
                              : asprintf(&c->files[i].path, "%s/%s", c->path, c->names.names[i]) >= 0;
        if (!made) {
            c->files[i].path = NULL;
            FAIL(EXPERTD_ERR_NOMEM, "no memory for the paths of %zu shards", c->names.count);
        }
    }
    return OK;
}

// ---- reading headers ----

// Called after each file, so that the bounds are exceeded by one file at most.
static FALLIBLE check_totals(const struct checkpoint *c, const struct shard_file *file) {
    bool too_many = c->tensors > CHECKPOINT_TENSORS_MAX;
    if (too_many || c->header_bytes > CHECKPOINT_HEADER_BYTES_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "the shards up to %s (%zu of %zu) have %" PRIu64
             " %s, more than the %d that a checkpoint may have: do they belong to one model? Download it again",
             file->path, c->read_count, c->names.count, too_many ? c->tensors : c->header_bytes,
             too_many ? "tensors" : "bytes of headers", too_many ? CHECKPOINT_TENSORS_MAX : CHECKPOINT_HEADER_BYTES_MAX);
    }
    return OK;
}

// Remembers which file it is and when it was changed; false: it cannot be found.
static bool remember(struct shard_file *file) {
    struct stat status;
    if (stat(file->path, &status) != 0) {
        return false;
    }
    file->device = status.st_dev;
    file->inode = status.st_ino;
    file->bytes = status.st_size;
    file->changed = status.st_mtim;
    return true;
}

// A file that is another file under a second name would be read twice, and a thousand names could exhaust memory.
static FALLIBLE check_identity(const struct checkpoint *c, struct shard_file *file) {
    if (!remember(file)) {
        return OK; // opening it reports the error
    }
    for (size_t i = 0; i < c->names.count; i++) {
        const struct shard_file *other = &c->files[i];
        if (other->state == FILE_READ && other->device == file->device && other->inode == file->inode) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "%s and %s are links to one file: download the two again", other->path, file->path);
        }
    }
    return OK;
}

// ComfyUI's files may state their formats in the header's __metadata__ only. Names, dtypes and shapes are those of other programs,
// but some formats have another order of codes and scales, or rotated inputs.
static FALLIBLE check_metadata(const struct safetensors *file) {
    static const char KEY[] = "_quantization_metadata";
    static const char *const OTHER_ORDER[] = {"nvfp4", "mxfp8", "mxfp4", "convrot"};
    const char *stated = safetensors_metadata(file, KEY);
    for (size_t i = 0; stated && i < sizeof OTHER_ORDER / sizeof *OTHER_ORDER; i++) {
        if (strstr(stated, OTHER_ORDER[i])) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s: __metadata__.%s of its header names %s, so ComfyUI's tools wrote it: their order of codes and scales, and "
                 "their rotations, are not supported: take the checkpoint for transformers or vLLM",
                 file->path, KEY, OTHER_ORDER[i]);
        }
    }
    return OK;
}

static FALLIBLE open_file(const struct checkpoint *c, struct shard_file *file) {
    if (!c->memory) {
        TRY(check_identity(c, file));
        TRY(safetensors_open(file->path, &file->shard));
        return check_metadata(&file->shard);
    }
    const char *expected = c->names.index.count ? MEMORY_SHARD : c->names.form->single;
    if (strcmp(file->path, expected) != 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s does not exist", file->path);
    }
    return safetensors_parse(file->path, c->memory, c->memory_bytes, &file->shard);
}

// Reads a file that was not read yet. A failure is kept in the file for checkpoint_require. EXPERTD_ERR_CHECKPOINT: check_totals.
static FALLIBLE read_file(struct checkpoint *c, struct shard_file *file) {
    if (file->state != FILE_NOT_READ) {
        return OK;
    }
    err_t e = open_file(c, file);
    if (err_is(e)) {
        file->failure = malloc(sizeof *file->failure);
        if (!file->failure) {
            return e;
        }
        err_save(e, file->failure);
        file->state = FILE_FAILED;
        return OK;
    }
    file->state = FILE_READ;
    c->read_count++;
    c->header_bytes += file->shard.header_bytes;
    c->tensors += file->shard.count;
    return check_totals(c, file);
}

FALLIBLE checkpoint_read(struct checkpoint *checkpoint, const char *prefix) {
    for (size_t i = checkpoint_lower_bound(checkpoint, prefix); i < checkpoint->count; i++) {
        struct listed_tensor *listed = &checkpoint->listed[i];
        struct shard_file *file = &checkpoint->files[listed->file];
        if (strncmp(listed->entry.name, prefix, strlen(prefix)) != 0) {
            break;
        }
        TRY(read_file(checkpoint, file));
        const struct safetensors_entry *found =
            file->state == FILE_READ ? safetensors_find(&file->shard, listed->entry.name) : NULL;
        if (found) {
            listed->entry.view = found->view;
            listed->entry.blocks = found->blocks;
        }
    }
    return OK;
}

// ---- names ----

static FALLIBLE make_list(struct checkpoint *c, size_t count) {
    if (count > CHECKPOINT_TENSORS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: it has %zu tensors, more than the %d that a checkpoint may have", c->path, count,
             CHECKPOINT_TENSORS_MAX);
    }
    c->listed = calloc(count + 1, sizeof *c->listed);
    if (!c->listed) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a list of %zu tensors", count);
    }
    return OK;
}

// With an index, the tensors are those that it lists, each in the file that it names. Other tensors of the files are not part of
// the model.
static FALLIBLE list_by_index(struct checkpoint *c) {
    const struct shard_index *index = &c->names.index;
    TRY(make_list(c, index->count));
    for (size_t i = 0; i < index->count; i++) {
        uint32_t file = (uint32_t)shard_index_file(index, index->entries[i].file);
        c->listed[i] = (struct listed_tensor){.entry = {.name = index->entries[i].tensor}, .file = file, .second = file};
    }
    c->count = index->count;
    return OK;
}

static int compare_listed(const void *left, const void *right) {
    const struct listed_tensor *a = left, *b = right;
    int names = strcmp(a->entry.name, b->entry.name);
    return names ? names : (a->file > b->file) - (a->file < b->file);
}

// A tensor in several files is listed once. It is an error only if it is required.
static void join_copies(struct checkpoint *c) {
    size_t count = 0;
    for (size_t i = 0; i < c->count; i++) {
        if (count > 0 && strcmp(c->listed[count - 1].entry.name, c->listed[i].entry.name) == 0) {
            c->listed[count - 1].second = c->listed[i].file;
        } else {
            c->listed[count++] = c->listed[i];
        }
    }
    c->count = count;
}

// Without an index, only the files tell what they hold, so each must be readable.
static FALLIBLE list_by_headers(struct checkpoint *c) {
    for (size_t f = 0; f < c->names.count; f++) {
        TRY(read_file(c, &c->files[f]));
        if (c->files[f].state == FILE_FAILED) {
            return checkpoint_file_failure(c, &c->files[f]);
        }
    }
    TRY(make_list(c, c->tensors));
    for (size_t f = 0; f < c->names.count; f++) {
        for (size_t i = 0; i < c->files[f].shard.count; i++) {
            c->listed[c->count++] =
                (struct listed_tensor){.entry = c->files[f].shard.entries[i], .file = (uint32_t)f, .second = (uint32_t)f};
        }
    }
    qsort(c->listed, c->count, sizeof *c->listed, compare_listed);
    join_copies(c);
    return OK;
}

static FALLIBLE list_tensors(struct checkpoint *c) {
    TRY(make_files(c));
    return c->names.index.count ? list_by_index(c) : list_by_headers(c);
}

// ---- opening ----

// Is the path a link to one of the index's files?
static bool is_listed_file(const struct checkpoint *c, const char *path) {
    struct stat single, other;
    for (size_t f = 0; stat(path, &single) == 0 && f < c->names.count; f++) {
        if (stat(c->files[f].path, &other) == 0 && single.st_dev == other.st_dev && single.st_ino == other.st_ino) {
            return true;
        }
    }
    return false;
}

// What is in model.safetensors beside an index matters only if it holds tensors that are required. It need not be readable.
static void open_stray(struct checkpoint *c) {
    char path[PATH_MAX];
    int length = snprintf(path, sizeof path, "%s/%s", c->path, c->names.form->single);
    bool other = length > 0 && length < (int)sizeof path && !is_listed_file(c, path);
    if (other && err_is(safetensors_open(path, &c->stray))) {
        c->stray = (struct safetensors){0};
    }
}

// Takes the tensors of part i, which is open.
static FALLIBLE take_part(struct checkpoint *c, struct safetensors *part) {
    char **name = &c->names.names[c->names.count];
    struct shard_file *file = &c->files[c->names.count++];
    *name = strdup(part->path);
    file->path = strdup(part->path);
    file->shard = *part;
    *part = (struct safetensors){0};
    file->state = FILE_READ;
    c->read_count++;
    c->header_bytes += file->shard.header_bytes;
    c->tensors += file->shard.count;
    if (!*name || !file->path) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a path");
    }
    (void)remember(file);
    return OK;
}

static FALLIBLE take_parts(struct checkpoint *c, struct gguf_parts *parts) {
    c->is_gguf = true;
    c->config = parts->config;
    parts->config = NULL;
    c->missing = parts->missing[0] ? strdup(parts->missing) : NULL;
    if (parts->missing[0] && !c->missing) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the names of missing parts");
    }
    if (c->missing) {
        checkpoint_notes_add(c->notes, "missing_parts", "%s: %s; layers with tensors in them are refused", c->path, c->missing);
    }
    c->names.names = calloc(parts->count, sizeof *c->names.names);
    c->files = calloc(parts->count + 1, sizeof *c->files);
    if (!c->names.names || !c->files) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu files", parts->count);
    }
    for (size_t i = 0; i < parts->count; i++) {
        TRY(take_part(c, &parts->files[i]));
        TRY(check_totals(c, &c->files[i]));
    }
    return list_by_headers(c);
}

static FALLIBLE open_gguf(struct checkpoint *c, const char *file) {
    struct gguf_parts parts;
    TRY(gguf_parts_open(file, &parts));
    err_t e = take_parts(c, &parts);
    gguf_parts_close(&parts);
    return e;
}

static const char ADAPTER_NAME[] = "adapter_config.json";

static void note_adapter(struct checkpoint *c) {
    if (weight_files_has(c->path, ADAPTER_NAME)) {
        checkpoint_notes_add(c->notes, "adapter",
                             "%s/%s: the LoRA adapter beside the model is ignored, and transformers would apply it: to serve the "
                             "two together, merge them first (in peft: merge_and_unload)",
                             c->path, ADAPTER_NAME);
    }
}

// Only layers that need such a file are refused.
static void note_unfinished(struct checkpoint *c) {
    char control[PATH_MAX];
    for (size_t f = 0; f < c->names.count; f++) {
        c->files[f].unfinished = folder_control_file(c->files[f].path, control);
        if (c->files[f].unfinished) {
            checkpoint_notes_add(c->notes, "unfinished_download",
                                 "%s is not downloaded completely: %s lies beside it; layers with tensors in it are refused",
                                 c->files[f].path, control);
        }
    }
}

// In the hub's cache, config.json is a link to a blob, which an interrupted download leaves out.
static FALLIBLE read_config(struct checkpoint *c, const char *path) {
    char mend[FOLDER_MEND_MAX];
    if (!weight_files_reaches(c->path, c->names.form->config) && errno == ENOENT) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s (the target of this link): %s", path, strerror(ENOENT),
             folder_download_mend(c->path, mend));
    }
    TRY(config_open(path, &c->config));
    return c->names.form == &WEIGHT_FORM_MISTRAL ? mistral_config_make(&c->config) : OK;
}

static void note_form(struct checkpoint *c) {
    if (c->names.form == &WEIGHT_FORM_MISTRAL && weight_files_has(c->path, WEIGHT_FORM_TRANSFORMERS.config)) {
        checkpoint_notes_add(c->notes, "weight_files",
                             "%s: %s and the weights of Mistral's own form are taken, because those of %s are not there", c->path,
                             c->names.form->config, WEIGHT_FORM_TRANSFORMERS.config);
    }
}

static FALLIBLE open_safetensors(struct checkpoint *c) {
    struct stat status;
    bool exists = stat(c->path, &status) == 0;
    if (exists && !S_ISDIR(status.st_mode)) {
        return folder_kind_not_a_folder(c->path);
    }
    if ((!exists || access(c->path, R_OK | X_OK) != 0) && errno == EACCES) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s: %s: let uid %u read it, or run this as another user", c->path, strerror(errno),
             (unsigned)geteuid());
    }
    if (!exists) {
        return folder_kind_absent(c->path);
    }
    const struct weight_form *form = c->names.form = weight_files_form(c->path);
    if (!weight_files_has(c->path, form->config)) {
        return folder_kind_no_config(c->path);
    }
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", c->path, form->config) >= (int)sizeof path) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s/%s is too long", c->path, form->config);
    }
    TRY(read_config(c, path));
    TRY(weight_files_find(c->path, form, &c->names));
    note_form(c);
    if (c->names.note[0]) {
        checkpoint_notes_add(c->notes, "weight_files", "%s", c->names.note);
    }
    TRY(list_tensors(c));
    if (c->names.has_stray) {
        open_stray(c);
    }
    note_adapter(c);
    return OK;
}

static FALLIBLE open_path(struct checkpoint *c) {
    char file[PATH_MAX];
    bool is_gguf;
    TRY(gguf_parts_find(c->path, file, &is_gguf));
    TRY(is_gguf ? open_gguf(c, file) : open_safetensors(c));
    note_unfinished(c);
    return OK;
}

static FALLIBLE create(const char *path, struct checkpoint **out) {
    *out = calloc(1, sizeof **out);
    if (*out) {
        (*out)->path = strdup(path);
        (*out)->notes = calloc(1, sizeof *(*out)->notes);
        (*out)->quantisation = calloc(1, sizeof *(*out)->quantisation);
    }
    if (!*out || !(*out)->path || !(*out)->notes || !(*out)->quantisation) {
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
    return closed_on_error(open_path(*out), out);
}

static FALLIBLE name_bytes(const struct checkpoint_bytes *bytes, struct weight_files *out) {
    if (!bytes->index_text) {
        return weight_files_take_single(out);
    }
    struct shard_index index;
    TRY_IN(shard_index_parse(bytes->index_text, bytes->index_length, &index), "%s", WEIGHT_FORM_TRANSFORMERS.index);
    return weight_files_take_index(&index, out);
}

static FALLIBLE parse_gguf(struct checkpoint *c, const struct checkpoint_bytes *bytes) {
    struct gguf_parts parts;
    TRY(gguf_parts_parse("model.gguf", bytes->weights, bytes->weights_length, &parts));
    err_t e = take_parts(c, &parts);
    gguf_parts_close(&parts);
    return e;
}

static FALLIBLE parse_all(struct checkpoint *c, const struct checkpoint_bytes *bytes) {
    if (!bytes->config_text) {
        return parse_gguf(c, bytes);
    }
    c->memory = bytes->weights;
    c->memory_bytes = bytes->weights_length;
    TRY(config_parse(WEIGHT_FORM_TRANSFORMERS.config, bytes->config_text, bytes->config_length, &c->config));
    TRY(name_bytes(bytes, &c->names));
    return list_tensors(c);
}

FALLIBLE checkpoint_parse(const struct checkpoint_bytes *bytes, struct checkpoint **out) {
    TRY(create("memory", out));
    return closed_on_error(parse_all(*out, bytes), out);
}

void checkpoint_close(struct checkpoint *checkpoint) {
    if (!checkpoint) {
        return;
    }
    for (size_t f = 0; checkpoint->files && f < checkpoint->names.count; f++) {
        safetensors_close(&checkpoint->files[f].shard);
        free(checkpoint->files[f].failure);
        free(checkpoint->files[f].path);
    }
    safetensors_close(&checkpoint->stray);
    free(checkpoint->files);
    free(checkpoint->listed);
    free(checkpoint->missing);
    weight_files_deinit(&checkpoint->names);
    if (checkpoint->quantisation) {
        quantisation_source_deinit(checkpoint->quantisation);
    }
    config_destroy(checkpoint->config);
    free(checkpoint->quantisation);
    free(checkpoint->notes);
    free(checkpoint->path);
    free(checkpoint);
}

const char *checkpoint_path(const struct checkpoint *checkpoint) {
    return checkpoint->path;
}

const struct config *checkpoint_config(const struct checkpoint *checkpoint) {
    return checkpoint->config;
}

bool checkpoint_is_gguf(const struct checkpoint *checkpoint) {
    return checkpoint->is_gguf;
}

FALLIBLE checkpoint_quantisation(const struct checkpoint *checkpoint, const struct quantisation **out) {
    struct quantisation_source *source = checkpoint->quantisation;
    *out = &source->quantisation;
    if (source->quantisation.is_read) {
        return OK;
    }
    bool folder = !checkpoint->memory && !checkpoint->is_gguf;
    return quantisation_source_read(source, checkpoint->config, folder ? checkpoint->path : NULL, checkpoint->notes);
}

FALLIBLE checkpoint_mlx_quantisation(const struct checkpoint *checkpoint, const struct quantisation **out) {
    struct quantisation *mlx = &checkpoint->quantisation->mlx;
    TRY(mlx->is_read ? OK : quantisation_read_mlx(checkpoint->config, mlx));
    *out = mlx;
    return mlx->config ? OK : checkpoint_quantisation(checkpoint, out);
}

struct checkpoint_notes *checkpoint_notes_of(const struct checkpoint *checkpoint) {
    INVARIANT(checkpoint->notes);
    return checkpoint->notes;
}

struct checkpoint_notes *checkpoint_take_notes(struct checkpoint *checkpoint) {
    struct checkpoint_notes *notes = checkpoint->notes;
    checkpoint->notes = NULL;
    return notes;
}

size_t checkpoint_count(const struct checkpoint *checkpoint) {
    return checkpoint->count;
}

const struct safetensors_entry *checkpoint_at(const struct checkpoint *checkpoint, size_t i) {
    INVARIANT(i < checkpoint->count);
    return &checkpoint->listed[i].entry;
}

size_t checkpoint_lower_bound(const struct checkpoint *checkpoint, const char *name) {
    size_t low = 0, high = checkpoint->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (strcmp(checkpoint->listed[middle].entry.name, name) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

const struct safetensors_entry *checkpoint_find(const struct checkpoint *checkpoint, const char *name) {
    size_t i = checkpoint_lower_bound(checkpoint, name);
    bool found = i < checkpoint->count && strcmp(checkpoint->listed[i].entry.name, name) == 0;
    return found && checkpoint->listed[i].entry.view.data ? &checkpoint->listed[i].entry : NULL;
}

const char *checkpoint_file_of(const struct checkpoint *checkpoint, const struct safetensors_entry *entry) {
    const struct listed_tensor *listed = (const struct listed_tensor *)entry;
    INVARIANT(listed >= checkpoint->listed && listed < checkpoint->listed + checkpoint->count);
    return checkpoint->files[listed->file].path;
}
