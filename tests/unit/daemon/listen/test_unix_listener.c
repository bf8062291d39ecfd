// The Unix listener with real sockets: live, stale and other files at the path, user ids of peers, a lack of descriptors.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

#include "daemon/listen/lockfile.h"
#include "daemon/listen/unix_listener.h"
#include "daemon/log/log.h"

enum { ACCEPTED_MAX = 256, STRANGER = 65534 };

struct fixture {
    char folder[64], path[96], lock[104];
    uv_loop_t loop;
    struct unix_listener *listener;
    int fds[ACCEPTED_MAX];
    uid_t uid;
    size_t count;
    bool stop_at_first;
};

static void accepted(void *context, int fd, uid_t uid) {
    struct fixture *f = context;
    assert_true(f->count < ACCEPTED_MAX);
    f->fds[f->count++] = fd;
    f->uid = uid;
    if (f->stop_at_first) {
        unix_listener_stop(f->listener);
    }
}

static int make(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    strcpy(f->folder, "/tmp/expertd-test-listener-XXXXXX");
    if (!f || !mkdtemp(f->folder) || chmod(f->folder, 0755) != 0 || uv_loop_init(&f->loop) != 0) {
        return -1;
    }
    snprintf(f->path, sizeof f->path, "%s/s.sock", f->folder);
    snprintf(f->lock, sizeof f->lock, "%s.lock", f->path);
    log_init(LOG_LEVEL_ERROR, false);
    *state = f;
    return 0;
}

static int unmake(void **state) {
    struct fixture *f = *state;
    unix_listener_stop(f->listener);
    uv_run(&f->loop, UV_RUN_DEFAULT);
    int busy = uv_loop_close(&f->loop);
    for (size_t i = 0; i < f->count; i++) {
        close(f->fds[i]);
    }
    unlink(f->path);
    unlink(f->lock);
    int left = rmdir(f->folder); // fails if another file is left
    free(f);
    return busy || left;
}

static struct unix_listener_options options_of(struct fixture *f, const char *allow_uids) {
    return (struct unix_listener_options){
        .loop = &f->loop, .path = f->path, .allow_uids = allow_uids, .accepted = accepted, .context = f};
}

static void start(struct fixture *f, const char *allow_uids) {
    struct unix_listener_options options = options_of(f, allow_uids);
    if (err_is(unix_listener_start(&options, &f->listener))) {
        fail_msg("%s", expertd_err_message());
    }
}

static void stop(struct fixture *f) {
    unix_listener_stop(f->listener);
    f->listener = NULL;
    uv_run(&f->loop, UV_RUN_DEFAULT);
}

static void turns(struct fixture *f, int count) {
    for (int i = 0; i < count; i++) {
        uv_run(&f->loop, UV_RUN_NOWAIT);
        usleep(500);
    }
}

// Returns -1 if the connection is refused.
static int dial(const char *path) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static int dial_and_speak(const char *path) {
    int fd = dial(path);
    assert_int_equal(write(fd, "x", 1), 1);
    return fd;
}

// Creates a socket file like that of a daemon that has died. Returns the descriptor, which still listens.
static int listen_plainly(const char *path) {
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    assert_int_equal(listen(fd, 5), 0);
    return fd;
}

static void expect_refused(struct fixture *f, const char *message) {
    struct unix_listener_options options = options_of(f, "self");
    struct unix_listener *second;
    err_t e = unix_listener_start(&options, &second);
    assert_string_equal(err_is(e) ? expertd_err_message() : "(no error)", message);
    assert_int_equal(e.code, EXPERTD_ERR_UNAVAILABLE);
    assert_null(second);
}

static bool exists(const char *path) {
    struct stat there;
    return lstat(path, &there) == 0;
}

// ---- start and stop

static void a_peer_is_handed_over_with_its_user_id(void **state) {
    struct fixture *f = *state;
    start(f, "self");
    int fd = dial_and_speak(f->path);
    assert_true(fd >= 0);
    turns(f, 3);
    assert_int_equal(f->count, 1);
    assert_int_equal(f->uid, geteuid());
    assert_true(fcntl(f->fds[0], F_GETFL) & O_NONBLOCK);
    assert_true(fcntl(f->fds[0], F_GETFD) & FD_CLOEXEC);
    char byte = 0;
    assert_int_equal(write(f->fds[0], "x", 1), 1);
    assert_int_equal(read(fd, &byte, 1), 1);
    assert_int_equal(byte, 'x');
    close(fd);
}

static void many_peers_at_once_are_all_handed_over(void **state) {
    struct fixture *f = *state;
    int fds[100];
    start(f, "any");
    for (int i = 0; i < 100; i++) {
        fds[i] = dial_and_speak(f->path);
        assert_true(fds[i] >= 0);
    }
    turns(f, 10);
    assert_int_equal(f->count, 100);
    for (int i = 0; i < 100; i++) {
        close(fds[i]);
    }
}

static void stopping_removes_both_files_and_keeps_connections(void **state) {
    struct fixture *f = *state;
    start(f, "self");
    assert_true(exists(f->path) && exists(f->lock));
    int fd = dial_and_speak(f->path);
    turns(f, 3);
    stop(f);
    assert_false(exists(f->path) || exists(f->lock));
    assert_int_equal(write(f->fds[0], "x", 1), 1);
    close(fd);
    start(f, "self"); // the path is free again
    fd = dial_and_speak(f->path);
    assert_true(fd >= 0);
    close(fd);
    unix_listener_stop(NULL);
}

static void the_callback_may_stop_the_listener(void **state) {
    struct fixture *f = *state;
    start(f, "self");
    f->stop_at_first = true;
    int first = dial_and_speak(f->path), second = dial_and_speak(f->path);
    turns(f, 3);
    f->listener = NULL;
    assert_int_equal(f->count, 1);
    assert_false(exists(f->path));
    close(first);
    close(second);
}

static void the_file_has_the_mode_whatever_the_umask(void **state) {
    static const struct {
        const char *allow_uids;
        unsigned mode, expected;
    } CASES[] = {{"self", 0, 0600}, {"any", 0, 0666}, {"0,1000", 0, 0666}, {"self", 0660, 0660}};
    static const mode_t UMASKS[] = {0, 022, 0777};
    struct fixture *f = *state;
    for (size_t i = 0; i < 4; i++) {
        for (size_t u = 0; u < 3; u++) {
            struct unix_listener_options options = options_of(f, CASES[i].allow_uids);
            options.mode = CASES[i].mode;
            mode_t before = umask(UMASKS[u]);
            err_t e = unix_listener_start(&options, &f->listener);
            assert_int_equal(umask(before), UMASKS[u]); // the listener restores the umask
            assert_false(err_is(e));
            struct stat made;
            assert_int_equal(stat(f->path, &made), 0);
            assert_int_equal(made.st_mode & 0777, CASES[i].expected);
            stop(f);
        }
    }
}

// ---- files at the path

static void a_second_daemon_fails_at_once_and_names_the_first(void **state) {
    struct fixture *f = *state;
    char message[512];
    start(f, "self");
    snprintf(message, sizeof message,
             "cannot listen on %s: process %ld (this process has the same id: do two of its addresses have this path?) holds %s: "
             "stop it, or choose "
             "another address",
             f->path, (long)getpid(), f->lock);
    expect_refused(f, message);
    int fd = dial_and_speak(f->path); // the first listener still works
    assert_true(fd >= 0);
    turns(f, 3);
    assert_int_equal(f->count, 1);
    close(fd);
}

static void a_stale_socket_is_replaced(void **state) {
    struct fixture *f = *state;
    close(listen_plainly(f->path));
    assert_true(exists(f->path));
    assert_int_equal(dial(f->path), -1);
    start(f, "self");
    int fd = dial(f->path);
    assert_true(fd >= 0);
    close(fd);
}

static void files_of_a_killed_daemon_are_replaced(void **state) {
    struct fixture *f = *state;
    int ready[2];
    assert_int_equal(pipe(ready), 0);
    pid_t child = fork();
    if (child == 0) {
        struct fixture own = *f;
        uv_loop_init(&own.loop);
        struct unix_listener_options options = options_of(&own, "self");
        _exit(err_is(unix_listener_start(&options, &own.listener)) || write(ready[1], "r", 1) != 1 ? 1 : pause());
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    char message[512];
    snprintf(message, sizeof message, "cannot listen on %s: process %ld holds %s: stop it, or choose another address", f->path,
             (long)child, f->lock);
    expect_refused(f, message);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    assert_true(exists(f->path) && exists(f->lock));
    start(f, "self");
    int fd = dial(f->path);
    assert_true(fd >= 0);
    close(fd);
    close(ready[0]);
    close(ready[1]);
}

static void a_regular_file_at_the_path_is_kept(void **state) {
    struct fixture *f = *state;
    char message[512];
    snprintf(message, sizeof message, "%s exists and is not a socket: remove it, or choose another path", f->path);
    FILE *file = fopen(f->path, "w");
    fputs("precious", file);
    fclose(file);
    expect_refused(f, message);
    struct stat there;
    assert_int_equal(stat(f->path, &there), 0);
    assert_int_equal(there.st_size, 8);
    assert_false(exists(f->lock));
    unlink(f->path);
    assert_int_equal(symlink("/nowhere", f->path), 0);
    expect_refused(f, message);
    unlink(f->path);
    assert_int_equal(mkdir(f->path, 0700), 0);
    expect_refused(f, message);
    rmdir(f->path);
}

static void a_live_socket_of_another_program_is_kept(void **state) {
    struct fixture *f = *state;
    char message[512];
    int fd = listen_plainly(f->path);
    snprintf(message, sizeof message, "another program listens on %s: stop it, or choose another path", f->path);
    expect_refused(f, message);
    int client = dial(f->path);
    assert_true(client >= 0);
    close(client);
    close(fd);
}

// It refuses connections although a process reads from it.
static void a_datagram_socket_is_kept(void **state) {
    struct fixture *f = *state;
    char message[512];
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "%s", f->path);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    snprintf(message, sizeof message, "another program listens on %s: stop it, or choose another path", f->path);
    expect_refused(f, message);
    close(fd);
}

static void a_missing_folder_is_reported(void **state) {
    struct fixture *f = *state;
    char message[512];
    struct fixture other = *f;
    snprintf(other.path, sizeof other.path, "%s/no/s.sock", f->folder);
    snprintf(message, sizeof message, "cannot listen on %s: cannot create the lock file %s.lock: No such file or directory",
             other.path, other.path);
    expect_refused(&other, message);
}

static void a_lock_that_is_a_link_is_not_followed(void **state) {
    struct fixture *f = *state;
    char target[128], message[512];
    snprintf(target, sizeof target, "%s/target", f->folder);
    assert_int_equal(symlink(target, f->lock), 0);
    snprintf(message, sizeof message, "cannot listen on %s: cannot create the lock file %s: Too many levels of symbolic links",
             f->path, f->lock);
    expect_refused(f, message);
    assert_false(exists(target));
}

static void a_path_too_long_for_a_socket_is_refused(void **state) {
    struct fixture *f = *state;
    char path[200];
    memset(path, 'x', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    struct unix_listener_options options = options_of(f, "self");
    options.path = path;
    struct unix_listener *out;
    assert_int_equal(unix_listener_start(&options, &out).code, EXPERTD_ERR_UNAVAILABLE);
    assert_non_null(strstr(expertd_err_message(), "the path of a Unix socket has 1 to 107 bytes, not 199"));
}

static void a_socket_that_replaced_ours_is_kept(void **state) {
    struct fixture *f = *state;
    start(f, "self");
    unlink(f->path);
    int fd = listen_plainly(f->path);
    stop(f);
    assert_true(exists(f->path));
    close(fd);
}

static void a_released_lock_can_be_taken(void **state) {
    struct fixture *f = *state;
    struct lockfile first, second;
    assert_false(err_is(lockfile_take(f->lock, &first)));
    assert_int_equal(lockfile_take(f->lock, &second).code, EXPERTD_ERR_UNAVAILABLE);
    lockfile_release(&second);
    lockfile_release(&first);
    lockfile_release(&first);
    assert_false(exists(f->lock));
    assert_false(err_is(lockfile_take(f->lock, &second)));
    lockfile_release(&second);
}

// ---- admission

static void user_ids_are_checked_against_the_list(void **state) {
    (void)state;
    static const struct {
        const char *rule;
        uid_t own, peer;
        bool allowed;
    } CASES[] = {
        {"self", 1000, 1000, true}, {"self", 1000, 0, true},   {"self", 1000, 1001, false}, {"self", 0, 1000, false},
        {"any", 1000, 4242, true},  {"1,22,3", 7, 22, true},   {"1,22,3", 7, 2, false},     {"1,22,3", 7, 3, true},
        {"1,22,3", 7, 7, false},    {"1000", 7, 0, false},     {"0", 7, 0, true},           {"", 7, 7, false},
        {"1000", 7, 100, false},    {"1000", 7, 10000, false},
    };
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++) {
        assert_int_equal(unix_listener_allows(CASES[i].rule, CASES[i].own, CASES[i].peer), CASES[i].allowed);
    }
}

static void an_unlisted_peer_is_closed_without_a_callback(void **state) {
    struct fixture *f = *state;
    char list[32];
    snprintf(list, sizeof list, "%ld", (long)geteuid() + 1);
    start(f, list);
    int fd = dial(f->path);
    turns(f, 3);
    char byte;
    assert_int_equal(read(fd, &byte, 1), 0);
    assert_int_equal(f->count, 0);
    close(fd);
}

// Connects as another user, if the test may change its uid.
static void another_user_is_admitted_by_its_uid_only(void **state) {
    struct fixture *f = *state;
    if (geteuid() != 0) {
        skip();
    }
    static const char *const RULES[] = {"self", "any", "65534"};
    static const size_t EXPECTED[] = {0, 1, 1};
    for (size_t i = 0; i < 3; i++) {
        f->count = 0;
        start(f, RULES[i]);
        pid_t child = fork();
        if (child == 0) {
            int fd = setuid(STRANGER) == 0 ? dial(f->path) : -1;
            char byte = 0;
            (void)!write(fd, &byte, 1);
            usleep(100000);
            _exit(fd < 0 ? 1 : read(fd, &byte, 1) == 0 ? 2 : 0);
        }
        int status = -1;
        while (waitpid(child, &status, WNOHANG) == 0) {
            turns(f, 2);
        }
        turns(f, 3);
        assert_int_equal(f->count, EXPECTED[i]);
        assert_int_equal(WEXITSTATUS(status), i ? 0 : 1); // the mode of the file refuses it before its uid is checked
        if (f->count) {
            assert_int_equal(f->uid, STRANGER);
            close(f->fds[0]);
            f->count = 0;
        }
        stop(f);
    }
}

// ---- lack of descriptors

static void without_descriptors_accepting_pauses(void **state) {
    struct fixture *f = *state;
    struct rlimit before, none;
    start(f, "self");
    int fd = dial_and_speak(f->path);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3; // every lower number is in use
    log_init(LOG_LEVEL_ERROR, false);
    int saved = dup(STDERR_FILENO), null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    dup2(null, STDERR_FILENO); // a log line is expected
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rounds = 0;
    for (uint64_t begin = uv_hrtime(); uv_hrtime() - begin < 300u * 1000 * 1000; rounds++) {
        uv_run(&f->loop, UV_RUN_ONCE);
    }
    setrlimit(RLIMIT_NOFILE, &before);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(null);
    assert_true(rounds < 30); // a busy loop makes thousands
    assert_int_equal(f->count, 0);
    turns(f, 300); // the pause ends, and the waiting peer is accepted
    assert_int_equal(f->count, 1);
    close(fd);
}

#define LISTENER_TEST(name) cmocka_unit_test_setup_teardown(name, make, unmake)

int main(void) {
    const struct CMUnitTest tests[] = {
        LISTENER_TEST(a_peer_is_handed_over_with_its_user_id),
        LISTENER_TEST(many_peers_at_once_are_all_handed_over),
        LISTENER_TEST(stopping_removes_both_files_and_keeps_connections),
        LISTENER_TEST(the_callback_may_stop_the_listener),
        LISTENER_TEST(the_file_has_the_mode_whatever_the_umask),
        LISTENER_TEST(a_second_daemon_fails_at_once_and_names_the_first),
        LISTENER_TEST(a_stale_socket_is_replaced),
        LISTENER_TEST(files_of_a_killed_daemon_are_replaced),
        LISTENER_TEST(a_regular_file_at_the_path_is_kept),
        LISTENER_TEST(a_live_socket_of_another_program_is_kept),
        LISTENER_TEST(a_datagram_socket_is_kept),
        LISTENER_TEST(a_missing_folder_is_reported),
        LISTENER_TEST(a_lock_that_is_a_link_is_not_followed),
        LISTENER_TEST(a_path_too_long_for_a_socket_is_refused),
        LISTENER_TEST(a_socket_that_replaced_ours_is_kept),
        LISTENER_TEST(a_released_lock_can_be_taken),
        cmocka_unit_test(user_ids_are_checked_against_the_list),
        LISTENER_TEST(an_unlisted_peer_is_closed_without_a_callback),
        LISTENER_TEST(another_user_is_admitted_by_its_uid_only),
        LISTENER_TEST(without_descriptors_accepting_pauses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
