// Writing to a path that is a file, a link, a FIFO, a device, a folder or a socket.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/regular_file.h"

static char folder[64];

static int make_folder(void **state) {
    (void)state;
    strcpy(folder, "/tmp/expertd-regular-XXXXXX");
    return mkdtemp(folder) && chdir(folder) == 0 ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static err_t write_text(const char *path, const char *text) {
    struct regular_file_new file;
    TRY(regular_file_begin(path, REGULAR_FILE_OR_STREAM, &file));
    return regular_file_end(&file, regular_file_write(file.fd, text, strlen(text)));
}

static void assert_holds(const char *path, const char *text) {
    char *found;
    size_t length;
    assert_false(err_is(regular_file_read(path, 100, &found, &length)));
    assert_string_equal(found, text);
    free(found);
}

static mode_t type_of(const char *path) {
    struct stat status;
    assert_int_equal(lstat(path, &status), 0);
    return status.st_mode & S_IFMT;
}

static void assert_nothing_is_left_beside(const char *path) {
    char pattern[128];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s.*", path);
    assert_int_equal(glob(pattern, 0, NULL, &found), GLOB_NOMATCH);
}

static void a_file_is_replaced_atomically(void **state) {
    (void)state;
    struct regular_file_new file;
    assert_false(err_is(write_text("kept", "old")));
    assert_false(err_is(regular_file_begin("kept", REGULAR_FILE_ONLY, &file)));
    assert_false(err_is(regular_file_write(file.fd, "new", 3)));
    assert_holds("kept", "old");
    assert_false(err_is(regular_file_end(&file, OK)));
    assert_holds("kept", "new");
    assert_nothing_is_left_beside("kept");
}

static void an_old_file_keeps_its_mode_and_a_new_one_obeys_the_umask(void **state) {
    (void)state;
    static const mode_t MASKS[][2] = {{0077, 0600}, {0022, 0644}, {0, 0666}}; // umask, and the resulting mode
    struct stat status;
    for (size_t i = 0; i < sizeof MASKS / sizeof *MASKS; i++) {
        mode_t before = umask(MASKS[i][0]);
        err_t e = write_text("masked", "new");
        umask(before);
        assert_false(err_is(e));
        assert_int_equal(stat("masked", &status), 0);
        assert_int_equal(status.st_mode & 0777, MASKS[i][1]);
        assert_int_equal(chmod("masked", 0640), 0);
        assert_false(err_is(write_text("masked", "newer")));
        assert_int_equal(stat("masked", &status), 0);
        assert_int_equal(status.st_mode & 0777, 0640);
        assert_int_equal(unlink("masked"), 0);
    }
}

enum { MEMBER = 54321, TEAM = 12345, NO_MOUNT = 77 };

// MEMBER, in group TEAM or not, replaces a file of root with group TEAM and this mode.
static void replace_of_team(mode_t mode, bool is_of_team, struct stat *after) {
    const gid_t team = TEAM, own = MEMBER;
    assert_int_equal(chmod(".", 0777), 0);
    assert_false(err_is(write_text("of_team", "old")));
    assert_int_equal(chown("of_team", 0, TEAM), 0);
    assert_int_equal(chmod("of_team", mode), 0);
    assert_int_equal(setgroups(1, is_of_team ? &team : &own), 0);
    assert_int_equal(setegid(MEMBER), 0);
    assert_int_equal(seteuid(MEMBER), 0);
    err_t e = write_text("of_team", "new");
    assert_int_equal(seteuid(0), 0);
    assert_int_equal(setegid(0), 0);
    assert_int_equal(setgroups(0, NULL), 0);
    assert_false(err_is(e));
    assert_holds("of_team", "new");
    assert_int_equal(stat("of_team", after), 0);
    assert_int_equal(after->st_uid, MEMBER);
}

static void group_rights_are_kept_or_reduced(void **state) {
    (void)state;
    struct stat after;
    if (geteuid() != 0) {
        skip();
    }
    replace_of_team(0660, true, &after);
    assert_int_equal(after.st_gid, TEAM);
    assert_int_equal(after.st_mode & 0777, 0660);
    replace_of_team(0660, false, &after);
    assert_int_equal(after.st_gid, MEMBER);
    assert_int_equal(after.st_mode & 0777, 0600);
    replace_of_team(0664, false, &after);
    assert_int_equal(after.st_mode & 0777, 0644);
}

// Runs in a separate process. Returns 0, or the number of the step that failed.
static int refuse_mounted(void) {
    struct regular_file_new file;
    if (unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0 || mount("beneath", "mounted", NULL, MS_BIND, NULL) != 0) {
        return NO_MOUNT;
    }
    err_t e = regular_file_begin("mounted", REGULAR_FILE_ONLY, &file);
    return e.code == EXPERTD_ERR_IO && strstr(expertd_err_message(), "it is a mount point") ? 0 : 1;
}

static void a_mount_point_is_refused_before_writing(void **state) {
    (void)state;
    int status;
    assert_false(err_is(write_text("beneath", "old")));
    assert_false(err_is(write_text("mounted", "hidden")));
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        _exit(refuse_mounted());
    }
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    if (WEXITSTATUS(status) == NO_MOUNT) {
        skip();
    }
    assert_int_equal(WEXITSTATUS(status), 0);
    assert_holds("beneath", "old");
    assert_nothing_is_left_beside("mounted");
}

static void a_name_may_have_the_maximum_length(void **state) {
    (void)state;
    char name[NAME_MAX + 1], path[NAME_MAX + 8];
    memset(name, 'n', NAME_MAX);
    name[NAME_MAX] = '\0';
    snprintf(path, sizeof path, "./%s", name);
    assert_false(err_is(write_text(name, "old")));
    assert_holds(path, "old");
    assert_false(err_is(write_text(path, "new")));
    assert_holds(name, "new");
}

static void a_failure_keeps_the_old_file_and_leaves_no_other(void **state) {
    (void)state;
    struct regular_file_new file;
    assert_false(err_is(write_text("kept", "old")));
    assert_false(err_is(regular_file_begin("kept", REGULAR_FILE_ONLY, &file)));
    assert_int_equal(regular_file_end(&file, err_record(EXPERTD_ERR_NOMEM, NULL, "it failed")).code, EXPERTD_ERR_NOMEM);
    assert_holds("kept", "old");
    assert_nothing_is_left_beside("kept");
}

static void a_link_is_kept_and_its_target_is_replaced(void **state) {
    (void)state;
    assert_int_equal(mkdir("far", 0700), 0);
    assert_false(err_is(write_text("far/real", "old")));
    assert_int_equal(symlink("far/real", "near"), 0);
    assert_int_equal(symlink("near", "nearer"), 0);
    assert_false(err_is(write_text("nearer", "new")));
    assert_int_equal(type_of("nearer"), S_IFLNK);
    assert_int_equal(type_of("near"), S_IFLNK);
    assert_int_equal(type_of("far/real"), S_IFREG);
    assert_holds("far/real", "new");
    assert_nothing_is_left_beside("far/real");
}

static void a_fifo_is_written_and_kept(void **state) {
    (void)state;
    char found[8] = "";
    assert_int_equal(mkfifo("pipe", 0600), 0);
    int reader = open("pipe", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(reader >= 0);
    assert_false(err_is(write_text("pipe", "bytes")));
    assert_int_equal(read(reader, found, sizeof found), 5);
    assert_string_equal(found, "bytes");
    close(reader);
    assert_int_equal(type_of("pipe"), S_IFIFO);
    assert_nothing_is_left_beside("pipe");
}

static void a_fifo_is_refused_with_file_only(void **state) {
    (void)state;
    struct regular_file_new file;
    assert_int_equal(mkfifo("unread", 0600), 0);
    assert_int_equal(regular_file_begin("unread", REGULAR_FILE_ONLY, &file).code,
                     EXPERTD_ERR_IO); // opening it would wait for a reader
    assert_non_null(strstr(expertd_err_message(), "it is not a regular file"));
    assert_int_equal(type_of("unread"), S_IFIFO);
}

static void a_device_is_kept_also_behind_a_link(void **state) {
    (void)state;
    assert_int_equal(symlink("/dev/null", "null"), 0);
    assert_false(err_is(write_text("null", "bytes")));
    assert_int_equal(type_of("null"), S_IFLNK);
    assert_int_equal(type_of("/dev/null"), S_IFCHR);
}

// Standard output goes to `path` while `printed`, bytes for `named` and `printed` again are written.
static err_t print_around(const char *path, const char *named, const char *printed) {
    fflush(stdout);
    int before = dup(STDOUT_FILENO), file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    assert_true(before >= 0 && file >= 0 && dup2(file, STDOUT_FILENO) == STDOUT_FILENO);
    close(file);
    ssize_t length = (ssize_t)strlen(printed), first = write(STDOUT_FILENO, printed, (size_t)length);
    err_t e = write_text(named, "bytes");
    ssize_t second = write(STDOUT_FILENO, printed, (size_t)length);
    assert_true(dup2(before, STDOUT_FILENO) == STDOUT_FILENO && first == length && second == length);
    close(before);
    return e;
}

static void the_file_of_standard_output_is_appended_to(void **state) {
    (void)state;
    static const char *const NAMES[] = {"/dev/stdout", "printed"};
    for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) {
        assert_false(err_is(write_text("printed", "old ")));
        assert_false(err_is(print_around("printed", NAMES[i], "line ")));
        assert_holds("printed", "old line bytesline ");
        assert_nothing_is_left_beside("printed");
    }
}

static void refused(const char *path, mode_t type, const char *cause) {
    assert_int_equal(write_text(path, "bytes").code, EXPERTD_ERR_IO);
    assert_non_null(strstr(expertd_err_message(), cause));
    assert_int_equal(type_of(path), type);
    assert_nothing_is_left_beside(path);
}

static void unsupported_files_are_left_unchanged(void **state) {
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = "socket"};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(mkdir("folder", 0700), 0);
    assert_int_equal(symlink("nowhere", "dangling"), 0);
    refused("socket", S_IFSOCK, "neither a regular file nor a pipe");
    refused("folder", S_IFDIR, "neither a regular file nor a pipe");
    refused("dangling", S_IFLNK, "a dangling link");
    assert_int_equal(access("nowhere", F_OK), -1);
    assert_int_equal(write_text("no/such/folder", "bytes").code, EXPERTD_ERR_IO);
    close(fd);
}

static err_t read_as_nobody(void) {
    char *bytes;
    size_t length;
    if (geteuid() == 0 && setuid(65534) != 0) {
        return (err_t){EXPERTD_ERR_INTERNAL};
    }
    return regular_file_read("secret", 100, &bytes, &length);
}

// A permanent cause is an error of the file, and the message has the remedy.
static void an_unreadable_file_names_the_user(void **state) {
    (void)state;
    int status;
    assert_false(err_is(write_text("secret", "text")));
    assert_int_equal(chmod("secret", 0), 0);
    assert_int_equal(chmod(".", 0755), 0); // root may read every file, so the check runs as another user
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bool right =
            read_as_nobody().code == EXPERTD_ERR_CHECKPOINT && strstr(expertd_err_message(), "secret: Permission denied: let uid ");
        _exit(right ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_is_replaced_atomically),
        cmocka_unit_test(an_old_file_keeps_its_mode_and_a_new_one_obeys_the_umask),
        cmocka_unit_test(group_rights_are_kept_or_reduced),
        cmocka_unit_test(a_mount_point_is_refused_before_writing),
        cmocka_unit_test(a_name_may_have_the_maximum_length),
        cmocka_unit_test(a_failure_keeps_the_old_file_and_leaves_no_other),
        cmocka_unit_test(a_link_is_kept_and_its_target_is_replaced),
        cmocka_unit_test(a_fifo_is_written_and_kept),
        cmocka_unit_test(a_fifo_is_refused_with_file_only),
        cmocka_unit_test(a_device_is_kept_also_behind_a_link),
        cmocka_unit_test(the_file_of_standard_output_is_appended_to),
        cmocka_unit_test(unsupported_files_are_left_unchanged),
        cmocka_unit_test(an_unreadable_file_names_the_user),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
