#include "daemon/grpc/security/credentials.h"

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
