// A lock file that one process at a time can hold. It contains the holder's process id. A Unix socket whose lock file is not held
// is stale. flock releases the lock when the process ends, however it ends. Any thread; one owner.
#ifndef EXPERTD_DAEMON_LISTEN_LOCKFILE_H
#define EXPERTD_DAEMON_LISTEN_LOCKFILE_H

#include "base/err.h"

struct lockfile {
    char *path; // NULL: not held
    int fd;
};

// Creates the file (mode 0600) if it is missing, and locks it without waiting. EXPERTD_ERR_UNAVAILABLE: another process holds the
// lock (the message has its process id), or the file cannot be created.
FALLIBLE lockfile_take(const char *path, struct lockfile *out);
// Removes the file and releases the lock. Legal on a zeroed struct, and twice.
void lockfile_release(struct lockfile *lock);

#endif
