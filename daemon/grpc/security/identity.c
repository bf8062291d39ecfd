#include "daemon/grpc/security/identity.h"

#include <grpc/grpc_security.h>
#include <stdio.h>
#include <string.h>

#include "base/printable.h"
#include "proto/tls/tls_identity.h"

// The options that list the identities of a role.
static const char *const ROLE_OPTIONS[RPC_ROLE_COUNT] = {
    [RPC_ROLE_ANY] = "tls_client_ca",
    [RPC_ROLE_CALLER] = "tls_allow_callers",
    [RPC_ROLE_FRONT] = "tls_allow_fronts",
    [RPC_ROLE_ADMIN] = "tls_allow_admins",
};

// Calls `visit` with each name of the certificate until it returns true. Returns the result of the last visit; false: no names.
static bool each_name(grpc_call *call, bool (*visit)(void *context, const struct tls_name *name), void *context) {
    grpc_auth_context *auth = grpc_call_auth_context(call);
    if (!auth) {
        return false;
    }
    bool found = false;
    grpc_auth_property_iterator iterator = grpc_auth_context_property_iterator(auth);
    const grpc_auth_property *property;
    while (!found && (property = grpc_auth_property_iterator_next(&iterator))) {
        bool is_dns = strcmp(property->name, GRPC_PEER_DNS_PROPERTY_NAME) == 0;
        if (is_dns || strcmp(property->name, GRPC_PEER_URI_PROPERTY_NAME) == 0) {
            struct tls_name name = {is_dns ? TLS_NAME_DNS : TLS_NAME_URI, property->value, property->value_length};
            found = visit(context, &name);
        }
    }
    grpc_auth_context_release(auth);
    return found;
}

static bool is_encrypted(grpc_call *call) {
    grpc_auth_context *auth = grpc_call_auth_context(call);
    if (!auth) {
        return false;
    }
    grpc_auth_property_iterator iterator =
        grpc_auth_context_find_properties_by_name(auth, GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
    const grpc_auth_property *type = grpc_auth_property_iterator_next(&iterator);
    bool encrypted = type && strcmp(type->value, "insecure") != 0;
    grpc_auth_context_release(auth);
    return encrypted;
}

static bool matches(void *context, const struct tls_name *name) {
    return tls_identity_matches(context, name);
}

bool identity_allowed(grpc_call *call, const struct rpc_tls *tls, enum rpc_role role) {
    const char *patterns = tls->allowed[role];
    return !patterns || !is_encrypted(call) || each_name(call, matches, (void *)(uintptr_t)patterns); // read only
}

// Appends the name, without control characters, if it fits. Never ends the iteration.
static bool append(void *context, const struct tls_name *name) {
    char *out = context, text[RPC_IDENTITY_MAX], escaped[RPC_IDENTITY_MAX];
    snprintf(text, sizeof text, "%.*s", (int)(name->length < sizeof text ? name->length : sizeof text - 1), name->bytes);
    printable_escape(text, escaped, sizeof escaped);
    size_t used = strlen(out), more = strlen(escaped);
    if (used + more + 2 <= RPC_IDENTITY_MAX) {
        out[used] = ',';
        memcpy(out + used + (used > 0), escaped, more + 1);
    }
    return false;
}

const char *identity_text(grpc_call *call, char out[RPC_IDENTITY_MAX]) {
    out[0] = '\0';
    (void)each_name(call, append, out);
    return out;
}

void identity_refusal(grpc_call *call, enum rpc_role role, char out[EXPERTD_ERR_MESSAGE_MAX]) {
    char names[RPC_IDENTITY_MAX];
    identity_text(call, names);
    snprintf(
        out, EXPERTD_ERR_MESSAGE_MAX,
        "the client's certificate %s%s, and %s of this server does not list %s: use a certificate with a listed DNS name or URI, "
        "or add %s to that option",
        names[0] ? "is of " : "has no DNS name and no URI", names, ROLE_OPTIONS[role], names[0] ? "it" : "such clients",
        names[0] ? "the name" : "a name to the certificate and");
}
