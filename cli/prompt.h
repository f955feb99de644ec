/* Text that the user gives: an argument, a file or standard input. */
#ifndef SL_CLI_PROMPT_H
#define SL_CLI_PROMPT_H

#include "base/json.h"

/* Reads into *text (initialised by the call): the argument if there is one, else the file, else
 * standard input; "-" names standard input in both places. Invalid UTF-8 becomes U+FFFD, and
 * standard error says so. At most 64 MiB. Errors: SL_ERR_IO, SL_ERR_LIMIT naming the file,
 * SL_ERR_MEMORY, SL_ERR_CANCELLED (Ctrl-C). */
sl_status sl_prompt_read(const char *argument, const char *file, sl_buf *text, sl_error *err);

/* The same for a prompt that may have two parts: the argument, a blank line, and the text of the
 * file, or else of standard input when that is no terminal. Without the second part there is no
 * blank line. */
sl_status sl_prompt_read_parts(const char *argument, const char *file, sl_buf *text, sl_error *err);

/* True when there is text to read although neither argument nor file was given: standard input is
 * open and not a terminal. */
bool sl_prompt_on_stdin(void);

/* The tools in a file, a JSON array; to be json_decref'd. Errors as above, SL_ERR_FORMAT. */
sl_status sl_tools_read(const char *path, json_t **tools, sl_error *err);

/* Appends s[0..n) with U+FFFD for invalid UTF-8; *n_replaced counts them. */
sl_status sl_clean_utf8(const char *s, size_t n, sl_buf *out, size_t *n_replaced, sl_error *err);

/* Says on standard error that `what` was not valid, when something was replaced. */
void sl_tell_replaced(const char *what, size_t n_replaced);

#endif
