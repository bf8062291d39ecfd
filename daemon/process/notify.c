#include "daemon/process/notify.h"

#include <stdarg.h>
#include <stdio.h>
#include <systemd/sd-daemon.h>

enum { STATUS_MAX = 256, US_PER_S = 1000000 };

// A newline would start another field of the protocol.
static void replace_control_characters(char *text) {
    for (; *text; text++) {
        *text = (unsigned char)*text < ' ' ? ' ' : *text;
    }
}

// Errors are ignored: the daemon serves also if the manager cannot be reached.
static void send_state(const char *state, const char *status) {
    char line[STATUS_MAX];
    snprintf(line, sizeof line, "%s", status);
    replace_control_characters(line);
    sd_notifyf(0, "%sSTATUS=%s", state, line);
}

void notify_ready(const char *status) {
    send_state("READY=1\n", status);
}

void notify_stopping(const char *status) {
    send_state("STOPPING=1\n", status);
}

void notify_status(const char *format, ...) {
    char line[STATUS_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    send_state("", line);
}

void notify_extend_timeout(unsigned seconds) {
    sd_notifyf(0, "EXTEND_TIMEOUT_USEC=%llu", (unsigned long long)seconds * US_PER_S);
}
