// What the caller requires of a checkpoint, and the errors and notes about files and tensors that are not as the index says.
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "expert/checkpoint/checkpoint.h"
#include "expert/checkpoint/checkpoint_notes.h"
#include "expert/checkpoint/checkpoint_state.h"
#include "expert/files/folder_kind.h"

static bool begins_with(const char *name, const char *prefix) {
    return strncmp(name, prefix, strlen(prefix)) == 0;
}

// The error for a file that is not in the folder.
static err_t file_is_missing(const struct checkpoint *c, const struct listed_tensor *tensor) {
    const char *name = c->names.names[tensor->file];
    char mend[FOLDER_MEND_MAX], single[128] = "";
    size_t missing = 0;
    for (size_t i = 0; i < c->names.count; i++) {
        missing += !weight_files_reaches(c->path, c->names.names[i]);
    }
    if (c->names.has_stray) {
        snprintf(single, sizeof single, "; to serve %s, which is there too, move the index and its shards away",
                 c->names.form->single);
    }
    bool dangling = weight_files_has(c->path, name);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s/%s lists tensor %.256s in shard %s, which is %s (%zu of %zu shards are missing): %s, or serve only "
                      "layers whose shards are there (--layers A-B)%s",
                      c->path, c->names.form->index, tensor->entry.name, name,
                      dangling ? "a link to a file that is not there" : "not in the folder", missing, c->names.count,
                      folder_download_mend(c->path, mend), single);
}

// Some programs reserve a file's size before they download its content.
err_t checkpoint_file_failure(const struct checkpoint *checkpoint, const struct shard_file *file) {
    char download[NAME_MAX + 1], message[EXPERTD_ERR_MESSAGE_MAX];
    err_t e = err_restore(file->failure);
    if (checkpoint->memory || !folder_has_download(checkpoint->path, download)) {
        return e;
    }
    snprintf(message, sizeof message, "%s", expertd_err_message());
    return err_record(e.code, NULL, "%s (a download is under way or was interrupted: found %s)", message, download);
}

static err_t file_failed(const struct checkpoint *c, const struct listed_tensor *tensor) {
    const struct shard_file *file = &c->files[tensor->file];
    if (!c->memory && !weight_files_reaches(c->path, c->names.names[tensor->file])) {
        return file_is_missing(c, tensor);
    }
    err_t e = checkpoint_file_failure(c, file);
    if (c->names.index.count == 0) {
        return e;
    }
    char message[EXPERTD_ERR_MESSAGE_MAX];
    snprintf(message, sizeof message, "%s", expertd_err_message());
    return err_record(e.code, NULL, "%s (by %s, the file holds tensor %.256s)", message, c->names.form->index, tensor->entry.name);
}

// Bytes that were not downloaded yet are zeros, which no check of the tensors finds.
static err_t file_unfinished(const struct listed_tensor *tensor, const struct shard_file *file) {
    char control[PATH_MAX] = "";
    folder_control_file(file->path, control);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s, which holds tensor %.256s, is not downloaded completely: %s lies beside it: finish the download; if the "
                      "file is known to be complete, delete %s",
                      file->path, tensor->entry.name, control, control);
}

static err_t is_in_two_files(const struct checkpoint *c, const struct listed_tensor *tensor) {
    const char *file = c->files[tensor->file].path, *second = c->files[tensor->second].path;
    if (c->is_gguf) {
        return err_record(
            EXPERTD_ERR_CHECKPOINT, NULL,
            "tensor %.256s is in two parts of the model, %s and %s: one of them belongs to another model; download it "
            "again",
            tensor->entry.name, file, second);
    }
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "tensor %.256s is in two files, %s and %s, and there is no %s to tell which of them counts: one of the files "
                      "belongs to another checkpoint; move it away",
                      tensor->entry.name, file, second, c->names.form->index);
}

static FALLIBLE require_one(const struct checkpoint *c, const struct listed_tensor *tensor) {
    const struct shard_file *file = &c->files[tensor->file];
    const char *name = tensor->entry.name;
    if (file->state == FILE_FAILED) {
        return file_failed(c, tensor);
    }
    INVARIANT(file->state == FILE_READ); // checkpoint_read was called
    if (file->unfinished) {
        return file_unfinished(tensor, file);
    }
    if (!tensor->entry.view.data) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s/%s lists tensor %.256s in %s, which does not have it: the two files belong to different downloads", c->path,
             c->names.form->index, name, c->names.names[tensor->file]);
    }
    if (tensor->second != tensor->file && c->is_gguf) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "tensor %.256s is in two parts of the model, %s and %s: one of the files belongs to another model; download it again",
             name, file->path, c->files[tensor->second].path);
    }
    if (tensor->second != tensor->file) {
        return is_in_two_files(c, tensor);
    }
    if (safetensors_find(&c->stray, name)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: tensor %.256s is in %s and, by %s, in %s: programs differ in which of them they take; move %s away, or the index "
             "and its shards",
             c->path, name, c->names.form->single, c->names.form->index, c->names.names[tensor->file], c->names.form->single);
    }
    return OK;
}

FALLIBLE checkpoint_require(const struct checkpoint *checkpoint, const char *prefix) {
    for (size_t i = checkpoint_lower_bound(checkpoint, prefix); i < checkpoint->count; i++) {
        if (!begins_with(checkpoint->listed[i].entry.name, prefix)) {
            break;
        }
        TRY(require_one(checkpoint, &checkpoint->listed[i]));
    }
    return OK;
}

bool checkpoint_lacks_parts(const struct checkpoint *checkpoint) {
    return checkpoint->missing != NULL;
}

FALLIBLE checkpoint_require_parts(const struct checkpoint *checkpoint, const char *what) {
    char mend[FOLDER_MEND_MAX], folder[PATH_MAX];
    if (checkpoint->missing) {
        const char *first = checkpoint->files[0].path, *slash = strrchr(first, '/');
        snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - first) : 1, slash ? first : ".");
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: %.256s is in none of the parts that are there, and %s: %s, or serve only layers whose parts are there "
             "(--layers A-B)",
             checkpoint->path, what, checkpoint->missing, folder_download_mend(folder, mend));
    }
    return OK;
}

static bool is_listed(const struct checkpoint *c, const char *name) {
    size_t at = checkpoint_lower_bound(c, name);
    return at < c->count && strcmp(c->listed[at].entry.name, name) == 0;
}

// The first from entry `at` whose name begins with `prefix`.
static const struct safetensors_entry *next_unlisted(const struct checkpoint *c, const struct safetensors *shard,
                                                     const char *prefix, size_t at) {
    for (size_t i = at; i < shard->count && begins_with(shard->entries[i].name, prefix); i++) {
        if (!is_listed(c, shard->entries[i].name)) {
            return &shard->entries[i];
        }
    }
    return NULL;
}

void checkpoint_note_unlisted(struct checkpoint *checkpoint, const char *prefix) {
    const struct weight_files *names = &checkpoint->names;
    for (size_t f = 0; f < names->count && names->index.count > 0 && !checkpoint->noted_unlisted; f++) {
        const struct safetensors *shard = &checkpoint->files[f].shard;
        const struct safetensors_entry *entry = next_unlisted(checkpoint, shard, prefix, safetensors_lower_bound(shard, prefix));
        if (entry) {
            checkpoint_notes_add(
                checkpoint->notes, "unlisted_tensor",
                "tensor %.256s in %s is ignored, because %s does not list it; programs that read complete files would use it",
                entry->name, names->names[f], names->form->index);
            checkpoint->noted_unlisted = true;
        }
    }
}

// transformers and SGLang read the files of an index in the order of their names, vLLM with the numbers in them as numbers.
static bool is_read_later(const char *file, const char *other) {
    return strcmp(file, other) > 0 || strverscmp(file, other) > 0;
}

static void note_copies_in(const struct checkpoint *c, size_t file, const char *prefix) {
    const struct safetensors *shard = &c->files[file].shard;
    for (size_t i = safetensors_lower_bound(shard, prefix); i < shard->count && begins_with(shard->entries[i].name, prefix); i++) {
        const char *name = shard->entries[i].name;
        size_t at = checkpoint_lower_bound(c, name);
        const struct listed_tensor *listed = at < c->count ? &c->listed[at] : NULL;
        if (!listed || strcmp(listed->entry.name, name) != 0 || listed->file == file || !listed->entry.view.data) {
            continue;
        }
        const char *other = c->names.names[file], *of_index = c->names.names[listed->file];
        if (is_read_later(other, of_index)) {
            checkpoint_notes_add(c->notes, "copy_in_later_file",
                                 "tensor %.256s is in two files of %s: the copy in %s counts, which it names; programs that read "
                                 "complete files in the order of their names take the one in %s",
                                 name, c->names.form->index, of_index, other);
        }
    }
}

void checkpoint_note_copies(const struct checkpoint *checkpoint, const char *prefix) {
    for (size_t f = 0; f < checkpoint->names.count && checkpoint->names.index.count > 0; f++) {
        note_copies_in(checkpoint, f, prefix);
    }
}

FALLIBLE checkpoint_each_unlisted(const struct checkpoint *checkpoint, const char *prefix, unlisted_visitor *visit, void *context) {
    for (size_t f = 0; f < checkpoint->names.count && checkpoint->noted_unlisted; f++) {
        const struct safetensors *shard = &checkpoint->files[f].shard;
        size_t at = safetensors_lower_bound(shard, prefix);
        for (const struct safetensors_entry *entry; (entry = next_unlisted(checkpoint, shard, prefix, at)); at++) {
            TRY(visit(context, entry, checkpoint->files[f].path));
            at = (size_t)(entry - shard->entries);
        }
    }
    return OK;
}

FALLIBLE checkpoint_check_unchanged(const struct checkpoint *checkpoint) {
    for (size_t f = 0; f < checkpoint->names.count; f++) {
        const struct shard_file *file = &checkpoint->files[f];
        struct stat now;
        bool is_same = file->state == FILE_READ && file->inode != 0 && stat(file->path, &now) == 0 && now.st_dev == file->device &&
                       now.st_ino == file->inode;
        if (is_same && (now.st_size != file->bytes || now.st_mtim.tv_sec != file->changed.tv_sec ||
                        now.st_mtim.tv_nsec != file->changed.tv_nsec)) {
            FAIL(EXPERTD_ERR_CHECKPOINT,
                 "%s was written while it was read: do not change a checkpoint that is being loaded; start again when it is "
                 "complete",
                 file->path);
        }
    }
    return OK;
}
