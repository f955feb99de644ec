/* The terminal's modes while the program changes them: remembered at the start, given back at the
 * end, also when a signal ends the program. */
#ifndef SL_CLI_TERMINAL_H
#define SL_CLI_TERMINAL_H

#include <stdbool.h>

/* Remembers the modes of standard input and watches for signals that end or stop the program. */
void sl_terminal_keep(void);

/* Only for dim text: a signal that ends the program ends that, too. */
void sl_terminal_keep_colour(void);

/* Gives them back, ends dim text and bracketed paste. */
void sl_terminal_restore(void);

/* Asks the terminal to mark what is pasted. Nothing on terminals that know no such thing. */
void sl_terminal_mark_pastes(bool on);

/* While lines are not edited: Ctrl-D was typed, and nothing before it that was not read yet. It
 * stays typed until it is taken. */
bool sl_terminal_end_typed(void);
bool sl_terminal_take_end(void);

/* Since the last call: its size changed; the program was continued after a stop. */
bool sl_terminal_resized(void);
bool sl_terminal_continued(void);

#endif
