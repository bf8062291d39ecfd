#include "expert/files/shard_index.h"

#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "base/safetensors.h"

struct parser {
    struct shard_index *index;
    struct json_reader json;
    size_t text_used, entries_max;
    bool saw_map;
};

// Reads a string into index->text.
static FALLIBLE read_string(struct parser *p, const char **out) {
    char *string = p->index->text + p->text_used;
    size_t length;
    TRY(json_reader_string(&p->json, string, &length));
    p->text_used += length + 1;
    *out = string;
    return OK;
}

static bool is_plain_name(const char *file) {
    size_t length = strlen(file);
    if (length == 0 || length > NAME_MAX || strcmp(file, ".") == 0 || strcmp(file, "..") == 0) {
        return false;
    }
    for (const char *c = file; *c; c++) {
        if (*c == '/' || (unsigned char)*c < 0x20 || *c == 0x7f) {
            return false;
        }
    }
    return true;
}

static FALLIBLE add_entry(struct parser *p, const struct shard_index_entry *entry) {
    struct shard_index *index = p->index;
    if (index->count == p->entries_max) {
        size_t more = p->entries_max ? 2 * p->entries_max : 64;
        struct shard_index_entry *grown = reallocarray(index->entries, more, sizeof *grown);
        if (!grown) {
            FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu entries", more);
        }
        index->entries = grown;
        p->entries_max = more;
    }
    index->entries[index->count++] = *entry;
    return OK;
}

static FALLIBLE expect_object(struct parser *p, const char *name, const char *expected) {
    const struct json_reader at = p->json;
    err_t e = json_reader_expect(&p->json, '{');
    return err_is(e) ? json_reader_refuse(&at, e, name, expected) : OK;
}

static FALLIBLE parse_map(struct parser *p) {
    if (p->saw_map) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "weight_map occurs twice");
    }
    p->saw_map = true;
    TRY(expect_object(p, "weight_map", "an object with the file name of each tensor"));
    if (json_reader_accept(&p->json, '}')) {
        return OK;
    }
    do {
        struct shard_index_entry entry;
        TRY_IN(read_string(p, &entry.tensor), "weight_map");
        TRY_IN(safetensors_check_name(entry.tensor, strlen(entry.tensor)), "weight_map");
        TRY(json_reader_expect(&p->json, ':'));
        const struct json_reader at = p->json;
        err_t e = read_string(p, &entry.file);
        if (err_is(e)) {
            return err_context(json_reader_refuse(&at, e, entry.tensor, "the name of a file"), "weight_map");
        }
        if (!is_plain_name(entry.file)) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "weight_map puts %.256s into \"%.256s\": expected the plain name of a file in the folder",
                 entry.tensor, entry.file);
        }
        TRY(add_entry(p, &entry));
    } while (json_reader_accept(&p->json, ','));
    return json_reader_expect(&p->json, '}');
}

static FALLIBLE parse_top(struct parser *p) {
    TRY(expect_object(p, "it", "an object with weight_map"));
    if (!json_reader_accept(&p->json, '}')) {
        do {
            const char *key;
            size_t before = p->text_used;
            TRY(read_string(p, &key));
            bool is_map = strcmp(key, "weight_map") == 0;
            p->text_used = before;
            TRY(json_reader_expect(&p->json, ':'));
            TRY(is_map ? parse_map(p) : json_reader_skip(&p->json));
        } while (json_reader_accept(&p->json, ','));
        TRY(json_reader_expect(&p->json, '}'));
    }
    TRY(json_reader_end(&p->json));
    if (!p->saw_map || p->index->count == 0) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "weight_map is %s: expected an object with the file name of each tensor",
             p->saw_map ? "empty" : "missing");
    }
    return OK;
}

static int compare_tensor(const void *left, const void *right) {
    return strcmp(((const struct shard_index_entry *)left)->tensor, ((const struct shard_index_entry *)right)->tensor);
}

static int compare_text(const void *left, const void *right) {
    return strcmp(*(const char *const *)left, *(const char *const *)right);
}

static FALLIBLE sort_tensors(struct shard_index *index) {
    qsort(index->entries, index->count, sizeof *index->entries, compare_tensor);
    for (size_t i = 1; i < index->count; i++) {
        if (strcmp(index->entries[i - 1].tensor, index->entries[i].tensor) == 0) {
            FAIL(EXPERTD_ERR_CHECKPOINT, "weight_map has %.256s twice", index->entries[i].tensor);
        }
    }
    return OK;
}

static FALLIBLE list_files(struct shard_index *index) {
    index->files = calloc(index->count, sizeof *index->files);
    if (!index->files) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu names", index->count);
    }
    for (size_t i = 0; i < index->count; i++) {
        index->files[i] = index->entries[i].file;
    }
    qsort(index->files, index->count, sizeof *index->files, compare_text);
    for (size_t i = 0; i < index->count; i++) {
        if (i == 0 || strcmp(index->files[index->file_count - 1], index->files[i]) != 0) {
            index->files[index->file_count++] = index->files[i];
        }
    }
    if (index->file_count > SHARD_INDEX_SHARDS_MAX) {
        FAIL(EXPERTD_ERR_CHECKPOINT, "weight_map names %zu files: at most %d are supported", index->file_count,
             SHARD_INDEX_SHARDS_MAX);
    }
    return OK;
}

static FALLIBLE parse(const char *text, size_t length, struct shard_index *index) {
    index->text = malloc(length + 1);
    if (!index->text) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory for %zu bytes", length);
    }
    struct parser p = {.index = index};
    json_reader_init(&p.json, text, length);
    TRY(parse_top(&p));
    TRY(sort_tensors(index));
    return list_files(index);
}

FALLIBLE shard_index_parse(const char *text, size_t length, struct shard_index *out) {
    *out = (struct shard_index){0};
    err_t e = parse(text, length, out);
    if (err_is(e)) {
        shard_index_deinit(out);
    }
    return e;
}

void shard_index_deinit(struct shard_index *index) {
    free(index->entries);
    free(index->files);
    free(index->text);
    *index = (struct shard_index){0};
}

size_t shard_index_file(const struct shard_index *index, const char *file) {
    const char **found = bsearch(&file, index->files, index->file_count, sizeof file, compare_text);
    INVARIANT(found != NULL);
    return (size_t)(found - index->files);
}
