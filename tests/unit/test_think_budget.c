/* The budget of thinking: where it ends, what it forces, and that no course of tokens exceeds it.
 */
#include "support.h"

#include <math.h>
#include <string.h>

#include "engine/sampler.h"
#include "engine/think_budget.h"

/* A small world: what every token writes. */
enum { WORD, LINE, WORD_LINE, LINES, OPEN, CLOSE, N_TOKENS };
static const char *const texts[N_TOKENS] = {" word", "\n", ".\n", "\n\n", "<think>", "</think>"};

static const sl_think_rules usual = {
    .budget = 10,
    .grace = 4,
    .open_id = OPEN,
    .close_id = CLOSE,
    .end = {LINE, CLOSE, LINES},
    .n_end = 3,
    .n_line = 1,
};

static void push(sl_think_budget *budget, const sl_think_rules *rules, int32_t token)
{
    sl_think_budget_push(budget, rules, token, sl_str_of(texts[token]));
}

/* Pushes the token n times and expects that none is forced before each. */
static void push_free(sl_think_budget *budget, const sl_think_rules *rules, int32_t token, int n)
{
    for (int i = 0; i < n; i++) {
        assert_int_equal(sl_think_budget_forced(budget, rules), -1);
        push(budget, rules, token);
    }
}

/* Expects these tokens to be forced, and nothing after them. */
static void follow(sl_think_budget *budget, const sl_think_rules *rules, const int32_t *tokens,
                   size_t n)
{
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(sl_think_budget_forced(budget, rules), tokens[i]);
        push(budget, rules, tokens[i]);
    }
    assert_int_equal(sl_think_budget_forced(budget, rules), -1);
}

static const int32_t whole_end[] = {LINE, CLOSE, LINES}, after_line[] = {CLOSE, LINES};

static void test_ends_at_a_line_break(void **state)
{
    (void)state;
    sl_think_budget budget = sl_think_budget_begin(&usual, true, sl_str_of("<think>\n"));
    push_free(&budget, &usual, WORD, 4);
    push_free(&budget, &usual, LINE, 1); /* too early to end */
    push_free(&budget, &usual, WORD, 6);
    push_free(&budget, &usual, WORD_LINE, 1);
    follow(&budget, &usual, after_line, 2);
    assert_false(budget.thinking);
    assert_int_equal(budget.n_thinking, 12);
    assert_int_equal(budget.n_forced, 2);
    push_free(&budget, &usual, WORD, 100); /* the answer */
    assert_int_equal(budget.n_thinking, 12);
}

static void test_ends_with_the_token_that_uses_it_up(void **state)
{
    (void)state;
    sl_think_budget budget = sl_think_budget_begin(&usual, true, sl_str_of("<think>\n"));
    push_free(&budget, &usual, WORD, 9);
    push_free(&budget, &usual, LINES, 1);
    follow(&budget, &usual, after_line, 2);
    assert_int_equal(budget.n_thinking, 10);
}

static void test_ends_after_the_grace(void **state)
{
    (void)state;
    sl_think_budget budget = sl_think_budget_begin(&usual, true, sl_str_of("<think>\n"));
    push_free(&budget, &usual, WORD, 14);
    follow(&budget, &usual, whole_end, 3);
    assert_int_equal(budget.n_thinking, 15); /* with the forced line break */
    sl_think_rules rules = usual;
    rules.grace = 0;
    budget = sl_think_budget_begin(&rules, true, sl_str_of("<think>\n"));
    push_free(&budget, &rules, WORD, 10);
    follow(&budget, &rules, whole_end, 3);
}

static void test_the_model_may_end_first(void **state)
{
    (void)state;
    for (int n = 0; n <= 13; n++) {
        sl_think_budget budget = sl_think_budget_begin(&usual, true, sl_str_of("<think>\n"));
        push_free(&budget, &usual, WORD, n);
        push_free(&budget, &usual, CLOSE, 1);
        push_free(&budget, &usual, LINES, 1);
        push_free(&budget, &usual, WORD, 50);
        assert_int_equal(budget.n_thinking, n);
    }
}

static void test_no_budget_and_no_thinking(void **state)
{
    (void)state;
    sl_think_rules rules = usual;
    rules.budget = 0;
    sl_think_budget budget = sl_think_budget_begin(&rules, true, sl_str_of("<think>\n"));
    follow(&budget, &rules, after_line, 2);
    budget = sl_think_budget_begin(&rules, true, sl_str_of("<think>"));
    push_free(&budget, &rules, WORD, 4); /* the grace */
    follow(&budget, &rules, whole_end, 3);
    budget = sl_think_budget_begin(&rules, false, sl_str_of("</think>\n\n"));
    push_free(&budget, &rules, WORD, 100);
    push_free(&budget, &rules, LINE, 1);
    push_free(&budget, &rules, WORD, 1);
}

/* One budget for the turn, not one for each block. */
static void test_a_second_block_goes_on_counting(void **state)
{
    (void)state;
    sl_think_budget budget = sl_think_budget_begin(&usual, false, sl_str_of("assistant\n"));
    push_free(&budget, &usual, OPEN, 1);
    push_free(&budget, &usual, WORD, 6);
    push_free(&budget, &usual, CLOSE, 1);
    push_free(&budget, &usual, WORD, 20);
    push_free(&budget, &usual, OPEN, 1);
    push_free(&budget, &usual, WORD, 4 + 2);
    push_free(&budget, &usual, LINE, 1);
    follow(&budget, &usual, after_line, 2);
    /* Of the grace one token is left, and then nothing at all. */
    push_free(&budget, &usual, OPEN, 1);
    push_free(&budget, &usual, WORD, 1);
    follow(&budget, &usual, whole_end, 3);
    push_free(&budget, &usual, OPEN, 1);
    follow(&budget, &usual, whole_end, 3);
}

/* Who does not follow has the rules applied anew. */
static void test_disobedience(void **state)
{
    (void)state;
    sl_think_budget budget = sl_think_budget_begin(&usual, true, sl_str_of("\n"));
    push_free(&budget, &usual, WORD, 14);
    assert_int_equal(sl_think_budget_forced(&budget, &usual), LINE);
    push(&budget, &usual, WORD);
    assert_int_equal(sl_think_budget_forced(&budget, &usual), LINE);
    push(&budget, &usual, WORD_LINE); /* a line has ended, if another */
    assert_int_equal(sl_think_budget_forced(&budget, &usual), CLOSE);
    push(&budget, &usual, CLOSE);
    assert_int_equal(sl_think_budget_forced(&budget, &usual), LINES);
    push(&budget, &usual, WORD); /* the answer has begun */
    push_free(&budget, &usual, WORD, 3);
    assert_int_equal(budget.n_forced, 1);
}

/* Whatever is pushed, obedient or not: bounds hold, what is forced is the end, a copy goes the same
 * way. */
static void test_any_course(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(6);
    for (int round = 0; round < 2000; round++) {
        const bool obeys = round % 2;
        sl_think_rules rules = usual;
        rules.budget = sl_test_rng_below(&rng, 30);
        rules.grace = sl_test_rng_below(&rng, 10);
        sl_think_budget budget = sl_think_budget_begin(
            &rules, sl_test_rng_below(&rng, 2), sl_str_of(sl_test_rng_below(&rng, 2) ? "\n" : ""));
        uint32_t n_free = 0; /* thinking tokens that were not forced */
        for (int i = 0; i < 100; i++) {
            const int32_t forced = sl_think_budget_forced(&budget, &rules);
            assert_true(forced == -1 || forced == LINE || forced == CLOSE || forced == LINES);
            int32_t token = (int32_t)sl_test_rng_below(&rng, N_TOKENS);
            if (forced >= 0 && (obeys || sl_test_rng_below(&rng, 2)))
                token = forced;
            n_free += forced < 0 && budget.thinking && token != OPEN && token != CLOSE;
            sl_think_budget copy = budget;
            push(&budget, &rules, token);
            push(&copy, &rules, token);
            assert_int_equal(sl_think_budget_forced(&copy, &rules),
                             sl_think_budget_forced(&budget, &rules));
            assert_true(n_free <= rules.budget + rules.grace);
            assert_true(!obeys || budget.n_thinking <= n_free + budget.n_forced);
        }
    }
}

/* Through the sampler: what is forced comes, however unlikely it is. */
static void test_with_the_sampler(void **state)
{
    (void)state;
    const float logits[N_TOKENS] = {9.0f, -5.0f, -5.0f, -INFINITY, -INFINITY, -9.0f};
    sl_sampler *sampler;
    sl_error err;
    assert_ok(sl_sampler_create(N_TOKENS, &sampler, &err));
    sl_think_budget budget = sl_think_budget_begin(&usual, true, sl_str_of("\n"));
    int32_t tokens[20];
    for (size_t i = 0; i < 20; i++) {
        const int32_t forced = sl_think_budget_forced(&budget, &usual);
        const sl_sample_context context = {.position = i, .forced = forced >= 0 ? &forced : NULL};
        assert_ok(sl_sample_next(sampler, logits, N_TOKENS, &context, &tokens[i], &err));
        push(&budget, &usual, tokens[i]);
    }
    for (size_t i = 0; i < 20; i++)
        assert_int_equal(tokens[i], i < 14 || i > 16 ? WORD : whole_end[i - 14]);
    sl_sampler_destroy(sampler);
}

static void test_refuses_rules(void **state)
{
    (void)state;
    sl_error err;
    assert_ok(sl_think_rules_check(&usual, &err));
    sl_think_rules rules = usual;
    rules.n_end = 0;
    assert_refused(sl_think_rules_check(&rules, &err), SL_ERR_ARGUMENT, "has 0 tokens");
    rules.n_end = SL_THINK_MAX_END + 1;
    assert_refused(sl_think_rules_check(&rules, &err), SL_ERR_ARGUMENT, "has 17 tokens");
    rules = usual;
    rules.n_line = 3;
    assert_refused(sl_think_rules_check(&rules, &err), SL_ERR_ARGUMENT, "of which 3 break");
    rules.n_line = 2;
    assert_refused(sl_think_rules_check(&rules, &err), SL_ERR_ARGUMENT, "once, after");
    rules = usual;
    rules.end[2] = CLOSE;
    assert_refused(sl_think_rules_check(&rules, &err), SL_ERR_ARGUMENT, "once, after");
    rules.end[1] = rules.end[2] = LINE;
    assert_refused(sl_think_rules_check(&rules, &err), SL_ERR_ARGUMENT, "once, after");
    rules = usual;
    rules.end[2] = OPEN;
    assert_refused(sl_think_rules_check(&rules, &err), SL_ERR_ARGUMENT, "begins another");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ends_at_a_line_break),
        cmocka_unit_test(test_ends_with_the_token_that_uses_it_up),
        cmocka_unit_test(test_ends_after_the_grace),
        cmocka_unit_test(test_the_model_may_end_first),
        cmocka_unit_test(test_no_budget_and_no_thinking),
        cmocka_unit_test(test_a_second_block_goes_on_counting),
        cmocka_unit_test(test_disobedience),
        cmocka_unit_test(test_any_course),
        cmocka_unit_test(test_with_the_sampler),
        cmocka_unit_test(test_refuses_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
