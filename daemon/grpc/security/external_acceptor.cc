#include "daemon/grpc/security/external_acceptor.h"

#include <grpc/grpc_security.h>

// Declared as in src/core/lib/iomgr/tcp_server.h, which is not installed. Unchanged from gRPC 1.23 on, because gRPC's C++ library,
// a separate shared object, calls it across the same boundary.
namespace grpc_core {
class TcpServerFdHandler {
  public:
    virtual ~TcpServerFdHandler() = default;
    virtual void Handle(int listener_fd, int fd, grpc_byte_buffer *pending_read) = 0;
};
} // namespace grpc_core

namespace {

// The prefix makes grpc_server_add_http2_port create a listener without a socket, which stores its handler at the pointer of the
// argument with the same name.
constexpr char NAME[] = "external:expertd";

void *same_pointer(void *pointer) {
    return pointer;
}
void keep(void *) {
}
int compare(void *a, void *b) {
    return a < b ? -1 : a > b;
}
const grpc_arg_pointer_vtable VTABLE = {same_pointer, keep, compare};

} // namespace

grpc_arg external_acceptor_arg(void **handler) {
    grpc_arg arg = {};
    arg.type = GRPC_ARG_POINTER;
    arg.key = const_cast<char *>(NAME);
    arg.value.pointer.p = handler;
    arg.value.pointer.vtable = &VTABLE;
    return arg;
}

bool external_acceptor_listen(grpc_server *server, grpc_server_credentials *credentials, void *const *handler) {
    grpc_server_add_http2_port(server, NAME, credentials); // returns 0 also when it succeeds, since there is no port
    return *handler != nullptr;
}

void external_acceptor_handle(void *handler, int fd) {
    static_cast<grpc_core::TcpServerFdHandler *>(handler)->Handle(-1, fd, nullptr);
}
