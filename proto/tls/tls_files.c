#include "proto/tls/tls_files.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/regular_file.h"
#include "proto/tls/tls_context.h"
#include "proto/tls/tls_names.h"

enum { TIME_TEXT_MAX = 32 };

struct reader {
    const struct tls_paths *paths;
    enum tls_use use;
    enum expertd_err_code code;
    struct tls_texts *out;
    int64_t now_s;
};

static const char *time_text(int64_t seconds, char out[TIME_TEXT_MAX]) {
    time_t time = (time_t)seconds;
    struct tm parts;
    if (!gmtime_r(&time, &parts) || strftime(out, TIME_TEXT_MAX, "%Y-%m-%d %H:%M:%S UTC", &parts) == 0) {
        snprintf(out, TIME_TEXT_MAX, "an unknown time");
    }
    return out;
}

// ---- files

static FALLIBLE read_text(const struct reader *reader, const char *path, char **out) {
    size_t length;
    err_t e = regular_file_read(path, TLS_FILE_BYTES_MAX, out, &length);
    if (e.code == EXPERTD_ERR_CHECKPOINT || e.code == EXPERTD_ERR_IO) {
        struct err_copy copy;
        err_save(e, &copy);
        FAIL(reader->code, "%s", copy.message);
    }
    TRY(e);
    if (strlen(*out) != length) {
        FAIL(reader->code,
             "%s is no PEM file: it has a byte 0 at offset %zu (convert DER with openssl x509 -inform der, or openssl "
             "pkey -inform der)",
             path, strlen(*out));
    }
    return OK;
}

static BIO *open_text(const char *text) {
    return BIO_new_mem_buf(text, -1);
}

// Whether reading stopped because no further block begins, and not inside a block.
static bool ended_between_blocks(void) {
    unsigned long last = ERR_peek_last_error();
    bool ended = ERR_GET_LIB(last) == ERR_LIB_PEM && ERR_GET_REASON(last) == PEM_R_NO_START_LINE;
    ERR_clear_error();
    return ended;
}

static int64_t seconds_of(const ASN1_TIME *time) {
    struct tm parts = {0};
    return ASN1_TIME_to_tm(time, &parts) ? (int64_t)timegm(&parts) : 0;
}

// Calls `visit` with each certificate of the text, in order. An error of `visit` ends the loop.
static FALLIBLE each_certificate(const struct reader *reader, const char *path, const char *text,
                                 err_t (*visit)(void *context, X509 *certificate, size_t index), void *context) {
    BIO *bio = open_text(text);
    if (!bio) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %s", path);
    }
    ERR_clear_error();
    err_t e = OK;
    size_t count = 0;
    X509 *certificate;
    while (!err_is(e) && (certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL))) {
        e = visit(context, certificate, count++);
        X509_free(certificate);
    }
    BIO_free(bio);
    bool whole = err_is(e) || ended_between_blocks();
    TRY(e);
    if (!whole) {
        FAIL(reader->code, "%s is damaged or not completely written: certificate %zu cannot be read", path, count + 1);
    }
    if (count == 0) {
        FAIL(reader->code, "%s has no certificate: expected a block -----BEGIN CERTIFICATE-----", path);
    }
    return OK;
}

// ---- the own certificate

struct own {
    struct reader *reader;
    EVP_PKEY *key;
};

static FALLIBLE check_leaf(const struct own *own, X509 *leaf) {
    const struct reader *reader = own->reader;
    const char *cert = reader->paths->cert;
    if (X509_check_private_key(leaf, own->key) != 1) {
        ERR_clear_error();
        FAIL(reader->code, "the key %s does not belong to the certificate %s: give the key that the certificate was made for",
             reader->paths->key, cert);
    }
    bool serves = reader->use == TLS_USE_SERVER;
    if (X509_check_purpose(leaf, serves ? X509_PURPOSE_SSL_SERVER : X509_PURPOSE_SSL_CLIENT, 0) != 1) {
        ERR_clear_error();
        FAIL(reader->code, "%s is not for %s: its extended key usage lacks %s; have the CA issue one with it", cert,
             serves ? "servers" : "clients", serves ? "serverAuth" : "clientAuth");
    }
    tls_names_collect(leaf, reader->out->names, sizeof reader->out->names);
    return OK;
}

// The file has the certificate first, then those that lead to the CA.
static FALLIBLE check_own(void *context, X509 *certificate, size_t index) {
    const struct own *own = context;
    const struct reader *reader = own->reader;
    struct tls_texts *out = reader->out;
    int64_t begins_s = seconds_of(X509_get0_notBefore(certificate)), expires_s = seconds_of(X509_get0_notAfter(certificate));
    char text[TIME_TEXT_MAX], now[TIME_TEXT_MAX];
    const char *path = reader->paths->cert;
    if (expires_s <= reader->now_s) {
        FAIL(reader->code, "certificate %zu of %s expired on %s: have the CA issue a new one", index + 1, path,
             time_text(expires_s, text));
    }
    if (begins_s > reader->now_s) {
        FAIL(reader->code, "certificate %zu of %s is valid from %s on, and this machine's clock says %s: check the clock",
             index + 1, path, time_text(begins_s, text), time_text(reader->now_s, now));
    }
    out->begins_s = begins_s > out->begins_s ? begins_s : out->begins_s;
    out->expires_s = index == 0 || expires_s < out->expires_s ? expires_s : out->expires_s;
    return index == 0 ? check_leaf(own, certificate) : OK;
}

// Called if the key is encrypted. Without it, OpenSSL would ask on the terminal.
static int refuse_passphrase(char *buffer, int size, int writes, void *context) {
    (void)buffer, (void)size, (void)writes;
    *(bool *)context = true;
    return -1;
}

static FALLIBLE parse_key(const struct reader *reader, EVP_PKEY **out) {
    const char *path = reader->paths->key;
    BIO *bio = open_text(reader->out->key);
    if (!bio) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %s", path);
    }
    bool encrypted = false;
    *out = PEM_read_bio_PrivateKey(bio, NULL, refuse_passphrase, &encrypted);
    BIO_free(bio);
    ERR_clear_error();
    if (encrypted) {
        FAIL(reader->code,
             "the key %s is encrypted: store it without a passphrase (openssl pkey -in FILE -out FILE), readable by the "
             "daemon's user only",
             path);
    }
    if (!*out) {
        FAIL(reader->code,
             "%s has no private key, or is damaged or not completely written: expected a block -----BEGIN PRIVATE "
             "KEY-----",
             path);
    }
    return OK;
}

// gRPC will ask the same of OpenSSL, whose security level refuses short keys and weak hashes.
static FALLIBLE check_taken(const struct reader *reader) {
    SSL_CTX *context = SSL_CTX_new(TLS_method());
    bool taken = context && tls_context_use(context, reader->out->cert, reader->out->key);
    const char *reason = ERR_reason_error_string(ERR_peek_last_error());
    SSL_CTX_free(context);
    ERR_clear_error();
    if (!taken) {
        FAIL(reader->code,
             "OpenSSL does not take the certificate %s with its key: %s; have the CA issue one with a longer key or a newer hash",
             reader->paths->cert, reason ? reason : "no reason given");
    }
    return OK;
}

static FALLIBLE read_own(struct reader *reader) {
    const struct tls_paths *paths = reader->paths;
    if (!paths->cert != !paths->key) {
        FAIL(reader->code, "the %s %s is given without its %s: give both", paths->cert ? "certificate" : "key",
             paths->cert ? paths->cert : paths->key, paths->cert ? "key" : "certificate");
    }
    if (!paths->cert) {
        return OK;
    }
    TRY(read_text(reader, paths->cert, &reader->out->cert));
    TRY(read_text(reader, paths->key, &reader->out->key));
    struct own own = {.reader = reader};
    TRY(parse_key(reader, &own.key));
    err_t e = each_certificate(reader, paths->cert, reader->out->cert, check_own, &own);
    e = err_is(e) ? e : check_taken(reader);
    EVP_PKEY_free(own.key);
    return e;
}

// ---- CA certificates

static FALLIBLE latest_end(void *context, X509 *certificate, size_t index) {
    int64_t *latest_s = context, expires_s = seconds_of(X509_get0_notAfter(certificate));
    *latest_s = index == 0 || expires_s > *latest_s ? expires_s : *latest_s;
    return OK;
}

static FALLIBLE read_ca(const struct reader *reader, const char *path, char **out) {
    if (!path) {
        return OK;
    }
    int64_t latest_s = 0;
    char text[TIME_TEXT_MAX];
    TRY(read_text(reader, path, out));
    TRY(each_certificate(reader, path, *out, latest_end, &latest_s));
    if (latest_s <= reader->now_s) {
        FAIL(reader->code, "every CA certificate in %s has expired, the last on %s: install the CA's new certificate", path,
             time_text(latest_s, text));
    }
    return OK;
}

FALLIBLE tls_texts_read(const struct tls_paths *paths, enum tls_use use, enum expertd_err_code code, struct tls_texts *out) {
    *out = (struct tls_texts){0};
    struct reader reader = {.paths = paths, .use = use, .code = code, .out = out, .now_s = (int64_t)time(NULL)};
    err_t e = read_own(&reader);
    e = err_is(e) ? e : read_ca(&reader, paths->ca, &out->ca);
    e = err_is(e) ? e : read_ca(&reader, paths->client_ca, &out->client_ca);
    if (err_is(e)) {
        tls_texts_deinit(out);
    }
    return e;
}

void tls_texts_deinit(struct tls_texts *texts) {
    if (texts->key) {
        explicit_bzero(texts->key, strlen(texts->key));
    }
    free(texts->cert);
    free(texts->key);
    free(texts->ca);
    free(texts->client_ca);
    *texts = (struct tls_texts){0};
}
