/* The program on a terminal of its own, typed to and read from as a user would. */
#ifndef SL_TESTS_DIALOGUE_H
#define SL_TESTS_DIALOGUE_H

#include <sys/types.h>
#include <termios.h>

#include "support.h"

typedef struct sl_dialogue {
    pid_t child;
    int ours, theirs;      /* the two sides of the terminal */
    struct termios before; /* its modes before the program began */
    char *out;             /* all that was shown, NUL-terminated */
    size_t n_out, n_read;  /* up to where it was expected */
    bool ended;
    int exit_status; /* 128 + n when signal n ended it */
} sl_dialogue;

/* Runs $SL_BUILD/sluice with these arguments (NULL-terminated list); of the caller's environment
 * it gets only what is in env ("NAME=value", NULL-terminated). */
sl_dialogue sl_dialogue_open(const char *const *arguments, const char *const *env);

/* Waits until `part` is shown, after what was expected before. Fails the test, showing everything,
 * when the program ends without it or five minutes go by. */
void sl_dialogue_expect(sl_dialogue *dialogue, const char *part);

/* Types text; "\r" is the return key. */
void sl_dialogue_type(sl_dialogue *dialogue, const char *text);

/* Waits for a prompt, then types. */
void sl_dialogue_say(sl_dialogue *dialogue, const char *prompt, const char *text);

/* Waits until the program is stopped (SIGTSTP). */
void sl_dialogue_stopped(sl_dialogue *dialogue);

/* Makes the terminal so many columns wide. */
void sl_dialogue_resize(sl_dialogue *dialogue, unsigned short columns);

void sl_dialogue_signal(sl_dialogue *dialogue, int signal_number);

/* Waits for the program's end; fails the test unless it has this exit status and the terminal's
 * modes are what they were. What was shown stays in out until sl_dialogue_close. */
void sl_dialogue_end(sl_dialogue *dialogue, int exit_status);
void sl_dialogue_close(sl_dialogue *dialogue);

#endif
