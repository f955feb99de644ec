/* What all APIs of the server share: the engine's text side, the worker, and a thread that makes
 * requests ready (parsing, rendering, tokenising), so that neither the loop nor the worker waits
 * for it. */
#ifndef SL_SERVER_SERVICE_H
#define SL_SERVER_SERVICE_H

#include "http.h"
#include "worker.h"

typedef struct sl_service sl_service;

typedef struct sl_service_settings {
    const char *model_id; /* NULL: from the model's file */
    sl_worker_settings worker;
    sl_http_settings http; /* its routes are the service's */
} sl_service_settings;

sl_service_settings sl_service_settings_default(const sl_engine *engine);

/* Makes worker, server and threads. The engine is the service's until sl_service_free; its text
 * side may be used beside. */
sl_status sl_service_create(sl_engine *engine, const sl_service_settings *settings,
                            sl_service **out, sl_error *err);
/* Serves until sl_http_stop (sl_service_http) and all is done. */
sl_status sl_service_run(sl_service *service, sl_error *err);
void sl_service_free(sl_service *service);

sl_http *sl_service_http(const sl_service *service);

/* ---- for the APIs ---- */

const sl_engine *sl_service_engine(const sl_service *service);
const sl_tokenizer *sl_service_tokenizer(const sl_service *service);
const sl_constraint_vocab *sl_service_vocab(const sl_service *service);
sl_worker *sl_service_worker(const sl_service *service);
const char *sl_service_model(const sl_service *service);       /* its id */
const char *sl_service_fingerprint(const sl_service *service); /* "fp_..." of model and version */
int64_t sl_service_started(const sl_service *service);         /* seconds since the epoch */

/* Runs the task on the thread that makes requests ready, in order. The caller owns its memory. */
void sl_service_prepare(sl_service *service, sl_http_task *task);

/* The tables of routes, ended by one without path; the service is their context. */
const sl_http_route *sl_openai_routes(void);
const sl_http_route *sl_anthropic_routes(void);
const sl_http_route *sl_native_routes(void);

#endif
