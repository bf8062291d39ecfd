// Reads the configuration file: one mapping from option names to scalars, or to a list for an option with several values. It uses
// libyaml's events rather than libcyaml's schemas, because error messages need the line of each value, and because a key that is
// given twice must be refused.
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <yaml.h>

#include "daemon/config/options_sources.h"

static size_t line_of(const yaml_event_t *event) {
    return event->start_mark.line + 1;
}

static FALLIBLE next_event(yaml_parser_t *parser, yaml_event_t *out) {
    if (!yaml_parser_parse(parser, out)) {
        size_t line = parser->problem_mark.line + 1;
        if (parser->error == YAML_MEMORY_ERROR) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory to read it");
        }
        FAIL(EXPERTD_ERR_CONFIG, "not YAML (line %zu): %s", line, parser->problem ? parser->problem : "it cannot be read");
    }
    return OK;
}

// Refuses anchors, aliases and tags: with them, the effective value could differ from the text on the line.
static FALLIBLE check_plain(const yaml_event_t *event) {
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (anchor || tag || event->type == YAML_ALIAS_EVENT) {
        FAIL(EXPERTD_ERR_CONFIG, "line %zu has an anchor, alias or tag: write the value itself", line_of(event));
    }
    return OK;
}

static FALLIBLE refuse_key(const yaml_event_t *event, const struct options_row *row) {
    const char *key = (const char *)event->data.scalar.value;
    size_t length = event->data.scalar.length;
    if (row) {
        char flag[OPTIONS_NAME_MAX];
        FAIL(EXPERTD_ERR_CONFIG, "key %s (line %zu) is not allowed in a file: use the flag %s", row->name, line_of(event),
             options_flag_name(row, flag));
    }
    const struct options_row *near = options_nearest(key, length, OPTIONS_EVERYWHERE);
    if (near) {
        FAIL(EXPERTD_ERR_CONFIG, "unknown key %s (line %zu): did you mean %s?", key, line_of(event), near->name);
    }
    FAIL(EXPERTD_ERR_CONFIG, "unknown key %.*s (line %zu): expertd --help lists them", OPTIONS_NAME_MAX, key, line_of(event));
}

static FALLIBLE read_key(const yaml_event_t *event, struct options_settings *out, const struct options_row **row) {
    TRY(check_plain(event));
    if (event->type != YAML_SCALAR_EVENT) {
        FAIL(EXPERTD_ERR_CONFIG, "line %zu has no key: write key: value", line_of(event));
    }
    *row = options_find((const char *)event->data.scalar.value, event->data.scalar.length);
    if (!*row || (*row)->reach != OPTIONS_EVERYWHERE) {
        return refuse_key(event, *row);
    }
    struct options_setting *setting = &out->rows[options_key_of(*row)];
    if (setting->count) {
        FAIL(EXPERTD_ERR_CONFIG, "key %s (line %zu) is given twice, first in line %zu", (*row)->name, line_of(event),
             setting->line);
    }
    setting->line = line_of(event);
    return OK;
}

static bool is_null(const yaml_event_t *event) {
    const char *text = (const char *)event->data.scalar.value;
    bool bare = event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE;
    return event->data.scalar.length == 0 || (bare && (strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0));
}

static FALLIBLE add_scalar(const yaml_event_t *event, const struct options_row *row, struct options_setting *setting) {
    const char *text = (const char *)event->data.scalar.value;
    if (is_null(event)) {
        FAIL(EXPERTD_ERR_CONFIG, "key %s (line %zu) has no value: give one, or remove the key", row->name, setting->line);
    }
    if (strlen(text) != event->data.scalar.length) {
        FAIL(EXPERTD_ERR_CONFIG, "key %s (line %zu): the value contains a NUL byte", row->name, setting->line);
    }
    TRY_IN(options_setting_add(setting, text, event->data.scalar.length, EXPERTD_ERR_CONFIG), "key %s (line %zu)", row->name,
           setting->line);
    return OK;
}

// State of the single pass over the events.
struct reader {
    yaml_parser_t parser;
    struct options_settings *out;
    const struct options_row *row; // the next event is a value of this option; NULL: the next event is a key
    bool in_root, in_list, ended, done;
};

static FALLIBLE on_value(struct reader *reader, const yaml_event_t *event) {
    struct options_setting *setting = &reader->out->rows[options_key_of(reader->row)];
    TRY(check_plain(event));
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        TRY(add_scalar(event, reader->row, setting));
        reader->row = reader->in_list ? reader->row : NULL;
        return OK;
    case YAML_SEQUENCE_START_EVENT:
        if (reader->row->type != OPTIONS_LISTEN || reader->in_list) {
            FAIL(EXPERTD_ERR_CONFIG, "key %s (line %zu) takes one value, not a list", reader->row->name, setting->line);
        }
        reader->in_list = true;
        return OK;
    case YAML_SEQUENCE_END_EVENT:
        if (!setting->count) {
            FAIL(EXPERTD_ERR_CONFIG, "key %s (line %zu) has an empty list: give a value, or remove the key", reader->row->name,
                 setting->line);
        }
        reader->in_list = false;
        reader->row = NULL;
        return OK;
    default:
        FAIL(EXPERTD_ERR_CONFIG, "key %s (line %zu) takes a value, not a mapping", reader->row->name, setting->line);
    }
}

// Handles an event outside the root mapping.
static FALLIBLE on_document(struct reader *reader, const yaml_event_t *event) {
    TRY(check_plain(event));
    bool is_empty = event->type == YAML_SCALAR_EVENT && is_null(event); // a document with comments only
    if (event->type == YAML_DOCUMENT_START_EVENT && reader->ended) {
        FAIL(EXPERTD_ERR_CONFIG, "a second document begins in line %zu: a configuration file has one document", line_of(event));
    }
    if (event->type == YAML_SCALAR_EVENT || event->type == YAML_SEQUENCE_START_EVENT) {
        if (!is_empty) {
            FAIL(EXPERTD_ERR_CONFIG, "line %zu is not a key with a value: write key: value", line_of(event));
        }
    }
    reader->in_root = event->type == YAML_MAPPING_START_EVENT;
    reader->ended = reader->ended || event->type == YAML_DOCUMENT_END_EVENT;
    reader->done = event->type == YAML_STREAM_END_EVENT;
    return OK;
}

static FALLIBLE on_event(struct reader *reader, const yaml_event_t *event) {
    if (!reader->in_root) {
        return on_document(reader, event);
    }
    if (reader->row) {
        return on_value(reader, event);
    }
    if (event->type == YAML_MAPPING_END_EVENT) {
        reader->in_root = false;
        return OK;
    }
    return read_key(event, reader->out, &reader->row);
}

FALLIBLE options_read_yaml(const char *path, const char *text, size_t length, struct options_settings *out) {
    struct reader reader = {.out = out};
    if (!yaml_parser_initialize(&reader.parser)) {
        FAIL(EXPERTD_ERR_NOMEM, "%s: no memory to read it", path);
    }
    yaml_parser_set_input_string(&reader.parser, (const unsigned char *)text, length);
    err_t e = OK;
    // The loop terminates: every event consumes at least one byte or closes an earlier event.
    while (!err_is(e) && !reader.done) {
        yaml_event_t event;
        e = next_event(&reader.parser, &event);
        if (!err_is(e)) {
            e = on_event(&reader, &event);
            yaml_event_delete(&event);
        }
    }
    yaml_parser_delete(&reader.parser);
    return err_context(e, "%s", path);
}

static FALLIBLE read_all(int fd, const char *path, char *text, size_t *length) {
    *length = 0;
    for (;;) {
        ssize_t n = read(fd, text + *length, OPTIONS_FILE_MAX + 1 - *length);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            FAIL(EXPERTD_ERR_CONFIG, "cannot read the configuration %s: %s", path, strerror(errno));
        }
        *length += (size_t)n;
        if (*length > OPTIONS_FILE_MAX) {
            FAIL(EXPERTD_ERR_CONFIG, "the configuration %s is larger than %d bytes: is it the right file?", path, OPTIONS_FILE_MAX);
        }
        if (n == 0) {
            return OK;
        }
    }
}

FALLIBLE options_read_file(const char *path, struct options_settings *out) {
    err_t e = OK;
    size_t length = 0;
    char *text = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        FAIL(EXPERTD_ERR_CONFIG, "cannot open the configuration %s: %s", path, strerror(errno));
    }
    text = malloc(OPTIONS_FILE_MAX + 1);
    if (!text) {
        e = err_record(EXPERTD_ERR_NOMEM, NULL, "%s: no memory to read it", path);
        goto out;
    }
    TRY_OUT(e, read_all(fd, path, text, &length));
    TRY_OUT(e, options_read_yaml(path, text, length, out));
out:
    free(text);
    close(fd);
    return e;
}
