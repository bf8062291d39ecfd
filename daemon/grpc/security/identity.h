// The names in the checked certificate of a call's other end, and whether its role admits them. Any thread that owns the call.
#ifndef EXPERTD_DAEMON_GRPC_SECURITY_IDENTITY_H
#define EXPERTD_DAEMON_GRPC_SECURITY_IDENTITY_H

#include <grpc/grpc.h>

#include "base/err.h"
#include "daemon/grpc/security/rpc_tls.h"

// Whether the caller may use a method of this role. True also for connections without TLS (rpc_adopt) and for roles without a list.
bool identity_allowed(grpc_call *call, const struct rpc_tls *tls, enum rpc_role role);
// The refusal of a caller that is not allowed: names its identity and the option.
void identity_refusal(grpc_call *call, enum rpc_role role, char out[EXPERTD_ERR_MESSAGE_MAX]);
// As rpc_call_identity.
const char *identity_text(grpc_call *call, char out[RPC_IDENTITY_MAX]);

#endif
