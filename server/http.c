/* Owns the server: its loop, its stopping, and the tasks that other threads give it. */
#include "http_internal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* Tasks of one turn of the loop: sockets are looked at in between. */
enum { TASKS_A_TURN = 256 };

/* After the drain, for the last bytes to leave. */
enum { FLUSH_MS = 2000 };

enum { MIN_TICK_MS = 5, MAX_TICK_MS = 250 };

sl_http_limits sl_http_limits_default(void)
{
    return (sl_http_limits){
        .target_bytes = 8192,
        .head_bytes = 32 * 1024,
        .headers = 100,
        .body_bytes = (size_t)64 << 20,
        .bodies_bytes = (size_t)512 << 20,
        .connections = 4096,
        .connections_per_address = 1024,
        .idle_ms = 75000,
        .head_ms = 15000,
        .read_ms = 30000,
        .body_ms = 300000,
        .write_ms = 30000,
        .linger_ms = 2000,
        .waiting_bytes = (size_t)1 << 20,
        .keep_alive_ms = 15000,
        .drain_ms = 30000,
    };
}

sl_http_settings sl_http_settings_default(void)
{
    static const char *const addresses[] = {"127.0.0.1:8080"};
    return (sl_http_settings){.addresses = addresses,
                              .n_addresses = 1,
                              .limits = sl_http_limits_default(),
                              .log_format = SL_HTTP_LOG_NONE};
}

/* ---- tasks ---- */

static void wake(sl_http *http)
{
    const uint64_t one = 1;
    /* It fails only when the count is at its end: then it is awake already. */
    const ssize_t n = write(http->wake_fd, &one, sizeof one);
    (void)n;
}

void sl_http_post_task(sl_http *http, sl_http_task *task)
{
    task->next = NULL;
    pthread_mutex_lock(&http->tasks_lock);
    const bool first = http->first_task == NULL;
    *http->last_task = task;
    http->last_task = &task->next;
    /* Inside of the lock: once it is open the server may run the task, stop, and be freed. */
    if (first)
        wake(http);
    pthread_mutex_unlock(&http->tasks_lock);
}

typedef struct call {
    sl_http_task task;
    void (*function)(void *argument);
    void *argument;
} call;

static void run_call(sl_http_task *task)
{
    call *posted = (call *)(void *)task;
    void (*function)(void *) = posted->function;
    void *argument = posted->argument;
    sl_free(posted);
    function(argument);
}

sl_status sl_http_post(sl_http *http, void (*function)(void *argument), void *argument)
{
    call *posted = sl_alloc(SL_MEM_GENERAL, sizeof *posted);
    if (!posted)
        return SL_ERR_MEMORY;
    *posted = (call){{NULL, run_call}, function, argument};
    sl_http_post_task(http, &posted->task);
    return SL_OK;
}

/* Runs up to so many tasks. True when others wait. */
static bool run_tasks(sl_http *http, size_t n)
{
    pthread_mutex_lock(&http->tasks_lock);
    sl_http_task *first = http->first_task, **end = &first;
    for (size_t i = 0; i < n && *end; i++)
        end = &(*end)->next;
    sl_http_task *rest = *end;
    *end = NULL;
    http->first_task = rest;
    if (!rest)
        http->last_task = &http->first_task;
    pthread_mutex_unlock(&http->tasks_lock);
    while (first) {
        sl_http_task *task = first;
        first = task->next;
        task->run(task);
    }
    return rest != NULL;
}

/* ---- stopping ---- */

void sl_http_stop(sl_http *http)
{
    const int before = errno;
    atomic_fetch_add(&http->stops, 1);
    wake(http);
    errno = before;
}

bool sl_http_draining(const sl_http *http)
{
    return atomic_load(&http->stops) > 0;
}

/* What a stop asks for at this time. */
static void advance_stop(sl_http *http)
{
    const int stops = atomic_load(&http->stops);
    const uint64_t now = sl_http_now_ms();
    if (stops > 0 && http->stops_seen == 0) {
        http->stops_seen = 1;
        http->drain_end_ms = now + http->limits.drain_ms;
        sl_http_listen_stop(http);
        sl_http_conns_drain(http, false);
    }
    if (stops > 0 && !http->cut && (stops > 1 || now >= http->drain_end_ms)) {
        http->cut = true;
        http->flush_end_ms = now + FLUSH_MS;
        sl_http_conns_drain(http, true);
    }
    if (http->cut && now >= http->flush_end_ms) {
        while (http->conns)
            sl_http_conn_kill(http->conns, SL_HTTP_STOPPED);
    }
    if (stops > 0 && !http->conns && !http->dead)
        event_base_loopbreak(http->base);
}

static void on_wake(evutil_socket_t fd, short what, void *context)
{
    (void)what;
    sl_http *http = context;
    uint64_t count;
    const ssize_t n = read(fd, &count, sizeof count);
    (void)n;
    if (run_tasks(http, TASKS_A_TURN))
        wake(http);
    advance_stop(http);
}

/* ---- the loop ---- */

static void on_tick(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    sl_http *http = context;
    const uint64_t now = sl_http_now_ms();
    sl_http_conn *next;
    for (sl_http_conn *conn = http->conns; conn; conn = next) {
        next = conn->next;
        sl_http_conn_tick(conn, now);
    }
    advance_stop(http);
    if (!http->conns) {
        event_del(http->tick);
        http->ticking = false;
    }
}

static void on_reap(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    sl_http *http = context;
    sl_http_reap(http);
    advance_stop(http);
}

static sl_status check_limits(const sl_http_limits *limits, sl_error *err)
{
    if (limits->target_bytes == 0 || limits->head_bytes < limits->target_bytes ||
        limits->headers == 0 || limits->headers > 10000 || limits->connections == 0 ||
        limits->connections_per_address == 0)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "a limit of connections, target, headers or their number is 0 or too large");
    if (!limits->idle_ms || !limits->head_ms || !limits->read_ms || !limits->body_ms ||
        !limits->write_ms || !limits->linger_ms)
        return sl_fail(err, SL_ERR_ARGUMENT, "a time limit is 0");
    return SL_OK;
}

/* Often enough for the shortest of the times. */
static uint32_t tick_of(const sl_http_limits *limits)
{
    const uint32_t times[] = {limits->idle_ms,       limits->head_ms,   limits->read_ms,
                              limits->write_ms,      limits->linger_ms, limits->body_ms,
                              limits->keep_alive_ms, limits->drain_ms};
    uint32_t tick = MAX_TICK_MS;
    for (size_t i = 0; i < SL_COUNTOF(times); i++) {
        if (times[i] && times[i] / 4 < tick)
            tick = times[i] / 4;
    }
    return tick < MIN_TICK_MS ? MIN_TICK_MS : tick;
}

static sl_status create_events(sl_http *http, sl_error *err)
{
    struct event_config *config = event_config_new();
    if (config) {
        /* One thread only touches the loop; others write to the eventfd. */
        event_config_set_flag(config, EVENT_BASE_FLAG_NOLOCK);
        http->base = event_base_new_with_config(config);
        event_config_free(config);
    }
    http->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (!http->base || http->wake_fd < 0)
        return sl_fail(err, SL_ERR_IO, "no event loop: %s", strerror(errno));
    http->wake = event_new(http->base, http->wake_fd, EV_READ | EV_PERSIST, on_wake, http);
    http->tick = event_new(http->base, -1, EV_PERSIST, on_tick, http);
    http->reap = event_new(http->base, -1, 0, on_reap, http);
    if (!http->wake || !http->tick || !http->reap || event_add(http->wake, NULL) != 0)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the event loop");
    return SL_OK;
}

static sl_status start(sl_http *http, const sl_http_settings *settings, sl_error *err)
{
    SL_TRY(check_limits(&settings->limits, err));
    SL_TRY(sl_routes_check(settings->routes, settings->n_routes, err));
    http->by_route = sl_alloc_array(SL_MEM_GENERAL, settings->n_routes + 1, sizeof *http->by_route);
    if (!http->by_route)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the counters of routes");
    if (!settings->tls_certificate != !settings->tls_key)
        return sl_fail(err, SL_ERR_ARGUMENT, "TLS needs both a certificate and its key");
    SL_TRY(sl_access_create(settings, &http->access, err));
    if (settings->tls_certificate)
        SL_TRY(sl_http_tls_create(settings->tls_certificate, settings->tls_key, &http->tls, err));
    SL_TRY(create_events(http, err));
    SL_TRY(sl_http_listen(http, settings, err));
    return sl_http_listen_start(http, err);
}

sl_status sl_http_create(const sl_http_settings *settings, sl_http **out, sl_error *err)
{
    sl_http *http = sl_alloc_zero(SL_MEM_GENERAL, sizeof *http);
    if (!http)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the server");
    http->limits = settings->limits;
    http->routes = settings->routes;
    http->n_routes = settings->n_routes;
    http->log_format = settings->log_format;
    http->log_line = settings->log_line;
    http->log_context = settings->log_context;
    http->wake_fd = -1;
    http->last_task = &http->first_task;
    http->tick_ms = tick_of(&settings->limits);
    pthread_mutex_init(&http->tasks_lock, NULL);
    if (getrandom(http->id_seed, sizeof http->id_seed, GRND_NONBLOCK) < 0)
        memcpy(http->id_seed, &(uint64_t){sl_http_now_ms()}, sizeof http->id_seed);
    const sl_status status = start(http, settings, err);
    if (status != SL_OK)
        sl_http_free(http);
    else
        *out = http;
    return status;
}

sl_status sl_http_run(sl_http *http, sl_error *err)
{
    /* A client that is gone is an error of a write, not a signal. */
    sigset_t pipe_set, before;
    sigemptyset(&pipe_set);
    sigaddset(&pipe_set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_set, &before);
    const int result = event_base_loop(http->base, EVLOOP_NO_EXIT_ON_EMPTY);
    if (!sigismember(&before, SIGPIPE)) {
        const struct timespec now = {0};
        while (sigtimedwait(&pipe_set, NULL, &now) == SIGPIPE)
            ;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result < 0 ? sl_fail(err, SL_ERR_IO, "the event loop failed") : SL_OK;
}

void sl_http_free(sl_http *http)
{
    if (!http)
        return;
    http->stops_seen = 1;
    sl_http_listen_stop(http);
    while (http->conns)
        sl_http_conn_kill(http->conns, SL_HTTP_STOPPED);
    sl_http_reap(http);
    while (run_tasks(http, TASKS_A_TURN))
        ;
    struct event *const events[] = {http->wake, http->tick, http->reap};
    for (size_t i = 0; i < SL_COUNTOF(events); i++) {
        if (events[i])
            event_free(events[i]);
    }
    if (http->base)
        event_base_free(http->base);
    if (http->wake_fd >= 0)
        close(http->wake_fd);
    SSL_CTX_free(http->tls);
    sl_access_free(http->access);
    sl_free(http->by_route);
    pthread_mutex_destroy(&http->tasks_lock);
    sl_free(http);
}

unsigned sl_http_port(const sl_http *http, size_t i)
{
    return i < http->n_listeners ? http->listeners[i].port : 0;
}

const sl_http_counters *sl_http_get_counters(const sl_http *http)
{
    return &http->counters;
}

const sl_http_route_counters *sl_http_get_route_counters(const sl_http *http)
{
    return http->by_route;
}
