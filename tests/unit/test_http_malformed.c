/* Requests that no client sends by accident: named ones, and thousands of mutated ones. Each is
 * answered 400 (or a more telling 4xx) once and the connection ends; the server goes on, and a
 * stream beside them never notices. */
#include "http_client.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

static sl_test_server server;

static int set_up(void **state)
{
    (void)state;
    sl_http_settings settings = sl_test_settings();
    settings.limits.linger_ms = 20;
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

#define H        "Host: localhost\r\n"
#define SMUGGLED "GET /items/smuggled HTTP/1.1\r\n" H "\r\n"

typedef struct raw {
    const char *name;
    const char *bytes;
    size_t n; /* 0: to the NUL */
} raw;

#define RAW(name, text) \
    { \
        name, text, sizeof text - 1 \
    }

static const raw named[] = {
    RAW("length and chunks", "POST /echo HTTP/1.1\r\n" H "Content-Length: 6\r\n"
                             "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" SMUGGLED),
    RAW("two lengths", "POST /echo HTTP/1.1\r\n" H "Content-Length: 0\r\nContent-Length: 5\r\n\r\n"
                       "hello" SMUGGLED),
    RAW("the same length twice",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello"),
    RAW("a signed length", "POST /echo HTTP/1.1\r\n" H "Content-Length: +5\r\n\r\nhello"),
    RAW("a negative length", "POST /echo HTTP/1.1\r\n" H "Content-Length: -1\r\n\r\nhello"),
    RAW("a length past 2^64",
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 18446744073709551617\r\n\r\nh"),
    RAW("another coding", "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: xchunked\r\n\r\n"
                          "5\r\nhello\r\n0\r\n\r\n" SMUGGLED),
    RAW("a space before the colon", "GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n"),
    RAW("no host", "GET /health HTTP/1.1\r\n\r\n"),
    RAW("two hosts", "GET /health HTTP/1.1\r\n" H "Host: example.org\r\n\r\n"),
    RAW("another version", "GET /health HTTP/9.9\r\n" H "\r\n"),
    RAW("NUL in a header", "GET /health HTTP/1.1\r\n" H "X: a\0b\r\n\r\n"),
    RAW("a folded line", "GET /health HTTP/1.1\r\n" H "X: a\r\n b\r\n\r\n"),
    RAW("bare LF", "GET /health HTTP/1.1\n" H "\n"),
    RAW("bare CR", "GET /health HTTP/1.1\r\n" H "X: a\rContent-Length: 5\r\n\r\n"),
    RAW("a malformed chunk", "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
                             "5\r\nhello0\r\n\r\n" SMUGGLED),
    RAW("a chunk of 2^64 bytes", "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n"
                                 "10000000000000000\r\nhello"),
    RAW("TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"),
    RAW("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
};

/* Reads all that comes. What was answered first is *first, and how many answers in *n. */
static void read_all(int fd, int *first, unsigned *n)
{
    char text[65536];
    size_t n_bytes = 0;
    *first = 0;
    *n = 0;
    for (;;) {
        const ssize_t got = recv(fd, text + n_bytes, sizeof text - 1 - n_bytes, 0);
        if (got <= 0)
            break;
        n_bytes += (size_t)got;
    }
    text[n_bytes] = '\0';
    for (const char *at = text; (at = strstr(at, "HTTP/1.1 ")) != NULL; at += 9) {
        int status = 0;
        if (sscanf(at, "HTTP/1.1 %d ", &status) != 1)
            continue; /* a sentence about versions */
        if (*n == 0)
            *first = status;
        ++*n;
    }
    assert_null(strstr(text, "smuggled"));
}

static void test_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(named); i++) {
        int status;
        unsigned n;
        const int fd = sl_test_connect(&server);
        sl_test_send_bytes(fd, named[i].bytes, named[i].n);
        read_all(fd, &status, &n);
        sl_test_close(fd);
        if (status != 400 || n != 1)
            fail_msg("%s: %u answers, the first %d", named[i].name, n, status);
    }
    assert_int_equal(sl_test_counters(&server).malformed, SL_COUNTOF(named));
}

/* ---- generated ---- */

typedef struct text {
    char bytes[4096];
    size_t n;
} text;

static void put(text *out, const char *s, size_t n)
{
    assert_true(n < sizeof out->bytes - out->n);
    memcpy(out->bytes + out->n, s, n);
    out->n += n;
}

static void put_str(text *out, const char *s)
{
    put(out, s, strlen(s));
}

/* Lines that make the framing ambiguous, whatever else stands in the head. */
static const char *const ambiguous[] = {
    "Content-Length: 5\r\nContent-Length: 7\r\n",
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\ntransfer-encoding: identity\r\n",
    "Transfer-Encoding: \"chunked\"\r\n",
    "Transfer-Encoding: chunked;q=1\r\n",
    "Transfer-Encoding: chunked, identity\r\n",
    "Transfer-Encoding: identity\r\n",
    "Transfer-Encoding\t: chunked\r\n",
    "Transfer-Encoding : chunked\r\n",
    " Transfer-Encoding: chunked\r\n",
    "X: y\r\n Transfer-Encoding: chunked\r\n",
    "X: y\n Content-Length: 5\r\n",
    "X: y\nContent-Length: 5\r\n",
    "X: y\rContent-Length: 5\r\n",
    "Content-Length: 5,5\r\n",
    "Content-Length: 5 \x0b\r\n",
    "Content-Length: 0x5\r\n",
    "Content-Length: 5e0\r\n",
    "Content-Length: 5.0\r\n",
    "Content-Length: \"5\"\r\n",
    "Content-Length: 99999999999999999999\r\n",
    "Content-Length: +5\r\n",
    "Content-Length: -0\r\n",
    "Content-Length : 5\r\n",
    "Content-Length\r\n",
    "Content-Length:\r\n",
    "Content-Length: 5\r\nHost: localhost\r\n", /* a second one */
    "Content Length: 5\r\n",
    ": 5\r\n",
};

static const char *const harmless[] = {
    "Accept: */*\r\n",
    "User-Agent: test/1.0\r\n",
    "X-Empty:\r\n",
    "Cookie: a=b; c=d\r\n",
    "Accept-Encoding: gzip, deflate\r\n",
    "X-Long: aaaaaaaaaaaaaaaaaaaaaa\r\n",
    "Connection: close\r\n",
    "Content-Type: text/plain\r\n",
    "X-Utf8: \xC3\xA9\r\n",
};

static const char *const starts[] = {
    "POST /echo HTTP/1.1\r\n",
    "POST /json HTTP/1.1\r\n",
    "PUT /echo HTTP/1.1\r\n",
    "POST /small?a=b HTTP/1.1\r\n",
};

/* One request with one ambiguous piece among harmless ones, in random order. */
static void make_ambiguous(sl_test_rng *rng, text *out)
{
    out->n = 0;
    put_str(out, starts[sl_test_rng_below(rng, SL_COUNTOF(starts))]);
    const unsigned n = sl_test_rng_below(rng, 5), at = sl_test_rng_below(rng, n + 1);
    put_str(out, H);
    for (unsigned i = 0; i <= n; i++) {
        put_str(out, i == at ? ambiguous[sl_test_rng_below(rng, SL_COUNTOF(ambiguous))]
                             : harmless[sl_test_rng_below(rng, SL_COUNTOF(harmless))]);
    }
    put_str(out, "\r\n");
    if (sl_test_rng_below(rng, 2))
        put_str(out, "5\r\nhello\r\n0\r\n\r\n");
    else
        put_str(out, "hello");
    put_str(out, SMUGGLED);
}

/* A sound request with a few bytes changed, removed, doubled or added anywhere. */
static void make_mutated(sl_test_rng *rng, text *out)
{
    static const char *const sound[] = {
        "POST /echo HTTP/1.1\r\n" H "Content-Length: 5\r\n\r\nhello",
        "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "GET /items/a?b=c HTTP/1.1\r\n" H "Accept: */*\r\n\r\n",
        "DELETE /items/a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    };
    static const char special[] = "\r\n\0\t :;,%/?#\x7f\xff\x0b=0159afG+-\"";
    out->n = 0;
    put_str(out, sound[sl_test_rng_below(rng, SL_COUNTOF(sound))]);
    for (unsigned n = 1 + sl_test_rng_below(rng, 4); n > 0; n--) {
        const size_t at = sl_test_rng_below(rng, (uint32_t)out->n);
        const char c = special[sl_test_rng_below(rng, sizeof special - 1)];
        switch (sl_test_rng_below(rng, 4)) {
        case 0:
            out->bytes[at] = c;
            break;
        case 1:
            memmove(out->bytes + at, out->bytes + at + 1, out->n - at - 1);
            out->n--;
            break;
        case 2:
            memmove(out->bytes + at + 1, out->bytes + at, out->n - at);
            out->n++;
            break;
        default:
            memmove(out->bytes + at + 1, out->bytes + at, out->n - at);
            out->bytes[at] = c;
            out->n++;
            break;
        }
    }
}

static int ask(const text *request, unsigned *n)
{
    int status;
    const int fd = sl_test_connect(&server);
    sl_test_send_bytes(fd, request->bytes, request->n);
    shutdown(fd, SHUT_WR);
    read_all(fd, &status, n);
    sl_test_close(fd);
    return status;
}

static void show(const text *request, int status, unsigned n)
{
    fail_msg("%.*s\ngave %d and %u answers", (int)request->n, request->bytes, status, n);
}

static void test_generated(void **state)
{
    (void)state;
    const unsigned rounds = sl_test_shortened() ? 1100 : 3000;
    sl_test_rng rng = sl_test_rng_of(7);
    const int stream = sl_test_connect(&server);
    sl_test_send(stream, "GET /stream HTTP/1.1\r\n" H "\r\n");
    sl_test_wait(&server.n_held, 1);
    assert_true(sl_test_read_until(stream, "\r\n\r\n"));
    unsigned n_refused = 0;
    for (unsigned i = 0; i < rounds; i++) {
        text request;
        unsigned n;
        make_ambiguous(&rng, &request);
        int status = ask(&request, &n);
        if (status < 400 || status > 499 || n != 1)
            show(&request, status, n);
        make_mutated(&rng, &request);
        status = ask(&request, &n);
        if (status >= 500)
            show(&request, status, n);
        n_refused += status >= 400;
        if (i % 50 == 0) {
            char expected[32];
            snprintf(expected, sizeof expected, "data: %u\n\n", i);
            char data[16];
            snprintf(data, sizeof data, "%u", i);
            sl_test_send_event(&server, data);
            assert_true(sl_test_read_until(stream, expected));
            sl_test_expect(&server, "GET /health HTTP/1.1\r\n" H "\r\n", 200, "ok");
        }
    }
    print_message("%u ambiguous requests refused, %u of %u mutated ones\n", rounds, n_refused,
                  rounds);
    assert_true(n_refused > rounds / 4);
    assert_int_equal(atomic_load(&server.n_closed[SL_HTTP_CLIENT_GONE]), 0);
    sl_test_answer_held(&server);
    assert_true(sl_test_read_until(stream, "0\r\n\r\n"));
    sl_test_close(stream);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_named, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_generated, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
