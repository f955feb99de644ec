/* Each allocation of the HTTP layer fails once, and from some on all: the server goes on, gives
 * everything back, and answers again as soon as there is memory. The event library and OpenSSL
 * allocate for themselves: their failures are left out. */
#include "http_client.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define H         "Host: localhost\r\n"
#define GET(path) "GET " path " HTTP/1.1\r\n" H "\r\n"

static void test_creating(void **state)
{
    (void)state;
    char unix_name[64];
    snprintf(unix_name, sizeof unix_name, "unix:/tmp/sl_test_memory_%d.sock", (int)getpid());
    const char *const keys[] = {"a-key"}, *const hosts[] = {"localhost"},
                      *const origins[] = {"https://example.org"},
                      *const addresses[] = {"127.0.0.1:0", unix_name};
    sl_http_settings settings = sl_test_settings();
    settings.addresses = addresses;
    settings.n_addresses = 2;
    settings.keys = keys;
    settings.origins = origins;
    settings.n_keys = settings.n_origins = 1;
    for (unsigned with_hosts = 0; with_hosts < 2; with_hosts++) {
        settings.hosts = hosts;
        settings.n_hosts = with_hosts;
        const uint64_t blocks = sl_mem_get_stats().blocks;
        const unsigned fds = sl_test_count_fds();
        for (unsigned n = 1;; n++) {
            sl_http *http = NULL;
            sl_error err;
            assert_true(n < 100);
            sl_mem_fail_at(n, false);
            const sl_status status = sl_http_create(&settings, &http, &err);
            sl_mem_fail_at(0, false);
            if (status == SL_OK)
                sl_http_free(http);
            else
                assert_refused(status, SL_ERR_MEMORY, "out of memory");
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
            assert_int_equal(sl_test_count_fds(), fds);
            if (status == SL_OK)
                break;
        }
    }
}

/* Requests whose answers end their connections, so that a client can read to the end. */
static const char *const requests[] = {
    "GET /items/a%20b HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
    "POST /echo HTTP/1.1\r\n" H "Connection: close\r\nContent-Length: 5\r\n\r\nhello",
    "POST /echo HTTP/1.1\r\n" H "Connection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
    "5\r\nhello\r\n0\r\n\r\n",
    "GET /events HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
    "GET /broken HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
    "GET /late HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
    "GET /anthropic HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
    "GET /nowhere HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
    "PUT /items/a HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
    "GET /query?q=a%20b HTTP/1.1\r\n" H "Connection: close\r\n\r\n",
    "GET / HTTP/1.1\r\n\r\n",
};

/* The first status that comes, 0 for none. No allocations of ours. */
static int ask(const sl_test_server *server, const char *request)
{
    char text[8192];
    size_t n = 0;
    ssize_t got;
    const int fd = sl_test_connect(server);
    sl_test_send(fd, request);
    shutdown(fd, SHUT_WR);
    while (n < sizeof text - 1 && (got = recv(fd, text + n, sizeof text - 1 - n, 0)) > 0)
        n += (size_t)got;
    text[n] = '\0';
    sl_test_close(fd);
    int status = 0;
    const char *at = text;
    while (strncmp(at, "HTTP/1.1 100 ", 13) == 0)
        at = strstr(at, "\r\n\r\n") + 4;
    if (*at != '\0')
        assert_int_equal(sscanf(at, "HTTP/1.1 %d ", &status), 1);
    return status;
}

static void wait_for_blocks(uint64_t blocks)
{
    for (int i = 0; i < 60000 && sl_mem_get_stats().blocks != blocks; i++)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
}

static void test_serving(void **state)
{
    (void)state;
    sl_test_server server;
    sl_http_settings settings = sl_test_settings();
    settings.log_format = SL_HTTP_LOG_JSON;
    const uint64_t blocks_before = sl_mem_get_stats().blocks;
    const unsigned fds = sl_test_count_fds();
    sl_test_start(&server, &settings);
    const uint64_t blocks = sl_mem_get_stats().blocks;
    for (size_t i = 0; i < SL_COUNTOF(requests); i++) {
        server.all_lines[0] = '\0';
        const int status = ask(&server, requests[i]);
        assert_true(status >= 200);
        wait_for_blocks(blocks);
        for (unsigned forever = 0; forever < 2; forever++) {
            unsigned n_same = 0;
            for (unsigned n = 1; n_same < 3; n++) {
                assert_true(n < 200);
                server.all_lines[0] = '\0';
                sl_mem_fail_at(n, forever);
                const int failing = ask(&server, requests[i]);
                sl_mem_fail_at(0, false);
                assert_true(failing == 0 || failing == 503 || failing == 500 || failing == status ||
                            failing == 200);
                /* The log may go without a line, so the same answer thrice tells the end. */
                n_same = failing == status ? n_same + 1 : 0;
                wait_for_blocks(blocks);
            }
        }
        assert_int_equal(ask(&server, requests[i]), status);
    }
    assert_true(sl_test_counters(&server).out_of_memory > 0);
    sl_test_stop(&server);
    assert_int_equal(sl_mem_get_stats().blocks, blocks_before);
    assert_int_equal(sl_test_count_fds(), fds);
}

static void test_posting(void **state)
{
    (void)state;
    sl_test_server server;
    const sl_http_settings settings = sl_test_settings();
    sl_test_start(&server, &settings);
    sl_mem_fail_at(1, false);
    assert_int_equal(sl_http_post(server.http, free, NULL), SL_ERR_MEMORY);
    sl_mem_fail_at(0, false);
    assert_int_equal(sl_http_post(server.http, free, NULL), SL_OK);
    sl_test_stop(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_creating),
        cmocka_unit_test(test_serving),
        cmocka_unit_test(test_posting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
