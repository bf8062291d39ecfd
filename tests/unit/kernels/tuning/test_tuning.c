// Tuning: candidates, the table, its file, and which files are refused.
#include "tests/unit/kernels/kernel_test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "expertd/kernels/tuning.h"
#include "kernels/cpu/backend/backend.h"

static const struct expertd_tuning_identity HERE = {.cpu = "A CPU of Tests @ 1 GHz", .kernels = "scalar"};

struct folder {
    char path[64], file[96];
};

static int folder_make(void **state) {
    static struct folder folder;
    snprintf(folder.path, sizeof folder.path, "/tmp/test_tuning.XXXXXX");
    assert_non_null(mkdtemp(folder.path));
    snprintf(folder.file, sizeof folder.file, "%s/tuning", folder.path);
    *state = &folder;
    return 0;
}

static int folder_remove(void **state) {
    struct folder *folder = *state;
    unlink(folder->file);
    return rmdir(folder->path); // fails where a temporary file was left behind
}

static struct expertd_tuning_entry entry_of(uint32_t rows, uint32_t call_rows) {
    struct expertd_tuning_entry entry = {
        .found_for = {.dtype = EXPERTD_DTYPE_BF16, .k = 2048, .n = 768, .rows = rows, .threads = 2}};
    entry.schedule = expertd_schedule_heuristic();
    entry.schedule.call_rows = call_rows;
    entry.schedule.tasks_per_thread = rows;
    return entry;
}

static void fill(struct expertd_tuning_table *table, uint32_t count) {
    table->count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct expertd_tuning_entry entry = entry_of(1u << i, EXPERTD_SCHEDULE_CALL_ROWS_MIN + i);
        assert_true(expertd_tuning_put(table, &entry));
    }
}

static size_t read_back(const char *path, char *text, size_t room) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    size_t count = fread(text, 1, room, file);
    fclose(file);
    return count;
}

static void write_over(const char *path, const char *text, size_t count) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

static void rows_of_a_class_are_a_power_of_two_of_the_mean(void **state) {
    (void)state;
    static const struct {
        size_t rows, groups;
        uint32_t expected;
    } CASES[] = {{0, 0, 1},  {1, 8, 1},      {8, 8, 1},      {16, 8, 2},        {31, 8, 2},
                 {32, 8, 4}, {2047, 8, 128}, {2048, 8, 256}, {1u << 30, 1, 256}};
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        assert_int_equal(expertd_schedule_rows(CASES[i].rows, CASES[i].groups), CASES[i].expected);
    }
}

static void every_candidate_is_valid_and_unlike_the_others(void **state) {
    (void)state;
    for (uint32_t rows = 1; rows <= EXPERTD_SCHEDULE_ROWS_MAX; rows *= 2) {
        struct expertd_schedule_class wanted = {.dtype = EXPERTD_DTYPE_BF16, .k = 64, .n = 64, .rows = rows, .threads = 2};
        struct expertd_matmul_schedule seen[16], one, heuristic = expertd_schedule_heuristic();
        size_t count = 0;
        for (; expertd_schedule_candidate(&wanted, count, &one); count++) {
            assert_true(count < 16);
            assert_true(expertd_schedule_is_valid(&one));
            seen[count] = one;
            for (size_t i = 0; i < count; i++) {
                assert_true(seen[i].call_rows != one.call_rows || seen[i].run_bytes != one.run_bytes ||
                            seen[i].tasks_per_thread != one.tasks_per_thread);
            }
        }
        assert_true(count >= 4);
        assert_int_equal(seen[0].call_rows, heuristic.call_rows);
        assert_int_equal(seen[0].run_bytes, heuristic.run_bytes);
    }
}

static void put_replaces_what_was_found_for_the_class(void **state) {
    (void)state;
    static struct expertd_tuning_table table;
    fill(&table, 3);
    struct expertd_tuning_entry entry = entry_of(2, 99);
    assert_true(expertd_tuning_put(&table, &entry));
    assert_int_equal(table.count, 3);
    assert_int_equal(expertd_tuning_find(&table, &entry.found_for)->call_rows, 99);
    entry.found_for.threads = 3;
    assert_null(expertd_tuning_find(&table, &entry.found_for));
}

static void a_full_table_takes_no_more_classes(void **state) {
    (void)state;
    static struct expertd_tuning_table table;
    table.count = 0;
    struct expertd_tuning_entry entry = entry_of(1, EXPERTD_SCHEDULE_CALL_ROWS_MIN);
    for (uint32_t k = 0; k < EXPERTD_TUNING_ENTRIES_MAX; k++) {
        entry.found_for.k = k;
        assert_true(expertd_tuning_put(&table, &entry));
    }
    assert_true(expertd_tuning_put(&table, &entry)); // an existing class
    entry.found_for.k = EXPERTD_TUNING_ENTRIES_MAX;
    assert_false(expertd_tuning_put(&table, &entry));
}

static void put_takes_nothing_that_a_file_could_not_hold(void **state) {
    (void)state;
    static struct expertd_tuning_table table;
    struct expertd_tuning_entry entry = entry_of(2, EXPERTD_SCHEDULE_CALL_ROWS_MIN - 1);
    fill(&table, 2);
    assert_false(expertd_tuning_put(&table, &entry)); // not as a replacement either
    entry.schedule = (struct expertd_matmul_schedule){0};
    assert_false(expertd_tuning_put(&table, &entry));
    entry = entry_of(4, EXPERTD_SCHEDULE_CALL_ROWS_MIN), entry.found_for.dtype = EXPERTD_DTYPE_NONE;
    assert_false(expertd_tuning_put(&table, &entry));
    entry.found_for.dtype = EXPERTD_DTYPE_COUNT;
    assert_false(expertd_tuning_put(&table, &entry));
    assert_int_equal(table.count, 2);
    entry = entry_of(2, 0);
    assert_int_equal(expertd_tuning_find(&table, &entry.found_for)->call_rows, EXPERTD_SCHEDULE_CALL_ROWS_MIN + 1);
}

static void schedules_come_from_the_table_or_the_heuristic(void **state) {
    (void)state;
    static struct expertd_tuning_table table;
    fill(&table, 2);
    struct expertd_tuning_entry known = entry_of(2, EXPERTD_SCHEDULE_CALL_ROWS_MIN + 1), other = entry_of(64, 0);
    assert_int_equal(expertd_tuning_schedule(&known.found_for).call_rows, expertd_schedule_heuristic().call_rows);
    expertd_tuning_use(&table);
    assert_int_equal(expertd_tuning_schedule(&known.found_for).call_rows, EXPERTD_SCHEDULE_CALL_ROWS_MIN + 1);
    assert_int_equal(expertd_tuning_schedule(&other.found_for).call_rows, expertd_schedule_heuristic().call_rows);
    expertd_tuning_use(NULL);
    assert_int_equal(expertd_tuning_schedule(&known.found_for).call_rows, expertd_schedule_heuristic().call_rows);
}

static void a_table_comes_back_from_its_file(void **state) {
    const struct folder *folder = *state;
    static struct expertd_tuning_table stored, loaded;
    for (uint32_t count = 0; count < 9; count += 4) {
        fill(&stored, count);
        assert_false(err_is(expertd_tuning_store(folder->file, &HERE, &stored)));
        memset(&loaded, 0xff, sizeof loaded);
        assert_false(err_is(expertd_tuning_load(folder->file, &HERE, &loaded)));
        assert_int_equal(loaded.count, count);
        for (size_t i = 0; i < count; i++) {
            const struct expertd_tuning_entry *a = &stored.entries[i], *b = &loaded.entries[i];
            assert_true(expertd_schedule_class_equal(&a->found_for, &b->found_for));
            assert_int_equal(a->schedule.call_rows, b->schedule.call_rows);
            assert_int_equal(a->schedule.run_bytes, b->schedule.run_bytes);
            assert_int_equal(a->schedule.tasks_per_thread, b->schedule.tasks_per_thread);
        }
    }
}

static void refuse(const struct folder *folder, const struct expertd_tuning_identity *identity, enum expertd_err_code code,
                   const char *word) {
    static struct expertd_tuning_table loaded;
    loaded.count = 7;
    err_t e = expertd_tuning_load(folder->file, identity, &loaded);
    assert_int_equal(e.code, code);
    assert_int_equal(loaded.count, 0);
    assert_non_null(strstr(expertd_err_message(), folder->file));
    assert_non_null(strstr(expertd_err_message(), word));
}

static void a_missing_file_and_a_path_that_is_no_file_are_reported(void **state) {
    const struct folder *folder = *state;
    refuse(folder, &HERE, EXPERTD_ERR_IO, "No such file");
    assert_int_equal(mkdir(folder->file, 0700), 0);
    refuse(folder, &HERE, EXPERTD_ERR_IO, "not a regular file");
    assert_int_equal(rmdir(folder->file), 0);
}

static void a_file_of_another_cpu_or_for_other_kernels_is_refused_by_name(void **state) {
    const struct folder *folder = *state;
    static struct expertd_tuning_table table;
    fill(&table, 2);
    assert_false(err_is(expertd_tuning_store(folder->file, &HERE, &table)));
    struct expertd_tuning_identity other = HERE;
    snprintf(other.cpu, sizeof other.cpu, "Another CPU");
    refuse(folder, &other, EXPERTD_ERR_INVALID, "A CPU of Tests");
    other = HERE;
    snprintf(other.kernels, sizeof other.kernels, "avx2");
    refuse(folder, &other, EXPERTD_ERR_INVALID, "those of avx2 are in use");
}

static void a_file_cut_anywhere_or_with_any_byte_changed_is_refused(void **state) {
    const struct folder *folder = *state;
    static struct expertd_tuning_table table, loaded;
    static char text[4096], damaged[4096];
    fill(&table, 4);
    assert_false(err_is(expertd_tuning_store(folder->file, &HERE, &table)));
    size_t bytes = read_back(folder->file, text, sizeof text);
    assert_in_range(bytes, 100, sizeof text - 1);
    for (size_t cut = 0; cut < bytes; cut++) {
        write_over(folder->file, text, cut);
        assert_true(err_is(expertd_tuning_load(folder->file, &HERE, &loaded)));
        assert_int_equal(loaded.count, 0);
    }
    for (size_t at = 0; at < bytes; at++) {
        memcpy(damaged, text, bytes);
        damaged[at] ^= 0x10;
        write_over(folder->file, damaged, bytes);
        assert_true(err_is(expertd_tuning_load(folder->file, &HERE, &loaded)));
        assert_int_equal(loaded.count, 0);
    }
}

// Files with a correct checksum and invalid content.
static void write_with_checksum(const char *path, const char *body, const char *end_count) {
    char text[1024];
    uint64_t sum = 0xcbf29ce484222325u;
    for (const char *at = body; *at; at++) {
        sum = (sum ^ (unsigned char)*at) * 0x100000001b3u;
    }
    int count = snprintf(text, sizeof text, "%send %s %016llx\n", body, end_count, (unsigned long long)sum);
    write_over(path, text, (size_t)count);
}

#define HEAD_TEXT "expertd-tuning 2\ncpu A CPU of Tests @ 1 GHz\nkernels scalar\n"
#define LINE_TEXT "BF16 k=8 n=8 panel_bytes=1024 rows=1 threads=1 call_rows=48 run_bytes=1 tasks_per_thread="

static void a_file_with_invalid_content_is_refused(void **state) {
    const struct folder *folder = *state;
    static struct expertd_tuning_table loaded;
    write_with_checksum(folder->file, HEAD_TEXT LINE_TEXT "1\n", "1");
    assert_false(err_is(expertd_tuning_load(folder->file, &HERE, &loaded)));
    static const struct {
        const char *body, *count, *word;
    } CASES[] = {
        {"expertd-tuning 1\ncpu A CPU of Tests @ 1 GHz\nbackend scalar\n", "0", "version 2"},
        {"expertd-tuning\n", "0", "version 2"},
        {"", "0", "version 2"},
        {"expertd-tuning 2\nkernels scalar\n", "0", "not named"},
        {HEAD_TEXT LINE_TEXT "1\n", "2", "its last line says 2"},
        {HEAD_TEXT LINE_TEXT "0\n", "1", "line 4"},
        {HEAD_TEXT LINE_TEXT "1 \n", "1", "line 4"},
        {HEAD_TEXT "BF17 k=8 n=8 panel_bytes=1 rows=1 threads=1 call_rows=48 run_bytes=1 tasks_per_thread=1\n", "1", "line 4"},
        {HEAD_TEXT "BF16 k=8 n=8 panel_bytes=1 rows=1 threads=1 call_rows=47 run_bytes=1 tasks_per_thread=1\n", "1", "line 4"},
        {HEAD_TEXT "BF16 k=8 n=8 panel_bytes=1 rows=1 threads=1 call_rows=9999 run_bytes=1 tasks_per_thread=1\n", "1", "line 4"},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        write_with_checksum(folder->file, CASES[i].body, CASES[i].count);
        refuse(folder, &HERE, EXPERTD_ERR_INVALID, CASES[i].word);
    }
}

static void a_missing_folder_is_reported_and_the_old_file_stays(void **state) {
    const struct folder *folder = *state;
    static struct expertd_tuning_table table, loaded;
    fill(&table, 2);
    assert_false(err_is(expertd_tuning_store(folder->file, &HERE, &table)));
    char nowhere[160];
    snprintf(nowhere, sizeof nowhere, "%s/none/tuning", folder->path);
    assert_int_equal(expertd_tuning_store(nowhere, &HERE, &table).code, EXPERTD_ERR_IO);
    assert_non_null(strstr(expertd_err_message(), nowhere));
    assert_false(err_is(expertd_tuning_load(folder->file, &HERE, &loaded)));
    assert_int_equal(loaded.count, 2);
}

// A small file size limit, as on a disk that fills up during the write.
static void a_full_disk_leaves_the_old_file_and_no_temporary_file(void **state) {
    const struct folder *folder = *state;
    static struct expertd_tuning_table table, loaded;
    fill(&table, 2);
    assert_false(err_is(expertd_tuning_store(folder->file, &HERE, &table)));
    fill(&table, 6);
    struct rlimit before, little = {.rlim_cur = 100};
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    little.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &little), 0);
    err_t e = expertd_tuning_store(folder->file, &HERE, &table);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(e.code, EXPERTD_ERR_IO);
    assert_non_null(strstr(expertd_err_message(), folder->file));
    assert_false(err_is(expertd_tuning_load(folder->file, &HERE, &loaded)));
    assert_int_equal(loaded.count, 2); // folder_remove fails where a temporary file was left
}

static void an_existing_file_keeps_its_mode_and_links(void **state) {
    const struct folder *folder = *state;
    static struct expertd_tuning_table table, loaded;
    struct stat status;
    char link_to_it[sizeof folder->file + 8];
    fill(&table, 2);
    assert_false(err_is(expertd_tuning_store(folder->file, &HERE, &table)));
    assert_int_equal(chmod(folder->file, 0600), 0);
    snprintf(link_to_it, sizeof link_to_it, "%s.link", folder->file);
    assert_int_equal(symlink(folder->file, link_to_it), 0);
    fill(&table, 3);
    assert_false(err_is(expertd_tuning_store(link_to_it, &HERE, &table)));
    assert_int_equal(lstat(link_to_it, &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    assert_int_equal(stat(folder->file, &status), 0);
    assert_int_equal(status.st_mode & 0777, 0600);
    assert_false(err_is(expertd_tuning_load(folder->file, &HERE, &loaded)));
    assert_int_equal(loaded.count, 3);
    assert_int_equal(unlink(link_to_it), 0);
    assert_int_equal(symlink("/nowhere/at/all", link_to_it), 0);
    assert_int_equal(expertd_tuning_store(link_to_it, &HERE, &table).code, EXPERTD_ERR_IO);
    assert_int_equal(lstat(link_to_it, &status), 0);
    assert_true(S_ISLNK(status.st_mode));
    assert_int_equal(unlink(link_to_it), 0);
    assert_int_equal(mkfifo(link_to_it, 0600), 0);
    assert_int_equal(expertd_tuning_store(link_to_it, &HERE, &table).code, EXPERTD_ERR_IO);
    assert_non_null(strstr(expertd_err_message(), "not a regular file"));
    assert_int_equal(lstat(link_to_it, &status), 0);
    assert_true(S_ISFIFO(status.st_mode));
    assert_int_equal(unlink(link_to_it), 0);
}

static void an_identity_that_could_not_be_read_back_is_not_written(void **state) {
    const struct folder *folder = *state;
    static const char *const NAMES[] = {"a\tb", "a\nkernels scalar", "\x7f", "\x1b[2J"};
    static struct expertd_tuning_table table;
    fill(&table, 2);
    struct expertd_tuning_identity identity = HERE;
    for (size_t i = 0; i < COUNT_OF(NAMES); i++) {
        identity = HERE, snprintf(identity.cpu, sizeof identity.cpu, "%s", NAMES[i]);
        assert_int_equal(expertd_tuning_store(folder->file, &identity, &table).code, EXPERTD_ERR_INVALID);
        identity = HERE, snprintf(identity.kernels, sizeof identity.kernels, "%s", NAMES[i]);
        assert_int_equal(expertd_tuning_store(folder->file, &identity, &table).code, EXPERTD_ERR_INVALID);
        assert_non_null(strstr(expertd_err_message(), "the name of the kernels"));
        assert_string_equal(expertd_err_field(), "identity");
    }
    identity = HERE, memset(identity.cpu, 'a', sizeof identity.cpu); // not terminated
    assert_int_equal(expertd_tuning_store(folder->file, &identity, &table).code, EXPERTD_ERR_INVALID);
    assert_int_equal(access(folder->file, F_OK), -1);
    snprintf(identity.cpu, sizeof identity.cpu, "\xc3\xa9"); // not ASCII
    assert_false(err_is(expertd_tuning_store(folder->file, &identity, &table)));
    assert_false(err_is(expertd_tuning_load(folder->file, &identity, &table)));
}

static void a_new_file_has_the_mode_that_the_umask_leaves(void **state) {
    const struct folder *folder = *state;
    static const mode_t MASKS[][2] = {{0077, 0600}, {0022, 0644}, {0, 0644}}; // umask, and the mode that results
    static struct expertd_tuning_table table;
    fill(&table, 2);
    for (size_t i = 0; i < COUNT_OF(MASKS); i++) {
        struct stat status;
        mode_t before = umask(MASKS[i][0]);
        err_t e = expertd_tuning_store(folder->file, &HERE, &table);
        assert_int_equal(umask(before), MASKS[i][0]); // the umask is restored
        assert_false(err_is(e));
        assert_int_equal(stat(folder->file, &status), 0);
        assert_int_equal(status.st_mode & 0777, MASKS[i][1]);
        assert_int_equal(unlink(folder->file), 0);
    }
}

struct writer {
    const char *path;
    struct expertd_tuning_table table;
    atomic_bool *stop;
    size_t failures;
};

static void *write_again_and_again(void *context) {
    struct writer *writer = context;
    while (!atomic_load(writer->stop)) {
        writer->failures += err_is(expertd_tuning_store(writer->path, &HERE, &writer->table));
    }
    return NULL;
}

static void concurrent_writers_leave_a_complete_file(void **state) {
    enum { WRITERS = 3, READS = 40 };
    const struct folder *folder = *state;
    static struct writer writers[WRITERS];
    static struct expertd_tuning_table loaded;
    atomic_bool stop = false;
    pthread_t threads[WRITERS];
    for (uint32_t i = 0; i < WRITERS; i++) {
        writers[i] = (struct writer){.path = folder->file, .stop = &stop};
        fill(&writers[i].table, 2 + 3 * i);
    }
    assert_false(err_is(expertd_tuning_store(folder->file, &HERE, &writers[0].table)));
    for (size_t i = 0; i < WRITERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, write_again_and_again, &writers[i]), 0);
    }
    size_t torn = 0;
    for (int i = 0; i < READS; i++) {
        err_t e = expertd_tuning_load(folder->file, &HERE, &loaded);
        torn += err_is(e) || (loaded.count != 2 && loaded.count != 5 && loaded.count != 8);
        nanosleep(&(struct timespec){0, 500000}, NULL);
    }
    atomic_store(&stop, true);
    for (size_t i = 0; i < WRITERS; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(writers[i].failures, 0);
    }
    assert_int_equal(torn, 0);
}

static void expect_cpu(const char *cpuinfo, const char *want) {
    char name[EXPERTD_TUNING_NAME_MAX];
    FILE *file = fmemopen((void *)(uintptr_t)cpuinfo, strlen(cpuinfo), "r");
    assert_non_null(file);
    expertd_tuning_cpu_name(file, name);
    fclose(file);
    assert_string_equal(name, want);
}

static void cpu_is_named_by_its_model_or_by_numbers(void **state) {
    (void)state;
    expect_cpu("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nflags\t\t: fpu\n", "A CPU @ 2 GHz");
    expect_cpu("processor\t: 0\nvendor_id\t: Some\ncpu family\t: 25\nmodel\t\t: 17\nmodel name\t: A CPU\nstepping\t: 1\n",
               "A CPU family 25 model 17");
    expect_cpu("processor\t: 0\nBogoMIPS\t: 50.00\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU variant\t: 0x1\n"
               "CPU part\t: 0xd0c\nCPU revision\t: 1\n",
               "implementer 0x41 part 0xd0c");
    expect_cpu("processor\t: 0\n", "unknown");
}

// Backends with equal kernels for these products share one file.
static void check_identity(const struct kernel_backend *backend) {
    static const struct {
        const char *backend, *kernels;
    } SHARED[] = {
        {"avx512", "avx512"}, {"avx512vnni", "avx512vnni"}, {"amxint8", "amxint8"}, {"avx512bf16", "avx512bf16"}, {"amx", "amx"},
        {"avx2", "avx2"},     {"scalar", "scalar"}};
    for (size_t i = 0; i < sizeof SHARED / sizeof *SHARED; i++) {
        if (strcmp(backend->name, SHARED[i].backend) == 0) {
            struct expertd_tuning_identity identity;
            assert_false(err_is(expertd_kernel_select(backend->name)));
            expertd_tuning_identity_read(&identity);
            assert_string_equal(identity.kernels, SHARED[i].kernels);
            assert_true(identity.cpu[0] && identity.cpu[0] != ' ');
        }
    }
}

static void the_identity_names_the_kernels_that_schedules_are_for(void **state) {
    (void)state;
    bool usable;
    const struct kernel_backend *backend;
    for (size_t i = 0; (backend = kernel_backend_at(i, &usable)); i++) {
        if (usable) {
            check_identity(backend);
        }
    }
    assert_false(err_is(expertd_kernel_select("auto")));
}

int main(void) {
#define IN_FOLDER(test) cmocka_unit_test_setup_teardown(test, folder_make, folder_remove)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_of_a_class_are_a_power_of_two_of_the_mean),
        cmocka_unit_test(every_candidate_is_valid_and_unlike_the_others),
        cmocka_unit_test(put_replaces_what_was_found_for_the_class),
        cmocka_unit_test(a_full_table_takes_no_more_classes),
        cmocka_unit_test(put_takes_nothing_that_a_file_could_not_hold),
        cmocka_unit_test(schedules_come_from_the_table_or_the_heuristic),
        IN_FOLDER(a_table_comes_back_from_its_file),
        IN_FOLDER(a_missing_file_and_a_path_that_is_no_file_are_reported),
        IN_FOLDER(a_file_of_another_cpu_or_for_other_kernels_is_refused_by_name),
        IN_FOLDER(a_file_cut_anywhere_or_with_any_byte_changed_is_refused),
        IN_FOLDER(a_file_with_invalid_content_is_refused),
        IN_FOLDER(a_missing_folder_is_reported_and_the_old_file_stays),
        IN_FOLDER(an_existing_file_keeps_its_mode_and_links),
        IN_FOLDER(an_identity_that_could_not_be_read_back_is_not_written),
        IN_FOLDER(a_new_file_has_the_mode_that_the_umask_leaves),
        IN_FOLDER(a_full_disk_leaves_the_old_file_and_no_temporary_file),
        IN_FOLDER(concurrent_writers_leave_a_complete_file),
        cmocka_unit_test(cpu_is_named_by_its_model_or_by_numbers),
        cmocka_unit_test(the_identity_names_the_kernels_that_schedules_are_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
