#include "served.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char tiny[] = "models/tiny-q8_0.gguf";

static sl_engine *engine;
static sl_service *service;
static pthread_t thread;
static sl_test_server server; /* only its port: for the clients */

static sl_engine *open_engine(void)
{
    sl_error err;
    sl_engine *opened;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 2;
    assert_ok(sl_engine_open(tiny, &params, &opened, &err));
    return opened;
}

static void *run(void *argument)
{
    sl_error err;
    (void)argument;
    assert_ok(sl_service_run(service, &err));
    return NULL;
}

void sl_served_start(unsigned n_places, size_t queue)
{
    sl_error err;
    sl_service_settings settings = sl_service_settings_default(engine);
    static const char *const addresses[] = {"127.0.0.1:0"};
    settings.http = sl_test_settings();
    settings.http.addresses = addresses;
    settings.http.n_addresses = 1;
    settings.worker.n_places = n_places;
    settings.worker.queue = queue;
    settings.worker.context = SL_SERVED_CONTEXT;
    settings.worker.prompt_rows = 8;
    settings.model_id = "tiny";
    assert_ok(sl_service_create(engine, &settings, &service, &err));
    server.port = sl_http_port(sl_service_http(service), 0);
    assert_int_equal(pthread_create(&thread, NULL, run, NULL), 0);
}

void sl_served_join(void)
{
    pthread_join(thread, NULL);
    sl_service_free(service);
    service = NULL;
}

void sl_served_stop(void)
{
    sl_http_stop(sl_service_http(service));
    sl_served_join();
}

sl_http *sl_served_http(void)
{
    return sl_service_http(service);
}

const sl_test_server *sl_served(void)
{
    return &server;
}

int sl_served_set_up(void **state)
{
    (void)state;
    engine = open_engine();
    return 0;
}

int sl_served_tear_down(void **state)
{
    (void)state;
    sl_engine_close(engine);
    return sl_mem_get_stats().blocks == 0 ? 0 : -1;
}

/* ---- requests ---- */

int sl_served_post(const char *path, const char *body)
{
    const int fd = sl_test_connect(&server);
    char head[256];
    snprintf(head, sizeof head,
             "POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             path, strlen(body));
    sl_test_send(fd, head);
    sl_test_send(fd, body);
    return fd;
}

json_t *sl_served_parse(const char *text, size_t n)
{
    sl_error err;
    json_t *value;
    assert_ok(sl_json_parse(text, n, "an answer", sl_json_limits_default(), &value, &err));
    return value;
}

/* The answer's JSON. */
json_t *sl_served_ask(const char *path, const char *body, int status)
{
    const int fd = sl_served_post(path, body);
    sl_test_answer answer = sl_test_read(fd, false);
    if (answer.status != status)
        print_message("%s\n", answer.body);
    assert_int_equal(answer.status, status);
    json_t *value = sl_served_parse(answer.body, answer.n_body);
    sl_test_answer_free(&answer);
    sl_test_close(fd);
    return value;
}

/* A member by its path: "choices.0.message.content". */
const json_t *sl_served_at(const json_t *value, const char *path)
{
    char name[64];
    while (value && *path) {
        const size_t n = strcspn(path, ".");
        assert_true(n < sizeof name);
        memcpy(name, path, n);
        name[n] = '\0';
        value = json_is_array(value) ? json_array_get(value, (size_t)atoi(name))
                                     : json_object_get(value, name);
        path += n + (path[n] == '.');
    }
    return value;
}

const char *sl_served_text(const json_t *value, const char *path)
{
    const json_t *text = sl_served_at(value, path);
    return text ? json_string_value(text) : NULL;
}

void sl_served_assert_text(const json_t *value, const char *path, const char *expected)
{
    const char *text = sl_served_text(value, path);
    assert_non_null(text);
    assert_string_equal(text, expected);
}

long long sl_served_number(const json_t *value, const char *path)
{
    const json_t *number = sl_served_at(value, path);
    assert_true(json_is_integer(number));
    return json_integer_value(number);
}
