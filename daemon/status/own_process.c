#include "daemon/status/own_process.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { STATM_BYTES = 256 };

struct own_process {
    int statm;          // -1: not available
    DIR *fds, *threads; // NULL: not available
};

struct own_process *own_process_open(void) {
    struct own_process *own_process = calloc(1, sizeof *own_process);
    if (own_process) {
        own_process->statm = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
        own_process->fds = opendir("/proc/self/fd");
        own_process->threads = opendir("/proc/self/task");
    }
    return own_process;
}

static void close_folder(DIR *folder) {
    if (folder) {
        closedir(folder);
    }
}

void own_process_close(struct own_process *own_process) {
    if (own_process) {
        if (own_process->statm >= 0) {
            close(own_process->statm);
        }
        close_folder(own_process->fds);
        close_folder(own_process->threads);
        free(own_process);
    }
}

static uint64_t resident_bytes(int statm) {
    char text[STATM_BYTES];
    unsigned long long pages;
    ssize_t length = statm >= 0 ? pread(statm, text, sizeof text - 1, 0) : -1;
    if (length <= 0) {
        return OWN_PROCESS_UNKNOWN;
    }
    text[length] = '\0';
    return sscanf(text, "%*s %llu", &pages) == 1 ? (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE) : OWN_PROCESS_UNKNOWN;
}

static uint64_t entries_of(DIR *folder) {
    if (!folder) {
        return OWN_PROCESS_UNKNOWN;
    }
    uint64_t count = 0;
    const struct dirent *entry;
    rewinddir(folder);
    while ((entry = readdir(folder))) {
        count += entry->d_name[0] != '.';
    }
    return count;
}

struct own_process_figures own_process_read(struct own_process *own_process) {
    if (!own_process) {
        return (struct own_process_figures){OWN_PROCESS_UNKNOWN, OWN_PROCESS_UNKNOWN, OWN_PROCESS_UNKNOWN};
    }
    return (struct own_process_figures){.resident_bytes = resident_bytes(own_process->statm),
                                        .open_fds = entries_of(own_process->fds),
                                        .threads = entries_of(own_process->threads)};
}
