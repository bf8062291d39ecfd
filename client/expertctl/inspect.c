// inspect: replaces this process by `expertd --inspect`, because only the daemon's code reads checkpoints.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "client/expertctl/commands.h"

enum { ARGUMENTS_MAX = 8 };

// The path by which this program was started; "": unknown, without /proc and with a bare name.
static void own_path(char out[PATH_MAX]) {
    ssize_t length = readlink("/proc/self/exe", out, PATH_MAX - 1);
    const char *started = (const char *)getauxval(AT_EXECFN);
    out[length > 0 ? length : 0] = '\0';
    if (length <= 0 && started && strchr(started, '/')) {
        snprintf(out, PATH_MAX, "%s", started);
    }
}

// False: there is none.
static bool path_beside(char out[PATH_MAX]) {
    char own[PATH_MAX];
    own_path(own);
    char *slash = strrchr(own, '/');
    if (!slash) {
        return false;
    }
    *slash = '\0';
    int length = snprintf(out, PATH_MAX, "%s/expertd", own);
    return length > 0 && length < PATH_MAX && access(out, X_OK) == 0;
}

// Adds "--NAME=VALUE". Nothing is freed: the process is replaced, or ends.
static FALLIBLE add(char **arguments, size_t *count, const char *name, const char *value) {
    const size_t bytes = strlen(name) + strlen(value) + 4;
    char *text = value[0] ? malloc(bytes) : NULL;
    if (!text) {
        FAIL(value[0] ? EXPERTD_ERR_NOMEM : EXPERTD_ERR_USAGE, "--%s: %s", name, value[0] ? "no memory" : "the value is empty");
    }
    snprintf(text, bytes, "--%s=%s", name, value);
    arguments[(*count)++] = text;
    return OK;
}

FALLIBLE command_inspect(const struct ctl_options *options) {
    static char program[] = "expertd", inspect[] = "--inspect", json[] = "--json";
    char *arguments[ARGUMENTS_MAX] = {program, inspect}, beside[PATH_MAX];
    size_t count = 2;
    TRY(add(arguments, &count, "model", options->inspected));
    if (options->layers) {
        TRY(add(arguments, &count, "layers", options->layers));
    }
    if (options->shards) {
        TRY(add(arguments, &count, "shards", options->shards));
    }
    if (options->json) {
        arguments[count++] = json;
    }
    if (path_beside(beside)) {
        execv(beside, arguments);
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot run %s, which reads checkpoints for this command: %s", beside, strerror(errno));
    }
    execvp(program, arguments);
    if (errno == ENOENT) {
        FAIL(EXPERTD_ERR_UNAVAILABLE,
             "expertd reads checkpoints for this command, and is neither beside this program nor on PATH: install it here, or run "
             "expertd --inspect where it is");
    }
    FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot run the expertd on PATH, which reads checkpoints for this command: %s", strerror(errno));
}
