#include "expert/files/hub_revision.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/regular_file.h"
#include "expert/files/folder_kind.h"

enum { COMMIT_BYTES_MAX = 256, SHORT_COMMIT_MIN = 4 };
static const char MAIN[] = "main";

bool hub_is_revision(const char *text) {
    static const char ALLOWED[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-+/";
    if (strspn(text, ALLOWED) < strlen(text) || strstr(text, "..")) {
        return false;
    }
    for (const char *part = text; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL) {
        if (*part == '\0' || *part == '/' || *part == '.') {
            return false;
        }
    }
    return true;
}

// A commit is the name of one folder.
static bool is_commit(const char *text) {
    return hub_is_revision(text) && !strchr(text, '/');
}

static FALLIBLE format_path(const struct hub_repository *repository, const char *middle, const char *last, char path[PATH_MAX]) {
    int length = snprintf(path, PATH_MAX, "%s/%s/%s", repository->folder, middle, last);
    if (length < 0 || length >= PATH_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "the path %.256s/%s/%.256s is too long", repository->folder, middle, last);
    }
    return OK;
}

// The commit in refs/REVISION. *found false: there is no such file.
static FALLIBLE read_ref(const struct hub_repository *repository, const char *revision, char commit[COMMIT_BYTES_MAX],
                         bool *found) {
    char path[PATH_MAX], *text;
    size_t length;
    struct stat status;
    TRY(format_path(repository, "refs", revision, path));
    *found = lstat(path, &status) == 0 && !S_ISDIR(status.st_mode);
    if (!*found) {
        return OK;
    }
    TRY(regular_file_read(path, COMMIT_BYTES_MAX - 1, &text, &length));
    size_t used = strcspn(text, " \t\r\n");
    memcpy(commit, text, used);
    commit[used] = '\0';
    free(text);
    if (!is_commit(commit)) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s does not contain a commit: download the model again (hf download %s)", path,
             repository->name);
    }
    return OK;
}

static bool is_newer(const struct stat *a, const struct stat *b) {
    return a->st_mtim.tv_sec != b->st_mtim.tv_sec ? a->st_mtim.tv_sec > b->st_mtim.tv_sec : a->st_mtim.tv_nsec > b->st_mtim.tv_nsec;
}

// Finds the most recently modified snapshot whose name begins with `prefix`; of several with the same time, the one whose name
// sorts last. *count: how many there are.
static FALLIBLE newest_snapshot(const struct hub_repository *repository, const char *prefix, char commit[COMMIT_BYTES_MAX],
                                size_t *count) {
    char folder[PATH_MAX], path[PATH_MAX];
    struct stat best = {0};
    *count = 0;
    TRY(format_path(repository, "snapshots", ".", folder));
    DIR *dir = opendir(folder);
    for (const struct dirent *d = dir ? readdir(dir) : NULL; d; d = readdir(dir)) {
        struct stat status;
        if (!is_commit(d->d_name) || strlen(d->d_name) >= COMMIT_BYTES_MAX || strncmp(d->d_name, prefix, strlen(prefix)) != 0 ||
            err_is(format_path(repository, "snapshots", d->d_name, path)) || stat(path, &status) != 0 || !S_ISDIR(status.st_mode)) {
            continue;
        }
        bool tie = *count > 0 && !is_newer(&status, &best) && !is_newer(&best, &status);
        if (*count == 0 || is_newer(&status, &best) || (tie && strcmp(d->d_name, commit) > 0)) {
            snprintf(commit, COMMIT_BYTES_MAX, "%s", d->d_name);
            best = status;
        }
        ++*count;
    }
    if (dir) {
        closedir(dir);
    }
    return OK;
}

enum { REF_PARTS_MAX = 4, REFS_SHOWN = 8 };

struct ref_list {
    size_t count;
    char text[FOLDER_LIST_MAX]; // "feature/x, main, refs/pr/1"
};

static void add_ref(const char *name, struct ref_list *out) {
    size_t used = strlen(out->text);
    if (out->count < REFS_SHOWN) {
        snprintf(out->text + used, sizeof out->text - used, "%s%s", out->count ? ", " : "", name);
    } else if (out->count == REFS_SHOWN) {
        snprintf(out->text + used, sizeof out->text - used, ", ...");
    }
    out->count++;
}

// Adds the refs in refs/BELOW; a branch's name may have several parts. NOLINTNEXTLINE(misc-no-recursion): REF_PARTS_MAX levels
static void list_refs(const struct hub_repository *repository, const char *below, int parts, struct ref_list *out) {
    char path[PATH_MAX], name[PATH_MAX];
    struct dirent **entries = NULL;
    int all = err_is(format_path(repository, "refs", below, path)) ? 0 : scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < all; i++) {
        int length = snprintf(name, sizeof name, "%s%s%s", below, below[0] ? "/" : "", entries[i]->d_name);
        bool fits = entries[i]->d_name[0] != '.' && length < (int)sizeof name;
        if (fits && !err_is(format_path(repository, "refs", name, path))) {
            if (!folder_exists(path)) {
                add_ref(name, out);
            } else if (parts < REF_PARTS_MAX) {
                list_refs(repository, name, parts + 1, out);
            }
        }
        free(entries[i]);
    }
    free(entries);
}

// "refs main, v1; snapshots 0123, 4567": the revisions in the cache. Returns text.
static const char *revisions_text(const struct hub_repository *repository, char text[2 * FOLDER_LIST_MAX]) {
    char path[PATH_MAX], snapshots[FOLDER_LIST_MAX] = "";
    struct ref_list refs = {0};
    list_refs(repository, "", 1, &refs);
    if (!err_is(format_path(repository, "snapshots", ".", path))) {
        folder_list(path, "*", ".", snapshots);
    }
    snprintf(text, 2 * FOLDER_LIST_MAX, "refs %.480s; snapshots %.480s", refs.count ? refs.text : "(none)",
             snapshots[0] ? snapshots : "(none)");
    return text;
}

static err_t no_snapshot(const struct hub_repository *repository, const char *ref, const char *commit) {
    char text[2 * FOLDER_LIST_MAX];
    return err_record(EXPERTD_ERR_CHECKPOINT, NULL,
                      "%s/refs/%s names commit %s, which has no snapshot: download it (hf download %s --revision %s), or use a "
                      "revision that is there with %s@REVISION (%s)",
                      repository->folder, ref, commit, repository->name, ref, repository->name, revisions_text(repository, text));
}

// The commit of a revision that no ref names: a complete commit, or the beginning of one.
static FALLIBLE find_commit(const struct hub_repository *repository, const char *revision, char commit[COMMIT_BYTES_MAX]) {
    char text[2 * FOLDER_LIST_MAX];
    size_t count = 0;
    if (is_commit(revision) && strlen(revision) >= SHORT_COMMIT_MIN) {
        TRY(newest_snapshot(repository, revision, commit, &count));
    }
    if (count > 1) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s@%s: %zu snapshots begin with %s: write more of the commit (%s)", repository->name,
             revision, count, revision, revisions_text(repository, text));
    }
    if (count == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT,
             "%s has no revision %s of %s: download it (hf download %s --revision %s), or use one that is "
             "there (%s)",
             repository->folder, revision, repository->name, repository->name, revision, revisions_text(repository, text));
    }
    return OK;
}

static FALLIBLE find_revision(const struct hub_repository *repository, const char *revision, char commit[COMMIT_BYTES_MAX]) {
    bool found = false;
    char path[PATH_MAX];
    TRY(format_path(repository, "snapshots", revision, path));
    if (is_commit(revision) && strlen(revision) < COMMIT_BYTES_MAX && folder_exists(path)) {
        memcpy(commit, revision, strlen(revision) + 1);
        return OK;
    }
    TRY(read_ref(repository, revision, commit, &found));
    return found ? OK : find_commit(repository, revision, commit);
}

static FALLIBLE find_default(const struct hub_repository *repository, char commit[COMMIT_BYTES_MAX]) {
    bool found;
    size_t count = 0;
    TRY(read_ref(repository, MAIN, commit, &found));
    if (!found) {
        TRY(newest_snapshot(repository, "", commit, &count));
    }
    if (!found && count == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "%s has no snapshot of %s: download it again (hf download %s)", repository->folder,
             repository->name, repository->name);
    }
    return OK;
}

FALLIBLE hub_snapshot(const struct hub_repository *repository, const char *revision, char path[PATH_MAX]) {
    char commit[COMMIT_BYTES_MAX];
    TRY(revision ? find_revision(repository, revision, commit) : find_default(repository, commit));
    TRY(format_path(repository, "snapshots", commit, path));
    return folder_exists(path) ? OK : no_snapshot(repository, revision ? revision : MAIN, commit);
}
