// Log lines of key=value pairs on stderr. Under systemd (JOURNAL_STREAM) each line starts with its priority, <N>. One write(2) per
// line, so that lines of several threads do not mix. Any thread.
#ifndef EXPERTD_DAEMON_LOG_LOG_H
#define EXPERTD_DAEMON_LOG_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARNING, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

// "error", "warning", "info", "debug". False: unknown name.
bool log_level_parse(const char *text, enum log_level *out);
void log_init(enum log_level level, bool journal_prefixes);

// log_line(LOG_LEVEL_INFO, "loaded", "layers=%zu bytes=%" PRIu64, n, b): writes `time=… level=info event=loaded layers=… bytes=…`.
// The caller passes string values that may contain spaces, such as file and model names, through log_quote.
void log_line(enum log_level level, const char *event, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Writes text as a logfmt value to `out`, quoted if necessary and cut to out_bytes. Returns out.
const char *log_quote(const char *text, char *out, unsigned out_bytes);

#endif
