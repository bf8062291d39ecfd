// Tests log lines as written: stderr is a pipe here.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "daemon/log/log.h"

enum { TEXT_MAX = 1 << 16, THREADS = 4, LINES = 200 };

struct capture {
    int saved, pipe[2];
};

static void begin(struct capture *capture) {
    fflush(stderr);
    capture->saved = dup(STDERR_FILENO);
    assert_int_equal(pipe2(capture->pipe, O_CLOEXEC), 0);
    fcntl(capture->pipe[1], F_SETPIPE_SZ, 1 << 20);
    dup2(capture->pipe[1], STDERR_FILENO);
}

// The text written to stderr since begin.
static const char *end(struct capture *capture) {
    static char text[TEXT_MAX * 2];
    dup2(capture->saved, STDERR_FILENO);
    close(capture->saved);
    close(capture->pipe[1]);
    size_t length = 0;
    ssize_t n;
    while ((n = read(capture->pipe[0], text + length, sizeof text - 1 - length)) > 0) {
        length += (size_t)n;
    }
    close(capture->pipe[0]);
    text[length] = '\0';
    return text;
}

static void a_line_has_time_level_event_and_pairs(void **state) {
    (void)state;
    struct capture capture;
    log_init(LOG_LEVEL_INFO, false);
    begin(&capture);
    log_line(LOG_LEVEL_WARNING, "loaded", "layers=%d bytes=%d", 3, 4);
    const char *text = end(&capture);
    int year, month, day, hour, minute, second, millisecond, read = 0;
    int fields =
        sscanf(text, "time=%4d-%2d-%2dT%2d:%2d:%2d.%3dZ %n", &year, &month, &day, &hour, &minute, &second, &millisecond, &read);
    assert_int_equal(fields, 7);
    assert_string_equal(text + read, "level=warning event=loaded layers=3 bytes=4\n");
}

static void lines_below_the_level_are_left_out(void **state) {
    (void)state;
    struct capture capture;
    log_init(LOG_LEVEL_WARNING, false);
    begin(&capture);
    log_line(LOG_LEVEL_INFO, "quiet", "%s", "");
    log_line(LOG_LEVEL_DEBUG, "quiet", "%s", "");
    log_line(LOG_LEVEL_ERROR, "loud", "a=%d", 1);
    const char *text = end(&capture);
    assert_null(strstr(text, "quiet"));
    assert_non_null(strstr(text, "level=error event=loud a=1\n"));
}

static void the_journal_gets_priorities(void **state) {
    (void)state;
    static const char *const STARTS[] = {"<3>time=", "<4>time=", "<6>time=", "<7>time="};
    log_init(LOG_LEVEL_DEBUG, true);
    for (int level = LOG_LEVEL_ERROR; level <= LOG_LEVEL_DEBUG; level++) {
        struct capture capture;
        begin(&capture);
        log_line((enum log_level)level, "e", "a=%d", 1);
        assert_memory_equal(end(&capture), STARTS[level], strlen(STARTS[level]));
    }
    log_init(LOG_LEVEL_INFO, false);
}

static void control_bytes_forge_no_second_line(void **state) {
    (void)state;
    struct capture capture;
    begin(&capture);
    log_line(LOG_LEVEL_INFO, "e", "name=%s", "a\nlevel=error\x1b[31m\xc2\x9b");
    const char *text = end(&capture);
    assert_ptr_equal(strchr(text, '\n'), text + strlen(text) - 1);
    assert_null(strchr(text, '\x1b'));
    assert_null(strstr(text, "\xc2\x9b"));
}

static void a_long_line_is_cut_and_ends_with_a_newline(void **state) {
    (void)state;
    static char large[10000];
    struct capture capture;
    memset(large, 'x', sizeof large - 1);
    begin(&capture);
    log_line(LOG_LEVEL_INFO, "e", "a=%s", large);
    const char *text = end(&capture);
    assert_true(strlen(text) <= 4096);
    assert_int_equal(text[strlen(text) - 1], '\n');
}

static void *write_lines(void *mark) {
    for (int i = 0; i < LINES; i++) {
        log_line(LOG_LEVEL_INFO, "many", "mark=%s end=1", (const char *)mark);
    }
    return NULL;
}

static void lines_of_several_threads_never_mix(void **state) {
    (void)state;
    static char *const MARKS[THREADS] = {"aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb", "cccccccccccccccc", "dddddddddddddddd"};
    struct capture capture;
    pthread_t threads[THREADS];
    begin(&capture);
    for (int i = 0; i < THREADS; i++) {
        pthread_create(&threads[i], NULL, write_lines, MARKS[i]);
    }
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
    }
    static char text[TEXT_MAX * 2];
    snprintf(text, sizeof text, "%s", end(&capture));
    int lines = 0;
    char *save = NULL;
    for (char *line = strtok_r(text, "\n", &save); line; line = strtok_r(NULL, "\n", &save), lines++) {
        const char *mark = strstr(line, "mark=");
        assert_non_null(mark);
        assert_int_equal(strlen(mark), strlen("mark=aaaaaaaaaaaaaaaa end=1"));
        assert_int_equal(strspn(mark + 5, (char[2]){mark[5], '\0'}), 16);
    }
    assert_int_equal(lines, THREADS * LINES);
}

static void quoting_keeps_a_value_one_value(void **state) {
    (void)state;
    static const struct {
        const char *text, *quoted;
    } CASES[] = {
        {"plain-1.2:/x", "plain-1.2:/x"},
        {"", "\"\""},
        {"two words", "\"two words\""},
        {"a=b", "\"a=b\""},
        {"say \"hi\"", "\"say \\\"hi\\\"\""},
        {"back\\slash", "\"back\\\\slash\""},
        {"a\nb\tc\x01", "\"a\\nb\\tc\\u0001\""},
        {"\xc3\xa4 \xe2\x82\xac", "\"\xc3\xa4 \xe2\x82\xac\""},
        {"\xc2\x9bmode", "\"\\u009bmode\""},
        {"\xc2\x80\xc2\x9f", "\"\\u0080\\u009f\""},
        {"\xc2\xa0", "\xc2\xa0"},
        {"\xc2", "\xc2"},
    };
    char out[64];
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        assert_string_equal(log_quote(CASES[i].text, out, sizeof out), CASES[i].quoted);
    }
}

static void a_cut_value_keeps_its_quote_and_whole_characters(void **state) {
    (void)state;
    char out[8];
    memset(out, '#', sizeof out);
    assert_string_equal(log_quote("a b c d e f g", out, 7), "\"a b \"");
    assert_int_equal(out[7], '#');
    assert_string_equal(log_quote("abcdefghijkl", out, 7), "\"abcd\"");
    assert_string_equal(log_quote("   \n", out, 7), "\"   \"");
    assert_string_equal(log_quote("   \xe2\x82\xac", out, 7), "\"   \"");
    assert_string_equal(log_quote("x y", out, 2), "");
    assert_string_equal(log_quote("\xe2", out, 7), "\xe2"); // an incomplete character: no byte after it is read
    assert_string_equal(log_quote(" \xe2", out, 7), "\" \xe2\"");
}

static void levels_are_known_by_name(void **state) {
    (void)state;
    enum log_level level = LOG_LEVEL_ERROR;
    assert_true(log_level_parse("debug", &level));
    assert_int_equal(level, LOG_LEVEL_DEBUG);
    assert_false(log_level_parse("warn", &level));
    assert_false(log_level_parse("", &level));
    assert_int_equal(level, LOG_LEVEL_DEBUG);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_time_level_event_and_pairs),
        cmocka_unit_test(lines_below_the_level_are_left_out),
        cmocka_unit_test(the_journal_gets_priorities),
        cmocka_unit_test(control_bytes_forge_no_second_line),
        cmocka_unit_test(a_long_line_is_cut_and_ends_with_a_newline),
        cmocka_unit_test(lines_of_several_threads_never_mix),
        cmocka_unit_test(quoting_keeps_a_value_one_value),
        cmocka_unit_test(a_cut_value_keeps_its_quote_and_whole_characters),
        cmocka_unit_test(levels_are_known_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
