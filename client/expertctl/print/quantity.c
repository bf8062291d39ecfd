#include "client/expertctl/print/quantity.h"

#include <stddef.h>
#include <stdio.h>

const char *bytes_text(uint64_t bytes, char text[QUANTITY_TEXT_MAX]) {
    static const char *const UNITS[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    double value = (double)bytes;
    size_t unit = 0;
    while (value >= 1024 && unit + 1 < sizeof UNITS / sizeof *UNITS) {
        value /= 1024;
        unit++;
    }
    snprintf(text, QUANTITY_TEXT_MAX, unit ? "%.1f %s" : "%.0f %s", value, UNITS[unit]);
    return text;
}

const char *duration_text(double us, char text[QUANTITY_TEXT_MAX]) {
    if (us < 1000) {
        snprintf(text, QUANTITY_TEXT_MAX, "%.0f us", us);
    } else if (us < 1e6) {
        snprintf(text, QUANTITY_TEXT_MAX, "%.*f ms", us < 1e4 ? 2 : 1, us / 1e3);
    } else {
        snprintf(text, QUANTITY_TEXT_MAX, "%.2f s", us / 1e6);
    }
    return text;
}
