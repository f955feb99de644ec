/* Clients that are slow, leave, half leave, or never read. */
#include "http_client.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static sl_test_server server;

/* Times are long unless a test sets one: what ends something is then what the test is about. */
static sl_http_settings long_times(void)
{
    sl_http_settings settings = sl_test_settings();
    settings.limits.idle_ms = settings.limits.head_ms = settings.limits.read_ms = 3600000;
    settings.limits.body_ms = settings.limits.write_ms = 3600000;
    return settings;
}

static int set_up(void **state)
{
    (void)state;
    const sl_http_settings settings = long_times();
    sl_test_remember_resources();
    sl_test_start(&server, &settings);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    sl_test_stop(&server);
    sl_test_assert_resources();
    return 0;
}

#define H         "Host: localhost\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"

/* Waits until the server has no connection left. */
static void wait_for_none(void)
{
    for (int i = 0; i < 60000 && sl_test_counters(&server).connections_open > 0; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_int_equal(sl_test_counters(&server).connections_open, 0);
}

static void reset_on_close(int fd)
{
    const struct linger at_once = {1, 0};
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
}

/* ---- leaving ---- */

/* A client that closes, or resets, in each phase of a request. */
static void test_leaving(void **state)
{
    (void)state;
    static const struct {
        const char *request;
        bool held; /* there is a callback to wait for */
    } phases[] = {
        {"", false},
        {"GET /hold HT", false},
        {"GET /hold HTTP/1.1\r\n" H, false},
        {"POST /hold HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhe", false},
        {"POST /hold HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\nhe", false},
        {GET("/hold"), true},
        {"POST /hold HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello", true},
        {GET("/stream"), true},
        {GET("/hold") GET("/hold"), true}, /* with another one waiting */
    };
    unsigned n_closed = 0;
    for (unsigned round = 0; round < 20; round++) {
        for (size_t i = 0; i < SL_COUNTOF(phases); i++) {
            const unsigned held_before = atomic_load(&server.n_held);
            const int fd = sl_test_connect(&server);
            sl_test_send(fd, phases[i].request);
            if (phases[i].held)
                sl_test_wait(&server.n_held, held_before + 1);
            if (round % 2)
                reset_on_close(fd);
            sl_test_close(fd);
            n_closed += phases[i].held;
            sl_test_wait(&server.n_closed[SL_HTTP_CLIENT_GONE], n_closed);
        }
    }
    wait_for_none();
    const sl_http_counters counters = sl_test_counters(&server);
    assert_int_equal(counters.gone, n_closed);
    assert_int_equal(counters.requests_open, 0);
    assert_int_equal(counters.streams_open, 0);
    assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_CLIENT_GONE]), n_closed);
}

/* Streams of lines have no comments to send: the next line tells. */
static void test_leaving_lines(void **state)
{
    (void)state;
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, GET("/lines"));
    sl_test_wait(&server.n_held, 1);
    sl_test_close(fd);
    for (int i = 0; i < 1000 && atomic_load(&server.n_closed[SL_HTTP_CLIENT_GONE]) == 0; i++) {
        sl_test_send_event(&server, "{}");
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    sl_test_wait(&server.n_closed[SL_HTTP_CLIENT_GONE], 1);
}

/* While others stream, not one of them notices. */
static void test_leaving_beside_others(void **state)
{
    (void)state;
    enum { STREAMS = 20 };
    int fds[STREAMS];
    for (int i = 0; i < STREAMS; i++) {
        fds[i] = sl_test_connect(&server);
        sl_test_send(fds[i], GET("/stream"));
    }
    sl_test_wait(&server.n_held, STREAMS);
    for (int i = 0; i < STREAMS; i += 2)
        sl_test_close(fds[i]);
    sl_test_wait(&server.n_closed[SL_HTTP_CLIENT_GONE], STREAMS / 2);
    sl_test_send_event(&server, "{\"still\": \"here\"}");
    sl_test_answer_held(&server);
    for (int i = 1; i < STREAMS; i += 2) {
        assert_true(sl_test_read_until(fds[i], "data: {\"still\": \"here\"}\n\n"));
        assert_true(sl_test_read_until(fds[i], "0\r\n\r\n"));
        sl_test_close(fds[i]);
    }
    assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_CLIENT_GONE]), STREAMS / 2);
}

/* ---- half-closes ---- */

static void test_half_close(void **state)
{
    (void)state;
    /* Before anything is answered. */
    int fd = sl_test_connect(&server);
    sl_test_send(fd, GET("/hold"));
    sl_test_wait(&server.n_held, 1);
    shutdown(fd, SHUT_WR);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_CLIENT_GONE]), 0);
    sl_test_answer_held(&server);
    sl_test_answer answer = sl_test_read(fd, false); /* past the interim answer */
    assert_int_equal(answer.status, 200);
    assert_string_equal(answer.body, "held");
    sl_test_answer_free(&answer);
    assert_true(sl_test_at_end(fd));
    sl_test_close(fd);
    /* During a stream. */
    fd = sl_test_connect(&server);
    sl_test_send(fd, GET("/stream"));
    sl_test_wait(&server.n_held, 1);
    shutdown(fd, SHUT_WR);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    sl_test_send_event(&server, "{\"a\": 1}");
    assert_true(sl_test_read_until(fd, "data: {\"a\": 1}\n\n"));
    sl_test_answer_held(&server);
    assert_true(sl_test_read_until(fd, "0\r\n\r\n"));
    assert_true(sl_test_at_end(fd));
    sl_test_close(fd);
    assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_CLIENT_GONE]), 0);
    /* HTTP/1.0, where nothing can be asked. */
    fd = sl_test_connect(&server);
    sl_test_send(fd, "GET /hold HTTP/1.0\r\n\r\n");
    shutdown(fd, SHUT_WR);
    sl_test_wait(&server.n_held, 1);
    sl_test_answer_held(&server);
    sl_test_expect_held(fd);
    sl_test_close(fd);
}

/* All that was sent before is still answered. */
static void test_half_close_with_requests_waiting(void **state)
{
    (void)state;
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, GET("/items/1") GET("/late") GET("/big") GET("/items/4") "GET /items/5 HTT");
    shutdown(fd, SHUT_WR);
    const char *const bodies[] = {"1", "late", NULL, "4"};
    for (size_t i = 0; i < SL_COUNTOF(bodies); i++) {
        sl_test_answer answer = sl_test_read(fd, false);
        assert_int_equal(answer.status, 200);
        assert_false(answer.cut);
        if (bodies[i])
            assert_string_equal(answer.body, bodies[i]);
        sl_test_answer_free(&answer);
    }
    assert_true(sl_test_at_end(fd));
    sl_test_close(fd);
    wait_for_none();
}

/* First half, then whole. */
static void test_half_close_then_leaving(void **state)
{
    (void)state;
    const char *const requests[] = {GET("/hold"), GET("/stream")};
    for (unsigned i = 0; i < SL_COUNTOF(requests); i++) {
        const int fd = sl_test_connect(&server);
        sl_test_send(fd, requests[i]);
        sl_test_wait(&server.n_held, i + 1);
        shutdown(fd, SHUT_WR);
        assert_true(sl_test_read_until(fd, i ? ": \n\n" : "100 Continue\r\n\r\n"));
        assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_CLIENT_GONE]), i);
        sl_test_close(fd);
        sl_test_wait(&server.n_closed[SL_HTTP_CLIENT_GONE], i + 1); /* by the second probe */
    }
}

/* ---- not reading ---- */

static void test_never_reading_a_stream(void **state)
{
    (void)state;
    sl_http_settings settings = long_times();
    settings.limits.waiting_bytes = 256 * 1024;
    sl_test_restart(&server, &settings);
    char data[8192];
    memset(data, 'x', sizeof data - 1);
    data[sizeof data - 1] = '\0';
    const int other = sl_test_connect(&server);
    sl_test_send(other, GET("/hold"));
    sl_test_wait(&server.n_held, 1);
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, GET("/stream"));
    sl_test_wait(&server.n_held, 2);
    for (int i = 0; i < 100000 && atomic_load(&server.n_closed[SL_HTTP_CLIENT_SLOW]) == 0; i++)
        sl_test_send_event(&server, data);
    assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_CLIENT_SLOW]), 1);
    assert_int_equal(sl_test_counters(&server).slow, 1);
    sl_test_close(fd);
    sl_test_answer_held(&server);
    sl_test_expect_held(other);
    sl_test_close(other);
}

/* One whole answer larger than the system takes. */
static void test_never_reading_an_answer(void **state)
{
    (void)state;
    sl_http_settings settings = long_times();
    settings.limits.write_ms = 100;
    sl_test_restart(&server, &settings);
    const int fd = sl_test_connect(&server);
    const int small = 4096;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    for (int i = 0; i < 64; i++)
        sl_test_send(fd, GET("/big"));
    wait_for_none();
    sl_test_close(fd);
}

/* A client that reads slowly but reads gets everything. */
static void test_slow_reader(void **state)
{
    (void)state;
    sl_http_settings settings = long_times();
    settings.limits.write_ms = 10000;
    sl_test_restart(&server, &settings);
    const int fd = sl_test_connect(&server);
    const int small = 65536;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    sl_test_send(fd, GET("/big"));
    sl_test_answer answer = sl_test_read(fd, false);
    assert_int_equal(answer.n_body, 1 << 20);
    assert_false(answer.cut);
    sl_test_answer_free(&answer);
    sl_test_close(fd);
}

/* ---- slow senders ---- */

static void expect_timeout(const char *part_of_request, int status)
{
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, part_of_request);
    sl_test_answer answer = sl_test_read(fd, false);
    assert_int_equal(answer.status, status);
    sl_test_answer_free(&answer);
    assert_true(sl_test_at_end(fd));
    sl_test_close(fd);
}

static void test_slow_heads(void **state)
{
    (void)state;
    sl_http_settings settings = long_times();
    settings.limits.head_ms = 60;
    sl_test_restart(&server, &settings);
    expect_timeout("G", 408);
    expect_timeout("GET / HTTP/1.1\r\n" H, 408);
    /* Bytes that trickle do not gain time. */
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, "GET / HTTP/1.1\r\nX: ");
    for (int i = 0; i < 60000; i++) {
        char byte;
        sl_test_send(fd, "x");
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
            break;
    }
    sl_test_answer answer = sl_test_read(fd, false);
    assert_int_equal(answer.status, 408);
    sl_test_answer_free(&answer);
    sl_test_close(fd);
    assert_int_equal(sl_test_counters(&server).timeouts, 3);
}

static void test_slow_bodies(void **state)
{
    (void)state;
    sl_http_settings settings = long_times();
    settings.limits.read_ms = 60;
    sl_test_restart(&server, &settings);
    expect_timeout("POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\n", 408);
    expect_timeout("POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhell", 408);
    expect_timeout("POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\nhell", 408);
    settings.limits.read_ms = 3600000;
    settings.limits.body_ms = 100;
    sl_test_restart(&server, &settings);
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, "POST /echo HTTP/1.1\r\n" H "Content-Length: 1000000\r\n\r\n");
    for (int i = 0; i < 60000; i++) {
        char byte;
        sl_test_send(fd, "x");
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        if (recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1)
            break;
    }
    sl_test_answer answer = sl_test_read(fd, false);
    assert_int_equal(answer.status, 408);
    sl_test_answer_free(&answer);
    sl_test_close(fd);
}

static void test_idle(void **state)
{
    (void)state;
    sl_http_settings settings = long_times();
    settings.limits.idle_ms = 60;
    sl_test_restart(&server, &settings);
    const int never = sl_test_connect(&server), once = sl_test_connect(&server);
    sl_test_send(once, GET("/health"));
    sl_test_answer answer = sl_test_read(once, false);
    assert_int_equal(answer.status, 200);
    sl_test_answer_free(&answer);
    assert_true(sl_test_at_end(never));
    assert_true(sl_test_at_end(once));
    sl_test_close(never);
    sl_test_close(once);
    /* Nobody who waits for an answer is idle. */
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, GET("/hold"));
    sl_test_wait(&server.n_held, 1);
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    sl_test_answer_held(&server);
    sl_test_expect_held(fd);
    sl_test_close(fd);
}

static void test_keep_alive_comments(void **state)
{
    (void)state;
    sl_http_settings settings = long_times();
    settings.limits.keep_alive_ms = 20;
    sl_test_restart(&server, &settings);
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, GET("/stream"));
    for (int i = 0; i < 3; i++)
        assert_true(sl_test_read_until(fd, ": keep-alive\n\n"));
    sl_test_close(fd);
}

/* ---- crowds ---- */

/* Connections without a byte, half heads, half bodies: an honest client beside them is served, and
 * all descriptors come back. */
static void test_crowd(void **state)
{
    (void)state;
    enum { CROWD = 300 };
    sl_http_settings settings = long_times();
    settings.limits.idle_ms = settings.limits.head_ms = settings.limits.read_ms = 300;
    sl_test_restart(&server, &settings);
    int fds[CROWD];
    const char *const parts[] = {"", "GET / HTTP/1.1\r\nX: y\r\n",
                                 "POST /echo HTTP/1.1\r\n" H "Content-Length: 100\r\n\r\nabc"};
    for (int i = 0; i < CROWD; i++) {
        fds[i] = sl_test_connect(&server);
        sl_test_send(fds[i], parts[i % 3]);
    }
    for (int i = 0; i < 50; i++)
        sl_test_expect(&server, GET("/health"), 200, "ok");
    wait_for_none();
    for (int i = 0; i < CROWD; i++)
        sl_test_close(fds[i]);
}

/* What is sent ahead while an answer is awaited is not taken without end. */
static void test_sending_ahead(void **state)
{
    (void)state;
    const int fd = sl_test_connect(&server);
    sl_test_send(fd, GET("/hold"));
    sl_test_wait(&server.n_held, 1);
    char *bytes = malloc(1 << 20);
    memset(bytes, 'x', 1 << 20);
    size_t sent = 0;
    for (int quiet = 0; quiet < 100;) {
        const ssize_t n = send(fd, bytes, 1 << 20, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            sent += (size_t)n;
            quiet = 0;
            assert_true(sent < (size_t)64 << 20);
        } else {
            assert_true(errno == EAGAIN || errno == EWOULDBLOCK);
            quiet++;
            nanosleep(&(struct timespec){0, 1000000}, NULL);
        }
    }
    free(bytes);
    /* And still it is noticed when that client leaves. */
    sl_test_close(fd);
    sl_test_wait(&server.n_closed[SL_HTTP_CLIENT_GONE], 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_leaving),
        TEST(test_leaving_lines),
        TEST(test_leaving_beside_others),
        TEST(test_half_close),
        TEST(test_half_close_with_requests_waiting),
        TEST(test_half_close_then_leaving),
        TEST(test_never_reading_a_stream),
        TEST(test_never_reading_an_answer),
        TEST(test_slow_reader),
        TEST(test_slow_heads),
        TEST(test_slow_bodies),
        TEST(test_idle),
        TEST(test_keep_alive_comments),
        TEST(test_crowd),
        TEST(test_sending_ahead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
