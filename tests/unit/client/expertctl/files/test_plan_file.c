// Plans and row counts as JSON files: writing and reading back; errors name the place.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <fcntl.h>
#include <glob.h>
#include <jansson.h>

#include "client/expertctl/files/plan_file.h"

static char folder[] = "/tmp/expertd-plan.XXXXXX", path[64];

static int make_folder(void **state) {
    (void)state;
    char *made = mkdtemp(folder);
    snprintf(path, sizeof path, "%s/plan.json", folder);
    return made ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void write_text(const char *text) {
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void a_plan_that_is_written_reads_back(void **state) {
    (void)state;
    uint32_t first[] = {0, 1, 3}, holders[] = {1, 0, 1};
    uint64_t rows[] = {5, 6};
    struct proto_placement sent = {
        .layer = 3, .epoch = 9, .ranks = 2, .num_experts = 2, .first = first, .holders = holders, .rows = rows, .imbalance = 1.25};
    json_t *layers = json_array();
    json_array_append_new(layers, plan_file_entry(&sent));
    assert_false(err_is(plan_file_write_take(path, json_pack("{s:o}", "layers", layers))));

    struct proto_placements got;
    assert_false(err_is(plan_file_read(path, &got)));
    assert_int_equal(got.count, 1);
    assert_int_equal(got.items[0].layer, 3);
    assert_int_equal(got.items[0].epoch, 9);
    assert_int_equal(got.items[0].ranks, 2);
    assert_int_equal(got.items[0].num_experts, 2);
    assert_memory_equal(got.items[0].first, first, sizeof first);
    assert_memory_equal(got.items[0].holders, holders, sizeof holders);
    proto_placements_deinit(&got);

    struct proto_counts *counts;
    size_t count;
    assert_false(err_is(plan_file_read_counts(path, &counts, &count)));
    assert_int_equal(count, 1);
    assert_int_equal(counts[0].layer, 3);
    assert_int_equal(counts[0].num_rows, 2);
    assert_memory_equal(counts[0].rows, rows, sizeof rows);
    plan_file_free_counts(counts, count);
}

struct wrong {
    const char *text, *cause;
};

static void a_wrong_plan_is_refused_with_the_place(void **state) {
    (void)state;
    static const struct wrong ROWS[] = {
        {"", "line 1"},
        {"{\"layers\": [", "line 1"},
        {"{\"layers\": [], \"layers\": []}", "duplicate"},
        {"[]", "layers: a list"},
        {"{\"layers\": []}", "layers: a list"},
        {"{\"layers\": [7]}", "layers[0]: layer: an integer"},
        {"{\"layers\": [{\"layer\": -1}]}", "layers[0]: layer: an integer"},
        {"{\"layers\": [{\"layer\": 4294967296}]}", "layers[0]: layer: an integer"},
        {"{\"layers\": [{\"layer\": 1, \"epoch\": \"x\"}]}", "layers[0]: epoch: an integer"},
        {"{\"layers\": [{\"layer\": 1, \"epoch\": 1, \"ranks\": 2}]}", "layers[0]: experts: a list"},
        {"{\"layers\": [{\"layer\": 1, \"epoch\": 1, \"ranks\": 2, \"experts\": [0, 1]}]}", "expert 0: a list of the ranks"},
        {"{\"layers\": [{\"layer\": 1, \"epoch\": 1, \"ranks\": 2, \"experts\": [[0], []]}]}", "expert 1: a list of the ranks"},
        {"{\"layers\": [{\"layer\": 1, \"epoch\": 1, \"ranks\": 2, \"experts\": [[0], [1.5]]}]}", "expert 1: rank: an integer"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        struct proto_placements got;
        write_text(ROWS[i].text);
        assert_int_equal(plan_file_read(path, &got).code, EXPERTD_ERR_CHECKPOINT);
        if (!strstr(expertd_err_message(), ROWS[i].cause) || !strstr(expertd_err_message(), path)) {
            fail_msg("%s: '%s' does not mention '%s'", ROWS[i].text, expertd_err_message(), ROWS[i].cause);
        }
        assert_true(got.items == NULL && got.count == 0);
    }
}

static void wrong_counts_are_refused_with_the_place(void **state) {
    (void)state;
    static const struct wrong ROWS[] = {
        {"{\"layers\": [{\"layer\": 1}]}", "layers[0]: rows: a list"},
        {"{\"layers\": [{\"layer\": 1, \"rows\": [1]}, {\"layer\": 2, \"rows\": [1, -1]}]}", "layers[1]: expert 1: rows"},
        {"{\"layers\": [{\"layer\": 1, \"rows\": {}}]}", "layers[0]: rows: a list"},
    };
    for (size_t i = 0; i < sizeof ROWS / sizeof ROWS[0]; i++) {
        struct proto_counts *counts;
        size_t count;
        write_text(ROWS[i].text);
        assert_int_equal(plan_file_read_counts(path, &counts, &count).code, EXPERTD_ERR_CHECKPOINT);
        if (!strstr(expertd_err_message(), ROWS[i].cause)) {
            fail_msg("%s: '%s' does not mention '%s'", ROWS[i].text, expertd_err_message(), ROWS[i].cause);
        }
        assert_true(counts == NULL && count == 0);
    }
}

static void a_failed_write_leaves_nothing(void **state) {
    (void)state;
    assert_int_equal(plan_file_write_take("/nowhere/plan.json", json_object()).code, EXPERTD_ERR_IO);
    assert_non_null(strstr(expertd_err_message(), "/nowhere/plan.json"));
    assert_int_equal(plan_file_write_take(folder, json_object()).code, EXPERTD_ERR_IO); // the name is a folder
    char left[80];
    glob_t found;
    snprintf(left, sizeof left, "%s.*", folder);
    assert_int_equal(glob(left, 0, NULL, &found), GLOB_NOMATCH);
}

// Neither another file of the user in the folder, nor the target of a link in it, is changed.
static void no_file_but_the_plan_is_written(void **state) {
    (void)state;
    char beside[2][96], planted[96];
    struct stat there;
    snprintf(beside[0], sizeof beside[0], "%s.partial", path);
    snprintf(beside[1], sizeof beside[1], "%s.other", path);
    snprintf(planted, sizeof planted, "%s.%ld.tmp", path, (long)getpid());
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(beside[i], "w");
        assert_non_null(file);
        fputs("mine", file);
        fclose(file);
    }
    assert_int_equal(symlink(beside[1], planted), 0);
    assert_false(err_is(plan_file_write_take(path, json_object())));
    assert_int_equal(lstat(planted, &there), 0);
    assert_true(S_ISLNK(there.st_mode));
    unlink(planted);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(lstat(beside[i], &there), 0);
        assert_int_equal(there.st_size, 4);
        unlink(beside[i]);
    }
    assert_int_equal(lstat(path, &there), 0);
    assert_true(S_ISREG(there.st_mode));
}

static void a_plan_is_written_to_a_pipe_and_through_a_link(void **state) {
    (void)state;
    char link[96], pipe[96], text[8];
    struct stat there;
    snprintf(link, sizeof link, "%s.link", path);
    snprintf(pipe, sizeof pipe, "%s.pipe", path);
    write_text("old");
    assert_int_equal(symlink(path, link), 0);
    assert_false(err_is(plan_file_write_take(link, json_object())));
    assert_int_equal(lstat(link, &there), 0);
    assert_true(S_ISLNK(there.st_mode));
    assert_int_equal(lstat(path, &there), 0);
    assert_int_equal(there.st_size, 2);
    assert_int_equal(mkfifo(pipe, 0600), 0);
    int reader = open(pipe, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_false(err_is(plan_file_write_take(pipe, json_object())));
    assert_int_equal(read(reader, text, sizeof text), 2);
    assert_memory_equal(text, "{}", 2);
    close(reader);
    assert_int_equal(lstat(pipe, &there), 0);
    assert_true(S_ISFIFO(there.st_mode));
    unlink(link), unlink(pipe);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plan_that_is_written_reads_back),       cmocka_unit_test(a_wrong_plan_is_refused_with_the_place),
        cmocka_unit_test(wrong_counts_are_refused_with_the_place), cmocka_unit_test(a_failed_write_leaves_nothing),
        cmocka_unit_test(no_file_but_the_plan_is_written),         cmocka_unit_test(a_plan_is_written_to_a_pipe_and_through_a_link),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
