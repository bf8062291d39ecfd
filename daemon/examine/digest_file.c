#include "daemon/examine/digest_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/regular_file.h"

enum { FILE_BYTES_MAX = 256 << 20, LINE_BYTES_MAX = 96, SHOWN_MAX = 20 };

static const char HEAD[] = "expertd digests 1\n";
#define WHOLE_LAYER UINT32_MAX // in place of an expert's number

struct line {
    uint32_t layer, expert; // WHOLE_LAYER sorts last
    uint64_t digest;
};

struct lines {
    struct line *lines;
    size_t count;
};

static int compare_lines(const void *left, const void *right) {
    const struct line *a = left, *b = right;
    return a->layer != b->layer ? (a->layer > b->layer) - (a->layer < b->layer) : (a->expert > b->expert) - (a->expert < b->expert);
}

static FALLIBLE make_lines(size_t count, struct lines *out) {
    *out = (struct lines){.lines = calloc(count ? count : 1, sizeof *out->lines)};
    if (!out->lines) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu digests", count);
    }
    return OK;
}

// Ascending: of each layer its experts, then the layer itself.
static FALLIBLE lines_of_model(const struct model *model, struct lines *out) {
    size_t count = 0;
    for (size_t i = 0; i < model->num_layers; i++) {
        count += (size_t)model->layers[i].params.num_experts + 1;
    }
    TRY(make_lines(count, out));
    for (size_t i = 0; i < model->num_layers; i++) {
        const struct model_layer *layer = &model->layers[i];
        for (uint32_t e = 0; e < layer->params.num_experts; e++) {
            out->lines[out->count++] = (struct line){layer->params.layer, e, layer->expert_digests[e]};
        }
        out->lines[out->count++] = (struct line){layer->params.layer, WHOLE_LAYER, layer->weights_id};
    }
    return OK;
}

static int line_name(const struct line *line, char text[LINE_BYTES_MAX]) {
    return line->expert == WHOLE_LAYER
               ? snprintf(text, LINE_BYTES_MAX, "layer %" PRIu32, line->layer)
               : snprintf(text, LINE_BYTES_MAX, "layer %" PRIu32 " expert %" PRIu32, line->layer, line->expert);
}

// ---- writing

static FALLIBLE write_lines(int fd, const struct lines *lines) {
    TRY(regular_file_write(fd, HEAD, strlen(HEAD)));
    for (size_t i = 0; i < lines->count; i++) {
        char text[LINE_BYTES_MAX];
        int used = line_name(&lines->lines[i], text);
        used += snprintf(text + used, sizeof text - (size_t)used, " %016" PRIx64 "\n", lines->lines[i].digest);
        TRY(regular_file_write(fd, text, (uint64_t)used));
    }
    return OK;
}

FALLIBLE digest_file_write(const char *path, const struct model *model) {
    struct regular_file_new file;
    struct lines lines;
    TRY(lines_of_model(model, &lines));
    err_t e = regular_file_begin(path, REGULAR_FILE_OR_STREAM, &file);
    if (!err_is(e)) {
        e = regular_file_end(&file, write_lines(file.fd, &lines));
    }
    free(lines.lines);
    return err_context(e, "--digests %s", path);
}

// Streams are not opened here, because opening a FIFO waits for its reader.
FALLIBLE digest_file_check_target(const char *path) {
    struct regular_file_new file;
    struct stat status;
    if (stat(path, &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode)) {
        return OK;
    }
    TRY_IN(regular_file_begin(path, REGULAR_FILE_OR_STREAM, &file), "--digests %s", path);
    err_t removed = regular_file_end(&file, err_record(EXPERTD_ERR_IO, NULL, "only checked"));
    (void)removed;
    return OK;
}

// ---- reading

// A number of digits alone. Returns the text behind it; NULL: none.
static const char *take_number(const char *text, int base, uint64_t most, uint64_t *out) {
    const char *digits = base == 16 ? "0123456789abcdef" : "0123456789";
    const size_t length = strspn(text, digits);
    *out = length > 0 && length <= 16 ? strtoull(text, NULL, base) : UINT64_MAX;
    return length > 0 && length <= 16 && *out <= most ? text + length : NULL;
}

static const char *take_word(const char *text, const char *word) {
    return text && strncmp(text, word, strlen(word)) == 0 ? text + strlen(word) : NULL;
}

// Returns the text behind the line; NULL: it is not one.
static const char *take_line(const char *text, struct line *out) {
    uint64_t layer = 0, expert = WHOLE_LAYER;
    const char *at = take_word(text, "layer "), *of_expert;
    at = at ? take_number(at, 10, UINT32_MAX, &layer) : NULL;
    of_expert = take_word(at, " expert ");
    at = of_expert ? take_number(of_expert, 10, UINT32_MAX - 1, &expert) : at;
    at = take_word(at, " ");
    at = at ? take_number(at, 16, UINT64_MAX, &out->digest) : NULL;
    out->layer = (uint32_t)layer;
    out->expert = (uint32_t)expert;
    return take_word(at, "\n");
}

static FALLIBLE parse_lines(const char *text, struct lines *out) {
    size_t count = 0;
    for (const char *at = text; (at = strchr(at, '\n')); at++) {
        count++;
    }
    TRY(make_lines(count, out));
    const char *at = take_word(text, HEAD);
    while (at && *at) {
        at = take_line(at, &out->lines[out->count]);
        out->count += at != NULL;
    }
    if (!at) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "line %zu is not one of a file that --verify --digests writes",
             strncmp(text, HEAD, strlen(HEAD)) == 0 ? out->count + 2 : 1);
    }
    qsort(out->lines, out->count, sizeof *out->lines, compare_lines);
    return OK;
}

static FALLIBLE read_lines(const char *path, struct lines *out) {
    char *text;
    size_t length;
    *out = (struct lines){0};
    TRY_IN(regular_file_read(path, FILE_BYTES_MAX, &text, &length), "--compare-digests");
    err_t e = parse_lines(text, out);
    free(text);
    return err_context(e, "--compare-digests %s", path);
}

FALLIBLE digest_file_check(const char *path) {
    struct lines lines;
    err_t e = read_lines(path, &lines);
    free(lines.lines);
    return e;
}

// ---- comparing

// order: of the next line here (`ours`) and in the file (`theirs`), as compare_lines; the greater one is not read.
static void put_difference(int order, const struct line *ours, const struct line *theirs) {
    char name[LINE_BYTES_MAX];
    (void)line_name(order <= 0 ? ours : theirs, name);
    if (order == 0) {
        printf("differs %s: %016" PRIx64 " in the file, %016" PRIx64 " here\n", name, theirs->digest, ours->digest);
    } else {
        printf("differs %s: only %s\n", name, order < 0 ? "here" : "in the file");
    }
}

static size_t compare(const struct lines *ours, const struct lines *theirs, bool some_layers) {
    size_t differing = 0, i = 0, j = 0;
    while (i < ours->count || j < theirs->count) {
        const struct line *a = &ours->lines[i], *b = &theirs->lines[j]; // one of them may be past the end
        const int order = i == ours->count ? 1 : j == theirs->count ? -1 : compare_lines(a, b);
        const bool differs = order == 0 ? a->digest != b->digest : order < 0 || !some_layers;
        differing += differs;
        if (differs && differing <= SHOWN_MAX) {
            put_difference(order, a, b);
        }
        i += order <= 0;
        j += order >= 0;
    }
    if (differing > SHOWN_MAX) {
        printf("and %zu more\n", differing - SHOWN_MAX);
    }
    return differing;
}

FALLIBLE digest_file_compare(const char *path, const struct model *model, bool some_layers, size_t *differing) {
    struct lines ours = {0}, theirs;
    err_t e = read_lines(path, &theirs);
    e = err_is(e) ? e : lines_of_model(model, &ours);
    if (!err_is(e)) {
        *differing = compare(&ours, &theirs, some_layers);
    }
    free(ours.lines);
    free(theirs.lines);
    return e;
}
