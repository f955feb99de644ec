/* Stop strings against a plain search, over every way of cutting short texts and many of cutting
 * longer ones, and that no byte is let through too early or held back without need. */
#include "support.h"

#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/stop.h"

enum { MAX_TEXT = 400 };

static sl_stops *stops_of(const sl_str *strings, size_t n)
{
    sl_error err;
    sl_stops *stops;
    assert_ok(sl_stops_create(strings, n, &stops, &err));
    return stops;
}

/* ---- the plain search ---- */

static bool ends_with(const char *text, size_t n, sl_str string)
{
    return string.n_bytes <= n &&
           memcmp(text + n - string.n_bytes, string.data, string.n_bytes) == 0;
}

typedef struct found {
    size_t end;  /* bytes up to and with the stop string; the whole text without one */
    size_t kept; /* bytes before it */
    int which;   /* -1: none */
} found;

static found search(const char *text, size_t n, const sl_str *strings, size_t n_strings)
{
    for (size_t end = 1; end <= n; end++) {
        found f = {end, end, -1};
        for (size_t i = 0; i < n_strings; i++) {
            if (ends_with(text, end, strings[i]) &&
                (f.which < 0 || strings[i].n_bytes > strings[f.which].n_bytes))
                f = (found){end, end - strings[i].n_bytes, (int)i};
        }
        if (f.which >= 0)
            return f;
    }
    return (found){n, n, -1};
}

/* How many bytes at the end of text[0..n) begin a stop string. */
static size_t open_end(const char *text, size_t n, const sl_str *strings, size_t n_strings)
{
    size_t longest = 0;
    for (size_t i = 0; i < n_strings; i++) {
        for (size_t k = 1; k < strings[i].n_bytes; k++) {
            if (k > longest && ends_with(text, n, (sl_str){strings[i].data, k}))
                longest = k;
        }
    }
    return longest;
}

/* Pushes text cut before every i with cuts[i] and holds every step to the plain search. */
static void check_cut(const sl_stops *stops, const sl_str *strings, size_t n_strings,
                      const char *text, size_t n, const bool *cuts)
{
    const found expected = search(text, n, strings, n_strings);
    sl_stop_stream stream = sl_stop_stream_of(stops);
    sl_error err;
    sl_buf out;
    sl_buf_init(&out, SL_MEM_TEXT, MAX_TEXT);
    for (size_t begin = 0, end; begin < n; begin = end) {
        for (end = begin + 1; end < n && !cuts[end]; end++)
            ;
        char piece[MAX_TEXT]; /* a block of its own: the stream may not look at earlier pieces */
        memcpy(piece, text + begin, end - begin);
        assert_ok(sl_stop_push(&stream, piece, end - begin, &out, &err));
        const bool is_found = expected.which >= 0 && end >= expected.end;
        assert_int_equal(stream.found, is_found ? expected.which : -1);
        assert_int_equal(out.n_bytes,
                         is_found ? expected.kept : end - open_end(text, end, strings, n_strings));
        assert_memory_equal(out.data, text, out.n_bytes);
    }
    assert_ok(sl_stop_flush(&stream, &out, &err));
    assert_int_equal(out.n_bytes, expected.kept);
    assert_memory_equal(out.data, text, out.n_bytes);
    sl_buf_free(&out);
}

static void check_all_cuts(const sl_str *strings, size_t n_strings, const char *text)
{
    const size_t n = strlen(text);
    sl_stops *stops = stops_of(strings, n_strings);
    for (uint32_t bits = 0; bits < 1u << (n - 1); bits++) {
        bool cuts[32] = {false};
        for (size_t i = 1; i < n; i++)
            cuts[i] = bits >> (i - 1) & 1;
        check_cut(stops, strings, n_strings, text, n, cuts);
    }
    sl_stops_destroy(stops);
}

static void test_every_cut(void **state)
{
    (void)state;
    const struct {
        const char *text;
        const char *stops[4];
    } cases[] = {
        {"The quick brow", {"own fox"}},
        {"A B C O P Q", {"O P Q"}},
        {"x\n\nAlice: hi", {"\n", "Alice:"}},
        {"x\n\nHuman: y", {"\n\nHuman:", "\n\n"}},
        {"abcdabce", {"abce"}},
        {"aaaaab", {"aaab"}},
        {"zabcdz", {"abcd", "bc"}},     /* the first to be complete */
        {"zabczz", {"bc", "abc", "c"}}, /* the longest of several at once */
        {"abababac", {"ababac", "abx"}},
        {"aaa", {"aaaa"}},
        {"none of it", {"x", "yy"}},
        {"end ep|>", {"<|ep|>", "ep|>"}},
        {"\xe4\xbd\xa0\xe5\xa5\xbd\xef\xbc\x81", {"\xe5\xa5\xbd"}},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_str strings[4];
        size_t n = 0;
        for (; n < 4 && cases[i].stops[n]; n++)
            strings[n] = sl_str_of(cases[i].stops[n]);
        check_all_cuts(strings, n, cases[i].text);
    }
    check_all_cuts(NULL, 0, "no stop");
}

/* Few letters, so that beginnings and repetitions are everywhere. */
static void test_random_texts(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(21);
    size_t n_found = 0;
    for (int round = 0; round < 3000; round++) {
        const uint32_t letters = 1 + sl_test_rng_below(&rng, 3);
        char texts[8][12], text[MAX_TEXT];
        sl_str strings[8];
        const size_t n_strings = 1 + sl_test_rng_below(&rng, 8);
        for (size_t i = 0; i < n_strings; i++) {
            strings[i] = (sl_str){texts[i], 1 + sl_test_rng_below(&rng, 12)};
            for (size_t j = 0; j < strings[i].n_bytes; j++)
                texts[i][j] = (char)sl_test_rng_below(&rng, letters); /* NUL is a byte like any */
        }
        const size_t n = 1 + sl_test_rng_below(&rng, round % 10 ? 40 : MAX_TEXT);
        for (size_t i = 0; i < n; i++)
            text[i] = (char)sl_test_rng_below(&rng, letters);
        bool cuts[MAX_TEXT];
        const uint32_t spacing = 1 + sl_test_rng_below(&rng, 20);
        for (size_t i = 0; i < n; i++)
            cuts[i] = sl_test_rng_below(&rng, spacing) == 0;
        sl_stops *stops = stops_of(strings, n_strings);
        check_cut(stops, strings, n_strings, text, n, cuts);
        sl_stops_destroy(stops);
        n_found += search(text, n, strings, n_strings).which >= 0;
    }
    assert_in_range(n_found, 300, 2700);
}

/* Whole characters in, whole characters out, also where a stop string shares first bytes with what
 * comes instead. */
static void test_characters_stay_whole(void **state)
{
    (void)state;
    const char *const characters[] = {"a",
                                      "\xc3\xa9",
                                      "\xc3\xa8",
                                      "\xe4\xbd\xa0",
                                      "\xe4\xbd\xa1",
                                      "\xf0\x9f\x98\x80",
                                      "\xf0\x9f\x98\x81"};
    const sl_str strings[] = {sl_str_of("\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80"),
                              sl_str_of("a\xf0\x9f\x98\x81\xc3\xa8")};
    sl_stops *stops = stops_of(strings, 2);
    sl_test_rng rng = sl_test_rng_of(5);
    for (int round = 0; round < 300; round++) {
        sl_stop_stream stream = sl_stop_stream_of(stops);
        sl_error err;
        sl_buf out;
        sl_buf_init(&out, SL_MEM_TEXT, MAX_TEXT);
        for (int i = 0; i < 20 && stream.found < 0; i++) {
            const char *character = characters[sl_test_rng_below(&rng, SL_COUNTOF(characters))];
            assert_ok(sl_stop_push(&stream, character, strlen(character), &out, &err));
            assert_true(sl_utf8_valid(out.data, out.n_bytes, NULL));
        }
        sl_buf_free(&out);
    }
    sl_stops_destroy(stops);
}

static void test_fork_and_reuse(void **state)
{
    (void)state;
    const sl_str string = sl_str_of("STOP");
    sl_stops *stops = stops_of(&string, 1);
    sl_error err;
    sl_buf a, b;
    sl_buf_init(&a, SL_MEM_TEXT, 100);
    sl_buf_init(&b, SL_MEM_TEXT, 100);
    sl_stop_stream stream = sl_stop_stream_of(stops);
    assert_ok(sl_stop_push(&stream, "xST", 3, &a, &err));
    sl_stop_stream fork = stream;
    assert_ok(sl_stop_push(&stream, "OPy", 3, &a, &err));
    assert_int_equal(stream.found, 0);
    assert_ok(sl_stop_push(&stream, "more", 4, &a, &err));
    assert_ok(sl_stop_flush(&stream, &a, &err));
    assert_string_equal(a.data, "x");
    assert_ok(sl_stop_push(&fork, "AY", 2, &b, &err));
    assert_ok(sl_stop_push(&fork, "ST", 2, &b, &err));
    assert_string_equal(b.data, "STAY");
    assert_ok(sl_stop_flush(&fork, &b, &err));
    assert_string_equal(b.data, "STAYST");
    assert_ok(sl_stop_push(&fork, "OP", 2, &b, &err)); /* another text */
    assert_int_equal(fork.found, -1);
    assert_string_equal(b.data, "STAYSTOP");
    sl_buf_free(&a);
    sl_buf_free(&b);
    sl_stops_destroy(stops);
}

static void test_limits(void **state)
{
    (void)state;
    static char long_text[SL_MAX_STOP_BYTES + 1];
    memset(long_text, 'a', sizeof long_text);
    sl_str strings[SL_MAX_STOPS + 1];
    for (size_t i = 0; i < SL_COUNTOF(strings); i++)
        strings[i] = (sl_str){long_text, SL_MAX_STOP_BYTES - i};
    sl_error err;
    sl_stops *stops;
    assert_refused(sl_stops_create(strings, SL_MAX_STOPS + 1, &stops, &err), SL_ERR_LIMIT,
                   "65 stop strings, there may be 64");
    assert_null(stops);
    sl_stops_destroy(stops);
    const size_t n = strings[3].n_bytes;
    strings[3].n_bytes = SL_MAX_STOP_BYTES + 1;
    assert_refused(sl_stops_create(strings, SL_MAX_STOPS, &stops, &err), SL_ERR_LIMIT,
                   "stop string 4 has 4097 bytes, it may have 4096");
    strings[3].n_bytes = 0;
    assert_refused(sl_stops_create(strings, SL_MAX_STOPS, &stops, &err), SL_ERR_ARGUMENT,
                   "stop string 4 is empty");
    strings[3].n_bytes = n;

    /* All of them at their longest, over a text that nearly matches again and again. */
    stops = stops_of(strings, SL_MAX_STOPS);
    sl_stop_stream stream = sl_stop_stream_of(stops);
    const size_t shortest = strings[SL_MAX_STOPS - 1].n_bytes;
    sl_buf out;
    sl_buf_init(&out, SL_MEM_TEXT, 1 << 20);
    for (int i = 0; i < 20; i++) {
        assert_ok(sl_stop_push(&stream, long_text, shortest - 1, &out, &err));
        assert_ok(sl_stop_push(&stream, "b", 1, &out, &err));
        assert_int_equal(out.n_bytes, (size_t)(i + 1) * shortest);
    }
    assert_ok(sl_stop_push(&stream, long_text, SL_MAX_STOP_BYTES, &out, &err));
    assert_int_equal(stream.found, SL_MAX_STOPS - 1);
    assert_int_equal(out.n_bytes, 20 * shortest);
    sl_buf_free(&out);
    sl_stops_destroy(stops);
}

static void test_failures(void **state)
{
    (void)state;
    const sl_str strings[] = {sl_str_of("abcd"), sl_str_of("xyz")};
    const size_t blocks = sl_mem_get_stats().blocks;
    sl_stops *stops = NULL;
    sl_error err;
    for (uint64_t n = 1; !stops; n++) {
        sl_mem_fail_at(n, true);
        const sl_status status = sl_stops_create(strings, 2, &stops, &err);
        sl_mem_fail_at(0, false);
        assert_int_equal(status, stops ? SL_OK : SL_ERR_MEMORY);
        if (!stops)
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    /* A failed push or flush can be repeated. */
    sl_stop_stream stream = sl_stop_stream_of(stops);
    sl_buf out;
    sl_buf_init(&out, SL_MEM_TEXT, 8);
    sl_mem_fail_at(1, true);
    assert_refused(sl_stop_push(&stream, "abcxabc", 7, &out, &err), SL_ERR_MEMORY, "");
    sl_mem_fail_at(0, false);
    assert_ok(sl_stop_push(&stream, "abc", 3, &out, &err));
    sl_buf_free(&out); /* so that the next append has to ask for memory */
    sl_mem_fail_at(1, true);
    assert_refused(sl_stop_push(&stream, "123", 3, &out, &err), SL_ERR_MEMORY, "");
    assert_refused(sl_stop_flush(&stream, &out, &err), SL_ERR_MEMORY, "");
    sl_mem_fail_at(0, false);
    assert_int_equal(out.n_bytes, 0);
    assert_refused(sl_stop_push(&stream, "123456", 6, &out, &err), SL_ERR_LIMIT, "8 bytes");
    assert_int_equal(out.n_bytes, 0);
    assert_ok(sl_stop_push(&stream, "1xy", 3, &out, &err));
    assert_string_equal(out.data, "abc1");
    assert_ok(sl_stop_flush(&stream, &out, &err));
    assert_string_equal(out.data, "abc1xy");
    sl_buf_free(&out);
    sl_stops_destroy(stops);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_cut),
        cmocka_unit_test(test_random_texts),
        cmocka_unit_test(test_characters_stay_whole),
        cmocka_unit_test(test_fork_and_reuse),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
