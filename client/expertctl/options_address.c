// The daemon's address, from --address, the environment or the defaults.
#include <string.h>
#include <sys/stat.h>

#include "client/expertctl/options.h"

static const char DEFAULT_TCP[] = "127.0.0.1:7411";

FALLIBLE ctl_address(const struct ctl_options *options, const struct ctl_environment *environment, char out[ADDRESS_TEXT_MAX]) {
    struct address parsed;
    if (options->address) {
        TRY_IN(address_parse(options->address, &parsed), "--address");
    } else if (environment->address && *environment->address) {
        TRY_IN(address_parse(environment->address, &parsed), "$EXPERTD_ADDRESS");
    } else {
        char path[ADDRESS_TEXT_MAX];
        int length = snprintf(path, sizeof path, "unix:%s/expertd.sock", environment->runtime_dir ? environment->runtime_dir : "");
        struct stat st;
        bool is_socket = environment->runtime_dir && *environment->runtime_dir && length < (int)sizeof path &&
                         stat(path + strlen("unix:"), &st) == 0 && S_ISSOCK(st.st_mode);
        TRY_IN(address_parse(is_socket ? path : DEFAULT_TCP, &parsed), "$XDG_RUNTIME_DIR");
    }
    snprintf(out, ADDRESS_TEXT_MAX, "%s", parsed.text);
    return OK;
}

bool ctl_admin_default(const char *dialled, char out[ADDRESS_TEXT_MAX]) {
    static const char END[] = ".sock";
    struct address here;
    if (err_is(address_parse(dialled, &here)) || !here.is_unix) {
        return false;
    }
    size_t length = strlen(here.path), end = strlen(END);
    length -= length > end && strcmp(here.path + length - end, END) == 0 ? end : 0;
    return snprintf(out, ADDRESS_TEXT_MAX, "unix:%.*s-admin.sock", (int)length, here.path) < ADDRESS_TEXT_MAX;
}

FALLIBLE ctl_admin_address(const char *dialled, const char *named, char out[ADDRESS_TEXT_MAX]) {
    struct address here, there;
    TRY(address_parse(dialled, &here));
    TRY_IN(address_parse(named, &there), "the admin address of %s", dialled);
    if (there.is_unix && !here.is_unix) {
        FAIL(EXPERTD_ERR_USAGE,
             "the admin socket is on the daemon's host, and %s may be on another one: on that host give --admin %s, or the "
             "daemon's Unix socket with --address",
             dialled, named);
    }
    const bool wildcard = !there.is_unix && (strcmp(there.host, "0.0.0.0") == 0 || strcmp(there.host, "::") == 0);
    const char *host = here.is_unix ? "127.0.0.1" : here.host;
    if (wildcard) {
        snprintf(out, ADDRESS_TEXT_MAX, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host, there.port);
    } else {
        snprintf(out, ADDRESS_TEXT_MAX, "%s", there.text);
    }
    return OK;
}
