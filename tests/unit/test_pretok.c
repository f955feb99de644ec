/* The split rules: pieces of typical and of hostile text, character classes, and the number of
 * characters looked at. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/pretok.h"
#include "text/unicode_tables.h"

/* "a|b|c" with the pieces of text between bars. */
static void assert_pieces(sl_pretok_rule rule, const char *text, const char *expected)
{
    char got[512];
    size_t n = strlen(text), n_got = 0;
    for (size_t pos = 0; pos < n;) {
        size_t end = sl_pretok_next(rule, text, n, pos);
        assert_true(end > pos && end <= n);
        if (pos > 0)
            got[n_got++] = '|';
        assert_true(n_got + (end - pos) + 2 < sizeof got);
        memcpy(got + n_got, text + pos, end - pos);
        n_got += end - pos;
        pos = end;
    }
    got[n_got] = '\0';
    assert_string_equal(got, expected);
}

#define MARK  "\xCC\x81"     /* U+0301, a combining mark */
#define KA    "\xE0\xA4\x95" /* a letter and a vowel sign of Devanagari */
#define AA    "\xE0\xA4\xBE"
#define NBSP  "\xC2\xA0"
#define IDSP  "\xE3\x80\x80" /* ideographic space */
#define ROMAN "\xE2\x85\xA7" /* U+2167, a number that is no digit */

static void test_pieces_of_both_rules(void **state)
{
    (void)state;
    static const struct {
        const char *text, *pieces;
    } cases[] = {
        {"Hello, world!", "Hello|,| world|!"},
        {"it's 'tis we'LL I'Ve x'RE 'D'm", "it|'s| '|tis| we|'LL| I|'Ve| x|'RE| '|D|'m"},
        /* A contraction needs no border after it, and wins over a word with a prefix. */
        {"'sword 'x", "'s|word| '|x"},
        {"'are", "'are"},
        {"'lx 'l 'r", "'lx| '|l| '|r"},
        {"'\xC5\xBF'\xC5\xBE", "'\xC5\xBF|'\xC5\xBE"}, /* the long s folds to s */
        {"''s", "''|s"},
        {"a1b22", "a|1|b|2|2"},
        {" 1 " ROMAN, " |1| |" ROMAN},
        /* One character that is no letter, number or line break joins the word after it. */
        {"(a$b", "(a|$b"},
        {"((a", "((|a"},
        {"\tx\t\ty", "\tx|\t|\ty"},
        {NBSP "x " NBSP "y", NBSP "x| |" NBSP "y"},
        {"\nx\r\ny", "\n|x|\r\n|y"},
        /* Symbols take one space before them and all line breaks after them. */
        {"a  ++\n\r\n b", "a| | ++\n\r\n| b"},
        {"\t++", "\t|++"},
        {"x;\n\n  y", "x|;\n\n| | y"},
        /* White space up to its last line break, else all but the last character. */
        {"a   b", "a|  | b"},
        {"a \n \n  b", "a| \n \n| | b"},
        {"a   ", "a|   "},
        {"   ", "   "},
        {" ", " "},
        {" \n", " \n"},
        {"\n ", "\n| "},
        {"a  1", "a| | |1"},
        {"a  +", "a| | +"},
        {IDSP IDSP "x", IDSP "|" IDSP "x"},
        {"\xE2\x80\x8B!", "\xE2\x80\x8B!"}, /* the zero width space is a symbol */
        {"\xC2\x85"
         "a",
         "\xC2\x85"
         "a"}, /* next line: white space, but no line break here */
        {"\xF0\x9F\x98\x80\xF0\x9F\x98\x80 x", "\xF0\x9F\x98\x80\xF0\x9F\x98\x80| x"},
        {"", ""},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        assert_pieces(SL_PRETOK_QWEN35, cases[i].text, cases[i].pieces);
        assert_pieces(SL_PRETOK_QWEN2, cases[i].text, cases[i].pieces);
    }
}

/* Where the rules differ: combining marks. */
static void test_marks(void **state)
{
    (void)state;
    static const struct {
        const char *text, *qwen35, *qwen2;
    } cases[] = {
        {KA AA KA, KA AA KA, KA "|" AA KA},
        {"e" MARK "e", "e" MARK "e", "e|" MARK "e"},
        {MARK, MARK, MARK},
        {MARK MARK, MARK MARK, MARK MARK},
        {" " MARK "1", " " MARK "|1", " " MARK "|1"},
        {"+" MARK "+", "+" MARK "|+", "+" MARK "+"},
        {"++" MARK "\n", "++|" MARK "|\n", "++" MARK "\n"},
        {KA AA AA, KA AA AA, KA "|" AA AA},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        assert_pieces(SL_PRETOK_QWEN35, cases[i].text, cases[i].qwen35);
        assert_pieces(SL_PRETOK_QWEN2, cases[i].text, cases[i].qwen2);
    }
}

static void test_classes(void **state)
{
    (void)state;
    static const unsigned flags[] = {SL_UNICODE_LETTER, SL_UNICODE_MARK, SL_UNICODE_NUMBER,
                                     SL_UNICODE_SPACE};
    static const size_t counts[] = {141028, 2501, 1911, 25}; /* Unicode 16.0 */
    for (size_t i = 0; i < SL_COUNTOF(flags); i++) {
        size_t n = 0;
        for (uint32_t code = 0; code <= 0x10FFFF; code++)
            n += (sl_unicode_flags(code) & flags[i]) != 0;
        assert_int_equal(n, counts[i]);
    }
    assert_int_equal(sl_unicode_flags(0x1C89), SL_UNICODE_LETTER); /* new in Unicode 16.0 */
    assert_int_equal(sl_unicode_flags(0xD800), 0);
    assert_int_equal(sl_unicode_flags(0x10FFFF), 0);
    assert_int_equal(sl_unicode_flags(0x110000), 0);
    assert_int_equal(sl_unicode_flags(UINT32_MAX), 0);
}

/* Appends `unit` to out as often as it fits. */
static size_t fill(char *out, size_t n, const char *unit)
{
    size_t n_unit = strlen(unit), used = 0;
    for (; used + n_unit <= n; used += n_unit)
        memcpy(out + used, unit, n_unit);
    return used;
}

static size_t count_pieces(sl_pretok_rule rule, const char *text, size_t n)
{
    size_t n_looks = 0, n_chars = 0, n_pieces = 0;
    for (size_t pos = 0; pos < n; n_chars++) {
        uint32_t code;
        pos += sl_utf8_decode(text + pos, n - pos, &code);
    }
    for (size_t pos = 0; pos < n; n_pieces++) {
        size_t end = sl_pretok_next_counted(rule, text, n, pos, &n_looks);
        assert_true(end > pos && end <= n);
        pos = end;
    }
    if (n_looks > SL_PRETOK_MAX_LOOKS * n_chars)
        fail_msg("%zu looks for %zu characters of \"%.16s...\"", n_looks, n_chars, text);
    return n_pieces;
}

static void test_every_text_takes_linear_time(void **state)
{
    (void)state;
    enum { N = 100000 };
    static const char *const units[] = {
        " ",        "\n",     "\r\n",
        " \n",      "\n ",    "\t",
        "a",        "Z",      "1",
        "<",        "'",      "'s",
        "''",       " '",     "'r",
        MARK,       KA AA,    IDSP,
        "+\n",      "+\n\n",  " +",
        "  +",      "a ",     " a",
        "  a",      "   a",   "\n\n a",
        "a  1",     " 1",     "\xFF",
        "\xE2\x80", NBSP " ", "\xF0\x9F\x98\x80",
    };
    static const char *const ends[] = {"", "a", "1", "+", "\n", " ", "  \n  a"};
    char *text = malloc(N + 16);
    assert_non_null(text);
    for (size_t i = 0; i < SL_COUNTOF(units); i++) {
        for (size_t j = 0; j < SL_COUNTOF(ends); j++) {
            size_t n = fill(text, N, units[i]);
            memcpy(text + n, ends[j], strlen(ends[j]));
            n += strlen(ends[j]);
            count_pieces(SL_PRETOK_QWEN35, text, n);
            count_pieces(SL_PRETOK_QWEN2, text, n);
        }
    }
    memset(text, ' ', N);
    assert_int_equal(count_pieces(SL_PRETOK_QWEN35, text, N), 1);
    text[N] = 'a';
    assert_int_equal(count_pieces(SL_PRETOK_QWEN35, text, N + 1), 2);
    memset(text, '\n', 10000);
    assert_int_equal(count_pieces(SL_PRETOK_QWEN35, text, 10000), 1);
    free(text);
}

/* Random mixtures of everything the rules tell apart, valid and broken. */
static void test_random_text(void **state)
{
    (void)state;
    static const char *const units[] = {" ",  "\n", "\r", "\t", "a",  "S",    "l",        "'",
                                        "1",  "+",  MARK, KA,   AA,   IDSP,   "\xC5\xBF", "<",
                                        NBSP, "e",  "'s", "  ", "\0", "\xE2", "\x80"};
    sl_test_rng rng = sl_test_rng_of(5);
    char text[256];
    for (size_t round = 0; round < 20000; round++) {
        size_t n = 0;
        for (size_t left = 1 + sl_test_rng_below(&rng, 40); left > 0; left--) {
            const char *unit = units[sl_test_rng_below(&rng, SL_COUNTOF(units))];
            size_t n_unit = unit[0] ? strlen(unit) : 1;
            memcpy(text + n, unit, n_unit);
            n += n_unit;
        }
        count_pieces(SL_PRETOK_QWEN35, text, n);
        count_pieces(SL_PRETOK_QWEN2, text, n);
    }
}

static void test_patterns(void **state)
{
    (void)state;
    sl_pretok_rule rule;
    assert_true(sl_pretok_rule_of(sl_pretok_pattern(SL_PRETOK_QWEN35), &rule));
    assert_int_equal(rule, SL_PRETOK_QWEN35);
    assert_true(sl_pretok_rule_of(sl_pretok_pattern(SL_PRETOK_QWEN2), &rule));
    assert_int_equal(rule, SL_PRETOK_QWEN2);
    assert_false(sl_pretok_rule_of("", &rule));
    assert_false(sl_pretok_rule_of("\\s+", &rule));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pieces_of_both_rules),
        cmocka_unit_test(test_marks),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_every_text_takes_linear_time),
        cmocka_unit_test(test_random_text),
        cmocka_unit_test(test_patterns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
