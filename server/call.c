#include "call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/base.h"

#include "base/mem.h"

enum { MAX_ANSWER = 1 << 28, MAX_TEXT = 1 << 26, RETRY_AFTER_S = 1 };

static sl_call *call_of_job(sl_job *job)
{
    return (sl_call *)job->user;
}

/* ---- memory ---- */

static void free_choices(sl_call *call)
{
    for (unsigned i = 0; call->choices && i < call->job.n_choices; i++) {
        sl_call_choice *choice = &call->choices[i];
        for (size_t k = 0; k < choice->n_tools; k++) {
            sl_buf_free(&choice->tools[k].name);
            sl_buf_free(&choice->tools[k].arguments);
        }
        sl_free(choice->tools);
        sl_json_out_free(&choice->logprobs);
        sl_buf_free(&choice->content);
        sl_buf_free(&choice->thinking);
    }
    sl_free(call->choices);
}

static void free_call(sl_job *job)
{
    sl_call *call = call_of_job(job);
    free_choices(call);
    sl_constraint_free(call->constraint);
    sl_grammar_free(call->grammar);
    sl_free(call->bias);
    sl_chat_texts_free(&call->texts);
    json_decref(call->body);
    sl_http_unref(call->request);
    sl_job_finish(&call->job);
    sl_free(call);
}

static bool make_choices(sl_call *call)
{
    call->choices = sl_alloc_zero(SL_MEM_GENERAL, call->job.n_choices * sizeof *call->choices);
    for (unsigned i = 0; call->choices && i < call->job.n_choices; i++) {
        sl_call_choice *choice = &call->choices[i];
        sl_buf_init(&choice->content, SL_MEM_TEXT, MAX_ANSWER);
        sl_buf_init(&choice->thinking, SL_MEM_TEXT, MAX_ANSWER);
        sl_json_out_init(&choice->logprobs);
    }
    return call->choices != NULL;
}

/* ---- on the loop ---- */

static void reply_failure(sl_call *call, sl_status status, const sl_error *why, const char *param)
{
    const sl_http_error busy = {.status = 429,
                                .message = why->message,
                                .code = "queue_full",
                                .retry_after_s = RETRY_AFTER_S};
    const sl_http_error stopping = {
        .status = 503, .message = why->message, .code = "stopping", .retry_after_s = RETRY_AFTER_S};
    const sl_http_error longer = {.status = 400,
                                  .message = why->message,
                                  .code = "context_length_exceeded",
                                  .param = "messages"};
    const sl_http_error fault = {
        .status = 500, .message = why->message, .code = sl_status_name(status)};
    const sl_http_error *error = call->is_refused             ? &busy
                                 : status == SL_ERR_CANCELLED ? &stopping
                                 : status == SL_ERR_CONTEXT   ? &longer
                                                              : &fault;
    if (call->streaming)
        sl_http_stream_fail(call->request, error);
    else if (error == &fault)
        sl_http_reply_status(call->request, why, param);
    else
        sl_http_reply_error(call->request, error);
}

/* The first thing that went wrong, or SL_OK. An answer that was cancelled while its client waits
 * lost something for which there was no memory. */
static sl_status outcome_of(sl_call *call, sl_error *err)
{
    if (call->status != SL_OK) {
        *err = call->why;
        return call->status;
    }
    SL_TRY(sl_job_outcome(&call->job, err));
    for (unsigned i = 0; i < call->job.n_choices; i++) {
        if (call->choices[i].result.finish == SL_FINISH_CANCELLED)
            return sl_fail(err, SL_ERR_CANCELLED, "the answer was cut short");
    }
    return SL_OK;
}

void sl_call_fail(sl_call *call, sl_status status, const sl_error *why)
{
    if (call->status == SL_OK) {
        call->status = status;
        call->why = *why;
    }
    sl_job_cancel(&call->job);
}

static void end_call(sl_call *call)
{
    sl_error why;
    sl_http_on_closed(call->request, NULL, NULL);
    const sl_status status = outcome_of(call, &why);
    if (status == SL_OK)
        call->format->finish(call);
    else
        reply_failure(call, status, &why, NULL);
    if (status == SL_OK && call->status != SL_OK) /* what finish could not write */
        reply_failure(call, call->status, &call->why, NULL);
    sl_job_unref(&call->job);
}

static void take_event(sl_call *call, const sl_job_event *event)
{
    if (event->kind == SL_JOB_STARTED)
        call->reuse = event->result.reuse;
    if (event->kind == SL_JOB_ENDED) {
        call->choices[event->choice].result = event->result;
        call->n_answer_tokens += event->result.n_tokens;
        if (event->status != SL_OK && call->status == SL_OK) {
            call->status = sl_fail(&call->why, event->status, "%s", event->text);
            sl_job_cancel(&call->job);
        }
    }
    if (call->status == SL_OK && !sl_http_gone(call->request))
        call->format->event(call, event);
}

/* What the worker has told since the last time. */
static void on_news(sl_http_task *task)
{
    sl_call *call = SL_CONTAINER_OF(task, sl_call, task);
    atomic_store(&call->posted, false);
    bool done;
    sl_job_event *events = sl_job_take(&call->job, &done);
    for (const sl_job_event *event = events; event; event = event->next)
        take_event(call, event);
    sl_job_free_events(events);
    if (done && !call->ended) {
        call->ended = true;
        end_call(call);
    }
    sl_job_unref(&call->job); /* the task's */
}

/* On the worker's thread. */
static void notify(sl_job *job)
{
    sl_call *call = call_of_job(job);
    if (atomic_exchange(&call->posted, true))
        return;
    sl_job_ref(job); /* the task's, which may run when all others are done with the call */
    sl_http_post_task(sl_service_http(call->service), &call->task);
}

static void on_closed(void *context, sl_http_request *request, sl_http_reason reason)
{
    (void)request;
    (void)reason;
    sl_call *call = context;
    sl_job_cancel(&call->job);
}

/* ---- making ready ---- */

/* A request that could not be made ready, on the loop. */
static void on_refused(sl_http_task *task)
{
    sl_call *call = SL_CONTAINER_OF(task, sl_call, task);
    const bool is_asked_wrongly = call->status == SL_ERR_ARGUMENT ||
                                  call->status == SL_ERR_FORMAT ||
                                  call->status == SL_ERR_UNSUPPORTED;
    sl_http_on_closed(call->request, NULL, NULL);
    if (is_asked_wrongly)
        sl_http_reply_status(call->request, &call->why, call->fields.param);
    else
        reply_failure(call, call->status, &call->why, call->fields.param);
    sl_job_unref(&call->job);
}

static sl_status read_body(sl_call *call, sl_error *err)
{
    SL_TRY(sl_fields_parse(sl_http_body(call->request), &call->body, &call->fields, err));
    SL_TRY(call->format->read(call, err));
    call->fields.param = NULL;
    return make_choices(call) ? SL_OK : sl_fail(err, SL_ERR_MEMORY, "out of memory for a request");
}

static void make_ready(sl_http_task *task)
{
    sl_call *call = SL_CONTAINER_OF(task, sl_call, task);
    if (sl_http_gone(call->request)) {
        call->status = sl_fail(&call->why, SL_ERR_CANCELLED, "nobody waits for the answer");
    } else {
        call->status = read_body(call, &call->why);
        if (call->status == SL_ERR_LIMIT) /* of JSON: too deep, too many; not the queue's */
            call->status = sl_fail(&call->why, SL_ERR_ARGUMENT, "%s", call->why.message);
    }
    call->task.run = on_news;
    if (call->status == SL_OK) {
        sl_error why;
        const sl_status status =
            sl_worker_submit(sl_service_worker(call->service), &call->job, &why);
        if (status == SL_OK)
            return; /* it is the loop's now, and may be gone already */
        call->status = status;
        call->why = why;
        call->is_refused = status == SL_ERR_LIMIT;
    }
    call->task.run = on_refused;
    sl_http_post_task(sl_service_http(call->service), &call->task);
}

static void reply_no_memory(sl_http_request *request)
{
    const sl_http_error error = {
        .status = 503, .message = "out of memory for a request", .retry_after_s = RETRY_AFTER_S};
    sl_http_reply_error(request, &error);
}

/* Ids of answers: the time, and a count. */
static void name_call(sl_call *call)
{
    static atomic_uint count;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    call->created = (int64_t)now.tv_sec;
    snprintf(call->id, sizeof call->id, "%08llx%08lx%06x", (unsigned long long)now.tv_sec,
             (unsigned long)now.tv_nsec, atomic_fetch_add(&count, 1) & 0xFFFFFF);
}

void sl_call_begin(sl_service *service, sl_http_request *request, const sl_call_format *format)
{
    sl_call *call = sl_alloc_zero(SL_MEM_GENERAL, sizeof *call);
    if (!call) {
        reply_no_memory(request);
        return;
    }
    sl_job_init(&call->job);
    call->job.notify = notify;
    call->job.release = free_call;
    call->job.user = call;
    call->service = service;
    call->request = sl_http_ref(request);
    call->format = format;
    name_call(call);
    sl_chat_texts_init(&call->texts);
    sl_http_on_closed(request, on_closed, call);
    call->task.run = make_ready;
    sl_service_prepare(service, &call->task);
}

/* ---- for formats ---- */

uint64_t sl_call_random(const sl_call *call)
{
    return (uint64_t)call->created * 1000003u ^ strtoull(call->id + 8, NULL, 16);
}

sl_status sl_call_add_stop(sl_call *call, const json_t *text, sl_error *err)
{
    const size_t n = json_string_length(text);
    if (!sl_json_is_string(text) || n == 0 || n > SL_CALL_STOP_BYTES)
        return sl_field_refuse(&call->fields, "strings of 1 to 4096 bytes", err);
    call->stops[call->job.params.n_stops++] = (sl_str){json_string_value(text), n};
    call->job.params.stops = call->stops;
    return SL_OK;
}

void sl_call_send(sl_call *call, const char *name, sl_json_out *json)
{
    sl_json_close(json, '}');
    if (json->status == SL_OK)
        sl_http_stream_event(call->request, name, json->buf.data, json->buf.n_bytes);
    else
        sl_call_fail(call, json->status, &json->err);
    sl_json_out_free(json);
}

sl_status sl_call_render(sl_call *call, sl_error *err)
{
    const sl_engine *engine = sl_service_engine(call->service);
    sl_job *job = &call->job;
    sl_chat chat = sl_chat_of_texts(&call->texts);
    chat.now = call->created;
    SL_TRY(sl_engine_render(engine, &chat, &job->prompt, NULL, err));
    job->params.tools = chat.tools;
    job->params.marks = call->marks;
    /* A convenience: without them more is read again in later turns. */
    if (sl_engine_prompt_marks(engine, &chat, job->prompt.ids, job->prompt.n, call->marks,
                               &job->params.n_marks, NULL) != SL_OK)
        job->params.n_marks = 0;
    return SL_OK;
}

sl_status sl_call_constrain(sl_call *call, sl_error *err)
{
    SL_TRY(sl_constraint_create(call->grammar, sl_service_vocab(call->service), &call->constraint,
                                err));
    call->job.params.constraint = call->constraint;
    return SL_OK;
}

sl_status sl_call_force_tools(sl_call *call, const char *name, sl_error *err)
{
    SL_TRY(sl_grammar_from_tools(sl_chat_of_texts(&call->texts).tools, name, call->single_tool,
                                 &call->grammar, err));
    return sl_call_constrain(call, err);
}

static sl_call_tool *tool_of(sl_call_choice *choice, size_t index)
{
    if (index < choice->n_tools)
        return &choice->tools[index];
    sl_call_tool *tools = sl_alloc_array(SL_MEM_GENERAL, index + 1, sizeof *tools);
    if (!tools)
        return NULL;
    if (choice->n_tools > 0)
        memcpy(tools, choice->tools, choice->n_tools * sizeof *tools);
    for (; choice->n_tools <= index; choice->n_tools++) {
        sl_buf_init(&tools[choice->n_tools].name, SL_MEM_TEXT, MAX_TEXT);
        sl_buf_init(&tools[choice->n_tools].arguments, SL_MEM_TEXT, MAX_TEXT);
    }
    sl_free(choice->tools);
    choice->tools = tools;
    return &tools[index];
}

static sl_status gather(sl_call_choice *choice, const sl_job_event *event, sl_error *err)
{
    sl_call_tool *tool = NULL;
    const bool is_tool = event->kind == SL_JOB_CALL_BEGIN || event->kind == SL_JOB_CALL_ARGUMENTS;
    if (is_tool && !(tool = tool_of(choice, event->call)))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a call");
    sl_buf *to = event->kind == SL_JOB_CONTENT          ? &choice->content
                 : event->kind == SL_JOB_THINKING       ? &choice->thinking
                 : event->kind == SL_JOB_CALL_BEGIN     ? &tool->name
                 : event->kind == SL_JOB_CALL_ARGUMENTS ? &tool->arguments
                                                        : NULL;
    return to ? sl_buf_append(to, event->text, event->n_bytes, err) : SL_OK;
}

bool sl_call_gather(sl_call *call, const sl_job_event *event)
{
    sl_error why;
    const sl_status status = gather(&call->choices[event->choice], event, &why);
    if (status == SL_OK)
        return true;
    sl_call_fail(call, status, &why);
    return false;
}
