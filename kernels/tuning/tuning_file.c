// Reads and writes the file of tuned schedules. tuning.h describes its format.
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/regular_file.h"
#include "expertd/kernels/tuning.h"
#include "kernels/cpu/backend/backend.h"

enum { VERSION = 2, LINE_BYTES = 320, FILE_BYTES_MAX = EXPERTD_TUNING_ENTRIES_MAX * LINE_BYTES + 1024 };

static const char HEAD[] = "expertd-tuning";

// FNV-1a, 64 bits. Detects damage, not forgery.
static uint64_t checksum(const char *text, size_t bytes) {
    uint64_t sum = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++) {
        sum = (sum ^ (unsigned char)text[i]) * 0x100000001b3u;
    }
    return sum;
}

static size_t print_end(char *line, size_t size, size_t count, const char *text, size_t bytes) {
    return (size_t)snprintf(line, size, "end %zu %016" PRIx64 "\n", count, checksum(text, bytes));
}

// The value of a line "KEY: VALUE", which this function terminates in place; NULL where the line has another key.
static const char *value_of(char *line, const char *key) {
    char *value = strncmp(line, key, strlen(key)) == 0 ? strchr(line, ':') : NULL;
    if (!value) {
        return NULL;
    }
    value += 1 + strspn(value + 1, " \t");
    value[strcspn(value, "\n")] = '\0';
    return value;
}

void expertd_tuning_cpu_name(FILE *cpuinfo, char name[EXPERTD_TUNING_NAME_MAX]) {
    char line[LINE_BYTES], maker[16] = "", family[16] = "", model[16] = "";
    const struct {
        const char *key;
        char *value;
    } NUMBERS[] = {{"CPU implementer", maker}, {"cpu family", family}, {"model\t", model}}; // lines before "model name"
    snprintf(name, EXPERTD_TUNING_NAME_MAX, "unknown");
    while (fgets(line, sizeof line, cpuinfo)) {
        const char *value;
        for (size_t i = 0; i < sizeof NUMBERS / sizeof *NUMBERS; i++) {
            if ((value = value_of(line, NUMBERS[i].key))) {
                snprintf(NUMBERS[i].value, sizeof maker, "%s", value);
            }
        }
        if ((value = value_of(line, "model name"))) { // on virtual machines it may name the vendor only
            size_t used = (size_t)snprintf(name, EXPERTD_TUNING_NAME_MAX, "%.60s", value);
            if (*family && *model) {
                snprintf(name + used, EXPERTD_TUNING_NAME_MAX - used, " family %s model %s", family, model);
            }
            return;
        }
        if ((value = value_of(line, "CPU part"))) {
            snprintf(name, EXPERTD_TUNING_NAME_MAX, "implementer %s part %s", maker, value);
            return;
        }
    }
}

void expertd_tuning_identity_read(struct expertd_tuning_identity *out) {
    *out = (struct expertd_tuning_identity){.cpu = "unknown"};
    snprintf(out->kernels, sizeof out->kernels, "%s", expertd_kernel_float_name());
    FILE *file = fopen("/proc/cpuinfo", "re");
    if (file) {
        expertd_tuning_cpu_name(file, out->cpu);
        fclose(file);
    }
}

// Lines are printable text, since messages quote them.
static bool is_printable(char c) {
    return (unsigned char)c >= ' ' && c != 0x7f;
}

// ---- reading

static FALLIBLE read_file(const char *path, char *text, size_t *bytes) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        FAIL(EXPERTD_ERR_IO, "%s: %s", path, strerror(errno));
    }
    struct stat status;
    ssize_t count = -1;
    bool regular = fstat(fd, &status) == 0 && S_ISREG(status.st_mode);
    if (regular && status.st_size < FILE_BYTES_MAX) {
        count = read(fd, text, FILE_BYTES_MAX - 1);
    }
    close(fd);
    if (!regular) {
        FAIL(EXPERTD_ERR_IO, "%s: not a regular file", path);
    }
    if (count < 0 || count >= FILE_BYTES_MAX || count != status.st_size) {
        FAIL(EXPERTD_ERR_INVALID, "%s: is not a table of schedules: it has %lld bytes (at most %d)", path,
             (long long)status.st_size, FILE_BYTES_MAX - 1);
    }
    text[count] = '\0';
    *bytes = (size_t)count;
    bool is_text = strlen(text) == *bytes;
    for (size_t i = 0; i < *bytes; i++) {
        is_text = is_text && (text[i] == '\n' || is_printable(text[i]));
    }
    if (!is_text) {
        FAIL(EXPERTD_ERR_INVALID, "%s: contains bytes that are not text", path);
    }
    return OK;
}

// Checks the last line, "end COUNT CHECKSUM", and cuts it off the text.
static FALLIBLE check_end(const char *path, char *text, size_t bytes, size_t *count) {
    char *last = bytes > 0 && text[bytes - 1] == '\n' ? text + bytes - 1 : NULL;
    while (last && last > text && last[-1] != '\n') {
        last--;
    }
    if (!last || sscanf(last, "end %zu", count) != 1) {
        FAIL(EXPERTD_ERR_INVALID, "%s: its last line is missing: the file was cut short", path);
    }
    char expected[LINE_BYTES];
    print_end(expected, sizeof expected, *count, text, (size_t)(last - text));
    if (strcmp(last, expected) != 0) {
        FAIL(EXPERTD_ERR_INVALID, "%s: its checksum does not match: the file is damaged", path);
    }
    *last = '\0';
    return OK;
}

// Reads a line "NAME VALUE". Returns the text after the line; NULL where the line has another form.
static char *take_field(char *text, const char *name, char **value) {
    size_t length = strlen(name);
    if (!text || strncmp(text, name, length) != 0 || text[length] != ' ') {
        return NULL;
    }
    *value = text + length + 1;
    char *end = strchr(*value, '\n');
    if (!end) {
        return NULL;
    }
    *end = '\0';
    return end + 1;
}

static FALLIBLE check_head(const char *path, const struct expertd_tuning_identity *identity, char *text, char **entries) {
    char *version, *cpu, *kernels;
    char *at = take_field(text, HEAD, &version);
    if (!at || strtol(version, NULL, 10) != VERSION) {
        FAIL(EXPERTD_ERR_INVALID, "%s: is not of version %d, which this program reads", path, VERSION);
    }
    at = take_field(at, "cpu", &cpu);
    if (!at || strcmp(cpu, identity->cpu) != 0) {
        FAIL(EXPERTD_ERR_INVALID, "%s: was measured on another CPU (%s); this one is %s", path, at ? cpu : "not named",
             identity->cpu);
    }
    at = take_field(at, "kernels", &kernels);
    if (!at || strcmp(kernels, identity->kernels) != 0) {
        FAIL(EXPERTD_ERR_INVALID, "%s: was measured with the kernels of %s; those of %s are in use", path,
             at ? kernels : "(not named)", identity->kernels);
    }
    *entries = at;
    return OK;
}

static bool parse_entry(const char *line, struct expertd_tuning_entry *out) {
    char dtype[16];
    struct expertd_schedule_class *c = &out->found_for;
    struct expertd_matmul_schedule *s = &out->schedule;
    int used = 0;
    int found = sscanf(line,
                       "%15s k=%" SCNu32 " n=%" SCNu32 " panel_bytes=%" SCNu32 " rows=%" SCNu32 " threads=%" SCNu32
                       " call_rows=%" SCNu32 " run_bytes=%" SCNu32 " tasks_per_thread=%" SCNu32 "%n",
                       dtype, &c->k, &c->n, &c->panel_bytes, &c->rows, &c->threads, &s->call_rows, &s->run_bytes,
                       &s->tasks_per_thread, &used);
    if (found != 9 || line[used] != '\0') {
        return false;
    }
    c->dtype = expertd_dtype_from_name(dtype, strlen(dtype));
    return c->dtype != EXPERTD_DTYPE_NONE && expertd_schedule_is_valid(s);
}

static FALLIBLE parse_entries(const char *path, char *text, size_t count, struct expertd_tuning_table *table) {
    size_t lines = 0;
    char *at = text;
    for (char *end; (end = strchr(at, '\n')); at = end + 1) {
        struct expertd_tuning_entry entry;
        *end = '\0';
        lines++;
        if (!parse_entry(at, &entry)) {
            FAIL(EXPERTD_ERR_INVALID, "%s: line %zu is not a schedule: %.80s", path, lines + 3, at);
        }
        if (!expertd_tuning_put(table, &entry)) {
            FAIL(EXPERTD_ERR_INVALID, "%s: more than %d schedules", path, EXPERTD_TUNING_ENTRIES_MAX);
        }
    }
    if (lines != count) {
        FAIL(EXPERTD_ERR_INVALID, "%s: has %zu schedules, but its last line says %zu", path, lines, count);
    }
    return OK;
}

static FALLIBLE parse(const char *path, const struct expertd_tuning_identity *identity, char *text,
                      struct expertd_tuning_table *table) {
    size_t bytes, count;
    char *entries;
    TRY(read_file(path, text, &bytes));
    TRY(check_end(path, text, bytes, &count));
    TRY(check_head(path, identity, text, &entries));
    return parse_entries(path, entries, count, table);
}

FALLIBLE expertd_tuning_load(const char *path, const struct expertd_tuning_identity *identity, struct expertd_tuning_table *table) {
    table->count = 0;
    char *text = malloc(FILE_BYTES_MAX);
    if (!text) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory to read %s", path);
    }
    err_t e = parse(path, identity, text, table);
    if (err_is(e)) {
        table->count = 0;
    }
    free(text);
    return e;
}

// ---- writing

static size_t print_entry(char *text, size_t size, const struct expertd_tuning_entry *entry) {
    const struct expertd_schedule_class *c = &entry->found_for;
    const struct expertd_matmul_schedule *s = &entry->schedule;
    return (size_t)snprintf(text, size,
                            "%s k=%" PRIu32 " n=%" PRIu32 " panel_bytes=%" PRIu32 " rows=%" PRIu32 " threads=%" PRIu32
                            " call_rows=%" PRIu32 " run_bytes=%" PRIu32 " tasks_per_thread=%" PRIu32 "\n",
                            expertd_dtype_name(c->dtype), c->k, c->n, c->panel_bytes, c->rows, c->threads, s->call_rows,
                            s->run_bytes, s->tasks_per_thread);
}

static size_t print_table(char *text, const struct expertd_tuning_identity *identity, const struct expertd_tuning_table *table) {
    size_t used =
        (size_t)snprintf(text, FILE_BYTES_MAX, "%s %d\ncpu %s\nkernels %s\n", HEAD, VERSION, identity->cpu, identity->kernels);
    for (size_t i = 0; i < table->count; i++) {
        used += print_entry(text + used, FILE_BYTES_MAX - used, &table->entries[i]);
    }
    return used + print_end(text + used, FILE_BYTES_MAX - used, table->count, text, used);
}

static FALLIBLE write_file(const char *path, const char *text, size_t bytes) {
    struct regular_file_new file;
    err_t e = regular_file_begin(path, REGULAR_FILE_ONLY, &file);
    if (!err_is(e)) {
        e = regular_file_end(&file, regular_file_write(file.fd, text, bytes));
    }
    return err_is(e) ? err_context(e, "%s: cannot be written", path) : OK;
}

static FALLIBLE check_name(const char *path, const char *kind, const char name[EXPERTD_TUNING_NAME_MAX]) {
    size_t length = strnlen(name, EXPERTD_TUNING_NAME_MAX);
    bool is_line = length < EXPERTD_TUNING_NAME_MAX;
    for (size_t i = 0; i < length; i++) {
        is_line = is_line && is_printable(name[i]);
    }
    if (!is_line) {
        FAIL_FIELD(EXPERTD_ERR_INVALID, "identity",
                   "%s: not written: the name of the %s is no line of text, and so could not be read back", path, kind);
    }
    return OK;
}

FALLIBLE expertd_tuning_store(const char *path, const struct expertd_tuning_identity *identity,
                              const struct expertd_tuning_table *table) {
    TRY(check_name(path, "CPU", identity->cpu));
    TRY(check_name(path, "kernels", identity->kernels));
    INVARIANT(table->count <= EXPERTD_TUNING_ENTRIES_MAX); // expertd_tuning_put ensures it
    char *text = malloc(FILE_BYTES_MAX);
    if (!text) {
        FAIL(EXPERTD_ERR_NOMEM, "no memory to write %s", path);
    }
    err_t e = write_file(path, text, print_table(text, identity, table));
    free(text);
    return e;
}
