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
