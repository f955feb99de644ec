/* Owns the handler of SIGINT. */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t interrupted;

static void (*before_end)(void);

/* The second does what it always does, should the work not come to a stop. */
static void on_interrupt(int signal_number)
{
    if (interrupted) {
        if (before_end)
            before_end();
        signal(signal_number, SIG_DFL);
        raise(signal_number);
    }
    interrupted = 1;
}

void sl_interrupt_before_end(void (*restore)(void))
{
    before_end = restore;
}

void sl_interrupt_install(void)
{
    struct sigaction action = {.sa_handler = on_interrupt};
    sigemptyset(&action.sa_mask);
    /* A job that a script put in the background ignores Ctrl-C, and so it stays. */
    struct sigaction before;
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        sigaction(SIGINT, &action, NULL);
}

void sl_interrupt_clear(void)
{
    interrupted = 0;
}

bool sl_interrupted(void)
{
    return interrupted != 0;
}
