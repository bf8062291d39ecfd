#include "daemon/tls/tls_store.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES = 4 };

struct held_snapshot {
    struct tls_snapshot snapshot; // first: every snapshot that is handed out is the start of one of these
    unsigned references;          // guarded by tls_store.mutex
};

// A replaced file differs in at least one field.
struct file_state {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified, changed;
};

struct files_state {
    struct file_state files[FILES]; // zeros for a file that is missing or not given
};

struct tls_store {
    char *paths[FILES];
    pthread_mutex_t mutex; // guards `current` and all reference counts; no other lock is taken under it
    struct held_snapshot *current;
    // Used by tls_store_refresh only.
    struct files_state settled; // of the last look whose result was reported
    struct files_state suspect; // of the last look that found wrong files and did not report it
    bool is_suspect, is_broken; // suspect is set; the files in `settled` were wrong
};

static struct tls_paths paths_of(const struct tls_store *store) {
    return (struct tls_paths){store->paths[0], store->paths[1], store->paths[2], store->paths[3]};
}

static void look(const struct tls_store *store, struct files_state *out) {
    memset(out, 0, sizeof *out); // including padding, since states are compared as bytes
    for (size_t i = 0; i < FILES; i++) {
        struct stat st;
        if (store->paths[i] && stat(store->paths[i], &st) == 0) {
            struct file_state *file = &out->files[i];
            file->device = st.st_dev;
            file->inode = st.st_ino;
            file->size = st.st_size;
            file->modified = st.st_mtim;
            file->changed = st.st_ctim;
        }
    }
}

static bool same(const struct files_state *a, const struct files_state *b) {
    return memcmp(a, b, sizeof *a) == 0;
}

static FALLIBLE copy_paths(struct tls_store *store, const struct tls_paths *paths) {
    const char *const given[FILES] = {paths->cert, paths->key, paths->ca, paths->client_ca};
    for (size_t i = 0; i < FILES; i++) {
        store->paths[i] = given[i] ? strdup(given[i]) : NULL;
        if (given[i] && !store->paths[i]) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for the paths of the TLS files");
        }
    }
    return OK;
}

static FALLIBLE read_files(const struct tls_store *store, struct held_snapshot **out) {
    struct tls_paths paths = paths_of(store);
    struct held_snapshot *held = calloc(1, sizeof *held);
    if (!held) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the TLS files");
    }
    err_t e = tls_texts_read(&paths, TLS_USE_SERVER, EXPERTD_ERR_CONFIG, &held->snapshot.texts);
    if (err_is(e)) {
        free(held);
        return e;
    }
    held->references = 1;
    *out = held;
    return OK;
}

static void free_snapshot(struct held_snapshot *held) {
    tls_texts_deinit(&held->snapshot.texts);
    free(held);
}

FALLIBLE tls_store_create(const struct tls_paths *paths, struct tls_store **out) {
    *out = NULL;
    struct tls_store *store = calloc(1, sizeof *store);
    if (!store) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for the TLS files");
    }
    pthread_mutex_init(&store->mutex, NULL);
    err_t e = copy_paths(store, paths);
    if (!err_is(e)) {
        look(store, &store->settled); // before reading: a change after it is noticed
        e = read_files(store, &store->current);
    }
    if (err_is(e)) {
        tls_store_destroy(store);
        return e;
    }
    store->current->snapshot.generation = 1;
    *out = store;
    return OK;
}

void tls_store_destroy(struct tls_store *store) {
    if (!store) {
        return;
    }
    if (store->current) {
        INVARIANT(store->current->references == 1);
        free_snapshot(store->current);
    }
    for (size_t i = 0; i < FILES; i++) {
        free(store->paths[i]);
    }
    pthread_mutex_destroy(&store->mutex);
    free(store);
}

const struct tls_snapshot *tls_store_take(struct tls_store *store) {
    pthread_mutex_lock(&store->mutex);
    struct held_snapshot *held = store->current;
    held->references++;
    pthread_mutex_unlock(&store->mutex);
    return &held->snapshot;
}

void tls_store_release(struct tls_store *store, const struct tls_snapshot *snapshot) {
    struct held_snapshot *held = (struct held_snapshot *)(uintptr_t)snapshot; // the owner's view of its own memory
    pthread_mutex_lock(&store->mutex);
    bool last = --held->references == 0;
    pthread_mutex_unlock(&store->mutex);
    if (last) {
        free_snapshot(held);
    }
}

static void replace(struct tls_store *store, struct held_snapshot *held) {
    held->snapshot.generation = store->current->snapshot.generation + 1; // only this thread writes `current`
    pthread_mutex_lock(&store->mutex);
    struct held_snapshot *old = store->current;
    store->current = held;
    pthread_mutex_unlock(&store->mutex);
    tls_store_release(store, &old->snapshot);
}

static bool is_same_text(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

static bool is_same_content(const struct tls_texts *a, const struct tls_texts *b) {
    return is_same_text(a->cert, b->cert) && is_same_text(a->key, b->key) && is_same_text(a->ca, b->ca) &&
           is_same_text(a->client_ca, b->client_ca);
}

static enum tls_change take_in(struct tls_store *store, struct held_snapshot *held) {
    if (is_same_content(&held->snapshot.texts, &store->current->snapshot.texts)) {
        free_snapshot(held);
        return TLS_UNCHANGED;
    }
    replace(store, held);
    return TLS_REPLACED;
}

enum tls_change tls_store_refresh(struct tls_store *store, struct err_copy *error) {
    struct files_state before, after;
    struct held_snapshot *held = NULL;
    look(store, &before);
    bool changed = !same(&before, &store->settled);
    if (!changed && !store->is_broken) {
        return TLS_UNCHANGED;
    }
    err_t e = read_files(store, &held);
    err_save(e, error);
    look(store, &after);
    if (!same(&before, &after)) {
        if (held) {
            free_snapshot(held);
        }
        return TLS_UNCHANGED;
    }
    if (!err_is(e)) {
        store->is_suspect = store->is_broken = false;
        store->settled = before;
        return take_in(store, held);
    }
    if (!changed) {
        return TLS_UNCHANGED; // known to be wrong. Read again all the same, because a certificate may become valid by time
    }
    bool seen = store->is_suspect && same(&before, &store->suspect);
    store->suspect = before;
    store->is_suspect = !seen;
    if (!seen) {
        return TLS_UNCHANGED;
    }
    store->settled = before;
    store->is_broken = true;
    return TLS_BROKEN;
}
