/* Owns the handler of SIGINT. */
#include "interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupted = 1;
}

void sl_interrupt_install(void)
{
    /* SA_RESETHAND: a second Ctrl-C does what it always does, should the work not come to a stop.
     */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

void sl_interrupt_clear(void)
{
    interrupted = 0;
    sl_interrupt_install();
}

bool sl_interrupted(void)
{
    return interrupted != 0;
}
