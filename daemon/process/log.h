// key=value lines on stderr; under systemd (JOURNAL_STREAM) with <N> priority prefixes. One write(2) a line, so lines never mix.
// Any thread.
#ifndef EXPERTD_DAEMON_PROCESS_LOG_H
#define EXPERTD_DAEMON_PROCESS_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

// "info" and the like; false where unknown.
bool log_level_parse(const char *text, enum log_level *out);
void log_init(enum log_level level, bool journal_prefixes);

// log_line(LOG_LEVEL_INFO, "loaded", "layers=%zu bytes=%" PRIu64, n, b): writes `time=… level=info event=loaded layers=… bytes=…`.
// String values that may hold spaces, as names of files and models do, are passed through log_quote by the caller.
void log_line(enum log_level level, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Quotes text as a logfmt value into `out` (cut to its size); returns out.
const char *log_quote(const char *text, char *out, unsigned out_bytes);

#endif
