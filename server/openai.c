#include "openai.h"

#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"

/* ---- reading ---- */

static sl_status read_stops(sl_call *call, sl_error *err)
{
    const json_t *stop = sl_field(&call->fields, "stop");
    if (!stop)
        return SL_OK;
    const bool is_one = sl_json_is_string(stop);
    const size_t n = is_one ? 1 : json_array_size(stop);
    if (!is_one && (!json_is_array(stop) || n > SL_CALL_MAX_STOPS))
        return sl_field_refuse(&call->fields, "a string or an array of up to 4 strings", err);
    for (size_t i = 0; i < n; i++)
        SL_TRY(sl_call_add_stop(call, is_one ? stop : json_array_get(stop, i), err));
    return SL_OK;
}

static sl_status read_bias(sl_call *call, sl_error *err)
{
    const json_t *map = NULL;
    SL_TRY(sl_field_object(&call->fields, "logit_bias", &map, err));
    const size_t n = json_object_size(map);
    if (n == 0)
        return SL_OK;
    if (n > SL_MAX_LOGIT_BIAS)
        return sl_field_refuse(&call->fields, "at most 1024 tokens", err);
    call->bias = sl_alloc_array(SL_MEM_GENERAL, n, sizeof *call->bias);
    if (!call->bias)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a request");
    const size_t vocab = sl_tokenizer_count(sl_service_tokenizer(call->service));
    const char *key;
    json_t *value;
    size_t i = 0;
    json_object_foreach((json_t *)(uintptr_t)map, key, value)
    {
        char *end;
        const unsigned long id = strtoul(key, &end, 10);
        const double bias = json_number_value(value);
        if (*key < '0' || *key > '9' || *end || id >= vocab || !json_is_number(value) ||
            bias < -100.0 || bias > 100.0)
            return sl_field_refuse(&call->fields, "token ids with numbers from -100 to 100", err);
        call->bias[i++] = (sl_logit_bias){.id = (int32_t)id, .bias = (float)bias};
    }
    call->job.params.sampling.bias = call->bias;
    call->job.params.sampling.n_bias = n;
    return SL_OK;
}

static sl_status read_sampling(sl_call *call, sl_error *err)
{
    sl_fields *f = &call->fields;
    sl_sampling *s = &call->job.params.sampling;
    uint64_t top_k = s->top_k;
    SL_TRY(sl_field_float(f, "temperature", 0, 100, &s->temperature, err));
    SL_TRY(sl_field_float(f, "top_p", 0, 1, &s->top_p, err));
    SL_TRY(sl_field_uint(f, "top_k", 0, INT32_MAX, &top_k, err));
    s->top_k = (uint32_t)top_k;
    SL_TRY(sl_field_float(f, "min_p", 0, 1, &s->min_p, err));
    SL_TRY(sl_field_float(f, "typical_p", 0, 1, &s->typical_p, err));
    SL_TRY(sl_field_float(f, "presence_penalty", -100, 100, &s->presence_penalty, err));
    SL_TRY(sl_field_float(f, "frequency_penalty", -100, 100, &s->frequency_penalty, err));
    SL_TRY(sl_field_float(f, "repetition_penalty", 0, 100, &s->repetition_penalty, err));
    const json_t *seed = sl_field(f, "seed");
    if (seed && !json_is_integer(seed))
        return sl_field_refuse(f, "a whole number", err);
    /* Without one, each request draws anew. */
    s->seed = seed ? (uint64_t)json_integer_value(seed) : sl_call_random(call);
    return read_bias(call, err);
}

static sl_status read_stream(sl_call *call, sl_error *err)
{
    sl_fields *f = &call->fields;
    const json_t *options = NULL;
    SL_TRY(sl_field_bool(f, "stream", &call->stream, err));
    SL_TRY(sl_field_object(f, "stream_options", &options, err));
    if (!options)
        return SL_OK;
    if (!call->stream)
        return sl_fail(err, SL_ERR_ARGUMENT, "stream_options: only for answers that stream");
    sl_fields inner = {.object = options};
    SL_TRY(sl_field_bool(&inner, "include_usage", &call->include_usage, err));
    SL_TRY(sl_field_bool(&inner, "include_progress", &call->job.wants_progress, err));
    return SL_OK;
}

sl_status sl_openai_read_common(sl_call *call, sl_error *err)
{
    sl_fields *f = &call->fields;
    call->job.params = sl_generate_params_default(sl_service_engine(call->service));
    const char *model = NULL;
    uint64_t n = 1;
    SL_TRY(sl_field_text(f, "model", &model, err));
    SL_TRY(sl_field_uint(f, "n", 1, SL_JOB_MAX_CHOICES, &n, err));
    call->job.n_choices = (unsigned)n;
    SL_TRY(read_sampling(call, err));
    SL_TRY(read_stops(call, err));
    return read_stream(call, err);
}

/* ---- writing ---- */

void sl_openai_write_head(sl_json_out *json, const sl_call *call, const char *prefix,
                          const char *object)
{
    char id[64];
    snprintf(id, sizeof id, "%s-%s", prefix, call->id);
    sl_json_string(json, "id", id);
    sl_json_string(json, "object", object);
    sl_json_uint(json, "created", (uint64_t)call->created);
    sl_json_string(json, "model", sl_service_model(call->service));
    sl_json_string(json, "system_fingerprint", sl_service_fingerprint(call->service));
}

void sl_openai_write_usage(sl_json_out *json, const sl_call *call)
{
    const size_t n_prompt = call->job.prompt.n, n_answer = call->n_answer_tokens;
    sl_json_open(json, "usage", '{');
    sl_json_uint(json, "prompt_tokens", n_prompt);
    sl_json_uint(json, "completion_tokens", n_answer);
    sl_json_uint(json, "total_tokens", n_prompt + n_answer);
    sl_json_open(json, "prompt_tokens_details", '{');
    sl_json_uint(json, "cached_tokens", call->reuse.reused);
    sl_json_close(json, '}');
    sl_json_close(json, '}');
}

const char *sl_openai_finish(const sl_generate_result *result)
{
    if (result->finish == SL_FINISH_LENGTH)
        return "length";
    return result->n_calls > 0 ? "tool_calls" : "stop";
}

/* The token as text, whole characters only, and its bytes. */
static void write_token(sl_json_out *json, sl_str bytes, double logprob)
{
    sl_json_text(json, "token", bytes.data, bytes.n_bytes);
    sl_json_double(json, "logprob", logprob);
    sl_json_open(json, "bytes", '[');
    for (size_t i = 0; i < bytes.n_bytes; i++)
        sl_json_uint(json, NULL, (unsigned char)bytes.data[i]);
    sl_json_close(json, ']');
}

void sl_openai_write_logprob(sl_json_out *json, const sl_tokenizer *tokenizer,
                             const sl_job_event *event)
{
    sl_json_open(json, NULL, '{');
    write_token(json, sl_tokenizer_bytes(tokenizer, event->token), event->logprob);
    sl_json_open(json, "top_logprobs", '[');
    for (size_t i = 0; i < event->n_top; i++) {
        sl_json_open(json, NULL, '{');
        write_token(json, sl_tokenizer_bytes(tokenizer, event->top[i].id), event->top[i].logprob);
        sl_json_close(json, '}');
    }
    sl_json_close(json, ']');
    sl_json_close(json, '}');
}

/* ---- models ---- */

static void write_model(sl_json_out *json, const char *key, const sl_service *service)
{
    sl_json_open(json, key, '{');
    sl_json_string(json, "id", sl_service_model(service));
    sl_json_string(json, "object", "model");
    sl_json_uint(json, "created", (uint64_t)sl_service_started(service));
    sl_json_string(json, "owned_by", "sluice");
    sl_json_close(json, '}');
}

static void get_models(void *context, sl_http_request *request)
{
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    sl_json_string(&json, "object", "list");
    sl_json_open(&json, "data", '[');
    write_model(&json, NULL, context);
    sl_json_close(&json, ']');
    sl_json_close(&json, '}');
    sl_http_reply_json(request, 200, &json);
}

static void get_model(void *context, sl_http_request *request)
{
    const char *model = sl_service_model(context);
    const sl_str wanted = sl_http_param(request, "id");
    if (wanted.n_bytes != strlen(model) || memcmp(wanted.data, model, wanted.n_bytes) != 0) {
        const sl_http_error error = {.status = 404,
                                     .message = "no such model is loaded here",
                                     .code = "model_not_found",
                                     .param = "model"};
        sl_http_reply_error(request, &error);
        return;
    }
    sl_json_out json;
    sl_json_out_init(&json);
    write_model(&json, NULL, context);
    sl_http_reply_json(request, 200, &json);
}

static void post_chat(void *context, sl_http_request *request)
{
    sl_call_begin(context, request, &sl_openai_chat);
}

const sl_http_route *sl_openai_routes(void)
{
    enum { TAKES_JSON = SL_ROUTE_BODY | SL_ROUTE_JSON };
    static const sl_http_route routes[] = {
        {.method = SL_HTTP_GET, .path = "/v1/models", .handler = get_models},
        {.method = SL_HTTP_GET, .path = "/v1/models/{id...}", .handler = get_model},
        {.method = SL_HTTP_POST,
         .path = "/v1/chat/completions",
         .flags = TAKES_JSON,
         .handler = post_chat},
        {.path = NULL},
    };
    return routes;
}
