/* Parses options by table, and says what is wrong with them in the user's own words. */
#include "opts.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "base/utf8.h"
#include "common.h"
#include "out.h"

enum { MAX_NAME = 32 }; /* bytes of the longest option name; names are ours */

/* The i-th option of a command, its own ones first; NULL after the last one. */
static const sl_opt *option_at(const sl_command *command, size_t i)
{
    return i < command->n_opts ? &command->opts[i]
                               : sl_common_opt(command->common, i - command->n_opts);
}

/* ---- values ---- */

bool sl_parse_count(const char *text, uint64_t min, uint64_t max, uint64_t *out)
{
    if (*text < '0' || *text > '9')
        return false;
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(text, &end, 10);
    if (*end != '\0' || errno != 0 || value < min || value > max)
        return false;
    *out = value;
    return true;
}

bool sl_parse_number(const char *text, double low, double high, double *out)
{
    if (!strchr("+-.0123456789", *text) || *text == '\0')
        return false;
    char *end;
    const double value = strtod(text, &end);
    if (*end != '\0' || !isfinite(value) || value < low || value > high)
        return false;
    *out = value;
    return true;
}

static bool parse_switch(const char *text, bool *out)
{
    static const char *const yes[] = {"1", "on", "true", "yes"};
    static const char *const no[] = {"0", "off", "false", "no"};
    for (size_t i = 0; i < SL_COUNTOF(yes); i++) {
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

/* The index of text among the words of "on|off", or -1. */
static int find_choice(const char *words, const char *text)
{
    for (int i = 0;; i++) {
        const size_t n = strcspn(words, "|");
        if (sl_str_equal((sl_str){words, n}, sl_str_of(text)))
            return i;
        if (words[n] == '\0')
            return -1;
        words += n + 1;
    }
}

sl_status sl_opt_set(const sl_opt *opt, const char *given, const char *text, void *options,
                     sl_error *err)
{
    void *member = (char *)options + opt->offset;
    switch (opt->type) {
    case SL_OPT_FLAG:
        if (parse_switch(text, member))
            return SL_OK;
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: '%s' is neither on nor off", given, text);
    case SL_OPT_TEXT:
        *(const char **)member = text;
        return SL_OK;
    case SL_OPT_COUNT: {
        sl_opt_count *count = member;
        count->set = true;
        if (sl_parse_count(text, opt->min, opt->max, &count->value))
            return SL_OK;
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: '%s' is not a whole number from %llu to %llu",
                       given, text, (unsigned long long)opt->min, (unsigned long long)opt->max);
    }
    case SL_OPT_NUMBER: {
        sl_opt_number *number = member;
        number->set = true;
        if (sl_parse_number(text, opt->low, opt->high, &number->value))
            return SL_OK;
        return sl_fail(err, SL_ERR_ARGUMENT, "%s: '%s' is not a number from %g to %g", given, text,
                       opt->low, opt->high);
    }
    case SL_OPT_LIST: {
        sl_opt_list *list = member;
        if (list->from_environment)
            list->n = 0;
        list->from_environment = *given != '-';
        if (list->n == SL_OPT_MAX_LIST)
            return sl_fail(err, SL_ERR_ARGUMENT, "%s may be given %d times", given,
                           SL_OPT_MAX_LIST);
        list->items[list->n++] = text;
        return SL_OK;
    }
    case SL_OPT_CHOICE: {
        const int choice = find_choice(opt->value_name, text);
        if (choice < 0)
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: '%s' is not one of %s", given, text,
                           opt->value_name);
        *(int *)member = choice;
        return SL_OK;
    }
    }
    return SL_OK;
}

/* The same on the command line; returns -1 or an exit status. */
static int store(const sl_command *command, const sl_opt *opt, const char *given, const char *text,
                 void *options)
{
    sl_error err;
    if (sl_opt_set(opt, given, text, options, &err) == SL_OK)
        return -1;
    return sl_usage_error(command->name, "%s", err.message);
}

/* ---- the environment ---- */

static void environment_name(const sl_opt *opt, char name[MAX_NAME + 8])
{
    char *to = name + snprintf(name, 8, "SLUICE_");
    for (const char *from = opt->name; *from; from++) {
        const bool lower = *from >= 'a' && *from <= 'z';
        *to++ = (char)(*from == '-' ? '_' : lower ? *from - 'a' + 'A' : *from);
    }
    *to = '\0';
}

static int read_environment(const sl_command *command, void *options)
{
    const sl_opt *opt;
    for (size_t i = 0; (opt = option_at(command, i)) != NULL; i++) {
        char name[MAX_NAME + 8];
        environment_name(opt, name);
        const char *value = getenv(name);
        if (!value || *value == '\0')
            continue;
        const int status = store(command, opt, name, value, options);
        if (status >= 0)
            return status;
    }
    return -1;
}

/* ---- the command line ---- */

/* Distance by insertions, deletions, substitutions and swaps of neighbours, for short names. */
static size_t edit_distance(const char *a, const char *b)
{
    const size_t n_a = strlen(a), n_b = strlen(b);
    size_t rows[3][MAX_NAME + 1];
    if (n_a > MAX_NAME || n_b > MAX_NAME)
        return SIZE_MAX;
    for (size_t j = 0; j <= n_b; j++)
        rows[0][j] = j;
    for (size_t i = 1; i <= n_a; i++) {
        size_t *row = rows[i % 3];
        const size_t *above = rows[(i + 2) % 3], *above2 = rows[(i + 1) % 3];
        row[0] = i;
        for (size_t j = 1; j <= n_b; j++) {
            const size_t replace = above[j - 1] + (a[i - 1] != b[j - 1]);
            row[j] = sl_min_size(replace, sl_min_size(above[j], row[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                row[j] = sl_min_size(row[j], above2[j - 2] + 1);
        }
    }
    return rows[n_a % 3][n_b];
}

const char *sl_nearest_name(const char *word, const char *const *names, size_t n)
{
    const char *best = NULL;
    size_t best_distance = SIZE_MAX;
    const size_t n_word = strlen(word);
    for (size_t i = 0; i < n; i++) {
        size_t distance = edit_distance(word, names[i]);
        if (distance > 1 && n_word >= 3 && strncmp(names[i], word, n_word) == 0)
            distance = 1; /* the beginning of a name */
        if (distance < best_distance) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best_distance <= 1 + n_word / 4 ? best : NULL;
}

/* What the user called the option: arg without its dashes and what follows a '='. */
static sl_str name_in(const char *arg)
{
    const char *name = arg + (arg[1] == '-' ? 2 : 1);
    return (sl_str){name, strcspn(name, "=")};
}

static int unknown_option(const sl_command *command, const char *arg)
{
    const char *names[64];
    const sl_opt *opt;
    size_t n = 0;
    for (; n + 1 < SL_COUNTOF(names) && (opt = option_at(command, n)) != NULL; n++)
        names[n] = opt->name;
    names[n++] = "help";
    char word[MAX_NAME + 1];
    const sl_str name = name_in(arg);
    snprintf(word, sizeof word, "%.*s", (int)sl_min_size(name.n_bytes, MAX_NAME), name.data);
    const char *near = arg[1] == '-' || name.n_bytes > 2 ? sl_nearest_name(word, names, n) : NULL;
    if (near)
        return sl_usage_error(command->name, "there is no option %s; did you mean --%s?", arg,
                              near);
    return sl_usage_error(command->name, "there is no option %s", arg);
}

static const sl_opt *find_name(const sl_command *command, sl_str name)
{
    const sl_opt *opt;
    for (size_t i = 0; (opt = option_at(command, i)) != NULL; i++) {
        if (sl_str_equal(name, sl_str_of(opt->name)))
            return opt;
    }
    return NULL;
}

/* "-n", or "-n3" where n takes a value; not "-temp", which was meant to be --temp. */
static const sl_opt *find_letter(const sl_command *command, const char *arg)
{
    const sl_opt *opt;
    if (arg[2] != '\0' && find_name(command, name_in(arg)))
        return NULL;
    for (size_t i = 0; (opt = option_at(command, i)) != NULL; i++) {
        if (arg[1] == opt->letter && (arg[2] == '\0' || opt->type != SL_OPT_FLAG))
            return opt;
    }
    return NULL;
}

static void note_given(const sl_command *command, const sl_opt *opt, sl_args *args)
{
    for (size_t i = 0; i < 64 && option_at(command, i); i++) {
        if (option_at(command, i) == opt)
            args->given |= (uint64_t)1 << i;
    }
}

bool sl_args_gave(const sl_args *args, const sl_command *command, const char *name)
{
    const sl_opt *opt;
    for (size_t i = 0; i < 64 && (opt = option_at(command, i)) != NULL; i++) {
        if ((args->given >> i & 1) && strcmp(opt->name, name) == 0)
            return true;
    }
    return false;
}

const char *sl_args_other(const sl_args *args, const sl_command *command,
                          const char *const *allowed)
{
    const sl_opt *opt;
    for (size_t i = 0; i < 64 && (opt = option_at(command, i)) != NULL; i++) {
        size_t k = 0;
        while (allowed[k] && strcmp(opt->name, allowed[k]) != 0)
            k++;
        if ((args->given >> i & 1) && !allowed[k])
            return opt->name;
    }
    return NULL;
}

/* A switch that is on from the start, named alone, with its value behind: "--ceilings off". The
 * value would be taken for an argument. */
static bool means_a_value(const sl_opt *opt, const char *next, const void *options)
{
    return *(const bool *)((const char *)options + opt->offset) && next &&
           (strcmp(next, "off") == 0 || strcmp(next, "on") == 0);
}

/* Handles argv[*i], which begins with '-', and its value. Returns -1 or an exit status. */
static int parse_option(const sl_command *command, int argc, char *const *argv, int *i,
                        void *options, sl_args *args)
{
    const char *arg = argv[*i];
    const bool is_long = arg[1] == '-';
    const sl_str name = name_in(arg);
    const sl_opt *opt = is_long ? find_name(command, name) : find_letter(command, arg);
    if (!opt)
        return unknown_option(command, arg);

    note_given(command, opt, args);
    char given[MAX_NAME + 3];
    snprintf(given, sizeof given, is_long ? "--%s" : "-%.1s", is_long ? opt->name : arg + 1);
    if (is_long && name.data[name.n_bytes] == '=')
        return store(command, opt, given, name.data + name.n_bytes + 1, options);
    if (!is_long && arg[2] != '\0')
        return store(command, opt, given, arg + 2, options);
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    if (opt->type == SL_OPT_FLAG && means_a_value(opt, next, options))
        return sl_usage_error(command->name, "%s takes a value behind '=' only: %s=%s", given,
                              given, next);
    if (opt->type == SL_OPT_FLAG)
        return store(command, opt, given, "on", options);
    if (!next)
        return sl_usage_error(command->name, "%s needs a value: %s %s", given, given,
                              opt->value_name);
    *i += 1;
    return store(command, opt, given, next, options);
}

static int check_count(const sl_command *command, const sl_args *args)
{
    if (args->n > command->max_args)
        return sl_usage_error(command->name, "'%s' is one argument too many",
                              args->items[command->max_args]);
    if (args->n < command->min_args)
        return sl_usage_error(command->name, "something is missing: sluice %s %s", command->name,
                              command->usage);
    return -1;
}

static int print_help(const sl_command *command)
{
    sl_buf page;
    sl_error err;
    sl_buf_init(&page, SL_MEM_GENERAL, 1u << 20);
    return sl_out_finish(&page, sl_opts_help(command, &page, &err), &err);
}

int sl_opts_parse(const sl_command *command, int argc, char *const *argv, void *options,
                  sl_args *args)
{
    *args = (sl_args){0};
    args->items = sl_alloc_array(SL_MEM_GENERAL, (size_t)argc + 1, sizeof *args->items);
    if (!args->items)
        return sl_failf("out of memory");
    bool only_arguments = false;
    int status = read_environment(command, options);
    for (int i = 0; i < argc && status < 0; i++) {
        const char *arg = argv[i];
        if (only_arguments || arg[0] != '-' || arg[1] == '\0')
            args->items[args->n++] = arg;
        else if (strcmp(arg, "--") == 0)
            only_arguments = true;
        else if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0)
            status = print_help(command);
        else
            status = parse_option(command, argc, argv, &i, options, args);
    }
    if (status < 0)
        status = check_count(command, args);
    if (status >= 0)
        sl_args_free(args);
    return status;
}

void sl_args_free(sl_args *args)
{
    sl_free(args->items);
    *args = (sl_args){0};
}

int sl_usage_error(const char *command, const char *format, ...)
{
    char raw[2048], sentence[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(raw, sizeof raw, format, list);
    va_end(list);
    sl_utf8_show(raw, strlen(raw), sentence, sizeof sentence);
    if (command)
        sl_failf("%s\nTry 'sluice %s --help'.", sentence, command);
    else
        sl_failf("%s\nTry 'sluice help'.", sentence);
    return SL_EXIT_USAGE;
}

/* ---- help ---- */

enum { HELP_COLUMNS = 80, HELP_INDENT = 28 };

/* Appends text in lines of HELP_COLUMNS, continued at `indent`; the first begins at `column`. */
static sl_status append_wrapped(sl_buf *out, const char *text, int indent, int column,
                                sl_error *err)
{
    while (*text) {
        const int n = (int)strcspn(text, " ");
        if (column > indent && column + 1 + n > HELP_COLUMNS) {
            SL_TRY(sl_buf_printf(out, err, "\n%*s", indent, ""));
            column = indent;
        }
        SL_TRY(sl_buf_printf(out, err, "%s%.*s", column > indent ? " " : "", n, text));
        column += n + (column > indent);
        text += n;
        text += *text == ' ';
    }
    return sl_buf_append_char(out, '\n', err);
}

static sl_status append_option(sl_buf *out, const sl_opt *opt, sl_error *err)
{
    const size_t start = out->n_bytes;
    if (opt->letter)
        SL_TRY(sl_buf_printf(out, err, "  -%c, --%s", opt->letter, opt->name));
    else
        SL_TRY(sl_buf_printf(out, err, "      --%s", opt->name));
    if (opt->value_name)
        SL_TRY(sl_buf_printf(out, err, " %s", opt->value_name));
    int column = (int)(out->n_bytes - start);
    if (column + 2 > HELP_INDENT) {
        SL_TRY(sl_buf_append_char(out, '\n', err));
        column = 0;
    }
    SL_TRY(sl_buf_printf(out, err, "%*s", HELP_INDENT - column, ""));
    return append_wrapped(out, opt->help, HELP_INDENT, HELP_INDENT, err);
}

static sl_status append_paragraphs(sl_buf *out, const char *text, sl_error *err)
{
    while (*text) {
        char line[2048];
        const size_t n = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)n, text);
        SL_TRY(append_wrapped(out, line, 0, 0, err));
        text += n;
        text += *text == '\n';
    }
    return SL_OK;
}

sl_status sl_opts_help(const sl_command *command, sl_buf *out, sl_error *err)
{
    SL_TRY(sl_buf_printf(out, err, "usage: sluice %s%s%s%s\n\n", command->name,
                         *command->usage ? " " : "", command->usage,
                         option_at(command, 0) ? " [options]" : ""));
    SL_TRY(append_paragraphs(out, command->summary, err));
    if (command->details) {
        SL_TRY(sl_buf_append_char(out, '\n', err));
        SL_TRY(append_paragraphs(out, command->details, err));
    }
    SL_TRY(sl_buf_append_str(out, "\noptions:\n", err));
    const sl_opt *opt;
    for (size_t i = 0; (opt = option_at(command, i)) != NULL; i++)
        SL_TRY(append_option(out, opt, err));
    static const sl_opt help = {.name = "help", .letter = 'h', .help = "show this page"};
    SL_TRY(append_option(out, &help, err));
    const sl_opt *first = option_at(command, 0);
    if (!first)
        return SL_OK;
    char name[MAX_NAME + 8];
    environment_name(first, name);
    SL_TRY(sl_buf_append_char(out, '\n', err));
    return sl_buf_printf(out, err, "Options may be given in the environment too: --%s as %s.\n",
                         first->name, name);
}
