// The TLS options, from the flags and the environment.
#include <string.h>

#include "client/expertctl/options.h"

static const char *set_or(const char *flag, const char *variable) {
    return flag ? flag : variable && *variable ? variable : NULL;
}

FALLIBLE ctl_tls(const struct ctl_environment *environment, struct ctl_options *options) {
    struct client_tls *tls = &options->tls;
    const char *switched = set_or(NULL, environment->tls);
    if (switched && strcmp(switched, "true") != 0 && strcmp(switched, "false") != 0) {
        FAIL(EXPERTD_ERR_USAGE, "$EXPERTD_TLS is %s: it is true or false", switched);
    }
    tls->ca = set_or(tls->ca, environment->tls_ca);
    tls->server_name = set_or(tls->server_name, environment->tls_server_name);
    bool own = tls->cert || tls->key; // a flag replaces the pair of the variables
    tls->cert = own ? tls->cert : set_or(NULL, environment->tls_cert);
    tls->key = own ? tls->key : set_or(NULL, environment->tls_key);
    if (!tls->cert != !tls->key) {
        FAIL(EXPERTD_ERR_USAGE, "--tls-cert and --tls-key go together; %s is missing", tls->cert ? "--tls-key" : "--tls-cert");
    }
    tls->on = tls->on || tls->ca || tls->cert || tls->server_name || (switched && strcmp(switched, "true") == 0);
    return OK;
}
