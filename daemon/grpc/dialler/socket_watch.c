#include "daemon/grpc/dialler/socket_watch.h"

#include <grpc/support/sync.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "base/threads/thread_order.h"

// As in src/core/lib/iomgr/socket_mutator.h of gRPC 1.51. Applications pass such an argument through gRPC's C++ library, so the
// layout is part of the ABI.
struct mutate_info {
    int fd;
    int usage;
};
struct socket_mutator;
struct socket_mutator_vtable {
    bool (*mutate_fd)(int fd, struct socket_mutator *mutator);
    int (*compare)(struct socket_mutator *a, struct socket_mutator *b);
    void (*destroy)(struct socket_mutator *mutator);
    bool (*mutate_fd_2)(const struct mutate_info *info, struct socket_mutator *mutator); // preferred
};
struct socket_mutator {
    const struct socket_mutator_vtable *vtable;
    gpr_refcount references;
};

struct socket_watch {
    struct socket_mutator mutator; // first: gRPC's view of it
    pthread_mutex_t mutex;         // guards the fields below; no other lock is taken under it
    int fd;                        // -1: none yet
    dev_t device;
    ino_t inode; // the number belongs to this socket
};

// ThreadSanitizer does not see that libgrpc closes sockets. It takes a new socket for an earlier one with the same number, which
// another thread made, and this use of it for a race: tests/tsan.supp suppresses it by name, hence noinline.
static __attribute__((noinline)) bool stat_socket(int fd, struct stat *out) {
    return fd >= 0 && fstat(fd, out) == 0;
}

// gRPC calls this and `destroy` in whichever thread runs its closures: the thread of another dialler or server too.
static bool on_socket(const struct mutate_info *info, struct socket_mutator *mutator) {
    struct socket_watch *watch = (struct socket_watch *)(void *)mutator;
    struct stat st;
    bool known = stat_socket(info->fd, &st);
    THREAD_TAKE(watch);
    pthread_mutex_lock(&watch->mutex);
    watch->fd = known ? info->fd : -1;
    watch->device = known ? st.st_dev : 0;
    watch->inode = known ? st.st_ino : 0;
    pthread_mutex_unlock(&watch->mutex);
    THREAD_HAND_OVER(watch);
    return true; // the socket may be used
}

static bool on_plain_socket(int fd, struct socket_mutator *mutator) {
    return on_socket(&(struct mutate_info){.fd = fd}, mutator);
}

static int compare(struct socket_mutator *a, struct socket_mutator *b) {
    return (a > b) - (a < b);
}

static void destroy(struct socket_mutator *mutator) {
    struct socket_watch *watch = (struct socket_watch *)(void *)mutator;
    THREAD_TAKE(watch);
    pthread_mutex_destroy(&watch->mutex);
    free(watch);
}

static const struct socket_mutator_vtable VTABLE = {on_plain_socket, compare, destroy, on_socket};

struct socket_watch *socket_watch_create(void) {
    struct socket_watch *watch = calloc(1, sizeof *watch);
    if (watch) {
        watch->mutator.vtable = &VTABLE;
        gpr_ref_init(&watch->mutator.references, 1);
        pthread_mutex_init(&watch->mutex, NULL);
        watch->fd = -1;
        THREAD_HAND_OVER(watch);
    }
    return watch;
}

void socket_watch_unref(struct socket_watch *watch) {
    THREAD_HAND_OVER(watch); // the count is libgpr's, which is not instrumented
    if (gpr_unref(&watch->mutator.references)) {
        destroy(&watch->mutator);
    }
}

void socket_watch_shut_down(struct socket_watch *watch) {
    struct stat st;
    pthread_mutex_lock(&watch->mutex);
    bool open = stat_socket(watch->fd, &st) && st.st_dev == watch->device && st.st_ino == watch->inode;
    if (open) {
        (void)shutdown(watch->fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&watch->mutex);
}

static void *arg_copy(void *pointer) {
    gpr_ref(&((struct socket_watch *)pointer)->mutator.references);
    return pointer;
}

static void arg_destroy(void *pointer) {
    socket_watch_unref(pointer);
}

static int arg_compare(void *a, void *b) {
    return ((uintptr_t)a > (uintptr_t)b) - ((uintptr_t)a < (uintptr_t)b);
}

static const grpc_arg_pointer_vtable ARG_VTABLE = {arg_copy, arg_destroy, arg_compare};

grpc_arg socket_watch_arg(struct socket_watch *watch) {
    return (grpc_arg){.type = GRPC_ARG_POINTER,
                      .key = (char *)(uintptr_t)GRPC_ARG_SOCKET_MUTATOR, // gRPC does not write to it
                      .value.pointer = {.p = watch, .vtable = &ARG_VTABLE}};
}
