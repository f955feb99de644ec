/* Error sentences, the log callback, the clock and the version. */
#include "support.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"

static void test_sentences(void **state)
{
    (void)state;
    sl_error err = {0};
    assert_int_equal(sl_fail(&err, SL_ERR_FORMAT, "%s: tensor %d", "a.gguf", 7), SL_ERR_FORMAT);
    assert_int_equal(err.status, SL_ERR_FORMAT);
    assert_string_equal(err.message, "a.gguf: tensor 7");
    assert_int_equal(sl_fail_within(&err, SL_ERR_IO, "model %d", 3), SL_ERR_IO);
    assert_int_equal(err.status, SL_ERR_IO);
    assert_string_equal(err.message, "model 3: a.gguf: tensor 7");
    /* The sentence may quote the one before. */
    sl_fail(&err, SL_ERR_LIMIT, "(%s)", err.message);
    assert_string_equal(err.message, "(model 3: a.gguf: tensor 7)");
    sl_error_clear(&err);
    assert_int_equal(err.status, SL_OK);
    assert_string_equal(err.message, "");
    /* Nobody has to listen. */
    assert_int_equal(sl_fail(NULL, SL_ERR_IO, "%d", 1), SL_ERR_IO);
    assert_int_equal(sl_fail_within(NULL, SL_ERR_IO, "%d", 1), SL_ERR_IO);
}

static void test_hostile_text(void **state)
{
    (void)state;
    sl_error err;
    sl_fail(&err, SL_ERR_FORMAT, "\"%s\"", "a\x1b[31m\nb\x7f\xC2\x9B\xFF\xC3\xA9");
    assert_string_equal(err.message, "\"a?[31m?b??\xEF\xBF\xBD\xC3\xA9\"");
}

static void test_long_text(void **state)
{
    (void)state;
    char text[2000];
    for (size_t lead = 0; lead < 4; lead++) {
        /* Characters of four bytes, so that the end falls on each of their bytes. */
        memset(text, 'x', lead);
        for (size_t i = lead; i + 4 < sizeof text; i += 4)
            memcpy(text + i, "\xF0\x9F\x98\x80", 5);
        sl_error err;
        sl_fail(&err, SL_ERR_FORMAT, "%s", text);
        size_t n = strlen(err.message);
        assert_true(n < SL_ERROR_MESSAGE_BYTES && n > SL_ERROR_MESSAGE_BYTES - 8);
        assert_true(sl_utf8_valid(err.message, n, NULL));
        assert_null(strstr(err.message, "\xEF\xBF\xBD")); /* cut, not spoilt */
        sl_fail_within(&err, SL_ERR_FORMAT, "%s", text);
        n = strlen(err.message);
        assert_true(n < SL_ERROR_MESSAGE_BYTES && n > SL_ERROR_MESSAGE_BYTES - 8);
        assert_true(sl_utf8_valid(err.message, n, NULL));
        assert_null(strstr(err.message, "\xEF\xBF\xBD"));
        sl_fail(&err, SL_ERR_FORMAT, "%.490s", text);
        sl_fail_within(&err, SL_ERR_FORMAT, "where it happened, at some length");
        assert_int_equal(strncmp(err.message, "where it happened, at some length: ", 35), 0);
        assert_true(sl_utf8_valid(err.message, strlen(err.message), NULL));
    }
}

/* Whatever the length of a name, the end of the sentence says what went wrong. */
static void test_long_name(void **state)
{
    (void)state;
    static const char reason[] = ": cannot be opened: No such file or directory";
    for (size_t n = 1; n < 4096; n += n < 600 ? 1 : 97) {
        for (int kind = 0; kind < 3; kind++) {
            char name[4096];
            sl_error err;
            /* ASCII, characters of two bytes, bytes that become three each. */
            for (size_t i = 0; i < n; i++)
                name[i] = kind == 0 ? 'a' : kind == 2 ? '\xFF' : i % 2 == 0 ? '\xC3' : '\xA9';
            name[n] = '\0';
            sl_fail(&err, SL_ERR_IO, "/%s%s", name, reason);
            const size_t length = strlen(err.message);
            assert_true(length < SL_ERROR_MESSAGE_BYTES);
            assert_true(sl_utf8_valid(err.message, length, NULL));
            assert_int_equal(err.message[0], '/');
            assert_string_equal(err.message + length - (sizeof reason - 1), reason);
            if (n < 400 && kind == 0)
                assert_int_equal(length, 1 + n + sizeof reason - 1);
            if (n > 600)
                assert_non_null(strstr(err.message, "..."));
        }
    }
}

static sl_status tries(sl_status status)
{
    SL_TRY(status);
    return SL_ERR_ARGUMENT;
}

static sl_status checks(sl_status given, int *done_reached)
{
    sl_status status;
    SL_CHECK(given);
    status = SL_ERR_ARGUMENT;
done:
    ++*done_reached;
    return status;
}

static void test_macros(void **state)
{
    (void)state;
    int done_reached = 0;
    assert_int_equal(tries(SL_OK), SL_ERR_ARGUMENT);
    assert_int_equal(tries(SL_ERR_IO), SL_ERR_IO);
    assert_int_equal(checks(SL_OK, &done_reached), SL_ERR_ARGUMENT);
    assert_int_equal(checks(SL_ERR_LIMIT, &done_reached), SL_ERR_LIMIT);
    assert_int_equal(done_reached, 2);
}

static void test_names(void **state)
{
    (void)state;
    for (int i = SL_OK; i <= SL_ERR_CANCELLED; i++) {
        assert_string_not_equal(sl_status_name((sl_status)i), "unknown");
        for (int k = 0; k < i; k++)
            assert_string_not_equal(sl_status_name((sl_status)i), sl_status_name((sl_status)k));
    }
    assert_string_equal(sl_status_name((sl_status)1000), "unknown");
    assert_string_equal(sl_status_name((sl_status)-1), "unknown");
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", SL_VERSION_MAJOR, SL_VERSION_MINOR,
             SL_VERSION_PATCH);
    assert_string_equal(sl_version(), version);
}

typedef struct heard {
    int calls;
    sl_log_level level;
    char message[1100];
} heard;

static void listen_to(void *context, sl_log_level level, const char *message)
{
    heard *h = context;
    h->calls++;
    h->level = level;
    snprintf(h->message, sizeof h->message, "%s", message);
}

static void test_log(void **state)
{
    (void)state;
    heard h = {0};
    sl_log(SL_LOG_ERROR, "nobody %s", "listens");
    sl_log_set_callback(listen_to, &h, SL_LOG_WARNING);
    sl_log(SL_LOG_INFO, "too verbose");
    assert_int_equal(h.calls, 0);
    sl_log(SL_LOG_WARNING, "%d threads", 3);
    assert_int_equal(h.calls, 1);
    assert_int_equal(h.level, SL_LOG_WARNING);
    assert_string_equal(h.message, "3 threads");
    sl_log(SL_LOG_ERROR, "%2000s", "long");
    assert_int_equal(strlen(h.message), 1023);
    sl_log_set_callback(NULL, NULL, SL_LOG_ERROR);
    sl_log(SL_LOG_ERROR, "silent again");
    assert_int_equal(h.calls, 2);
}

static void test_clock(void **state)
{
    (void)state;
    uint64_t before = sl_clock_ns();
    for (int i = 0; i < 1000; i++) {
        uint64_t now = sl_clock_ns();
        assert_true(now >= before);
        before = now;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sentences), cmocka_unit_test(test_hostile_text),
        cmocka_unit_test(test_long_text), cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_macros),    cmocka_unit_test(test_names),
        cmocka_unit_test(test_log),       cmocka_unit_test(test_clock),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
