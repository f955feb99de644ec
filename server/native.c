/* Routes of the server's own: health, tokens and text, templates, metrics. */
#include <string.h>

#include "base/clock.h"
#include "chat_texts.h"
#include "text_call.h"

/* ---- health ---- */

enum { STALLED_S = 120 }; /* a step takes less on any machine that is of use */

static void reply_state(sl_http_request *request, bool is_good, const char *why)
{
    if (!is_good) {
        const sl_http_error error = {.status = 503, .message = why, .retry_after_s = 1};
        sl_http_reply_error(request, &error);
        return;
    }
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    sl_json_string(&json, "status", "ok");
    sl_json_close(&json, '}');
    sl_http_reply_json(request, 200, &json);
}

/* Whether the worker moves, when it has something to do. */
static bool is_alive(const sl_service *service)
{
    const sl_worker_stats stats = sl_worker_get_stats(sl_service_worker(service));
    const bool has_work = stats.n_running > 0 || stats.n_waiting > 0;
    return !has_work || sl_clock_ns() - stats.last_step_ns < (uint64_t)STALLED_S * 1000000000u;
}

static void get_livez(void *context, sl_http_request *request)
{
    reply_state(request, is_alive(context), "the thread that computes has not moved for 2 minutes");
}

static void get_readyz(void *context, sl_http_request *request)
{
    const sl_service *service = context;
    const sl_worker_stats stats = sl_worker_get_stats(sl_service_worker(service));
    const bool stops = sl_http_draining(sl_http_request_server(request));
    const bool is_full = stats.n_waiting + stats.n_running >= stats.queue + stats.n_places;
    reply_state(request, !stops && !is_full && is_alive(service),
                stops     ? "the server stops"
                : is_full ? "the queue is full"
                          : "the thread that computes has not moved for 2 minutes");
}

/* ---- requests about text ---- */

/* {"content", "parse_special", "with_pieces"} -> {"tokens"} */
static sl_status tokenize(sl_text_call *call, sl_error *err)
{
    const json_t *content = sl_field(&call->fields, "content");
    if (!content || !sl_json_is_string(content))
        return sl_field_refuse(&call->fields, "a string", err);
    bool control = false, pieces = false;
    SL_TRY(sl_field_bool(&call->fields, "parse_special", &control, err));
    SL_TRY(sl_field_bool(&call->fields, "with_pieces", &pieces, err));
    call->fields.param = NULL;
    const sl_encode_options how = {.control = control, .user_defined = true};
    const sl_tokenizer *tokenizer = sl_service_tokenizer(call->service);
    sl_ids ids = {0};
    const sl_status status = sl_tokenizer_encode(
        tokenizer, json_string_value(content), json_string_length(content), &how, &ids, NULL, err);
    sl_json_open(&call->json, "tokens", '[');
    for (size_t i = 0; status == SL_OK && i < ids.n; i++) {
        if (!pieces) {
            sl_json_uint(&call->json, NULL, (uint64_t)ids.ids[i]);
            continue;
        }
        const sl_str piece = sl_tokenizer_bytes(tokenizer, ids.ids[i]);
        sl_json_open(&call->json, NULL, '{');
        sl_json_uint(&call->json, "id", (uint64_t)ids.ids[i]);
        sl_json_text(&call->json, "piece", piece.data, piece.n_bytes);
        sl_json_close(&call->json, '}');
    }
    sl_json_close(&call->json, ']');
    sl_ids_free(&ids);
    return status;
}

/* {"tokens"} -> {"content"} */
static sl_status detokenize(sl_text_call *call, sl_error *err)
{
    const json_t *tokens = NULL;
    SL_TRY(sl_field_array(&call->fields, "tokens", &tokens, err));
    if (!tokens)
        return sl_field_refuse(&call->fields, "an array of token ids", err);
    const sl_tokenizer *tokenizer = sl_service_tokenizer(call->service);
    const size_t vocab = sl_tokenizer_count(tokenizer);
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, (size_t)1 << 28);
    sl_status status = SL_OK;
    for (size_t i = 0; i < json_array_size(tokens) && status == SL_OK; i++) {
        const json_t *token = json_array_get(tokens, i);
        const json_int_t id = json_integer_value(token);
        if (!json_is_integer(token) || id < 0 || (uint64_t)id >= vocab) {
            status = sl_field_refuse(&call->fields, "token ids of this model", err);
            break;
        }
        const sl_str bytes = sl_tokenizer_bytes(tokenizer, (int32_t)id);
        status = sl_buf_append(&text, bytes.data, bytes.n_bytes, err);
    }
    sl_json_text(&call->json, "content", text.data ? text.data : "", text.n_bytes);
    sl_buf_free(&text);
    return status;
}

static sl_status write_rendered(sl_text_call *call, const sl_chat *chat, sl_error *err)
{
    sl_ids ids = {0};
    sl_rendered rendered = {0};
    const sl_status status =
        sl_engine_render(sl_service_engine(call->service), chat, &ids, &rendered, err);
    if (status == SL_OK) {
        sl_json_text(&call->json, "prompt", rendered.text, rendered.n_bytes);
        sl_json_uint(&call->json, "n_tokens", ids.n);
    }
    sl_rendered_free(&rendered);
    sl_ids_free(&ids);
    return status;
}

/* {"messages", "tools", "chat_template_kwargs"} -> {"prompt", "n_tokens"} */
static sl_status apply_template(sl_text_call *call, sl_error *err)
{
    const json_t *messages = NULL, *tools = NULL, *variables = NULL;
    SL_TRY(sl_field_array(&call->fields, "tools", &tools, err));
    SL_TRY(sl_field_object(&call->fields, "chat_template_kwargs", &variables, err));
    SL_TRY(sl_field_array(&call->fields, "messages", &messages, err));
    if (!messages)
        return sl_field_refuse(&call->fields, "an array of messages", err);
    sl_chat_texts texts;
    sl_chat_texts_init(&texts);
    sl_status status = sl_chat_text_put(&texts.messages, messages, err);
    if (status == SL_OK && tools)
        status = sl_chat_text_put(&texts.tools, tools, err);
    if (status == SL_OK && variables)
        status = sl_chat_text_put(&texts.variables, variables, err);
    const sl_chat chat = sl_chat_of_texts(&texts);
    if (status == SL_OK)
        status = write_rendered(call, &chat, err);
    sl_chat_texts_free(&texts);
    return status;
}

static void post_tokenize(void *context, sl_http_request *request)
{
    sl_text_call_begin(context, request, tokenize);
}

static void post_detokenize(void *context, sl_http_request *request)
{
    sl_text_call_begin(context, request, detokenize);
}

static void post_apply_template(void *context, sl_http_request *request)
{
    sl_text_call_begin(context, request, apply_template);
}

/* ---- metrics ---- */

static void add_metric(sl_buf *text, const char *name, const char *type, const char *help,
                       double value)
{
    (void)sl_buf_printf(text, NULL, "# HELP sluice_%s %s\n# TYPE sluice_%s %s\nsluice_%s %.17g\n",
                        name, help, name, type, name, value);
}

static void get_metrics(void *context, sl_http_request *request)
{
    const sl_worker_stats s = sl_worker_get_stats(sl_service_worker(context));
    sl_buf text;
    sl_buf_init(&text, SL_MEM_GENERAL, 1 << 20);
    add_metric(&text, "num_requests_running", "gauge", "Answers being made.", s.n_running);
    add_metric(&text, "num_requests_waiting", "gauge", "Requests in the queue.",
               (double)s.n_waiting);
    add_metric(&text, "places", "gauge", "Answers that can be made at a time.", s.n_places);
    add_metric(&text, "requests_total", "counter", "Requests that were queued.", (double)s.n_jobs);
    add_metric(&text, "requests_refused_total", "counter", "Requests refused by a full queue.",
               (double)s.n_refused);
    add_metric(&text, "steps_total", "counter", "Evaluations of all answers together.",
               (double)s.n_steps);
    add_metric(&text, "prompt_tokens_total", "counter", "Tokens of prompts.",
               (double)s.prompt_tokens);
    add_metric(&text, "prefix_cache_hits_total", "counter",
               "Tokens of prompts that were not evaluated again.", (double)s.reused_tokens);
    add_metric(&text, "generation_tokens_total", "counter", "Tokens of answers.",
               (double)s.answer_tokens);
    sl_http_reply(request, 200, "text/plain; version=0.0.4; charset=utf-8", text.data,
                  text.n_bytes);
    sl_buf_free(&text);
}

const sl_http_route *sl_native_routes(void)
{
    enum { HEALTH = SL_ROUTE_PUBLIC | SL_ROUTE_DRAINING, TEXT = SL_ROUTE_BODY | SL_ROUTE_JSON };
    static const sl_http_route routes[] = {
        {.method = SL_HTTP_GET, .path = "/health", .flags = HEALTH, .handler = get_readyz},
        {.method = SL_HTTP_GET, .path = "/readyz", .flags = HEALTH, .handler = get_readyz},
        {.method = SL_HTTP_GET, .path = "/livez", .flags = HEALTH, .handler = get_livez},
        {.method = SL_HTTP_GET, .path = "/metrics", .handler = get_metrics},
        {.method = SL_HTTP_POST, .path = "/tokenize", .flags = TEXT, .handler = post_tokenize},
        {.method = SL_HTTP_POST, .path = "/detokenize", .flags = TEXT, .handler = post_detokenize},
        {.method = SL_HTTP_POST,
         .path = "/apply-template",
         .flags = TEXT,
         .handler = post_apply_template},
        {.path = NULL},
    };
    return routes;
}
