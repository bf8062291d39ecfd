// The errors for folders and files that are no checkpoint.
#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "expert/files/folder_kind.h"

enum { ENTRIES_SHOWN = 3 };

size_t folder_list(const char *path, const char *pattern, const char *inner, char text[FOLDER_LIST_MAX]) {
    struct dirent **entries = NULL;
    int all = scandir(path, &entries, NULL, alphasort);
    size_t found = 0, used = 0;
    text[0] = '\0';
    for (int i = 0; i < all; i++) {
        char file[PATH_MAX];
        const char *name = entries[i]->d_name;
        int length = snprintf(file, sizeof file, "%s/%s%s%s", path, name, inner ? "/" : "", inner ? inner : "");
        if (name[0] != '.' && fnmatch(pattern, name, 0) == 0 && length < (int)sizeof file && access(file, F_OK) == 0) {
            bool shown = found < ENTRIES_SHOWN && used < FOLDER_LIST_MAX;
            used += shown ? (size_t)snprintf(text + used, FOLDER_LIST_MAX - used, "%s%s", found ? ", " : "", name) : 0;
            found++;
        }
        free(entries[i]);
    }
    free(entries);
    if (found > ENTRIES_SHOWN && used < FOLDER_LIST_MAX) {
        snprintf(text + used, FOLDER_LIST_MAX - used, ", ...");
    }
    return found;
}

bool folder_repository_name(const char *folder, char out[NAME_MAX + 1]) {
    static const char PREFIX[] = "models--";
    if (strncmp(folder, PREFIX, sizeof PREFIX - 1) != 0) {
        return false;
    }
    snprintf(out, NAME_MAX + 1, "%s", folder + sizeof PREFIX - 1);
    char *dashes = strstr(out, "--");
    if (!dashes) {
        return out[0] != '\0';
    }
    *dashes = '/';
    memmove(dashes + 1, dashes + 2, strlen(dashes + 2) + 1);
    return true;
}

// The error for a repository folder of a Hugging Face cache, with its snapshots.
static err_t is_repository(const char *path, const char *snapshots) {
    char real[PATH_MAX], name[NAME_MAX + 1];
    const char *folder = realpath(path, real) ? real : path;
    bool set = strncmp(basename(folder), "datasets--", strlen("datasets--")) == 0;
    if (set || strncmp(basename(folder), "spaces--", strlen("spaces--")) == 0) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s is a %s in a Hugging Face cache: name a model", path,
                          set ? "data set" : "space (an application)");
    }
    if (folder_repository_name(basename(folder), name)) {
        return err_record(
            EXPERTD_ERR_CHECKPOINT, NULL,
            "%s is the folder of %s in a Hugging Face cache, not a checkpoint: use --model %s with --hf-cache %.*s, or "
            "name a folder below snapshots (%s)",
            path, name, name, (int)(basename(folder) - folder - 1), folder, snapshots);
    }
    return err_record(
        EXPERTD_ERR_CHECKPOINT, NULL,
        "%s has the form of a repository in a Hugging Face cache (refs, snapshots), not of a checkpoint: name a folder "
        "below snapshots (%s), or ORG/NAME",
        path, snapshots);
}

// The error for a folder of a Hugging Face cache; OK: it is none.
static FALLIBLE check_cache(const char *path) {
    char text[FOLDER_LIST_MAX], snapshots[PATH_MAX], name[NAME_MAX + 1];
    if (snprintf(snapshots, sizeof snapshots, "%s/snapshots", path) < (int)sizeof snapshots && folder_exists(snapshots)) {
        folder_list(snapshots, "*", ".", text);
        return is_repository(path, text[0] ? text : "there is none: download the model again");
    }
    if (folder_list(path, "models--*", ".", text) > 0) {
        bool named = text[0] && !strchr(text, ',') && folder_repository_name(text, name);
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s is a Hugging Face cache, not a checkpoint: use --hf-cache %s --model %s (it has %s)", path,
             path, named ? name : "ORG/NAME", text);
    }
    return OK;
}

enum { FOLDERS_VISITED_MAX = 256 };

// What is found in the folders below one, two levels deep: a checkpoint, else the first recognised folder.
struct below {
    unsigned visited;
    char checkpoint[PATH_MAX]; // "": none
    bool is_gguf;              // the checkpoint has GGUF files
    char other[PATH_MAX];      // "": none
    struct folder_finding finding;
};

static void each_subfolder(const char *path, void (*visit)(const char *path, struct below *below), struct below *below) {
    struct dirent **entries = NULL;
    int all = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < all; i++) {
        char inner[PATH_MAX];
        int length = snprintf(inner, sizeof inner, "%s/%s", path, entries[i]->d_name);
        bool visited = below->visited < FOLDERS_VISITED_MAX && entries[i]->d_name[0] != '.' && length < (int)sizeof inner;
        if (visited && folder_exists(inner)) {
            below->visited++;
            visit(inner, below);
        }
        free(entries[i]);
    }
    free(entries);
}

// Does the folder hold GGUF files? Opening it tells which of them begin a model.
static bool holds_gguf(const char *path) {
    char list[FOLDER_LIST_MAX];
    return folder_list(path, "*.gguf", NULL, list) > 0;
}

// Is it a checkpoint in Mistral's own form?
static bool holds_mistral(const char *path) {
    char text[FOLDER_LIST_MAX];
    return folder_list(path, "params.json", NULL, text) > 0 && folder_list(path, "consolidated*.safetensors", NULL, text) > 0;
}

static void look_into(const char *path, struct below *below) {
    char config[PATH_MAX];
    struct folder_finding finding;
    bool has_config = snprintf(config, sizeof config, "%s/config.json", path) < (int)sizeof config && access(config, F_OK) == 0;
    has_config = has_config || holds_mistral(path);
    bool better = has_config ? !below->checkpoint[0] || below->is_gguf : !below->checkpoint[0] && holds_gguf(path);
    if (better) {
        snprintf(below->checkpoint, sizeof below->checkpoint, "%s", path);
        below->is_gguf = !has_config;
    }
    if (!below->other[0]) {
        folder_kind_find(path, &finding);
        if (finding.what && finding.kind != FOLDER_PARTS) {
            snprintf(below->other, sizeof below->other, "%s", path);
            below->finding = finding;
        }
    }
}

static void look_below(const char *path, struct below *below) {
    look_into(path, below);
    each_subfolder(path, look_into, below);
}

// The error for a folder that has something recognised further below; OK: nothing.
static FALLIBLE check_below(const char *path) {
    struct below below = {0};
    each_subfolder(path, look_below, &below);
    if (below.checkpoint[0]) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has no config.json, but a folder below has%s: name %s", path,
             below.is_gguf ? " GGUF files" : "", below.checkpoint);
    }
    if (below.other[0]) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has no config.json; %s has %s: %s: %s", path, below.other, below.finding.name,
             below.finding.what, below.finding.mend);
    }
    return OK;
}

// The error for a folder that is above checkpoints; OK: it is not.
static FALLIBLE check_above(const char *path) {
    char text[FOLDER_LIST_MAX];
    if (folder_list(path, "hub", ".", text) > 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s has no config.json, but a folder hub, as $HF_HOME has: use --hf-cache %s/hub --model ORG/NAME", path, path);
    }
    size_t found = folder_list(path, "*", "config.json", text);
    if (found > 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has no config.json, but its subfolder%s: %s: name %s", path, found > 1 ? "s have" : " has",
             text, found > 1 ? "one of them" : "that folder");
    }
    return check_below(path);
}

static bool is_empty(const char *path) {
    DIR *dir = opendir(path);
    size_t count = 0;
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d && count == 0; d = readdir(dir)) {
        count += strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
    }
    if (dir) {
        closedir(dir);
    }
    return dir && count == 0;
}

// The snapshot's repository folder and commit, if `path` is REPOSITORY/snapshots/COMMIT. `real` is their storage.
static bool is_snapshot(const char *path, char real[PATH_MAX], const char **repository, const char **commit) {
    if (!realpath(path, real)) {
        return false;
    }
    char *last = strrchr(real, '/');
    *last = '\0';
    *commit = last + 1;
    char *middle = strrchr(real, '/');
    if (!middle || strcmp(middle + 1, "snapshots") != 0) {
        return false;
    }
    *middle = '\0';
    *repository = basename(real);
    return true;
}

const char *folder_download_command(const char *path, char text[FOLDER_COMMAND_MAX]) {
    char real[PATH_MAX], name[NAME_MAX + 1];
    const char *repository, *commit;
    text[0] = '\0';
    if (is_snapshot(path, real, &repository, &commit) && folder_repository_name(repository, name)) {
        snprintf(text, FOLDER_COMMAND_MAX, " (hf download %s --revision %s)", name, commit);
    }
    return text;
}

const char *folder_download_mend(const char *path, char text[FOLDER_MEND_MAX]) {
    char download[NAME_MAX + 1], command[FOLDER_COMMAND_MAX];
    folder_download_command(path, command);
    if (folder_has_download(path, download)) {
        snprintf(text, FOLDER_MEND_MAX, "a download is under way or was interrupted (found %s): finish it%s", download, command);
    } else {
        snprintf(text, FOLDER_MEND_MAX, "download it%s", command);
    }
    return text;
}

// "; snapshot COMMIT has it": other snapshots of the same repository that have the file; "": none. Returns text.
static const char *elsewhere(const char *path, const char *file, char text[FOLDER_COMMAND_MAX]) {
    char real[PATH_MAX], snapshots[PATH_MAX], list[FOLDER_LIST_MAX];
    const char *repository, *commit;
    text[0] = '\0';
    if (is_snapshot(path, real, &repository, &commit) &&
        snprintf(snapshots, sizeof snapshots, "%s/snapshots", real) < (int)sizeof snapshots &&
        folder_list(snapshots, "*", file, list) > 0) {
        snprintf(text, FOLDER_COMMAND_MAX, "; other snapshots of the model have it: %s", list);
    }
    return text;
}

err_t folder_kind_no_config(const char *path) {
    struct folder_finding found;
    char command[FOLDER_COMMAND_MAX], others[FOLDER_COMMAND_MAX], weights[FOLDER_LIST_MAX];
    TRY(check_cache(path));
    folder_kind_find(path, &found);
    if (!found.what || found.kind == FOLDER_PARTS) {
        TRY(check_above(path));
    }
    folder_download_command(path, command);
    elsewhere(path, "config.json", others);
    if (found.kind == FOLDER_GGUF && folder_list(path, "*.safetensors", NULL, weights) > 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s has a GGUF model (%s) and safetensors files (%s), but no config.json: name the .gguf file, or, to serve the "
             "safetensors files, download config.json too%s%s",
             path, found.name, weights, command, others);
    }
    if (found.what) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s has no config.json, but %s: %s: %s%s%s", path, found.name, found.what,
                          found.mend, command, others);
    }
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s %s%s%s", path,
                      is_empty(path) ? "is an empty folder: a checkpoint has config.json and safetensors files"
                                     : "has no config.json: it is not a checkpoint, or the download is incomplete",
                      command, others);
}

err_t folder_kind_no_weights(const char *path) {
    struct folder_finding found;
    char command[FOLDER_COMMAND_MAX], others[FOLDER_COMMAND_MAX];
    folder_kind_find(path, &found);
    folder_download_command(path, command);
    if (elsewhere(path, "model.safetensors.index.json", others)[0] == '\0') {
        elsewhere(path, "model.safetensors", others);
    }
    if (found.what) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                          "%s: neither model.safetensors nor model.safetensors.index.json exists, only %s: %s: %s%s%s", path,
                          found.name, found.what, found.mend, command, others);
    }
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s: neither model.safetensors nor model.safetensors.index.json exists: is the download complete?%s%s", path,
                      command, others);
}

err_t folder_kind_not_a_folder(const char *path) {
    struct folder_finding found;
    char config[PATH_MAX];
    folder_kind_find(path, &found);
    if (found.what && found.kind != FOLDER_PARTS) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s is not a folder: %s: %s", path, found.what, found.mend);
    }
    snprintf(config, sizeof config, "%.*sconfig.json", (int)(basename(path) - path), path);
    if (access(config, F_OK) != 0) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                          "%s is not a folder: name the folder that holds config.json and the weights", path);
    }
    char *slash = strrchr(config, '/');
    *(slash ? slash + (slash == config) : config) = '\0';
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s is not a folder: name the folder that holds config.json and the weights, such as %s", path,
                      config[0] ? config : ".");
}

bool folder_nearest(const char *path, char out[PATH_MAX]) {
    snprintf(out, PATH_MAX, "%s", path);
    for (char *slash = strrchr(out, '/'); slash; slash = strrchr(out, '/')) {
        bool root = slash == out;
        slash[root] = '\0';
        if (folder_exists(out)) {
            return true;
        }
        if (root) {
            break;
        }
    }
    return false;
}

err_t folder_kind_absent(const char *path) {
    char nearest[PATH_MAX];
    const char *cause = strerror(errno);
    if (folder_nearest(path, nearest)) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: %s: the nearest folder that exists is %s", path, cause, nearest);
    }
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s: %s", path, cause);
}
