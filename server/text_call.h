/* Requests about text that need no model to run: made ready on the thread for that, answered on the
 * loop with one JSON object. */
#ifndef SL_SERVER_TEXT_CALL_H
#define SL_SERVER_TEXT_CALL_H

#include "fields.h"
#include "service.h"

typedef struct sl_text_call {
    sl_http_task task;
    sl_service *service;
    sl_http_request *request;
    sl_status (*answer)(struct sl_text_call *call, sl_error *err);
    json_t *body;
    sl_fields fields;
    sl_json_out json; /* the object is open */
    sl_status status;
    sl_error why;
} sl_text_call;

/* Takes the request over; answer writes the members of the object. */
void sl_text_call_begin(sl_service *service, sl_http_request *request,
                        sl_status (*answer)(sl_text_call *call, sl_error *err));

#endif
