// A file that one process at a time holds, with its process id in it: what tells a live socket from a stale one. The lock is the
// kernel's (flock), so it is gone with its process however that ended. Any thread; one owner.
#ifndef EXPERTD_DAEMON_LISTEN_LOCKFILE_H
#define EXPERTD_DAEMON_LISTEN_LOCKFILE_H

#include "base/err.h"

struct lockfile {
    char *path; // NULL: not held
    int fd;
};

// Creates the file (mode 0600) where there is none, never waits. EXPERTD_ERR_UNAVAILABLE: another process holds it (the message
// names its id), or it cannot be made.
FALLIBLE lockfile_take(const char *path, struct lockfile *out);
// Removes the file and lets go. Legal on a zeroed struct and twice.
void lockfile_release(struct lockfile *lock);

#endif
