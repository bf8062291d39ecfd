// Learns the descriptor of the socket that a gRPC channel connects. gRPC tells it to a "socket mutator", a channel argument whose
// structs are not in the installed headers; they are declared in socket_watch.c. Private to daemon/grpc/dialler/.
#ifndef EXPERTD_DAEMON_GRPC_DIALLER_SOCKET_WATCH_H
#define EXPERTD_DAEMON_GRPC_DIALLER_SOCKET_WATCH_H

#include <grpc/grpc.h>

struct socket_watch;

struct socket_watch *socket_watch_create(void); // NULL: no memory
void socket_watch_unref(struct socket_watch *watch);
// The channel argument. gRPC takes references of its own.
grpc_arg socket_watch_arg(struct socket_watch *watch);
// Shuts down the socket of the latest attempt to connect, if it is open. Any thread. gRPC owns the socket and may close it between
// the check and the shutdown; the number may then be that of a socket which another thread opened in between. Such a connection
// fails, and is made anew like any that failed.
void socket_watch_shut_down(struct socket_watch *watch);

#endif
