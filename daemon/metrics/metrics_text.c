#include "daemon/metrics/metrics_text.h"

void metrics_put_family(FILE *out, const char *name, const char *type, const char *help) {
    fprintf(out, "# HELP expertd_%s %s\n# TYPE expertd_%s %s\n", name, help, name, type);
}

void metrics_put_label(FILE *out, const char *text) {
    for (const char *p = text; *p; p++) {
        if (*p == '\n') {
            fputs("\\n", out);
            continue;
        }
        if (*p == '"' || *p == '\\') {
            fputc('\\', out);
        }
        fputc(*p, out);
    }
}
