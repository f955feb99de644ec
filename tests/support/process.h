/* Runs the built program as a user would and keeps what it wrote. */
#ifndef SL_TESTS_PROCESS_H
#define SL_TESTS_PROCESS_H

#include "support.h"

/* What a program did. Release with sl_process_free. */
typedef struct sl_process {
    int exit_status; /* 128 + n when signal n ended it */
    char *out, *err; /* NUL-terminated */
    size_t n_out, n_err;
} sl_process;
void sl_process_free(sl_process *process);

typedef struct sl_process_setup {
    const char *input;    /* standard input; NULL = empty */
    size_t n_input;       /* 0 = strlen(input) */
    const char *env;      /* one more variable "NAME=value", or NULL */
    const char *out_path; /* where standard output goes instead of `out`, such as /dev/full */
    bool out_unread;      /* standard output is a pipe that nobody reads */
    bool out_closed;      /* there is no standard output */
    bool interrupt;       /* SIGINT as soon as there is some output */
    bool background;      /* SIGINT is ignored from the start, as in a script's `program &` */
    bool terminal;        /* all three streams are one terminal; what is shown is in `out` */
} sl_process_setup;

/* Runs $SL_BUILD/sluice with these arguments (NULL-terminated list). setup may be NULL. */
sl_process sl_process_run(const char *const *arguments, const sl_process_setup *setup);

/* sl_sluice(setup, "run", model, "prompt") */
#define sl_sluice(setup, ...) sl_process_run((const char *const[]){__VA_ARGS__, NULL}, (setup))

/* Fail the test, showing both streams, unless the program ended so and wrote that somewhere. */
void sl_process_expect(const sl_process *process, int exit_status, const char *part_of_out,
                       const char *part_of_err);

#endif
