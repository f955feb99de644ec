#define _XOPEN_SOURCE 700 /* posix_openpt */

#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

enum { MAX_ARGUMENTS = 32, MAX_ENVIRONMENT = 512 };

/* Reads a stream to its end. A terminal whose other side is gone reports EIO. */
static char *read_to_end(int fd, size_t *n_bytes, pid_t interrupt)
{
    size_t n = 0, capacity = 1 << 16;
    char *data = malloc(capacity + 1);
    assert_non_null(data);
    for (;;) {
        if (n == capacity) {
            capacity *= 2;
            data = realloc(data, capacity + 1);
            assert_non_null(data);
        }
        const ssize_t got = read(fd, data + n, capacity - n);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        if (interrupt > 0 && n == 0)
            kill(interrupt, SIGINT);
        n += (size_t)got;
    }
    data[n] = '\0';
    *n_bytes = n;
    return data;
}

/* A file without a name that holds the input. */
static int input_file(const sl_process_setup *setup)
{
    FILE *file = tmpfile();
    assert_non_null(file);
    const size_t n = setup->n_input > 0 ? setup->n_input : setup->input ? strlen(setup->input) : 0;
    if (n > 0)
        assert_int_equal(fwrite(setup->input, 1, n, file), n);
    assert_int_equal(fflush(file), 0);
    rewind(file);
    const int fd = dup(fileno(file));
    assert_true(fd >= 0);
    fclose(file);
    return fd;
}

static void open_terminal(int *ours, int *theirs)
{
    *ours = posix_openpt(O_RDWR | O_NOCTTY);
    if (*ours < 0 || grantpt(*ours) != 0 || unlockpt(*ours) != 0)
        skip_because("this machine gives out no pseudo-terminals");
    *theirs = open(ptsname(*ours), O_RDWR | O_NOCTTY);
    assert_true(*theirs >= 0);
}

static pid_t spawn(const char *const *arguments, const sl_process_setup *setup,
                   const int streams[3], int close_in_child)
{
    char program[4096];
    snprintf(program, sizeof program, "%s", sl_build_path("sluice"));
    char *argv[MAX_ARGUMENTS] = {program};
    for (size_t i = 0; arguments[i]; i++) {
        assert_true(i + 2 < MAX_ARGUMENTS);
        argv[i + 1] = (char *)(uintptr_t)arguments[i];
    }
    char *envp[MAX_ENVIRONMENT] = {0};
    size_t n = 0;
    for (size_t i = 0; environ[i] && n + 2 < MAX_ENVIRONMENT; i++) {
        /* The settings of whoever runs the tests are not the tests'. */
        if (strncmp(environ[i], "SLUICE_", 7) != 0 && strncmp(environ[i], "NO_COLOR=", 9) != 0 &&
            strncmp(environ[i], "TERM=", 5) != 0)
            envp[n++] = environ[i];
    }
    if (setup->env)
        envp[n] = (char *)(uintptr_t)setup->env;

    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    for (int i = 0; i < 3; i++)
        posix_spawn_file_actions_adddup2(&actions, streams[i], i);
    if (close_in_child > 2)
        posix_spawn_file_actions_addclose(&actions, close_in_child);
    for (int i = 0; i < 3; i++) {
        bool seen = streams[i] <= 2;
        for (int j = 0; j < i; j++)
            seen = seen || streams[j] == streams[i];
        if (!seen)
            posix_spawn_file_actions_addclose(&actions, streams[i]);
    }
    if (setup->out_closed)
        posix_spawn_file_actions_addclose(&actions, STDOUT_FILENO);
    /* Whoever runs the tests may ignore Ctrl-C himself. */
    posix_spawnattr_t attributes;
    sigset_t standard;
    sigemptyset(&standard);
    if (setup->background)
        signal(SIGINT, SIG_IGN);
    else
        sigaddset(&standard, SIGINT);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setsigdefault(&attributes, &standard);
    pid_t child = -1;
    const int error = posix_spawn(&child, program, &actions, &attributes, argv, envp);
    posix_spawnattr_destroy(&attributes);
    if (setup->background)
        signal(SIGINT, SIG_DFL);
    posix_spawn_file_actions_destroy(&actions);
    if (error != 0)
        fail_msg("%s: %s", program, strerror(error));
    return child;
}

static int wait_for(pid_t child)
{
    int status;
    while (waitpid(child, &status, 0) < 0)
        assert_int_equal(errno, EINTR);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static sl_process run_on_terminal(const char *const *arguments, const sl_process_setup *setup)
{
    sl_process process = {0};
    int ours, theirs;
    open_terminal(&ours, &theirs);
    const pid_t child = spawn(arguments, setup, (const int[]){theirs, theirs, theirs}, ours);
    close(theirs);
    process.out = read_to_end(ours, &process.n_out, setup->interrupt ? child : 0);
    close(ours);
    process.exit_status = wait_for(child);
    process.err = calloc(1, 1);
    assert_non_null(process.err);
    return process;
}

sl_process sl_process_run(const char *const *arguments, const sl_process_setup *setup)
{
    static const sl_process_setup plain = {0};
    sl_process process = {0};
    if (!setup)
        setup = &plain;
    if (setup->terminal)
        return run_on_terminal(arguments, setup);

    int out[2];
    assert_int_equal(pipe(out), 0);
    FILE *err = tmpfile();
    assert_non_null(err);
    const int in = input_file(setup);
    int target = out[1];
    if (setup->out_path)
        target = open(setup->out_path, O_WRONLY);
    assert_true(target >= 0);
    if (setup->out_unread) {
        close(out[0]);
        out[0] = -1;
    }
    const pid_t child = spawn(arguments, setup, (const int[]){in, target, fileno(err)}, out[0]);
    if (target != out[1])
        close(target);
    close(out[1]);
    close(in);
    process.out = setup->out_unread
                      ? calloc(1, 1)
                      : read_to_end(out[0], &process.n_out, setup->interrupt ? child : 0);
    if (out[0] >= 0)
        close(out[0]);
    process.exit_status = wait_for(child);
    rewind(err);
    process.err = read_to_end(fileno(err), &process.n_err, 0);
    fclose(err);
    assert_non_null(process.out);
    return process;
}

void sl_process_free(sl_process *process)
{
    free(process->out);
    free(process->err);
    *process = (sl_process){0};
}

void sl_process_expect(const sl_process *process, int exit_status, const char *part_of_out,
                       const char *part_of_err)
{
    if (process->exit_status == exit_status &&
        (!part_of_out || strstr(process->out, part_of_out)) &&
        (!part_of_err || strstr(process->err, part_of_err)))
        return;
    fail_msg(
        "exit status %d, expected %d; output \"%s\" should hold \"%s\"; messages \"%s\" should "
        "hold \"%s\"",
        process->exit_status, exit_status, process->out, part_of_out ? part_of_out : "",
        process->err, part_of_err ? part_of_err : "");
}
