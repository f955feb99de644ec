/* The table of commands and what each of them does. */
#include "chat_commands.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "out.h"
#include "prompt.h"

enum { PAGE_LIMIT = 64 << 20, FILE_VERSION = 1 };

/* The page is written, or why not is told. */
static void print_page(sl_buf *page, sl_status status, const sl_error *err)
{
    if (status == SL_OK)
        sl_out_write(page->data, page->n_bytes);
    else
        sl_fail_with(err);
    sl_buf_free(page);
}

static sl_branch *current(sl_chat_session *chat)
{
    return sl_branches_current(&chat->branches);
}

/* ---- /system, /think, /tools ---- */

static void do_system(sl_chat_session *chat, const char *argument)
{
    sl_talk *talk = &current(chat)->talk;
    sl_error err;
    if (*argument == '\0') {
        const char *text = sl_talk_system(talk);
        sl_out_write(text ? text : "off", text ? strlen(text) : 3);
        sl_out_write("\n", 1);
    } else if (sl_talk_set_system(talk, strcmp(argument, "off") == 0 ? NULL : argument, &err) !=
               SL_OK) {
        sl_fail_with(&err);
    }
}

static void do_think(sl_chat_session *chat, const char *argument)
{
    static const char *const words[] = {"off", "on", "default"};
    sl_talk *talk = &current(chat)->talk;
    if (*argument == '\0') {
        const char *is = words[talk->think < 0 ? 2 : talk->think];
        sl_out_write(is, strlen(is));
        sl_out_write("\n", 1);
        return;
    }
    for (int i = 0; i < 3; i++) {
        if (strcmp(argument, words[i]) == 0) {
            talk->think = i == 2 ? -1 : i;
            return;
        }
    }
    sl_failf("/think: '%s' is neither on nor off nor default", argument);
}

static void list_tools(const json_t *tools)
{
    if (json_array_size(tools) == 0)
        sl_out_write("off\n", 4);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i), *inside = json_object_get(tool, "function");
        const char *name = json_string_value(json_object_get(inside ? inside : tool, "name"));
        name = name ? name : "(without a name)";
        sl_out_write(name, strlen(name));
        sl_out_write("\n", 1);
    }
}

static void do_tools(sl_chat_session *chat, const char *argument)
{
    sl_talk *talk = &current(chat)->talk;
    if (*argument == '\0') {
        list_tools(talk->tools);
        return;
    }
    json_t *tools = NULL;
    sl_error err;
    if (strcmp(argument, "off") != 0 && sl_tools_read(argument, &tools, &err) != SL_OK) {
        sl_fail_with(&err);
        return;
    }
    json_decref(talk->tools);
    talk->tools = tools;
    if (tools)
        list_tools(tools);
}

/* ---- /set ---- */

/* Checks the settings as a whole, and tells what they make. */
static sl_status try_settings(const sl_chat_session *chat, const sl_settings *settings,
                              sl_sampling *sampling, sl_error *err)
{
    sl_run_options options;
    sl_choices choices;
    sl_settings_options(settings, &options);
    const sl_status status = sl_chat_engine_choose(&chat->engine, &options.sampling, &choices, err);
    *sampling = choices.params.sampling;
    sl_choices_free(&choices);
    return status;
}

static void list_settings(const sl_chat_session *chat)
{
    sl_buf page;
    sl_error err;
    sl_sampling chosen;
    sl_buf_init(&page, SL_MEM_TEXT, PAGE_LIMIT);
    sl_status status = try_settings(chat, &chat->settings, &chosen, &err);
    if (status == SL_OK)
        status = sl_settings_list(&chat->settings, &chosen, &page, &err);
    print_page(&page, status, &err);
}

static void do_set(sl_chat_session *chat, const char *argument)
{
    char name[32];
    const size_t n = strcspn(argument, " \t=");
    const char *value = argument + n + strspn(argument + n, " \t=");
    if (*argument == '\0') {
        list_settings(chat);
        return;
    }
    if (*value == '\0') {
        sl_failf("/set NAME VALUE, or /set NAME default");
        return;
    }
    snprintf(name, sizeof name, "%.*s", (int)n, argument);
    sl_settings trial;
    sl_sampling chosen;
    sl_error err;
    sl_status status = sl_settings_copy(&chat->settings, &trial, &err);
    if (status == SL_OK) {
        status = sl_settings_set(&trial, name, strcmp(value, "default") == 0 ? NULL : value, &err);
        if (status == SL_OK)
            status = try_settings(chat, &trial, &chosen, &err);
        sl_settings_free(status == SL_OK ? &chat->settings : &trial);
    }
    if (status == SL_OK)
        chat->settings = trial;
    else
        sl_fail_with(&err);
}

/* ---- /save, /load ---- */

static sl_status describe(const sl_chat_session *chat, const sl_talk *talk, char **text,
                          sl_error *err)
{
    json_t *object;
    SL_TRY(sl_talk_to_json(talk, &object, err));
    *text = NULL;
    if (json_object_set_new(object, "sluice_chat", json_integer(FILE_VERSION)) == 0 &&
        json_object_set(object, "settings", chat->settings.values) == 0)
        *text = json_dumps(object, JSON_COMPACT);
    json_decref(object);
    return *text ? SL_OK : sl_fail(err, SL_ERR_MEMORY, "out of memory for the conversation");
}

static void do_save(sl_chat_session *chat, const char *argument)
{
    sl_branch *branch = current(chat);
    char *text = NULL;
    sl_error err;
    sl_status status = describe(chat, &branch->talk, &text, &err);
    if (status == SL_OK)
        status = sl_chat_engine_save(branch->state, argument, text, strlen(text), &err);
    free(text);
    if (status == SL_OK)
        sl_err_printf("(saved to %s)\n", argument);
    else
        sl_fail_with(&err);
}

static sl_status understand(const char *path, const char *text, size_t n, sl_talk *talk,
                            sl_settings *settings, sl_error *err)
{
    json_t *object;
    int64_t version;
    if (n == 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s holds a state but no conversation", path);
    /* The program's own text, not that of a client: integers beyond int64_t in it keep the form
     * that base/json.h gives them. */
    object = json_loadb(text, n, JSON_REJECT_DUPLICATES, NULL);
    if (!object)
        return sl_fail(err, SL_ERR_FORMAT, "%s holds a state but no conversation", path);
    sl_status status =
        sl_json_get_int_or(object, "sluice_chat", 1, INT32_MAX, 0, &version, path, err);
    if (status == SL_OK && version != FILE_VERSION)
        status = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: %s", path,
                         version == 0 ? "a state but no conversation"
                                      : "a conversation of a newer version");
    if (status == SL_OK)
        status = sl_talk_from_json(object, path, talk, err);
    if (status == SL_OK) {
        status = sl_settings_from_json(json_object_get(object, "settings"), path, settings, err);
        if (status != SL_OK)
            sl_talk_free(talk);
    }
    json_decref(object);
    return status;
}

static void do_load(sl_chat_session *chat, const char *argument)
{
    sl_branch *branch = current(chat);
    sl_state *state = NULL;
    char *text = NULL;
    size_t n = 0;
    sl_talk talk;
    sl_settings settings;
    sl_error err;
    sl_status status = sl_chat_engine_load(&chat->engine, argument, &state, &text, &n, &err);
    if (status == SL_OK) {
        status = understand(argument, text, n, &talk, &settings, &err);
        sl_free(text);
        if (status != SL_OK)
            sl_state_free(state);
    }
    if (status != SL_OK) {
        sl_fail_with(&err);
        return;
    }
    sl_talk_free(&branch->talk);
    sl_state_free(branch->state);
    sl_settings_free(&chat->settings);
    branch->talk = talk;
    branch->state = state;
    branch->last = (sl_chat_report){0};
    chat->settings = settings;
    const size_t n_turns = sl_talk_turns(&talk);
    sl_err_printf("(%zu turn%s, %u tokens)\n", n_turns, n_turns == 1 ? "" : "s",
                  sl_state_length(state));
}

/* ---- /fork, /undo, /regen, /clear ---- */

static void do_fork(sl_chat_session *chat, const char *argument)
{
    sl_branches *branches = &chat->branches;
    sl_error err;
    sl_status status;
    if (strcmp(argument, "list") == 0) {
        sl_buf page;
        sl_buf_init(&page, SL_MEM_TEXT, PAGE_LIMIT);
        status = sl_branches_list(branches, &page, &err);
        print_page(&page, status, &err);
        return;
    }
    const char *from = current(chat)->name;
    if (strncmp(argument, "drop ", 5) == 0) {
        status = sl_branches_drop(branches, argument + 5 + strspn(argument + 5, " "), &err);
    } else if (*argument && sl_branches_has(branches, argument)) {
        status = sl_branches_switch(branches, argument, &err);
    } else {
        status = sl_branches_fork(branches, *argument ? argument : NULL, &err);
        if (status == SL_OK)
            sl_err_printf("(branch %s, from %s; /fork %s goes back)\n", current(chat)->name, from,
                          from);
    }
    if (status != SL_OK)
        sl_fail_with(&err);
}

static void do_undo(sl_chat_session *chat, const char *argument)
{
    (void)argument;
    sl_talk *talk = &current(chat)->talk;
    if (!sl_talk_undo(talk)) {
        sl_failf("there is no turn to take back");
        return;
    }
    const size_t n = sl_talk_turns(talk);
    sl_err_printf("(taken back; %zu turn%s left)\n", n, n == 1 ? "" : "s");
}

static void do_regen(sl_chat_session *chat, const char *argument)
{
    (void)argument;
    sl_sampling chosen;
    sl_error err;
    if (try_settings(chat, &chat->settings, &chosen, &err) == SL_OK && chosen.temperature == 0)
        sl_err_printf("(temperature 0: the same prompt has the same answer)\n");
    sl_chat_answer_again(chat);
}

static void do_clear(sl_chat_session *chat, const char *argument)
{
    (void)argument;
    sl_talk_clear(&current(chat)->talk);
    current(chat)->last = (sl_chat_report){0};
}

/* ---- /stats ---- */

static double mib(size_t bytes)
{
    return (double)bytes / (1 << 20);
}

static sl_status append_turn(sl_buf *page, const sl_chat_report *report, sl_error *err)
{
    const sl_generate_result *generated = &report->generated;
    const sl_reuse_report *reuse = &generated->reuse;
    const uint32_t n_read = report->n_read;
    SL_TRY(sl_buf_printf(page, err, "prompt       %u tokens: %u reused, %u read in %.2f s",
                         report->n_prompt, reuse->reused, n_read,
                         (double)generated->prompt_ns / 1e9));
    if (generated->prompt_ns > 0)
        SL_TRY(sl_buf_printf(page, err, ", %.1f tokens/s",
                             (double)n_read * 1e9 / (double)generated->prompt_ns));
    if (reuse->source == SL_REUSE_CHECKPOINT)
        SL_TRY(sl_buf_printf(page, err, "\n             from the checkpoint at %u",
                             reuse->checkpoint));
    if (*reuse->why && reuse->reused < reuse->matched)
        SL_TRY(sl_buf_printf(page, err, "\n             not all of %u in common: %s",
                             reuse->matched, reuse->why));
    SL_TRY(sl_buf_printf(page, err, "\nanswer       %zu tokens in %.2f s", generated->n_tokens,
                         (double)generated->answer_ns / 1e9));
    if (generated->answer_ns > 0)
        SL_TRY(sl_buf_printf(page, err, ", %.1f tokens/s",
                             (double)generated->n_steps * 1e9 / (double)generated->answer_ns));
    return sl_buf_printf(page, err, " (%s)\nreply start  %u, seed %llu\n",
                         sl_finish_word(generated->finish), report->reply_start,
                         (unsigned long long)report->seed);
}

static sl_status append_stats(sl_chat_session *chat, sl_buf *page, sl_error *err)
{
    const sl_branch *branch = current(chat);
    const uint32_t length = sl_state_length(branch->state);
    const sl_checkpoint_stats kept = sl_engine_checkpoint_stats(chat->engine.engine);
    const sl_state_bytes bytes = sl_state_memory(branch->state);
    if (branch->last.any)
        SL_TRY(append_turn(page, &branch->last, err));
    SL_TRY(sl_buf_printf(page, err, "context      %u of %u tokens, %u left\n", length,
                         chat->engine.context, chat->engine.context - length));
    SL_TRY(sl_buf_printf(page, err, "checkpoints  %zu in %.1f of %.0f MiB\n", kept.n_checkpoints,
                         mib(kept.bytes), mib(kept.budget)));
    return sl_buf_printf(page, err, "state        %.1f MiB of its own, %.1f MiB shared\n",
                         mib(bytes.own), mib(bytes.shared));
}

static void do_stats(sl_chat_session *chat, const char *argument)
{
    (void)argument;
    sl_buf page;
    sl_error err;
    sl_buf_init(&page, SL_MEM_TEXT, PAGE_LIMIT);
    print_page(&page, append_stats(chat, &page, &err), &err);
}

/* ---- the table ---- */

static void do_quit(sl_chat_session *chat, const char *argument)
{
    (void)argument;
    chat->quit = true;
}

static void do_help(sl_chat_session *chat, const char *argument);

typedef enum argument_rule { NO_ARGUMENT, MAYBE_ARGUMENT, NEEDS_ARGUMENT } argument_rule;

static const struct command {
    const char *name, *usage, *help;
    argument_rule rule;
    void (*run)(sl_chat_session *chat, const char *argument);
} commands[] = {
    {"/help", "", "this page", NO_ARGUMENT, do_help},
    {"/system", "TEXT|off", "sets the system message; alone: shows it", MAYBE_ARGUMENT, do_system},
    {"/think", "on|off|default", "whether the model thinks first", MAYBE_ARGUMENT, do_think},
    {"/tools", "FILE|off", "tools the model may call; you give their results", MAYBE_ARGUMENT,
     do_tools},
    {"/set", "NAME VALUE", "a setting of 'sluice run', or default; alone: lists them",
     MAYBE_ARGUMENT, do_set},
    {"/save", "FILE", "saves conversation, settings and the model's state", NEEDS_ARGUMENT,
     do_save},
    {"/load", "FILE", "goes on with what was saved, in place of this", NEEDS_ARGUMENT, do_load},
    {"/fork", "[NAME]", "goes on in a branch NAME, a new one or one there is;", MAYBE_ARGUMENT,
     do_fork},
    {"", "", "the branch left stays as it is, the first one is 'main';", NO_ARGUMENT, NULL},
    {"", "", "/fork list shows them, /fork drop NAME removes one", NO_ARGUMENT, NULL},
    {"/undo", "", "takes back your last turn and its answer", NO_ARGUMENT, do_undo},
    {"/regen", "", "another answer, drawn with the next seed", NO_ARGUMENT, do_regen},
    {"/stats", "", "tokens, speed, what was reused, memory, room left", NO_ARGUMENT, do_stats},
    {"/clear", "", "begins anew; system message, tools and settings stay", NO_ARGUMENT, do_clear},
    {"/quit", "", "ends the chat", NO_ARGUMENT, do_quit},
};

static void do_help(sl_chat_session *chat, const char *argument)
{
    (void)chat;
    (void)argument;
    sl_buf page;
    sl_error err;
    sl_status status = SL_OK;
    sl_buf_init(&page, SL_MEM_TEXT, PAGE_LIMIT);
    for (size_t i = 0; i < SL_COUNTOF(commands) && status == SL_OK; i++)
        status = sl_buf_printf(&page, &err, "%-7s %-14s  %s\n", commands[i].name, commands[i].usage,
                               commands[i].help);
    if (status == SL_OK)
        status = sl_buf_append_str(
            &page,
            "A backslash at the end of a line continues it; a line of \"\"\" begins and ends a\n"
            "block of lines. Ctrl-C stops the answer, Ctrl-D ends the chat at any time.\n",
            &err);
    print_page(&page, status, &err);
}

bool sl_chat_is_command(const char *line)
{
    const char c = (char)(line[0] == '/' ? line[1] | 0x20 : '\0');
    return c >= 'a' && c <= 'z';
}

static void unknown_command(const char *name)
{
    const char *names[SL_COUNTOF(commands)];
    size_t n = 0;
    for (size_t i = 0; i < SL_COUNTOF(commands); i++) {
        if (commands[i].run)
            names[n++] = commands[i].name;
    }
    const char *near = sl_nearest_name(name, names, n);
    if (near)
        sl_failf("there is no command %s; did you mean %s?", name, near);
    else
        sl_failf("there is no command %s; /help shows them. In a block of \"\"\" any text is a "
                 "message.",
                 name);
}

void sl_chat_command(sl_chat_session *chat, const char *line)
{
    char name[64];
    sl_buf argument;
    const size_t n = strcspn(line, " \t\n");
    const char *rest = line + n + strspn(line + n, " \t\n");
    size_t n_rest = strlen(rest);
    while (n_rest > 0 && strchr(" \t\n", rest[n_rest - 1]))
        n_rest--;
    snprintf(name, sizeof name, "%.*s", (int)sl_min_size(n, sizeof name), line);
    sl_buf_init(&argument, SL_MEM_TEXT, PAGE_LIMIT);
    sl_error err;
    const struct command *command = NULL;
    for (size_t i = 0; i < SL_COUNTOF(commands); i++) {
        if (strcmp(commands[i].name, name) == 0)
            command = &commands[i];
    }
    if (!command)
        unknown_command(name);
    else if (sl_buf_append(&argument, rest, n_rest, &err) != SL_OK)
        sl_fail_with(&err);
    else if (command->rule == NO_ARGUMENT && n_rest > 0)
        sl_failf("%s takes nothing after it", name);
    else if (command->rule == NEEDS_ARGUMENT && n_rest == 0)
        sl_failf("%s %s", name, command->usage);
    else
        command->run(chat, argument.data);
    sl_buf_free(&argument);
}
