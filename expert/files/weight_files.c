#include "expert/files/weight_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file_magic.h"
#include "base/regular_file.h"
#include "expert/config/json_text.h"
#include "expert/files/folder_kind.h"
#include "expert/files/numbered_files.h"

const struct weight_form WEIGHT_FORM_TRANSFORMERS = {
    .config = "config.json", .single = "model.safetensors", .index = "model.safetensors.index.json"};
const struct weight_form WEIGHT_FORM_MISTRAL = {.config = "params.json",
                                                .single = "consolidated.safetensors",
                                                .index = "consolidated.safetensors.index.json",
                                                .stem = "consolidated"};

static bool stat_in(const char *folder, const char *name, int (*how)(const char *, struct stat *)) {
    char path[PATH_MAX];
    struct stat status;
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length > 0 && length < (int)sizeof path && how(path, &status) == 0;
}

bool weight_files_has(const char *folder, const char *name) {
    return stat_in(folder, name, lstat);
}

bool weight_files_reaches(const char *folder, const char *name) {
    return stat_in(folder, name, stat);
}

static FALLIBLE add_name(struct weight_files *out, const char *name) {
    char **grown = reallocarray(out->names, out->count + 1, sizeof *grown);
    char *copy = strdup(name);
    out->names = grown ? grown : out->names;
    if (!grown || !copy) {
        free(copy);
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the names of %zu files", out->count + 1);
    }
    out->names[out->count++] = copy;
    return OK;
}

static FALLIBLE parse_index(const char *text, size_t length, struct shard_index *out) {
    size_t mark = json_text_mark(text, length);
    TRY(file_magic_check(text, length));
    if (length == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "it is empty (an unfinished download?): download it again");
    }
    return shard_index_parse(text + mark, length - mark, out);
}

// With the path, and how to get the index again.
static err_t index_is_bad(const char *folder, const char *path, err_t e) {
    char message[EXPERTD_ERR_MESSAGE_MAX], command[FOLDER_COMMAND_MAX];
    snprintf(message, sizeof message, "%s", expertd_err_message());
    bool told = e.code != EXPERTD_ERR_CHECKPOINT || strstr(message, "download it");
    return err_record(e.code, NULL, "%s: %s%s%s", path, message, told ? "" : ": download it again",
                      told ? "" : folder_download_command(folder, command));
}

static FALLIBLE read_index(const char *folder, const char *name, struct shard_index *out) {
    char path[PATH_MAX], *text;
    size_t length;
    snprintf(path, sizeof path, "%s/%s", folder, name); // a path that is too long is cut, and does not exist
    TRY(regular_file_read(path, SHARD_INDEX_BYTES_MAX, &text, &length));
    err_t e = parse_index(text, length, out);
    free(text);
    return err_is(e) ? index_is_bad(folder, path, e) : OK;
}

FALLIBLE weight_files_take_index(struct shard_index *index, struct weight_files *out) {
    out->form = out->form ? out->form : &WEIGHT_FORM_TRANSFORMERS;
    out->index = *index;
    *index = (struct shard_index){0};
    for (size_t i = 0; i < out->index.file_count; i++) {
        TRY(add_name(out, out->index.files[i]));
    }
    return OK;
}

FALLIBLE weight_files_take_single(struct weight_files *out) {
    out->form = &WEIGHT_FORM_TRANSFORMERS;
    return add_name(out, out->form->single);
}

static bool names_single(const struct shard_index *index, const char *single) {
    for (size_t i = 0; i < index->file_count; i++) {
        if (strcmp(index->files[i], single) == 0) {
            return true;
        }
    }
    return false;
}

static bool has_any(const char *folder, const struct shard_index *index) {
    for (size_t i = 0; i < index->file_count; i++) {
        if (weight_files_has(folder, index->files[i])) {
            return true;
        }
    }
    return false;
}

// With an index, model.safetensors counts only if the index names it. It counts alone if the index is of no use: invalid, or left
// over from files that are all gone.
static FALLIBLE find_by_index(const char *folder, struct weight_files *out) {
    struct shard_index index = {0};
    bool single = weight_files_has(folder, out->form->single);
    err_t e = read_index(folder, out->form->index, &index);
    if (err_is(e) && (!single || e.code != EXPERTD_ERR_CHECKPOINT)) {
        return e;
    }
    if (err_is(e)) {
        snprintf(out->note, sizeof out->note, "%s is taken, because the index beside it cannot be used (%s)", out->form->single,
                 expertd_err_message());
        return add_name(out, out->form->single);
    }
    out->has_stray = single && !names_single(&index, out->form->single);
    if (out->has_stray && !has_any(folder, &index)) {
        snprintf(out->note, sizeof out->note, "%s is taken: none of the %zu files that %s beside it lists is there",
                 out->form->single, index.file_count, out->form->index);
        shard_index_deinit(&index);
        out->has_stray = false;
        return add_name(out, out->form->single);
    }
    if (out->has_stray) {
        snprintf(out->note, sizeof out->note,
                 "the files that %s lists are taken; %s beside them is not one of them and is ignored; "
                 "layers with tensors in both are refused",
                 out->form->index, out->form->single);
    }
    return weight_files_take_index(&index, out);
}

static FALLIBLE take_numbered(const char *folder, const struct numbered_files *numbered, bool single, struct weight_files *out) {
    if (numbered->missing > 0 && single) {
        snprintf(out->note, sizeof out->note,
                 "%s is taken; the %zu numbered shards beside it are not a complete set and are ignored", out->form->single,
                 numbered->count);
        return OK;
    }
    if (numbered->missing > 0) {
        char mend[FOLDER_MEND_MAX];
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s: shard %s is missing (%zu of %zu shards are missing, and %s, which would tell what is in them, too): %s", folder,
             numbered->first_missing, numbered->missing, numbered->total, out->form->index, folder_download_mend(folder, mend));
    }
    for (size_t i = 0; i < numbered->count; i++) {
        TRY(add_name(out, numbered->names[i]));
    }
    return OK;
}

// Without an index: model.safetensors, a set of numbered shards, or both, if no tensor of a served layer is in both.
static FALLIBLE find_without_index(const char *folder, struct weight_files *out) {
    struct numbered_files numbered;
    bool single = weight_files_has(folder, out->form->single);
    TRY(numbered_files_find(folder, out->form->stem, &numbered));
    err_t e = single ? add_name(out, out->form->single) : OK;
    e = !err_is(e) && numbered.count > 0 ? take_numbered(folder, &numbered, single, out) : e;
    numbered_files_deinit(&numbered);
    TRY(e);
    return out->count ? OK : folder_kind_no_weights(folder);
}

static bool has_numbered(const char *folder, const char *stem) {
    struct numbered_files numbered;
    err_t e = numbered_files_find(folder, stem, &numbered);
    bool has = err_is(e) || numbered.count > 0; // those of several sets are reported by weight_files_find
    numbered_files_deinit(&numbered);
    return has;
}

static bool has_form(const char *folder, const struct weight_form *form) {
    return weight_files_has(folder, form->config) &&
           (weight_files_has(folder, form->single) || weight_files_has(folder, form->index) || has_numbered(folder, form->stem));
}

const struct weight_form *weight_files_form(const char *folder) {
    return has_form(folder, &WEIGHT_FORM_MISTRAL) && !has_form(folder, &WEIGHT_FORM_TRANSFORMERS) ? &WEIGHT_FORM_MISTRAL
                                                                                                  : &WEIGHT_FORM_TRANSFORMERS;
}

FALLIBLE weight_files_find(const char *folder, const struct weight_form *form, struct weight_files *out) {
    *out = (struct weight_files){.form = form};
    err_t e = weight_files_has(folder, form->index) ? find_by_index(folder, out) : find_without_index(folder, out);
    if (err_is(e)) {
        weight_files_deinit(out);
    }
    return e;
}

void weight_files_deinit(struct weight_files *files) {
    for (size_t i = 0; i < files->count; i++) {
        free(files->names[i]);
    }
    free(files->names);
    shard_index_deinit(&files->index);
    *files = (struct weight_files){0};
}
