/* JSON: limits, messages, typed members, and numbers written as Python writes them. */
#include "support.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/filemap.h"
#include "base/fpenv.h"
#include "base/json.h"

static sl_status parse(const char *text, json_t **out, sl_error *err)
{
    return sl_json_parse(text, strlen(text), "test.json", sl_json_limits_default(), out, err);
}

static void test_values(void **state)
{
    (void)state;
    sl_error err;
    json_t *value;
    assert_ok(parse(" {\"b\": [1, -2.5, true, null, \"x\"], \"a\": {}} \n", &value, &err));
    assert_int_equal(json_array_size(json_object_get(value, "b")), 5);
    assert_string_equal(json_object_iter_key(json_object_iter(value)), "b"); /* order is kept */
    json_decref(value);
    static const char *const scalars[] = {"1", "-0", "1.5e3", "true", "null", "\"s\"", " [] "};
    for (size_t i = 0; i < SL_COUNTOF(scalars); i++) {
        assert_ok(parse(scalars[i], &value, &err));
        json_decref(value);
    }
    /* Strings are counted, not terminated. */
    assert_ok(parse("\"a\\u0000b\"", &value, &err));
    assert_int_equal(json_string_length(value), 3);
    assert_memory_equal(json_string_value(value), "a\0b", 3);
    json_decref(value);
    /* Only the given bytes are read. */
    assert_ok(sl_json_parse("12345", 2, "part", sl_json_limits_default(), &value, &err));
    assert_int_equal(json_integer_value(value), 12);
    json_decref(value);
}

static void test_messages(void **state)
{
    (void)state;
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"", "test.json: line 1, column 1: "},
        {"  ", "test.json: line 1, column 2: "},
        {"[1, x]", "test.json: line 1, column 5: invalid token near 'x'"},
        {"[1,\n  2,\n  ?]", "test.json: line 3, column 3: "},
        {"{\"\xC3\xA9\xE2\x82\xAC\": ?}", "test.json: line 1, column 8: "},
        {"[1] 2", "test.json: line 1, column 5: end of file expected"},
        {"[1, 2", "test.json: line 1, column 5: "},
        {"{\"a\": 1,\n \"a\": 2}", "test.json: line 2, column 4: duplicate object key"},
        {"{\"a\\u0000b\": 1}", "test.json: line 1, column 11: NUL byte in object key"},
        {"\"\xFF\"", "test.json: line 1, column 2: invalid UTF-8"},
        {"\"\\ud800\"", "test.json: line 1"},
        {"\"tab\there\"", "test.json: line 1, column 4: control character 0x9"},
        {"\"open", "test.json: line 1, column 5: "},
        {"\"open\\", "test.json: line 1, column 6: "},
        {"\xEF\xBB\xBF{}", "test.json: line 1, column 1: "},
        {"1e999", "test.json: line 1, column 5: real number overflow"},
        {"[01]", "test.json: line 1, column 2: "},
        {"nan", "test.json: line 1, column 3: "},
        /* After integers that were widened for the parser. */
        {"[99999999999999999999,\n 99999999999999999999, ?]", "test.json: line 2, column 24: "},
        {"[99999999999999999999, 99999999999999999999, ?]", "test.json: line 1, column 46: "},
        {"[99999999999999999999?]", "test.json: line 1, column 22: "},
        {"[\n99999999999999999999", "test.json: line 2, column 20: "},
    };
    sl_error err;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        json_t *value = NULL;
        assert_refused(parse(cases[i].text, &value, &err), SL_ERR_FORMAT, cases[i].part);
        assert_null(value);
    }
    json_t *value;
    assert_refused(sl_json_parse("[\0]", 3, "nul", sl_json_limits_default(), &value, &err),
                   SL_ERR_FORMAT, "nul: line 1, column 2: ");
    assert_refused(sl_json_parse(NULL, 0, "nothing", sl_json_limits_default(), &value, &err),
                   SL_ERR_FORMAT, "nothing: line 1, column 1: ");
    assert_int_equal(sl_json_parse("?", 1, "x", sl_json_limits_default(), &value, NULL),
                     SL_ERR_FORMAT);
}

static void test_limits(void **state)
{
    (void)state;
    sl_error err;
    json_t *value;
    const sl_json_limits limits = {.max_bytes = 30, .max_depth = 3};
    static const struct {
        const char *text;
        sl_status status;
        const char *part;
    } cases[] = {
        {"[[[1]],{\"a\":{}}]", SL_OK, ""},
        {"[[[[1]]]]", SL_ERR_LIMIT, "small: line 1, column 4: nested deeper than 3 levels"},
        {"[{\"a\":\n [[]]}]", SL_ERR_LIMIT, "small: line 2, column 3: nested deeper"},
        {"[[[]],[[]],[[]]]", SL_OK, ""},
        {"[\"[[[[\\\"[[[[\\\\\",[[1]]]", SL_OK, ""}, /* brackets inside a string */
        {"[\"\\\\\",[[[1]]]]", SL_ERR_LIMIT, "nested deeper"},
        {"123456789012345678901234567890", SL_OK, ""},
        {"1234567890123456789012345678901", SL_ERR_LIMIT, "small: 31 bytes of JSON, the limit is"},
        {"]]]]", SL_ERR_FORMAT, "column 1: "},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        const char *text = cases[i].text;
        sl_status status = sl_json_parse(text, strlen(text), "small", limits, &value, &err);
        if (cases[i].status == SL_OK) {
            assert_ok(status);
            json_decref(value);
        } else {
            assert_refused(status, cases[i].status, cases[i].part);
        }
    }
    /* A million brackets are no danger, with our limit or with jansson's own behind it. */
    enum { DEEP = 1000000 };
    char *deep = malloc(DEEP);
    memset(deep, '[', DEEP);
    assert_refused(sl_json_parse(deep, DEEP, "deep", sl_json_limits_default(), &value, &err),
                   SL_ERR_LIMIT, "deep: line 1, column 65: nested deeper than 64 levels");
    const sl_json_limits open = {.max_bytes = DEEP, .max_depth = DEEP};
    assert_refused(sl_json_parse(deep, DEEP, "deep", open, &value, &err), SL_ERR_LIMIT,
                   "deep: line 1, column 20");
    free(deep);
}

/* Memory goes by values, not by bytes: a few million "[]" would take gigabytes. */
static void test_number_of_values(void **state)
{
    (void)state;
    sl_error err;
    json_t *value;
    const sl_json_limits limits = {.max_bytes = 100, .max_depth = 8, .max_values = 5};
    static const char *const good[] = {"[1,2,3,4]", "{\"a\":[1,2],\"b\":0}", "[\"[,,,,,{\"]"};
    static const char *const bad[] = {"[1,2,3,4,5]", "[[],[],[]]", "{\"a\":[1,2,3],\"b\":0}"};
    for (size_t i = 0; i < SL_COUNTOF(good); i++) {
        assert_ok(sl_json_parse(good[i], strlen(good[i]), "small", limits, &value, &err));
        json_decref(value);
        assert_refused(sl_json_parse(bad[i], strlen(bad[i]), "small", limits, &value, &err),
                       SL_ERR_LIMIT, ": more than 5 values");
    }
    /* "[0,0,0,...,0]": the last number makes it one more than there may be. */
    const size_t n = 2 * sl_json_limits_default().max_values + 1;
    char *text = malloc(n);
    for (size_t i = 0; i + 2 < n; i += 2)
        memcpy(text + i + 1, "0,", 2);
    text[0] = '[';
    text[n - 1] = ']';
    assert_refused(sl_json_parse(text, n, "many", sl_json_limits_default(), &value, &err),
                   SL_ERR_LIMIT, "more than 2097152 values");
    text[n - 3] = ']';
    assert_ok(sl_json_parse(text, n - 2, "many", sl_json_limits_default(), &value, &err));
    json_decref(value);
    free(text);
}

static void *no_memory(size_t n)
{
    (void)n;
    return NULL;
}

/* jansson then fails without a word. */
static void test_parser_without_memory(void **state)
{
    (void)state;
    sl_error err;
    json_t *value;
    json_malloc_t allocate;
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    json_set_alloc_funcs(no_memory, release);
    const sl_status status = sl_json_parse("[1]", 3, "x", sl_json_limits_default(), &value, &err);
    json_set_alloc_funcs(allocate, release);
    assert_refused(status, SL_ERR_MEMORY, "x: out of memory");
}

/* ---- what jansson takes at most at a time ---- */

static size_t live_bytes, peak_bytes;

static void *counted_alloc(size_t n)
{
    size_t *block = malloc(n + 16);
    if (!block)
        return NULL;
    block[0] = n;
    live_bytes += n;
    if (live_bytes > peak_bytes)
        peak_bytes = live_bytes;
    return block + 2;
}

static void counted_free(void *p)
{
    if (!p)
        return;
    size_t *block = (size_t *)p - 2;
    live_bytes -= block[0];
    free(block);
}

/* `part` n times between two ends. */
static char *repeat(const char *begin, const char *part, size_t n, const char *end)
{
    const size_t n_part = strlen(part);
    char *text = malloc(strlen(begin) + (n_part + 8) * n + strlen(end) + 1), *at = text;
    at += sprintf(at, "%s", begin);
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, part, (unsigned)i);
    sprintf(at, "%s", end);
    return text;
}

/* jansson must never be short of memory: it writes past its buffer then. The parser asks for 256
 * bytes a value and 4 a character (and 64 KiB) before it calls it: that must be enough. */
static void test_memory_asked_for(void **state)
{
    (void)state;
    static const struct {
        const char *begin, *part, *end;
        unsigned values_a_part;
    } shapes[] = {
        {"\"", "x", "\"", 0},
        {"[\"", "\\u00e9", "\"]", 0},
        {"1.", "0", "", 0},
        {"[0", ",[]", "]", 2},
        {"[0", ",{}", "]", 2},
        {"[0", ",1", "]", 1},
        {"{\"\":0", ",\"%x\":0", "}", 1},
        {"[0", ",{\"\":0}", "]", 2},
        {"[0", ",\"\"", "]", 1},
        {"[0", ",1.5", "]", 1},
        {"[0", ",[[0]]", "]", 3},
        {"[0", ",\"%x\"", "]", 1},
    };
    json_malloc_t allocate;
    json_free_t release;
    json_get_alloc_funcs(&allocate, &release);
    for (size_t i = 0; i < SL_COUNTOF(shapes); i++) {
        for (size_t n = 1; n < 100000; n = n * 3 + 1) {
            sl_error err;
            json_t *value = NULL;
            char *text = repeat(shapes[i].begin, shapes[i].part, n, shapes[i].end);
            const size_t n_text = strlen(text);
            live_bytes = peak_bytes = 0;
            json_set_alloc_funcs(counted_alloc, counted_free);
            const sl_status status =
                sl_json_parse(text, n_text, "x", sl_json_limits_default(), &value, &err);
            json_decref(value);
            json_set_alloc_funcs(allocate, release);
            assert_ok(status);
            assert_int_equal(live_bytes, 0);
            assert_true(peak_bytes > 0);
            assert_true(peak_bytes < 256 * (2 + n * shapes[i].values_a_part) + 4 * n_text + 65536);
            free(text);
        }
    }
}

static void test_big_integers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is_big;
        int64_t integer;
        double real;
    } cases[] = {
        {"9223372036854775807", false, INT64_MAX, 0},
        {"-9223372036854775808", false, INT64_MIN, 0},
        {"9223372036854775808", true, 0, 0x1p63},
        {"-9223372036854775809", true, 0, -0x1p63},
        {"12345678901234567890", true, 0, 12345678901234567890.0},
        {"18446744073709551615", true, 0, 0x1p64},
        {"-18446744073709551616", true, 0, -0x1p64},
        {"1000000000000000019884624838656", true, 0, 1e30},
        {"12345678901234567890.5", false, 0, 12345678901234567890.5},
        {"12345678901234567890e-3", false, 0, 12345678901234567890e-3},
        {"12345678901234567890E3", false, 0, 12345678901234567890e3},
        {"0.12345678901234567890", false, 0, 0.12345678901234567890},
    };
    static const char *const forms[] = {
        "%s",          " %s ",
        "[%s]",        "[\"99999999999999999999\", %s, 7]",
        "{\"k\": %s}", "{\"k\":%s,\"l\":0}",
    };
    sl_error err;
    json_t *value;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        for (size_t form = 0; form < SL_COUNTOF(forms); form++) {
            char text[128];
            snprintf(text, sizeof text, forms[form], cases[i].text);
            assert_ok(parse(text, &value, &err));
            const json_t *number = form < 2   ? value
                                   : form < 4 ? json_array_get(value, form == 3)
                                              : json_object_get(value, "k");
            size_t n = 99;
            const char *big = sl_json_big_int(number, &n);
            assert_false(sl_json_is_string(number));
            if (cases[i].is_big) {
                assert_string_equal(big, cases[i].text);
                assert_int_equal(n, strlen(cases[i].text));
                assert_ptr_equal(sl_json_big_int(number, NULL), big);
            } else {
                assert_null(big);
                assert_int_equal(json_is_integer(number), cases[i].integer != 0);
                assert_true(json_integer_value(number) == cases[i].integer);
                assert_true(json_real_value(number) == cases[i].real);
            }
            if (form == 3) {
                assert_string_equal(json_string_value(json_array_get(value, 0)),
                                    "99999999999999999999");
                assert_int_equal(json_integer_value(json_array_get(value, 2)), 7);
            }
            json_decref(value);
        }
    }
    assert_null(sl_json_big_int(NULL, NULL));
    assert_false(sl_json_is_string(NULL));
}

/* What would be an integer but for one thing must not pass as a string of digits. */
static void test_big_integers_out_of_place(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "{99999999999999999999: 1}",
        "{\"a\": 1, 99999999999999999999 \t\r\n: 1}",
        "{99999999999999999999}",
        "{\"a\" 99999999999999999999}",
        "{\"a\": 99999999999999999999: 1}",
        "[99999999999999999999: 1]",
        "[00000000000000000000]",
        "[-00000000000000000001]",
        "[01234567890123456789012]",
        "[99999999999999999999\"a\"]",
        "[\"a\"99999999999999999999]",
        "[99999999999999999999 99999999999999999999]",
        "[99999999999999999999-]",
        "[--99999999999999999999]",
        "[+99999999999999999999]",
        "[99999999999999999999x]",
        "[tru99999999999999999999]",
        "99999999999999999999 1",
        "99999999999999999999:",
    };
    sl_error err;
    for (size_t i = 0; i < SL_COUNTOF(refused); i++) {
        json_t *value = NULL;
        if (parse(refused[i], &value, &err) != SL_ERR_FORMAT)
            fail_msg("%s was accepted", refused[i]);
        assert_null(value);
        assert_null(strstr(err.message, "\xEF\xB7\x90")); /* never shown */
    }
    /* A limit on digits. */
    char digits[SL_JSON_MAX_DIGITS + 8];
    for (int sign = 0; sign <= 1; sign++) {
        digits[0] = '-';
        memset(digits + sign, '7', SL_JSON_MAX_DIGITS + 1);
        json_t *value;
        size_t n = (size_t)sign + SL_JSON_MAX_DIGITS, n_big;
        assert_ok(sl_json_parse(digits, n, "d", sl_json_limits_default(), &value, &err));
        assert_memory_equal(sl_json_big_int(value, &n_big), digits, n);
        assert_int_equal(n_big, n);
        json_decref(value);
        assert_refused(sl_json_parse(digits, n + 1, "d", sl_json_limits_default(), &value, &err),
                       SL_ERR_LIMIT, "d: line 1, column 1: an integer of 4301 digits");
    }
}

#define MARK "\xEF\xB7\x90"
#define LOST "\xEF\xBF\xBD"

/* No string of a text passes for an integer, however it is written. */
static void test_marked_strings(void **state)
{
    (void)state;
    static const struct {
        const char *text, *value;
    } cases[] = {
        {"\"" MARK "99999999999999999999\"", LOST "99999999999999999999"},
        {"\"\\uFDD099999999999999999999\"", LOST "99999999999999999999"},
        {"\"\\ufdd0-99999999999999999999\"", LOST "-99999999999999999999"},
        {"\"\\uFdD0" MARK "99999999999999999999\"", LOST MARK "99999999999999999999"},
        {"\"" MARK MARK "99999999999999999999\"", LOST MARK "99999999999999999999"},
        {"\"" MARK "\"", LOST},
        {"\"\\ufdd0\"", LOST},
        {"\"" MARK "\\\"\\\\\"", LOST "\"\\"},
        /* Elsewhere it stays, and so does what only looks like it. */
        {"\"a" MARK "99999999999999999999\"", "a" MARK "99999999999999999999"},
        {"\"\\\\uFDD099999999999999999999\"", "\\uFDD099999999999999999999"},
        {"\"\\uFDD199999999999999999999\"", "\xEF\xB7\x91"
                                            "99999999999999999999"},
        {"\"\\uFFFD99999999999999999999\"", LOST "99999999999999999999"},
        {"\"uFDD0\"", "uFDD0"},
        {"\"99999999999999999999\"", "99999999999999999999"},
    };
    static const char *const forms[] = {"%s", "[%s]", "[99999999999999999999, %s,1]", "{\"k\":%s}",
                                        "{%s: \"" MARK "\"}"};
    sl_error err;
    json_t *value;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        for (size_t form = 0; form < SL_COUNTOF(forms); form++) {
            char text[128];
            snprintf(text, sizeof text, forms[form], cases[i].text);
            assert_ok(parse(text, &value, &err));
            const json_t *string = form == 0   ? value
                                   : form < 3  ? json_array_get(value, form - 1)
                                   : form == 3 ? json_object_get(value, "k")
                                               : json_object_get(value, cases[i].value);
            assert_true(sl_json_is_string(string));
            assert_null(sl_json_big_int(string, NULL));
            assert_string_equal(json_string_value(string), form == 4 ? LOST : cases[i].value);
            json_decref(value);
        }
    }
    /* Every beginning of such a text, in a block of its own. */
    static const char whole[] = "[\"\\uFDD0a\\\"\",-99999999999999999999,\"" MARK "\",1]";
    for (size_t n = 0; n < sizeof whole - 1; n++) {
        char *text = malloc(n + (n == 0));
        assert_non_null(text);
        memcpy(text, whole, n);
        assert_int_equal(sl_json_parse(text, n, "t", sl_json_limits_default(), &value, &err),
                         SL_ERR_FORMAT);
        free(text);
    }
    /* Places of errors behind both. */
    assert_refused(parse("[\"\\uFDD0\", \"" MARK "\", -99999999999999999999, ?]", &value, &err),
                   SL_ERR_FORMAT, "line 1, column 40: ");
    /* Strings from elsewhere. */
    static const struct {
        const char *text, *value;
    } made[] = {{"", ""}, {"ab", "ab"}, {MARK "99999999999999999999", LOST "99999999999999999999"}};
    for (size_t i = 0; i < SL_COUNTOF(made); i++) {
        value = sl_json_new_string(made[i].text, strlen(made[i].text));
        assert_true(sl_json_is_string(value));
        assert_string_equal(json_string_value(value), made[i].value);
        json_decref(value);
    }
    assert_null(sl_json_new_string("\xFF", 1));
    value = sl_json_new_string(NULL, 0);
    assert_string_equal(json_string_value(value), "");
    json_decref(value);
    /* Only a whole integer outside int64_t counts. */
    static const char *const others[] = {
        MARK,
        MARK "1",
        MARK "-",
        MARK "9223372036854775807",
        MARK "-9223372036854775808",
        MARK "00000000000000000000",
        MARK "99999999999999999999x",
        MARK "99999999999999999999.0",
    };
    for (size_t i = 0; i < SL_COUNTOF(others); i++) {
        value = json_string(others[i]);
        assert_null(sl_json_big_int(value, NULL));
        json_decref(value);
    }
}

static void test_big_members(void **state)
{
    (void)state;
    sl_error err;
    json_t *object;
    char text[1024];
    int n_text = snprintf(text, sizeof text,
                          "{\"b\": 12345678901234567890, \"m\": 1000000000000000019884624838656, "
                          "\"n\": -99999999999999999999, \"e\": 1");
    memset(text + n_text, '0', 400);
    snprintf(text + n_text + 400, sizeof text - (size_t)n_text - 400, "}");
    assert_ok(parse(text, &object, &err));
    int64_t i = 3;
    double number = 3;
    bool flag = true;
    const char *string = "s";
    assert_refused(sl_json_get_int(object, "b", 0, INT64_MAX, &i, "f", &err), SL_ERR_FORMAT,
                   "f: \"b\" is 12345678901234567890, outside 0 .. 9223372036854775807");
    assert_refused(sl_json_get_int_or(object, "n", -1, 1, 0, &i, "f", &err), SL_ERR_FORMAT,
                   "f: \"n\" is -99999999999999999999, outside -1 .. 1");
    assert_refused(sl_json_get_int(object, "e", 0, 1, &i, "f", &err), SL_ERR_FORMAT,
                   "000..., outside 0 .. 1");
    assert_ok(sl_json_get_number_or(object, "m", 0, &number, "f", &err));
    assert_true(number == 1e30);
    assert_ok(sl_json_get_number_or(object, "n", 0, &number, "f", &err));
    assert_true(number == -1e20);
    assert_refused(sl_json_get_number_or(object, "e", 0, &number, "f", &err), SL_ERR_FORMAT,
                   "f: \"e\" is an integer of 401 digits, too large");
    assert_refused(sl_json_get_bool_or(object, "b", false, &flag, "f", &err), SL_ERR_FORMAT,
                   "f: \"b\" must be true or false, not an integer");
    assert_refused(sl_json_get_string(object, "b", &string, "f", &err), SL_ERR_FORMAT,
                   "f: \"b\" must be a string, not an integer");
    assert_refused(sl_json_get_string_or(object, "b", NULL, &string, "f", &err), SL_ERR_FORMAT,
                   "must be a string");
    assert_true(i == 3 && number == -1e20 && flag); /* untouched by failures */
    assert_string_equal(string, "s");
    json_decref(object);
}

static void test_members(void **state)
{
    (void)state;
    sl_error err;
    json_t *object;
    assert_ok(
        parse("{\"i\": 7, \"r\": 0.5, \"s\": \"text\", \"t\": true, \"f\": false, \"n\": null,"
              " \"o\": {}, \"a\": [], \"z\": \"a\\u0000b\", \"whole\": 2.0}",
              &object, &err));
    int64_t i = 0;
    double number = 0;
    bool flag = false;
    const char *text = NULL;

    assert_ok(sl_json_get_int(object, "i", 7, 7, &i, "f", &err));
    assert_int_equal(i, 7);
    assert_refused(sl_json_get_int(object, "i", 8, 20, &i, "f", &err), SL_ERR_FORMAT,
                   "f: \"i\" is 7, outside 8 .. 20");
    assert_refused(sl_json_get_int(object, "i", -1, 6, &i, "f", &err), SL_ERR_FORMAT, "outside");
    assert_refused(sl_json_get_int(object, "gone", 0, 9, &i, "f", &err), SL_ERR_FORMAT,
                   "f: \"gone\" is missing");
    assert_refused(sl_json_get_int(object, "n", 0, 9, &i, "f", &err), SL_ERR_FORMAT, "missing");
    assert_refused(sl_json_get_int(object, "whole", 0, 9, &i, "f", &err), SL_ERR_FORMAT,
                   "f: \"whole\" must be an integer, not a real number");
    assert_refused(sl_json_get_int(object, "t", 0, 9, &i, "f", &err), SL_ERR_FORMAT, "a boolean");
    assert_int_equal(i, 7); /* untouched by failures */
    assert_ok(sl_json_get_int_or(object, "n", 0, 9, 99, &i, "f", &err));
    assert_int_equal(i, 99);
    assert_ok(sl_json_get_int_or(object, "i", 0, 9, 99, &i, "f", &err));
    assert_int_equal(i, 7);
    assert_refused(sl_json_get_int_or(object, "i", 0, 6, 5, &i, "f", &err), SL_ERR_FORMAT,
                   "outside");
    assert_refused(sl_json_get_int_or(object, "s", 0, 6, 5, &i, "f", &err), SL_ERR_FORMAT,
                   "not a string");

    assert_ok(sl_json_get_number_or(object, "r", 9, &number, "f", &err));
    assert_true(number == 0.5);
    assert_ok(sl_json_get_number_or(object, "i", 9, &number, "f", &err));
    assert_true(number == 7);
    assert_ok(sl_json_get_number_or(object, "gone", 9, &number, "f", &err));
    assert_true(number == 9);
    assert_refused(sl_json_get_number_or(object, "o", 9, &number, "f", &err), SL_ERR_FORMAT,
                   "f: \"o\" must be a number, not an object");

    assert_ok(sl_json_get_bool_or(object, "t", false, &flag, "f", &err));
    assert_true(flag);
    assert_ok(sl_json_get_bool_or(object, "f", true, &flag, "f", &err));
    assert_false(flag);
    assert_ok(sl_json_get_bool_or(object, "n", true, &flag, "f", &err));
    assert_true(flag);
    assert_refused(sl_json_get_bool_or(object, "i", true, &flag, "f", &err), SL_ERR_FORMAT,
                   "f: \"i\" must be true or false, not an integer");

    assert_ok(sl_json_get_string(object, "s", &text, "f", &err));
    assert_string_equal(text, "text");
    assert_refused(sl_json_get_string(object, "gone", &text, "f", &err), SL_ERR_FORMAT, "missing");
    assert_refused(sl_json_get_string(object, "a", &text, "f", &err), SL_ERR_FORMAT,
                   "f: \"a\" must be a string, not an array");
    assert_refused(sl_json_get_string(object, "z", &text, "f", &err), SL_ERR_FORMAT,
                   "f: \"z\" has a NUL character inside");
    assert_ok(sl_json_get_string_or(object, "n", NULL, &text, "f", &err));
    assert_null(text);
    assert_ok(sl_json_get_string_or(object, "s", NULL, &text, "f", &err));
    assert_string_equal(text, "text");
    assert_refused(sl_json_get_string_or(object, "i", NULL, &text, "f", &err), SL_ERR_FORMAT,
                   "must be a string");
    json_decref(object);
}

static void test_append_string(void **state)
{
    (void)state;
    static const struct {
        const char *in;
        size_t n;
        const char *out;
    } cases[] = {
        {"", 0, "\"\""},
        {"plain", 5, "\"plain\""},
        {"a\"b\\c/d", 7, "\"a\\\"b\\\\c/d\""},
        {"\b\f\n\r\t\x01\x1f\0", 8, "\"\\b\\f\\n\\r\\t\\u0001\\u001f\\u0000\""},
        {"\x7f\xC3\xA9\xF0\x9F\x98\x80\xEF\xBF\xBD", 10,
         "\"\x7f\xC3\xA9\xF0\x9F\x98\x80\xEF\xBF\xBD\""},
        {"x\xFFy\xE2\x82", 5, "\"x\xEF\xBF\xBDy\xEF\xBF\xBD\""},
    };
    sl_error err;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_buf buf;
        sl_buf_init(&buf, SL_MEM_TEXT, 1000);
        assert_ok(sl_json_append_string(&buf, cases[i].in, cases[i].n, &err));
        assert_string_equal(buf.data, cases[i].out);
        json_t *value;
        assert_ok(
            sl_json_parse(buf.data, buf.n_bytes, "back", sl_json_limits_default(), &value, &err));
        if (i + 1 < SL_COUNTOF(cases)) {
            assert_int_equal(json_string_length(value), cases[i].n);
            assert_memory_equal(json_string_value(value), cases[i].in, cases[i].n);
        }
        json_decref(value);
        sl_buf_free(&buf);
    }
    sl_buf small;
    sl_buf_init(&small, SL_MEM_TEXT, 6);
    assert_refused(sl_json_append_string(&small, "12345", 5, &err), SL_ERR_LIMIT, "6 bytes");
    sl_buf_free(&small);
}

static void expect_double(double value, const char *expected)
{
    sl_error err;
    sl_buf buf;
    sl_buf_init(&buf, SL_MEM_TEXT, 100);
    assert_ok(sl_json_append_double(&buf, value, &err));
    assert_string_equal(buf.data, expected);
    sl_buf_free(&buf);
}

static void test_append_double(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0.0, "0.0"},
        {-0.0, "-0.0"},
        {1.0, "1.0"},
        {-1.5, "-1.5"},
        {0.1, "0.1"},
        {1.0 / 3, "0.3333333333333333"},
        {2.0 / 3, "0.6666666666666666"},
        {100.0, "100.0"},
        {0.001, "0.001"},
        {0.0001, "0.0001"},
        {0.00012345, "0.00012345"},
        {0.00001, "1e-05"},
        {1e-7, "1e-07"},
        {1.5e-7, "1.5e-07"},
        {123456.789, "123456.789"},
        {1e15, "1000000000000000.0"},
        {9999999999999998.0, "9999999999999998.0"},
        {1e16, "1e+16"},
        {123456789012345680.0, "1.2345678901234568e+17"},
        {1e21, "1e+21"},
        {1e22, "1e+22"},
        {1e23, "1e+23"},
        {1.5e300, "1.5e+300"},
        {-1e100, "-1e+100"},
        {0x1p89, "6.189700196426902e+26"}, /* not the nearest decimal of 16 digits */
        {0x1p-44, "5.684341886080802e-14"},
        {5e-324, "5e-324"},
        {2.2250738585072014e-308, "2.2250738585072014e-308"},
        {2.225073858507201e-308, "2.225073858507201e-308"},
        {1.7976931348623157e308, "1.7976931348623157e+308"},
        {9007199254740993.0, "9007199254740992.0"},
        {NAN, "null"},
        {INFINITY, "null"},
        {-INFINITY, "null"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++)
        expect_double(cases[i].value, cases[i].text);
}

/* tests/data/make_floats.py: powers of two and ten, their neighbours, random bits. */
static void test_doubles_as_python(void **state)
{
    (void)state;
    sl_error err;
    char *text;
    size_t n;
    assert_ok(sl_read_file(sl_build_path("testdata/python-floats.txt"), 1 << 20, &text, &n, &err));
    unsigned lines = 0;
    for (char *line = text, *next; *line != '\0'; line = next, lines++) {
        next = strchr(line, '\n');
        *next++ = '\0';
        char *expected;
        uint64_t bits = strtoull(line, &expected, 16);
        double value;
        memcpy(&value, &bits, sizeof value);
        expect_double(value, expected + 1);
    }
    assert_true(lines > 5000);
    sl_free(text);
}

/* A locale of our own, because systems without any are common: the category's file as the C library
 * reads it from $LOCPATH. */
static bool use_comma(void)
{
    static char folder[] = "/tmp/sl-locale-XXXXXX";
    char path[80];
    if (!mkdtemp(folder))
        return false;
    snprintf(path, sizeof path, "%s/xx", folder);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/xx/LC_NUMERIC", folder);
    /* magic, count, the offset of each item, the items: decimal point, thousands separator,
     * grouping, both separators as wide characters, character set. */
    const uint32_t header[] = {0x20031115u ^ LC_NUMERIC, 6, 32, 34, 36, 40, 44, 48};
    const char items[] = ",\0.\0\3\0\0\0,\0\0\0.\0\0\0UTF-8";
    FILE *file = fopen(path, "wb");
    fwrite(header, sizeof header, 1, file);
    fwrite(items, sizeof items, 1, file);
    fclose(file);
    setenv("LOCPATH", folder, 1);
    bool works = setlocale(LC_NUMERIC, "xx") && strcmp(localeconv()->decimal_point, ",") == 0;
    snprintf(path, sizeof path, "rm -rf %s", folder);
    return system(path) == 0 && works;
}

static void test_locale(void **state)
{
    if (!use_comma())
        skip_because("the C library did not take the test's locale");
    char shown[16];
    snprintf(shown, sizeof shown, "%.1f", 0.5);
    assert_string_equal(shown, "0,5");
    test_append_double(state);
    test_big_integers(state);
    test_big_members(state);
    sl_error err;
    json_t *value;
    sl_status status = parse("[1.25, 1e-3]", &value, &err);
    setlocale(LC_NUMERIC, "C");
    unsetenv("LOCPATH");
    assert_ok(status);
    assert_true(json_real_value(json_array_get(value, 0)) == 1.25);
    assert_true(json_real_value(json_array_get(value, 1)) == 1e-3);
    json_decref(value);
}

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

/* A host that set denormals to zero. */
static void test_flushed_denormals(void **state)
{
    (void)state;
    sl_fpenv env = sl_fpenv_enter();
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() | 0x8040);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)1 << 24));
#endif
    expect_double(5e-324, "5e-324");
    expect_double(-2.225073858507201e-308, "-2.225073858507201e-308");
    sl_fpenv_leave(env);
}

static sl_status everything(sl_buf *buf, sl_error *err)
{
    json_t *value;
    static const char marked[] = MARK "99999999999999999999";
    SL_TRY(
        parse("[1, 99999999999999999999, \"x\", \"" MARK "\", 88888888888888888888]", &value, err));
    json_decref(value);
    value = sl_json_new_string(marked, sizeof marked - 1);
    if (!value)
        return SL_ERR_MEMORY;
    json_decref(value);
    for (int i = 0; i < 20; i++) {
        SL_TRY(sl_json_append_string(buf, "some \"text\"\n\xFF", 13, err));
        SL_TRY(sl_json_append_double(buf, -1.5e300, err));
        SL_TRY(sl_json_append_double(buf, 0.001, err));
    }
    return SL_OK;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    size_t blocks = sl_mem_get_stats().blocks;
    unsigned failures = 0;
    for (;; failures++) {
        sl_error err;
        sl_buf buf;
        sl_buf_init(&buf, SL_MEM_TEXT, 10000);
        sl_mem_fail_at(failures + 1, false);
        sl_status status = everything(&buf, &err);
        sl_mem_fail_at(0, false);
        sl_buf_free(&buf);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
        if (status == SL_OK)
            break;
        assert_int_equal(status, SL_ERR_MEMORY);
        if (failures == 0)
            assert_non_null(strstr(err.message, "test.json: "));
    }
    assert_true(failures >= 3);
}

/* ---- whole values ---- */

static void test_append(void **state)
{
    (void)state;
    sl_error err;
    static const char *const texts[] = {
        "{\"b\":[1,-2.5,true,false,null],\"a\":{\"\":\"\"},\"n\":[]}",
        "123456789012345678901234567890",
        "[-9223372036854775808,9223372036854775808,-9223372036854775809]",
        "[0.1,1e+300,5e-324,1.0]",
        "\"\\u0000a\\n\\\"\xC3\xA9\"",
        "\"\xEF\xBF\xBDx\"",
    };
    for (size_t i = 0; i < SL_COUNTOF(texts); i++) {
        json_t *value;
        sl_buf out;
        assert_ok(parse(texts[i], &value, &err));
        sl_buf_init(&out, SL_MEM_TEXT, 1 << 16);
        assert_ok(sl_json_append(&out, value, &err));
        assert_string_equal(out.data, texts[i]);
        sl_buf_free(&out);
        json_decref(value);
    }
    /* One level more than is allowed; an allocation that fails. */
    json_t *deep = json_array();
    for (int i = 1; i < SL_JSON_MAX_WRITE_DEPTH; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    sl_buf out;
    sl_buf_init(&out, SL_MEM_TEXT, 1 << 16);
    assert_ok(sl_json_append(&out, deep, &err));
    assert_int_equal(out.n_bytes, 2 * SL_JSON_MAX_WRITE_DEPTH);
    json_t *deeper = json_array();
    json_array_append_new(deeper, deep);
    sl_buf_clear(&out);
    assert_refused(sl_json_append(&out, deeper, &err), SL_ERR_LIMIT, "128 levels");
    sl_buf_free(&out);
    sl_mem_fail_at(1, false);
    assert_refused(sl_json_append(&out, deeper, &err), SL_ERR_MEMORY, "");
    sl_mem_fail_at(0, false);
    sl_buf_free(&out);
    json_decref(deeper);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_number_of_values),
        cmocka_unit_test(test_parser_without_memory),
        cmocka_unit_test(test_memory_asked_for),
        cmocka_unit_test(test_big_integers),
        cmocka_unit_test(test_big_integers_out_of_place),
        cmocka_unit_test(test_marked_strings),
        cmocka_unit_test(test_big_members),
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_append_string),
        cmocka_unit_test(test_append_double),
        cmocka_unit_test(test_doubles_as_python),
        cmocka_unit_test(test_locale),
        cmocka_unit_test(test_append),
        cmocka_unit_test(test_flushed_denormals),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
