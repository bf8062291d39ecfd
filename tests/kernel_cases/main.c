// kernel_cases [--kernels NAME | --device sim|cuda[:N]] [--interpret] PATH…: runs golden files, or all files of a folder, and
// reports those that fail.
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "case.h"
#include "device.h"
#include "expertd/kernels/kernel_select.h"

enum { EXIT_FAILED = 1, TEAM_THREADS = 2, TEAM_SPIN_US = 20, PATH_BYTES_MAX = 4096 };

struct run {
    struct expertd_team *team;
    struct case_device device; // zeroed: the CPU
    bool interpret, has_twin;
    size_t passed, failed;
};

static FALLIBLE run_operation(const struct kernel_case *c) {
    static const struct {
        const char *op;
        FALLIBLE (*run)(const struct kernel_case *c);
    } OPERATIONS[] = {
        {"grouped_matmul", run_grouped_matmul},
        {"transposed_grouped_matmul", run_transposed_grouped_matmul},
        {"make_group_metadata", run_group_metadata},
        {"grouped_gemm", run_grouped_gemm},
        {"quantised_grouped_matmul", run_quantised_grouped_matmul},
    };
    const char *op = case_text(c, "op");
    for (size_t i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++) {
        if (strcmp(op, OPERATIONS[i].op) == 0) {
            return OPERATIONS[i].run(c);
        }
    }
    FAIL(EXPERTD_ERR_CHECKPOINT, "op is \"%s\": there is no such operation", op);
}

// Compares the operation's result with the expected answer or error.
static FALLIBLE judge(const struct kernel_case *c, err_t outcome) {
    if (!c->expected_error) {
        return outcome;
    }
    if (!err_is(outcome)) {
        FAIL(EXPERTD_ERR_INTERNAL, "accepted, but %s is at fault and must be named", c->expected_error);
    }
    if (outcome.code != EXPERTD_ERR_INVALID || strcmp(expertd_err_field(), c->expected_error) != 0) {
        FAIL(EXPERTD_ERR_INTERNAL, "refused with %s of \"%.64s\", not of %s: %.512s", expertd_err_name(outcome.code),
             expertd_err_field(), c->expected_error, expertd_err_message());
    }
    return OK;
}

static FALLIBLE run_file(struct run *run, const char *path) {
    struct kernel_case c;
    TRY(case_open(path, &c));
    case_note_unknown(&c, path);
    c.interpret = run->interpret;
    c.team = run->team;
    c.device = run->device.devices ? &run->device : NULL;
    c.has_twin = run->has_twin;
    err_t e = judge(&c, run_operation(&c));
    case_close(&c);
    return e;
}

static void count_file(struct run *run, const char *path) {
    if (err_is(run_file(run, path))) {
        bool named = strncmp(expertd_err_message(), path, strlen(path)) == 0; // the file reader puts the path into the message
        printf("%s%s%s\n", named ? "" : path, named ? "" : ": ", expertd_err_message());
        run->failed++;
    } else {
        run->passed++;
    }
}

static int is_case(const struct dirent *entry) {
    static const char SUFFIX[] = ".safetensors";
    size_t length = strlen(entry->d_name);
    return length >= sizeof SUFFIX && strcmp(entry->d_name + length - (sizeof SUFFIX - 1), SUFFIX) == 0;
}

static void count_folder(struct run *run, const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, is_case, alphasort);
    if (count <= 0) {
        printf("%s: there is no *.safetensors in this folder, or it cannot be read\n", folder);
        run->failed++;
    }
    for (int i = 0; i < count; i++) {
        char path[PATH_BYTES_MAX];
        if (snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name) < (int)sizeof path) {
            count_file(run, path);
        } else {
            printf("%s/%s: its path is too long\n", folder, entries[i]->d_name);
            run->failed++;
        }
        free(entries[i]);
    }
    if (count >= 0) {
        free(entries);
    }
}

static void count_path(struct run *run, const char *path) {
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        count_folder(run, path);
    } else {
        count_file(run, path);
    }
}

static const char USAGE[] = "usage: kernel_cases [--kernels NAME | --device sim|cuda[:N]] [--interpret] PATH…";
static const char HELP[] =
    "Runs golden kernel files, or every *.safetensors of a folder: each twice into a poisoned output, the second time on two\n"
    "threads and with equal bits. Says which do not hold, then how many do.\n\n"
    "  --kernels NAME          instruction set, as expertd's --kernels; else auto\n"
    "  --device NAME           sim, cuda or cuda:N, then the CPU in the device's arithmetic\n"
    "  --interpret             the scalar twin in place of the kernels\n"
    "  --help                  this text\n\n"
    "exit codes: 0 all hold, 1 some do not, 64 wrong command line, 69 an instruction set or a device is not to be had,\n"
    "78 an unknown one\n";

// Options before paths; returns the index of the first path.
static FALLIBLE parse_options(int argc, char **argv, struct run *run, int *first_path) {
    const char *device = NULL, *kernels = NULL;
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (strcmp(argv[i], "--interpret") == 0) {
            run->interpret = true;
        } else if (strcmp(argv[i], "--kernels") == 0 && i + 1 < argc) {
            TRY(expertd_kernel_select(kernels = argv[++i]));
        } else if (strcmp(argv[i], "--device") == 0 && i + 1 < argc) {
            device = argv[++i];
        } else {
            FAIL(EXPERTD_ERR_USAGE, "unknown flag %s, or its value is missing; %s", argv[i], USAGE);
        }
    }
    if (i == argc || (device && (kernels || run->interpret))) {
        FAIL(EXPERTD_ERR_USAGE, "%s: %s", i == argc ? "no path" : "--device takes neither --kernels nor --interpret", USAGE);
    }
    *first_path = i;
    return device ? case_device_open(device, &run->device, &run->has_twin) : OK;
}

int main(int argc, char **argv) {
    struct run run = {0};
    int first_path;
    if (argc == 2 && strcmp(argv[1], "--help") == 0) {
        printf("%s\n\n%s", USAGE, HELP);
        return EXIT_SUCCESS;
    }
    err_t e = parse_options(argc, argv, &run, &first_path);
    if (!err_is(e)) {
        e = expertd_team_create(&(struct expertd_team_options){TEAM_THREADS, TEAM_SPIN_US}, &run.team);
    }
    if (err_is(e)) {
        fprintf(stderr, "kernel_cases: %s\n", expertd_err_message());
        return err_exit_code(e.code);
    }
    for (int i = first_path; i < argc; i++) {
        count_path(&run, argv[i]);
    }
    expertd_team_destroy(run.team);
    if (run.device.devices && !run.has_twin) {
        printf("bits were not compared with the CPU's: this build has no twin of %s\n", run.device.devices->facts.arithmetic);
    }
    case_device_close(&run.device);
    printf("%zu passed, %zu failed\n", run.passed, run.failed);
    return run.failed ? EXIT_FAILED : EXIT_SUCCESS;
}
