// Parts of the Prometheus text format, for modules that render metrics of their own.
#ifndef EXPERTD_DAEMON_METRICS_METRICS_TEXT_H
#define EXPERTD_DAEMON_METRICS_METRICS_TEXT_H

#include <stdio.h>

// The head of the family expertd_NAME. type: "gauge", "counter" or "histogram".
void metrics_put_family(FILE *out, const char *name, const char *type, const char *help);
// The value of a label between its quotes: backslash, quote and newline are escaped.
void metrics_put_label(FILE *out, const char *text);

#endif
