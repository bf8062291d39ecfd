#include "proto/tls/tls_context.h"

#include <openssl/err.h>
#include <openssl/pem.h>

static bool use_chain(SSL_CTX *context, BIO *certificates) {
    X509 *certificate = PEM_read_bio_X509(certificates, NULL, NULL, NULL);
    bool used = certificate && SSL_CTX_use_certificate(context, certificate) == 1;
    X509_free(certificate);
    while (used && (certificate = PEM_read_bio_X509(certificates, NULL, NULL, NULL))) {
        used = SSL_CTX_add1_chain_cert(context, certificate) == 1; // takes a reference
        X509_free(certificate);
    }
    if (used) {
        ERR_clear_error(); // the end of the text
    }
    return used;
}

bool tls_context_use(SSL_CTX *context, const char *certificates, const char *key) {
    ERR_clear_error();
    BIO *chain = BIO_new_mem_buf(certificates, -1), *own = BIO_new_mem_buf(key, -1);
    EVP_PKEY *private_key = own ? PEM_read_bio_PrivateKey(own, NULL, NULL, NULL) : NULL;
    bool used = chain && private_key && use_chain(context, chain) && SSL_CTX_use_PrivateKey(context, private_key) == 1;
    EVP_PKEY_free(private_key);
    BIO_free(own);
    BIO_free(chain);
    return used;
}
