/* Owns the terminal's modes and the signals that must not leave them changed. */
#include "terminal.h"

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "base/base.h"
#include "interrupt.h"
#include "out.h"

static struct termios modes;
static volatile sig_atomic_t kept, marking, resized, continued;

void sl_terminal_mark_pastes(bool on)
{
    const char *name = getenv("TERM");
    if (on && (!name || *name == '\0' || strcmp(name, "dumb") == 0))
        return;
    if (on || marking)
        sl_out_write(on ? "\033[?2004h" : "\033[?2004l", 8);
    marking = on;
}

/* Only what a signal handler may do. */
static void give_back(void)
{
    static const char unmark[] = "\033[?2004l";
    sl_err_dim(false);
    if (!kept)
        return;
    if (marking && write(STDOUT_FILENO, unmark, sizeof unmark - 1) < 0)
        return; /* the terminal is gone */
    marking = 0;
    tcsetattr(STDIN_FILENO, TCSANOW, &modes);
}

void sl_terminal_restore(void)
{
    give_back();
    kept = 0;
}

/* Ends the program as the signal would have. */
static void on_end(int signal_number)
{
    give_back();
    signal(signal_number, SIG_DFL);
    raise(signal_number);
}

static void on_stop(int signal_number)
{
    (void)signal_number;
    give_back();
    raise(SIGSTOP);
}

static void on_change(int signal_number)
{
    if (signal_number == SIGWINCH)
        resized = 1;
    else
        continued = 1;
}

void sl_terminal_keep_colour(void)
{
    /* SIGBUS belongs to the library, which watches mapped files with it. */
    static const int ends[] = {SIGTERM, SIGHUP, SIGQUIT, SIGSEGV, SIGFPE, SIGILL, SIGABRT};
    const struct sigaction action = {.sa_handler = on_end, .sa_flags = (int)SA_RESETHAND};
    struct sigaction before;
    for (size_t i = 0; i < SL_COUNTOF(ends); i++) {
        /* What was started to outlive its terminal ignores SIGHUP, and so it stays. */
        if (sigaction(ends[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(ends[i], &action, NULL);
    }
    sl_interrupt_before_end(give_back);
}

void sl_terminal_keep(void)
{
    kept = tcgetattr(STDIN_FILENO, &modes) == 0;
    sl_terminal_keep_colour();
    struct sigaction action = {.sa_handler = on_stop};
    sigemptyset(&action.sa_mask);
    sigaction(SIGTSTP, &action, NULL);
    action.sa_flags = SA_RESTART;
    action.sa_handler = on_change;
    sigaction(SIGWINCH, &action, NULL);
    sigaction(SIGCONT, &action, NULL);
}

/* A terminal that gives out whole lines is ready to be read and has no bytes only at Ctrl-D. */
bool sl_terminal_end_typed(void)
{
    struct pollfd wait = {.fd = STDIN_FILENO, .events = POLLIN};
    int n = 0;
    return kept && poll(&wait, 1, 0) > 0 && wait.revents == POLLIN &&
           ioctl(STDIN_FILENO, FIONREAD, &n) == 0 && n == 0;
}

bool sl_terminal_take_end(void)
{
    char byte;
    return sl_terminal_end_typed() && read(STDIN_FILENO, &byte, 1) == 0;
}

static bool take(volatile sig_atomic_t *flag)
{
    const bool was = *flag != 0;
    *flag = 0;
    return was;
}

bool sl_terminal_resized(void)
{
    return take(&resized);
}

bool sl_terminal_continued(void)
{
    return take(&continued);
}
