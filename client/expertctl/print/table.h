// A text table whose columns are as wide as their widest cell. Used by one thread.
#ifndef EXPERTD_CLIENT_EXPERTCTL_PRINT_TABLE_H
#define EXPERTD_CLIENT_EXPERTCTL_PRINT_TABLE_H

#include <stddef.h>
#include <stdio.h>

#include "base/err.h"

enum { TABLE_COLUMNS_MAX = 12 };

struct table {
    size_t columns, rows, rows_reserved;
    const char *names[TABLE_COLUMNS_MAX]; // borrowed, constants
    unsigned right;                       // bit c: column c is aligned to the right
    char **cells;                         // [rows][columns], owned
};

// `names` ends with NULL.
void table_init(struct table *table, const char *const *names, unsigned right);
void table_deinit(struct table *table); // legal on a zeroed struct

// Adds an empty row. EXPERTD_ERR_NOMEM.
FALLIBLE table_row(struct table *table);
// Sets a cell of the last row. Control bytes in the text, which may come from a hostile name, become '?'.
FALLIBLE table_cell(struct table *table, size_t column, const char *format, ...) __attribute__((format(printf, 3, 4)));

// Replaces bytes that a terminal might interpret by '?': control bytes, and C1 controls in UTF-8. Returns text.
char *table_text(char *text);

void table_print(const struct table *table, FILE *out);

#endif
