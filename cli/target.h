/* Files that a command is to write: what is wrong with a name is told before any work is done. */
#ifndef SL_CLI_TARGET_H
#define SL_CLI_TARGET_H

/* path is what `option` was given, or NULL; input is the model that the command reads, or NULL.
 * Refused are the empty name, "-", and a file that the model is read from, which would be lost.
 * Returns -1, or SL_EXIT_USAGE after telling. */
int sl_target_check(const char *command, const char *option, const char *path, const char *input);

#endif
