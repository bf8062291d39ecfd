// The end of gRPC's backup poller, before grpc_shutdown.
//
// After large writes a thread of gRPC polls the process's epoll set for ten seconds at a time, and grpc_shutdown waits for it: one
// shutdown in ten took that long. An event on any descriptor of gRPC ends the wait. backup_poll_end causes such an event: it
// closes the other end of a connection and waits until a call on that connection fails. The poller has been woken by then.
#ifndef EXPERTD_DAEMON_GRPC_QUEUE_BACKUP_POLL_H
#define EXPERTD_DAEMON_GRPC_QUEUE_BACKUP_POLL_H

void backup_poll_end(void);

#endif
