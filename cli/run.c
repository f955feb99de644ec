/* `sluice run`: one answer to one prompt. */
#include <string.h>

#include "answer.h"
#include "base/clock.h"
#include "base/json.h"
#include "chat.h"
#include "commands.h"
#include "form.h"
#include "generate.h"
#include "interrupt.h"
#include "messages.h"
#include "model.h"
#include "out.h"
#include "prompt.h"
#include "report.h"
#include "run_options.h"
#include "sampling.h"
#include "terminal.h"

enum { DEFAULT_MAX_TOKENS = 4096 };

/* Everything one call owns. */
typedef struct run_session {
    const sl_run_options *options;
    bool has_prompt;
    bool chat; /* a conversation on the terminal */
    sl_buf prompt;
    json_t *messages, *tools;
    sl_form form;
    sl_engine *engine;
    sl_model_info model;
    const sl_tokenizer *tokenizer;
    sl_ids ids;
    sl_choices choices;
    uint32_t context;
    uint64_t max_tokens;
    uint64_t load_ns;
    sl_answer answer;
    sl_generate_result generated;
} run_session;

static void session_free(run_session *session)
{
    sl_answer_free(&session->answer);
    sl_choices_free(&session->choices);
    sl_ids_free(&session->ids);
    sl_form_free(&session->form);
    sl_engine_close(session->engine);
    json_decref(session->messages);
    json_decref(session->tools);
    sl_buf_free(&session->prompt);
}

/* ---- settings ---- */

static sl_status choose_lengths(run_session *session, sl_error *err)
{
    const sl_run_options *options = session->options;
    session->max_tokens = options->max_tokens.set   ? options->max_tokens.value
                          : options->common.ctx.set ? UINT32_MAX
                                                    : DEFAULT_MAX_TOKENS;
    SL_TRY(sl_common_context(&options->common, session->engine,
                             (uint64_t)session->ids.n + session->max_tokens, &session->context,
                             err));
    if (session->ids.n > session->context)
        return sl_fail(err, SL_ERR_CONTEXT, "the prompt has %zu tokens, the context holds %u",
                       session->ids.n, session->context);
    return SL_OK;
}

/* ---- from text to tokens ---- */

/* Adds {"role": role, "content": text} to the messages. */
static sl_status add_message(json_t *messages, const char *role, const char *text, size_t n,
                             sl_error *err)
{
    json_t *message = json_object();
    json_t *content = sl_json_new_string(text, n);
    const bool ok = message && content &&
                    json_object_set_new(message, "role", json_string(role)) == 0 &&
                    json_object_set(message, "content", content) == 0 &&
                    json_array_append(messages, message) == 0;
    json_decref(content);
    json_decref(message);
    return ok ? SL_OK : sl_fail(err, SL_ERR_MEMORY, "out of memory for the messages");
}

static sl_status build_messages(run_session *session, sl_error *err)
{
    const sl_run_options *options = session->options;
    session->messages = json_array();
    if (!session->messages)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the messages");
    if (options->system) {
        sl_buf system;
        size_t n_replaced;
        sl_buf_init(&system, SL_MEM_TEXT, SIZE_MAX / 2);
        sl_status status =
            sl_clean_utf8(options->system, strlen(options->system), &system, &n_replaced, err);
        sl_tell_replaced("the system message", n_replaced);
        if (status == SL_OK)
            status = add_message(session->messages, "system", system.data, system.n_bytes, err);
        sl_buf_free(&system);
        SL_TRY(status);
    }
    return add_message(session->messages, "user", session->prompt.data, session->prompt.n_bytes,
                       err);
}

static int make_ids(run_session *session)
{
    sl_error err;
    sl_status status;
    if (session->prompt.n_bytes == 0)
        return sl_failf("the prompt is empty");
    if (session->options->raw) {
        const sl_encode_options how = {.control = true, .user_defined = true};
        status = sl_tokenizer_encode(session->tokenizer, session->prompt.data,
                                     session->prompt.n_bytes, &how, &session->ids, NULL, &err);
        return status == SL_OK ? -1 : sl_fail_with(&err);
    }
    status = build_messages(session, &err);
    if (status != SL_OK)
        return sl_fail_with(&err);
    const int think = session->options->think;
    const sl_messages messages = {
        .messages = session->messages,
        .tools = session->tools,
        .think = think < 0 ? -1 : think == 0,
        .trust_content = session->options->trust_content,
    };
    status = sl_messages_render(&messages, session->engine, &session->ids, NULL, &err);
    if (status == SL_OK)
        return -1;
    sl_fail_with(&err);
    if (status != SL_ERR_FORMAT && status != SL_ERR_UNSUPPORTED)
        return SL_EXIT_FAILURE;
    sl_err_printf("sluice: --raw continues a text without a template\n");
    return SL_EXIT_MODEL;
}

/* ---- the command ---- */

static int print_plan(const run_session *session)
{
    char *listing;
    size_t n_listing;
    sl_error err;
    const size_t n_rows =
        session->has_prompt ? sl_min_size(session->ids.n, session->model.max_rows) : 1;
    const sl_status status =
        sl_engine_dump_plan(session->engine, (uint32_t)n_rows, 0, &listing, &n_listing, &err);
    if (status != SL_OK)
        return sl_fail_with(&err);
    const bool written = sl_out_write(listing, n_listing);
    sl_free(listing);
    return written ? SL_EXIT_DONE : SL_EXIT_FAILURE;
}

static int open_model(run_session *session, const char *path)
{
    const sl_run_options *options = session->options;
    sl_engine_params params = sl_common_engine_params(&options->common);
    if (!session->chat)
        params.checkpoint_budget = 0; /* one pass, nothing goes back */
    const uint64_t start = sl_clock_ns();
    const int exit_status =
        sl_model_open_text(path, &params, &session->engine, &session->tokenizer);
    session->load_ns = sl_clock_ns() - start;
    if (exit_status < 0)
        sl_engine_model_info(session->engine, &session->model);
    return exit_status;
}

/* The answer, from the empty state on. */
static sl_status generate(run_session *session, sl_report *report, sl_error *err)
{
    const sl_run_options *options = session->options;
    const sl_answer_mode mode = options->common.json                      ? SL_ANSWER_COLLECT
                                : options->show_thinking && !options->raw ? SL_ANSWER_THINKING
                                                                          : SL_ANSWER_PLAIN;
    sl_state *state = NULL;
    SL_TRY(sl_answer_begin(&session->answer, mode, err));
    SL_TRY(sl_state_create(session->engine, session->context, &state, err));
    report->state_bytes = sl_mem_get_stats().bytes[SL_MEM_STATE];
    sl_generation generation = {
        .engine = session->engine,
        .state = state,
        .prompt = &session->ids,
        .params = session->choices.params,
        .tools = options->common.json ? session->tools : NULL,
        .take = sl_answer_take,
        .user = &session->answer,
    };
    generation.params.max_tokens = session->max_tokens;
    generation.params.raw = options->raw;
    generation.params.constraint = session->form.constraint;
    const sl_status status = sl_generation_run(&generation, &session->generated, err);
    sl_answer_finish(&session->answer);
    sl_state_free(state);
    return status;
}

static int answer(run_session *session)
{
    sl_error err;
    const sl_run_options *options = session->options;
    sl_choices *choices = &session->choices;
    sl_report report = {
        .engine = session->engine,
        .sampling = &choices->params.sampling,
        .n_prompt = session->ids.n,
        .load_ns = session->load_ns,
        .generated = &session->generated,
        .answer = &session->answer,
    };
    sl_status status = choose_lengths(session, &err);
    if (status == SL_OK)
        status = sl_choices_finish(choices, &options->sampling, session->engine, &err);
    if (status == SL_OK)
        status = sl_form_open(&session->form, session->engine, &err);
    if (status != SL_OK)
        return sl_fail_with(&err);
    report.context = session->context;
    if (options->verbose)
        sl_report_settings(&report);
    sl_terminal_keep_colour();
    if (generate(session, &report, &err) != SL_OK)
        return sl_fail_with(&err);
    int exit_status = SL_EXIT_DONE;
    if (options->common.json)
        exit_status = sl_report_json(&report);
    if (options->verbose)
        sl_report_times(&report);
    if (sl_out_failed())
        return SL_EXIT_FAILURE;
    return sl_interrupted() ? SL_EXIT_INTERRUPTED : exit_status;
}

static int chat(run_session *session)
{
    const sl_chat_setup setup = {
        .engine = session->engine,
        .options = session->options,
        .tools = session->tools,
    };
    return sl_chat_run(&setup);
}

/* Reads what the user gives before the model is loaded, so that a mistake shows at once. */
static int read_inputs(run_session *session, const char *argument)
{
    const sl_run_options *options = session->options;
    sl_error err;
    if (options->raw && (options->system || options->tools || options->think >= 0 ||
                         options->sampling.think_budget.set))
        return sl_usage_error("run", "--system, --tools, --think and --think-budget belong to the "
                                     "chat template, which --raw leaves out");
    if (options->plan && options->common.json)
        return sl_usage_error("run", "--plan prints a listing, which has no JSON form");
    if (sl_choices_begin(&session->choices, &options->sampling, &err) != SL_OK)
        return err.status == SL_ERR_MEMORY ? sl_fail_with(&err)
                                           : sl_usage_error("run", "%s", err.message);
    const char *file = options->common.file;
    session->has_prompt = argument || file || (!options->plan && sl_prompt_on_stdin());
    session->chat = !session->has_prompt && !options->plan && !options->raw && sl_out_is_terminal();
    if (!session->has_prompt && !options->plan && !session->chat)
        return sl_usage_error("run", "give the prompt as an argument, with --file or on standard "
                                     "input");
    if (session->chat && sl_form_wanted(options))
        return sl_usage_error("run", "--json-schema, --json-object and --grammar are for one "
                                     "answer: give a prompt");
    if (sl_form_read(options, &session->form, &err) != SL_OK)
        return err.status == SL_ERR_ARGUMENT ? sl_usage_error("run", "%s", err.message)
                                             : sl_fail_with(&err);
    if (session->has_prompt &&
        sl_prompt_read_parts(argument, file, &session->prompt, &err) != SL_OK)
        return sl_fail_with(&err);
    if (options->tools && sl_tools_read(options->tools, &session->tools, &err) != SL_OK)
        return sl_fail_with(&err);
    return -1;
}

static int run_run(int argc, char *const *argv)
{
    sl_args args;
    sl_run_options options = {.think = -1};
    int exit_status = sl_opts_parse(&sl_command_run, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    options.common.json = options.common.json || options.format == 1;
    run_session session = {.options = &options};
    sl_buf_init(&session.prompt, SL_MEM_TEXT, 0);
    exit_status = read_inputs(&session, args.n > 1 ? args.items[1] : NULL);
    sl_interrupt_install(); /* while waiting for input, Ctrl-C ends the program */
    if (exit_status < 0)
        exit_status = open_model(&session, args.items[0]);
    if (exit_status < 0 && session.has_prompt)
        exit_status = make_ids(&session);
    if (exit_status < 0)
        exit_status = options.plan   ? print_plan(&session)
                      : session.chat ? chat(&session)
                                     : answer(&session);
    session_free(&session);
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_run = {
    .name = "run",
    .usage = "MODEL [PROMPT]",
    .summary = "Answers a prompt, or holds a conversation.",
    .details =
        "MODEL is a .gguf file or a Hugging Face folder. The prompt is the argument, or the text "
        "of --file or of standard input; with both the argument comes first, a blank line between "
        "them (sluice run MODEL 'Summarise this:' < report.txt). The answer goes to standard "
        "output while it is being written, everything else to standard error.\n"
        "Without a prompt and on a terminal it is a conversation: /help there tells the rest.\n"
        "Without --ctx there is room for the prompt and --max-tokens, in a conversation for 16384 "
        "tokens; at most the model's context.\n"
        "Sampling settings that are not given are those of the model's file (general.sampling.* "
        "of GGUF, generation_config.json in a folder); where it has none, temperature 1.0, top-k "
        "20, top-p 0.95, the rest off.",
    .opts = sl_run_opts,
    .n_opts = SL_N_RUN_OPTS,
    .common = SL_TAKES_FILE | SL_TAKES_CONTEXT | SL_TAKES_COMPUTE | SL_TAKES_KV | SL_TAKES_JSON,
    .min_args = 1,
    .max_args = 2,
    .run = run_run,
};
