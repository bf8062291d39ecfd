// Formats numbers with units for people. Pure.
#ifndef EXPERTD_CLIENT_EXPERTCTL_PRINT_QUANTITY_H
#define EXPERTD_CLIENT_EXPERTCTL_PRINT_QUANTITY_H

#include <stdint.h>

enum { QUANTITY_TEXT_MAX = 32 };

const char *bytes_text(uint64_t bytes, char text[QUANTITY_TEXT_MAX]); // "12.5 MiB"
const char *duration_text(double us, char text[QUANTITY_TEXT_MAX]);   // "1.25 ms"

#endif
