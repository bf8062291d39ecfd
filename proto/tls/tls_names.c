#include "proto/tls/tls_names.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "base/printable.h"

enum { NAME_MAX_BYTES = 256, IPV4_BYTES = 4, IPV6_BYTES = 16 };

static void append(char *out, size_t size, const char *name) {
    char escaped[NAME_MAX_BYTES];
    printable_escape(name, escaped, sizeof escaped);
    size_t used = strlen(out), more = strlen(escaped);
    if (used + more + 2 <= size) {
        out[used] = ',';
        memcpy(out + used + (used > 0), escaped, more + 1);
    }
}

static void append_string(char *out, size_t size, const ASN1_STRING *string) {
    char text[NAME_MAX_BYTES];
    snprintf(text, sizeof text, "%.*s", ASN1_STRING_length(string), (const char *)ASN1_STRING_get0_data(string));
    append(out, size, text);
}

static void append_address(char *out, size_t size, const ASN1_OCTET_STRING *address) {
    char text[INET6_ADDRSTRLEN];
    int length = ASN1_STRING_length(address), family = length == IPV4_BYTES ? AF_INET : AF_INET6;
    if ((length == IPV4_BYTES || length == IPV6_BYTES) && inet_ntop(family, ASN1_STRING_get0_data(address), text, sizeof text)) {
        append(out, size, text);
    }
}

void tls_names_collect(const X509 *certificate, char *out, size_t size) {
    GENERAL_NAMES *all = X509_get_ext_d2i(certificate, NID_subject_alt_name, NULL, NULL);
    for (int i = 0; i < sk_GENERAL_NAME_num(all); i++) {
        const GENERAL_NAME *name = sk_GENERAL_NAME_value(all, i);
        if (name->type == GEN_DNS) {
            append_string(out, size, name->d.dNSName);
        } else if (name->type == GEN_URI) {
            append_string(out, size, name->d.uniformResourceIdentifier);
        } else if (name->type == GEN_IPADD) {
            append_address(out, size, name->d.iPAddress);
        }
    }
    GENERAL_NAMES_free(all);
}
