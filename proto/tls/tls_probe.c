#include "proto/tls/tls_probe.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "proto/tls/tls_context.h"
#include "proto/tls/tls_names.h"

struct attempt {
    const struct tls_probe *probe;
    struct tls_probe_result *out;
    long verify_error;   // the first; X509_V_OK: none
    bool asked_for_cert; // the server demands or requests one
};

// Where a struct attempt is stored in its SSL.
static int attempt_index;
static pthread_once_t index_once = PTHREAD_ONCE_INIT;

static void take_index(void) {
    attempt_index = SSL_get_ex_new_index(0, NULL, NULL, NULL, NULL);
}

// ---- the socket

static int connect_one(const struct addrinfo *at, const struct timeval *timeout) {
    int fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
    if (fd < 0) {
        return -1;
    }
    // Linux applies the send timeout to connect, too.
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, timeout, sizeof *timeout) == 0 &&
        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, timeout, sizeof *timeout) == 0 && connect(fd, at->ai_addr, at->ai_addrlen) == 0) {
        return fd;
    }
    close(fd);
    return -1;
}

// -1: not connected.
static int connect_to(const struct tls_probe *probe) {
    char port[8];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
    struct timeval timeout = {.tv_sec = probe->timeout_us / 1000000, .tv_usec = probe->timeout_us % 1000000};
    snprintf(port, sizeof port, "%u", probe->port);
    if (getaddrinfo(probe->host, port, &hints, &found) != 0) {
        return -1;
    }
    int fd = -1;
    for (const struct addrinfo *at = found; at && fd < 0; at = at->ai_next) {
        fd = connect_one(at, &timeout);
    }
    freeaddrinfo(found);
    return fd;
}

// ---- the handshake

static struct attempt *attempt_of(X509_STORE_CTX *store) {
    SSL *ssl = X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx());
    return SSL_get_ex_data(ssl, attempt_index);
}

// Records the first error and goes on, so that the names and the server's demands are learnt too. Nothing is sent to the server.
static int on_verify(int ok, X509_STORE_CTX *store) {
    struct attempt *attempt = attempt_of(store);
    long error = X509_STORE_CTX_get_error(store);
    if (!ok && attempt->verify_error == X509_V_OK) {
        attempt->verify_error = error;
    }
    return 1;
}

static int on_cert_request(SSL *ssl, void *context) {
    struct attempt *attempt = context;
    (void)ssl;
    attempt->asked_for_cert = true;
    return 1; // go on, with the certificate of the context if there is one
}

static bool load_ca(SSL_CTX *context, const char *pem) {
    if (!pem) {
        return SSL_CTX_set_default_verify_paths(context) == 1;
    }
    BIO *bio = BIO_new_mem_buf(pem, -1);
    X509 *certificate;
    while (bio && (certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        X509_STORE_add_cert(SSL_CTX_get_cert_store(context), certificate); // takes a reference
        X509_free(certificate);
    }
    BIO_free(bio);
    ERR_clear_error();
    return bio != NULL;
}

static bool load_own(SSL_CTX *context, const struct tls_texts *texts) {
    return !texts || !texts->cert || tls_context_use(context, texts->cert, texts->key);
}

static bool expect_name(SSL *ssl, const char *name) {
    struct in6_addr address; // enough for IPv4 too
    X509_VERIFY_PARAM *param = SSL_get0_param(ssl);
    if (inet_pton(AF_INET, name, &address) == 1 || inet_pton(AF_INET6, name, &address) == 1) {
        return X509_VERIFY_PARAM_set1_ip_asc(param, name) == 1;
    }
    return SSL_set1_host(ssl, name) == 1 && SSL_set_tlsext_host_name(ssl, name) == 1;
}

// ---- findings

static void find_verify(const struct attempt *attempt) {
    struct tls_probe_result *out = attempt->out;
    switch (attempt->verify_error) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
        out->finding = TLS_FINDING_EXPIRED;
        break;
    case X509_V_ERR_CERT_NOT_YET_VALID:
        out->finding = TLS_FINDING_NOT_YET_VALID;
        break;
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        out->finding = TLS_FINDING_WRONG_NAME;
        break;
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
        out->finding = TLS_FINDING_UNKNOWN_CA;
        break;
    default:
        out->finding = TLS_FINDING_OTHER;
        break;
    }
    snprintf(out->detail, sizeof out->detail, "%s", X509_verify_cert_error_string(attempt->verify_error));
}

static bool is_no_tls(int reason) {
    return reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_HTTP_REQUEST || reason == SSL_R_PACKET_LENGTH_TOO_LONG ||
           reason == SSL_R_UNKNOWN_PROTOCOL;
}

// The connection ended during the handshake, or right after it: with TLS 1.3 a server checks the client's certificate after the
// client has finished.
static void find_end(const struct attempt *attempt, bool finished) {
    struct tls_probe_result *out = attempt->out;
    unsigned long error = ERR_peek_last_error();
    int reason = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_GET_REASON(error) : 0;
    bool has_cert = attempt->probe->texts && attempt->probe->texts->cert;
    if (!finished && is_no_tls(reason)) {
        out->finding = TLS_FINDING_NO_TLS;
    } else if (attempt->asked_for_cert) {
        out->finding = has_cert ? TLS_FINDING_CERT_REFUSED : TLS_FINDING_NO_CERT;
    } else if (error && reason != SSL_R_UNEXPECTED_EOF_WHILE_READING) {
        out->finding = TLS_FINDING_OTHER;
    } // otherwise the server closed the connection without a word
    if (error) {
        ERR_error_string_n(error, out->detail, sizeof out->detail);
    }
}

static void collect_names(const SSL *ssl, struct tls_probe_result *out) {
    X509 *certificate = SSL_get1_peer_certificate(ssl);
    if (certificate) {
        tls_names_collect(certificate, out->names, sizeof out->names);
        X509_free(certificate);
    }
}

static void shake_hands(SSL *ssl, struct attempt *attempt) {
    ERR_clear_error();
    bool finished = SSL_connect(ssl) == 1;
    collect_names(ssl, attempt->out);
    char byte;
    if (attempt->verify_error != X509_V_OK) {
        find_verify(attempt);
    } else if (finished && SSL_read(ssl, &byte, 1) == 1) { // the server's HTTP/2 settings
        attempt->out->finding = TLS_FINDING_OK;
    } else {
        find_end(attempt, finished);
    }
    ERR_clear_error();
}

void tls_probe_run(const struct tls_probe *probe, struct tls_probe_result *out) {
    static const unsigned char ALPN[] = {2, 'h', '2'};
    *out = (struct tls_probe_result){0};
    pthread_once(&index_once, take_index);
    int fd = connect_to(probe);
    if (fd < 0) {
        return;
    }
    struct attempt attempt = {.probe = probe, .out = out, .verify_error = X509_V_OK};
    SSL_CTX *context = SSL_CTX_new(TLS_client_method());
    SSL *ssl = NULL;
    if (context && load_ca(context, probe->texts ? probe->texts->ca : NULL) && load_own(context, probe->texts)) {
        SSL_CTX_set_verify(context, SSL_VERIFY_PEER, on_verify);
        SSL_CTX_set_cert_cb(context, on_cert_request, &attempt);
        SSL_CTX_set_alpn_protos(context, ALPN, sizeof ALPN);
        ssl = SSL_new(context);
    }
    if (ssl && SSL_set_ex_data(ssl, attempt_index, &attempt) == 1 && SSL_set_fd(ssl, fd) == 1 &&
        expect_name(ssl, probe->server_name ? probe->server_name : probe->host)) {
        shake_hands(ssl, &attempt);
    }
    SSL_free(ssl);
    SSL_CTX_free(context);
    ERR_clear_error();
    close(fd);
}
