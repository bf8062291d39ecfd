// Recognises folders and files that people give in the place of a checkpoint: adapters, other formats, unfinished downloads, parts
// of a Hugging Face cache. Reads names, and the first bytes of files. Pure, apart from that; any thread. Private to expert/.
#ifndef EXPERTD_EXPERT_FILES_FOLDER_KIND_H
#define EXPERTD_EXPERT_FILES_FOLDER_KIND_H

#include <limits.h>
#include <stdbool.h>

#include "base/err.h"

enum folder_kind {
    FOLDER_UNKNOWN, // nothing in it is recognised
    FOLDER_ADAPTER,
    FOLDER_DOWNLOAD, // a download that is under way or was interrupted
    FOLDER_GGUF,
    FOLDER_OTHER_FORMAT, // another format of weights, or no weights
    FOLDER_PARTS,        // parts of a checkpoint
};

struct folder_finding {
    enum folder_kind kind;
    char name[NAME_MAX + 1]; // the file that shows the kind; of several, the alphabetically first
    const char *what;        // "it is a LoRA adapter, not a model"; NULL: FOLDER_UNKNOWN
    const char *mend;        // "merge it into its base model first"
};

// The kind of a folder, or of a single file, by names and by the first bytes of files that are not what their names say.
void folder_kind_find(const char *path, struct folder_finding *out);

bool folder_exists(const char *path); // false also for a file

// Is there an unfinished download in the folder, or in the Hugging Face cache that it belongs to? Then `name` is its file.
bool folder_has_download(const char *path, char name[NAME_MAX + 1]);

// The file beside `file` by which a program marks that it has not downloaded all of it, "model.safetensors.aria2": such programs
// reserve a file's size before they have its content. False: there is none.
bool folder_control_file(const char *file, char control[PATH_MAX]);

// Lists up to 3 entries of the folder, "a, b, c, ...", that match the fnmatch pattern and in which `inner` exists ("." for folders;
// NULL: any entry). Hidden entries do not count. Returns the number of all such entries.
enum { FOLDER_LIST_MAX = 512 };
size_t folder_list(const char *path, const char *pattern, const char *inner, char text[FOLDER_LIST_MAX]);

// ORG/NAME of the folder name "models--ORG--NAME"; false: it has another form.
bool folder_repository_name(const char *folder, char out[NAME_MAX + 1]);

// The nearest folder above `path` that exists; false: none.
bool folder_nearest(const char *path, char out[PATH_MAX]);

// How to complete a snapshot of a Hugging Face cache: " (hf download ORG/NAME --revision COMMIT)"; "" for another folder. Returns
// text.
enum { FOLDER_COMMAND_MAX = 640 };
const char *folder_download_command(const char *path, char text[FOLDER_COMMAND_MAX]);

// What to do about a file that is missing in the folder: "download it (hf download ...)", or to finish the download whose file is
// there. Returns text.
enum { FOLDER_MEND_MAX = 1024 };
const char *folder_download_mend(const char *path, char text[FOLDER_MEND_MAX]);

// The error for a folder without config.json, and for one without weights that can be read.
err_t folder_kind_no_config(const char *path);
err_t folder_kind_no_weights(const char *path);

// The error for a path that is not a folder. It exists, or (folder_kind_absent) it does not.
err_t folder_kind_not_a_folder(const char *path);
err_t folder_kind_absent(const char *path);

#endif
