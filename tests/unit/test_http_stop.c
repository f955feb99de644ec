/* Stopping with requests in flight, tasks of other threads, and signals. */
#include "http_client.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

static sl_test_server server;
static sl_http_settings settings;

static int set_up(void **state)
{
    (void)state;
    settings = sl_test_settings();
    settings.limits.drain_ms = 3600000;
    sl_test_remember_resources();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    sl_test_assert_resources();
    return 0;
}

#define H         "Host: localhost\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"

/* Waits until the server has read heads and bodies of so many bytes. */
static void wait_for_bytes(uint64_t n)
{
    for (int i = 0; i < 60000 && sl_test_counters(&server).bytes_in < n; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_true(sl_test_counters(&server).bytes_in >= n);
}

static void expect_end(int fd)
{
    assert_true(sl_test_at_end(fd));
    sl_test_close(fd);
}

/* What is in flight completes; what is idle ends; new requests hear that it is over. */
static void test_drain(void **state)
{
    (void)state;
    sl_test_start(&server, &settings);
    const int idle = sl_test_connect(&server), stream = sl_test_connect(&server),
              held = sl_test_connect(&server), probe = sl_test_connect(&server),
              half = sl_test_connect(&server);
    sl_test_send(idle, GET("/health"));
    sl_test_answer answer = sl_test_read(idle, false);
    sl_test_answer_free(&answer);
    sl_test_send(stream, GET("/stream"));
    sl_test_wait(&server.n_held, 1);
    sl_test_send(held, GET("/hold") GET("/health"));
    sl_test_wait(&server.n_held, 2);
    sl_test_send(probe, "GET /health HTTP/1.1\r\n" H);
    sl_test_send(half, "GET /items/1 HTTP/1.1\r\n" H);
    wait_for_bytes(1);
    assert_false(sl_http_draining(server.http));
    sl_http_stop(server.http);
    assert_true(sl_http_draining(server.http));
    expect_end(idle);
    /* Routes that tell of health still answer. */
    sl_test_send(probe, "\r\n");
    answer = sl_test_read(probe, false);
    assert_int_equal(answer.status, 200);
    sl_test_answer_free(&answer);
    expect_end(probe);
    sl_test_send(half, "\r\n");
    answer = sl_test_read(half, false);
    assert_int_equal(answer.status, 503);
    char text[32];
    assert_true(sl_test_header(&answer, "Retry-After", text, sizeof text));
    assert_true(sl_test_header(&answer, "Connection", text, sizeof text));
    assert_string_equal(text, "close");
    sl_test_answer_free(&answer);
    expect_end(half);
    sl_test_send_event(&server, "{\"still\": 1}");
    assert_true(sl_test_read_until(stream, "data: {\"still\": 1}\n\n"));
    sl_test_answer_held(&server);
    assert_true(sl_test_read_until(stream, "0\r\n\r\n"));
    expect_end(stream);
    sl_test_expect_held(held);
    expect_end(held);
    sl_test_join(&server);
    assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_STOPPED]), 0);
    sl_test_free(&server);
}

/* Who connected before the stop, even unseen, hears of it. */
static void test_waiting_in_the_backlog(void **state)
{
    (void)state;
    enum { CLIENTS = 50 };
    sl_test_start(&server, &settings);
    int fds[CLIENTS];
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = sl_test_connect(&server);
    sl_http_stop(server.http);
    for (int i = 0; i < CLIENTS; i++)
        sl_test_send(fds[i], GET("/items/1"));
    for (int i = 0; i < CLIENTS; i++) {
        sl_test_answer answer = sl_test_read(fds[i], false);
        assert_true(answer.status == 503 || answer.status == 200);
        sl_test_answer_free(&answer);
        sl_test_close(fds[i]);
    }
    sl_test_join(&server);
    sl_test_free(&server);
}

static void expect_cut(int stream, int lines, int held)
{
    assert_true(
        sl_test_read_until(stream, "data: {\"error\": {\"message\": \"The server was told"));
    assert_true(sl_test_read_until(stream, "0\r\n\r\n"));
    expect_end(stream);
    assert_true(sl_test_read_until(lines, "{\"error\": {\"message\": \"The server was told"));
    assert_true(sl_test_read_until(lines, "0\r\n\r\n"));
    expect_end(lines);
    sl_test_answer answer = sl_test_read(held, false);
    assert_int_equal(answer.status, 503);
    sl_test_answer_free(&answer);
    expect_end(held);
    sl_test_join(&server);
    assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_STOPPED]), 3);
    sl_test_free(&server);
}

/* By time, and by a second call. */
static void test_cut(void **state)
{
    (void)state;
    for (int round = 0; round < 2; round++) {
        settings.limits.drain_ms = round == 0 ? 50 : 3600000;
        sl_test_start(&server, &settings);
        const int stream = sl_test_connect(&server), lines = sl_test_connect(&server),
                  held = sl_test_connect(&server), half = sl_test_connect(&server);
        sl_test_send(stream, GET("/stream"));
        sl_test_send(lines, GET("/lines"));
        sl_test_send(held, GET("/hold"));
        static const char part[] = "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhe";
        sl_test_send(half, part);
        sl_test_wait(&server.n_held, 3);
        wait_for_bytes(strlen(GET("/stream") GET("/lines") GET("/hold")) + strlen(part));
        sl_http_stop(server.http);
        if (round == 1)
            sl_http_stop(server.http);
        sl_test_answer answer = sl_test_read(half, false);
        assert_int_equal(answer.status, 503);
        sl_test_answer_free(&answer);
        expect_end(half);
        expect_cut(stream, lines, held);
    }
}

/* A client that does not read cannot keep the server from ending. */
static void test_stop_beside_one_who_never_reads(void **state)
{
    (void)state;
    settings.limits.drain_ms = 20;
    sl_test_start(&server, &settings);
    const int fd = sl_test_connect(&server);
    for (int i = 0; i < 64; i++)
        sl_test_send(fd, GET("/big"));
    wait_for_bytes(1);
    sl_http_stop(server.http);
    sl_test_join(&server);
    sl_test_free(&server);
    sl_test_close(fd);
}

static sl_http *volatile to_stop;

static void on_signal(int number)
{
    (void)number;
    sl_http_stop(to_stop);
}

static void test_stop_in_a_signal_handler(void **state)
{
    (void)state;
    sl_test_start(&server, &settings);
    to_stop = server.http;
    struct sigaction action = {.sa_handler = on_signal}, before;
    sigaction(SIGUSR1, &action, &before);
    raise(SIGUSR1);
    sl_test_join(&server);
    sigaction(SIGUSR1, &before, NULL);
    sl_test_free(&server);
}

static void test_stop_before_run(void **state)
{
    (void)state;
    sl_error err;
    sl_http *http;
    assert_ok(sl_http_create(&settings, &http, &err));
    sl_http_stop(http);
    assert_ok(sl_http_run(http, &err));
    sl_http_free(http);
}

/* ---- other threads ---- */

enum { THREADS = 4, STREAMS = 40, TASKS = 2000 };

typedef struct poster {
    pthread_t thread;
    unsigned i;
} poster;

typedef struct line_task {
    sl_http_task task; /* first: the task is the line */
    sl_http_request *request;
    char data[32];
    bool last;
} line_task;

static atomic_uint n_sent, n_late;

static void write_line(sl_http_task *task)
{
    line_task *line = (line_task *)(void *)task;
    const bool there =
        line->last ? sl_http_stream_end(line->request)
                   : sl_http_stream_event(line->request, NULL, line->data, strlen(line->data));
    atomic_fetch_add(there ? &n_sent : &n_late, 1);
    sl_http_unref(line->request);
    free(line);
}

/* Each thread writes to its own streams, in order, and looks whether they are gone. */
static void *post_lines(void *argument)
{
    const poster *own = argument;
    for (unsigned n = 0; n <= TASKS; n++) {
        for (unsigned i = own->i; i < STREAMS; i += THREADS) {
            sl_http_request *request = server.held[i];
            if (n % 64 == 0 && sl_http_gone(request))
                continue;
            line_task *line = malloc(sizeof *line);
            *line = (line_task){
                .task.run = write_line, .request = sl_http_ref(request), .last = n == TASKS};
            snprintf(line->data, sizeof line->data, "%u", n);
            sl_http_post_task(server.http, &line->task);
        }
        if (n % 16 == 0)
            nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    return NULL;
}

static void forget_closed(void *argument)
{
    (void)argument;
    for (unsigned i = 0; i < STREAMS; i++)
        sl_http_on_closed(server.held[i], NULL, NULL);
}

static void *read_stream(void *argument)
{
    const int fd = *(const int *)argument;
    char *text = malloc(1 << 20);
    size_t n = 0;
    ssize_t got;
    while ((got = recv(fd, text + n, ((size_t)1 << 20) - 1 - n, 0)) > 0) {
        n += (size_t)got;
        text[n] = '\0';
        if (n > 5 && memcmp(text + n - 5, "0\r\n\r\n", 5) == 0)
            break;
    }
    /* Every event, in order. */
    const char *at = text;
    unsigned expected = 0;
    while ((at = strstr(at, "data: ")) != NULL) {
        if (strtoul(at + 6, NULL, 10) != expected)
            break;
        expected++;
        at += 6;
    }
    free(text);
    return expected == TASKS ? argument : NULL;
}

static void test_tasks_of_many_threads(void **state)
{
    (void)state;
    settings.limits.waiting_bytes = (size_t)16 << 20;
    sl_test_start(&server, &settings);
    int fds[STREAMS];
    pthread_t readers[STREAMS];
    poster posters[THREADS];
    for (unsigned i = 0; i < STREAMS; i++) {
        fds[i] = sl_test_connect(&server);
        sl_test_send(fds[i], GET("/stream"));
        sl_test_wait(&server.n_held, i + 1);
    }
    sl_test_on_loop(&server, forget_closed, NULL); /* the references stay */
    for (unsigned i = 0; i < STREAMS; i++) {
        if (i % 10 == 9) /* some leave at once */
            sl_test_close(fds[i]);
        else
            assert_int_equal(pthread_create(&readers[i], NULL, read_stream, &fds[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        posters[i].i = i;
        assert_int_equal(pthread_create(&posters[i].thread, NULL, post_lines, &posters[i]), 0);
    }
    for (unsigned i = 0; i < 20; i++)
        sl_test_expect(&server, GET("/late"), 200, "late");
    for (unsigned i = 0; i < THREADS; i++)
        pthread_join(posters[i].thread, NULL);
    for (unsigned i = 0; i < STREAMS; i++) {
        if (i % 10 == 9)
            continue;
        void *good;
        pthread_join(readers[i], &good);
        assert_non_null(good);
        sl_test_close(fds[i]);
    }
    sl_test_stop(&server);
    assert_true(atomic_load(&n_sent) >= (STREAMS - STREAMS / 10) * (TASKS + 1));
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        TEST(test_drain),
        TEST(test_waiting_in_the_backlog),
        TEST(test_cut),
        TEST(test_stop_beside_one_who_never_reads),
        TEST(test_stop_in_a_signal_handler),
        TEST(test_stop_before_run),
        TEST(test_tasks_of_many_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
