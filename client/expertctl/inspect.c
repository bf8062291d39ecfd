// inspect: replaces this process by `expertd --inspect`, because only the daemon's code reads checkpoints.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

#include "client/expertctl/commands.h"

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

enum { ARGUMENTS_MAX = 8, ARGUMENT_BYTES_MAX = PATH_MAX + 16, FLAGS_MAX = 4 };

struct command_line {
    char *arguments[ARGUMENTS_MAX]; // ends with NULL
    size_t count;
    char flags[FLAGS_MAX][ARGUMENT_BYTES_MAX]; // "--NAME=VALUE"
    size_t flags_count;
};

// value NULL: not given.
static FALLIBLE add(struct command_line *line, const char *name, const char *value) {
    if (!value) {
        return OK;
    }
    char *flag = line->flags[line->flags_count];
    const int length = snprintf(flag, ARGUMENT_BYTES_MAX, "--%s=%s", name, value);
    if (!value[0] || length < 0 || length >= ARGUMENT_BYTES_MAX) {
        FAIL(EXPERTD_ERR_USAGE, "the %s %s", name, value[0] ? "is too long" : "is empty");
    }
    line->flags_count++;
    line->arguments[line->count++] = flag;
    return OK;
}

FALLIBLE command_inspect(const struct ctl_options *options) {
    static char program[] = "expertd", inspect[] = "--inspect", json[] = "--json";
    struct command_line line = {.arguments = {program, inspect}, .count = 2};
    char beside[PATH_MAX];
    TRY(add(&line, "model", options->inspected));
    TRY(add(&line, "layers", options->layers));
    TRY(add(&line, "shards", options->shards));
    TRY(add(&line, "device", options->device));
    line.arguments[line.count] = options->json ? json : NULL;
    if (path_beside(beside)) {
        execv(beside, line.arguments);
        FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot run %s, which reads checkpoints for this command: %s", beside, strerror(errno));
    }
    execvp(program, line.arguments);
    if (errno == ENOENT) {
        FAIL(EXPERTD_ERR_UNAVAILABLE,
             "expertd reads checkpoints for this command, and is neither beside this program nor on PATH: install it here, or run "
             "expertd --inspect where it is");
    }
    FAIL(EXPERTD_ERR_UNAVAILABLE, "cannot run the expertd on PATH, which reads checkpoints for this command: %s", strerror(errno));
}
