#define _XOPEN_SOURCE 700 /* posix_openpt */

#include "dialogue.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { MAX_ARGUMENTS = 32, MAX_OUT = 1 << 22, POLL_MS = 20 };

/* Far more than a machine that is busy with other things needs; only a failure waits so long. */
static const uint64_t patience_ns = 300 * UINT64_C(1000000000);

sl_dialogue sl_dialogue_open(const char *const *arguments, const char *const *env)
{
    sl_dialogue dialogue = {.out = calloc(1, MAX_OUT)};
    assert_non_null(dialogue.out);
    char program[4096];
    snprintf(program, sizeof program, "%s", sl_build_path("sluice"));
    char *argv[MAX_ARGUMENTS] = {program};
    for (size_t i = 0; arguments[i]; i++) {
        assert_true(i + 2 < MAX_ARGUMENTS);
        argv[i + 1] = (char *)(uintptr_t)arguments[i];
    }
    dialogue.ours = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    if (dialogue.ours < 0 || grantpt(dialogue.ours) != 0 || unlockpt(dialogue.ours) != 0)
        skip_because("this machine gives out no pseudo-terminals");
    char name[256];
    snprintf(name, sizeof name, "%s", ptsname(dialogue.ours));
    dialogue.theirs = open(name, O_RDWR | O_NOCTTY | O_CLOEXEC);
    assert_true(dialogue.theirs >= 0);
    const struct winsize size = {.ws_row = 40, .ws_col = 100};
    assert_int_equal(ioctl(dialogue.theirs, TIOCSWINSZ, &size), 0);
    assert_int_equal(tcgetattr(dialogue.theirs, &dialogue.before), 0);

    dialogue.child = fork();
    assert_true(dialogue.child >= 0);
    if (dialogue.child == 0) {
        /* Whoever starts the tests may ignore them: nohup does, and shells for background jobs. */
        signal(SIGHUP, SIG_DFL);
        signal(SIGINT, SIG_DFL);
        signal(SIGQUIT, SIG_DFL);
        setsid();
        const int terminal = open(name, O_RDWR); /* the controlling one of the new session */
        for (int fd = 0; fd < 3; fd++)
            dup2(terminal, fd);
        if (terminal > 2)
            close(terminal);
        execve(program, argv, (char *const *)(uintptr_t)env);
        _exit(127);
    }
    return dialogue;
}

/* Takes in what is there; false when nothing came for POLL_MS. */
static bool take_in(sl_dialogue *dialogue)
{
    struct pollfd wait = {.fd = dialogue->ours, .events = POLLIN};
    if (poll(&wait, 1, POLL_MS) <= 0)
        return false;
    assert_true(dialogue->n_out + 1 < MAX_OUT);
    const ssize_t n =
        read(dialogue->ours, dialogue->out + dialogue->n_out, MAX_OUT - 1 - dialogue->n_out);
    if (n <= 0)
        return false;
    dialogue->n_out += (size_t)n;
    dialogue->out[dialogue->n_out] = '\0';
    return true;
}

static bool has_ended(sl_dialogue *dialogue)
{
    int status;
    if (!dialogue->ended && waitpid(dialogue->child, &status, WNOHANG) == dialogue->child) {
        dialogue->ended = true;
        dialogue->exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
    return dialogue->ended;
}

/* Output with the escape character made visible. */
static void print_shown(const sl_dialogue *dialogue)
{
    for (size_t i = 0; i < dialogue->n_out; i++) {
        if (dialogue->out[i] == 033)
            fputs("<ESC>", stderr);
        else
            fputc(dialogue->out[i], stderr);
    }
    fputc('\n', stderr);
}

static void give_up(sl_dialogue *dialogue, const char *what, const char *part)
{
    print_shown(dialogue);
    if (!dialogue->ended) {
        kill(dialogue->child, SIGKILL);
        waitpid(dialogue->child, NULL, 0);
    }
    fail_msg("%s \"%s\"", what, part);
}

void sl_dialogue_expect(sl_dialogue *dialogue, const char *part)
{
    const uint64_t deadline = sl_clock_ns() + patience_ns;
    for (;;) {
        const char *found = strstr(dialogue->out + dialogue->n_read, part);
        if (found) {
            dialogue->n_read = (size_t)(found - dialogue->out) + strlen(part);
            return;
        }
        const bool ended = has_ended(dialogue);
        const bool late = sl_clock_ns() > deadline;
        if (take_in(dialogue) && !late)
            continue;
        if (ended || late)
            give_up(dialogue, ended ? "the program ended without" : "waiting for", part);
    }
}

void sl_dialogue_type(sl_dialogue *dialogue, const char *text)
{
    const size_t n = strlen(text);
    assert_int_equal(write(dialogue->ours, text, n), n);
}

void sl_dialogue_say(sl_dialogue *dialogue, const char *prompt, const char *text)
{
    sl_dialogue_expect(dialogue, prompt);
    sl_dialogue_type(dialogue, text);
}

void sl_dialogue_stopped(sl_dialogue *dialogue)
{
    int status;
    assert_int_equal(waitpid(dialogue->child, &status, WUNTRACED), dialogue->child);
    assert_true(WIFSTOPPED(status));
}

void sl_dialogue_resize(sl_dialogue *dialogue, unsigned short columns)
{
    const struct winsize size = {.ws_row = 40, .ws_col = columns};
    assert_int_equal(ioctl(dialogue->theirs, TIOCSWINSZ, &size), 0);
}

void sl_dialogue_signal(sl_dialogue *dialogue, int signal_number)
{
    assert_int_equal(kill(dialogue->child, signal_number), 0);
}

void sl_dialogue_end(sl_dialogue *dialogue, int exit_status)
{
    const uint64_t deadline = sl_clock_ns() + patience_ns;
    for (;;) {
        const bool ended = has_ended(dialogue);
        if (take_in(dialogue))
            continue;
        if (ended)
            break;
        if (sl_clock_ns() > deadline)
            give_up(dialogue, "waiting for", "the end");
    }
    if (dialogue->exit_status != exit_status) {
        print_shown(dialogue);
        fail_msg("exit status %d, expected %d", dialogue->exit_status, exit_status);
    }
    struct termios after;
    assert_int_equal(tcgetattr(dialogue->theirs, &after), 0);
    assert_int_equal(after.c_iflag, dialogue->before.c_iflag);
    assert_int_equal(after.c_oflag, dialogue->before.c_oflag);
    assert_int_equal(after.c_cflag, dialogue->before.c_cflag);
    assert_int_equal(after.c_lflag, dialogue->before.c_lflag);
    assert_memory_equal(after.c_cc, dialogue->before.c_cc, sizeof after.c_cc);
}

void sl_dialogue_close(sl_dialogue *dialogue)
{
    close(dialogue->ours);
    close(dialogue->theirs);
    free(dialogue->out);
    *dialogue = (sl_dialogue){0};
}
