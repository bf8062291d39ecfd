// Shared by the tests of the options: a folder for files; a command line and an environment given as words.
#ifndef EXPERTD_TESTS_UNIT_DAEMON_CONFIG_OPTIONS_FIXTURE_H
#define EXPERTD_TESTS_UNIT_DAEMON_CONFIG_OPTIONS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config/options.h"
#include "daemon/config/options_table.h"

enum { ARGS_MAX = 24 };

static const char FOLDER_TEMPLATE[] = "/tmp/expertd-test-options-XXXXXX";
static char folder[sizeof FOLDER_TEMPLATE];

static int make_folder(void **state) {
    (void)state;
    memcpy(folder, FOLDER_TEMPLATE, sizeof folder);
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    return system(command);
}

static const char *write_file(const char *name, const char *text) {
    static char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    return path;
}

// `flags` and `environment`: words separated by single spaces ("" for none). Values cannot contain spaces.
static err_t parse(const char *flags, const char *environment, struct options *out) {
    static char text[2][4096];
    char *words[2][ARGS_MAX] = {{"expertd"}, {NULL}};
    size_t count[2] = {1, 0};
    snprintf(text[0], sizeof text[0], "%s", flags);
    snprintf(text[1], sizeof text[1], "%s", environment);
    for (size_t i = 0; i < 2; i++) {
        char *save = NULL;
        for (char *word = strtok_r(text[i], " ", &save); word; word = strtok_r(NULL, " ", &save)) {
            assert_true(count[i] + 1 < ARGS_MAX);
            words[i][count[i]++] = word;
        }
    }
    return options_parse((int)count[0], words[0], words[1], out);
}

static void expect_ok(const char *flags, const char *environment, struct options *out) {
    err_t e = parse(flags, environment, out);
    if (err_is(e)) {
        fail_msg("%s | %s: %s", flags, environment, expertd_err_message());
    }
}

#endif
