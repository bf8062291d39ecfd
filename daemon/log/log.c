#include "daemon/log/log.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    LINE_MAX_BYTES = 4096, // PIPE_BUF on Linux: a pipe that is ready takes such a line without waiting
    STALL_MS = 1000,
};

struct level_row {
    const char *name;
    int priority; // syslog priority: the N of sd-daemon(3)'s <N>
};

static const struct level_row LEVELS[] = {
    [LOG_LEVEL_ERROR] = {"error", 3},
    [LOG_LEVEL_WARNING] = {"warning", 4},
    [LOG_LEVEL_INFO] = {"info", 6},
    [LOG_LEVEL_DEBUG] = {"debug", 7},
};
enum { LEVEL_COUNT = sizeof LEVELS / sizeof LEVELS[0] };

// Set once at the start, read by every thread. Globals, so that log_line needs no context argument.
static _Atomic int threshold = LOG_LEVEL_INFO;
static _Atomic bool prefixes = false;
// The reader of the log does not read. Lines are then lost, because a thread that waits for it would not serve.
static _Atomic bool stalled = false;
static _Atomic unsigned long long lost_lines = 0;

bool log_level_parse(const char *text, enum log_level *out) {
    for (int i = 0; i < LEVEL_COUNT; i++) {
        if (strcmp(text, LEVELS[i].name) == 0) {
            *out = (enum log_level)i;
            return true;
        }
    }
    return false;
}

void log_init(enum log_level level, bool journal_prefixes) {
    atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
    atomic_store_explicit(&prefixes, journal_prefixes, memory_order_relaxed);
}

static size_t put_head(char *line, size_t size, enum log_level level, const char *event) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct tm utc;
    gmtime_r(&now.tv_sec, &utc);
    char prefix[8] = "", date[32];
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
    if (atomic_load_explicit(&prefixes, memory_order_relaxed)) {
        snprintf(prefix, sizeof prefix, "<%d>", LEVELS[level].priority);
    }
    int used =
        snprintf(line, size, "%stime=%s.%03ldZ level=%s event=%s", prefix, date, now.tv_nsec / 1000000, LEVELS[level].name, event);
    return used < 0 ? 0 : (size_t)used < size ? (size_t)used : size - 1;
}

// U+0080 to U+009F in UTF-8: a terminal treats U+009B like ESC [.
static bool is_c1(const unsigned char *p) {
    return p[0] == 0xc2 && p[1] >= 0x80 && p[1] <= 0x9f;
}

// Control characters in unquoted values become spaces: they must not forge a second line or control a terminal.
static void flatten(char *line, size_t length) {
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)line[i];
        if (c < 0x20 || c == 0x7f) {
            line[i] = ' ';
        } else if (i + 1 < length && is_c1((const unsigned char *)line + i)) {
            line[i] = line[i + 1] = ' ';
        }
    }
}

// Waits for a reader that is slow, once; not for one that has stopped.
static bool is_writable(void) {
    struct pollfd log = {.fd = STDERR_FILENO, .events = POLLOUT};
    int ready;
    do {
        ready = poll(&log, 1, atomic_load_explicit(&stalled, memory_order_relaxed) ? 0 : STALL_MS);
    } while (ready < 0 && errno == EINTR);
    atomic_store_explicit(&stalled, ready == 0, memory_order_relaxed);
    return ready != 0;
}

static void put(const char *line, size_t length) {
    // If stderr is full or closed the line is lost, and the loss cannot be reported.
    while (write(STDERR_FILENO, line, length) < 0 && errno == EINTR) {
    }
}

// The line before may have filled the pipe.
static void put_lost_count(void) {
    if (atomic_load_explicit(&lost_lines, memory_order_relaxed) == 0 || !is_writable()) {
        return;
    }
    unsigned long long count = atomic_exchange_explicit(&lost_lines, 0, memory_order_relaxed);
    if (count > 0) {
        char line[160];
        size_t used = put_head(line, sizeof line, LOG_LEVEL_WARNING, "log_lines_lost");
        int more = snprintf(line + used, sizeof line - used, " count=%llu reason=\"the reader of the log did not read\"\n", count);
        put(line, used + (size_t)more);
    }
}

void log_line(enum log_level level, const char *event, const char *format, ...) {
    if ((int)level > atomic_load_explicit(&threshold, memory_order_relaxed)) {
        return;
    }
    int saved = errno;
    char line[LINE_MAX_BYTES];
    size_t space = sizeof line - 1; // one byte for the newline
    size_t used = put_head(line, space, level, event);
    if (format && *format && used + 2 < space) {
        line[used++] = ' ';
        va_list args;
        va_start(args, format);
        int more = vsnprintf(line + used, space - used, format, args);
        va_end(args);
        used += more < 0 ? 0 : (size_t)more < space - used ? (size_t)more : space - used - 1;
    }
    flatten(line, used);
    line[used++] = '\n';
    if (is_writable()) {
        put(line, used);
        put_lost_count();
    } else {
        atomic_fetch_add_explicit(&lost_lines, 1, memory_order_relaxed);
    }
    errno = saved;
}

static bool is_bare(const char *text) {
    if (!*text) {
        return false;
    }
    for (const unsigned char *p = (const unsigned char *)text; *p; p++) {
        if (*p <= ' ' || *p == '"' || *p == '=' || *p == '\\' || *p == 0x7f || is_c1(p)) {
            return false;
        }
    }
    return true;
}

// Writes the escape of the byte at p, or the complete UTF-8 sequence that starts there. Returns the number of bytes read.
static unsigned escape_next(const unsigned char *p, char out[8]) {
    static const char HEX[] = "0123456789abcdef";
    switch (*p) {
    case '"':
    case '\\':
        snprintf(out, 8, "\\%c", *p);
        return 1;
    case '\n':
        snprintf(out, 8, "\\n");
        return 1;
    case '\t':
        snprintf(out, 8, "\\t");
        return 1;
    default:
        break;
    }
    if (*p < 0x20 || *p == 0x7f) {
        snprintf(out, 8, "\\u00%c%c", HEX[*p >> 4], HEX[*p & 15]);
        return 1;
    }
    if (is_c1(p)) {
        snprintf(out, 8, "\\u00%c%c", HEX[p[1] >> 4], HEX[p[1] & 15]);
        return 2;
    }
    unsigned length = *p >= 0xf0 ? 4 : *p >= 0xe0 ? 3 : *p >= 0xc0 ? 2 : 1;
    unsigned used = 0;
    do {
        out[used] = (char)p[used];
        used++;
    } while (used < length && (p[used] & 0xc0) == 0x80);
    out[used] = '\0';
    return used;
}

const char *log_quote(const char *text, char *out, unsigned out_bytes) {
    enum { OUT_MIN = 3 }; // two quotes and the terminator
    if (out_bytes < OUT_MIN) {
        if (out_bytes) {
            out[0] = '\0';
        }
        return out;
    }
    if (is_bare(text) && strlen(text) < out_bytes) {
        memcpy(out, text, strlen(text) + 1);
        return out;
    }
    unsigned used = 0;
    out[used++] = '"';
    for (const unsigned char *p = (const unsigned char *)text; *p;) {
        char next[8];
        unsigned read = escape_next(p, next);
        size_t length = strlen(next);
        if (used + length + 2 > out_bytes) {
            break;
        }
        memcpy(out + used, next, length);
        used += (unsigned)length;
        p += read;
    }
    out[used++] = '"';
    out[used] = '\0';
    return out;
}
