/* Normalisation form C against cases worked out by hand and by the Hugging Face library. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/nfc.h"
#include "text/unicode_tables.h"

enum { MAX_CODES = 8 };

static size_t encode(const uint32_t *codes, char *out)
{
    size_t n = 0;
    for (size_t i = 0; i < MAX_CODES && codes[i] != 0; i++)
        n += sl_utf8_encode(codes[i], out + n);
    return n;
}

static void test_cases(void **state)
{
    (void)state;
    static const struct {
        uint32_t in[MAX_CODES], out[MAX_CODES];
    } cases[] = {
        {{'a', 'b'}, {'a', 'b'}},
        {{'e', 0x301}, {0xE9}},
        {{'x', 'e', 0x301, 'y'}, {'x', 0xE9, 'y'}},
        {{0x301, 'e'}, {0x301, 'e'}},
        {{'x', 0x301}, {'x', 0x301}},
        {{'e', 0x301, 0x323}, {0x1EB9, 0x301}}, /* the dot below goes first */
        {{0xE9, 0x323}, {0x1EB9, 0x301}},
        {{'a', 0x302, 0x301}, {0x1EA5}},
        {{'a', 0x301, 0x302}, {0xE1, 0x302}},
        {{0x1100, 0x1161, 0x11A8}, {0xAC01}}, /* Hangul */
        {{0xAC00, 0x11A8}, {0xAC01}},
        {{0xAC01, 0x11A8}, {0xAC01, 0x11A8}},
        {{0x212B}, {0xC5}}, /* Angstrom sign */
        {{0x2126}, {0x3A9}},
        {{0xF900}, {0x8C48}},
        {{0x2001}, {0x2003}},
        {{0x304B, 0x3099}, {0x304C}},
        {{0x958}, {0x915, 0x93C}}, /* excluded from composition */
        {{0x340}, {0x300}},
        {{0x344}, {0x308, 0x301}},
        {{'i', 0x344}, {0x1E2F}},
        {{0x9C7, 0x9BE}, {0x9CB}}, /* two starters */
        {{0x1D15E}, {0x1D157, 0x1D165}},
        {{0xFB1D}, {0x5D9, 0x5B4}},
        {{0x3C, 0x338}, {0x226E}}, /* "<" can change too */
        /* What came after Unicode 9.0 stays as it is and parts the marks around it. */
        {{'a', 0x301, 0x1DF6, 0x316}, {0xE1, 0x1DF6, 0x316}},
        {{'a', 0x1DF6, 0x301}, {'a', 0x1DF6, 0x301}},
        {{'a', 0x898, 0x316}, {'a', 0x898, 0x316}},
        {{0x11935, 0x11930}, {0x11935, 0x11930}},
        {{0x105D2, 0x307}, {0x105D2, 0x307}},
        {{0x11382, 0x113C9}, {0x11382, 0x113C9}},
    };
    sl_error err;
    sl_buf buf;
    sl_buf_init(&buf, SL_MEM_TEXT, 1 << 20);
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        char in[4 * MAX_CODES], out[4 * MAX_CODES];
        size_t n_in = encode(cases[i].in, in), n_out = encode(cases[i].out, out);
        sl_str result;
        assert_ok(sl_nfc(in, n_in, &buf, &result, &err));
        if (!sl_str_equal(result, (sl_str){out, n_out}))
            fail_msg("case %zu: got \"%.*s\"", i, (int)result.n_bytes, result.data);
    }
    sl_buf_free(&buf);
}

static void test_nothing_to_do_copies_nothing(void **state)
{
    (void)state;
    sl_error err;
    sl_buf buf;
    sl_buf_init(&buf, SL_MEM_TEXT, 0);
    const char *text = "plain, \xC3\xA9, \xE4\xBD\xA0, \xEA\xB0\x81, \xF0\x9F\x98\x80";
    sl_str result;
    assert_ok(sl_nfc(text, strlen(text), &buf, &result, &err));
    assert_ptr_equal(result.data, text);
    assert_int_equal(result.n_bytes, strlen(text));
    assert_ok(sl_nfc("", 0, &buf, &result, &err));
    assert_int_equal(result.n_bytes, 0);
}

/* Every code point on its own gives text that does not change again, and changes only if it is
 * marked as a changer. */
static void test_every_code_point(void **state)
{
    (void)state;
    sl_error err;
    sl_buf once, twice;
    sl_buf_init(&once, SL_MEM_TEXT, 100);
    sl_buf_init(&twice, SL_MEM_TEXT, 100);
    size_t n_changed = 0;
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        char bytes[4];
        size_t n = sl_utf8_encode(code, bytes);
        sl_str result, again;
        assert_ok(sl_nfc(bytes, n, &once, &result, &err));
        if (!sl_str_equal(result, (sl_str){bytes, n})) {
            n_changed++;
            assert_true(sl_unicode_flags(code) & SL_UNICODE_NFC_CHANGER);
        }
        assert_ok(sl_nfc(result.data, result.n_bytes, &twice, &again, &err));
        assert_true(sl_str_equal(result, again));
        assert_true(result.n_bytes <= 3 * n); /* what buffers are sized by */
    }
    assert_int_equal(n_changed, 1120); /* NFC_Quick_Check=No */
    sl_buf_free(&once);
    sl_buf_free(&twice);
}

/* A hundred thousand marks in the worst order: sorted by class, in their order within a class. */
static void test_long_run_of_marks(void **state)
{
    (void)state;
    static const struct {
        const char *mark;
        unsigned ccc;
    } marks[] = {{"\xCD\x85", 240},
                 {"\xCC\x81", 230},
                 {"\xCC\x80", 230},
                 {"\xCC\xA3", 220},
                 {"\xCC\xB4", 1}};
    enum { ROUNDS = 20000, N = 1 + 2 * 5 * ROUNDS };
    sl_error err;
    char *text = malloc(N), *expected = malloc(N);
    assert_non_null(text);
    assert_non_null(expected);
    size_t n = 0, n_expected = 0;
    text[n++] = expected[n_expected++] = '\n'; /* composes with nothing */
    for (size_t i = 0; i < ROUNDS; i++) {
        for (size_t k = 0; k < SL_COUNTOF(marks); k++, n += 2)
            memcpy(text + n, marks[k].mark, 2);
    }
    static const size_t order[][2] = {{4, 4}, {3, 3}, {1, 2}, {0, 0}};
    for (size_t o = 0; o < SL_COUNTOF(order); o++) {
        for (size_t i = 0; i < ROUNDS; i++) {
            for (size_t k = order[o][0]; k <= order[o][1]; k++, n_expected += 2)
                memcpy(expected + n_expected, marks[k].mark, 2);
        }
    }
    sl_buf buf;
    sl_buf_init(&buf, SL_MEM_TEXT, N);
    sl_str result;
    assert_ok(sl_nfc(text, n, &buf, &result, &err));
    assert_true(sl_str_equal(result, (sl_str){expected, n_expected}));
    sl_buf_free(&buf);

    sl_buf_init(&buf, SL_MEM_TEXT, N - 1);
    assert_refused(sl_nfc(text, n, &buf, &result, &err), SL_ERR_LIMIT, "more than");
    sl_buf_free(&buf);
    free(text);
    free(expected);
}

static void test_memory_failures(void **state)
{
    (void)state;
    sl_error err;
    const char *text = "a\xCC\x81 plain e\xCC\x81\xCC\xA3 and \xF0\x9D\x85\x9E\xF0\x9D\x85\x9E"
                       "\xF0\x9D\x85\x9E\xF0\x9D\x85\x9E\xF0\x9D\x85\x9E\xF0\x9D\x85\x9E"
                       "\xF0\x9D\x85\x9E\xF0\x9D\x85\x9E\xF0\x9D\x85\x9E\xF0\x9D\x85\x9E";
    size_t blocks = sl_mem_get_stats().blocks;
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_buf buf;
        sl_buf_init(&buf, SL_MEM_TEXT, 1000);
        sl_str result;
        sl_mem_fail_at(n, false);
        status = sl_nfc(text, strlen(text), &buf, &result, &err);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        sl_buf_free(&buf);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_nothing_to_do_copies_nothing),
        cmocka_unit_test(test_every_code_point),
        cmocka_unit_test(test_long_run_of_marks),
        cmocka_unit_test(test_memory_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
