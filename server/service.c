#include "service.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/err.h"
#include "base/mem.h"

enum { MOST_ROUTES = 64, ID_BYTES = 128 };

struct sl_service {
    sl_engine *engine;
    const sl_tokenizer *tokenizer;
    const sl_constraint_vocab *vocab;
    sl_worker *worker;
    sl_http *http;
    char model[ID_BYTES], fingerprint[32];
    int64_t started;
    sl_http_route routes[MOST_ROUTES];
    size_t n_routes;

    /* The thread that makes requests ready. */
    pthread_t thread;
    bool has_thread;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
    sl_http_task *first, *last; /* under the mutex */
    bool stopping;
};

sl_service_settings sl_service_settings_default(const sl_engine *engine)
{
    return (sl_service_settings){.worker = sl_worker_settings_default(engine),
                                 .http = sl_http_settings_default()};
}

/* ---- making requests ready ---- */

void sl_service_prepare(sl_service *service, sl_http_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&service->mutex);
    if (service->last)
        service->last->next = task;
    else
        service->first = task;
    service->last = task;
    pthread_cond_signal(&service->wake);
    pthread_mutex_unlock(&service->mutex);
}

/* NULL: the end, when nothing waits any more. */
static sl_http_task *next_task(sl_service *s)
{
    pthread_mutex_lock(&s->mutex);
    while (!s->first && !s->stopping)
        pthread_cond_wait(&s->wake, &s->mutex);
    sl_http_task *task = s->first;
    if (task) {
        s->first = task->next;
        if (!s->first)
            s->last = NULL;
    }
    pthread_mutex_unlock(&s->mutex);
    return task;
}

static void *prepare(void *argument)
{
    sl_service *s = argument;
    sl_http_task *task;
    while ((task = next_task(s)) != NULL)
        task->run(task);
    return NULL;
}

static void stop_preparing(sl_service *s)
{
    if (!s->has_thread)
        return;
    pthread_mutex_lock(&s->mutex);
    s->stopping = true;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
    s->has_thread = false;
}

/* ---- names ---- */

/* The model's own name, else that of its file without folder and ending. */
static void name_model(sl_service *s, const char *wanted)
{
    sl_model_info info;
    sl_engine_model_info(s->engine, &info);
    const char *name = wanted ? wanted : info.name;
    if (!*name) {
        const char *slash = strrchr(info.path, '/');
        name = slash && slash[1] ? slash + 1 : info.path;
    }
    snprintf(s->model, sizeof s->model, "%s", name);
    char *ending = strrchr(s->model, '.');
    if (!wanted && ending && strcmp(ending, ".gguf") == 0)
        *ending = '\0';
}

static sl_status make_fingerprint(sl_service *s, sl_error *err)
{
    uint8_t bytes[SL_FINGERPRINT_BYTES];
    SL_TRY(sl_engine_fingerprint(s->engine, bytes, err));
    int n = snprintf(s->fingerprint, sizeof s->fingerprint, "fp_");
    for (int i = 0; i < 6; i++)
        n += snprintf(s->fingerprint + n, sizeof s->fingerprint - (size_t)n, "%02x", bytes[i]);
    return SL_OK;
}

/* ---- the calls ---- */

static void add_routes(sl_service *s, const sl_http_route *table)
{
    for (; table->path && s->n_routes < MOST_ROUTES; table++) {
        s->routes[s->n_routes] = *table;
        s->routes[s->n_routes++].context = s;
    }
}

static sl_status make_parts(sl_service *s, const sl_service_settings *settings, sl_error *err)
{
    SL_TRY(sl_engine_tokenizer(s->engine, &s->tokenizer, err));
    SL_TRY(sl_engine_constraint_vocab(s->engine, &s->vocab, err));
    name_model(s, settings->model_id);
    SL_TRY(make_fingerprint(s, err));
    SL_TRY(sl_worker_create(s->engine, &settings->worker, &s->worker, err));
    add_routes(s, sl_openai_routes());
    add_routes(s, sl_anthropic_routes());
    add_routes(s, sl_native_routes());
    sl_http_settings http = settings->http;
    http.routes = s->routes;
    http.n_routes = s->n_routes;
    SL_TRY(sl_http_create(&http, &s->http, err));
    if (pthread_create(&s->thread, NULL, prepare, s) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "no thread could be made for requests");
    s->has_thread = true;
    return SL_OK;
}

sl_status sl_service_create(sl_engine *engine, const sl_service_settings *settings,
                            sl_service **out, sl_error *err)
{
    sl_service *s = sl_alloc_zero(SL_MEM_GENERAL, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a server");
    s->engine = engine;
    s->started = (int64_t)time(NULL);
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->wake, NULL);
    const sl_status status = make_parts(s, settings, err);
    if (status != SL_OK) {
        sl_service_free(s);
        return status;
    }
    *out = s;
    return SL_OK;
}

sl_status sl_service_run(sl_service *service, sl_error *err)
{
    return sl_http_run(service->http, err);
}

/* From the back: no new jobs, no new events, then the loop's last tasks. */
void sl_service_free(sl_service *service)
{
    if (!service)
        return;
    stop_preparing(service);
    sl_worker_free(service->worker);
    sl_http_free(service->http);
    pthread_cond_destroy(&service->wake);
    pthread_mutex_destroy(&service->mutex);
    sl_free(service);
}

sl_http *sl_service_http(const sl_service *service)
{
    return service->http;
}
const sl_engine *sl_service_engine(const sl_service *service)
{
    return service->engine;
}
const sl_tokenizer *sl_service_tokenizer(const sl_service *service)
{
    return service->tokenizer;
}
const sl_constraint_vocab *sl_service_vocab(const sl_service *service)
{
    return service->vocab;
}
sl_worker *sl_service_worker(const sl_service *service)
{
    return service->worker;
}
const char *sl_service_model(const sl_service *service)
{
    return service->model;
}
const char *sl_service_fingerprint(const sl_service *service)
{
    return service->fingerprint;
}
int64_t sl_service_started(const sl_service *service)
{
    return service->started;
}
