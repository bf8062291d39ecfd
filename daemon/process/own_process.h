// What the kernel says of this process. Its files of /proc are opened once and kept: they are asked for when descriptors have run
// out, too. One thread at a time.
#ifndef EXPERTD_DAEMON_PROCESS_OWN_PROCESS_H
#define EXPERTD_DAEMON_PROCESS_OWN_PROCESS_H

#include <stdint.h>

#define OWN_PROCESS_UNKNOWN UINT64_MAX // as METRICS_UNKNOWN

struct own_process; // NULL: every figure is unknown

struct own_process *own_process_open(void);              // NULL: no memory
void own_process_close(struct own_process *own_process); // NULL is legal

struct own_process_figures {
    uint64_t resident_bytes, open_fds, threads; // OWN_PROCESS_UNKNOWN where there is no /proc, say
};
struct own_process_figures own_process_read(struct own_process *own_process);

#endif
