// Injects failures into a daemon on simulated devices. Tests preload this library (LD_PRELOAD). It listens on the Unix socket of
// EXPERTD_TEST_PLANTER and answers each line with a line: "CALL AFTER" injects a failure (plant_failure in device.h), "none"
// removes it, "calls CALL" returns the number of calls of CALL. expertd itself has no code for it.
#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "expertd/kernels/device.h"

enum { LINE_MAX_BYTES = 128 };

// The table of the simulation's module, or NULL until the daemon has loaded the module.
static const struct expertd_device_table *find_table(void) {
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    for (int up = 0; up < 2 && length > 0; up++) {
        while (--length > 0 && path[length] != '/') {
        }
    }
    if (length <= 0) {
        return NULL;
    }
    snprintf(path + length, sizeof path - (size_t)length, "/lib/expertd/libexpertd_sim.so");
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    return library ? dlsym(library, EXPERTD_DEVICE_TABLE_SYMBOL) : NULL;
}

static void execute(const char *line, char answer[LINE_MAX_BYTES]) {
    const struct expertd_device_table *table = find_table();
    char call[64];
    unsigned after;
    snprintf(answer, LINE_MAX_BYTES, "unknown command\n");
    if (!table) {
        snprintf(answer, LINE_MAX_BYTES, "no simulated devices\n");
    } else if (strcmp(line, "none\n") == 0) {
        table->plant_failure(NULL, 0);
        snprintf(answer, LINE_MAX_BYTES, "ok\n");
    } else if (sscanf(line, "calls %63s", call) == 1) {
        snprintf(answer, LINE_MAX_BYTES, "%" PRIu64 "\n", table->calls(call));
    } else if (sscanf(line, "%63s %u", call, &after) == 2) {
        table->plant_failure(call, after);
        snprintf(answer, LINE_MAX_BYTES, "ok\n");
    }
}

static void *serve(void *context) {
    int listener = *(int *)context;
    for (;;) {
        int connection = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
        char line[LINE_MAX_BYTES] = "", answer[LINE_MAX_BYTES];
        if (connection < 0) {
            continue;
        }
        if (read(connection, line, sizeof line - 1) > 0) {
            execute(line, answer);
            if (write(connection, answer, strlen(answer)) < 0) {
                perror("planter");
            }
        }
        close(connection);
    }
    return NULL;
}

__attribute__((constructor)) static void start(void) {
    static int listener;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("EXPERTD_TEST_PLANTER");
    pthread_t thread;
    if (!path || strlen(path) >= sizeof address.sun_path) {
        return;
    }
    strcpy(address.sun_path, path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 || listen(listener, 4) != 0 ||
        pthread_create(&thread, NULL, serve, &listener) != 0) {
        perror("planter");
        exit(70);
    }
    pthread_detach(thread);
}
