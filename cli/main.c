/* The program: finds the command and runs it. */
#include <stdio.h>
#include <string.h>

#include "commands.h"
#include "out.h"
#include "sluice.h"

static int run_help(int argc, char *const *argv);
static int run_version(int argc, char *const *argv);

static const sl_command command_help = {
    .name = "help",
    .usage = "[COMMAND]",
    .summary = "Shows the commands, or the page of one command.",
    .max_args = 1,
    .run = run_help,
};

static const sl_command command_version = {
    .name = "version",
    .usage = "",
    .summary = "Prints the version.",
    .run = run_version,
};

static const sl_command *const commands[] = {
    &sl_command_run,    &sl_command_serve,  &sl_command_info,  &sl_command_tokenize,
    &sl_command_logits, &sl_command_parity, &sl_command_bench, &sl_command_profile,
    &sl_command_doctor, &command_help,      &command_version,
};

static const sl_command *find_command(const char *name)
{
    for (size_t i = 0; i < SL_COUNTOF(commands); i++) {
        if (strcmp(commands[i]->name, name) == 0)
            return commands[i];
    }
    return NULL;
}

static int unknown_command(const char *name)
{
    const char *names[SL_COUNTOF(commands)];
    for (size_t i = 0; i < SL_COUNTOF(commands); i++)
        names[i] = commands[i]->name;
    const char *near = sl_nearest_name(name, names, SL_COUNTOF(names));
    if (near)
        return sl_usage_error(NULL, "there is no command '%s'; did you mean '%s'?", name, near);
    return sl_usage_error(NULL, "there is no command '%s'", name);
}

static sl_status append_overview(sl_buf *page, sl_error *err)
{
    SL_TRY(
        sl_buf_append_str(page,
                          "usage: sluice COMMAND MODEL [options]\n\n"
                          "Runs the Qwen3.5, 3.6 and 3.8 hybrid models. MODEL is a .gguf file or "
                          "a Hugging Face\nfolder.\n\ncommands:\n",
                          err));
    for (size_t i = 0; i < SL_COUNTOF(commands); i++)
        SL_TRY(sl_buf_printf(page, err, "  %-10s %s\n", commands[i]->name, commands[i]->summary));
    return sl_buf_append_str(page,
                             "\n'sluice help COMMAND' shows the options of a command.\n"
                             "Exit status: 0 done, 1 failure, 2 wrong usage, 3 model refused, "
                             "130 interrupted.\n",
                             err);
}

static int print_page(const sl_command *command)
{
    sl_buf page;
    sl_error err;
    sl_buf_init(&page, SL_MEM_GENERAL, 1u << 20);
    const sl_status status =
        command ? sl_opts_help(command, &page, &err) : append_overview(&page, &err);
    return sl_out_finish(&page, status, &err);
}

static int run_help(int argc, char *const *argv)
{
    sl_args args;
    int exit_status = sl_opts_parse(&command_help, argc, argv, NULL, &args);
    if (exit_status >= 0)
        return exit_status;
    const sl_command *command = args.n > 0 ? find_command(args.items[0]) : NULL;
    if (args.n > 0 && !command)
        exit_status = unknown_command(args.items[0]);
    else
        exit_status = print_page(command);
    sl_args_free(&args);
    return exit_status;
}

static int run_version(int argc, char *const *argv)
{
    sl_args args;
    const int exit_status = sl_opts_parse(&command_version, argc, argv, NULL, &args);
    if (exit_status >= 0)
        return exit_status;
    sl_args_free(&args);
    char line[64];
    const int n = snprintf(line, sizeof line, "sluice %s\n", sl_version());
    return sl_out_write(line, (size_t)n) ? SL_EXIT_DONE : SL_EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    sl_out_init();
    if (argc < 2)
        return sl_usage_error(NULL, "a command is missing");
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    else if (strcmp(name, "--version") == 0)
        name = "version";
    const sl_command *command = find_command(name);
    if (!command)
        return unknown_command(name);
    return command->run(argc - 2, argv + 2);
}
