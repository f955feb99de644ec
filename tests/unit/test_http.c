/* The server over sockets: routes, answers, streams, limits, and keeping connections. */
#include "http_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static sl_test_server server;

static int set_up(void **state)
{
    (void)state;
    const sl_http_settings settings = sl_test_settings();
    sl_test_remember_resources();
    sl_test_start(&server, &settings);
    return 0;
}

/* Every descriptor and every block is given back. */
static int tear_down(void **state)
{
    (void)state;
    if (server.running)
        sl_test_stop(&server);
    sl_test_assert_resources();
    return 0;
}

#define H         "Host: localhost\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"

static void test_routes(void **state)
{
    (void)state;
    sl_test_expect(&server, GET("/health"), 200, "ok");
    sl_test_expect(&server, GET("/items/a%2Fb"), 200, "a/b");
    sl_test_expect(&server, "DELETE /items/x HTTP/1.1\r\n" H "\r\n", 200, "x");
    sl_test_expect(&server, GET("/files/a/b%20c/d"), 200, "a/b c/d");
    sl_test_expect(&server, GET("/query?p=1&q=a+b%26c&r"), 200, "a b&c");
    sl_test_expect(&server, GET("/query?q"), 200, "");
    sl_test_expect(&server, GET("/query?qq=1"), 200, "(none)");
    sl_test_expect(&server, GET("/query"), 200, "(none)");
    sl_test_expect(&server, GET("/query?q=%zz"), 400, "\"param\": \"q\"");
    sl_test_expect(&server, GET("http://localhost/health"), 200, "ok");
    sl_test_expect(&server, "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", 200,
                   "hello");
    sl_test_expect(&server, "POST /echo HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", 200, "");
    sl_test_expect(&server,
                   "POST /echo HTTP/1.1\r\n" H
                   "Transfer-Encoding: chunked\r\n\r\n2;x=y\r\nhe\r\n3\r\nllo\r\n0\r\nA: b\r\n\r\n",
                   200, "hello");
    sl_test_expect(&server,
                   "POST /json HTTP/1.1\r\n" H "Content-Type: application/json; charset=utf-8\r\n"
                   "Content-Length: 2\r\n\r\n{}",
                   200, "{}");
}

static void test_refusals(void **state)
{
    (void)state;
    sl_test_expect(&server, GET("/"), 404, "\"code\": \"not_found\"");
    sl_test_expect(&server, GET("/health/"), 404, NULL);
    sl_test_expect(&server, GET("/items"), 404, NULL);
    sl_test_expect(&server, GET("/items/"), 404, NULL);
    sl_test_expect(&server, GET("/items/a/b"), 404, NULL);
    sl_test_expect(&server, GET("/files/"), 404, NULL);
    sl_test_expect(&server, GET("/items/%00"), 400, NULL);
    sl_test_expect(&server, GET("/items/%FF"), 400, NULL);
    sl_test_expect(&server, "POST /echo HTTP/1.1\r\n" H "\r\n", 411, NULL);
    sl_test_expect(&server,
                   "POST /json HTTP/1.1\r\n" H "Content-Type: text/plain\r\n"
                   "Content-Length: 2\r\n\r\n{}",
                   415, NULL);
    sl_test_expect(&server, "POST /json HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\n{}", 415, NULL);
    sl_test_expect(&server, "GET /health HTTP/1.1\r\n" H "Expect: more\r\n\r\n", 417, NULL);
    sl_test_expect(&server, GET("/silent"), 500, NULL);
    sl_test_expect(&server, "BREW /health HTTP/1.1\r\n" H "\r\n", 405, NULL);
    sl_test_expect(&server, "BREW /pot HTTP/1.1\r\n" H "\r\n", 404, NULL);
}

static void expect_header(const char *request, int status, const char *name, const char *value)
{
    char text[256];
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, request);
    sl_test_answer answer = sl_test_read(fd, strncmp(request, "HEAD", 4) == 0);
    assert_int_equal(answer.status, status);
    const bool there = sl_test_header(&answer, name, text, sizeof text);
    assert_int_equal(there, value != NULL);
    if (value)
        assert_string_equal(text, value);
    sl_test_answer_free(&answer);
    sl_test_close(fd);
}

static void test_methods(void **state)
{
    (void)state;
    expect_header("PUT /items/a HTTP/1.1\r\n" H "\r\n", 405, "Allow", "GET, HEAD, DELETE, OPTIONS");
    expect_header("GET /echo HTTP/1.1\r\n" H "\r\n", 405, "Allow", "POST, PUT, OPTIONS");
    expect_header("OPTIONS /echo HTTP/1.1\r\n" H "\r\n", 204, "Allow", "POST, PUT, OPTIONS");
    expect_header("OPTIONS * HTTP/1.1\r\n" H "\r\n", 204, "Allow",
                  "GET, HEAD, POST, DELETE, OPTIONS");
    expect_header("OPTIONS /nowhere HTTP/1.1\r\n" H "\r\n", 404, "Allow", NULL);
    expect_header("HEAD /big HTTP/1.1\r\n" H "\r\n", 200, "Content-Length", "1048576");
    expect_header("HEAD /nowhere HTTP/1.1\r\n" H "\r\n", 404, "Content-Length", "112");
    expect_header("HEAD /events HTTP/1.1\r\n" H "\r\n", 200, "Content-Type",
                  "text/event-stream; charset=utf-8");
}

static void test_request_ids(void **state)
{
    (void)state;
    expect_header("GET /health HTTP/1.1\r\n" H "X-Request-Id: my.id-1_2\r\n\r\n", 200,
                  "x-request-id", "my.id-1_2");
    expect_header("GET / HTTP/1.1\r\nX-Request-Id: of-a-refusal\r\n\r\n", 400, "x-request-id",
                  "of-a-refusal");
    const char *const wrong[] = {
        "", "a b", "a\"b", "a;b",
        "12345678901234567890123456789012345678901234567890123456789012345"};
    for (size_t i = 0; i < SL_COUNTOF(wrong); i++) {
        char request[256], id[128];
        const int fd = sl_test_connect(&server);
        snprintf(request, sizeof request, "GET /health HTTP/1.1\r\n" H "X-Request-Id: %s\r\n\r\n",
                 wrong[i]);
        sl_test_send(fd, request);
        sl_test_answer answer = sl_test_read(fd, false);
        assert_true(sl_test_header(&answer, "x-request-id", id, sizeof id));
        assert_int_equal(strncmp(id, "req_", 4), 0);
        assert_int_equal(strlen(id), 28);
        sl_test_answer_free(&answer);
        sl_test_close(fd);
    }
}

static void test_error_shapes(void **state)
{
    (void)state;
    sl_test_expect(&server, GET("/openai"), 422,
                   "{\"error\": {\"message\": \"a \\\"sentence\\\"\", \"type\": "
                   "\"invalid_request_error\", \"param\": \"a.param\", \"code\": \"a_code\"}}");
    sl_test_expect(&server, GET("/api/ollama"), 422, "{\"error\": \"a \\\"sentence\\\"\"}");
    sl_test_expect(&server, "GET /anthropic HTTP/1.1\r\n" H "X-Request-Id: r1\r\n\r\n", 422,
                   "{\"type\": \"error\", \"error\": {\"type\": \"invalid_request_error\", "
                   "\"message\": \"a \\\"sentence\\\"\"}, \"request_id\": \"r1\"}");
    sl_test_expect(&server, "POST /api/ollama HTTP/1.1\r\n" H "Content-Length: 0\r\n\r\n", 405,
                   "{\"error\": \"This route");
    expect_header(GET("/openai"), 422, "Retry-After", "3");
}

static void test_streams(void **state)
{
    (void)state;
    static const char events[] = "data: {\"n\": 1}\n\n: a comment\n\n"
                                 "event: named\ndata: two\ndata: lines\ndata: three\n\n"
                                 "data: [DONE]\n\n";
    const int fd = sl_test_connect(&server);
    for (int i = 0; i < 3; i++) { /* the connection is kept */
        char text[64];
        sl_test_send(fd, GET("/events"));
        sl_test_answer answer = sl_test_read(fd, false);
        assert_int_equal(answer.status, 200);
        assert_string_equal(answer.body, events);
        assert_true(sl_test_header(&answer, "Content-Type", text, sizeof text));
        assert_string_equal(text, "text/event-stream; charset=utf-8");
        assert_true(sl_test_header(&answer, "Cache-Control", text, sizeof text));
        assert_string_equal(text, "no-cache");
        assert_true(sl_test_header(&answer, "X-Accel-Buffering", text, sizeof text));
        assert_string_equal(text, "no");
        sl_test_answer_free(&answer);
    }
    sl_test_close(fd);
    /* Without chunks, as HTTP/1.0 wants it. */
    sl_test_expect(&server, "GET /events HTTP/1.0\r\n\r\n", 200, events);
    sl_test_expect(&server, "GET /events HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, events);
    sl_test_expect(&server, GET("/broken"), 200, "data: {\"error\": {\"message\": ");
    sl_test_expect(&server, GET("/api/broken"), 200, "{\"error\": \"a \\\"sentence\\\"\"}\n");
    sl_test_expect(&server, GET("/anthropic/broken"), 200,
                   "event: error\ndata: {\"type\": \"error\", ");
}

static void test_held_streams(void **state)
{
    (void)state;
    const int events = sl_test_connect(&server), lines = sl_test_connect(&server);
    sl_test_send(events, GET("/stream"));
    sl_test_send(lines, GET("/lines"));
    sl_test_wait(&server.n_held, 2);
    sl_test_send_event(&server, "{\"a\": 1}");
    assert_true(sl_test_read_until(events, "\r\n\r\n"));
    assert_true(sl_test_read_until(events, "data: {\"a\": 1}\n\n"));
    assert_true(sl_test_read_until(lines, "\r\n\r\n"));
    assert_true(sl_test_read_until(lines, "{\"a\": 1}\n"));
    sl_test_answer_held(&server);
    assert_true(sl_test_read_until(events, "0\r\n\r\n"));
    assert_true(sl_test_read_until(lines, "0\r\n\r\n"));
    const sl_http_counters counters = sl_test_counters(&server);
    assert_int_equal(counters.streams_open, 0);
    assert_int_equal(counters.requests_open, 0);
    sl_test_close(events);
    sl_test_close(lines);
}

static void test_late_answers(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++)
        sl_test_expect(&server, GET("/late"), 200, "late");
}

static void test_kept_connections(void **state)
{
    (void)state;
    const int fd = sl_test_connect(&server);
    for (int i = 0; i < 100; i++) {
        sl_test_send(fd, i % 2 ? "\r\n" GET("/health")
                               : "POST /echo HTTP/1.1\r\n" H "Content-Length: 2\r\n\r\nok");
        sl_test_answer answer = sl_test_read(fd, false);
        assert_int_equal(answer.status, 200);
        assert_string_equal(answer.body, "ok");
        sl_test_answer_free(&answer);
    }
    /* A refusal that leaves no body unread does not end it. */
    sl_test_send(fd, GET("/nowhere") GET("/health"));
    sl_test_answer answer = sl_test_read(fd, false);
    assert_int_equal(answer.status, 404);
    sl_test_answer_free(&answer);
    answer = sl_test_read(fd, false);
    assert_int_equal(answer.status, 200);
    sl_test_answer_free(&answer);
    sl_test_send(fd, "GET /health HTTP/1.1\r\n" H "Connection: close\r\n\r\n");
    answer = sl_test_read(fd, false);
    char text[32];
    assert_true(sl_test_header(&answer, "Connection", text, sizeof text));
    assert_string_equal(text, "close");
    sl_test_answer_free(&answer);
    assert_true(sl_test_at_end(fd));
    sl_test_close(fd);
    expect_header("GET /health HTTP/1.0\r\n\r\n", 200, "Connection", "close");
    expect_header("GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", 200, "Connection",
                  "keep-alive");
    expect_header(GET("/health"), 200, "Connection", NULL);
}

/* Requests sent at once are answered in their order, one at a time. */
static void test_pipelining(void **state)
{
    (void)state;
    enum { REQUESTS = 2000 };
    const int fd = sl_test_connect(&server);
    char *all = malloc(REQUESTS * 128);
    size_t n = 0;
    for (int i = 0; i < REQUESTS; i++)
        n += (size_t)snprintf(all + n, 128, "GET /items/%d HTTP/1.1\r\n" H "\r\n", i);
    sl_test_send_bytes(fd, all, n);
    free(all);
    for (int i = 0; i < REQUESTS; i++) {
        char expected[16];
        snprintf(expected, sizeof expected, "%d", i);
        sl_test_answer answer = sl_test_read(fd, false);
        assert_int_equal(answer.status, 200);
        assert_string_equal(answer.body, expected);
        sl_test_answer_free(&answer);
    }
    /* The next one waits while one is held. */
    sl_test_send(fd, GET("/hold") GET("/health"));
    sl_test_wait(&server.n_held, 1);
    sl_test_answer_held(&server);
    sl_test_expect_held(fd);
    sl_test_answer answer = sl_test_read(fd, false);
    assert_string_equal(answer.body, "ok");
    sl_test_answer_free(&answer);
    sl_test_close(fd);
}

/* Byte by byte, a request is the same. */
static void test_bytes_one_by_one(void **state)
{
    (void)state;
    static const char request[] = "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
                                  "5\r\nhello\r\n0\r\n\r\n";
    const int fd = sl_test_connect(&server);
    for (size_t i = 0; i < sizeof request - 1; i++) {
        sl_test_send_bytes(fd, request + i, 1);
        if (i % 8 == 0)
            sl_test_counters(&server); /* the loop has had a turn */
    }
    sl_test_answer answer = sl_test_read(fd, false);
    assert_string_equal(answer.body, "hello");
    sl_test_answer_free(&answer);
    sl_test_close(fd);
}

static void test_100_continue(void **state)
{
    (void)state;
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n"
                     "Expect: 100-continue\r\n\r\n");
    assert_true(sl_test_read_until(fd, "HTTP/1.1 100 Continue\r\n\r\n"));
    sl_test_send(fd, "hello");
    sl_test_answer answer = sl_test_read(fd, false);
    assert_string_equal(answer.body, "hello");
    sl_test_answer_free(&answer);
    /* What is refused anyway is not asked for. */
    sl_test_send(fd, "POST /small HTTP/1.1\r\n" H "Content-Length: 11\r\n"
                     "Expect: 100-continue\r\n\r\n");
    answer = sl_test_read(fd, false);
    assert_int_equal(answer.status, 413);
    assert_null(strstr(answer.head, "100 Continue"));
    sl_test_answer_free(&answer);
    assert_true(sl_test_at_end(fd));
    sl_test_close(fd);
}

static void test_body_limits(void **state)
{
    (void)state;
    sl_http_settings settings = sl_test_settings();
    settings.limits.body_bytes = 1000;
    settings.limits.bodies_bytes = 1500;
    sl_test_restart(&server, &settings);
    char request[2000];
    snprintf(request, sizeof request,
             "POST /echo HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\n%01000d", 7);
    sl_test_expect(&server, request, 200, "0007");
    sl_test_expect(&server, "POST /echo HTTP/1.1\r\n" H "Content-Length: 1001\r\n\r\n", 413, NULL);
    sl_test_expect(&server,
                   "POST /echo HTTP/1.1\r\n" H "Content-Length: 9223372036854775807\r\n\r\n", 400,
                   NULL);
    sl_test_expect(&server,
                   "POST /echo HTTP/1.1\r\n" H "Content-Length: 922337203685477579\r\n\r\n", 413,
                   NULL);
    snprintf(request, sizeof request,
             "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3e9\r\n%01001d\r\n"
             "0\r\n\r\n",
             7);
    sl_test_expect(&server, request, 413, NULL);
    sl_test_expect(&server, "POST /small HTTP/1.1\r\n" H "Content-Length: 10\r\n\r\n0123456789",
                   200, "0123456789");
    sl_test_expect(&server, "POST /small HTTP/1.1\r\n" H "Content-Length: 11\r\n\r\n0123456789a",
                   413, NULL);
    /* One that is held takes its part of what all may have. */
    const int fd = sl_test_connect(&server);
    snprintf(request, sizeof request,
             "POST /hold HTTP/1.1\r\n" H "Content-Length: 1000\r\n\r\n%01000d", 7);
    sl_test_send(fd, request);
    sl_test_wait(&server.n_held, 1);
    memcpy(request, "POST /echo", 10);
    sl_test_expect(&server, request, 503, "no_memory");
    sl_test_answer_held(&server);
    sl_test_expect(&server, request, 200, "0007");
    sl_test_close(fd);
}

static void test_head_limits(void **state)
{
    (void)state;
    sl_http_settings settings = sl_test_settings();
    settings.limits.target_bytes = 100;
    settings.limits.head_bytes = 1000;
    settings.limits.headers = 10;
    sl_test_restart(&server, &settings);
    char request[2000];
    snprintf(request, sizeof request, "GET /items/%093d HTTP/1.1\r\n" H "\r\n", 7);
    sl_test_expect(&server, request, 200, "0007");
    snprintf(request, sizeof request, "GET /items/%094d HTTP/1.1\r\n" H "\r\n", 7);
    sl_test_expect(&server, request, 414, NULL);
    snprintf(request, sizeof request, "GET /items/%0994d HTTP/1.1\r\n" H "\r\n", 7);
    sl_test_expect(&server, request, 414, NULL);
    snprintf(request, sizeof request, "GET /health HTTP/1.1\r\n" H "A: %0900d\r\n\r\n", 7);
    sl_test_expect(&server, request, 200, NULL);
    snprintf(request, sizeof request, "GET /health HTTP/1.1\r\n" H "A: %01900d\r\n\r\n", 7);
    sl_test_expect(&server, request, 431, NULL);
    sl_test_expect(&server,
                   "GET /health HTTP/1.1\r\n" H
                   "a:1\r\nb:1\r\nc:1\r\nd:1\r\ne:1\r\nf:1\r\ng:1\r\nh:1\r\ni:1\r\nj:1\r\n\r\n",
                   431, NULL);
}

static void test_connection_limits(void **state)
{
    (void)state;
    sl_http_settings settings = sl_test_settings();
    settings.limits.connections = 4;
    settings.limits.connections_per_address = 3;
    sl_test_restart(&server, &settings);
    int fds[4];
    for (int i = 0; i < 3; i++) {
        fds[i] = sl_test_connect(&server);
        sl_test_send(fds[i], GET("/stream"));
    }
    sl_test_wait(&server.n_held, 3);
    sl_test_expect(&server, GET("/health"), 429, "too_many_connections");
    sl_test_close(fds[0]);
    sl_test_wait(&server.n_closed[SL_HTTP_CLIENT_GONE], 1);
    sl_test_expect(&server, GET("/health"), 200, NULL);
    sl_test_close(fds[1]);
    sl_test_close(fds[2]);
    sl_test_wait(&server.n_closed[SL_HTTP_CLIENT_GONE], 3);
    settings.limits.connections_per_address = 100;
    settings.limits.connections = 1;
    sl_test_restart(&server, &settings);
    fds[0] = sl_test_connect(&server);
    sl_test_send(fds[0], GET("/stream"));
    sl_test_wait(&server.n_held, 1);
    sl_test_expect(&server, GET("/health"), 503, "too_many_connections");
    const sl_http_counters counters = sl_test_counters(&server);
    assert_int_equal(counters.refused_all, 1);
    assert_int_equal(counters.connections_open, 1);
    sl_test_close(fds[0]);
}

static void test_unix_socket(void **state)
{
    (void)state;
    char path[64], name[80];
    snprintf(path, sizeof path, "/tmp/sl_test_http_%d.sock", (int)getpid());
    snprintf(name, sizeof name, "unix:%s", path);
    const char *const addresses[] = {name, "localhost:0"};
    sl_http_settings settings = sl_test_settings();
    settings.addresses = addresses;
    settings.n_addresses = 2;
    for (int round = 0; round < 2; round++) { /* once over a file that was left behind */
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        memcpy(address.sun_path, path, strlen(path));
        if (round == 1) {
            const int left = socket(AF_UNIX, SOCK_STREAM, 0);
            assert_int_equal(bind(left, (struct sockaddr *)&address, sizeof address), 0);
            sl_test_close(left);
        }
        sl_test_restart(&server, &settings);
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_int_equal(st.st_mode & 0777, 0600);
        assert_int_equal(sl_http_port(server.http, 0), 0);
        assert_true(sl_http_port(server.http, 1) > 0);
        /* Whoever may open the file may name any host. */
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
        sl_test_send(fd, "GET /health HTTP/1.1\r\nHost: any.example\r\n\r\n");
        sl_test_answer answer = sl_test_read(fd, false);
        assert_int_equal(answer.status, 200);
        sl_test_answer_free(&answer);
        sl_test_close(fd);
        /* Taken while a server listens. */
        sl_http *other = NULL;
        sl_error err;
        assert_refused(sl_http_create(&settings, &other, &err), SL_ERR_IO, path);
        server.port = sl_http_port(server.http, 1);
        sl_test_expect(&server, GET("/health"), 200, NULL);
        sl_test_stop(&server);
        assert_int_equal(access(path, F_OK), -1);
        const sl_http_settings plain = sl_test_settings();
        sl_test_start(&server, &plain);
    }
}

static void test_log(void **state)
{
    (void)state;
    sl_http_settings settings = sl_test_settings();
    settings.log_format = SL_HTTP_LOG_TEXT;
    sl_test_restart(&server, &settings);
    sl_test_expect(&server, "GET /health?secret=1 HTTP/1.1\r\n" H "X-Request-Id: r7\r\n\r\n", 200,
                   NULL);
    sl_test_wait(&server.n_log_lines, 1);
    sl_test_stop(&server);
    assert_non_null(strstr(server.last_line, " 127.0.0.1 r7 GET /health 200 "));
    assert_null(strstr(server.last_line, "secret"));
    settings.log_format = SL_HTTP_LOG_JSON;
    sl_test_start(&server, &settings);
    sl_test_expect(&server, "G\xC3T / HTTP/1.1\r\n\r\n", 400, NULL);
    sl_test_expect(&server, "GET /items/7 HTTP/1.1\r\n" H "X-Request-Id: r8\r\n\r\n", 200, NULL);
    sl_test_wait(&server.n_log_lines, 2);
    sl_test_stop(&server);
    assert_non_null(strstr(server.all_lines, "\"status\": 400, \"complete\": true"));
    assert_non_null(strstr(
        server.last_line, "\"peer\": \"127.0.0.1\", \"id\": \"r8\", \"method\": \"GET\", \"path\": "
                          "\"/items/7\", \"route\": \"/items/{id}\", \"status\": 200, "
                          "\"complete\": true, \"bytes_in\": "));
}

static void test_counters(void **state)
{
    (void)state;
    for (int i = 0; i < 3; i++)
        sl_test_expect(&server, GET("/health"), 200, NULL);
    sl_test_expect(&server, GET("/nowhere"), 404, NULL);
    sl_test_expect(&server, "GET / HTTP/1.1\r\n\r\n", 400, NULL);
    const sl_http_counters counters = sl_test_counters(&server);
    assert_int_equal(counters.connections, 5);
    assert_int_equal(counters.malformed, 1);
    assert_true(counters.bytes_in > 100 && counters.bytes_out > 500);
    const sl_http_route_counters *by_route = sl_http_get_route_counters(server.http);
    assert_int_equal(by_route[0].by_class[2], 3);
    assert_int_equal(by_route[23].by_class[4], 2);
}

static void nothing(void *context, sl_http_request *request)
{
    (void)context, (void)request;
}

static void test_settings_refused(void **state)
{
    (void)state;
    sl_error err;
    sl_http *http = NULL;
    sl_http_settings settings = sl_test_settings();
    settings.n_addresses = 0;
    assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_ARGUMENT, "no address");
    const char *const wrong[] = {"localhost", ":80", "unix:", "::1:80", "[::1:80", "[]:80"};
    settings.n_addresses = 1;
    for (size_t i = 0; i < SL_COUNTOF(wrong); i++) {
        settings.addresses = &wrong[i];
        assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_ARGUMENT, wrong[i]);
    }
    const char *const unknown[] = {"no.such.host.invalid:80", "127.0.0.1:x", "192.0.2.1:80"};
    for (size_t i = 0; i < SL_COUNTOF(unknown); i++) {
        settings.addresses = &unknown[i];
        assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_IO, unknown[i]);
    }
    settings = sl_test_settings();
    settings.limits.head_ms = 0;
    assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_ARGUMENT, "time limit");
    settings = sl_test_settings();
    settings.limits.connections = 0;
    assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_ARGUMENT, "limit");
    const char *const paths[] = {
        "x", "/{", "/{}", "/a{b}", "/{a}b", "/{a...}/b", "/{a}/{b}/{c}/{d}/{e}"};
    for (size_t i = 0; i < SL_COUNTOF(paths); i++) {
        const sl_http_route route = {.method = SL_HTTP_GET, .path = paths[i], .handler = nothing};
        settings = sl_test_settings();
        settings.routes = &route;
        settings.n_routes = 1;
        assert_refused(sl_http_create(&settings, &http, &err), SL_ERR_ARGUMENT, paths[i]);
    }
    assert_null(http);
}

/* A server that never ran, with a connection waiting and a task posted. */
static void count_up(void *argument)
{
    ++*(int *)argument;
}

static void test_never_run(void **state)
{
    (void)state;
    sl_error err;
    sl_test_server other = {0};
    const sl_http_settings settings = sl_test_settings();
    assert_ok(sl_http_create(&settings, &other.http, &err));
    other.port = sl_http_port(other.http, 0);
    int n = 0;
    for (int i = 0; i < 1000; i++)
        assert_int_equal(sl_http_post(other.http, count_up, &n), SL_OK);
    const int fd = sl_test_connect(&other);
    sl_http_free(other.http);
    assert_int_equal(n, 1000);
    sl_test_close(fd);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_routes),
        TEST(test_refusals),
        TEST(test_methods),
        TEST(test_request_ids),
        TEST(test_error_shapes),
        TEST(test_streams),
        TEST(test_held_streams),
        TEST(test_late_answers),
        TEST(test_kept_connections),
        TEST(test_pipelining),
        TEST(test_bytes_one_by_one),
        TEST(test_100_continue),
        TEST(test_body_limits),
        TEST(test_head_limits),
        TEST(test_connection_limits),
        TEST(test_unix_socket),
        TEST(test_log),
        TEST(test_counters),
        TEST(test_settings_refused),
        TEST(test_never_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
