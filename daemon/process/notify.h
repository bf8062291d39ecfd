// Notifies the service manager (sd_notify). Does nothing without one. The only user of libsystemd. Any thread.
#ifndef EXPERTD_DAEMON_PROCESS_NOTIFY_H
#define EXPERTD_DAEMON_PROCESS_NOTIFY_H

// The model is loaded and requests are served. Call once. `status` is the line that systemctl status shows, here and below.
void notify_ready(const char *status);
// The drain has begun.
void notify_stopping(const char *status);
// Sets the status line: "loading: 3.1 of 57 GB, 40 s left". Control characters become spaces.
void notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Extends the manager's timeout for start or stop to `seconds` from now. Repeat before they have passed.
void notify_extend_timeout(unsigned seconds);

#endif
