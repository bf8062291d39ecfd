// What the service manager is told (sd_notify): nothing where there is none. The only file that knows libsystemd. Any thread.
#ifndef EXPERTD_DAEMON_PROCESS_NOTIFY_H
#define EXPERTD_DAEMON_PROCESS_NOTIFY_H

// The load is done and requests are answered; `status` is the line that systemctl status shows. Once.
void notify_ready(const char *status);
// The drain has begun.
void notify_stopping(const char *status);
// A new status line: "loading: 3.1 of 57 GB, 40 s left". Control characters become spaces.
void notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));
// Start or stop goes on for up to `seconds` from now before the manager may call it hung. To be repeated sooner than that.
void notify_extend_timeout(unsigned seconds);

#endif
