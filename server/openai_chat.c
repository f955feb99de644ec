/* POST /v1/chat/completions. */
#include <string.h>

#include "openai.h"

/* ---- the request ---- */

static sl_status read_length(sl_call *call, sl_error *err)
{
    uint64_t n = 0;
    SL_TRY(sl_field_uint(&call->fields, "max_tokens", 1, INT64_MAX, &n, err));
    SL_TRY(sl_field_uint(&call->fields, "max_completion_tokens", 1, INT64_MAX, &n, err));
    call->job.params.max_tokens = n;
    return SL_OK;
}

static sl_status read_logprobs(sl_call *call, sl_error *err)
{
    uint64_t n_top = 0;
    SL_TRY(sl_field_bool(&call->fields, "logprobs", &call->job.params.logprobs, err));
    SL_TRY(sl_field_uint(&call->fields, "top_logprobs", 0, 20, &n_top, err));
    if (n_top > 0 && !call->job.params.logprobs)
        return sl_fail(err, SL_ERR_ARGUMENT, "top_logprobs: only with logprobs");
    call->job.params.n_top = (uint32_t)n_top;
    return SL_OK;
}

/* What tool_choice asks for. */
typedef struct tool_choice {
    bool none, required;
    const char *name; /* of the function that is required, or NULL */
} tool_choice;

static sl_status read_tool_choice(sl_call *call, tool_choice *out, sl_error *err)
{
    const json_t *choice = sl_field(&call->fields, "tool_choice");
    const char *word = choice && sl_json_is_string(choice) ? json_string_value(choice) : "";
    const json_t *name = json_object_get(json_object_get(choice, "function"), "name");
    *out =
        (tool_choice){.none = strcmp(word, "none") == 0, .required = strcmp(word, "required") == 0};
    if (!choice || out->none || out->required || strcmp(word, "auto") == 0)
        return SL_OK;
    if (!name || !sl_json_is_string(name))
        return sl_field_refuse(&call->fields, "\"none\", \"auto\", \"required\" or a function",
                               err);
    out->required = true;
    out->name = json_string_value(name);
    return SL_OK;
}

static sl_status read_tools(sl_call *call, sl_error *err)
{
    const json_t *tools = NULL;
    tool_choice choice;
    bool parallel = true;
    SL_TRY(read_tool_choice(call, &choice, err));
    SL_TRY(sl_field_bool(&call->fields, "parallel_tool_calls", &parallel, err));
    call->single_tool = !parallel;
    SL_TRY(sl_field_array(&call->fields, "tools", &tools, err));
    if (choice.required && json_array_size(tools) == 0)
        return sl_field_refuse(&call->fields, "tools, which tool_choice requires", err);
    if (choice.none || json_array_size(tools) == 0) {
        call->job.params.ignore_calls = true;
        return SL_OK;
    }
    SL_TRY(sl_chat_text_put(&call->texts.tools, tools, err));
    if (choice.required && call->grammar)
        return sl_fail(err, SL_ERR_ARGUMENT, "tool_choice: not together with response_format");
    return choice.required ? sl_call_force_tools(call, choice.name, err) : SL_OK;
}

/* Whether the model is to think, and how long. */
static sl_status read_thinking(sl_call *call, json_t *variables, sl_error *err)
{
    sl_fields *f = &call->fields;
    const json_t *given = NULL;
    const char *effort = NULL;
    bool thinks = true;
    SL_TRY(sl_field_object(f, "chat_template_kwargs", &given, err));
    if (given && json_object_update(variables, (json_t *)(uintptr_t)given) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a request");
    SL_TRY(sl_field_text(f, "reasoning_effort", &effort, err));
    if (effort)
        thinks = strcmp(effort, "none") != 0;
    SL_TRY(sl_field_bool(f, "enable_thinking", &thinks, err));
    if ((effort || sl_field(f, "enable_thinking")) &&
        json_object_set_new(variables, "enable_thinking", json_boolean(thinks)) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a request");
    uint64_t budget = UINT64_MAX;
    SL_TRY(sl_field_uint(f, "thinking_budget", 0, UINT32_MAX, &budget, err));
    call->job.params.limit_thinking = budget != UINT64_MAX;
    if (budget != UINT64_MAX)
        call->job.params.think_budget = (uint32_t)budget;
    return SL_OK;
}

static sl_status compile_schema(sl_call *call, const json_t *schema, sl_error *err)
{
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, (size_t)1 << 26);
    sl_status status = sl_json_append(&text, schema, err);
    if (status == SL_OK)
        status =
            sl_grammar_from_json_schema((sl_str){text.data, text.n_bytes}, &call->grammar, err);
    sl_buf_free(&text);
    return status;
}

/* {"type": "json_schema", "json_schema": {"schema": {...}}}; some clients put the schema beside the
 * type. */
static sl_status read_schema(sl_call *call, const json_t *format, sl_error *err)
{
    const json_t *named = json_object_get(format, "json_schema");
    const json_t *schema = json_object_get(named ? named : format, "schema");
    if (!json_is_object(schema))
        return sl_field_refuse(&call->fields, "a schema in json_schema", err);
    return compile_schema(call, schema, err);
}

/* The form of the answer: response_format, or a grammar, which servers of this field take too. */
static sl_status read_format(sl_call *call, sl_error *err)
{
    const json_t *format = NULL;
    const char *type = "text", *grammar = NULL;
    SL_TRY(sl_field_text(&call->fields, "grammar", &grammar, err));
    if (grammar)
        SL_TRY(sl_grammar_from_gbnf((sl_str){grammar, strlen(grammar)}, &call->grammar, err));
    SL_TRY(sl_field_object(&call->fields, "response_format", &format, err));
    sl_fields inner = {.object = format};
    if (format)
        SL_TRY(sl_field_text(&inner, "type", &type, err));
    const bool is_json = strcmp(type, "json_object") == 0;
    const bool is_schema = strcmp(type, "json_schema") == 0;
    if (!is_json && !is_schema && strcmp(type, "text") != 0)
        return sl_field_refuse(&call->fields, "a type of text, json_object or json_schema", err);
    if (grammar && (is_json || is_schema))
        return sl_fail(err, SL_ERR_ARGUMENT, "response_format: not together with a grammar");
    if (is_json)
        SL_TRY(sl_grammar_json_object(&call->grammar, err));
    if (is_schema)
        SL_TRY(read_schema(call, format, err));
    return call->grammar ? sl_call_constrain(call, err) : SL_OK;
}

static sl_status read_messages(sl_call *call, sl_error *err)
{
    const json_t *messages = NULL;
    SL_TRY(sl_field_array(&call->fields, "messages", &messages, err));
    if (json_array_size(messages) == 0)
        return sl_field_refuse(&call->fields, "an array of at least one message", err);
    return sl_chat_text_put(&call->texts.messages, messages, err);
}

static sl_status read_chat(sl_call *call, sl_error *err)
{
    json_t *variables = json_object();
    if (!variables)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a request");
    sl_status status = read_thinking(call, variables, err);
    if (status == SL_OK && json_object_size(variables) > 0)
        status = sl_chat_text_put(&call->texts.variables, variables, err);
    json_decref(variables);
    return status;
}

static sl_status read_request(sl_call *call, sl_error *err)
{
    SL_TRY(sl_openai_read_common(call, err));
    SL_TRY(read_length(call, err));
    SL_TRY(read_logprobs(call, err));
    SL_TRY(read_format(call, err));
    SL_TRY(read_tools(call, err));
    SL_TRY(read_chat(call, err));
    SL_TRY(read_messages(call, err));
    return sl_call_render(call, err);
}

/* ---- what both kinds of answer share ---- */

static void write_call_id(sl_json_out *json, const sl_call *call, unsigned choice, size_t index)
{
    char id[96];
    snprintf(id, sizeof id, "call_%s_%u_%zu", call->id, choice, index);
    sl_json_string(json, "id", id);
}

/* The choice's tokens since the last time; null without. */
static void write_logprobs(sl_json_out *json, const sl_call *call, sl_call_choice *choice)
{
    if (!call->job.params.logprobs || choice->n_logprobs == 0) {
        sl_json_null(json, "logprobs");
        return;
    }
    sl_json_open(json, "logprobs", '{');
    sl_json_open(json, "content", '[');
    sl_json_raw(json, NULL, choice->logprobs.buf.data, choice->logprobs.buf.n_bytes);
    sl_json_close(json, ']');
    sl_json_close(json, '}');
}

static void forget_logprobs(sl_call_choice *choice)
{
    sl_json_out_free(&choice->logprobs);
    sl_json_out_init(&choice->logprobs);
    choice->n_logprobs = 0;
}

/* ---- chunks ---- */

static void open_chunk(sl_json_out *json, const sl_call *call)
{
    sl_json_out_init(json);
    sl_json_open(json, NULL, '{');
    sl_openai_write_head(json, call, "chatcmpl", "chat.completion.chunk");
}

static void open_delta(sl_json_out *json, const sl_call *call, unsigned choice)
{
    open_chunk(json, call);
    sl_json_open(json, "choices", '[');
    sl_json_open(json, NULL, '{');
    sl_json_uint(json, "index", choice);
    sl_json_open(json, "delta", '{');
}

/* The chunk's end; finish NULL: the choice goes on. */
static void end_delta(sl_json_out *json, sl_call *call, const char *finish)
{
    sl_json_string(json, "finish_reason", finish);
    sl_json_close(json, '}');
    sl_json_close(json, ']');
    sl_call_send(call, NULL, json);
}

/* With the tokens that the delta stands for. */
static void close_delta(sl_json_out *json, sl_call *call, unsigned choice, const char *finish)
{
    sl_json_close(json, '}');
    write_logprobs(json, call, &call->choices[choice]);
    forget_logprobs(&call->choices[choice]);
    end_delta(json, call, finish);
}

static void begin_stream(sl_call *call)
{
    if (!call->streaming)
        call->streaming = sl_http_stream_begin(call->request, SL_HTTP_SSE);
}

static void begin_choice(sl_call *call, unsigned choice)
{
    if (call->choices[choice].begun)
        return;
    call->choices[choice].begun = true;
    sl_json_out json;
    open_delta(&json, call, choice);
    sl_json_string(&json, "role", "assistant");
    sl_json_string(&json, "content", "");
    sl_json_close(&json, '}');
    sl_json_null(&json, "logprobs");
    end_delta(&json, call, NULL);
}

static void stream_text(sl_call *call, const sl_job_event *event, const char *key)
{
    sl_json_out json;
    open_delta(&json, call, event->choice);
    sl_json_text(&json, key, event->text, event->n_bytes);
    close_delta(&json, call, event->choice, NULL);
}

static void stream_tool(sl_call *call, const sl_job_event *event)
{
    const bool begins = event->kind == SL_JOB_CALL_BEGIN;
    sl_json_out json;
    open_delta(&json, call, event->choice);
    sl_json_open(&json, "tool_calls", '[');
    sl_json_open(&json, NULL, '{');
    sl_json_uint(&json, "index", event->call);
    if (begins) {
        write_call_id(&json, call, event->choice, event->call);
        sl_json_string(&json, "type", "function");
    }
    sl_json_open(&json, "function", '{');
    if (begins)
        sl_json_text(&json, "name", event->text, event->n_bytes);
    sl_json_text(&json, "arguments", begins ? "" : event->text, begins ? 0 : event->n_bytes);
    sl_json_close(&json, '}');
    sl_json_close(&json, '}');
    sl_json_close(&json, ']');
    close_delta(&json, call, event->choice, NULL);
}

static void stream_progress(sl_call *call, const sl_job_event *event)
{
    sl_json_out json;
    open_chunk(&json, call);
    sl_json_open(&json, "choices", '[');
    sl_json_close(&json, ']');
    sl_json_open(&json, "prompt_progress", '{');
    sl_json_uint(&json, "total", event->total);
    sl_json_uint(&json, "processed", event->done);
    sl_json_uint(&json, "cache", call->reuse.reused);
    sl_json_close(&json, '}');
    sl_call_send(call, NULL, &json);
}

static void stream_end_of_choice(sl_call *call, const sl_job_event *event)
{
    sl_json_out json;
    open_delta(&json, call, event->choice);
    close_delta(&json, call, event->choice, sl_openai_finish(&event->result));
}

static void stream_event(sl_call *call, const sl_job_event *event)
{
    if (event->kind == SL_JOB_STARTED)
        return; /* errors can still have a status of their own */
    begin_stream(call);
    if (event->kind != SL_JOB_PROGRESS)
        begin_choice(call, event->choice);
    switch (event->kind) {
    case SL_JOB_PROGRESS:
        stream_progress(call, event);
        break;
    case SL_JOB_CONTENT:
        stream_text(call, event, "content");
        break;
    case SL_JOB_THINKING:
        stream_text(call, event, "reasoning_content");
        break;
    case SL_JOB_CALL_BEGIN:
    case SL_JOB_CALL_ARGUMENTS:
        stream_tool(call, event);
        break;
    case SL_JOB_ENDED:
        stream_end_of_choice(call, event);
        break;
    case SL_JOB_STARTED:
    case SL_JOB_TOKEN:
    case SL_JOB_CALL_END:
        break;
    }
}

static void finish_stream(sl_call *call)
{
    static const char done[] = "[DONE]";
    begin_stream(call);
    if (call->include_usage) {
        sl_json_out json;
        open_chunk(&json, call);
        sl_json_open(&json, "choices", '[');
        sl_json_close(&json, ']');
        sl_openai_write_usage(&json, call);
        sl_call_send(call, NULL, &json);
    }
    if (call->status != SL_OK) /* the stream ends with the error */
        return;
    sl_http_stream_event(call->request, NULL, done, sizeof done - 1);
    sl_http_stream_end(call->request);
}

/* ---- whole answers ---- */

static void write_tools(sl_json_out *json, const sl_call *call, unsigned index)
{
    const sl_call_choice *choice = &call->choices[index];
    if (choice->n_tools == 0)
        return;
    sl_json_open(json, "tool_calls", '[');
    for (size_t i = 0; i < choice->n_tools; i++) {
        const sl_call_tool *tool = &choice->tools[i];
        sl_json_open(json, NULL, '{');
        write_call_id(json, call, index, i);
        sl_json_string(json, "type", "function");
        sl_json_open(json, "function", '{');
        sl_json_text(json, "name", tool->name.data, tool->name.n_bytes);
        sl_json_text(json, "arguments", tool->arguments.data, tool->arguments.n_bytes);
        sl_json_close(json, '}');
        sl_json_close(json, '}');
    }
    sl_json_close(json, ']');
}

static void write_message(sl_json_out *json, const sl_call *call, unsigned index)
{
    const sl_call_choice *choice = &call->choices[index];
    sl_json_open(json, "message", '{');
    sl_json_string(json, "role", "assistant");
    if (choice->content.n_bytes > 0 || choice->n_tools == 0)
        sl_json_text(json, "content", choice->content.data, choice->content.n_bytes);
    else
        sl_json_null(json, "content");
    if (choice->thinking.n_bytes > 0)
        sl_json_text(json, "reasoning_content", choice->thinking.data, choice->thinking.n_bytes);
    write_tools(json, call, index);
    sl_json_close(json, '}');
}

static void finish_whole(sl_call *call)
{
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    sl_openai_write_head(&json, call, "chatcmpl", "chat.completion");
    sl_json_open(&json, "choices", '[');
    for (unsigned i = 0; i < call->job.n_choices; i++) {
        sl_json_open(&json, NULL, '{');
        sl_json_uint(&json, "index", i);
        write_message(&json, call, i);
        write_logprobs(&json, call, &call->choices[i]);
        sl_json_string(&json, "finish_reason", sl_openai_finish(&call->choices[i].result));
        sl_json_close(&json, '}');
    }
    sl_json_close(&json, ']');
    sl_openai_write_usage(&json, call);
    sl_json_close(&json, '}');
    sl_http_reply_json(call->request, 200, &json);
}

/* ---- the format ---- */

/* With parallel_tool_calls false the answer ends with its first call. */
static bool is_beyond_first_tool(const sl_call *call, const sl_job_event *event)
{
    const bool is_tool = event->kind == SL_JOB_CALL_BEGIN || event->kind == SL_JOB_CALL_ARGUMENTS ||
                         event->kind == SL_JOB_CALL_END;
    return call->single_tool && is_tool && event->call > 0;
}

static void on_event(sl_call *call, const sl_job_event *event)
{
    sl_call_choice *choice = &call->choices[event->choice];
    if (is_beyond_first_tool(call, event))
        return;
    if (event->kind == SL_JOB_TOKEN) {
        sl_openai_write_logprob(&choice->logprobs, sl_service_tokenizer(call->service), event);
        choice->n_logprobs++;
        if (choice->logprobs.status != SL_OK)
            sl_call_fail(call, choice->logprobs.status, &choice->logprobs.err);
        return;
    }
    if (call->stream)
        stream_event(call, event);
    else
        (void)sl_call_gather(call, event);
}

static void on_finish(sl_call *call)
{
    if (call->stream)
        finish_stream(call);
    else
        finish_whole(call);
}

const sl_call_format sl_openai_chat = {
    .read = read_request, .event = on_event, .finish = on_finish};
