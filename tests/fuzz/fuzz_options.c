// Fuzzes the options: argv, environment and a YAML file at once. Printing accepted options and loading the output must give the
// same output; refused options must have an error message.
//
// Input: lines. "+WORD" is an argument, "=NAME=value" a variable; the lines after a line "%" are the file.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "daemon/config/options.h"
#include "daemon/config/options_table.h"

enum { WORDS_MAX = 32, LINE_MAX_BYTES = 8192, PATH_BYTES = 64 };

// Two files in memory, reused: the input's file and the printed configuration.
static int given_file, printed_file;

struct words {
    char *all[WORDS_MAX + 1];
    size_t count;
};

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds, const char *what) {
    if (!holds) {
        fprintf(stderr, "fuzz_options: %s: %s\n", what, expertd_err_message());
        abort();
    }
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    given_file = memfd_create("given", MFD_CLOEXEC);
    printed_file = memfd_create("printed", MFD_CLOEXEC);
    require(given_file >= 0 && printed_file >= 0, "no file in memory");
    return 0;
}

static void add_word(struct words *words, const uint8_t *text, size_t length) {
    if (words->count < WORDS_MAX && length < LINE_MAX_BYTES) {
        words->all[words->count++] = strndup((const char *)text, length);
    }
}

static void free_words(struct words *words) {
    for (size_t i = 0; i < words->count; i++) {
        free(words->all[i]);
    }
}

static void fill_file(int file, const void *text, size_t length) {
    require(ftruncate(file, 0) == 0 && pwrite(file, text, length, 0) == (ssize_t)length, "a file in memory cannot be written");
}

static const char *path_of(int file, char out[PATH_BYTES]) {
    snprintf(out, PATH_BYTES, "/proc/self/fd/%d", file);
    return out;
}

// Splits the input. Returns the start of the file's text.
static size_t split(const uint8_t *data, size_t size, struct words *arguments, struct words *variables) {
    size_t at = 0;
    while (at < size) {
        const uint8_t *end = memchr(data + at, '\n', size - at);
        size_t length = end ? (size_t)(end - data) - at : size - at;
        if (length && data[at] == '%') {
            return at + length + (end != NULL);
        }
        if (length && data[at] == '+') {
            add_word(arguments, data + at + 1, length - 1);
        } else if (length && data[at] == '=') {
            add_word(variables, data + at + 1, length - 1);
        }
        at += length + (end != NULL);
    }
    return size;
}

static char *print(const struct options *options, size_t *length) {
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    options_print(options, out);
    fclose(out);
    return text;
}

static void put_origin_free(void *context, const char *key, const char *value, const char *origin) {
    (void)origin;
    if (strcmp(key, "config") != 0 && strcmp(key, "check_config") != 0 && strcmp(key, "print_config") != 0) {
        fprintf(context, "%s=%s\n", key, value);
    }
}

static char *values(const struct options *options, size_t *length) {
    char *text = NULL;
    FILE *out = open_memstream(&text, length);
    options_each(options, put_origin_free, out);
    fclose(out);
    return text;
}

static void check_loads_again(const struct options *options) {
    char path[PATH_BYTES];
    size_t printed_length, before_length, after_length;
    char *printed = print(options, &printed_length);
    char *before = values(options, &before_length);
    fill_file(printed_file, printed, printed_length);
    char *argv[] = {"expertd", "--print-config", "--config", (char *)path_of(printed_file, path)};
    struct options again;
    require(!err_is(options_parse(4, argv, NULL, &again)), "a print-out does not load");
    char *after = values(&again, &after_length);
    require(before_length == after_length && memcmp(before, after, after_length) == 0, "a print-out loads to something else");
    options_deinit(&again);
    free(printed);
    free(before);
    free(after);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct words arguments = {0}, variables = {0};
    char path[PATH_BYTES];
    add_word(&arguments, (const uint8_t *)"expertd", 7);
    size_t file_at = split(data, size, &arguments, &variables);
    if (file_at < size) {
        fill_file(given_file, data + file_at, size - file_at);
        path_of(given_file, path);
        add_word(&arguments, (const uint8_t *)"--config", 8);
        add_word(&arguments, (const uint8_t *)path, strlen(path));
    }
    struct options options;
    err_t e = options_parse((int)arguments.count, arguments.all, variables.all, &options);
    if (err_is(e)) {
        require(expertd_err_message()[0] != '\0', "an error without a message");
        require(e.code == EXPERTD_ERR_USAGE || e.code == EXPERTD_ERR_CONFIG || e.code == EXPERTD_ERR_UNAVAILABLE,
                "an error of another kind");
    } else if (!options.help && !options.version) {
        require(options.threads > 0 && options.listen_count > 0, "an option without a value");
        check_loads_again(&options);
    }
    options_deinit(&options);
    free_words(&arguments);
    free_words(&variables);
    return 0;
}
