/* Text to ids: the reference lines of both tokenizers, untrusted text, hostile vocabularies, and
 * texts that make naive tokenizers slow or overflow the stack. */
#include "support.h"

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text_data.h"

static const sl_encode_options all_added = {.control = true, .user_defined = true};
static const sl_encode_options no_control = {.user_defined = true};

/* ---- reference lines ---- */

static size_t check_line(const sl_tokenizer *tokenizer, const json_t *line, const char *name,
                         size_t number)
{
    sl_error err;
    sl_str text = sl_test_string(line, "text");
    bool specials = json_is_true(json_object_get(line, "specials"));
    const json_t *expected = json_object_get(line, "ids");
    sl_ids ids = {0};
    size_t n_replaced = 1;
    assert_ok(sl_tokenizer_encode(tokenizer, text.data, text.n_bytes,
                                  specials ? &all_added : &no_control, &ids, &n_replaced, &err));
    assert_int_equal(n_replaced, 0);
    bool same = ids.n == json_array_size(expected);
    for (size_t i = 0; same && i < ids.n; i++)
        same = ids.ids[i] == json_integer_value(json_array_get(expected, i));
    if (!same) {
        print_error("%s line %zu (%s): %zu ids, expected %zu; text \"%s\"\n", name, number,
                    json_string_value(json_object_get(line, "cat")), ids.n,
                    json_array_size(expected), text.data);
        for (size_t i = 0; i < ids.n && i < 40; i++)
            print_error(" %d", (int)ids.ids[i]);
        print_error("\n");
    }
    sl_ids_free(&ids);
    return same ? 0 : 1;
}

static void check_lines(const char *name, size_t n_vocab, const char *path)
{
    sl_tokenizer *tokenizer = sl_test_tokenizer(name, n_vocab);
    sl_test_lines lines = {0};
    sl_test_lines_open(&lines, path);
    size_t n_lines = 0, n_bad = 0;
    for (json_t *line; (line = sl_test_lines_next(&lines)) != NULL;) {
        n_bad += check_line(tokenizer, line, name, ++n_lines);
        json_decref(line);
    }
    assert_int_equal(n_bad, 0);
    assert_int_equal(n_lines, 709);
    sl_test_lines_close(&lines);
    sl_tokenizer_free(tokenizer);
}

static void test_reference_tiny(void **state)
{
    (void)state;
    check_lines("tiny", SL_TEST_TINY_ROWS, "tests/data/tokenizer/tiny-encode.jsonl");
}

static void test_reference_qwen35(void **state)
{
    (void)state;
    check_lines("qwen35", SL_TEST_QWEN35_ROWS, "tests/data/tokenizer/qwen35-encode.jsonl");
}

/* ---- a small vocabulary ---- */

#define T(text) ((sl_str){"" text, sizeof text - 1})

#define N SL_TOKEN_NORMAL
#define C SL_TOKEN_CONTROL
#define U SL_TOKEN_USER_DEFINED

/* Texts and kinds of added tokens from 256 on. */
static const sl_str added_texts[] = {
    T("<|im_start|>"), T("<|im_end|>"), T("<think>"), T("</think>"),  T("<"),
    T("<|im"),         T("xyx"),        T("yxyxy"),   T("\xC3\xA9<"),
};
static const sl_token_kind added_kinds[] = {C, C, U, U, U, C, U, C, U};
enum { IM_START = 256, IM_END, THINK, END_THINK, LESS, IM, XYX, YXYXY, E_LESS };

static sl_tokenizer *small(void)
{
    return sl_test_byte_tokenizer(SL_COUNTOF(added_texts), added_texts, added_kinds, 0, NULL);
}

/* Encodes and compares with `expected`, ids as text: bytes stand for themselves, added tokens are
 * "[name]" of their id. */
static void assert_encodes(const sl_tokenizer *tokenizer, const sl_encode_options *options,
                           sl_str text, const char *expected)
{
    sl_error err;
    sl_ids ids = {0};
    assert_ok(sl_tokenizer_encode(tokenizer, text.data, text.n_bytes, options, &ids, NULL, &err));
    char got[256];
    size_t n = 0;
    for (size_t i = 0; i < ids.n; i++) {
        sl_str bytes = sl_tokenizer_bytes(tokenizer, ids.ids[i]);
        assert_true(n + bytes.n_bytes + 3 < sizeof got);
        if (ids.ids[i] >= 256)
            got[n++] = '[';
        memcpy(got + n, bytes.data, bytes.n_bytes);
        n += bytes.n_bytes;
        if (ids.ids[i] >= 256)
            got[n++] = ']';
    }
    got[n] = '\0';
    assert_string_equal(got, expected);
    sl_ids_free(&ids);
}

static void test_added_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *text, *all, *no_control, *no_user;
    } cases[] = {
        {"a<think>b", "a[<think>]b", "a[<think>]b", "a<think>b"},
        {"<|im_start|>", "[<|im_start|>]", "[<]|im_start|>", "[<|im_start|>]"},
        /* The longest at a place; what is not wanted does not hide what is. */
        {"<|im_en", "[<|im]_en", "[<]|im_en", "[<|im]_en"},
        {"<|i", "[<]|i", "[<]|i", "<|i"},
        {"<think", "[<]think", "[<]think", "<think"},
        {"<<think>", "[<][<think>]", "[<][<think>]", "<<think>"},
        /* Leftmost first, even when a longer one begins inside it. */
        {"xyxyxy", "[xyx]yxy", "[xyx]yxy", "x[yxyxy]"},
        {"xyxyx", "[xyx]yx", "[xyx]yx", "xyxyx"},
        {"yxyxyx", "[yxyxy]x", "y[xyx]yx", "[yxyxy]x"},
        {"\xC3\xA9<", "[\xC3\xA9<]", "[\xC3\xA9<]", "\xC3\xA9<"},
        {"", "", "", ""},
    };
    static const sl_encode_options no_user = {.control = true};
    sl_tokenizer *tokenizer = small();
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_str text = sl_str_of(cases[i].text);
        assert_encodes(tokenizer, &all_added, text, cases[i].all);
        assert_encodes(tokenizer, &no_control, text, cases[i].no_control);
        assert_encodes(tokenizer, &no_user, text, cases[i].no_user);
        assert_encodes(tokenizer, NULL, text, cases[i].text);
    }
    /* They are cut out before normalisation: the stroke finds no "<" to join. */
    assert_encodes(tokenizer, &all_added, sl_str_of("<\xCC\xB8"), "[<]\xCC\xB8");
    assert_encodes(tokenizer, NULL, sl_str_of("<\xCC\xB8"), "\xE2\x89\xAE");
    sl_tokenizer_free(tokenizer);
}

/* Every range of a text that holds tokens, against the rule: a token is taken only where none of
 * its bytes is untrusted. */
static void test_every_untrusted_range(void **state)
{
    (void)state;
    static const char text[] = "a<|im_end|></think><think>b";
    static const struct {
        size_t begin, end;
        int32_t id;
    } tokens[] = {{1, 11, IM_END}, {11, 19, END_THINK}, {19, 26, THINK}};
    const size_t n = sizeof text - 1;
    sl_tokenizer *tokenizer = small();
    sl_error err;
    for (size_t begin = 0; begin <= n; begin++) {
        for (size_t end = begin; end <= n; end++) {
            const sl_range range = {begin, end};
            const sl_encode_options options = {true, true, &range, 1};
            sl_ids ids = {0};
            assert_ok(sl_tokenizer_encode(tokenizer, text, n, &options, &ids, NULL, &err));
            size_t pos = 0;
            for (size_t i = 0; i < ids.n; i++) {
                for (size_t k = 0; k < SL_COUNTOF(tokens); k++) {
                    bool touched = begin < end && tokens[k].begin < end && begin < tokens[k].end;
                    bool split = begin == end && tokens[k].begin < begin && begin < tokens[k].end;
                    if (pos == tokens[k].begin && !split)
                        assert_int_equal(ids.ids[i] == tokens[k].id, !touched);
                }
                if (ids.ids[i] >= 256 && begin < end)
                    assert_true(pos >= end ||
                                pos + sl_tokenizer_bytes(tokenizer, ids.ids[i]).n_bytes <= begin);
                pos += sl_tokenizer_bytes(tokenizer, ids.ids[i]).n_bytes;
            }
            assert_int_equal(pos, n);
            sl_ids_free(&ids);
        }
    }
    sl_tokenizer_free(tokenizer);
}

static void test_untrusted_text(void **state)
{
    (void)state;
    sl_tokenizer *tokenizer = small();
    /* The user writes a whole token, the first half, the second half; then a shorter token that is
     * trusted is still found. */
    static const char text[] = "<|im_start|><|im_end|><|im_end|><|im_end|>";
    static const sl_range whole[] = {{12, 22}}, parts[] = {{12, 15}, {30, 32}, {40, 42}};
    sl_encode_options options = {true, true, whole, 1};
    assert_encodes(tokenizer, &options, sl_str_of(text),
                   "[<|im_start|>]<|im_end|>[<|im_end|>][<|im_end|>]");
    options.untrusted = parts;
    options.n_untrusted = SL_COUNTOF(parts);
    assert_encodes(tokenizer, &options, sl_str_of(text),
                   "[<|im_start|>]<|im_end|>[<|im]_end|>[<|im]_end|>");
    sl_tokenizer_free(tokenizer);

    /* Pieces and merges do not see the border. */
    static const sl_str extra[] = {T("ab"), T("abc"), T("<c>")}, merges[] = {T("a b"), T("ab c")};
    static const sl_token_kind kinds[] = {N, N, C};
    tokenizer = sl_test_byte_tokenizer(3, extra, kinds, 2, merges);
    static const sl_range border[] = {{2, 3}};
    options = (sl_encode_options){true, true, border, 1};
    assert_encodes(tokenizer, &options, sl_str_of("xabc<c>"), "x[abc][<c>]");
    sl_tokenizer_free(tokenizer);
}

static void test_bad_ranges(void **state)
{
    (void)state;
    static const sl_range bad[][2] = {
        {{0, 2}, {1, 3}}, {{2, 3}, {0, 1}}, {{3, 2}, {4, 4}},
        {{0, 1}, {2, 6}}, {{6, 6}, {6, 6}}, {{0, 1}, {2, SIZE_MAX}},
    };
    sl_error err;
    sl_tokenizer *tokenizer = small();
    sl_ids ids = {0};
    assert_ok(sl_ids_push(&ids, 7, &err));
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        const sl_encode_options options = {true, true, bad[i], 2};
        assert_refused(sl_tokenizer_encode(tokenizer, "abcde", 5, &options, &ids, NULL, &err),
                       SL_ERR_ARGUMENT, "untrusted range");
        assert_int_equal(ids.n, 1);
    }
    static const sl_range touching[] = {{0, 2}, {2, 2}, {2, 5}};
    const sl_encode_options options = {true, true, touching, 3};
    assert_encodes(tokenizer, &options, sl_str_of("<thin"), "<thin");
    sl_ids_free(&ids);
    sl_tokenizer_free(tokenizer);
}

static void test_invalid_utf8(void **state)
{
    (void)state;
#define R "\xEF\xBF\xBD"
    static const struct {
        sl_str text;
        const char *expected;
        size_t n_replaced;
    } cases[] = {
        {T("plain " R), "plain " R, 0},
        {T("a\xFF"
           "b"),
         "a" R "b", 1},
        {T("\xE2\x82<think>\xE2\x82"), R "[<think>]" R, 2},
        {T("\xED\xA0\x80"), R R R, 3},
        {T("<\x80think>"), "[<]" R "think>", 1},
        {T("\xC3<think>" R "\xF0\x9F\x98"), R "[<think>]" R R, 2},
        {T("\x80\xC3\xA9<"), R "[\xC3\xA9<]", 1},
        {T("e\xCC\x81\xCC"), "\xC3\xA9" R, 1},
    };
    sl_tokenizer *tokenizer = small();
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_error err;
        sl_ids ids = {0};
        size_t n_replaced;
        assert_encodes(tokenizer, &all_added, cases[i].text, cases[i].expected);
        assert_ok(sl_tokenizer_encode(tokenizer, cases[i].text.data, cases[i].text.n_bytes,
                                      &all_added, &ids, &n_replaced, &err));
        assert_int_equal(n_replaced, cases[i].n_replaced);
        sl_ids_free(&ids);
    }
    sl_tokenizer_free(tokenizer);
}

static void test_look_ups(void **state)
{
    (void)state;
    static const sl_str extra[] = {T("\xC4\xA0t"), T("<|a|>"), T("\xC4\x8A"),
                                   T("[PAD]"),     T("A"),     T("")};
    static const sl_token_kind kinds[] = {N, C, U, SL_TOKEN_UNUSED, U, SL_TOKEN_UNUSED};
    sl_tokenizer *tokenizer = sl_test_byte_tokenizer(SL_COUNTOF(extra), extra, kinds, 0, NULL);
    assert_int_equal(sl_tokenizer_count(tokenizer), 262);
    assert_int_equal(sl_tokenizer_find(tokenizer, "\xC4\xA0t"), 256); /* space, t */
    assert_int_equal(sl_tokenizer_find(tokenizer, " t"), -1);
    assert_int_equal(sl_tokenizer_find(tokenizer, "<|a|>"), 257);
    assert_int_equal(sl_tokenizer_find(tokenizer, "\xC4\x8A"), 258); /* not byte 10 */
    assert_int_equal(sl_tokenizer_find(tokenizer, "\xC4\xA0"), ' ');
    assert_int_equal(sl_tokenizer_find(tokenizer, "A"), 260); /* added tokens go first */
    assert_int_equal(sl_tokenizer_find(tokenizer, "B"), 'B');
    assert_int_equal(sl_tokenizer_find(tokenizer, "[PAD]"), -1);
    assert_int_equal(sl_tokenizer_find(tokenizer, ""), -1);
    assert_int_equal(sl_tokenizer_find(tokenizer, "\xFF"), -1);
    assert_true(sl_str_is(sl_tokenizer_bytes(tokenizer, 256), " t"));
    assert_true(sl_str_is(sl_tokenizer_bytes(tokenizer, 258), "\xC4\x8A"));
    static const int32_t none[] = {-1, INT32_MIN, 259, 261, 262, INT32_MAX};
    for (size_t i = 0; i < SL_COUNTOF(none); i++) {
        assert_int_equal(sl_tokenizer_bytes(tokenizer, none[i]).n_bytes, 0);
        assert_int_equal(sl_tokenizer_kind(tokenizer, none[i]), SL_TOKEN_UNUSED);
    }
    for (int byte = 0; byte < 256; byte++) {
        char c = (char)byte;
        assert_true(sl_str_equal(sl_tokenizer_bytes(tokenizer, byte), (sl_str){&c, 1}));
        assert_int_equal(sl_tokenizer_kind(tokenizer, byte), SL_TOKEN_NORMAL);
    }
    assert_int_equal(sl_tokenizer_kind(tokenizer, 257), SL_TOKEN_CONTROL);
    sl_tokenizer_free(tokenizer);
    sl_tokenizer_free(NULL);

    static const sl_token_kind by_type[] = {
        SL_TOKEN_INVALID, N, SL_TOKEN_INVALID, C, U, SL_TOKEN_UNUSED, SL_TOKEN_INVALID};
    for (int type = 0; type < (int)SL_COUNTOF(by_type); type++)
        assert_int_equal(sl_token_kind_from_gguf(type), by_type[type]);
    assert_int_equal(sl_token_kind_from_gguf(-1), SL_TOKEN_INVALID);
    assert_int_equal(sl_token_kind_from_gguf(INT_MAX), SL_TOKEN_INVALID);
    assert_int_equal(sl_token_kind_from_gguf(INT_MIN), SL_TOKEN_INVALID);
}

/* ---- merges against the definition ---- */

/* The definition, at its own pace: look for the lowest rank, merge its first pair, start again. */
static size_t merge_slowly(uint32_t *ids, size_t n, const uint32_t (*merges)[3], size_t n_merges)
{
    for (;;) {
        size_t best = n_merges, at = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            for (size_t rank = 0; rank < best; rank++) {
                if (merges[rank][0] == ids[i] && merges[rank][1] == ids[i + 1]) {
                    best = rank;
                    at = i;
                }
            }
        }
        if (best == n_merges)
            return n;
        ids[at] = merges[best][2];
        memmove(ids + at + 1, ids + at + 2, (n - at - 2) * sizeof *ids);
        n--;
    }
}

/* A vocabulary over the letters a, b, c, with merges in any order. */
enum { EXTRA = 40, LENGTH = 8, MERGES = 80 };
typedef struct random_vocab {
    char texts[EXTRA][LENGTH + 1]; /* tokens from 256 on */
    size_t n_extra;
    uint32_t merges[MERGES][3];
    size_t n_merges;
} random_vocab;

static void spell(const random_vocab *v, uint32_t id, char out[LENGTH + 1])
{
    snprintf(out, LENGTH + 1, "%s", id < 256 ? (char[2]){(char)id} : v->texts[id - 256]);
}

/* Joins two tokens that are there to one that is new or there too. */
static void add_random_merge(random_vocab *v, sl_test_rng *rng)
{
    uint32_t part[2], result = 0;
    char text[2][LENGTH + 1], joined[2 * LENGTH + 1];
    for (size_t k = 0; k < 2; k++) {
        uint32_t pick = sl_test_rng_below(rng, (uint32_t)v->n_extra + 3);
        part[k] = pick < 3 ? 'a' + pick : 256 + pick - 3;
        spell(v, part[k], text[k]);
    }
    snprintf(joined, sizeof joined, "%s%s", text[0], text[1]);
    for (size_t i = 0; i < v->n_merges; i++) {
        if (v->merges[i][0] == part[0] && v->merges[i][1] == part[1])
            return;
    }
    while (result < v->n_extra && strcmp(v->texts[result], joined) != 0)
        result++;
    if (strlen(joined) > LENGTH || result == EXTRA)
        return;
    if (result == v->n_extra)
        memcpy(v->texts[v->n_extra++], joined, strlen(joined) + 1);
    const uint32_t merge[3] = {part[0], part[1], 256 + result};
    memcpy(v->merges[v->n_merges++], merge, sizeof merge);
}

static random_vocab make_random_vocab(sl_test_rng *rng)
{
    random_vocab v = {0};
    for (size_t tries = 0; tries < 400 && v.n_merges < MERGES; tries++)
        add_random_merge(&v, rng);
    for (size_t i = v.n_merges; i > 1; i--) {
        size_t j = sl_test_rng_below(rng, (uint32_t)i);
        uint32_t swapped[3];
        memcpy(swapped, v.merges[j], sizeof swapped);
        memcpy(v.merges[j], v.merges[i - 1], sizeof swapped);
        memcpy(v.merges[i - 1], swapped, sizeof swapped);
    }
    return v;
}

static sl_tokenizer *random_tokenizer(const random_vocab *v)
{
    sl_str extra[EXTRA], merges[MERGES];
    static const sl_token_kind kinds[EXTRA] = {SL_TOKEN_NORMAL};
    char texts[MERGES][2 * LENGTH + 2];
    for (size_t i = 0; i < v->n_extra; i++)
        extra[i] = sl_str_of(v->texts[i]);
    for (size_t i = 0; i < v->n_merges; i++) {
        char left[LENGTH + 1], right[LENGTH + 1];
        spell(v, v->merges[i][0], left);
        spell(v, v->merges[i][1], right);
        snprintf(texts[i], sizeof texts[i], "%s %s", left, right);
        merges[i] = sl_str_of(texts[i]);
    }
    return sl_test_byte_tokenizer(v->n_extra, extra, kinds, v->n_merges, merges);
}

/* Merges come in random order, as no trained vocabulary has them: a merge may make pairs of a lower
 * rank than its own. */
static void test_merges_follow_the_definition(void **state)
{
    (void)state;
    enum { TEXT = 700 };
    sl_test_rng rng = sl_test_rng_of(11);
    for (size_t round = 0; round < 60; round++) {
        random_vocab v = make_random_vocab(&rng);
        sl_tokenizer *tokenizer = random_tokenizer(&v);
        for (size_t n = 1; n <= TEXT; n += n < 40 ? 1 : 220) {
            char text[TEXT];
            uint32_t expected[TEXT];
            for (size_t i = 0; i < n; i++) {
                text[i] = (char)('a' + sl_test_rng_below(&rng, 3));
                expected[i] = (uint32_t)text[i];
            }
            size_t n_expected =
                merge_slowly(expected, n, (const uint32_t(*)[3])v.merges, v.n_merges);
            sl_error err;
            sl_ids ids = {0};
            assert_ok(sl_tokenizer_encode(tokenizer, text, n, NULL, &ids, NULL, &err));
            assert_int_equal(ids.n, n_expected);
            for (size_t i = 0; i < ids.n; i++)
                assert_int_equal(ids.ids[i], expected[i]);
            sl_ids_free(&ids);
        }
        sl_tokenizer_free(tokenizer);
    }
}

/* ---- what a file may do to us ---- */

static void refuse(const sl_tokenizer_spec *spec, sl_status status, const char *part)
{
    sl_error err;
    sl_tokenizer *tokenizer;
    size_t blocks = sl_mem_get_stats().blocks;
    assert_refused(sl_tokenizer_create(spec, &tokenizer, &err), status, part);
    assert_null(tokenizer);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
}

static void test_bad_tokens(void **state)
{
    (void)state;
    static const struct {
        sl_str text;
        int kind;
        const char *part;
    } cases[] = {
        {T(""), N, "token 256 is empty"},
        {T(""), C, "token 256 is empty"},
        {T(""), U, "token 256 is empty"},
        {T("a b"), N, "token 256 (\"a b\") is not written in the byte alphabet"},
        {T("a\0b"), N, "byte alphabet"},
        {T("\xC5\x84"), N, "byte alphabet"}, /* U+0144, one past the alphabet */
        {T("\xC2\xAD"), N, "byte alphabet"},
        {T("a\xFF"), N, "byte alphabet"},
        {T("\xE4\xBD\xA0"), N, "byte alphabet"},
        {T("a\xFF"), C, "token 256 (\"a"},
        {T("\xED\xA0\x80"), U, "is not valid UTF-8"},
        {T("A"), N, "tokens 65 and 256 are the same (\"A\")"},
        {T("x"), -1, "unknown kind (-1)"},
        {T("x"), SL_TOKEN_INVALID, "unknown kind (4)"},
        {T("x"), INT_MAX, "unknown kind"},
        {T("x"), INT_MIN, "unknown kind"},
        {T("x"), 256, "unknown kind (256)"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_token_kind kind = (sl_token_kind)cases[i].kind;
        sl_test_vocab *vocab = sl_test_vocab_new(1, &cases[i].text, &kind, 0, NULL);
        refuse(&vocab->spec, SL_ERR_FORMAT, cases[i].part);
        sl_test_vocab_free(vocab);
    }
    static const sl_str twice[] = {T("<a>"), T("<a>")};
    static const sl_token_kind kinds[] = {C, U};
    sl_test_vocab *vocab = sl_test_vocab_new(2, twice, kinds, 0, NULL);
    refuse(&vocab->spec, SL_ERR_FORMAT, "tokens 256 and 257 are the same");
    vocab->kinds[257] = SL_TOKEN_UNUSED; /* whose text does not count */
    vocab->tokens[257] = T("\xFF");
    vocab->kinds['q'] = SL_TOKEN_UNUSED;
    refuse(&vocab->spec, SL_ERR_FORMAT, "no token stands for the byte 0x71");
    vocab->spec.n_tokens = 255;
    refuse(&vocab->spec, SL_ERR_FORMAT, "no token stands for the byte");
    vocab->spec.n_tokens = 0;
    refuse(&vocab->spec, SL_ERR_FORMAT, "no tokens");
    vocab->spec.pretok = (sl_pretok_rule)7;
    refuse(&vocab->spec, SL_ERR_UNSUPPORTED, "split rule 7");
    sl_test_vocab_free(vocab);
}

static void test_bad_merges(void **state)
{
    (void)state;
    static const sl_str extra[] = {T("ab"), T("<c>"), T("d")};
    static const sl_token_kind kinds[] = {N, C, U};
    static const struct {
        sl_str merge;
        const char *part;
    } cases[] = {
        {T(""), "merge 1 (\"\") is not two tokens"},
        {T(" "), "is not two tokens"},
        {T("ab"), "is not two tokens"},
        {T("a "), "is not two tokens"},
        {T(" b"), "is not two tokens"},
        {T("a  b"), "is not two tokens"},
        {T("a b c"), "is not two tokens"},
        {T("a \xFF"), "is not two tokens"},
        {T("a\0 b"), "is not two tokens"},
        {T("a b"), "merges 0 and 1 (\"a b\") are the same"},
        {T("xx b"), "the left part is not a normal token"},
        {T("a xx"), "the right part is not a normal token"},
        {T("b a"), "the result is not a normal token"},
        {T("<c> a"), "the left part is not a normal token"},
        {T("<c >"), "the left part is not a normal token"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        const sl_str merges[] = {T("a b"), cases[i].merge};
        sl_test_vocab *vocab = sl_test_vocab_new(3, extra, kinds, 2, merges);
        refuse(&vocab->spec, SL_ERR_FORMAT, cases[i].part);
        sl_test_vocab_free(vocab);
    }
    /* Merges that would spell an added token: it has no normal token of that text. */
    static const sl_str spells[] = {T("c >")};
    static const sl_str with_end[] = {T("c>"), T("<c>")};
    const sl_str reaches[] = {T("c >"), T("< c>")};
    static const sl_token_kind end_kinds[] = {N, C};
    sl_test_vocab *vocab = sl_test_vocab_new(2, with_end, end_kinds, 1, spells);
    sl_error err;
    sl_tokenizer *tokenizer;
    assert_ok(sl_tokenizer_create(&vocab->spec, &tokenizer, &err));
    sl_tokenizer_free(tokenizer);
    vocab->spec.merges = reaches;
    vocab->spec.n_merges = 2;
    refuse(&vocab->spec, SL_ERR_FORMAT, "merge 1 (\"< c>\"): the result is not a normal token");
    sl_test_vocab_free(vocab);
}

/* Sizes are judged before anything is read or allocated. */
static void test_limits(void **state)
{
    (void)state;
    static const sl_str texts[] = {T("x1"), T("x2")};
    static const sl_token_kind kinds[] = {U, U};
    sl_test_vocab *vocab = sl_test_vocab_new(2, texts, kinds, 0, NULL);
    vocab->spec.n_tokens = SL_VOCAB_MAX_TOKENS + 1;
    refuse(&vocab->spec, SL_ERR_LIMIT, "a vocabulary of 16777217 tokens");
    vocab->spec.n_tokens = SIZE_MAX;
    refuse(&vocab->spec, SL_ERR_LIMIT, "tokens (at most");
    vocab->spec.n_tokens = 258;
    static const size_t sizes[] = {SIZE_MAX, SIZE_MAX / 2 + 1, UINT32_MAX, SL_VOCAB_MAX_BYTES};
    for (size_t i = 0; i < SL_COUNTOF(sizes); i++) {
        vocab->tokens[256].n_bytes = sizes[i];
        refuse(&vocab->spec, SL_ERR_LIMIT, "the tokens up to 256 have more than 268435456 bytes");
    }
    vocab->tokens[256].n_bytes = 2;
    vocab->spec.n_merges = SL_VOCAB_MAX_TOKENS + 1;
    refuse(&vocab->spec, SL_ERR_LIMIT, "16777217 merges");
    vocab->spec.n_merges = 0;

    const size_t n = SL_ADDED_MAX_BYTES - 2;
    char *text = malloc(n + 1);
    assert_non_null(text);
    memset(text, 'x', n + 1);
    vocab->tokens[256] = (sl_str){text, n + 1};
    refuse(&vocab->spec, SL_ERR_LIMIT, "2 added tokens have 1048577 bytes");
    vocab->tokens[256].n_bytes = n;
    sl_error err;
    sl_tokenizer *tokenizer;
    assert_ok(sl_tokenizer_create(&vocab->spec, &tokenizer, &err));
    sl_ids ids = {0};
    assert_refused(
        sl_tokenizer_encode(tokenizer, text, SL_TOKENIZER_MAX_TEXT + 1, NULL, &ids, NULL, &err),
        SL_ERR_LIMIT, "a text of 1073741825 bytes");
    assert_ok(sl_tokenizer_encode(tokenizer, text, n, &all_added, &ids, NULL, &err));
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.ids[0], 256);
    sl_ids_free(&ids);
    sl_tokenizer_free(tokenizer);

    sl_vocab tokens;
    sl_bpe bpe;
    sl_bpe_work work = {0};
    vocab->kinds[256] = N;
    assert_ok(sl_vocab_init(&tokens, &vocab->spec, &err));
    assert_ok(sl_bpe_init(&bpe, &tokens, &vocab->spec, &err));
    assert_refused(sl_bpe_encode(&bpe, &work, text, SL_BPE_MAX_PIECE + 1, &ids, &err), SL_ERR_LIMIT,
                   "without a place to split");
    sl_bpe_free(&bpe);
    sl_vocab_free(&tokens);
    sl_test_vocab_free(vocab);
    free(text);
}

/* A token of a million bytes goes the same way as any other. */
static void test_long_normal_token(void **state)
{
    (void)state;
    const size_t n = 1000000;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'x', n);
    const sl_str extra[] = {{text, n}};
    static const sl_token_kind kinds[] = {N};
    sl_tokenizer *tokenizer = sl_test_byte_tokenizer(1, extra, kinds, 0, NULL);
    assert_int_equal(sl_tokenizer_bytes(tokenizer, 256).n_bytes, n);
    sl_error err;
    sl_ids ids = {0};
    assert_ok(sl_tokenizer_encode(tokenizer, text, n, NULL, &ids, NULL, &err));
    assert_int_equal(ids.n, n); /* no merge makes it, so text never does */
    sl_ids_free(&ids);
    sl_tokenizer_free(tokenizer);
    free(text);
}

static void test_memory_failures(void **state)
{
    (void)state;
    static const sl_str extra[] = {T("ab"), T("abc"), T("<c>"), T("cc")};
    static const sl_str merges[] = {T("a b"), T("ab c"), T("c c")};
    static const sl_token_kind kinds[] = {N, N, C, N};
    static const char text[] = "<c>abc e\xCC\x81 abcabcabcabcabcabcabcabcabcabcabcabc \xFF<c>";
    const size_t n = sizeof text - 1;
    sl_test_vocab *vocab = sl_test_vocab_new(4, extra, kinds, 3, merges);
    sl_error err;
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t at = 1; status != SL_OK; at++) {
        for (int forever = 1; forever >= 0; forever--) {
            size_t blocks = sl_mem_get_stats().blocks;
            sl_tokenizer *tokenizer = NULL;
            sl_ids ids = {0};
            sl_mem_fail_at(at, forever);
            status = sl_tokenizer_create(&vocab->spec, &tokenizer, &err);
            if (status == SL_OK) {
                status = sl_tokenizer_encode(tokenizer, text, n, &all_added, &ids, NULL, &err);
                sl_mem_fail_at(0, false);
                if (status == SL_ERR_MEMORY) {
                    assert_int_equal(ids.n, 0);
                    sl_ids again = {0};
                    assert_ok(
                        sl_tokenizer_encode(tokenizer, text, n, &all_added, &again, NULL, &err));
                    assert_true(again.n > 0);
                    sl_ids_free(&again);
                }
            }
            sl_mem_fail_at(0, false);
            assert_true(status == SL_OK || status == SL_ERR_MEMORY);
            sl_ids_free(&ids);
            sl_tokenizer_free(tokenizer);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
    }
    sl_test_vocab_free(vocab);
}

/* ---- time and stack ---- */

/* Merges that double: a, aa, aaaa, ... and the steps they take at two lengths. */
static void test_merging_takes_n_log_n_steps(void **state)
{
    (void)state;
    static const sl_str extra[] = {T("aa"), T("aaaa"), T("aaaaaaaa"), T("ba"), T("aab")};
    static const sl_str merges[] = {T("a a"), T("aa aa"), T("aaaa aaaa"), T("b a"), T("aa b")};
    static const sl_token_kind kinds[] = {N, N, N, N, N};
    static const char *const units[] = {"a", "aab", "ab", "baa", "c"};
    enum { MAX = 1 << 19 };
    sl_error err;
    sl_vocab tokens;
    sl_bpe bpe;
    sl_test_vocab *vocab = sl_test_vocab_new(5, extra, kinds, 5, merges);
    assert_ok(sl_vocab_init(&tokens, &vocab->spec, &err));
    assert_ok(sl_bpe_init(&bpe, &tokens, &vocab->spec, &err));
    char *text = malloc(MAX);
    assert_non_null(text);
    for (size_t u = 0; u < SL_COUNTOF(units); u++) {
        for (size_t i = 0; i < MAX; i++)
            text[i] = units[u][i % strlen(units[u])];
        for (size_t n = 2; n <= MAX; n *= 4) {
            sl_bpe_work work = {0};
            sl_ids ids = {0};
            size_t n_levels = 1, n_bytes = 0;
            for (size_t count = n; count > 16; count = (count + 15) / 16)
                n_levels++;
            assert_ok(sl_bpe_encode(&bpe, &work, text, n, &ids, &err));
            /* A merge is found once from the top and changes three ranks. */
            assert_true(work.n_steps <= 4 * n_levels * n);
            for (size_t i = 0; i < ids.n; i++) {
                sl_str bytes = sl_vocab_bytes(&tokens, (size_t)ids.ids[i]);
                assert_memory_equal(bytes.data, text + n_bytes, bytes.n_bytes);
                n_bytes += bytes.n_bytes;
            }
            assert_int_equal(n_bytes, n);
            sl_ids_free(&ids);
            sl_bpe_work_free(&work);
        }
    }
    free(text);
    sl_bpe_free(&bpe);
    sl_vocab_free(&tokens);
    sl_test_vocab_free(vocab);
}

/* Added tokens that nearly match everywhere. */
static void test_finding_takes_linear_steps(void **state)
{
    (void)state;
    enum { LONG = 5000, TEXT = 300000 };
    char *long_a = malloc(LONG), *text = malloc(TEXT);
    assert_non_null(long_a);
    assert_non_null(text);
    memset(long_a, 'a', LONG);
    long_a[0] = 'b';
    memset(text, 'a', TEXT);
    const sl_str extra[] = {{long_a, LONG}, {long_a + 1, LONG - 1}, T("aab"), T("a")};
    static const sl_token_kind kinds[] = {U, C, U, U};
    sl_error err;
    sl_vocab tokens;
    sl_added added;
    sl_test_vocab *vocab = sl_test_vocab_new(4, extra, kinds, 0, NULL);
    assert_ok(sl_vocab_init(&tokens, &vocab->spec, &err));
    assert_ok(sl_added_init(&added, &tokens, &err));
    for (size_t every = 0; every <= 9; every++) {
        for (size_t i = 0; every > 0 && i < TEXT; i += every * 999)
            text[i] = 'b';
        sl_added_matches matches = {0};
        assert_ok(sl_added_find(&added, text, 0, TEXT, true, true, &matches, &err));
        assert_true(matches.n_steps <= 2 * TEXT);
        assert_true(matches.n > 0);
        sl_free(matches.list);
    }
    sl_added_free(&added);
    sl_vocab_free(&tokens);
    sl_test_vocab_free(vocab);
    free(long_a);
    free(text);
}

/* Long texts that make naive tokenizers slow or overflow their stack. The number of tokens and the
 * sum over k of id[k] * (k mod 1000 + 1) modulo 2^32 are those of the Hugging Face library. */
static const struct {
    const char *unit;
    size_t n_bytes, n_ids;
    uint32_t sum;
} long_cases[] = {
    {"a", 5000000, 625000, 1067604244},
    {" ", 100000, 782, 3922091570},
    {"\n", 10000, 313, 3736651592},
    {"Z", 131072, 65536, 2938157568},
    {"\xCD\x85\xCC\x81\xCC\xA3", 120000, 100000, 2830779888}, /* marks out of order */
    {"<|im_start|>", 120000, 10000, 219676456},
    {"<|im_star", 90000, 40000, 1376907344},
    {"\xFF", 30000, 7500, 931540126}, /* U+FFFD each */
    {" \n", 100000, 25000, 3858635656},
    {"\xE0\xA4\x95\xE0\xA4\xBF", 150000, 25001, 1062829142},
    {"\xEA\xB0\x80", 90000, 15000, 4159460484},
    {"7", 50000, 50000, 550550000},
    {"<", 100000, 12500, 840033052},
    {"'s", 50000, 25000, 2949770204},
};

typedef struct long_run {
    const sl_tokenizer *tokenizer;
    const char *text;
    size_t n;
    sl_ids ids;
    sl_error err;
    sl_status status;
} long_run;

static void *run_long(void *context)
{
    long_run *run = context;
    run->status = sl_tokenizer_encode(run->tokenizer, run->text, run->n, &all_added, &run->ids,
                                      NULL, &run->err);
    return NULL;
}

static void test_long_texts_on_a_small_stack(void **state)
{
    (void)state;
#ifdef __SANITIZE_ADDRESS__
    const size_t stack = 1 << 20; /* the sanitizer needs a stack of its own */
#else
    const size_t stack = 64 << 10;
#endif
    sl_tokenizer *tokenizer = sl_test_tokenizer("qwen35", SL_TEST_QWEN35_ROWS);
    pthread_attr_t attr;
    assert_int_equal(pthread_attr_init(&attr), 0);
    assert_int_equal(pthread_attr_setstacksize(&attr, stack), 0);
    for (size_t i = 0; i < SL_COUNTOF(long_cases); i++) {
        const size_t n = long_cases[i].n_bytes, n_unit = strlen(long_cases[i].unit);
        char *text = malloc(n);
        assert_non_null(text);
        for (size_t k = 0; k < n; k++)
            text[k] = long_cases[i].unit[k % n_unit];
        long_run run = {.tokenizer = tokenizer, .text = text, .n = n};
        pthread_t thread;
        assert_int_equal(pthread_create(&thread, &attr, run_long, &run), 0);
        assert_int_equal(pthread_join(thread, NULL), 0);
        sl_error err = run.err;
        assert_ok(run.status);
        uint32_t sum = 0;
        for (size_t k = 0; k < run.ids.n; k++)
            sum += (uint32_t)run.ids.ids[k] * (uint32_t)(k % 1000 + 1);
        if (run.ids.n != long_cases[i].n_ids || sum != long_cases[i].sum)
            fail_msg("long case %zu: %zu ids with the sum %u", i, run.ids.n, (unsigned)sum);
        sl_ids_free(&run.ids);
        free(text);
    }
    assert_int_equal(pthread_attr_destroy(&attr), 0);
    sl_tokenizer_free(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reference_tiny),
        cmocka_unit_test(test_reference_qwen35),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_every_untrusted_range),
        cmocka_unit_test(test_untrusted_text),
        cmocka_unit_test(test_bad_ranges),
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_look_ups),
        cmocka_unit_test(test_merges_follow_the_definition),
        cmocka_unit_test(test_bad_tokens),
        cmocka_unit_test(test_bad_merges),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_long_normal_token),
        cmocka_unit_test(test_memory_failures),
        cmocka_unit_test(test_merging_takes_n_log_n_steps),
        cmocka_unit_test(test_finding_takes_linear_steps),
        cmocka_unit_test(test_long_texts_on_a_small_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
