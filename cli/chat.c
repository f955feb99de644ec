/* The loop of a chat, and what is told about an answer. */
#include "chat.h"

#include <stdio.h>
#include <string.h>

#include "chat_commands.h"
#include "chat_input.h"
#include "interrupt.h"
#include "out.h"
#include "prompt.h"
#include "terminal.h"

enum { LINE_LIMIT = 64 << 20 };

/* ---- life ---- */

static sl_status set_system(sl_talk *talk, const char *text, sl_error *err)
{
    sl_buf clean;
    size_t n_replaced;
    sl_buf_init(&clean, SL_MEM_TEXT, SIZE_MAX / 2);
    sl_status status = sl_clean_utf8(text, strlen(text), &clean, &n_replaced, err);
    if (status == SL_OK)
        status = sl_talk_set_system(talk, clean.data, err);
    sl_buf_free(&clean);
    return status;
}

static sl_status begin_talk(sl_talk *talk, const sl_chat_setup *setup, sl_error *err)
{
    const sl_run_options *options = setup->options;
    talk->tools = json_incref(setup->tools);
    talk->think = options->think < 0 ? -1 : options->think == 0;
    return options->system ? set_system(talk, options->system, err) : SL_OK;
}

sl_status sl_chat_create(sl_chat_session *chat, const sl_chat_setup *setup, sl_error *err)
{
    const sl_run_options *options = setup->options;
    *chat = (sl_chat_session){
        .engine = {.engine = setup->engine, .trust_content = options->trust_content},
        .json = options->common.json,
        .verbose = options->verbose,
    };
    SL_TRY(sl_common_context(&options->common, setup->engine, SL_CHAT_DEFAULT_CONTEXT,
                             &chat->engine.context, err));
    SL_TRY(sl_branches_create(&chat->branches, &chat->engine, err));
    sl_status status = sl_settings_create(&chat->settings, options, err);
    if (status == SL_OK)
        status = begin_talk(&sl_branches_current(&chat->branches)->talk, setup, err);
    sl_choices choices = {.bias = {{0}}};
    if (status == SL_OK) {
        status = sl_chat_engine_choose(&chat->engine, &options->sampling, &choices, err);
        sl_choices_free(&choices);
    }
    if (status != SL_OK)
        sl_chat_free(chat);
    return status;
}

void sl_chat_free(sl_chat_session *chat)
{
    sl_branches_free(&chat->branches);
    sl_settings_free(&chat->settings);
}

/* ---- a turn ---- */

static double per_second(size_t n, uint64_t ns)
{
    return ns > 0 ? (double)n * 1e9 / (double)ns : 0;
}

/* [{"name", "arguments"}], as `sluice run --json` has them. */
static json_t *calls_of(const json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    json_t *list = json_array();
    for (size_t i = 0; i < json_array_size(calls); i++)
        json_array_append(list, json_object_get(json_array_get(calls, i), "function"));
    return list;
}

static void print_json(const json_t *message, const sl_chat_report *report)
{
    const sl_generate_result *generated = &report->generated;
    json_t *line = json_pack(
        "{s:O, s:O?, s:o, s:s, s:I, s:I, s:I, s:I}", "text", json_object_get(message, "content"),
        "thinking", json_object_get(message, "reasoning_content"), "tool_calls", calls_of(message),
        "finish_reason", sl_finish_word(generated->finish), "prompt_tokens",
        (json_int_t)report->n_prompt, "reused_tokens", (json_int_t)generated->reuse.reused,
        "completion_tokens", (json_int_t)generated->n_tokens, "seed", (json_int_t)report->seed);
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (text) {
        sl_out_write(text, strlen(text));
        sl_out_write("\n", 1);
    } else {
        sl_failf("out of memory for the answer");
    }
    free(text);
    json_decref(line);
}

static void tell_times(const sl_chat_report *report)
{
    const sl_generate_result *generated = &report->generated;
    const uint32_t n_read = report->n_read;
    sl_err_dim(true);
    sl_err_printf("prompt %u tokens, %u reused, %u read at %.1f/s; answer %zu tokens at %.1f/s\n",
                  report->n_prompt, generated->reuse.reused, n_read,
                  per_second(n_read, generated->prompt_ns), generated->n_tokens,
                  per_second(generated->n_steps, generated->answer_ns));
    sl_err_dim(false);
}

/* Why the answer ended, when it did not by itself nor at the user's farewell. */
static void tell_end(const sl_chat_session *chat, const sl_branch *branch, bool any)
{
    const sl_finish finish = branch->last.generated.finish;
    if (finish == SL_FINISH_CANCELLED && any && !sl_terminal_end_typed())
        sl_err_printf("(stopped; /regen gives another answer, /undo takes the turn back)\n");
    else if (finish == SL_FINISH_LENGTH && sl_state_length(branch->state) >= chat->engine.context)
        sl_err_printf("(the context of %u tokens is full: /undo takes the last turn back, /clear "
                      "begins anew, --ctx N gives more room)\n",
                      chat->engine.context);
    else if (finish == SL_FINISH_LENGTH)
        sl_err_printf("(cut off by max-tokens; /set max-tokens N)\n");
}

static void tell_failure(sl_status status, const sl_error *err)
{
    sl_fail_with(err);
    if (status == SL_ERR_CONTEXT)
        sl_err_printf("Nothing is lost: /undo takes the last turn back, /clear begins anew, /save "
                      "FILE and a start with --ctx N give more room.\n");
}

/* Answers the last message. False when there is no answer: the message is to be taken back. */
static bool answer(sl_chat_session *chat)
{
    sl_branch *branch = sl_branches_current(&chat->branches);
    sl_run_options options;
    sl_choices choices;
    sl_error err;
    sl_settings_options(&chat->settings, &options);
    json_t *message = NULL;
    sl_chat_report report = {0};
    sl_status status = sl_chat_engine_choose(&chat->engine, &options.sampling, &choices, &err);
    if (status == SL_OK) {
        const sl_chat_turn turn = {
            .talk = &branch->talk,
            .choices = &choices,
            .max_tokens = options.max_tokens.set ? options.max_tokens.value : UINT32_MAX,
            .state = branch->state,
            .quiet = chat->json,
        };
        sl_interrupt_clear();
        status = sl_chat_engine_turn(&chat->engine, &turn, &message, &report, &err);
    }
    sl_choices_free(&choices);
    const bool any = message != NULL;
    if (any) {
        if (chat->json)
            print_json(message, &report);
        status = sl_talk_add_answer(&branch->talk, message, &err);
    }
    if (status != SL_OK) {
        tell_failure(status, &err);
        return false;
    }
    branch->last = report;
    tell_end(chat, branch, any);
    if (chat->verbose)
        tell_times(&report);
    return any;
}

void sl_chat_say(sl_chat_session *chat, const char *role, const char *text, size_t n)
{
    sl_talk *talk = &sl_branches_current(&chat->branches)->talk;
    sl_error err;
    if (sl_talk_add(talk, role, text, n, &err) != SL_OK) {
        sl_fail_with(&err);
        return;
    }
    if (sl_talk_awaited(talk) || answer(chat))
        return;
    sl_talk_drop(talk);
    if (sl_interrupted())
        sl_err_printf("(stopped before the answer; the message is taken back, what was read of it "
                      "is kept)\n");
}

void sl_chat_answer_again(sl_chat_session *chat)
{
    sl_talk *talk = &sl_branches_current(&chat->branches)->talk;
    sl_talk before;
    sl_error err;
    if (sl_talk_copy(talk, &before, &err) != SL_OK) {
        sl_fail_with(&err);
        return;
    }
    if (!sl_talk_unanswer(talk)) {
        sl_failf("there is no answer yet");
    } else {
        talk->attempt++;
        if (answer(chat)) {
            sl_talk_free(&before);
            return;
        }
        sl_talk_free(talk);
        *talk = before;
        before = (sl_talk){0};
    }
    sl_talk_free(&before);
}

/* ---- the terminal ---- */

/* Text that is all white space says nothing. */
static bool is_blank(const char *text)
{
    return text[strspn(text, " \t\n")] == '\0';
}

/* "> ", "name> " away from the first branch, "tool = " for the result of a call. */
static void make_prompt(sl_chat_session *chat, char prompt[64])
{
    const sl_branch *branch = sl_branches_current(&chat->branches);
    const char *tool = sl_talk_awaited(&branch->talk);
    if (tool)
        snprintf(prompt, 64, "%.48s = ", tool);
    else if (chat->branches.current > 0)
        snprintf(prompt, 64, "%s> ", branch->name);
    else
        snprintf(prompt, 64, "> ");
}

static void take_input(sl_chat_session *chat, const sl_buf *text, bool is_message)
{
    if (!is_message && sl_chat_is_command(text->data)) {
        sl_chat_command(chat, text->data);
        return;
    }
    const bool awaited = sl_talk_awaited(&sl_branches_current(&chat->branches)->talk) != NULL;
    sl_chat_say(chat, awaited ? "tool" : "user", text->data, text->n_bytes);
}

static void read_and_answer(sl_chat_session *chat, sl_input *input)
{
    sl_buf text;
    bool asked_to_quit = false; /* by one Ctrl-C, with nothing said since */
    sl_buf_init(&text, SL_MEM_TEXT, LINE_LIMIT);
    while (!chat->quit && !sl_out_failed()) {
        char prompt[64];
        make_prompt(chat, prompt);
        const sl_input_result result = sl_input_read(input, prompt, &text);
        switch (result) {
        case SL_INPUT_TEXT:
        case SL_INPUT_BLOCK:
            asked_to_quit = false;
            if (!is_blank(text.data)) {
                take_input(chat, &text, result == SL_INPUT_BLOCK);
                asked_to_quit = sl_interrupted();
                chat->quit = chat->quit || sl_terminal_take_end();
            }
            break;
        case SL_INPUT_END:
            chat->quit = true;
            break;
        case SL_INPUT_INTERRUPT:
            chat->quit = asked_to_quit;
            if (!asked_to_quit)
                sl_err_printf("(once more, Ctrl-D or /quit ends the chat)\n");
            asked_to_quit = true;
            break;
        case SL_INPUT_DROPPED:
            asked_to_quit = false;
            break;
        }
    }
    sl_buf_free(&text);
}

int sl_chat_run(const sl_chat_setup *setup)
{
    sl_chat_session chat;
    sl_error err;
    if (sl_chat_create(&chat, setup, &err) != SL_OK)
        return sl_fail_with(&err);
    sl_terminal_keep();
    sl_input *input = sl_input_open();
    int exit_status = SL_EXIT_DONE;
    if (input) {
        sl_err_printf("A chat with a context of %u tokens. /help shows the commands.\n",
                      chat.engine.context);
        read_and_answer(&chat, input);
    } else {
        exit_status = sl_failf("this terminal cannot be used for a chat");
    }
    sl_input_close(input);
    sl_terminal_restore();
    sl_chat_free(&chat);
    return sl_out_failed() ? SL_EXIT_FAILURE : exit_status;
}
