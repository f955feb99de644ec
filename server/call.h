/* One request for an answer on its way: from the loop to the thread that makes it ready, to the
 * worker, and its events back to the loop, where the API's format writes them. */
#ifndef SL_SERVER_CALL_H
#define SL_SERVER_CALL_H

#include "chat_texts.h"
#include "fields.h"
#include "service.h"

typedef struct sl_call sl_call;

/* How an API reads a request and writes what comes of it. */
typedef struct sl_call_format {
    /* Fills the job from call->fields: prompt, parameters. On the thread that makes ready. Names
     * the field at fault in call->fields.param, or sets it to NULL. */
    sl_status (*read)(sl_call *call, sl_error *err);
    /* The others on the loop's thread. */
    void (*event)(sl_call *call, const sl_job_event *event);
    /* All went well: the end of a stream, or the whole answer. */
    void (*finish)(sl_call *call);
} sl_call_format;

enum { SL_CALL_MAX_STOPS = 4, SL_CALL_STOP_BYTES = 4096 };

/* What is said of one function call. */
typedef struct sl_call_tool {
    sl_buf name, arguments;
} sl_call_tool;

typedef struct sl_call_choice {
    sl_buf content, thinking; /* of answers that do not stream */
    sl_call_tool *tools;
    size_t n_tools;
    sl_json_out
        logprobs; /* elements of an array, as they came; of a stream: since its last chunk */
    size_t n_logprobs;
    bool begun; /* its first chunk was written */
    sl_generate_result result;
} sl_call_choice;

struct sl_call {
    sl_job job;
    sl_http_task task;
    atomic_bool posted; /* the task waits for the loop */
    sl_service *service;
    sl_http_request *request;
    const sl_call_format *format;
    char id[48]; /* hexadecimal, without an API's prefix */
    int64_t created;

    json_t *body;
    sl_fields fields;
    sl_chat_texts texts;
    sl_str stops[SL_CALL_MAX_STOPS];
    sl_logit_bias *bias;
    sl_prompt_mark marks[SL_MAX_PROMPT_MARKS];
    sl_grammar *grammar; /* of the answer's form; or NULL */
    sl_constraint *constraint;
    bool stream, include_usage, single_tool;

    /* What came. */
    sl_status status; /* of making ready, and of what went wrong since */
    sl_error why;
    bool is_refused; /* the queue was full */
    bool ended;      /* the end has been written */
    sl_reuse_report reuse;
    size_t n_answer_tokens;
    sl_call_choice *choices; /* [job.n_choices] */
    /* Of formats whose streams have blocks. */
    bool block_open;
    sl_job_event_kind block_kind;
    size_t n_blocks;
    bool streaming; /* the answer has begun */
};

/* The handler's part: takes a request with a JSON body over. */
void sl_call_begin(sl_service *service, sl_http_request *request, const sl_call_format *format);

/* ---- for formats ---- */

/* A seed for a request that has none. */
uint64_t sl_call_random(const sl_call *call);

/* Something could not be written: the job is cancelled and the answer ends with this error. */
void sl_call_fail(sl_call *call, sl_status status, const sl_error *why);

/* One more string, of the field read last, that ends the answer; up to SL_CALL_MAX_STOPS. */
sl_status sl_call_add_stop(sl_call *call, const json_t *text, sl_error *err);

/* Renders call->texts into the job's prompt, with its marks. */
sl_status sl_call_render(sl_call *call, sl_error *err);

/* The answer is to be calls of call->texts.tools, one with single_tool; of the function `name`
 * alone where it is not NULL. */
sl_status sl_call_force_tools(sl_call *call, const char *name, sl_error *err);

/* The answer is to have the form that call->grammar says. */
sl_status sl_call_constrain(sl_call *call, sl_error *err);

/* Closes the object and sends it as an event of the stream; frees it. Without memory the call
 * fails. */
void sl_call_send(sl_call *call, const char *name, sl_json_out *json);

/* Appends the event's text to what is gathered of a choice (content, thinking, tools). False: no
 * memory; the call is cancelled. */
bool sl_call_gather(sl_call *call, const sl_job_event *event);

#endif
