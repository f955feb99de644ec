/* The framing guard: heads and chunked bodies, byte by byte. */
#include "support.h"

#include <string.h>

#include "base/str.h"
#include "http_head.h"

enum { MAX_FIELDS = 8 };

static sl_http_limits small_limits(void)
{
    sl_http_limits limits = sl_http_limits_default();
    limits.target_bytes = 64;
    limits.head_bytes = 512;
    limits.headers = MAX_FIELDS;
    return limits;
}

/* Scans in pieces and parses. 0, or the status. */
static int read_head(const char *text, size_t piece, sl_http_field *fields, sl_http_head *head)
{
    const sl_http_limits limits = small_limits();
    const size_t n = strlen(text);
    sl_http_scan scan = {0};
    const char *why = NULL;
    for (size_t i = 0; i < n; i += piece) {
        size_t used = 0;
        const int result =
            sl_http_scan_bytes(&scan, &limits, text + i, sl_min_size(piece, n - i), &used);
        if (result == SL_HTTP_END) {
            assert_int_equal(scan.n_bytes, i + used);
            const int status = sl_http_head_parse(text, scan.n_bytes, &limits, fields, head, &why);
            assert_int_equal(status != 0, why != NULL);
            return status;
        }
        if (result != SL_HTTP_MORE)
            return result;
    }
    return -1; /* more is needed */
}

#define HOST "Host: localhost\r\n"

static const struct {
    const char *text;
    int status;
} statuses[] = {
    {"GET / HTTP/1.1\r\n" HOST "\r\n", 0},
    {"GET / HTTP/1.0\r\n\r\n", 0},
    {"GET / HTTP/1.1\r\n" HOST, -1},
    {"GET / HTTP/1.1\r\n" HOST "\r", -1},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\n", 0},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length:\t5 \r\n\r\n", 0},
    {"POST /a HTTP/1.1\r\n" HOST "Transfer-Encoding: Chunked\r\n\r\n", 0},
    {"BREW /a HTTP/1.1\r\n" HOST "\r\n", 0},
    {"GET http://localhost:1/a HTTP/1.1\r\n" HOST "\r\n", 0},
    {"OPTIONS * HTTP/1.1\r\n" HOST "\r\n", 0},
    {"GET / HTTP/1.1\r\nHost: [::1]:8080\r\n\r\n", 0},
    {"GET / HTTP/1.1\r\n" HOST "Expect: 100-continue\r\n\r\n", 0},
    {"GET / HTTP/1.1\r\n" HOST "X: caf\xC3\xA9\r\n\r\n", 0},
    {"GET / HTTP/1.1\r\n" HOST "Expect: a-miracle\r\n\r\n", 417},
    /* framing */
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 6\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: 5\r\nContent-Length: 5\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: 5, 5\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: +5\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: -1\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: 0x5\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: 5 5\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length:\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Content-Length: 18446744073709551617\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Transfer-Encoding: xchunked\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip, chunked\r\n\r\n", 400},
    {"POST /a HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
     400},
    {"POST /a HTTP/1.1\r\n" HOST "Transfer-Encoding:\r\n\r\n", 400},
    {"POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", 400},
    /* lines */
    {"GET / HTTP/1.1\n" HOST "\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: localhost\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "\n", 400},
    {"GET / HTTP/1.1\rX\r\n" HOST "\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A: b\rc\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A: b\r\n c\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n Host: localhost\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST ": b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A : b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A\xC3: b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A: b\x01\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST "A: b\x7F\r\n\r\n", 400},
    {"\r\nGET / HTTP/1.1\r\n" HOST "\r\n", 400}, /* the connection skips such lines */
    /* request lines */
    {"GET / HTTP/9.9\r\n" HOST "\r\n", 400},
    {"GET / HTTP/1.2\r\n" HOST "\r\n", 400},
    {"GET / HTTP/1.1 \r\n" HOST "\r\n", 400},
    {"GET / http/1.1\r\n" HOST "\r\n", 400},
    {"GET / HTTP/01.1\r\n" HOST "\r\n", 400},
    {"GET /\r\n" HOST "\r\n", 400},
    {"GET  / HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET\t/ HTTP/1.1\r\n" HOST "\r\n", 400},
    {"G@T / HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /a b HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /a\xC3\xA9 HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET /a#b HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET a HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET * HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET http://localhost HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET http:///a HTTP/1.1\r\n" HOST "\r\n", 400},
    {"GET ftp://localhost/a HTTP/1.1\r\n" HOST "\r\n", 400},
    {"CONNECT localhost:80 HTTP/1.1\r\n" HOST "\r\n", 400},
    {"\x16\x03\x01\x02", 400},
    /* hosts */
    {"GET / HTTP/1.1\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\n" HOST HOST "\r\n", 400},
    {"GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a:1x\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: a:123456\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400},
    {"GET / HTTP/1.1\r\nHost: [::1]x\r\n\r\n", 400},
    /* sizes: 64 bytes of target, 8 headers */
    {"GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa HTTP/1.1\r\n" HOST
     "\r\n",
     414},
    {"GET /aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
     414},
    {"GET / HTTP/1.1\r\n" HOST "a: 1\r\nb: 1\r\nc: 1\r\nd: 1\r\ne: 1\r\nf: 1\r\ng: 1\r\n\r\n", 0},
    {"GET / HTTP/1.1\r\n" HOST
     "a: 1\r\nb: 1\r\nc: 1\r\nd: 1\r\ne: 1\r\nf: 1\r\ng: 1\r\nh: 1\r\n\r\n",
     431},
};

static void test_statuses(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(statuses); i++) {
        for (size_t piece = 1; piece <= 200; piece = piece < 4 ? piece + 1 : piece * 3) {
            sl_http_field fields[MAX_FIELDS];
            sl_http_head head;
            const int status = read_head(statuses[i].text, piece, fields, &head);
            if (status != statuses[i].status)
                fail_msg("%s\nin pieces of %zu: %d, not %d", statuses[i].text, piece, status,
                         statuses[i].status);
        }
    }
}

static void test_long_head(void **state)
{
    (void)state;
    char text[600];
    memset(text, 'a', sizeof text);
    static const char start[] = "GET / HTTP/1.1\r\nHost: a\r\nX: ";
    memcpy(text, start, sizeof start - 1);
    sl_http_scan scan = {0};
    const sl_http_limits limits = small_limits();
    size_t used;
    assert_int_equal(sl_http_scan_bytes(&scan, &limits, text, sizeof text, &used), 431);
}

static void test_parts(void **state)
{
    (void)state;
    sl_http_field fields[MAX_FIELDS];
    sl_http_head head;
    assert_int_equal(read_head("POST /a%20b?c=d?e HTTP/1.1\r\nhost: Example.org:81\r\n"
                               "X-One:  two \t\r\nCONTENT-length: 0017\r\n"
                               "Connection: foo, Close\r\n\r\n",
                               7, fields, &head),
                     0);
    assert_int_equal(head.method, SL_HTTP_POST);
    assert_true(sl_str_is(head.path, "/a%20b"));
    assert_true(sl_str_is(head.query, "c=d?e"));
    assert_true(sl_str_is(head.host, "Example.org"));
    assert_true(sl_str_is(head.host_port, "Example.org:81"));
    assert_true(sl_str_is(sl_http_head_find(&head, "x-one"), "two"));
    assert_null(sl_http_head_find(&head, "x-on").data);
    assert_int_equal(head.framing, SL_HTTP_LENGTH);
    assert_int_equal(head.length, 17);
    assert_false(head.keep_alive);

    assert_int_equal(read_head("GET https://[::1]:1/x HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
                               3, fields, &head),
                     0);
    assert_true(sl_str_is(head.path, "/x"));
    assert_true(sl_str_is(head.host, "[::1]"));
    assert_true(head.keep_alive);
    assert_int_equal(head.minor, 0);
}

static void test_decoding(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        bool plus;
        const char *out; /* NULL: refused */
    } cases[] = {
        {"", false, ""},
        {"a+b%2Fc", false, "a+b/c"},
        {"a+b%2fc", true, "a b/c"},
        {"%C3%A9", false, "\u00E9"},
        {"%", false, NULL},
        {"%4", false, NULL},
        {"%4x", false, NULL},
        {"%00", false, NULL},
        {"%C3", false, NULL},
        {"%FF", false, NULL},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        char out[32];
        size_t n = 99;
        const bool good = sl_http_decode(sl_str_of(cases[i].in), cases[i].plus, out, &n);
        assert_int_equal(good, cases[i].out != NULL);
        if (good)
            assert_true(sl_str_is((sl_str){out, n}, cases[i].out));
    }
}

static void test_lists(void **state)
{
    (void)state;
    assert_true(sl_http_list_has(sl_str_of("a, b\t,close"), "CLOSE"));
    assert_false(sl_http_list_has(sl_str_of("closed, clos"), "close"));
    assert_false(sl_http_list_has(sl_str_of(""), "close"));
}

/* Takes a chunked body in pieces. SL_HTTP_END, SL_HTTP_MORE or 400; what belongs to it in out. */
static int take_all(const char *text, size_t n, size_t piece, char *out, size_t *n_used)
{
    sl_http_chunks chunks = {0};
    size_t n_out = 0;
    for (size_t i = 0; i < n; i += piece) {
        size_t left = sl_min_size(piece, n - i);
        const char *at = text + i;
        while (left > 0) {
            const char *data;
            size_t used = 0, n_data = 0;
            const int result = sl_http_chunks_take(&chunks, at, left, &used, &data, &n_data);
            assert_true(used > 0 && used <= left);
            memcpy(out + n_out, data, n_data);
            n_out += n_data;
            out[n_out] = '\0';
            at += used;
            left -= used;
            *n_used = (size_t)(at - text);
            if (result != SL_HTTP_MORE)
                return result;
        }
    }
    return SL_HTTP_MORE;
}

static void test_chunks(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int result;
        const char *body;
    } cases[] = {
        {"0\r\n\r\n", SL_HTTP_END, ""},
        {"5\r\nhello\r\n0\r\n\r\n", SL_HTTP_END, "hello"},
        {"1\r\na\r\n00002\r\nbc\r\n0\r\n\r\n", SL_HTTP_END, "abc"},
        {"A\r\n0123456789\r\na\r\n0123456789\r\n000\r\n\r\n", SL_HTTP_END, "01234567890123456789"},
        {"5;name=value\r\nhello\r\n0;x\r\n\r\n", SL_HTTP_END, "hello"},
        {"5\r\nhello\r\n0\r\nTrailer: x\r\nAnother: y\r\n\r\n", SL_HTTP_END, "hello"},
        {"5\r\nhel", SL_HTTP_MORE, "hel"},
        {"0\r\n", SL_HTTP_MORE, ""},
        {"\r\n0\r\n\r\n", 400, ""},
        {"5\nhello\r\n0\r\n\r\n", 400, ""},
        {"5\r\nhello0\r\n\r\n", 400, "hello"},
        {"5\r\nhello\n0\r\n\r\n", 400, "hello"},
        {"-5\r\nhello", 400, ""},
        {"+5\r\nhello", 400, ""},
        {"0x5\r\nhello", 400, ""},
        {" 5\r\nhello", 400, ""},
        {"5 \r\nhello", 400, ""},
        {"g\r\nhello", 400, ""},
        {"1000000000000000\r\n", 400, ""},
        {"ffffffffffffffff\r\n", 400, ""},
        {"5;a\x01\r\nhello", 400, ""},
        {"0\r\n folded\r\n\r\n", 400, ""},
        {"0\r\nA: b\n\r\n", 400, ""},
        {"0\r\n\rX", 400, ""},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        for (size_t piece = 1; piece < 60; piece++) {
            char out[64] = "";
            size_t used = 0;
            const int result = take_all(cases[i].text, strlen(cases[i].text), piece, out, &used);
            if (result != cases[i].result || strcmp(out, cases[i].body) != 0)
                fail_msg("%s\nin pieces of %zu: %d \"%s\"", cases[i].text, piece, result, out);
        }
    }
}

/* What follows a body is the next request: not a byte of it may be taken. */
static void test_chunks_leave_the_rest(void **state)
{
    (void)state;
    static const char text[] = "2\r\nab\r\n0\r\n\r\nGET / HTTP/1.1\r\n";
    char out[64];
    size_t used;
    assert_int_equal(take_all(text, sizeof text - 1, sizeof text, out, &used), SL_HTTP_END);
    assert_string_equal(text + used, "GET / HTTP/1.1\r\n");
}

static void test_endless_extensions(void **state)
{
    (void)state;
    char text[8192], out[8192];
    size_t used;
    memset(text, 'x', sizeof text);
    memcpy(text, "5;", 2);
    assert_int_equal(take_all(text, sizeof text, 100, out, &used), 400);
    memcpy(text, "0\r\n", 3);
    assert_int_equal(take_all(text, sizeof text, 100, out, &used), 400);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_statuses),
        cmocka_unit_test(test_long_head),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_chunks),
        cmocka_unit_test(test_chunks_leave_the_rest),
        cmocka_unit_test(test_endless_extensions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
