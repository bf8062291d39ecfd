#include "expert/files/folder_kind.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct row {
    enum folder_kind kind;
    const char *subfolder; // NULL: the folder itself
    const char *pattern;   // of a file's name, as fnmatch takes it
    const char *what, *mend;
};

#define ADAPTER                                                                                                                    \
    "it is a LoRA adapter, not a model", "merge it into its base model first (in peft: merge_and_unload), and serve the result"
#define UNFINISHED "a download is under way or was interrupted", "finish it first (`hf download` resumes it)"
#define GGUF "it is of a GGUF model", "name the model's file, of a model in several parts the first, -00001-of-..."
#define PROJECTOR "it is the projector for images of a GGUF model, not the model", "download the language model's .gguf file too"
#define VENDOR(name)                                                                                                               \
    "it is in the own form of " name,                                                                                              \
        "use the checkpoint of the same model in the form of transformers (config.json, model.safetensors)"
#define PICKLED "pickled PyTorch weights are not supported", "convert them to safetensors"
#define ENGINE "it is an engine that was built for one kind of GPU", "use the checkpoint that it was built from"
#define FRAMEWORK "weights of this framework are not supported", "use the model's safetensors"
#define DATA_SET "it is a data set, not a model", "name a model's folder"
#define ARCHIVE "archives are not read", "unpack it and name the folder that holds config.json"

// The first row that matches counts, so that the rows that say most come first.
static const struct row ROWS[] = {
    {FOLDER_ADAPTER, NULL, "adapter_config.json", ADAPTER},
    {FOLDER_ADAPTER, NULL, "adapter_model*.safetensors", ADAPTER},
    {FOLDER_ADAPTER, NULL, "adapter_model*.bin", ADAPTER},
    {FOLDER_ADAPTER, NULL, "adapters.safetensors", ADAPTER},
    {FOLDER_DOWNLOAD, NULL, "*.incomplete", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.part", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.partial", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.aria2", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.crdownload", UNFINISHED},
    {FOLDER_DOWNLOAD, NULL, "*.!qB", UNFINISHED},
    {FOLDER_DOWNLOAD, ".cache/huggingface/download", "*.incomplete", UNFINISHED},
    {FOLDER_DOWNLOAD, "../../blobs", "*.incomplete", UNFINISHED}, // of a snapshot in a cache
    {FOLDER_GGUF, NULL, "[!m]*.gguf", GGUF},
    {FOLDER_GGUF, NULL, "m[!m]*.gguf", GGUF},
    {FOLDER_OTHER_FORMAT, NULL, "mmproj*.gguf", PROJECTOR},
    {FOLDER_GGUF, NULL, "*.gguf", GGUF},
    {FOLDER_OTHER_FORMAT, NULL, "consolidated*.safetensors", VENDOR("Mistral")},
    {FOLDER_OTHER_FORMAT, NULL, "consolidated*.pth", VENDOR("Meta or Mistral")},
    {FOLDER_OTHER_FORMAT, NULL, "params.json", VENDOR("Mistral or Meta")},
    {FOLDER_OTHER_FORMAT, NULL, "model*-mp*.safetensors", VENDOR("DeepSeek's inference code")},
    {FOLDER_OTHER_FORMAT, NULL, "ckpt-[0-9]*", VENDOR("xAI")},
    {FOLDER_OTHER_FORMAT, NULL, "rank[0-9]*.engine", ENGINE},
    {FOLDER_OTHER_FORMAT, NULL, "*.engine", ENGINE},
    {FOLDER_OTHER_FORMAT, NULL, "*.plan", ENGINE},
    {FOLDER_OTHER_FORMAT, NULL, "model_index.json", "it is a diffusers pipeline, not a language model",
     "name a language model's folder"},
    {FOLDER_OTHER_FORMAT, NULL, "*.safetensors.part*", UNFINISHED},
    {FOLDER_PARTS, NULL, "model.safetensors", "the weights are here and config.json is not", "download config.json too"},
    {FOLDER_PARTS, NULL, "model.safetensors.index.json", "the index is here and config.json is not", "download config.json too"},
    {FOLDER_PARTS, NULL, "*.safetensors", "its index is missing",
     "download it, or name the file model.safetensors if it is the complete model"},
    {FOLDER_OTHER_FORMAT, NULL, "pytorch_model*.bin", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "pytorch_model.bin.index.json", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "model*.bin", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "*.pth", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "*.pt", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "*.distcp", PICKLED},
    {FOLDER_OTHER_FORMAT, NULL, "*.onnx", FRAMEWORK},
    {FOLDER_OTHER_FORMAT, NULL, "*.h5", FRAMEWORK},
    {FOLDER_OTHER_FORMAT, NULL, "*.msgpack", FRAMEWORK},
    {FOLDER_OTHER_FORMAT, NULL, "*.ckpt*", FRAMEWORK},
    {FOLDER_OTHER_FORMAT, NULL, "saved_model.pb", FRAMEWORK},
    {FOLDER_OTHER_FORMAT, NULL, "*.npz", FRAMEWORK},
    {FOLDER_OTHER_FORMAT, NULL, "*.nemo", FRAMEWORK},
    {FOLDER_OTHER_FORMAT, NULL, "*.parquet", DATA_SET},
    {FOLDER_OTHER_FORMAT, NULL, "*.arrow", DATA_SET},
    {FOLDER_OTHER_FORMAT, NULL, "dataset_info*.json", DATA_SET},
    {FOLDER_OTHER_FORMAT, NULL, "*.tar", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.tar.*", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.tgz", ARCHIVE},
    {FOLDER_OTHER_FORMAT, NULL, "*.zip", ARCHIVE},
    {FOLDER_PARTS, NULL, "tokenizer*", "it holds a tokenizer, but no model", "download the complete model"},
};
enum { ROW_COUNT = sizeof ROWS / sizeof *ROWS };

bool folder_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

// Does the row match the name of a file, or of a folder itself? Rows of subfolders match no name.
static bool matches(const struct row *row, const char *subfolder, const char *name) {
    bool here = subfolder ? row->subfolder && strcmp(row->subfolder, subfolder) == 0 : !row->subfolder;
    return here && fnmatch(row->pattern, name, 0) == 0;
}

// Notes a file whose row comes before the best one so far. *best: the number of that row, ROW_COUNT: none.
static void note_name(const char *subfolder, const char *file, size_t *best, char name[NAME_MAX + 1]) {
    for (size_t i = 0; i <= *best && i < ROW_COUNT; i++) {
        if (matches(&ROWS[i], subfolder, file)) {
            if (i < *best || strcmp(file, name) < 0) {
                snprintf(name, NAME_MAX + 1, "%s", file);
            }
            *best = i;
            return;
        }
    }
}

static void note_folder(const char *path, const char *subfolder, size_t *best, char name[NAME_MAX + 1]) {
    char folder[PATH_MAX];
    int length = snprintf(folder, sizeof folder, "%s/%s", path, subfolder ? subfolder : ".");
    DIR *dir = length < (int)sizeof folder ? opendir(folder) : NULL;
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        note_name(subfolder, d->d_name, best, name);
    }
    if (dir) {
        closedir(dir);
    }
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

void folder_kind_find(const char *path, struct folder_finding *out) {
    size_t best = ROW_COUNT;
    *out = (struct folder_finding){.kind = FOLDER_UNKNOWN};
    if (folder_exists(path)) {
        note_folder(path, NULL, &best, out->name);
        for (size_t i = 0; i < best; i++) {
            if (ROWS[i].subfolder) {
                note_folder(path, ROWS[i].subfolder, &best, out->name);
            }
        }
    } else {
        note_name(NULL, base_name(path), &best, out->name);
    }
    if (best < ROW_COUNT) {
        out->kind = ROWS[best].kind;
        out->what = ROWS[best].what;
        out->mend = ROWS[best].mend;
    }
}

bool folder_has_download(const char *path, char name[NAME_MAX + 1]) {
    for (size_t i = 0; i < ROW_COUNT; i++) {
        size_t best = ROW_COUNT;
        if (ROWS[i].kind == FOLDER_DOWNLOAD) {
            note_folder(path, ROWS[i].subfolder, &best, name);
            if (best < ROW_COUNT && ROWS[best].kind == FOLDER_DOWNLOAD) {
                return true;
            }
        }
    }
    return false;
}

// The suffix is what follows the '*' of a row for downloads.
bool folder_control_file(const char *file, char control[PATH_MAX]) {
    for (size_t i = 0; i < ROW_COUNT; i++) {
        if (ROWS[i].kind == FOLDER_DOWNLOAD && !ROWS[i].subfolder) {
            int length = snprintf(control, PATH_MAX, "%s%s", file, ROWS[i].pattern + 1);
            if (length > 0 && length < PATH_MAX && access(control, F_OK) == 0) {
                return true;
            }
        }
    }
    return false;
}

// ---- folders above a checkpoint ----

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
    bool set = strncmp(base_name(folder), "datasets--", strlen("datasets--")) == 0;
    if (set || strncmp(base_name(folder), "spaces--", strlen("spaces--")) == 0) {
        return err_record(EXPERTD_ERR_CHECKPOINT, NULL, "%s is a %s in a Hugging Face cache: name a model", path,
                          set ? "data set" : "space (an application)");
    }
    if (folder_repository_name(base_name(folder), name)) {
        return err_record(
            EXPERTD_ERR_CHECKPOINT, NULL,
            "%s is the folder of %s in a Hugging Face cache, not a checkpoint: use --model %s with --hf-cache %.*s, or "
            "name a folder below snapshots (%s)",
            path, name, name, (int)(base_name(folder) - folder - 1), folder, snapshots);
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

static void look_into(const char *path, struct below *below) {
    char config[PATH_MAX];
    struct folder_finding finding;
    bool has_config = snprintf(config, sizeof config, "%s/config.json", path) < (int)sizeof config && access(config, F_OK) == 0;
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
    *repository = base_name(real);
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
    snprintf(config, sizeof config, "%.*sconfig.json", (int)(base_name(path) - path), path);
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
