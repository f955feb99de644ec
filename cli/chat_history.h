/* What was typed, kept from one chat to the next: $XDG_STATE_HOME/sluice/history, by default
 * ~/.local/state/sluice/history, readable by its owner only. One entry a line, '\n' for a line end
 * and '\\' for a backslash. Nothing here reports a failure: a chat is as good without. */
#ifndef SL_CLI_CHAT_HISTORY_H
#define SL_CLI_CHAT_HISTORY_H

#include "base/buf.h"

enum { SL_HISTORY_LINES = 1000 };

/* Gives the newest SL_HISTORY_LINES entries, oldest first; drops older ones from the file. */
void sl_history_load(void (*take)(void *user, const char *text), void *user);

/* Adds an entry at the end of the file. */
void sl_history_add(const char *text);

#endif
