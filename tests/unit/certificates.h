// Certificates for the tests of TLS, made with OpenSSL: CAs, and certificates issued by them, as PEM files.
#ifndef EXPERTD_TESTS_UNIT_CERTIFICATES_H
#define EXPERTD_TESTS_UNIT_CERTIFICATES_H

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/err.h"

enum { PEM_PATH_MAX = 512 };

struct authority {
    EVP_PKEY *key;
    X509 *certificate;
};

struct issued {
    const char *names;        // "DNS:a.example,URI:spiffe://example/a,IP:127.0.0.1"; NULL: none
    const char *usage;        // extended key usage, such as "serverAuth"; NULL: none
    long begins_s, expires_s; // from now; both 0: from an hour ago to ten days from now
};

static inline EVP_PKEY *certificates_key(void) {
    EVP_PKEY *key = EVP_EC_gen("P-256");
    INVARIANT(key);
    return key;
}

static inline void certificates_extend(X509 *certificate, X509 *issuer, int nid, const char *value) {
    X509V3_CTX context;
    X509V3_set_ctx(&context, issuer, certificate, NULL, NULL, 0);
    X509_EXTENSION *extension = X509V3_EXT_conf_nid(NULL, &context, nid, value);
    INVARIANT(extension && X509_add_ext(certificate, extension, -1));
    X509_EXTENSION_free(extension);
}

// issuer NULL: a CA, signed by itself.
static inline X509 *certificates_issue(const struct authority *issuer, EVP_PKEY *key, const char *common_name,
                                       const struct issued *issued) {
    static long serial = 1000;
    X509 *certificate = X509_new();
    X509_NAME *subject = X509_get_subject_name(certificate);
    bool dated = issued->begins_s || issued->expires_s;
    X509_set_version(certificate, 2);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), ++serial);
    X509_gmtime_adj(X509_getm_notBefore(certificate), dated ? issued->begins_s : -3600);
    X509_gmtime_adj(X509_getm_notAfter(certificate), dated ? issued->expires_s : 10 * 86400);
    X509_NAME_add_entry_by_txt(subject, "CN", MBSTRING_UTF8, (const unsigned char *)common_name, -1, -1, 0);
    X509_set_issuer_name(certificate, issuer ? X509_get_subject_name(issuer->certificate) : subject);
    X509_set_pubkey(certificate, key);
    certificates_extend(certificate, issuer ? issuer->certificate : certificate, NID_basic_constraints,
                        issuer ? "critical,CA:FALSE" : "critical,CA:TRUE");
    if (issued->names) {
        certificates_extend(certificate, issuer ? issuer->certificate : certificate, NID_subject_alt_name, issued->names);
    }
    if (issued->usage) {
        certificates_extend(certificate, issuer ? issuer->certificate : certificate, NID_ext_key_usage, issued->usage);
    }
    INVARIANT(X509_sign(certificate, issuer ? issuer->key : key, EVP_sha256()));
    return certificate;
}

static inline void certificates_write_key(const char *path, EVP_PKEY *key) {
    FILE *file = fopen(path, "we");
    INVARIANT(file && PEM_write_PrivateKey(file, key, NULL, NULL, 0, NULL, NULL) && fclose(file) == 0);
}

static inline void certificates_write(const char *path, X509 *certificate) {
    FILE *file = fopen(path, "we");
    INVARIANT(file && PEM_write_X509(file, certificate) && fclose(file) == 0);
}

static inline const char *certificates_path(const char *folder, const char *name, const char *ending, char out[PEM_PATH_MAX]) {
    snprintf(out, PEM_PATH_MAX, "%s/%s.%s", folder, name, ending);
    return out;
}

// A CA in FOLDER/NAME.crt, which expires as `issued` says (NULL: by the default).
static inline struct authority authority_create(const char *folder, const char *name, const struct issued *issued) {
    char path[PEM_PATH_MAX];
    struct authority made = {.key = certificates_key()};
    made.certificate = certificates_issue(NULL, made.key, name, issued ? issued : &(struct issued){0});
    certificates_write(certificates_path(folder, name, "crt", path), made.certificate);
    return made;
}

static inline void authority_free(struct authority *authority) {
    X509_free(authority->certificate);
    EVP_PKEY_free(authority->key);
}

// A certificate in FOLDER/NAME.crt and its key in FOLDER/NAME.key.
static inline void authority_issue(const struct authority *authority, const char *folder, const char *name,
                                   const struct issued *issued) {
    char path[PEM_PATH_MAX];
    EVP_PKEY *key = certificates_key();
    X509 *certificate = certificates_issue(authority, key, name, issued);
    certificates_write(certificates_path(folder, name, "crt", path), certificate);
    certificates_write_key(certificates_path(folder, name, "key", path), key);
    X509_free(certificate);
    EVP_PKEY_free(key);
}

#endif
