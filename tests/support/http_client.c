#include "http_client.h"

#include <arpa/inet.h>
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/str.h"

/* Nothing a test waits for takes this long, on any machine. */
enum { PATIENCE_MS = 60000 };

/* ---- handlers ---- */

static void reply_text(sl_http_request *request, sl_str text)
{
    sl_http_reply(request, 200, "text/plain", text.data, text.n_bytes);
}

static void on_health(void *context, sl_http_request *request)
{
    (void)context;
    reply_text(request, sl_str_of("ok"));
}

static void on_echo(void *context, sl_http_request *request)
{
    (void)context;
    reply_text(request, sl_http_body(request));
}

static void on_item(void *context, sl_http_request *request)
{
    const sl_str value = sl_http_param(request, context);
    assert(value.data);
    reply_text(request, value);
}

static void on_query(void *context, sl_http_request *request)
{
    (void)context;
    sl_buf value;
    sl_error err;
    bool found = false;
    sl_buf_init(&value, SL_MEM_GENERAL, 4096);
    if (sl_http_query_value(request, "q", &value, &found, &err) != SL_OK)
        sl_http_reply_status(request, &err, "q");
    else if (!found)
        reply_text(request, sl_str_of("(none)"));
    else
        reply_text(request, (sl_str){value.data, value.n_bytes});
    sl_buf_free(&value);
}

static void on_big(void *context, sl_http_request *request)
{
    (void)context;
    enum { BYTES = 1 << 20 };
    char *bytes = malloc(BYTES);
    memset(bytes, 'x', BYTES);
    sl_http_reply(request, 200, "text/plain", bytes, BYTES);
    free(bytes);
}

static void on_closed(void *context, sl_http_request *request, sl_http_reason reason)
{
    sl_test_server *server = context;
    const unsigned n = atomic_load(&server->n_held);
    for (unsigned i = 0; i < n; i++) {
        if (server->held[i] == request) {
            server->held[i] = NULL;
            sl_http_unref(request);
        }
    }
    atomic_fetch_add(&server->n_closed[reason], 1);
}

static void hold(sl_test_server *server, sl_http_request *request)
{
    const unsigned n = atomic_load(&server->n_held);
    assert(n < SL_TEST_MAX_HELD);
    server->held[n] = sl_http_ref(request);
    sl_http_on_closed(request, on_closed, server);
    atomic_store(&server->n_held, n + 1);
}

static void on_hold(void *context, sl_http_request *request)
{
    hold(context, request);
}

static void on_stream(void *context, sl_http_request *request)
{
    if (sl_http_stream_begin(request, SL_HTTP_SSE))
        hold(context, request);
}

static void on_lines(void *context, sl_http_request *request)
{
    if (sl_http_stream_begin(request, SL_HTTP_NDJSON))
        hold(context, request);
}

static void on_events(void *context, sl_http_request *request)
{
    (void)context;
    sl_http_stream_begin(request, SL_HTTP_SSE);
    sl_http_stream_event(request, NULL, "{\"n\": 1}", 8);
    sl_http_stream_comment(request, "a comment\nof one line");
    sl_http_stream_event(request, "named", "two\nlines\r\nthree", 16);
    sl_http_stream_event(request, NULL, "[DONE]", 6);
    sl_http_stream_end(request);
    assert(!sl_http_stream_event(request, NULL, "late", 4));
}

typedef struct late {
    sl_http_task task; /* first: the task is the job */
    sl_http_request *request;
} late;

static void answer_late(sl_http_task *task)
{
    late *job = (late *)(void *)task;
    reply_text(job->request, sl_str_of("late"));
    sl_http_unref(job->request);
    free(job);
}

static void *work_late(void *argument)
{
    late *job = argument;
    sl_http_post_task(sl_http_request_server(job->request), &job->task);
    return NULL;
}

static void on_late(void *context, sl_http_request *request)
{
    (void)context;
    late *job = malloc(sizeof *job);
    *job = (late){{NULL, answer_late}, sl_http_ref(request)};
    pthread_t thread;
    if (pthread_create(&thread, NULL, work_late, job) == 0)
        pthread_detach(thread);
}

static void on_silent(void *context, sl_http_request *request)
{
    (void)context, (void)request;
}

static const sl_http_error an_error = {.status = 422,
                                       .message = "a \"sentence\"",
                                       .code = "a_code",
                                       .param = "a.param",
                                       .retry_after_s = 3};

static void on_error(void *context, sl_http_request *request)
{
    (void)context;
    sl_http_reply_error(request, &an_error);
}

static void on_broken(void *context, sl_http_request *request)
{
    sl_http_stream_begin(request, *(const sl_http_stream *)context);
    sl_http_stream_fail(request, &an_error);
}

static void on_log_line(void *context, const char *line, size_t n)
{
    sl_test_server *server = context;
    snprintf(server->last_line, sizeof server->last_line, "%.*s", (int)n, line);
    const size_t used = strlen(server->all_lines);
    snprintf(server->all_lines + used, sizeof server->all_lines - used, "%.*s\n", (int)n, line);
    atomic_fetch_add(&server->n_log_lines, 1);
}

/* ---- the server ---- */

static sl_http_stream sse = SL_HTTP_SSE, ndjson = SL_HTTP_NDJSON;

enum { N_ROUTES = 23 };

/* One table a server, since contexts differ; servers do not overlap in these tests. */
static sl_http_route routes[N_ROUTES];

static void fill_routes(sl_test_server *server)
{
    const sl_http_route table[] = {
        {SL_HTTP_GET, "/health", SL_ROUTE_PUBLIC | SL_ROUTE_DRAINING, 0, NULL, on_health, NULL},
        {SL_HTTP_POST, "/echo", SL_ROUTE_BODY, 0, NULL, on_echo, NULL},
        {SL_HTTP_POST, "/json", SL_ROUTE_BODY | SL_ROUTE_JSON, 0, NULL, on_echo, NULL},
        {SL_HTTP_GET, "/items/{id}", 0, 0, NULL, on_item, "id"},
        {SL_HTTP_DELETE, "/items/{id}", 0, 0, NULL, on_item, "id"},
        {SL_HTTP_GET, "/files/{path...}", 0, 0, NULL, on_item, "path"},
        {SL_HTTP_GET, "/query", 0, 0, NULL, on_query, NULL},
        {SL_HTTP_GET, "/big", 0, 0, NULL, on_big, NULL},
        {SL_HTTP_GET, "/hold", 0, 0, NULL, on_hold, server},
        {SL_HTTP_POST, "/hold", 0, 0, NULL, on_hold, server},
        {SL_HTTP_GET, "/stream", 0, 0, NULL, on_stream, server},
        {SL_HTTP_GET, "/lines", 0, 0, NULL, on_lines, server},
        {SL_HTTP_GET, "/events", 0, 0, NULL, on_events, NULL},
        {SL_HTTP_GET, "/late", 0, 0, NULL, on_late, NULL},
        {SL_HTTP_GET, "/silent", 0, 0, NULL, on_silent, NULL},
        {SL_HTTP_GET, "/openai", 0, 0, NULL, on_error, NULL},
        {SL_HTTP_GET, "/api/ollama", 0, 0, sl_http_shape_ollama, on_error, NULL},
        {SL_HTTP_GET, "/anthropic", 0, 0, sl_http_shape_anthropic, on_error, NULL},
        {SL_HTTP_GET, "/broken", 0, 0, NULL, on_broken, &sse},
        {SL_HTTP_GET, "/api/broken", 0, 0, sl_http_shape_ollama, on_broken, &ndjson},
        {SL_HTTP_GET, "/anthropic/broken", 0, 0, sl_http_shape_anthropic, on_broken, &sse},
        {SL_HTTP_POST, "/small", SL_ROUTE_BODY, 10, NULL, on_echo, NULL},
        {SL_HTTP_PUT, "/echo", 0, 0, NULL, on_echo, NULL},
    };
    _Static_assert(sizeof table == sizeof routes, "the number of routes");
    memcpy(routes, table, sizeof table);
}

sl_http_settings sl_test_settings(void)
{
    static const char *const addresses[] = {"127.0.0.1:0"};
    sl_http_settings settings = sl_http_settings_default();
    settings.addresses = addresses;
    settings.limits.linger_ms = 200;
    settings.limits.keep_alive_ms = 0;
    return settings;
}

static void *run(void *argument)
{
    sl_test_server *server = argument;
    sl_error err;
    server->result = sl_http_run(server->http, &err);
    return NULL;
}

void sl_test_start(sl_test_server *server, const sl_http_settings *settings)
{
    sl_http_settings own = *settings;
    sl_error err;
    memset(server, 0, sizeof *server);
    fill_routes(server);
    own.routes = routes;
    own.n_routes = N_ROUTES;
    own.log_line = on_log_line;
    own.log_context = server;
    assert_ok(sl_http_create(&own, &server->http, &err));
    server->port = sl_http_port(server->http, 0);
    assert_int_equal(pthread_create(&server->thread, NULL, run, server), 0);
    server->running = true;
}

void sl_test_join(sl_test_server *server)
{
    assert_int_equal(pthread_join(server->thread, NULL), 0);
    server->running = false;
    assert_int_equal(server->result, SL_OK);
}

void sl_test_free(sl_test_server *server)
{
    const unsigned n = atomic_load(&server->n_held);
    sl_http_free(server->http);
    for (unsigned i = 0; i < n; i++)
        sl_http_unref(server->held[i]);
}

void sl_test_stop(sl_test_server *server)
{
    sl_http_stop(server->http);
    sl_http_stop(server->http);
    sl_test_join(server);
    sl_test_free(server);
}

typedef struct loop_call {
    void (*function)(void *);
    void *argument;
    atomic_uint done;
} loop_call;

static void run_loop_call(void *argument)
{
    loop_call *call = argument;
    call->function(call->argument);
    atomic_store(&call->done, 1);
}

void sl_test_on_loop(sl_test_server *server, void (*function)(void *), void *argument)
{
    loop_call call = {function, argument, 0};
    assert_int_equal(sl_http_post(server->http, run_loop_call, &call), SL_OK);
    sl_test_wait(&call.done, 1);
}

static void answer_all(void *argument)
{
    sl_test_server *server = argument;
    const unsigned n = atomic_load(&server->n_held);
    for (unsigned i = 0; i < n; i++) {
        sl_http_request *request = server->held[i];
        server->held[i] = NULL;
        if (request && !sl_http_stream_end(request))
            reply_text(request, sl_str_of("held"));
        sl_http_unref(request);
    }
    atomic_store(&server->n_held, 0);
}

void sl_test_answer_held(sl_test_server *server)
{
    sl_test_on_loop(server, answer_all, server);
}

typedef struct event_job {
    sl_test_server *server;
    const char *data;
} event_job;

static void send_all(void *argument)
{
    const event_job *job = argument;
    const unsigned n = atomic_load(&job->server->n_held);
    for (unsigned i = 0; i < n; i++) {
        sl_http_request *request = job->server->held[i];
        if (request && !sl_http_stream_event(request, NULL, job->data, strlen(job->data)))
            sl_http_stream_line(request, job->data, strlen(job->data));
    }
}

void sl_test_send_event(sl_test_server *server, const char *data)
{
    event_job job = {server, data};
    sl_test_on_loop(server, send_all, &job);
}

typedef struct counters_job {
    const sl_http *http;
    sl_http_counters counters;
} counters_job;

static void copy_counters(void *argument)
{
    counters_job *job = argument;
    job->counters = *sl_http_get_counters(job->http);
}

sl_http_counters sl_test_counters(sl_test_server *server)
{
    counters_job job = {.http = server->http};
    sl_test_on_loop(server, copy_counters, &job);
    return job.counters;
}

void sl_test_wait(atomic_uint *count, unsigned n)
{
    for (int i = 0; i < PATIENCE_MS; i++) {
        if (atomic_load(count) >= n)
            return;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    fail_msg("waited in vain for %u, there are %u", n, atomic_load(count));
}

/* ---- clients ---- */

int sl_test_connect(const sl_test_server *server)
{
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)server->port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail_msg("connect: %s", strerror(errno));
    return fd;
}

/* What the server does not want any more may be refused by the system: not an error here. */
void sl_test_send_bytes(int fd, const void *bytes, size_t n)
{
    const char *at = bytes;
    while (n > 0) {
        const ssize_t sent = send(fd, at, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return;
        at += sent;
        n -= (size_t)sent;
    }
}

void sl_test_send(int fd, const char *text)
{
    sl_test_send_bytes(fd, text, strlen(text));
}

void sl_test_close(int fd)
{
    assert_int_equal(close(fd), 0);
}

unsigned sl_test_count_fds(void)
{
    DIR *folder = opendir("/proc/self/fd");
    unsigned n = 0;
    assert_non_null(folder);
    while (readdir(folder))
        n++;
    closedir(folder);
    return n;
}

/* Reads some bytes. 0: the connection has ended. */
static size_t receive(int fd, char *bytes, size_t n)
{
    struct pollfd state = {.fd = fd, .events = POLLIN};
    if (poll(&state, 1, PATIENCE_MS) != 1)
        fail_msg("waited in vain for an answer");
    const ssize_t received = recv(fd, bytes, n, 0);
    return received > 0 ? (size_t)received : 0;
}

static size_t receive_all(int fd, char *bytes, size_t n)
{
    size_t done = 0;
    while (done < n) {
        const size_t more = receive(fd, bytes + done, n - done);
        if (more == 0)
            break;
        done += more;
    }
    return done;
}

/* Up to and with `end`; false when the connection ends before. */
static bool receive_until(int fd, const char *end, char *text, size_t capacity)
{
    size_t n = 0;
    const size_t n_end = strlen(end);
    text[0] = '\0';
    while (n < n_end || memcmp(text + n - n_end, end, n_end) != 0) {
        assert_true(n + 1 < capacity);
        if (receive(fd, text + n, 1) == 0)
            return false;
        text[++n] = '\0';
    }
    return true;
}

bool sl_test_header(const sl_test_answer *answer, const char *name, char *text, size_t capacity)
{
    const size_t n = strlen(name);
    for (const char *line = strstr(answer->head, "\r\n"); line; line = strstr(line + 2, "\r\n")) {
        if (strncasecmp(line + 2, name, n) == 0 && line[2 + n] == ':') {
            const char *value = line + 2 + n + 1 + strspn(line + 2 + n + 1, " ");
            snprintf(text, capacity, "%.*s", (int)strcspn(value, "\r"), value);
            return true;
        }
    }
    return false;
}

static void keep(sl_test_answer *answer, int fd, size_t n)
{
    answer->body = sl_realloc(SL_MEM_GENERAL, answer->body, answer->n_body + n + 1);
    assert_non_null(answer->body);
    const size_t got = receive_all(fd, answer->body + answer->n_body, n);
    answer->cut = answer->cut || got < n;
    answer->n_body += got;
    answer->body[answer->n_body] = '\0';
}

static void read_chunks(sl_test_answer *answer, int fd)
{
    for (;;) {
        char line[32];
        if (!receive_until(fd, "\r\n", line, sizeof line)) {
            answer->cut = true;
            return;
        }
        char *end;
        const unsigned long n = strtoul(line, &end, 16);
        assert_true(end > line && strcmp(end, "\r\n") == 0);
        keep(answer, fd, n);
        if (answer->cut || !receive_until(fd, "\r\n", line, sizeof line)) {
            answer->cut = true;
            return;
        }
        assert_string_equal(line, "\r\n");
        if (n == 0)
            return;
    }
}

sl_test_answer sl_test_read(int fd, bool head_only)
{
    sl_test_answer answer = {0};
    char text[64];
    do {
        if (!receive_until(fd, "\r\n\r\n", answer.head, sizeof answer.head)) {
            answer.status = 0;
            answer.cut = true;
            return answer;
        }
        assert_int_equal(sscanf(answer.head, "HTTP/1.1 %d ", &answer.status), 1);
    } while (answer.status < 200);
    keep(&answer, fd, 0);
    if (head_only || answer.status == 204)
        return answer;
    if (sl_test_header(&answer, "Transfer-Encoding", text, sizeof text)) {
        assert_string_equal(text, "chunked");
        read_chunks(&answer, fd);
    } else if (sl_test_header(&answer, "Content-Length", text, sizeof text)) {
        keep(&answer, fd, strtoul(text, NULL, 10));
    } else {
        char byte;
        while (receive(fd, &byte, 1) == 1) {
            answer.body = sl_realloc(SL_MEM_GENERAL, answer.body, answer.n_body + 2);
            answer.body[answer.n_body++] = byte;
            answer.body[answer.n_body] = '\0';
        }
    }
    return answer;
}

void sl_test_answer_free(sl_test_answer *answer)
{
    sl_free(answer->body);
    answer->body = NULL;
}

void sl_test_expect(const sl_test_server *server, const char *request, int status, const char *part)
{
    const int fd = sl_test_connect(server);
    sl_test_send(fd, request);
    sl_test_answer answer = sl_test_read(fd, strncmp(request, "HEAD ", 5) == 0);
    if (answer.status != status || (part && !strstr(answer.body, part)))
        fail_msg("%s\ngave %d: %s%s, not %d: %s", request, answer.status, answer.head,
                 answer.body ? answer.body : "", status, part ? part : "(any)");
    char id[128];
    assert_true(sl_test_header(&answer, "x-request-id", id, sizeof id));
    sl_test_answer_free(&answer);
    sl_test_close(fd);
}

bool sl_test_read_until(int fd, const char *text)
{
    static char read_so_far[1 << 16];
    return receive_until(fd, text, read_so_far, sizeof read_so_far);
}

bool sl_test_at_end(int fd)
{
    char byte;
    return receive(fd, &byte, 1) == 0;
}

/* ---- what a test leaves behind ---- */

static unsigned fds_before;
static uint64_t blocks_before;

void sl_test_remember_resources(void)
{
    fds_before = sl_test_count_fds();
    blocks_before = sl_mem_get_stats().blocks;
}

void sl_test_assert_resources(void)
{
    assert_int_equal(sl_test_count_fds(), fds_before);
    assert_int_equal(sl_mem_get_stats().blocks, blocks_before);
}

void sl_test_restart(sl_test_server *server, const sl_http_settings *settings)
{
    sl_test_stop(server);
    sl_test_start(server, settings);
}

void sl_test_expect_held(int fd)
{
    sl_test_answer answer = sl_test_read(fd, false);
    assert_string_equal(answer.body, "held");
    sl_test_answer_free(&answer);
}
