/* Run directories: the lock between processes, starting afresh, trimming metrics; and the signals that
 * stop a run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/fault.h"
#include "base/file.h"
#include "base/log.h"
#include "base/folder.h"
#include "run/rundir.h"
#include "base/signals.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int base_setup(void **state)
{
    char *dir = strdup("/tmp/brim_runs_XXXXXX");
    *state    = dir;
    if (!dir || !mkdtemp(dir)) return -1;
    return setenv("BRIM_RUNS", dir, 1);
}

static int base_teardown(void **state)
{
    fault_disarm();
    err_clear();
    int rc = folder_remove((const char *)*state);
    free(*state);
    return rc;
}

static void put(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void expect_text(const char *path, const char *want)
{
    char  *text;
    size_t n;
    if (file_read_all(path, 1 << 20, &text, &n) < 0) fail_msg("%s", err_get());
    assert_string_equal(text, want);
    free(text);
}

static void expect_user(const char *part)
{
    if (!strstr(err_get(), part)) fail_msg("message '%s' lacks '%s'", err_get(), part);
    assert_int_equal(err_kind(), ERR_USER);
    err_clear();
}

static int count_entries(const char *folder)
{
    Arena  a;
    char **names;
    arena_init(&a);
    int n = file_list(&a, folder, "", &names);
    arena_deinit(&a);
    return n;
}

/* ---- Lock ---------------------------------------------------------------------------------------------- */

static void makes_and_names(void **state)
{
    RunDir d;
    assert_int_equal(rundir_open(&d, "a"), 0);
    assert_int_equal(file_kind(d.checkpoints), FILE_FOLDER);
    assert_non_null(strstr(d.metrics, "/a/metrics.jsonl"));
    assert_non_null(strstr(d.recipe, "/a/recipe.yaml"));
    assert_int_equal(file_kind(d.lock), FILE_REGULAR);
    rundir_close(&d);
    assert_int_equal(file_kind(d.lock), FILE_NONE);
    rundir_close(&d); /* twice is harmless */
    const char *bad[] = { "", "a/b", "..", ".x", "a\nb" };
    for (int i = 0; i < ARRAY_LEN(bad); i++) {
        assert_int_equal(rundir_open(&d, bad[i]), -1);
        expect_user("cannot be the name of a folder");
    }
    unsetenv("BRIM_RUNS");
    assert_string_equal(rundir_base(), "runs");
}

/* A directory that goes away is made anew; one that another run has by now is left alone. */
static void holds_its_directory(void **state)
{
    RunDir d, other;
    char   aside[RUNDIR_PATH];
    assert_int_equal(rundir_open(&d, "a"), 0);
    assert_int_equal(rundir_hold(&d), 0);
    assert_int_equal(rmdir(d.checkpoints), 0);
    assert_int_equal(rundir_hold(&d), 0);
    assert_int_equal(file_kind(d.checkpoints), FILE_FOLDER);
    assert_int_equal(unlink(d.lock), 0);
    assert_int_equal(rundir_hold(&d), 0);
    assert_int_equal(file_kind(d.lock), FILE_REGULAR);
    assert_int_equal(folder_remove(d.path), 0);
    assert_int_equal(rundir_is_lost(&d), 0);
    assert_int_equal(rundir_hold(&d), 1);
    assert_int_equal(file_kind(d.checkpoints), FILE_FOLDER);
    assert_int_equal(rundir_open(&other, "a"), -1); /* locked again */
    expect_user("in use by pid");
    snprintf(aside, sizeof aside, "%s/b", (const char *)*state);
    assert_int_equal(rename(d.path, aside), 0);
    assert_int_equal(rundir_open(&other, "a"), 0);
    assert_int_equal(rundir_begin(&other, 0), 0);
    for (int i = 0; i < 2; i++) { /* while the other has it, and after */
        assert_int_equal(rundir_hold(&d), -1);
        assert_non_null(strstr(err_get(), "the directory of another run"));
        assert_int_equal(rundir_is_lost(&d), 1);
        err_clear();
        rundir_close(&other);
    }
    rundir_close(&d);
}

static void finds_evaluations(void **state)
{
    RunDir d;
    assert_int_equal(rundir_open(&d, "a"), 0);
    assert_int_equal(rundir_has_eval(&d, 3), 0);
    put(d.metrics, "{\"step\": 3, \"loss\": 1.5}\n{\"step\": 2, \"val_loss\": 2.5}\njunk\n{\"step\": 5, "
                   "\"val_loss\": null}\n");
    assert_int_equal(rundir_has_eval(&d, 2), 1);
    assert_int_equal(rundir_has_eval(&d, 3), 0);
    assert_int_equal(rundir_has_eval(&d, 5), 1);
    rundir_close(&d);
}

/* A child that holds the lock until it is killed; returns once it has it. */
static pid_t hold(const char *name)
{
    int  ready[2];
    char c;
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        RunDir d;
        c = rundir_open(&d, name) == 0 ? 'y' : 'n';
        if (write(ready[1], &c, 1) != 1) _exit(1);
        for (;;) pause();
    }
    assert_int_equal(read(ready[0], &c, 1), 1);
    assert_int_equal(c, 'y');
    close(ready[0]);
    close(ready[1]);
    return pid;
}

static void second_run_is_refused(void **state)
{
    RunDir d;
    char   who[64];
    pid_t  pid = hold("a");
    snprintf(who, sizeof who, "/a is in use by pid %ld (started 2", (long)pid);
    assert_int_equal(rundir_open(&d, "a"), -1);
    expect_user(who);
    assert_int_equal(count_entries((const char *)*state), 1); /* nothing was moved */
    assert_int_equal(rundir_open(&d, "b"), 0);                /* another name is free */
    rundir_close(&d);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    rundir_paths(&d, "a");
    assert_int_equal(file_kind(d.lock), FILE_REGULAR); /* left behind, but nobody holds it */
    assert_int_equal(rundir_open(&d, "a"), 0);
    rundir_close(&d);
}

/* The pid in a stale lock may belong to somebody else by now: here, to ourselves. */
static void reused_pid_does_not_lock(void **state)
{
    RunDir d;
    char   text[64];
    assert_int_equal(rundir_open(&d, "a"), 0);
    assert_int_equal(rundir_begin(&d, 0), 0);
    rundir_close(&d);
    snprintf(text, sizeof text, "pid %ld (started 2020-01-01 00:00:00)\n", (long)getpid());
    put(d.lock, text);
    assert_int_equal(rundir_open(&d, "a"), 0);
    char  *now;
    size_t n;
    assert_int_equal(file_read_all(d.lock, 256, &now, &n), 0);
    assert_null(strstr(now, "2020"));
    free(now);
    /* In the same process too, a second opening is refused. */
    RunDir again;
    assert_int_equal(rundir_open(&again, "a"), -1);
    expect_user("in use by pid");
    rundir_close(&d);
}

/* Many processes at once: never two inside, and all get in. A refused one sleeps for a moment: spinning, it
 * could use up any
 *   number of tries while the one inside waits for a core. */
static void lock_is_exclusive(void **state)
{
    enum { CHILDREN = 4, ROUNDS = 200, PATIENCE_S = 120 };
    pid_t pid[CHILDREN];
    char  inside[256];
    snprintf(inside, sizeof inside, "%s/inside", (const char *)*state);
    for (int i = 0; i < CHILDREN; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] > 0) continue;
        int    entered = 0;
        double begin   = clock_now_s();
        while (entered < ROUNDS && clock_now_s() - begin < PATIENCE_S) {
            RunDir d;
            if (rundir_open(&d, "a") < 0) {
                if (err_kind() != ERR_USER) _exit(3);
                err_clear();
                usleep(200);
                continue;
            }
            FILE *f = fopen(inside, "wx"); /* fails if another is inside */
            if (!f) _exit(2);
            fclose(f);
            unlink(inside);
            rundir_close(&d);
            entered++;
        }
        _exit(entered == ROUNDS ? 0 : 4);
    }
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
}

/* ---- Fresh --------------------------------------------------------------------------------------------- */

static void fresh_moves_aside(void **state)
{
    RunDir d;
    for (int i = 0; i < 3; i++) { /* twice within a second, too */
        assert_int_equal(rundir_open(&d, "a"), 0);
        assert_int_equal(file_kind(d.metrics), i > 0 ? FILE_REGULAR : FILE_NONE); /* nothing moved yet */
        assert_int_equal(rundir_begin(&d, 1), 0);
        assert_int_equal(file_kind(d.metrics), FILE_NONE);
        assert_int_equal(file_kind(d.lock), FILE_REGULAR);
        put(d.metrics, "{\"step\":0}\n");
        rundir_close(&d);
        assert_int_equal(count_entries((const char *)*state), i + 1);
    }
    Arena  a;
    char **names, path[512];
    arena_init(&a);
    assert_int_equal(file_list(&a, (const char *)*state, "", &names), 3);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(strncmp(names[i], "a.old-20", 8), 0);
        snprintf(path, sizeof path, "%s/%s/metrics.jsonl", (const char *)*state, names[i]);
        expect_text(path, "{\"step\":0}\n");
        snprintf(path, sizeof path, "%s/%s/lock", (const char *)*state, names[i]);
        assert_int_equal(file_kind(path), FILE_NONE);
    }
    arena_deinit(&a);
    fault_arm(FAULT_RENAME, 1, 0);
    assert_int_equal(rundir_open(&d, "a"), 0);
    assert_int_equal(rundir_begin(&d, 1), -1);
    fault_disarm();
    err_clear();
    RunDir again;
    assert_int_equal(rundir_open(&again, "a"), -1); /* still ours */
    expect_user("in use by pid");
    rundir_close(&d);
    assert_int_equal(rundir_open(&d, "a"), 0); /* the lock was given back and all is as it was */
    expect_text(d.metrics, "{\"step\":0}\n");
    rundir_close(&d);
}

/* A run that does not begin takes the directory away that was made for it, and no other. */
static void start_without_run_leaves_nothing(void **state)
{
    const char *base = (const char *)*state;
    RunDir      d;
    assert_int_equal(rundir_open(&d, "a"), 0);
    rundir_close(&d);
    assert_int_equal(count_entries(base), 0);
    assert_int_equal(rundir_open(&d, "a"), 0);
    put(d.log, "why it failed\n");
    rundir_close(&d);
    expect_text(d.log, "why it failed\n");
    assert_int_equal(folder_remove(d.path), 0);
    for (int fresh = 0; fresh < 2; fresh++) {
        assert_int_equal(rundir_open(&d, fresh ? "b" : "a"), 0);
        assert_int_equal(rundir_begin(&d, fresh), 0); /* nothing there that could be moved */
        rundir_close(&d);
        assert_int_equal(file_kind(d.checkpoints), FILE_FOLDER);
        assert_int_equal(count_entries(base), fresh + 1);
        assert_int_equal(rundir_open(&d, fresh ? "b" : "a"), 0); /* this one was there */
        rundir_close(&d);
        assert_int_equal(file_kind(d.checkpoints), FILE_FOLDER);
    }
}

static void opening_fails_cleanly(void **state)
{
    const FaultOp op[] = { FAULT_OPEN, FAULT_WRITE, FAULT_FSYNC };
    for (int k = 0; k < ARRAY_LEN(op); k++) {
        RunDir d;
        int    n = 1;
        for (;; n++) {
            fault_arm(op[k], n, 0);
            int rc = rundir_open(&d, "a");
            fault_disarm();
            if (rc == 0) break;
            assert_int_equal(count_entries((const char *)*state), 0);
            assert_int_equal(err_kind(), ERR_RUN);
            err_clear();
        }
        assert_true(n > 1);
        rundir_close(&d);
    }
}

/* ---- Metrics ------------------------------------------------------------------------------------------- */

static const char lines[] = "{\"note\": \"no step\"}\n"
                            "{\"step\": 0, \"val_loss\": 11.0}\n"
                            "{\"step\": 1, \"loss\": 10.0}\n"
                            "{\"step\": 2, \"loss\": 9.0}\n"
                            "{\"step\": 2, \"val_loss\": 9.5}\n"
                            "{\"step\": 3, \"loss\": 8.0}\n"
                            "{\"step\": 2, \"loss\": 9.0}\n";

static void trims_metrics(void **state)
{
    RunDir d;
    char   text[1024];
    assert_int_equal(rundir_open(&d, "a"), 0);
    assert_int_equal(rundir_trim(d.metrics, 5), 0); /* no file yet */
    put(d.metrics, lines);
    assert_int_equal(rundir_trim(d.metrics, 4), 0);
    expect_text(d.metrics, lines);
    snprintf(text, sizeof text, "%s{\"step\": 1, \"lo", lines);
    put(d.metrics, text);
    assert_int_equal(rundir_trim(d.metrics, 4), 1); /* the cut-off line */
    expect_text(d.metrics, lines);
    snprintf(text, sizeof text, "%s{\"step\": 1}", lines); /* the next line would be glued to it */
    put(d.metrics, text);
    assert_int_equal(rundir_trim(d.metrics, 4), 1);
    assert_int_equal(rundir_trim(d.metrics, 2), 4);
    expect_text(
        d.metrics,
        "{\"note\": \"no step\"}\n{\"step\": 0, \"val_loss\": 11.0}\n{\"step\": 1, \"loss\": 10.0}\n");
    put(d.metrics, "garbage\n{\"step\": 0}\n[1]\n");
    assert_int_equal(rundir_trim(d.metrics, 2), 2);
    expect_text(d.metrics, "{\"step\": 0}\n");
    assert_int_equal(rundir_trim(d.metrics, 0), 1);
    expect_text(d.metrics, "");
    assert_int_equal(rundir_trim(d.metrics, 0), 0);
    rundir_close(&d);
}

static void failed_trim_changes_nothing(void **state)
{
    const FaultOp op[] = { FAULT_OPEN, FAULT_READ, FAULT_WRITE, FAULT_FSYNC, FAULT_RENAME };
    RunDir        d;
    assert_int_equal(rundir_open(&d, "a"), 0);
    for (int k = 0; k < ARRAY_LEN(op); k++) {
        int n = 1;
        for (;; n++) {
            put(d.metrics, lines);
            int entries = count_entries(d.path);
            fault_arm(op[k], n, 0);
            int rc = rundir_trim(d.metrics, 2);
            fault_disarm();
            assert_int_equal(count_entries(d.path), entries);
            if (rc == 4) break;
            assert_int_equal(rc, -1);
            int renamed = (op[k] == FAULT_FSYNC && n == 2) || (op[k] == FAULT_OPEN && n == 3);
            if (!renamed) expect_text(d.metrics, lines); /* else only the folder could not be synced */
            err_clear();
        }
        assert_true(n > 1);
    }
    rundir_close(&d);
}

/* ---- Signals ------------------------------------------------------------------------------------------- */

/* Runs f in a child; returns its exit code, or minus the signal that ended it. */
static int in_child(void (*f)(void))
{
    int   status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        f();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#define NEED(cond)                                                                                           \
    do {                                                                                                     \
        if (!(cond)) _exit(__LINE__ % 100 + 1);                                                              \
    } while (0)

static void requests(void)
{
    NEED(signals_install() == 0 && signals_pending() == 0 && strcmp(signals_name(), "") == 0);
    raise(SIGUSR1);
    NEED(signals_pending() == SIGUSR1 && strcmp(signals_name(), "SIGUSR1") == 0);
    signals_clear();
    NEED(signals_pending() == 0);
    raise(SIGTERM);
    raise(SIGUSR1); /* does not hide the request to stop */
    NEED(signals_pending() == SIGTERM && strcmp(signals_name(), "SIGTERM") == 0);
    signals_clear();
    raise(SIGINT);
    NEED(signals_pending() == SIGINT);
}

/* Each child gets the answer to its first signal on the pipe of its standard error. */
static int answer_fd[2];

static void two_signals(int first, int second)
{
    signals_install();
    dup2(answer_fd[1], STDERR_FILENO);
    raise(first);
    NEED(signals_pending() == first);
    if (first == second) usleep(100000); /* the same at once is a copy */
    raise(second);
}

/* As timeout -s INT does: to the process, and to its group. */
static void int_copied(void)
{
    signals_install();
    dup2(answer_fd[1], STDERR_FILENO);
    raise(SIGINT);
    raise(SIGINT);
    NEED(signals_pending() == SIGINT && signals_count() == 1);
}

static void int_int(void) { two_signals(SIGINT, SIGINT); }
static void int_term(void) { two_signals(SIGINT, SIGTERM); }
static void term_int(void) { two_signals(SIGTERM, SIGINT); }
static void term_term(void) { two_signals(SIGTERM, SIGTERM); }
static void usr_term(void)
{
    two_signals(SIGUSR1, SIGTERM);
} /* the warning of a batch system, then its end */

static void hushed(void)
{
    signals_hush();
    two_signals(SIGTERM, SIGUSR1);
}

static void signals_are_flags(void **state) { assert_int_equal(in_child(requests), 0); }

static void second_sigint_ends_at_once(void **state)
{
    static const struct {
        void (*f)(void);
        int code, answers, ctrl_c;
    } row[] = { { int_int, 130, 1, 1 },  { int_copied, 0, 1, 1 }, { int_term, 0, 1, 1 },
                { term_int, 130, 1, 0 }, { term_term, 0, 1, 0 },  { usr_term, 0, 1, 0 },
                { hushed, 0, 0, 0 } };
    for (int i = 0; i < ARRAY_LEN(row); i++) {
        char text[512] = "";
        assert_int_equal(pipe(answer_fd), 0);
        assert_int_equal(in_child(row[i].f), row[i].code);
        close(answer_fd[1]);
        ssize_t n = read(answer_fd[0], text, sizeof text - 1);
        close(answer_fd[0]);
        assert_int_equal(n > 0, row[i].answers);
        char *at = strstr(text, "stopping after this step");
        assert_int_equal(at != NULL, row[i].answers);
        assert_int_equal(strstr(text, "Ctrl-C") != NULL, row[i].ctrl_c);
        assert_true(!at || !strstr(at + 1, "stopping after")); /* once */
    }
}

int main(void)
{
    FILE *quiet = fopen("/dev/null", "w");
    log_open(quiet);
#define CASE(f) cmocka_unit_test_setup_teardown(f, base_setup, base_teardown)
    const struct CMUnitTest tests[] = {
        CASE(makes_and_names),
        CASE(second_run_is_refused),
        CASE(reused_pid_does_not_lock),
        CASE(lock_is_exclusive),
        CASE(fresh_moves_aside),
        CASE(start_without_run_leaves_nothing),
        CASE(opening_fails_cleanly),
        CASE(trims_metrics),
        CASE(failed_trim_changes_nothing),
        CASE(holds_its_directory),
        CASE(finds_evaluations),
        cmocka_unit_test(signals_are_flags),
        cmocka_unit_test(second_sigint_ends_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
