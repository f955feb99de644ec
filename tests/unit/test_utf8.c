/* UTF-8 decoding and streaming against the rules of the Unicode Standard. */
#include "support.h"

#include <string.h>

#include "base/utf8.h"

static void stream_all(const char *bytes, size_t n, size_t piece, char *out)
{
    sl_utf8_stream stream = {0};
    size_t written = 0;
    for (size_t i = 0; i < n; i += piece)
        written +=
            sl_utf8_stream_push(&stream, bytes + i, sl_min_size(piece, n - i), out + written);
    written += sl_utf8_stream_finish(&stream, out + written);
    out[written] = '\0';
}

#define R "\xEF\xBF\xBD"

static void test_replacement(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"plain", "plain"},
        {"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", "\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80"},
        {"\x80", R},
        {"\xC0\xAF", R R},
        {"\xE0\x80\x80", R R R},
        {"\xED\xA0\x80", R R R},
        {"\xF0\x9F\x98", R},
        {"\xF0\x9Fx", R "x"},
        {"\xE2\x82", R},
        {"\xF4\x90\x80\x80", R R R R},
        {"a\xF1\x80\x80\xE1\x80\xC2z", "a" R R R "z"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        for (size_t piece = 1; piece <= 5; piece++) {
            char out[128];
            stream_all(cases[i].in, strlen(cases[i].in), piece, out);
            assert_string_equal(out, cases[i].out);
        }
    }
}

static void test_round_trip(void **state)
{
    (void)state;
    for (uint32_t code = 0; code <= 0x10FFFF; code++) {
        if (code >= 0xD800 && code <= 0xDFFF)
            continue;
        char bytes[4];
        size_t n = sl_utf8_encode(code, bytes);
        uint32_t back;
        assert_int_equal(sl_utf8_decode(bytes, n, &back), n);
        assert_int_equal(back, code);
        assert_true(sl_utf8_valid(bytes, n, NULL));
    }
}

static void test_valid_names_the_offset(void **state)
{
    (void)state;
    size_t bad = 0;
    assert_false(sl_utf8_valid("ab\xFF", 3, &bad));
    assert_int_equal(bad, 2);
}

static void test_showing(void **state)
{
    (void)state;
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"", ""},
        {"a name", "a name"},
        {"\033[3\a\n", "\uFFFD[3\uFFFD\uFFFD"},
        {"\x7F\xC2\x9B\xFF\xE2\x82", "\uFFFD\uFFFD\uFFFD\uFFFD"},
        {"gr\u00FC\u00DFe", "gr\u00FC\u00DFe"},
        {"0123456789abcde", "0123456789abcde"},
        {"0123456789abcdef", "0123456789ab..."},
        {"0123456789abc\u00FCd", "0123456789ab..."},
        {"0123456789\u20ACdef", "0123456789..."},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        char text[16];
        assert_string_equal(sl_utf8_show(cases[i].in, strlen(cases[i].in), text, sizeof text),
                            cases[i].out);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replacement),
        cmocka_unit_test(test_showing),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_valid_names_the_offset),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
