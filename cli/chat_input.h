/* Lines typed on a terminal: editing and history by libedit, several lines of one input, pasted
 * text taken as it is. */
#ifndef SL_CLI_CHAT_INPUT_H
#define SL_CLI_CHAT_INPUT_H

#include "base/buf.h"

typedef struct sl_input sl_input;

/* Standard input, output and error are the terminal. NULL when memory is short or the terminal
 * cannot be used. The locale of the process becomes one that knows UTF-8. */
sl_input *sl_input_open(void);
void sl_input_close(sl_input *input);

typedef enum sl_input_result {
    SL_INPUT_TEXT,
    SL_INPUT_BLOCK,     /* text from a block of lines: never a command */
    SL_INPUT_END,       /* Ctrl-D on an empty line, or the terminal is gone */
    SL_INPUT_INTERRUPT, /* Ctrl-C on an empty line */
    SL_INPUT_DROPPED    /* Ctrl-C dropped what was typed, or memory was short */
} sl_input_result;

/* One input, its line ends as '\n', none at its end. A backslash at the end of a line continues it
 * on the next; a line of three quotes begins a block of lines, and another one ends it. */
sl_input_result sl_input_read(sl_input *input, const char *prompt, sl_buf *text);

#endif
