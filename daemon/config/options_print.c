// Prints the options: the help, the effective configuration, and the values for the start-up log.
#include <inttypes.h>
#include <string.h>

#include "daemon/config/options.h"
#include "daemon/config/options_table.h"
#include "daemon/config/options_value.h"

enum { HELP_COLUMNS = 100, HELP_INDENT = 32 };

static const char NOT_SUPPORTED[] =
    "Not supported in this version: devices together with --shard-hosts or --role shard. Several GPUs at "
    "once have been tested in simulation only.";

// Prints the words of `text`, starting at `column`. Breaks lines before HELP_COLUMNS and indents the next ones by `indent`. A tab
// is printed as a space at which the line does not break.
static void put_words(const char *text, int column, int indent, FILE *out) {
    bool first = true;
    for (;;) {
        text += strspn(text, " ");
        int length = (int)strcspn(text, " ");
        if (!length) {
            break;
        }
        if (!first && column + 1 + length > HELP_COLUMNS) {
            fprintf(out, "\n%*s", indent, "");
            column = indent;
            first = true;
        }
        fputs(first ? "" : " ", out);
        for (int i = 0; i < length; i++) {
            fputc(text[i] == '\t' ? ' ' : text[i], out);
        }
        column += length + !first;
        first = false;
        text += length;
    }
    fputc('\n', out);
}

static void put_option(const struct options_row *row, FILE *out) {
    char flag[OPTIONS_NAME_MAX], text[1024];
    options_flag_name(row, flag);
    int column = fprintf(out, "  %s%s%s", flag, row->value ? " " : "", row->value ? row->value : "");
    if (column + 2 > HELP_INDENT) {
        fputc('\n', out);
        column = 0;
    }
    fprintf(out, "%*s", HELP_INDENT - column, "");
    int used = snprintf(text, sizeof text, "%s", row->help);
    if (row->fallback) {
        used += snprintf(text + used, sizeof text - (size_t)used, " [default:\t%s]", row->fallback);
    }
    put_words(text, HELP_INDENT, HELP_INDENT, out);
}

void options_print_help(FILE *out) {
    fputs("Usage: expertd --model MODEL [OPTION]...\n\n", out);
    put_words("Serves the expert layers of a Mixture-of-Experts model over gRPC: receives hidden states and returns the output of "
              "the MoE block.",
              0, 0, out);
    size_t group = 0;
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (group < OPTIONS_GROUPS && OPTIONS_GROUP_TITLES[group].first == i) {
            fprintf(out, "\n%s\n", OPTIONS_GROUP_TITLES[group++].title);
        }
        put_option(&OPTIONS_ROWS[i], out);
    }
    fputc('\n', out);
    put_words("Each option may also be set by an environment variable (EXPERTD_MAX_QUEUE for --max-queue) or by a key in the file "
              "(max_queue: 256). A flag takes precedence over a variable, a variable over the file. Sizes are bytes, or integers "
              "with KiB, "
              "MiB, GiB or TiB.",
              0, 0, out);
    fputc('\n', out);
    put_words("Exit status: 0 stopped as requested, 64 wrong usage, 65 bad checkpoint, 69 an address, a device or memory is not "
              "available, 70 internal error, 78 bad configuration.",
              0, 0, out);
    fputc('\n', out);
    put_words(NOT_SUPPORTED, 0, 0, out);
}

static bool is_number(const struct options_row *row) {
    return row->type == OPTIONS_NUMBER || row->type == OPTIONS_BYTES;
}

// Puts text in double quotes, because YAML 1.1 would read a bare off as false and 1:30 as a number.
static void put_scalar(const struct options_row *row, const char *text, FILE *out) {
    if (is_number(row)) {
        fputs(text, out);
        return;
    }
    fputc('"', out);
    for (const char *p = text; *p; p++) {
        if (*p == '"' || *p == '\\') {
            fputc('\\', out);
        }
        fputc(*p, out);
    }
    fputc('"', out);
}

static void put_row(const struct options_row *row, const struct options *options, FILE *out) {
    char buffer[OPTIONS_NAME_MAX];
    const char *origin = options->origins[options_key_of(row)];
    const char *text = options_value_text(row, options, 0, buffer);
    if (!text) {
        fprintf(out, "# %s: not set\n", row->name);
        return;
    }
    if (row->reach != OPTIONS_EVERYWHERE) {
        fprintf(out, "# %s: %s # %s\n", row->name, text, origin);
        return;
    }
    fprintf(out, "%s: ", row->name);
    if (row->type != OPTIONS_LISTEN) {
        put_scalar(row, text, out);
        fprintf(out, " # %s\n", origin);
        return;
    }
    fprintf(out, "# %s\n", origin);
    for (size_t i = 0; i < options->listen_count; i++) {
        fputs("  - ", out);
        put_scalar(row, options->listen[i], out);
        fputc('\n', out);
    }
}

void options_print(const struct options *options, FILE *out) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        if (OPTIONS_ROWS[i].type != OPTIONS_SWITCH) {
            put_row(&OPTIONS_ROWS[i], options, out);
        }
    }
}

void options_each(const struct options *options,
                  void (*visit)(void *context, const char *key, const char *value, const char *origin), void *context) {
    for (size_t i = 0; i < OPTION_COUNT; i++) {
        const struct options_row *row = &OPTIONS_ROWS[i];
        char buffer[OPTIONS_NAME_MAX];
        const char *text;
        for (size_t n = 0; (text = options_value_text(row, options, n, buffer)); n++) {
            visit(context, row->name, text, options->origins[i] ? options->origins[i] : "flag");
        }
    }
}
