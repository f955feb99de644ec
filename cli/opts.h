/* Options of the program: one table per command gives parsing, help text and environment variables.
 *
 * A value comes from the command line, else from the environment variable SLUICE_<NAME>, else it
 * keeps what the command put into its struct before parsing. */
#ifndef SL_CLI_OPTS_H
#define SL_CLI_OPTS_H

#include "base/buf.h"

/* How the program ends. */
enum {
    SL_EXIT_DONE = 0,
    SL_EXIT_FAILURE = 1,
    SL_EXIT_USAGE = 2,
    SL_EXIT_MODEL = 3, /* the model file was refused */
    SL_EXIT_INTERRUPTED = 130
};

typedef enum sl_opt_type {
    SL_OPT_FLAG,   /* bool; --name, --name=on, --name=off */
    SL_OPT_TEXT,   /* const char *; NULL = not given */
    SL_OPT_COUNT,  /* sl_opt_count; a whole number in [min, max] */
    SL_OPT_NUMBER, /* sl_opt_number; a finite number in [low, high] */
    SL_OPT_LIST,   /* sl_opt_list; every use of the option adds a text */
    SL_OPT_CHOICE  /* int; the index of a word of value_name, which is "on|off" */
} sl_opt_type;

typedef struct sl_opt_count {
    bool set;
    uint64_t value;
} sl_opt_count;

typedef struct sl_opt_number {
    bool set;
    double value;
} sl_opt_number;

enum { SL_OPT_MAX_LIST = 64 };

typedef struct sl_opt_list {
    const char *items[SL_OPT_MAX_LIST];
    size_t n;
    bool from_environment; /* its one item is; the command line replaces it */
} sl_opt_list;

typedef struct sl_opt {
    const char *name; /* "max-tokens" */
    char letter;      /* 'n', or 0 */
    sl_opt_type type;
    size_t offset;          /* of the member in the command's struct */
    const char *value_name; /* "N", "FILE", "on|off"; NULL for flags */
    const char *help;
    uint64_t min, max;
    double low, high;
} sl_opt;

typedef struct sl_command {
    const char *name;
    const char *usage;   /* "MODEL [PROMPT]" */
    const char *summary; /* one line for the list of commands */
    const char *details; /* paragraphs for its own help, separated by newlines; or NULL */
    const sl_opt *opts;  /* its own; followed by common ones */
    size_t n_opts;
    unsigned common;                         /* groups of common options, see common.h */
    unsigned min_args, max_args;             /* positional arguments; max 0 = none */
    int (*run)(int argc, char *const *argv); /* arguments after the command's name */
} sl_command;

enum { SL_ARGS_UNLIMITED = 1u << 20 };

/* Positional arguments, in order. Release with sl_args_free. */
typedef struct sl_args {
    const char **items;
    size_t n;
    uint64_t given; /* by their place in the command's table, the options on the command line */
} sl_args;
void sl_args_free(sl_args *args);

/* Whether the command line (not the environment) has the option. */
bool sl_args_gave(const sl_args *args, const sl_command *command, const char *name);

/* The name of an option on the command line that is not in `allowed` (NULL at its end), or NULL. */
const char *sl_args_other(const sl_args *args, const sl_command *command,
                          const char *const *allowed);

/* Fills the command's struct and the positional arguments. Returns -1 to go on, or the exit status
 * when there is nothing left to do (--help was printed, or the usage was wrong and told so). */
int sl_opts_parse(const sl_command *command, int argc, char *const *argv, void *options,
                  sl_args *args);

/* Stores text as the option's value. `given` is how the user wrote the option: "--temp", "-n" or
 * "SLUICE_TEMP". SL_ERR_ARGUMENT says what is wrong with the text. Texts are borrowed. */
sl_status sl_opt_set(const sl_opt *opt, const char *given, const char *text, void *options,
                     sl_error *err);

/* Prints the sentence and where to find help; returns SL_EXIT_USAGE. */
int sl_usage_error(const char *command, const char *format, ...) SL_PRINTF(2, 3);

/* Appends the help page of a command. */
sl_status sl_opts_help(const sl_command *command, sl_buf *out, sl_error *err);

/* The entry of names[0..n) closest to word, or NULL when none is near enough to be meant. */
const char *sl_nearest_name(const char *word, const char *const *names, size_t n);

/* Parse whole strings; false when there is anything else in them or they are out of range. */
bool sl_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out);
bool sl_parse_number(const char *text, double low, double high, double *out);

#endif
