#include "anthropic.h"

#include <stdio.h>
#include <string.h>

#include "text_call.h"

/* ---- the request ---- */

static sl_status read_stops(sl_call *call, sl_error *err)
{
    const json_t *stops = NULL;
    SL_TRY(sl_field_array(&call->fields, "stop_sequences", &stops, err));
    const size_t n = json_array_size(stops);
    if (n > SL_CALL_MAX_STOPS)
        return sl_field_refuse(&call->fields, "at most 4 strings", err);
    for (size_t i = 0; i < n; i++)
        SL_TRY(sl_call_add_stop(call, json_array_get(stops, i), err));
    return SL_OK;
}

static sl_status read_sampling(sl_call *call, sl_error *err)
{
    sl_fields *f = &call->fields;
    sl_generate_params *params = &call->job.params;
    *params = sl_generate_params_default(sl_service_engine(call->service));
    uint64_t top_k = params->sampling.top_k;
    params->sampling.seed = sl_call_random(call);
    if (!sl_field(f, "max_tokens"))
        return sl_field_refuse(f, "a whole number; it is required", err);
    SL_TRY(sl_field_uint(f, "max_tokens", 1, INT64_MAX, &params->max_tokens, err));
    SL_TRY(sl_field_float(f, "temperature", 0, 1, &params->sampling.temperature, err));
    SL_TRY(sl_field_float(f, "top_p", 0, 1, &params->sampling.top_p, err));
    SL_TRY(sl_field_uint(f, "top_k", 0, INT32_MAX, &top_k, err));
    params->sampling.top_k = (uint32_t)top_k;
    SL_TRY(sl_field_bool(f, "stream", &call->stream, err));
    return read_stops(call, err);
}

/* thinking.budget_tokens */
static sl_status read_budget(sl_call *call, sl_error *err)
{
    const json_t *thinking = NULL;
    uint64_t budget = UINT64_MAX;
    SL_TRY(sl_field_object(&call->fields, "thinking", &thinking, err));
    sl_fields inner = {.object = thinking};
    if (thinking)
        SL_TRY(sl_field_uint(&inner, "budget_tokens", 1, UINT32_MAX, &budget, err));
    call->job.params.limit_thinking = budget != UINT64_MAX;
    if (budget != UINT64_MAX)
        call->job.params.think_budget = (uint32_t)budget;
    return SL_OK;
}

static sl_status read_request(sl_call *call, sl_error *err)
{
    sl_anthropic_chat chat;
    const char *model = NULL;
    SL_TRY(sl_field_text(&call->fields, "model", &model, err));
    SL_TRY(read_sampling(call, err));
    SL_TRY(read_budget(call, err));
    sl_status status = sl_anthropic_read_chat(&call->fields, &chat, err);
    if (status == SL_OK)
        status = sl_anthropic_keep_chat(&chat, &call->texts, err);
    const bool forces_tools = chat.forces_tools;
    const char *forced = chat.forced;
    sl_anthropic_release(&chat);
    SL_TRY(status);
    if (forces_tools) {
        call->fields.param = "tools";
        SL_TRY(sl_call_force_tools(call, forced, err));
    }
    call->job.params.ignore_calls = call->texts.tools.n_bytes == 0;
    return sl_call_render(call, err);
}

/* ---- parts of answers ---- */

static void write_call_id(sl_json_out *json, const sl_call *call, size_t index)
{
    char id[80];
    snprintf(id, sizeof id, "toolu_%s%zu", call->id, index);
    sl_json_string(json, "id", id);
}

/* Prompt tokens that were there already are counted apart. */
static void write_usage(sl_json_out *json, const sl_call *call)
{
    sl_json_open(json, "usage", '{');
    sl_json_uint(json, "input_tokens", call->job.prompt.n - call->reuse.reused);
    sl_json_uint(json, "cache_creation_input_tokens", 0);
    sl_json_uint(json, "cache_read_input_tokens", call->reuse.reused);
    sl_json_uint(json, "output_tokens", call->n_answer_tokens);
    sl_json_close(json, '}');
}

static void write_stop(sl_json_out *json, const sl_call *call, const sl_generate_result *result)
{
    const bool at_string = result->finish == SL_FINISH_STOP && result->stop >= 0;
    const char *reason = result->finish == SL_FINISH_LENGTH ? "max_tokens"
                         : at_string                        ? "stop_sequence"
                         : result->n_calls > 0              ? "tool_use"
                                                            : "end_turn";
    sl_json_string(json, "stop_reason", reason);
    if (at_string)
        sl_json_text(json, "stop_sequence", call->stops[result->stop].data,
                     call->stops[result->stop].n_bytes);
    else
        sl_json_null(json, "stop_sequence");
}

/* All of a message but content, reason and usage. */
static void write_head(sl_json_out *json, const sl_call *call)
{
    char id[64];
    snprintf(id, sizeof id, "msg_%s", call->id);
    sl_json_string(json, "id", id);
    sl_json_string(json, "type", "message");
    sl_json_string(json, "role", "assistant");
    sl_json_string(json, "model", sl_service_model(call->service));
}

/* ---- streams ---- */

static void open_event(sl_json_out *json, const char *type)
{
    sl_json_out_init(json);
    sl_json_open(json, NULL, '{');
    sl_json_string(json, "type", type);
}

static void begin_stream(sl_call *call)
{
    sl_json_out json;
    if (call->streaming)
        return;
    call->streaming = sl_http_stream_begin(call->request, SL_HTTP_SSE);
    open_event(&json, "message_start");
    sl_json_open(&json, "message", '{');
    write_head(&json, call);
    sl_json_open(&json, "content", '[');
    sl_json_close(&json, ']');
    sl_json_null(&json, "stop_reason");
    sl_json_null(&json, "stop_sequence");
    write_usage(&json, call);
    sl_json_close(&json, '}');
    sl_call_send(call, "message_start", &json);
}

static void end_block(sl_call *call)
{
    sl_json_out json;
    if (!call->block_open)
        return;
    call->block_open = false;
    open_event(&json, "content_block_stop");
    sl_json_uint(&json, "index", call->n_blocks - 1);
    sl_call_send(call, "content_block_stop", &json);
}

/* Begins a block of that kind unless it is the open one. A call's event begins another always. */
static void begin_block(sl_call *call, sl_job_event_kind kind, const sl_job_event *event)
{
    sl_json_out json;
    if (call->block_open && call->block_kind == kind && kind != SL_JOB_CALL_BEGIN)
        return;
    end_block(call);
    call->block_open = true;
    call->block_kind = kind;
    open_event(&json, "content_block_start");
    sl_json_uint(&json, "index", call->n_blocks++);
    sl_json_open(&json, "content_block", '{');
    if (kind == SL_JOB_CALL_BEGIN) {
        sl_json_string(&json, "type", "tool_use");
        write_call_id(&json, call, event->call);
        sl_json_text(&json, "name", event->text, event->n_bytes);
        sl_json_open(&json, "input", '{');
        sl_json_close(&json, '}');
    } else if (kind == SL_JOB_THINKING) {
        sl_json_string(&json, "type", "thinking");
        sl_json_string(&json, "thinking", "");
        sl_json_string(&json, "signature", "");
    } else {
        sl_json_string(&json, "type", "text");
        sl_json_string(&json, "text", "");
    }
    sl_json_close(&json, '}');
    sl_call_send(call, "content_block_start", &json);
}

static void send_delta(sl_call *call, const char *type, const char *key, const sl_job_event *event)
{
    sl_json_out json;
    open_event(&json, "content_block_delta");
    sl_json_uint(&json, "index", call->n_blocks - 1);
    sl_json_open(&json, "delta", '{');
    sl_json_string(&json, "type", type);
    sl_json_text(&json, key, event->text, event->n_bytes);
    sl_json_close(&json, '}');
    sl_call_send(call, "content_block_delta", &json);
}

static void stream_event(sl_call *call, const sl_job_event *event)
{
    if (event->kind == SL_JOB_STARTED)
        return; /* errors can still have a status of their own */
    begin_stream(call);
    switch (event->kind) {
    case SL_JOB_THINKING:
        begin_block(call, event->kind, event);
        send_delta(call, "thinking_delta", "thinking", event);
        break;
    case SL_JOB_CONTENT:
        begin_block(call, event->kind, event);
        send_delta(call, "text_delta", "text", event);
        break;
    case SL_JOB_CALL_BEGIN:
        begin_block(call, event->kind, event);
        break;
    case SL_JOB_CALL_ARGUMENTS:
        send_delta(call, "input_json_delta", "partial_json", event);
        break;
    case SL_JOB_CALL_END:
        end_block(call);
        break;
    case SL_JOB_STARTED:
    case SL_JOB_PROGRESS:
    case SL_JOB_TOKEN:
    case SL_JOB_ENDED:
        break;
    }
}

static void finish_stream(sl_call *call)
{
    sl_json_out json;
    begin_stream(call);
    end_block(call);
    open_event(&json, "message_delta");
    sl_json_open(&json, "delta", '{');
    write_stop(&json, call, &call->choices[0].result);
    sl_json_close(&json, '}');
    write_usage(&json, call);
    sl_call_send(call, "message_delta", &json);
    if (call->status != SL_OK) /* the stream ends with the error */
        return;
    open_event(&json, "message_stop");
    sl_call_send(call, "message_stop", &json);
    sl_http_stream_end(call->request);
}

/* ---- whole answers ---- */

static void write_text_block(sl_json_out *json, const char *type, const sl_buf *text)
{
    sl_json_open(json, NULL, '{');
    sl_json_string(json, "type", type);
    sl_json_text(json, type, text->data ? text->data : "", text->n_bytes);
    if (strcmp(type, "thinking") == 0)
        sl_json_string(json, "signature", "");
    sl_json_close(json, '}');
}

static void write_content(sl_json_out *json, const sl_call *call)
{
    const sl_call_choice *choice = &call->choices[0];
    sl_json_open(json, "content", '[');
    if (choice->thinking.n_bytes > 0)
        write_text_block(json, "thinking", &choice->thinking);
    if (choice->content.n_bytes > 0)
        write_text_block(json, "text", &choice->content);
    for (size_t i = 0; i < choice->n_tools; i++) {
        const sl_call_tool *tool = &choice->tools[i];
        sl_json_open(json, NULL, '{');
        sl_json_string(json, "type", "tool_use");
        write_call_id(json, call, i);
        sl_json_text(json, "name", tool->name.data, tool->name.n_bytes);
        sl_json_raw(json, "input", tool->arguments.data, tool->arguments.n_bytes); /* an object */
        sl_json_close(json, '}');
    }
    sl_json_close(json, ']');
}

static void finish_whole(sl_call *call)
{
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    write_head(&json, call);
    write_content(&json, call);
    write_stop(&json, call, &call->choices[0].result);
    write_usage(&json, call);
    sl_json_close(&json, '}');
    sl_http_reply_json(call->request, 200, &json);
}

static void on_event(sl_call *call, const sl_job_event *event)
{
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

static const sl_call_format format = {.read = read_request, .event = on_event, .finish = on_finish};

/* ---- counting ---- */

static sl_status count_rendered(const sl_text_call *call, const sl_chat_texts *texts, size_t *n,
                                sl_error *err)
{
    sl_ids ids = {0};
    const sl_chat chat = sl_chat_of_texts(texts);
    const sl_status status =
        sl_engine_render(sl_service_engine(call->service), &chat, &ids, NULL, err);
    *n = ids.n;
    sl_ids_free(&ids);
    return status;
}

/* -> {"input_tokens"} */
static sl_status count_tokens(sl_text_call *call, sl_error *err)
{
    sl_anthropic_chat chat;
    sl_chat_texts texts;
    size_t n = 0;
    sl_chat_texts_init(&texts);
    sl_status status = sl_anthropic_read_chat(&call->fields, &chat, err);
    if (status == SL_OK)
        status = sl_anthropic_keep_chat(&chat, &texts, err);
    if (status == SL_OK)
        status = count_rendered(call, &texts, &n, err);
    sl_json_uint(&call->json, "input_tokens", n);
    sl_anthropic_release(&chat);
    sl_chat_texts_free(&texts);
    return status;
}

static void post_messages(void *context, sl_http_request *request)
{
    sl_call_begin(context, request, &format);
}

static void post_count(void *context, sl_http_request *request)
{
    sl_text_call_begin(context, request, count_tokens);
}

const sl_http_route *sl_anthropic_routes(void)
{
    enum { TAKES_JSON = SL_ROUTE_BODY | SL_ROUTE_JSON };
    static const sl_http_route routes[] = {
        {.method = SL_HTTP_POST,
         .path = "/v1/messages",
         .flags = TAKES_JSON,
         .shape = sl_http_shape_anthropic,
         .handler = post_messages},
        {.method = SL_HTTP_POST,
         .path = "/v1/messages/count_tokens",
         .flags = TAKES_JSON,
         .shape = sl_http_shape_anthropic,
         .handler = post_count},
        {.path = NULL},
    };
    return routes;
}
