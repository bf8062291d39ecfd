#include "proto/tls/tls_failure.h"

#include <stdio.h>
#include <string.h>

static const char PLAIN_SERVER[] = "%s speaks plain text, and this side TLS: turn TLS off here, or start the daemon there with "
                                   "--tls-cert and --tls-key";
static const char TLS_SERVER[] = "%s speaks TLS, and this side plain text: give the CA of its certificate (--tls-ca)";

bool tls_failure_explain(const struct tls_failure_context *context, const char *text, char *out, size_t out_bytes) {
    const char *names = strstr(text, "the server's certificate names ");
    if (!context->tls) {
        bool may_be_tls = !context->has_answered && strstr(text, "Socket closed");
        snprintf(out, out_bytes, "%s%s", text, may_be_tls ? " (a server that speaks TLS does this: if it does, set tls_ca)" : "");
        return false;
    }
    if (names) {
        snprintf(out, out_bytes, "%s is not the expected server: %s", context->address, names);
    } else if (strstr(text, "wrong version number")) {
        snprintf(out, out_bytes, PLAIN_SERVER, context->address);
    } else if (strstr(text, "certificate verify failed")) {
        snprintf(out, out_bytes,
                 "the certificate of %s was not issued by a CA in tls_ca, or has expired: compare its issuer and dates (openssl "
                 "s_client -connect %s -showcerts) with the files",
                 context->address, context->address);
    } else if (!context->has_answered && (strstr(text, "Socket closed") || strstr(text, "Connection reset"))) {
        snprintf(
            out, out_bytes,
            "%s closed the connection during the handshake: it may demand a certificate of its client CA (tls_cert and tls_key "
            "here), not take the one that it got, or have too many connections; its log at level debug says which",
            context->address);
    } else {
        snprintf(out, out_bytes, "%s", text);
        return false;
    }
    return true;
}

bool tls_failure_of_probe(const struct tls_failure_context *context, const struct tls_probe_result *result, char *out,
                          size_t out_bytes) {
    const char *address = context->address;
    out[0] = '\0';
    if (!context->tls) {
        bool speaks_tls =
            result->finding != TLS_FINDING_NONE && result->finding != TLS_FINDING_NO_TLS && result->finding != TLS_FINDING_OTHER;
        if (speaks_tls) {
            snprintf(out, out_bytes, TLS_SERVER, address);
        }
        return speaks_tls;
    }
    switch (result->finding) {
    case TLS_FINDING_NONE:
    case TLS_FINDING_OK:
        return false;
    case TLS_FINDING_NO_TLS:
        snprintf(out, out_bytes, PLAIN_SERVER, address);
        break;
    case TLS_FINDING_UNKNOWN_CA:
        snprintf(out, out_bytes,
                 "the certificate of %s (%s) was issued by a CA that is not trusted here (%s): give the file of its "
                 "CA with --tls-ca",
                 address, result->names, result->detail);
        break;
    case TLS_FINDING_EXPIRED:
        snprintf(out, out_bytes,
                 "the certificate of %s (%s) has expired, or this machine's clock is wrong: replace the file of the "
                 "daemon's --tls-cert",
                 address, result->names);
        break;
    case TLS_FINDING_NOT_YET_VALID:
        snprintf(out, out_bytes, "the certificate of %s (%s) is not valid yet, or this machine's clock is wrong", address,
                 result->names);
        break;
    case TLS_FINDING_WRONG_NAME:
        snprintf(out, out_bytes,
                 "the certificate of %s names %s, not %s: dial one of these names, or say which one is expected with "
                 "--tls-server-name",
                 address, result->names[0] ? result->names : "nobody", context->server_name ? context->server_name : "this host");
        break;
    case TLS_FINDING_NO_CERT:
        snprintf(out, out_bytes, "%s demands a certificate of its clients: give one of its client CA with --tls-cert and --tls-key",
                 address);
        break;
    case TLS_FINDING_CERT_REFUSED:
        snprintf(out, out_bytes,
                 "%s did not take the client's certificate: give one with --tls-cert and --tls-key that the CA in the "
                 "daemon's --tls-client-ca issued and that has not expired",
                 address);
        break;
    case TLS_FINDING_OTHER:
        snprintf(out, out_bytes, "the TLS handshake with %s failed: %s", address, result->detail);
        break;
    }
    return true;
}
