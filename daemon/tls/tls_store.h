// The daemon's current certificates, key and CAs. They are read anew when their files change; connections that exist keep theirs.
// Any thread.
#ifndef EXPERTD_DAEMON_TLS_TLS_STORE_H
#define EXPERTD_DAEMON_TLS_TLS_STORE_H

#include "proto/tls/tls_files.h"

struct tls_store;

// One reading of the files; does not change.
struct tls_snapshot {
    struct tls_texts texts;
    uint64_t generation; // 1, 2, ...
};

// Reads the files; the paths are copied. EXPERTD_ERR_CONFIG: a file is wrong (tls_files.h). EXPERTD_ERR_NOMEM.
FALLIBLE tls_store_create(const struct tls_paths *paths, struct tls_store **out);
void tls_store_destroy(struct tls_store *store); // after every snapshot was released; NULL is legal

// The current snapshot, valid until tls_store_release.
const struct tls_snapshot *tls_store_take(struct tls_store *store);
void tls_store_release(struct tls_store *store, const struct tls_snapshot *snapshot);

enum tls_change {
    TLS_UNCHANGED,
    TLS_REPLACED, // a new snapshot is current
    TLS_BROKEN,   // the new files are wrong: the old snapshot stays current. Reported once for each state of the files
};
// Looks at the files (device, inode, size, times; links are followed) and reads them if they changed. Files that change meanwhile,
// or are wrong at the first look, are looked at again next time: they may be half written, or the key may follow its certificate.
// May block on the file system. One call at a time. TLS_BROKEN: *error is the cause.
enum tls_change tls_store_refresh(struct tls_store *store, struct err_copy *error);

#endif
