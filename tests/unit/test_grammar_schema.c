/* JSON schemas as grammars: texts that fit and texts that do not, byte by byte; random texts from
 * the masks, each of which must be valid by a validator that shares nothing with the grammars; what
 * is refused, by name; hostile schemas; failing allocations. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "json_check.h"
#include "text_data.h"

#include "base/mem.h"
#include "grammar/grammar.h"

static sl_constraint_vocab *tiny_vocab(int32_t *stop)
{
    sl_error err;
    sl_constraint_vocab *vocab;
    sl_tokenizer *tokenizer = sl_test_tokenizer("tiny", SL_TEST_TINY_ROWS);
    *stop = sl_tokenizer_find(tokenizer, "<|im_end|>");
    assert_ok(sl_constraint_vocab_create(tokenizer, SL_TEST_TINY_ROWS, stop, 1, &vocab, &err));
    sl_tokenizer_free(tokenizer);
    return vocab;
}

static bool allows(const uint32_t *mask, int32_t id)
{
    return mask[id / 32] >> (id % 32) & 1;
}

static sl_status compile(const json_t *entry, sl_grammar **out, sl_error *err)
{
    const sl_str text = sl_test_string(entry, "text");
    return sl_str_is(sl_test_string(entry, "kind"), "gbnf")
               ? sl_grammar_from_gbnf(text, out, err)
               : sl_grammar_from_json_schema(text, out, err);
}

/* ---- texts ---- */

static void check_texts(const json_t *entry, const char *key, sl_constraint *constraint, bool fits)
{
    size_t i;
    json_t *one;
    json_array_foreach(json_object_get(entry, key), i, one)
    {
        const sl_str text = {json_string_value(one), json_string_length(one)};
        sl_error err;
        sl_constraint_reset(constraint);
        const sl_status status = sl_constraint_accept_text(constraint, text, &err);
        if ((status == SL_OK && sl_constraint_may_end(constraint)) != fits)
            fail_msg("%s text %s of %s", key, text.data, sl_test_string(entry, "text").data);
        /* In single bytes it is the same. */
        sl_constraint_reset(constraint);
        size_t n = 0;
        while (n < text.n_bytes &&
               sl_constraint_accept_text(constraint, (sl_str){text.data + n, 1}, &err) == SL_OK)
            n++;
        assert_int_equal(n == text.n_bytes && sl_constraint_may_end(constraint), fits);
    }
}

static void test_texts(void **state)
{
    (void)state;
    sl_test_lines lines = {0};
    json_t *entry;
    size_t n_refused = 0, n_schemas = 0;
    int32_t stop;
    sl_constraint_vocab *vocab = tiny_vocab(&stop);
    sl_test_lines_open(&lines, sl_build_path("testdata/schemas.jsonl"));
    while ((entry = sl_test_lines_next(&lines))) {
        sl_error err;
        sl_grammar *grammar;
        sl_constraint *constraint;
        const char *error = json_string_value(json_object_get(entry, "error"));
        if (error) {
            const sl_status status = compile(entry, &grammar, &err);
            if (status == SL_OK || !strstr(err.message, error))
                fail_msg("%s: %s", sl_test_string(entry, "text").data, err.message);
            n_refused++;
        } else {
            assert_ok(compile(entry, &grammar, &err));
            assert_ok(sl_constraint_create(grammar, vocab, &constraint, &err));
            check_texts(entry, "good", constraint, true);
            check_texts(entry, "bad", constraint, false);
            sl_constraint_free(constraint);
            sl_grammar_free(grammar);
            n_schemas++;
        }
        json_decref(entry);
    }
    sl_test_lines_close(&lines);
    sl_constraint_vocab_free(vocab);
    assert_true(n_schemas > 500 && n_refused > 10);
}

/* ---- random texts ---- */

enum { FREE_STEPS = 60, MAX_STEPS = 4000 };

static int32_t random_token(const uint32_t *mask, sl_test_rng *rng)
{
    const uint32_t begin = sl_test_rng_below(rng, SL_TEST_TINY_ROWS);
    for (uint32_t i = 0; i < SL_TEST_TINY_ROWS; i++) {
        const int32_t id = (int32_t)((begin + i) % SL_TEST_TINY_ROWS);
        if (allows(mask, id))
            return id;
    }
    fail_msg("no token may come");
    return -1;
}

/* A token that brings the text to its end before long. */
static int32_t closing_token(const uint32_t *mask, const int32_t *bytes, int32_t stop,
                             sl_test_rng *rng)
{
    static const char closers[] = "}]\"0n";
    if (allows(mask, stop))
        return stop;
    const bool in_string = allows(mask, bytes['~']);
    for (const char *c = in_string ? "\"" : closers; *c; c++) {
        if (allows(mask, bytes[(unsigned char)*c]))
            return bytes[(unsigned char)*c];
    }
    for (int tries = 0; tries < 50; tries++) {
        const int32_t id = bytes[33 + sl_test_rng_below(rng, 94)];
        if (allows(mask, id))
            return id;
    }
    return random_token(mask, rng);
}

typedef struct place {
    sl_constraint *at;
    size_t from;
    char byte;
} place;

static bool takes(const sl_constraint *at, const char *text)
{
    sl_error err;
    sl_constraint *fork;
    assert_ok(sl_constraint_fork(at, &fork, &err));
    const bool good = sl_constraint_accept_text(fork, sl_str_of(text), &err) == SL_OK;
    sl_constraint_free(fork);
    return good;
}

/* The first byte of a shortest way to where a string may be closed: some patterns are not met by
 * chance. */
static char way_out(const sl_constraint *from)
{
    enum { MAX_PLACES = 600 };
    static place places[MAX_PLACES];
    sl_error err;
    size_t n = 1, end = 0;
    assert_ok(sl_constraint_fork(from, &places[0].at, &err));
    for (size_t i = 0; i < n && end == 0; i++) {
        for (int byte = 32; byte < 127 && end == 0 && n < MAX_PLACES; byte++) {
            const char c = (char)byte;
            place *next = &places[n];
            assert_ok(sl_constraint_fork(places[i].at, &next->at, &err));
            next->from = i;
            next->byte = c;
            bool known = sl_constraint_accept_text(next->at, (sl_str){&c, 1}, &err) != SL_OK;
            for (size_t j = 0; j < n && !known; j++)
                known = sl_constraint_equal(places[j].at, next->at);
            if (!known && c == '"' && !takes(next->at, "~"))
                end = n;
            if (known)
                sl_constraint_free(next->at);
            else
                n++;
        }
    }
    assert_true(end > 0);
    while (places[end].from > 0)
        end = places[end].from;
    for (size_t i = 0; i < n; i++)
        sl_constraint_free(places[i].at);
    return places[end].byte;
}

static bool ends_in_string(const sl_buf *text)
{
    bool inside = false;
    for (size_t i = 0; i < text->n_bytes; i++) {
        if (inside && text->data[i] == '\\')
            i++;
        else if (text->data[i] == '"')
            inside = !inside;
    }
    return inside;
}

/* The text of a random walk; its end is a stop token. */
static void walk(sl_constraint *constraint, const sl_tokenizer *tokenizer, const int32_t *bytes,
                 int32_t stop, size_t n_free, sl_test_rng *rng, sl_buf *text)
{
    sl_error err;
    sl_constraint_reset(constraint);
    sl_buf_clear(text);
    for (size_t step = 0; step < MAX_STEPS; step++) {
        const uint32_t *mask;
        assert_ok(sl_constraint_allowed(constraint, &mask, &err));
        assert_int_equal(allows(mask, stop), sl_constraint_may_end(constraint));
        int32_t token =
            step < n_free ? random_token(mask, rng) : closing_token(mask, bytes, stop, rng);
        if (step > n_free + 200 && ends_in_string(text))
            token = bytes[(unsigned char)way_out(constraint)];
        assert_ok(sl_constraint_accept(constraint, token, &err));
        if (token == stop) {
            assert_true(sl_constraint_is_done(constraint));
            return;
        }
        const sl_str part = sl_tokenizer_bytes(tokenizer, token);
        assert_ok(sl_buf_append(text, part.data, part.n_bytes, &err));
    }
    fail_msg("no end after %d tokens: %.300s", MAX_STEPS, text->data);
}

/* What a JSON reader for C does not take (keys twice, NUL in a key) counts as neither. */
static bool check_document(const json_t *schema, const sl_buf *text)
{
    sl_error err;
    json_t *value;
    char why[256];
    const sl_status status =
        sl_json_parse(text->data, text->n_bytes, "text", sl_json_limits_default(), &value, &err);
    if (status != SL_OK && (strstr(err.message, "duplicate") || strstr(err.message, "NUL") ||
                            strstr(err.message, "u0000") || strstr(err.message, "nested")))
        return false;
    if (status != SL_OK)
        fail_msg("%s: %s", err.message, text->data);
    if (!sl_json_check(schema, schema, value, why)) {
        char *shown = json_dumps(schema, 0);
        fail_msg("%s: %s is not valid by %s", why, text->data, shown);
    }
    json_decref(value);
    return true;
}

static void test_walks(void **state)
{
    (void)state;
    sl_test_lines lines = {0};
    json_t *entry;
    sl_error err;
    size_t n_checked = 0, n_passed_over = 0, n_schemas = 0;
    int32_t bytes[256], stop;
    sl_test_rng rng = sl_test_rng_of(7);
    sl_tokenizer *tokenizer = sl_test_tokenizer("tiny", SL_TEST_TINY_ROWS);
    sl_constraint_vocab *vocab = tiny_vocab(&stop);
    sl_buf text;
    sl_buf_init(&text, SL_MEM_TEXT, 1 << 20);
    for (int32_t id = 0; id < SL_TEST_TINY_ROWS; id++) {
        const sl_str part = sl_tokenizer_bytes(tokenizer, id);
        if (part.n_bytes == 1 && sl_tokenizer_kind(tokenizer, id) == SL_TOKEN_NORMAL)
            bytes[(unsigned char)part.data[0]] = id;
    }
    sl_test_lines_open(&lines, sl_build_path("testdata/schemas.jsonl"));
    while ((entry = sl_test_lines_next(&lines))) {
        sl_grammar *grammar;
        sl_constraint *constraint;
        const sl_str source = sl_test_string(entry, "text");
        const bool is_schema = sl_str_is(sl_test_string(entry, "kind"), "schema");
        json_t *schema = NULL;
        if (is_schema && !json_object_get(entry, "error")) {
            assert_ok(sl_json_parse(source.data, source.n_bytes, "schema", sl_json_limits_default(),
                                    &schema, &err));
            assert_ok(compile(entry, &grammar, &err));
            assert_ok(sl_constraint_create(grammar, vocab, &constraint, &err));
            for (int round = 0; round < (sl_test_shortened() ? 1 : 4); round++) {
                walk(constraint, tokenizer, bytes, stop, round % 2 ? FREE_STEPS : 5, &rng, &text);
                if (check_document(schema, &text))
                    n_checked++;
                else
                    n_passed_over++;
            }
            sl_constraint_free(constraint);
            sl_grammar_free(grammar);
            json_decref(schema);
            n_schemas++;
        }
        json_decref(entry);
    }
    print_message("%zu texts of %zu schemas are valid, %zu were passed over\n", n_checked,
                  n_schemas, n_passed_over);
    assert_true(n_schemas > 500 && n_passed_over * 20 < n_checked);
    sl_test_lines_close(&lines);
    sl_buf_free(&text);
    sl_constraint_vocab_free(vocab);
    sl_tokenizer_free(tokenizer);
}

/* ---- what is refused ---- */

static void refuse(const char *schema, sl_status expected, const char *part)
{
    sl_error err;
    sl_grammar *grammar;
    assert_refused(sl_grammar_from_json_schema(sl_str_of(schema), &grammar, &err), expected, part);
    assert_null(grammar);
}

static void test_keywords_by_name(void **state)
{
    (void)state;
    static const char *const names[] = {"not",
                                        "if",
                                        "then",
                                        "else",
                                        "contains",
                                        "minContains",
                                        "maxContains",
                                        "uniqueItems",
                                        "dependentRequired",
                                        "dependentSchemas",
                                        "dependencies",
                                        "unevaluatedProperties",
                                        "unevaluatedItems",
                                        "$dynamicRef",
                                        "$recursiveRef",
                                        "requierd"};
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        char schema[256], part[64];
        snprintf(schema, sizeof schema,
                 "{\"type\":\"object\",\"properties\":{\"a\":{\"%s\":true}}}", names[i]);
        snprintf(part, sizeof part, "\"#/properties/a\": \"%s\"", names[i]);
        refuse(schema, SL_ERR_UNSUPPORTED, part);
    }
    refuse("{\"type\":\"strnig\"}", SL_ERR_FORMAT, "\"type\"");
    refuse("{\"type\":\"string\",\"minLength\":-1}", SL_ERR_FORMAT, "\"minLength\"");
    refuse("{\"type\":\"string\",\"pattern\":3}", SL_ERR_FORMAT, "\"pattern\"");
    refuse("{\"type\":\"string\",\"pattern\":\"\\\\bx\"}", SL_ERR_UNSUPPORTED, "word borders");
    refuse("{\"type\":\"string\",\"pattern\":\"(a)\\\\1\"}", SL_ERR_UNSUPPORTED, "back ref");
    refuse("{\"type\":\"string\",\"pattern\":\"\\\\p{L}\"}", SL_ERR_UNSUPPORTED, "Unicode prop");
    refuse("{\"type\":\"object\",\"properties\":[]}", SL_ERR_FORMAT, "\"properties\"");
    refuse("{\"type\":\"object\",\"required\":{}}", SL_ERR_FORMAT, "\"required\"");
    refuse("{\"type\":\"array\",\"items\":3}", SL_ERR_FORMAT, "a schema is an object");
    refuse("{\"enum\":3}", SL_ERR_FORMAT, "\"enum\"");
    refuse("{\"enum\":[]}", SL_ERR_UNSUPPORTED, "no text fits");
    refuse("{\"anyOf\":[]}", SL_ERR_FORMAT, "\"anyOf\"");
    refuse("{\"$ref\":\"other.json\"}", SL_ERR_UNSUPPORTED, "\"$ref\"");
    refuse("{\"$ref\":\"#/%zz\"}", SL_ERR_FORMAT, "leads nowhere");
    refuse("{\"allOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]}", SL_ERR_UNSUPPORTED,
           "no text fits");
    refuse("3", SL_ERR_FORMAT, "a schema is an object");
    refuse("{\"type\":\"array\",\"maxItems\":4097}", SL_ERR_LIMIT, "\"maxItems\"");
    refuse("{\"type\":\"integer\",\"minimum\":5,\"maximum\":4}", SL_ERR_UNSUPPORTED,
           "no text fits");
}

static char *repeat(const char *before, const char *part, size_t n, const char *middle,
                    const char *after, const char *end)
{
    char *text = malloc(strlen(before) + n * (strlen(part) + strlen(after)) + strlen(middle) +
                        strlen(end) + 1);
    char *at = text + sprintf(text, "%s", before);
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, "%s", part);
    at += sprintf(at, "%s", middle);
    for (size_t i = 0; i < n; i++)
        at += sprintf(at, "%s", after);
    sprintf(at, "%s", end);
    return text;
}

/* Schemas that ended other programs, or would not end. */
static void test_hostile(void **state)
{
    (void)state;
    const struct {
        const char *before, *part, *middle, *after, *end;
        size_t n;
    } cases[] = {
        {"{\"type\":\"string\",\"pattern\":\"", "(", "", "", "\"}", 50000},
        {"{\"type\":\"string\",\"pattern\":\"", "(", "a", ")", "\"}", 30000},
        {"{\"type\":\"string\",\"pattern\":\"", "(", "a", "){9}", "\"}", 400},
        {"{\"type\":\"string\",\"pattern\":\"", "[", "", "", "\"}", 50000},
        {"{\"type\":\"string\",\"pattern\":\"(a|b)*a", "(a|b)", "", "", "\"}", 24},
        {"", "{\"items\":", "{}", "}", "", 10000},
        {"", "{\"allOf\":[", "{}", "]}", "", 5000},
        {"", "[", "", "]", "", 3000},
        {"{\"a\":", "[", "1", "]", "}", 10000},
        {"{\"enum\":[", "{\"a\":", "1", "}", "]}", 200},
        {"{\"type\":\"string\",\"pattern\":\"", "x{1000}", "", "", "\"}", 1000},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_error err;
        sl_grammar *grammar;
        char *schema = repeat(cases[i].before, cases[i].part, cases[i].n, cases[i].middle,
                              cases[i].after, cases[i].end);
        const sl_status status = sl_grammar_from_json_schema(sl_str_of(schema), &grammar, &err);
        if (status == SL_OK)
            fail_msg("case %zu was taken", i);
        assert_true(status == SL_ERR_LIMIT || status == SL_ERR_UNSUPPORTED ||
                    status == SL_ERR_FORMAT);
        assert_true(strlen(err.message) > 10);
        free(schema);
    }
    refuse("{\"type\":\"string\",\"maxLength\":1000000,\"pattern\":\"^a*$\"}", SL_ERR_LIMIT,
           "\"maxLength\"");
    refuse("{\"type\":\"string\",\"pattern\":\"a{70000}\"}", SL_ERR_LIMIT, "65536 times");
}

/* ---- failing allocations ---- */

static sl_status use(const char *schema, const sl_constraint_vocab *vocab, sl_error *err)
{
    sl_grammar *grammar = NULL;
    sl_constraint *constraint = NULL, *fork = NULL;
    const uint32_t *mask;
    char forced[64];
    size_t n;
    sl_status status = sl_grammar_from_json_schema(sl_str_of(schema), &grammar, err);
    if (status == SL_OK)
        status = sl_constraint_create(grammar, vocab, &constraint, err);
    if (status == SL_OK)
        status = sl_constraint_allowed(constraint, &mask, err);
    if (status == SL_OK)
        status = sl_constraint_accept_text(constraint, sl_str_of("{\"a\":\"x"), err);
    if (status == SL_OK)
        status = sl_constraint_fork(constraint, &fork, err);
    if (status == SL_OK)
        status = sl_constraint_allowed(fork, &mask, err);
    if (status == SL_OK)
        status = sl_constraint_forced(fork, forced, sizeof forced, &n, err);
    sl_constraint_free(fork);
    sl_constraint_free(constraint);
    sl_grammar_free(grammar);
    return status;
}

static void test_failing_allocations(void **state)
{
    (void)state;
    static const char *const schemas[] = {
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"^x+y?$\","
        "\"maxLength\":4},\"b\":{\"enum\":[1,\"b\"]}},\"required\":[\"a\"],"
        "\"patternProperties\":{\"^q\":{\"type\":\"number\",\"minimum\":0.5}}}",
        "{\"allOf\":[{\"$ref\":\"#/$defs/x\"},{\"properties\":{\"b\":{\"oneOf\":[{\"const\":1},{"
        "\"type\":\"null\"}]}}}],\"$defs\":{\"x\":{\"type\":\"object\",\"properties\":{\"a\":{"
        "\"type\":\"string\",\"minLength\":1}},\"propertyNames\":{\"maxLength\":9}}}}"};
    int32_t stop;
    sl_constraint_vocab *vocab = tiny_vocab(&stop);
    for (size_t i = 0; i < SL_COUNTOF(schemas); i++) {
        const size_t blocks = sl_mem_get_stats().blocks;
        sl_status status = SL_ERR_MEMORY;
        for (uint64_t n = 1; status != SL_OK; n++) {
            sl_error err = {0};
            sl_mem_fail_at(n, n % 2);
            status = use(schemas[i], vocab, &err);
            sl_mem_fail_at(0, false);
            if (status != SL_OK && status != SL_ERR_MEMORY)
                fail_msg("request %llu: %s", (unsigned long long)n, err.message);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
    }
    sl_constraint_vocab_free(vocab);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_walks),
        cmocka_unit_test(test_keywords_by_name),
        cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
