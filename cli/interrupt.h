/* Ctrl-C: the first asks the work to stop, the second ends the process. */
#ifndef SL_CLI_INTERRUPT_H
#define SL_CLI_INTERRUPT_H

#include <stdbool.h>

void sl_interrupt_install(void);
bool sl_interrupted(void);

/* What was asked for has been done: the next Ctrl-C is a first one again. */
void sl_interrupt_clear(void);

/* Called in the signal handler before a second Ctrl-C ends the process. */
void sl_interrupt_before_end(void (*restore)(void));

#endif
