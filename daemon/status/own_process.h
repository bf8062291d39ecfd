// Reads figures of this process from /proc. The files are opened once, so that the figures are available also when the process has
// no descriptor left. One thread at a time.
#ifndef EXPERTD_DAEMON_STATUS_OWN_PROCESS_H
#define EXPERTD_DAEMON_STATUS_OWN_PROCESS_H

#include <stdint.h>

#define OWN_PROCESS_UNKNOWN UINT64_MAX // as METRICS_UNKNOWN

struct own_process; // NULL: every figure is unknown

struct own_process *own_process_open(void);              // NULL: no memory
void own_process_close(struct own_process *own_process); // NULL is legal

struct own_process_figures {
    uint64_t resident_bytes, open_fds, threads; // OWN_PROCESS_UNKNOWN: cannot be read, for example without /proc
};
struct own_process_figures own_process_read(struct own_process *own_process);

#endif
