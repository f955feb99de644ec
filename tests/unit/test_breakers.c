/* Which tokens break loops, and the rules of thinking, for the real vocabulary of the family. */
#include "support.h"
#include "text_data.h"

#include <string.h>

#include "base/mem.h"
#include "engine/breakers.h"
#include "engine/think_budget.h"

static bool in(const uint32_t *set, int32_t id)
{
    return (set[id / 32] >> (id % 32)) & 1;
}

static void test_default_breakers(void **state)
{
    (void)state;
    sl_tokenizer *tokenizer = sl_test_tokenizer("qwen35", SL_TEST_QWEN35_ROWS);
    uint32_t *set = sl_breakers_create(tokenizer, sl_default_breakers, SL_N_DEFAULT_BREAKERS,
                                       SL_TEST_QWEN35_ROWS);
    assert_non_null(set);
    size_t n_breakers = 0;
    for (int32_t id = 0; id < SL_TEST_QWEN35_ROWS; id++) {
        const sl_str bytes = sl_tokenizer_bytes(tokenizer, id);
        const sl_token_kind kind = sl_tokenizer_kind(tokenizer, id);
        bool expected = kind == SL_TOKEN_CONTROL || kind == SL_TOKEN_USER_DEFINED;
        for (size_t i = 0; i < bytes.n_bytes; i++)
            expected = expected || strchr("\n:\"*", bytes.data[i] ? bytes.data[i] : 'x');
        assert_int_equal(in(set, id), expected);
        n_breakers += expected;
    }
    assert_in_range(n_breakers, 100, SL_TEST_QWEN35_ROWS / 10);
    assert_true(in(set, sl_tokenizer_find(tokenizer, "<|im_end|>")));
    assert_true(in(set, sl_tokenizer_find(tokenizer, "</think>")));
    assert_false(in(set, SL_TEST_QWEN35_ROWS - 1));
    sl_free(set);
    sl_tokenizer_free(tokenizer);
}

static void test_own_breakers(void **state)
{
    (void)state;
    const sl_str extra = sl_str_of("<x>");
    const sl_token_kind kind = SL_TOKEN_CONTROL;
    sl_tokenizer *tokenizer = sl_test_byte_tokenizer(1, &extra, &kind, 0, NULL);
    const sl_str texts[] = {sl_str_of("q"), sl_str_of("qq"), sl_str_of("")};
    /* More and fewer rows than the tokenizer has tokens. */
    const size_t rows[] = {300, 257, 256, 'q' + 1, 'q', 1};
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        uint32_t *set = sl_breakers_create(tokenizer, texts, SL_COUNTOF(texts), rows[i]);
        assert_non_null(set);
        for (size_t id = 0; id < rows[i]; id++)
            assert_int_equal(in(set, (int32_t)id), id == 'q' || id == 256);
        sl_free(set);
    }
    sl_mem_fail_at(1, true);
    assert_null(sl_breakers_create(tokenizer, texts, 1, 300));
    sl_mem_fail_at(0, false);
    sl_tokenizer_free(tokenizer);
}

static void test_rules_of_the_family(void **state)
{
    (void)state;
    sl_tokenizer *tokenizer = sl_test_tokenizer("qwen35", SL_TEST_QWEN35_ROWS);
    sl_think_rules rules;
    sl_error err;
    assert_ok(sl_think_rules_create(tokenizer, 100, 7, &rules, &err));
    assert_int_equal(rules.budget, 100);
    assert_int_equal(rules.grace, 7);
    assert_int_equal(rules.open_id, sl_tokenizer_find(tokenizer, "<think>"));
    assert_int_equal(rules.n_end, 3);
    assert_int_equal(rules.n_line, 1);
    assert_true(sl_str_is(sl_tokenizer_bytes(tokenizer, rules.end[0]), "\n"));
    assert_int_equal(rules.end[1], rules.close_id);
    assert_true(sl_str_is(sl_tokenizer_bytes(tokenizer, rules.end[2]), "\n\n"));
    const size_t blocks = sl_mem_get_stats().blocks;
    sl_status status = SL_ERR_MEMORY;
    for (uint64_t n = 1; status != SL_OK; n++) {
        sl_mem_fail_at(n, true);
        status = sl_think_rules_create(tokenizer, 100, 7, &rules, &err);
        sl_mem_fail_at(0, false);
        assert_true(status == SL_OK || status == SL_ERR_MEMORY);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    sl_tokenizer_free(tokenizer);

    /* Byte tokens: a longer end, the same places. */
    const sl_str tags[] = {sl_str_of("<think>"), sl_str_of("</think>")};
    const sl_token_kind kinds[] = {SL_TOKEN_USER_DEFINED, SL_TOKEN_USER_DEFINED};
    tokenizer = sl_test_byte_tokenizer(2, tags, kinds, 0, NULL);
    assert_ok(sl_think_rules_create(tokenizer, 1, 2, &rules, &err));
    assert_int_equal(rules.n_end, 4);
    assert_int_equal(rules.end[1], 257);
    sl_tokenizer_free(tokenizer);
    tokenizer = sl_test_byte_tokenizer(1, tags, kinds, 0, NULL);
    assert_refused(sl_think_rules_create(tokenizer, 1, 2, &rules, &err), SL_ERR_UNSUPPORTED,
                   "no <think> and </think>");
    sl_tokenizer_free(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default_breakers),
        cmocka_unit_test(test_own_breakers),
        cmocka_unit_test(test_rules_of_the_family),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
