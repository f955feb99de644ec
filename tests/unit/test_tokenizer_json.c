/* tokenizer.json: what is read, and that everything else is refused by name. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "text/pretok.h"
#include "text_data.h"

static const char tiny_path[] = "tests/data/tokenizer/tiny-tokenizer.json";

static json_t *parse(const char *text)
{
    sl_error err;
    json_t *value;
    assert_ok(sl_json_parse(text, strlen(text), "test", sl_json_limits_default(), &value, &err));
    return value;
}

/* A file with the 256 bytes, "ab", and one added token. */
static json_t *small_json(void)
{
    json_t *root = json_object(), *model = json_object(), *vocab = json_object();
    sl_test_vocab *bytes = sl_test_vocab_new(0, NULL, NULL, 0, NULL);
    for (int i = 0; i < 256; i++)
        json_object_setn_new(vocab, bytes->tokens[i].data, bytes->tokens[i].n_bytes,
                             json_integer(i));
    sl_test_vocab_free(bytes);
    json_object_set_new(vocab, "ab", json_integer(256));
    json_object_set_new(model, "type", json_string("BPE"));
    json_object_set_new(model, "vocab", vocab);
    json_object_set_new(model, "merges", parse("[\"a b\"]"));
    json_object_set_new(root, "model", model);
    json_object_set_new(root, "added_tokens",
                        parse("[{\"id\": 257, \"content\": \"<|e|>\", \"special\": true}]"));
    json_object_set_new(root, "normalizer", parse("{\"type\": \"NFC\"}"));
    json_t *pre = parse("{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
                        "\"pattern\": {}, \"behavior\": \"Isolated\", \"invert\": false}, "
                        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, "
                        "\"trim_offsets\": false, \"use_regex\": false}]}");
    json_t *split = json_array_get(json_object_get(pre, "pretokenizers"), 0);
    json_object_set_new(json_object_get(split, "pattern"), "Regex",
                        json_string(sl_pretok_pattern(SL_PRETOK_QWEN35)));
    json_object_set_new(root, "pre_tokenizer", pre);
    json_object_set_new(root, "decoder", parse("{\"type\": \"ByteLevel\"}"));
    return root;
}

/* Sets, or with NULL removes, the member at a path like "model/vocab/ab" or "added_tokens/0/id". */
static void change(json_t *root, const char *path, const char *value)
{
    char part[64];
    json_t *at = root;
    for (;;) {
        size_t n = strcspn(path, "/");
        assert_true(n < sizeof part);
        memcpy(part, path, n);
        part[n] = '\0';
        if (path[n] == '\0')
            break;
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(part)) : json_object_get(at, part);
        assert_non_null(at);
        path += n + 1;
    }
    if (!value) {
        assert_int_equal(json_object_del(at, part), 0);
        return;
    }
    json_t *wrapped = parse(value);
    if (json_is_array(at))
        assert_int_equal(json_array_set_new(at, (size_t)atoi(part), wrapped), 0);
    else
        assert_int_equal(json_object_set_new(at, part, wrapped), 0);
}

static sl_status create(const json_t *root, const json_t *extra, size_t n_vocab,
                        sl_tokenizer **tokenizer, sl_error *err)
{
    return sl_tokenizer_create_json(root, extra, n_vocab, "dir/tokenizer.json", tokenizer, err);
}

static void assert_ids(const sl_tokenizer *tokenizer, const char *text, size_t n,
                       const int32_t *expected)
{
    static const sl_encode_options all = {.control = true, .user_defined = true};
    sl_error err;
    sl_ids ids = {0};
    assert_ok(sl_tokenizer_encode(tokenizer, text, strlen(text), &all, &ids, NULL, &err));
    assert_int_equal(ids.n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(ids.ids[i], expected[i]);
    sl_ids_free(&ids);
}

static void test_small_file(void **state)
{
    (void)state;
    sl_error err;
    json_t *root = small_json();
    sl_tokenizer *tokenizer;
    assert_ok(create(root, NULL, 260, &tokenizer, &err));
    json_decref(root); /* nothing is borrowed */
    assert_int_equal(sl_tokenizer_count(tokenizer), 260);
    assert_int_equal(sl_tokenizer_kind(tokenizer, 256), SL_TOKEN_NORMAL);
    assert_int_equal(sl_tokenizer_kind(tokenizer, 257), SL_TOKEN_CONTROL);
    assert_int_equal(sl_tokenizer_kind(tokenizer, 258), SL_TOKEN_UNUSED);
    assert_int_equal(sl_tokenizer_kind(tokenizer, 259), SL_TOKEN_UNUSED);
    assert_ids(tokenizer, "abe\xCC\x81<|e|>", 4, (const int32_t[]){256, 0xC3, 0xA9, 257});
    sl_tokenizer_free(tokenizer);
}

/* Other ways to say the same, and parts that change nothing. */
static void test_variants(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
        bool nfc;
    } cases[] = {
        {"normalizer", "null", false},
        {"normalizer", NULL, false},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": []}", false},
        {"normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}]}", true},
        {"model/merges", "[[\"a\", \"b\"]]", true},
        {"model/ignore_merges", "false", true},
        {"model/dropout", "null", true},
        {"model/dropout", "0.0", true},
        {"model/unk_token", "\"<unk>\"", true},
        {"model/continuing_subword_prefix", "\"\"", true},
        {"model/end_of_word_suffix", "null", true},
        {"post_processor", "null", true},
        {"post_processor", "{\"type\": \"ByteLevel\", \"trim_offsets\": true}", true},
        {"post_processor",
         "{\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"A\"}}], "
         "\"pair\": [], \"special_tokens\": {}}",
         true},
        {"truncation", "{\"max_length\": 10}", true},
        {"pre_tokenizer/pretokenizers/1/trim_offsets", "true", true},
        {"decoder/add_prefix_space", "true", true},
        {"added_tokens/0/normalized", "false", true},
    };
    sl_error err;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        json_t *root = small_json();
        change(root, cases[i].path, cases[i].value);
        sl_tokenizer *tokenizer;
        assert_ok(create(root, NULL, 258, &tokenizer, &err));
        if (cases[i].nfc)
            assert_ids(tokenizer, "abe\xCC\x81", 3, (const int32_t[]){256, 0xC3, 0xA9});
        else
            assert_ids(tokenizer, "abe\xCC\x81", 4, (const int32_t[]){256, 'e', 0xCC, 0x81});
        sl_tokenizer_free(tokenizer);
        json_decref(root);
    }

    /* The other split rule. */
    json_t *root = small_json(), *pattern = json_string(sl_pretok_pattern(SL_PRETOK_QWEN2));
    char *text = json_dumps(pattern, JSON_ENCODE_ANY);
    change(root, "pre_tokenizer/pretokenizers/0/pattern/Regex", text);
    sl_tokenizer *tokenizer;
    assert_ok(create(root, NULL, 258, &tokenizer, &err));
    sl_tokenizer_free(tokenizer);
    free(text);
    json_decref(pattern);
    json_decref(root);
}

/* What to change in the small file, and the answer. */
static const struct {
    const char *path, *value;
    sl_status status;
    const char *part;
} refused[] = {
    {"model", NULL, SL_ERR_FORMAT, "dir/tokenizer.json: \"model\" is not an object"},
    {"model", "7", SL_ERR_FORMAT, "\"model\" is not an object"},
    {"model/type", NULL, SL_ERR_FORMAT, "type"},
    {"model/type", "\"Unigram\"", SL_ERR_UNSUPPORTED, "model: type \"Unigram\""},
    {"model/ignore_merges", "true", SL_ERR_UNSUPPORTED, "\"ignore_merges\""},
    {"model/ignore_merges", "1", SL_ERR_FORMAT, "ignore_merges"},
    {"model/dropout", "0.1", SL_ERR_UNSUPPORTED, "\"dropout\""},
    {"model/continuing_subword_prefix", "\"##\"", SL_ERR_UNSUPPORTED,
     "\"continuing_subword_prefix\""},
    {"model/end_of_word_suffix", "\"</w>\"", SL_ERR_UNSUPPORTED, "\"end_of_word_suffix\""},
    {"model/vocab", NULL, SL_ERR_FORMAT, "\"vocab\" is not an object"},
    {"model/vocab", "[]", SL_ERR_FORMAT, "\"vocab\" is not an object"},
    {"model/vocab/x", "258", SL_ERR_FORMAT, "the id of \"x\" is not one of the model's 258"},
    {"model/vocab/x", "-1", SL_ERR_FORMAT, "the id of \"x\""},
    {"model/vocab/x", "9223372036854775807", SL_ERR_FORMAT, "the id of \"x\""},
    {"model/vocab/x", "12345678901234567890", SL_ERR_FORMAT, "the id of \"x\""},
    {"model/vocab/x", "1.0", SL_ERR_FORMAT, "the id of \"x\""},
    {"model/vocab/x", "\"1\"", SL_ERR_FORMAT, "the id of \"x\""},
    {"model/vocab/x", "null", SL_ERR_FORMAT, "the id of \"x\""},
    {"model/vocab/x", "121", SL_ERR_FORMAT, "have the same id 121"},
    {"model/vocab/x", NULL, SL_ERR_FORMAT, "no token stands for the byte 0x78"},
    {"model/vocab/", "257", SL_ERR_FORMAT, "\"<|e|>\" has the id of \"\""},
    {"model/vocab/a b", "257", SL_ERR_FORMAT, "has the id of \"a b\""},
    {"model/merges", NULL, SL_ERR_FORMAT, "\"merges\" is not an array"},
    {"model/merges", "{}", SL_ERR_FORMAT, "\"merges\" is not an array"},
    {"model/merges/0", "7", SL_ERR_FORMAT, "merge 0 is not a pair of strings"},
    {"model/merges/0", "12345678901234567890", SL_ERR_FORMAT, "merge 0 is not a pair of strings"},
    {"model/merges/0", "[12345678901234567890, \"b\"]", SL_ERR_FORMAT, "merge 0 is not a pair"},
    {"model/merges/0", "[\"a\", 12345678901234567890]", SL_ERR_FORMAT, "merge 0 is not a pair"},
    {"model/type", "12345678901234567890", SL_ERR_FORMAT,
     "\"type\" must be a string, not an integer"},
    {"added_tokens/0/id", "12345678901234567890", SL_ERR_FORMAT,
     "is 12345678901234567890, outside"},
    {"model/merges/0", "[]", SL_ERR_FORMAT, "merge 0 is not a pair of strings"},
    {"model/merges/0", "[\"a\"]", SL_ERR_FORMAT, "merge 0 is not a pair of strings"},
    {"model/merges/0", "[\"a\", \"b\", \"c\"]", SL_ERR_FORMAT, "not a pair of strings"},
    {"model/merges/0", "[\"a\", 1]", SL_ERR_FORMAT, "merge 0 is not a pair of strings"},
    {"model/merges/0", "[\"\", \"b\"]", SL_ERR_FORMAT, "merge 0 (\" b\") is not two tokens"},
    {"model/merges/0", "[\"a b\", \"b\"]", SL_ERR_FORMAT, "merge 0 (\"a b b\")"},
    {"model/merges/0", "\"a\\u0000 b\"", SL_ERR_FORMAT, "is not two tokens"},
    {"model/merges/0", "\"b a\"", SL_ERR_FORMAT, "the result is not a normal token"},
    {"added_tokens", "{}", SL_ERR_FORMAT, "\"added_tokens\" is not an array"},
    {"added_tokens/0", "7", SL_ERR_FORMAT, "added_tokens[0]"},
    {"added_tokens/0/id", NULL, SL_ERR_FORMAT, "added_tokens[0]"},
    {"added_tokens/0/id", "258", SL_ERR_FORMAT, "added_tokens[0]"},
    {"added_tokens/0/id", "-1", SL_ERR_FORMAT, "added_tokens[0]"},
    {"added_tokens/0/id", "256", SL_ERR_FORMAT, "\"<|e|>\" has the id of \"ab\""},
    {"added_tokens/0/content", NULL, SL_ERR_FORMAT, "added token 257"},
    {"added_tokens/0/content", "\"\"", SL_ERR_FORMAT, "token 257 is empty"},
    {"added_tokens/0/content", "\"a\\u0000b\"", SL_ERR_FORMAT, "added token 257"},
    {"added_tokens/0/lstrip", "true", SL_ERR_UNSUPPORTED, "added token 257: \"lstrip\""},
    {"added_tokens/0/rstrip", "true", SL_ERR_UNSUPPORTED, "added token 257: \"rstrip\""},
    {"added_tokens/0/single_word", "true", SL_ERR_UNSUPPORTED, "\"single_word\""},
    {"added_tokens/0/normalized", "true", SL_ERR_UNSUPPORTED, "\"normalized\""},
    {"added_tokens/0/special", "\"yes\"", SL_ERR_FORMAT, "special"},
    {"normalizer", "7", SL_ERR_FORMAT, "normalizer is not an object"},
    {"normalizer/type", "\"NFKC\"", SL_ERR_UNSUPPORTED, "normalizer: type \"NFKC\""},
    {"normalizer", "{\"type\": \"Sequence\"}", SL_ERR_FORMAT, "\"normalizers\""},
    {"normalizer",
     "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Strip\"}]}",
     SL_ERR_UNSUPPORTED, "normalizer: type \"Strip\""},
    {"normalizer",
     "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Sequence\", \"normalizers\": "
     "[]}]}",
     SL_ERR_UNSUPPORTED, "type \"Sequence\""},
    {"pre_tokenizer", NULL, SL_ERR_FORMAT, "pre_tokenizer is not an object"},
    {"pre_tokenizer", "{\"type\": \"ByteLevel\"}", SL_ERR_UNSUPPORTED, "type \"ByteLevel\""},
    {"pre_tokenizer/pretokenizers", "[]", SL_ERR_UNSUPPORTED, "not Split and ByteLevel"},
    {"pre_tokenizer/pretokenizers", "7", SL_ERR_UNSUPPORTED, "not Split and ByteLevel"},
    {"pre_tokenizer/pretokenizers/0", "7", SL_ERR_FORMAT, "pre_tokenizer is not an object"},
    {"pre_tokenizer/pretokenizers/0/type", "\"Digits\"", SL_ERR_UNSUPPORTED, "type \"Digits\""},
    {"pre_tokenizer/pretokenizers/0/pattern", "{\"String\": \" \"}", SL_ERR_FORMAT, "Regex"},
    {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"\\\\s+\"", SL_ERR_UNSUPPORTED,
     "the split pattern \"\\s+\" is not known"},
    {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", SL_ERR_UNSUPPORTED,
     "behavior \"Removed\""},
    {"pre_tokenizer/pretokenizers/0/invert", "true", SL_ERR_UNSUPPORTED, "\"invert\""},
    {"pre_tokenizer/pretokenizers/1/type", "\"Metaspace\"", SL_ERR_UNSUPPORTED,
     "type \"Metaspace\""},
    {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", SL_ERR_UNSUPPORTED,
     "\"add_prefix_space\""},
    {"pre_tokenizer/pretokenizers/1/use_regex", NULL, SL_ERR_UNSUPPORTED, "\"use_regex\""},
    {"decoder", NULL, SL_ERR_FORMAT, "decoder is not an object"},
    {"decoder/type", "\"WordPiece\"", SL_ERR_UNSUPPORTED, "decoder: type \"WordPiece\""},
    {"post_processor", "[]", SL_ERR_FORMAT, "post_processor is not an object"},
    {"post_processor", "{\"type\": \"BertProcessing\"}", SL_ERR_UNSUPPORTED,
     "type \"BertProcessing\""},
    {"post_processor", "{\"type\": \"TemplateProcessing\", \"single\": []}", SL_ERR_UNSUPPORTED,
     "not the text once"},
    {"post_processor",
     "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\"}}, "
     "{\"Sequence\": {\"id\": \"A\"}}]}",
     SL_ERR_UNSUPPORTED, "a template that adds tokens"},
};

static void test_what_is_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(refused); i++) {
        json_t *root = small_json();
        change(root, refused[i].path, refused[i].value);
        sl_error err;
        sl_tokenizer *tokenizer;
        size_t blocks = sl_mem_get_stats().blocks;
        sl_status status = create(root, NULL, 258, &tokenizer, &err);
        if (status != refused[i].status)
            print_error("case %zu, %s\n", i, refused[i].path);
        assert_refused(status, refused[i].status, refused[i].part);
        assert_refused(status, refused[i].status, "dir/tokenizer.json: ");
        assert_null(tokenizer);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
        json_decref(root);
    }

    static const char *const roots[] = {"7", "[]", "{}", "null"};
    for (size_t i = 0; i < SL_COUNTOF(roots); i++) {
        sl_error err;
        sl_tokenizer *tokenizer;
        json_t *root = json_loads(roots[i], JSON_DECODE_ANY, NULL);
        assert_refused(create(root, NULL, 258, &tokenizer, &err), SL_ERR_FORMAT, "\"model\"");
        assert_refused(create(root, NULL, 0, &tokenizer, &err), SL_ERR_LIMIT, "0 tokens");
        assert_refused(create(root, NULL, SIZE_MAX, &tokenizer, &err), SL_ERR_LIMIT, "tokens");
        json_decref(root);
    }
}

/* added_tokens_decoder of tokenizer_config.json: adds ids that tokenizer.json does not name. */
static void test_extra_tokens(void **state)
{
    (void)state;
    static const struct {
        const char *extra;
        sl_status status;
        const char *part;
    } cases[] = {
        {"{\"258\": {\"content\": \"<x>\", \"special\": false}}", SL_OK, ""},
        {"{\"257\": {\"content\": \"<|e|>\", \"special\": false}}", SL_OK, ""},
        {"{\"256\": {\"content\": \"<x>\"}}", SL_ERR_FORMAT, "\"<x>\" has the id of \"ab\""},
        {"{\"260\": {\"content\": \"<x>\"}}", SL_ERR_FORMAT, "added_tokens_decoder: \"260\""},
        {"{\"-1\": {\"content\": \"<x>\"}}", SL_ERR_FORMAT, "\"-1\" is not one of the model's 260"},
        {"{\"\": {\"content\": \"<x>\"}}", SL_ERR_FORMAT, "added_tokens_decoder"},
        {"{\"1x\": {\"content\": \"<x>\"}}", SL_ERR_FORMAT, "\"1x\""},
        {"{\"18446744073709551874\": {\"content\": \"<x>\"}}", SL_ERR_FORMAT, "\"184467"},
        {"{\"258\": {\"content\": \"<|e|>\"}}", SL_ERR_FORMAT, "tokens 257 and 258 are the same"},
        {"{\"258\": {\"content\": \"<x>\", \"lstrip\": true}}", SL_ERR_UNSUPPORTED, "\"lstrip\""},
        {"{\"258\": 7}", SL_ERR_FORMAT, "added token 258"},
        {"[]", SL_ERR_FORMAT, "\"added_tokens_decoder\" is not an object"},
    };
    json_t *root = small_json();
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        json_t *extra = parse(cases[i].extra);
        sl_error err;
        sl_tokenizer *tokenizer;
        assert_refused(create(root, extra, 260, &tokenizer, &err), cases[i].status, cases[i].part);
        if (cases[i].status == SL_OK) {
            /* tokenizer.json decides the kind of the ids it names. */
            assert_int_equal(sl_tokenizer_kind(tokenizer, 257), SL_TOKEN_CONTROL);
            assert_int_equal(sl_tokenizer_find(tokenizer, "<x>"), i == 0 ? 258 : -1);
            assert_int_equal(sl_tokenizer_kind(tokenizer, 258),
                             i == 0 ? SL_TOKEN_USER_DEFINED : SL_TOKEN_UNUSED);
        }
        sl_tokenizer_free(tokenizer);
        json_decref(extra);
    }
    sl_error err;
    sl_tokenizer *tokenizer;
    assert_ok(create(root, json_null(), 260, &tokenizer, &err));
    sl_tokenizer_free(tokenizer);
    json_decref(root);
}

static void test_real_files(void **state)
{
    (void)state;
    sl_error err;
    sl_tokenizer *tokenizer = sl_test_tokenizer("qwen35", SL_TEST_QWEN35_ROWS);
    assert_int_equal(sl_tokenizer_count(tokenizer), 248320);
    assert_int_equal(sl_tokenizer_find(tokenizer, "<|endoftext|>"), 248044);
    assert_int_equal(sl_tokenizer_find(tokenizer, "<|im_start|>"), 248045);
    assert_int_equal(sl_tokenizer_find(tokenizer, "<|im_end|>"), 248046);
    assert_int_equal(sl_tokenizer_find(tokenizer, "</think>"), 248069);
    assert_int_equal(sl_tokenizer_kind(tokenizer, 248046), SL_TOKEN_CONTROL);
    assert_int_equal(sl_tokenizer_kind(tokenizer, 248060), SL_TOKEN_USER_DEFINED); /* fim */
    assert_int_equal(sl_tokenizer_kind(tokenizer, 248070), SL_TOKEN_UNUSED);
    assert_int_equal(sl_tokenizer_kind(tokenizer, 248319), SL_TOKEN_UNUSED);
    sl_tokenizer_free(tokenizer);

    /* A model with fewer rows than tokens. */
    json_t *json = sl_test_json(tiny_path);
    assert_refused(create(json, NULL, 2649, &tokenizer, &err), SL_ERR_FORMAT, "2649 rows");
    assert_refused(create(json, NULL, 2658, &tokenizer, &err), SL_ERR_FORMAT, "added_tokens[8]");
    assert_ok(create(json, NULL, 2659, &tokenizer, &err));
    sl_tokenizer_free(tokenizer);
    json_decref(json);

    static const char *const folders[] = {"rand-r1", "rand-r3", "rand-moe"};
    for (size_t i = 0; i < SL_COUNTOF(folders); i++) {
        char path[128];
        snprintf(path, sizeof path, "tests/data/models/%s/tokenizer.json", folders[i]);
        json = sl_test_json(path);
        snprintf(path, sizeof path, "tests/data/models/%s/tokenizer_config.json", folders[i]);
        json_t *config = sl_test_json(path);
        assert_ok(
            create(json, json_object_get(config, "added_tokens_decoder"), 512, &tokenizer, &err));
        assert_int_equal(sl_tokenizer_kind(tokenizer, 503), SL_TOKEN_CONTROL);
        sl_tokenizer_free(tokenizer);
        json_decref(config);
        json_decref(json);
    }
}

static void test_memory_failures(void **state)
{
    (void)state;
    sl_error err;
    json_t *root = small_json();
    change(root, "model/merges", "[[\"a\", \"b\"]]");
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t at = 1; status != SL_OK; at++) {
        for (int forever = 1; forever >= 0; forever--) {
            size_t blocks = sl_mem_get_stats().blocks;
            sl_tokenizer *tokenizer;
            sl_mem_fail_at(at, forever);
            status = create(root, NULL, 258, &tokenizer, &err);
            sl_mem_fail_at(0, false);
            assert_true(status == SL_OK || status == SL_ERR_MEMORY);
            assert_int_equal(tokenizer != NULL, status == SL_OK);
            sl_tokenizer_free(tokenizer);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
    }
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_small_file),      cmocka_unit_test(test_variants),
        cmocka_unit_test(test_what_is_refused), cmocka_unit_test(test_extra_tokens),
        cmocka_unit_test(test_real_files),      cmocka_unit_test(test_memory_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
