#include "expert/checkpoint/hub.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/regular_file.h"

enum { REVISION_BYTES_MAX = 256 };

// Does the path exist? A path that this process has no permission to read counts as existing; opening it reports the error.
static bool path_exists(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 || errno == EACCES;
}

static bool is_folder(const char *path) {
    struct stat status;
    return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

// A name that the hub allows: letters, digits, '.', '_', '-'; no "..", no '.' in front.
static bool is_hub_name(const char *text, size_t length) {
    static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    if (length == 0 || text[0] == '.' || strspn(text, ALLOWED) < length) {
        return false;
    }
    return memmem(text, length, "..", 2) == NULL;
}

// The slash in ORG/NAME; NULL: the text is not of that form.
static const char *hub_slash(const char *model) {
    const char *slash = strchr(model, '/');
    return slash && is_hub_name(model, (size_t)(slash - model)) && is_hub_name(slash + 1, strlen(slash + 1)) ? slash : NULL;
}

static FALLIBLE format_path(char *path, size_t bytes, const char *first, const char *middle, const char *last) {
    int length = snprintf(path, bytes, "%s/%s/%s", first, middle, last);
    if (length < 0 || (size_t)length >= bytes) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s/%s/%.256s is too long", first, middle, last);
    }
    return OK;
}

// The commit in refs/main. *found false: there is no such file.
static FALLIBLE read_revision(const char *repository, char revision[REVISION_BYTES_MAX], bool *found) {
    char path[PATH_MAX], *text;
    size_t length;
    struct stat status;
    TRY(format_path(path, sizeof path, repository, "refs", "main"));
    *found = lstat(path, &status) == 0;
    if (!*found) {
        return OK;
    }
    TRY(regular_file_read(path, REVISION_BYTES_MAX - 1, &text, &length));
    size_t used = strcspn(text, " \t\r\n");
    memcpy(revision, text, used);
    revision[used] = '\0';
    free(text);
    if (!is_hub_name(revision, used)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s does not contain a commit: download the model again", path);
    }
    return OK;
}

static bool is_newer(const struct stat *a, const struct stat *b) {
    return a->st_mtim.tv_sec != b->st_mtim.tv_sec ? a->st_mtim.tv_sec > b->st_mtim.tv_sec : a->st_mtim.tv_nsec > b->st_mtim.tv_nsec;
}

// The most recently modified snapshot; of several with the same time, the one whose name sorts last. *found false: there is none.
static FALLIBLE newest_snapshot(const char *repository, char revision[REVISION_BYTES_MAX], bool *found) {
    char folder[PATH_MAX], path[PATH_MAX];
    struct stat best = {0};
    *found = false;
    TRY(format_path(folder, sizeof folder, repository, "snapshots", "."));
    DIR *dir = opendir(folder);
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        struct stat status;
        if (!is_hub_name(d->d_name, strlen(d->d_name)) || strlen(d->d_name) >= REVISION_BYTES_MAX ||
            err_is(format_path(path, sizeof path, repository, "snapshots", d->d_name)) || stat(path, &status) != 0 ||
            !S_ISDIR(status.st_mode)) {
            continue;
        }
        bool tie = *found && !is_newer(&status, &best) && !is_newer(&best, &status);
        if (!*found || is_newer(&status, &best) || (tie && strcmp(d->d_name, revision) > 0)) {
            snprintf(revision, REVISION_BYTES_MAX, "%s", d->d_name);
            best = status;
            *found = true;
        }
    }
    if (dir) {
        closedir(dir);
    }
    return OK;
}

static FALLIBLE resolve_repository(const char *model, const char *repository, char *path, size_t path_bytes) {
    char revision[REVISION_BYTES_MAX];
    bool found;
    if (!is_folder(repository)) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s is neither a folder nor in the local Hugging Face cache: searched %s; nothing is downloaded automatically, "
             "so download it first (hf download %s)",
             model, repository, model);
    }
    TRY(read_revision(repository, revision, &found));
    if (!found) {
        TRY(newest_snapshot(repository, revision, &found));
    }
    if (!found) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has no snapshot of %s: download it again (hf download %s)", repository, model, model);
    }
    TRY(format_path(path, path_bytes, repository, "snapshots", revision));
    if (!is_folder(path)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s/refs/main names commit %s, which has no snapshot: download it again (hf download %s)",
             repository, revision, model);
    }
    return OK;
}

FALLIBLE hub_resolve(const char *model, const char *cache, char *path, size_t path_bytes) {
    const char *slash = hub_slash(model);
    if (path_exists(model) || !slash) {
        if (!path_exists(model)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "there is no folder %s: a model is a folder, or ORG/NAME in the local Hugging Face cache",
                 model);
        }
        if (strlen(model) >= path_bytes) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s is too long", model);
        }
        memcpy(path, model, strlen(model) + 1);
        return OK;
    }
    if (!cache || cache[0] == '\0') {
        FAIL(EXPERTD_ERR_CHECKPOINT, "there is no folder %s, and no Hugging Face cache to search: set HF_HOME or HF_HUB_CACHE",
             model);
    }
    char repository[PATH_MAX];
    int length = snprintf(repository, sizeof repository, "%s/models--%.*s--%s", cache, (int)(slash - model), model, slash + 1);
    if (length < 0 || (size_t)length >= sizeof repository) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s/models--%.256s is too long", cache, model);
    }
    return resolve_repository(model, repository, path, path_bytes);
}
