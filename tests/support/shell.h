/* Runs commands of the system: compilers, installers, programs built by a test. */
#ifndef SL_TESTS_SHELL_H
#define SL_TESTS_SHELL_H

#include "support.h"

/* Runs the command line with sh and returns its exit status; both streams go to *out (free it;
 * may be NULL), NUL-terminated. */
int sl_shell(char **out, const char *format, ...) SL_PRINTF(2, 3);

/* Fails the test, showing what was written, unless the command ends with status 0. Returns what
 * was written; free it. */
char *sl_shell_ok(const char *format, ...) SL_PRINTF(1, 2);

/* Whether there is a program of that name. */
bool sl_shell_has(const char *program);

#endif
