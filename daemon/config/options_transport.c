#include "daemon/config/options_transport.h"

#include <string.h>

#include "daemon/config/options_address.h"
#include "daemon/config/options_conflict.h"
#include "daemon/config/options_table.h"

static FALLIBLE require(const struct options *options, enum options_key given, const char *value, enum options_key needed,
                        const char *needed_value, const char *why) {
    if (value && !needed_value) {
        FAIL(options_conflict_code(options, given, needed), "%s is set (%s), but %s is not: %s", OPTIONS_ROWS[given].name,
             options->origins[given], OPTIONS_ROWS[needed].name, why);
    }
    return OK;
}

static FALLIBLE check_files(const struct options *o) {
    static const char *const CLIENTS = "names are checked in the certificates of clients, which only tls_client_ca demands";
    TRY(require(o, OPTION_TLS_CERT, o->tls_cert, OPTION_TLS_KEY, o->tls_key, "give the file of the certificate's key"));
    TRY(require(o, OPTION_TLS_KEY, o->tls_key, OPTION_TLS_CERT, o->tls_cert, "give the file of the certificate"));
    TRY(require(o, OPTION_TLS_CLIENT_CA, o->tls_client_ca, OPTION_TLS_CERT, o->tls_cert,
                "clients are checked in TLS only, which needs tls_cert and tls_key"));
    TRY(require(o, OPTION_TLS_ALLOW_CALLERS, o->tls_allow_callers, OPTION_TLS_CLIENT_CA, o->tls_client_ca, CLIENTS));
    TRY(require(o, OPTION_TLS_ALLOW_FRONTS, o->tls_allow_fronts, OPTION_TLS_CLIENT_CA, o->tls_client_ca, CLIENTS));
    TRY(require(o, OPTION_TLS_ALLOW_ADMINS, o->tls_allow_admins, OPTION_TLS_CLIENT_CA, o->tls_client_ca, CLIENTS));
    return require(o, OPTION_TLS_ALLOW_SHARDS, o->tls_allow_shards, OPTION_TLS_CA, o->tls_ca,
                   "names are checked in certificates of shards, which need a CA to be trusted");
}

static FALLIBLE check_admin(const struct options *o) {
    bool on_tcp = strcmp(o->admin, "off") != 0 && !options_unix_path(o->admin);
    if (on_tcp && !o->tls_allow_admins) {
        FAIL(EXPERTD_ERR_CONFIG,
             "admin is %s (%s), a TCP address, but tls_allow_admins is not set: name the operators' certificates there (with "
             "tls_cert, tls_key and tls_client_ca), or use unix:PATH",
             o->admin, o->origins[OPTION_ADMIN]);
    }
    return OK;
}

FALLIBLE options_check_dial(const struct options *options, const char *address) {
    if (!options->tls_ca && !options->insecure && !options_address_is_local(address)) {
        FAIL(EXPERTD_ERR_CONFIG,
             "%s is on another machine, and tls_ca is not set: set it to the CA of that daemon's certificate, or set insecure "
             "(--insecure) to send hidden states in plain text",
             address);
    }
    return OK;
}

const char *options_exposed(const struct options *options, size_t index, enum options_key *key) {
    *key = OPTION_LISTEN;
    for (size_t i = 0; i < options->listen_count && !options->tls_cert; i++) {
        if (!options_address_is_local(options->listen[i]) && index-- == 0) {
            return options->listen[i];
        }
    }
    *key = OPTION_HTTP;
    bool is_exposed = strcmp(options->http, "off") != 0 && !options_address_is_local(options->http);
    return is_exposed && index == 0 ? options->http : NULL;
}

FALLIBLE options_check_transport(const struct options *options) {
    TRY(check_files(options));
    TRY(check_admin(options));
    enum options_key key;
    const char *address = options_exposed(options, 0, &key);
    if (!address || options->insecure) {
        return OK;
    }
    if (key == OPTION_HTTP) {
        FAIL(EXPERTD_ERR_CONFIG,
             "http is %s (%s), which other machines can reach, and HTTP has neither TLS nor authentication: use 127.0.0.1 or off, "
             "or set insecure (--insecure) to show metrics and status to anyone",
             address, options->origins[key]);
    }
    FAIL(EXPERTD_ERR_CONFIG,
         "listen is %s (%s), which other machines can reach, and TLS is off: set tls_cert and tls_key, or listen on 127.0.0.1 or "
         "unix:PATH, or set insecure (--insecure) to send hidden states and answers in plain text to anyone",
         address, options->origins[key]);
}
