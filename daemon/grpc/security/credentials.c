#include "daemon/grpc/security/credentials.h"

#include <grpc/support/alloc.h>
#include <grpc/support/string_util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/printable.h"
#include "base/threads/thread_order.h"
#include "proto/tls/tls_identity.h"

static grpc_ssl_certificate_config_reload_status fetch(void *context, grpc_ssl_server_certificate_config **out) {
    struct server_certificates *certificates = context;
    const struct tls_snapshot *snapshot = tls_store_take(certificates->store);
    bool is_new = snapshot->generation != certificates->generation;
    if (is_new) {
        const struct tls_texts *texts = &snapshot->texts;
        const grpc_ssl_pem_key_cert_pair own = {.private_key = texts->key, .cert_chain = texts->cert};
        // gRPC asserts that there are CA certificates, also if no client is asked for one; it then does not use them.
        *out = grpc_ssl_server_certificate_config_create(texts->client_ca ? texts->client_ca : texts->cert, &own, 1);
        certificates->generation = snapshot->generation;
    }
    tls_store_release(certificates->store, snapshot);
    return is_new ? GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW : GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
}

grpc_server_credentials *credentials_of_server(struct server_certificates *certificates) {
    const struct tls_snapshot *snapshot = tls_store_take(certificates->store);
    grpc_ssl_client_certificate_request_type request = snapshot->texts.client_ca
                                                           ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                                                           : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE;
    tls_store_release(certificates->store, snapshot);
    grpc_ssl_server_credentials_options *options =
        grpc_ssl_server_credentials_create_options_using_config_fetcher(request, fetch, certificates);
    return grpc_ssl_server_credentials_create_with_options(options); // owns the options
}

// ---- the names of servers

enum { DETAILS_MAX = 768 };

// Owned by gRPC through `external.destruct`. gRPC calls `verify` and `destruct` in whichever thread runs its closures.
struct name_check {
    grpc_tls_certificate_verifier_external external;
    grpc_tls_certificate_verifier *host_check; // NULL: `patterns` decide
    char *patterns;
};

typedef grpc_tls_custom_verification_check_request check_request;

static bool matches_any(const char *patterns, enum tls_name_kind kind, char **names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (tls_identity_matches(patterns, &(struct tls_name){kind, names[i], strlen(names[i])})) {
            return true;
        }
    }
    return false;
}

static bool is_expected(const struct name_check *check, check_request *request) {
    if (check->host_check) {
        grpc_status_code status = GRPC_STATUS_OK;
        char *details = NULL;
        bool done = grpc_tls_certificate_verifier_verify(check->host_check, request, NULL, NULL, &status, &details);
        gpr_free(details);
        return done && status == GRPC_STATUS_OK;
    }
    return matches_any(check->patterns, TLS_NAME_URI, request->peer_info.san_names.uri_names,
                       request->peer_info.san_names.uri_names_size) ||
           matches_any(check->patterns, TLS_NAME_DNS, request->peer_info.san_names.dns_names,
                       request->peer_info.san_names.dns_names_size);
}

static void append_names(char *out, size_t size, char **names, size_t count) {
    for (size_t i = 0; i < count; i++) {
        char escaped[256];
        size_t used = strlen(out);
        printable_escape(names[i], escaped, sizeof escaped);
        snprintf(out + used, size - used, "%s%s", used ? "," : "", escaped);
    }
}

static char *describe(const struct name_check *check, const check_request *request) {
    char names[512] = "", text[DETAILS_MAX];
    append_names(names, sizeof names, request->peer_info.san_names.uri_names, request->peer_info.san_names.uri_names_size);
    append_names(names, sizeof names, request->peer_info.san_names.dns_names, request->peer_info.san_names.dns_names_size);
    append_names(names, sizeof names, request->peer_info.san_names.ip_names, request->peer_info.san_names.ip_names_size);
    snprintf(text, sizeof text, "the server's certificate names %s, not %s", names[0] ? names : "nothing",
             check->patterns ? check->patterns : request->target_name);
    return gpr_strdup(text);
}

static int verify(void *context, check_request *request, grpc_tls_on_custom_verification_check_done_cb callback, void *callback_arg,
                  grpc_status_code *status, char **details) {
    const struct name_check *check = context;
    (void)callback, (void)callback_arg;
    THREAD_TAKE(context);
    bool expected = is_expected(check, request);
    *status = expected ? GRPC_STATUS_OK : GRPC_STATUS_UNAUTHENTICATED;
    *details = expected ? NULL : describe(check, request);
    THREAD_HAND_OVER(context);
    return 1; // done
}

static void cancel(void *context, check_request *request) {
    (void)context, (void)request;
}

static void destruct(void *context) {
    struct name_check *check = context;
    THREAD_TAKE(check);
    if (check->host_check) {
        grpc_tls_certificate_verifier_release(check->host_check);
    }
    free(check->patterns);
    free(check);
}

static grpc_tls_certificate_verifier *create_name_check(const char *patterns) {
    struct name_check *check = calloc(1, sizeof *check);
    char *copy = patterns ? strdup(patterns) : NULL;
    if (!check || (patterns && !copy)) {
        free(check);
        free(copy);
        return NULL;
    }
    check->patterns = copy;
    check->host_check = patterns ? NULL : grpc_tls_certificate_verifier_host_name_create();
    check->external = (grpc_tls_certificate_verifier_external){check, verify, cancel, destruct};
    THREAD_HAND_OVER(check);
    return grpc_tls_certificate_verifier_external_create(&check->external);
}

grpc_channel_credentials *credentials_of_channel(const struct tls_texts *texts, const char *patterns) {
    grpc_tls_certificate_verifier *verifier = create_name_check(patterns);
    if (!verifier) {
        return NULL;
    }
    grpc_tls_identity_pairs *pairs = NULL;
    if (texts->cert) {
        pairs = grpc_tls_identity_pairs_create();
        grpc_tls_identity_pairs_add_pair(pairs, texts->key, texts->cert);
    }
    grpc_tls_certificate_provider *provider = grpc_tls_certificate_provider_static_data_create(texts->ca, pairs); // owns the pairs
    grpc_tls_credentials_options *options = grpc_tls_credentials_options_create();
    grpc_tls_credentials_options_set_certificate_provider(options, provider);
    grpc_tls_credentials_options_watch_root_certs(options);
    if (pairs) {
        grpc_tls_credentials_options_watch_identity_key_cert_pairs(options);
    }
    grpc_tls_credentials_options_set_certificate_verifier(options, verifier);
    grpc_tls_credentials_options_set_check_call_host(options, 0);                 // the verifier has checked the server's names
    grpc_channel_credentials *credentials = grpc_tls_credentials_create(options); // owns the options
    grpc_tls_certificate_provider_release(provider);
    grpc_tls_certificate_verifier_release(verifier);
    return credentials;
}
