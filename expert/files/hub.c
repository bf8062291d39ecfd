#include "expert/files/hub.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/suggest.h"
#include "expert/files/folder_kind.h"
#include "expert/files/gguf_parts.h"
#include "expert/files/hub_revision.h"

// A model of the hub: "ORG/NAME" or "ORG/NAME@REVISION".
struct hub_model {
    int org, name;            // lengths
    char text[PATH_MAX];      // "ORG/NAME"
    const char *revision;     // into the caller's text; NULL: none
    const char *quantisation; // QUANT of a GGUF file; NULL: none
};

// Does the path exist? A path that this process has no permission to read counts as existing; opening it reports the error.
static bool path_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 || errno == EACCES;
}

// A name that the hub allows: letters, digits, '.', '_', '-'; no "..", no '.' in front.
static bool is_hub_name(const char *text, size_t length) {
    static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (length == 0 || text[0] == '.' || strspn(text, ALLOWED) < length) {
        return false;
    }
    return memmem(text, length, "..", 2) == NULL;
}

// False: the text has another form.
static bool parse_model(const char *model, struct hub_model *out) {
    const char *slash = strchr(model, '/');
    if (!slash || strlen(model) >= sizeof out->text) {
        return false;
    }
    size_t org = (size_t)(slash - model), name = strcspn(slash + 1, "@");
    const char *at = slash + 1 + name;
    *out = (struct hub_model){.org = (int)org, .name = (int)name, .revision = *at ? at + 1 : NULL};
    memcpy(out->text, model, org + 1 + name);
    return is_hub_name(model, org) && is_hub_name(slash + 1, name) && (!*at || hub_is_revision(at + 1));
}

// ---- messages ----

enum { MODELS_MAX = 1024 };

// The model in the cache that the text probably means: another case, a typing error. NULL: none; else the caller frees it.
static char *similar_model(const char *cache, const char *model) {
    char *names[MODELS_MAX], *found = NULL;
    size_t count = 0;
    DIR *dir = opendir(cache);
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d && count < MODELS_MAX; d = readdir(dir)) {
        char name[NAME_MAX + 1];
        if (folder_repository_name(d->d_name, name)) {
            names[count] = strdup(name);
            count += names[count] != NULL;
        }
    }
    if (dir) {
        closedir(dir);
    }
    const char *similar = suggest_word(model, strlen(model), (const char *const *)names, count);
    for (size_t i = 0; i < count; i++) {
        if (names[i] == similar) {
            found = names[i];
        } else {
            free(names[i]);
        }
    }
    return found;
}

// " --revision REVISION --include '*QUANT*'" of hf download, as far as they are given. Without the latter it would download every
// quantisation of the repository.
static const char *download_options(const struct hub_model *model, char text[PATH_MAX]) {
    const char *quant = model->quantisation;
    snprintf(text, PATH_MAX, "%s%.512s%s%.512s%s", model->revision ? " --revision " : "", model->revision ? model->revision : "",
             quant ? " --include '*" : "", quant ? quant : "", quant ? "*'" : "");
    return text;
}

static err_t not_in_cache(const struct hub_model *model, const char *cache, const char *repository) {
    char inner[PATH_MAX], options[PATH_MAX];
    const char *folder = strrchr(repository, '/') + 1;
    struct stat status;
    if (stat(repository, &status) != 0 && errno == EACCES) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: %s: let uid %u read it, or run this as another user", repository,
                          strerror(EACCES), (unsigned)geteuid());
    }
    if (snprintf(inner, sizeof inner, "%s/hub/%s", cache, folder) < (int)sizeof inner && folder_exists(inner)) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                          "%s is not in the Hugging Face cache %s, but in %s/hub: use --hf-cache %s/hub", model->text, cache, cache,
                          cache);
    }
    char *similar = similar_model(cache, model->text);
    err_t e = err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                         "%s is neither a folder nor in the local Hugging Face cache: searched %s%s; %s%s%snothing is downloaded "
                         "automatically, so download it first (hf download %s%s)",
                         model->text, repository, folder_exists(cache) ? "" : " (the cache does not exist)",
                         similar ? "the cache has " : "", similar ? similar : "", similar ? ": did you mean it? Else, " : "",
                         model->text, download_options(model, options));
    free(similar);
    return e;
}

// Addresses on the hub's site, which people copy.
static const char *const ADDRESSES[] = {"https://", "http://", "hf://", "huggingface.co/", "hf.co/"};

static err_t no_folder(const char *model) {
    char nearest[PATH_MAX];
    for (size_t i = 0; i < sizeof ADDRESSES / sizeof *ADDRESSES; i++) {
        if (strncmp(model, ADDRESSES[i], strlen(ADDRESSES[i])) == 0) {
            return err_record(
                EXPERTD_ERR_CHECKPOINT, NULL,
                "%s is an address, and nothing is downloaded automatically: download the model (hf download ORG/NAME), "
                "then use --model ORG/NAME",
                model);
        }
    }
    if (model[0] == '~') {
        return err_record(
            EXPERTD_ERR_CHECKPOINT, NULL,
            "there is no folder %s: only a shell expands ~, and only at the beginning of a word: write the complete path", model);
    }
    bool found = folder_nearest(model, nearest);
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "there is no folder %s%s%s%s: a model is a folder, or ORG/NAME in the local Hugging Face cache", model,
                      found ? " (the nearest folder that exists is " : "", found ? nearest : "", found ? ")" : "");
}

// The error for a link that leads nowhere; OK: the path is no such link.
static FALLIBLE check_link(const char *path) {
    char target[PATH_MAX];
    int cause = errno; // of following the link
    ssize_t length = readlink(path, target, sizeof target);
    if (length > 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is a link to %.*s: %s: name the model's folder or file itself", path, (int)length, target,
             strerror(cause));
    }
    return OK;
}

static bool is_gguf_name(const char *path) {
    size_t length = strlen(path);
    return length > strlen(".gguf") && strcmp(path + length - strlen(".gguf"), ".gguf") == 0;
}

// The error for the name of a GGUF file that is not in its folder; OK: the folder does not exist either.
static FALLIBLE check_gguf_file(const char *path) {
    char folder[PATH_MAX], files[FOLDER_LIST_MAX];
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (folder_exists(folder)) {
        size_t count = folder_list(folder, "*.gguf", NULL, files);
        FAIL(EXPERTD_ERR_CHECKPOINT, "there is no file %s: the folder %s has %s", path, folder, count ? files : "no .gguf file");
    }
    return OK;
}

// ---- finding ----

static FALLIBLE copy_path(const char *from, char *path, size_t path_bytes) {
    if (strlen(from) >= path_bytes) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s is too long", from);
    }
    memcpy(path, from, strlen(from) + 1);
    return OK;
}

// The ':' of ORG/NAME:QUANT; NULL: the text has another form.
static const char *quantisation_of(const char *model) {
    const char *colon = strrchr(model, ':');
    return colon && is_hub_name(colon + 1, strlen(colon + 1)) ? colon : NULL;
}

void hub_model_name(const char *model, char *out, size_t out_bytes) {
    struct hub_model parsed;
    char repository[PATH_MAX];
    const char *colon = quantisation_of(model);
    snprintf(repository, sizeof repository, "%.*s", (int)(colon ? (size_t)(colon - model) : strlen(model)), model);
    if (parse_model(repository, &parsed)) {
        snprintf(out, out_bytes, "%s%s", parsed.text, colon ? colon : "");
    } else {
        snprintf(out, out_bytes, "%s", model);
    }
}

// model: ORG/NAME or ORG/NAME@REVISION. quantisation: for messages; NULL: none.
static FALLIBLE resolve_snapshot(const char *model, const char *quantisation, const char *cache, char snapshot[PATH_MAX]) {
    struct hub_model hub;
    if (!parse_model(model, &hub)) {
        return no_folder(model);
    }
    hub.quantisation = quantisation;
    if (!cache || cache[0] == '\0') {
        FAIL(EXPERTD_ERR_CHECKPOINT, "there is no folder %s, and no Hugging Face cache to search: set HF_HOME or HF_HUB_CACHE",
             model);
    }
    char folder[PATH_MAX];
    int length =
        snprintf(folder, sizeof folder, "%s/models--%.*s--%.*s", cache, hub.org, hub.text, hub.name, hub.text + hub.org + 1);
    if (length < 0 || (size_t)length >= sizeof folder) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s/models--%.256s is too long", cache, model);
    }
    if (!folder_exists(folder)) {
        return not_in_cache(&hub, cache, folder);
    }
    struct hub_repository repository = {.name = hub.text, .folder = folder};
    return hub_snapshot(&repository, hub.revision, snapshot);
}

FALLIBLE hub_resolve(const char *model, const char *cache, char *path, size_t path_bytes) {
    char repository[PATH_MAX], snapshot[PATH_MAX], file[PATH_MAX];
    if (path_exists(model)) {
        return copy_path(model, path, path_bytes);
    }
    TRY(check_link(model));
    TRY(is_gguf_name(model) ? check_gguf_file(model) : OK);
    const char *colon = quantisation_of(model);
    if (!colon || colon - model >= PATH_MAX) {
        TRY(resolve_snapshot(model, NULL, cache, snapshot));
        return copy_path(snapshot, path, path_bytes);
    }
    snprintf(repository, sizeof repository, "%.*s", (int)(colon - model), model);
    TRY(resolve_snapshot(repository, colon + 1, cache, snapshot));
    TRY(gguf_parts_of_quantisation(snapshot, colon + 1, file));
    return copy_path(file, path, path_bytes);
}
