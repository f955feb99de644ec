#include "text_call.h"

#include "base/mem.h"

static void reply_text(sl_http_task *task)
{
    sl_text_call *call = SL_CONTAINER_OF(task, sl_text_call, task);
    if (call->status == SL_OK) {
        sl_http_reply_json(call->request, 200, &call->json);
    } else {
        sl_http_reply_status(call->request, &call->why, call->fields.param);
        sl_json_out_free(&call->json);
    }
    json_decref(call->body);
    sl_http_unref(call->request);
    sl_free(call);
}

static sl_status answer_text(sl_text_call *call, sl_error *err)
{
    SL_TRY(sl_fields_parse(sl_http_body(call->request), &call->body, &call->fields, err));
    sl_json_open(&call->json, NULL, '{');
    SL_TRY(call->answer(call, err));
    sl_json_close(&call->json, '}');
    if (call->json.status != SL_OK)
        *err = call->json.err;
    return call->json.status;
}

static void make_ready(sl_http_task *task)
{
    sl_text_call *call = SL_CONTAINER_OF(task, sl_text_call, task);
    call->status = answer_text(call, &call->why);
    call->task.run = reply_text;
    sl_http_post_task(sl_service_http(call->service), &call->task);
}

void sl_text_call_begin(sl_service *service, sl_http_request *request,
                        sl_status (*answer)(sl_text_call *call, sl_error *err))
{
    sl_text_call *call = sl_alloc_zero(SL_MEM_GENERAL, sizeof *call);
    if (!call) {
        const sl_http_error error = {.status = 503, .message = "out of memory for a request"};
        sl_http_reply_error(request, &error);
        return;
    }
    call->service = service;
    call->request = sl_http_ref(request);
    call->answer = answer;
    call->task.run = make_ready;
    sl_json_out_init(&call->json);
    sl_service_prepare(service, &call->task);
}
