#include "client/expertctl/print/table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { GAP = 2, CELL_MAX = 512, ROWS_FIRST = 16 };

void table_init(struct table *table, const char *const *names, unsigned right) {
    *table = (struct table){.right = right};
    for (; names[table->columns]; table->columns++) {
        INVARIANT(table->columns < TABLE_COLUMNS_MAX);
        table->names[table->columns] = names[table->columns];
    }
}

void table_deinit(struct table *table) {
    for (size_t i = 0; i < table->rows * table->columns; i++) {
        free(table->cells[i]);
    }
    free(table->cells);
    *table = (struct table){0};
}

FALLIBLE table_row(struct table *table) {
    if (table->rows == table->rows_reserved) {
        size_t rows = table->rows ? 2 * table->rows : ROWS_FIRST;
        char **cells = reallocarray(table->cells, rows * table->columns, sizeof *cells);
        if (!cells) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for a table of %zu rows", rows);
        }
        table->cells = cells;
        table->rows_reserved = rows;
    }
    memset(table->cells + table->rows * table->columns, 0, table->columns * sizeof *table->cells);
    table->rows++;
    return OK;
}

char *table_text(char *text) {
    for (unsigned char *at = (unsigned char *)text; *at; at++) {
        bool c1 = at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0;
        if (at[0] < ' ' || at[0] == 0x7f || c1) {
            at[0] = '?';
            at[c1] = '?';
        }
    }
    return text;
}

FALLIBLE table_cell(struct table *table, size_t column, const char *format, ...) {
    INVARIANT(table->rows > 0 && column < table->columns);
    char text[CELL_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    table_text(text);
    char **cell = &table->cells[(table->rows - 1) * table->columns + column];
    free(*cell);
    *cell = strdup(text);
    if (!*cell) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for a table");
    }
    return OK;
}

static const char *cell_text(const struct table *table, size_t row, size_t column) {
    const char *text = table->cells[row * table->columns + column];
    return text ? text : "";
}

static void print_line(const struct table *table, const char *const *cells, const int *widths, FILE *out) {
    for (size_t c = 0; c < table->columns; c++) {
        bool right = table->right >> c & 1, last = c + 1 == table->columns;
        int width = last && !right ? 0 : right ? widths[c] : -widths[c];
        fprintf(out, "%*s%*s", width, cells[c], last ? 0 : GAP, "");
    }
    fputc('\n', out);
}

void table_print(const struct table *table, FILE *out) {
    int widths[TABLE_COLUMNS_MAX];
    for (size_t c = 0; c < table->columns; c++) {
        widths[c] = (int)strlen(table->names[c]);
        for (size_t r = 0; r < table->rows; r++) {
            int width = (int)strlen(cell_text(table, r, c));
            widths[c] = width > widths[c] ? width : widths[c];
        }
    }
    print_line(table, table->names, widths, out);
    for (size_t r = 0; r < table->rows; r++) {
        const char *cells[TABLE_COLUMNS_MAX];
        for (size_t c = 0; c < table->columns; c++) {
            cells[c] = cell_text(table, r, c);
        }
        print_line(table, cells, widths, out);
    }
}
