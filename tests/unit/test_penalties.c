/* Penalties and loop breaking: what they do to a few logits by hand, what must hold for any
 * history, and hostile histories. That all steps together are right is test_sampler_model's. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dmath.h"
#include "base/mem.h"
#include "engine/sampler.h"

enum { VOCAB = 50 };

static sl_penalties penalties;

static int set_up(void **state)
{
    (void)state;
    return sl_penalties_init(&penalties, VOCAB) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    sl_penalties_free(&penalties);
    return 0;
}

static void apply(sl_sampling sampling, const int32_t *tokens, size_t n_tokens, size_t n_prompt,
                  const uint32_t *breakers, float *logits)
{
    sl_error err;
    const sl_history history = {tokens, n_tokens, n_prompt};
    assert_ok(sl_sampling_check(&sampling, &err));
    assert_ok(sl_penalties_prepare(&penalties, &sampling, &err));
    assert_ok(sl_penalties_apply(&penalties, &sampling, &history, breakers, logits, VOCAB, &err));
    for (size_t i = 0; i < VOCAB; i++)
        assert_int_equal(penalties.counts[i], 0);
}

static void test_presence_counts_output_only(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, 2, /* output */ 2, 3, 3, 3, 4};
    const sl_sampling s = {.presence_penalty = 1.5f, .frequency_penalty = 0.25f};
    float logits[VOCAB] = {0};
    logits[4] = -INFINITY;
    apply(s, tokens, 8, 3, NULL, logits);
    assert_true(logits[1] == 0.0f);
    assert_true(logits[2] == -1.75f);
    assert_true(logits[3] == -2.25f);
    assert_true(logits[4] == -INFINITY);
    assert_true(logits[5] == 0.0f);
}

static void test_repetition_counts_the_prompt_too(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, 2, /* output */ 2, 3, 4};
    const sl_sampling s = {.repetition_penalty = 2.0f};
    float logits[VOCAB] = {3.0f, 3.0f, -3.0f, 0.0f, -INFINITY, 3.0f};
    apply(s, tokens, 6, 3, NULL, logits);
    assert_true(logits[0] == 3.0f);
    assert_true(logits[1] == 1.5f);
    assert_true(logits[2] == -6.0f); /* once, however often it stands there */
    assert_true(logits[3] == 0.0f);
    assert_true(logits[4] == -INFINITY);
    assert_true(logits[5] == 3.0f);
}

static void test_window(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, /* output */ 3, 4, 3, 5};
    sl_sampling s = {.frequency_penalty = 1.0f, .repetition_penalty = 2.0f, .penalty_window = 3};
    float logits[VOCAB];
    for (size_t i = 0; i < VOCAB; i++)
        logits[i] = 8.0f;
    apply(s, tokens, 6, 2, NULL, logits);
    const float expected[] = {8.0f, 8.0f, 8.0f, 3.0f, 3.0f, 3.0f, 8.0f};
    assert_memory_equal(logits, expected, sizeof expected);
    /* A window that reaches into the prompt. */
    s.penalty_window = 5;
    for (size_t i = 0; i < VOCAB; i++)
        logits[i] = 8.0f;
    apply(s, tokens, 6, 2, NULL, logits);
    const float wider[] = {8.0f, 8.0f, 4.0f, 2.0f, 3.0f, 3.0f, 8.0f};
    assert_memory_equal(logits, wider, sizeof wider);
}

static void test_loop_breaking(void **state)
{
    (void)state;
    /* "7 8 9" was followed by 10, "9" by 10 and 11; the end is "7 8 9". */
    const int32_t tokens[] = {7, 8, 9, 10, 9, 11, 7, 8, 9};
    sl_sampling s = {.dry_multiplier = 0.5f, .dry_base = 2.0f, .dry_allowed_length = 1};
    float logits[VOCAB] = {0};
    apply(s, tokens, 9, 4, NULL, logits);
    for (size_t i = 0; i < VOCAB; i++)
        assert_true(logits[i] == (i == 10 ? -2.0f : i == 11 ? -0.5f : 0.0f));
    /* Short repetitions are allowed. */
    s.dry_allowed_length = 2;
    memset(logits, 0, sizeof logits);
    apply(s, tokens, 9, 4, NULL, logits);
    assert_true(logits[10] == -1.0f && logits[11] == 0.0f);
    s.dry_allowed_length = 4;
    memset(logits, 0, sizeof logits);
    apply(s, tokens, 9, 4, NULL, logits);
    assert_true(logits[10] == 0.0f);
    /* Only what the window shows. */
    s.dry_allowed_length = 1;
    s.dry_window = 8;
    memset(logits, 0, sizeof logits);
    apply(s, tokens, 9, 4, NULL, logits);
    assert_true(logits[10] == -1.0f && logits[11] == -0.5f);
    s.dry_window = 5;
    memset(logits, 0, sizeof logits);
    apply(s, tokens, 9, 4, NULL, logits);
    assert_true(logits[10] == 0.0f && logits[11] == -0.5f);
    /* 8 breaks: the repetition is 9 alone. 10 breaks: it is never penalised. */
    s.dry_window = 0;
    const uint32_t breakers[2] = {1u << 8}, harmless[2] = {1u << 10};
    memset(logits, 0, sizeof logits);
    apply(s, tokens, 9, 4, breakers, logits);
    assert_true(logits[10] == -0.5f && logits[11] == -0.5f);
    memset(logits, 0, sizeof logits);
    apply(s, tokens, 9, 4, harmless, logits);
    assert_true(logits[10] == 0.0f && logits[11] == -0.5f);
    const uint32_t last[2] = {1u << 9};
    memset(logits, 0, sizeof logits);
    apply(s, tokens, 9, 4, last, logits);
    assert_true(logits[10] == 0.0f && logits[11] == 0.0f);
}

/* base^(span - allowed) is beyond all numbers after some hundred tokens. */
static void test_long_loops_stay_finite(void **state)
{
    (void)state;
    enum { N = SL_DRY_MAX_WINDOW + 1000 };
    int32_t *tokens = calloc(N, sizeof *tokens);
    assert_non_null(tokens);
    const sl_sampling s = {.dry_multiplier = 100.0f, .dry_base = 100.0f};
    float logits[VOCAB] = {1e30f, -FLT_MAX};
    apply(s, tokens, N, 0, NULL, logits);
    assert_true(logits[0] == -FLT_MAX && logits[1] == -FLT_MAX && logits[2] == 0.0f);
    /* A period of 49: what comes next is the only loss. */
    for (int i = 0; i < N; i++)
        tokens[i] = i % 49;
    memset(logits, 0, sizeof logits);
    apply(s, tokens, N, 0, NULL, logits);
    for (size_t i = 0; i < VOCAB; i++)
        assert_true(logits[i] == (i == N % 49 ? -FLT_MAX : 0.0f));
    /* Greedy still finds a token, and so does a draw. */
    sl_sampler *sampler;
    sl_error err;
    int32_t token;
    assert_ok(sl_sampler_create(VOCAB, &sampler, &err));
    const sl_sample_context context = {.history = {tokens, N, 0}, .position = N};
    const float only[VOCAB] = {0};
    sl_sampling drawing = s;
    drawing.temperature = 1.0f;
    for (int greedy = 0; greedy < 2; greedy++) {
        assert_ok(sl_sampler_set(sampler, greedy ? &s : &drawing, &err));
        assert_ok(sl_sample_next(sampler, only, VOCAB, &context, &token, &err));
        assert_int_not_equal(token, N % 49);
    }
    /* One token in the world, however little it is wanted. */
    memset(tokens, 0, N * sizeof *tokens);
    assert_ok(sl_sample_next(sampler, only, 1, &context, &token, &err));
    assert_int_equal(token, 0);
    sl_sampler_destroy(sampler);
    free(tokens);
}

/* For any history: order does not count for the counting penalties, a logit that is not in the
 * history keeps its bits, positive penalties never raise one, and the same call gives the same. */
static void test_properties(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(4);
    for (int round = 0; round < 2000; round++) {
        enum { MOST = 60 };
        int32_t tokens[MOST], shuffled[MOST];
        const size_t n_tokens = sl_test_rng_below(&rng, MOST + 1);
        const size_t n_prompt = sl_test_rng_below(&rng, (uint32_t)n_tokens + 1);
        bool present[VOCAB] = {false}, in_output[VOCAB] = {false};
        for (size_t i = 0; i < n_tokens; i++) {
            tokens[i] = (int32_t)sl_test_rng_below(&rng, 1 + (uint32_t)round % VOCAB);
            present[tokens[i]] = true;
            in_output[tokens[i]] = in_output[tokens[i]] || i >= n_prompt;
        }
        float logits[VOCAB], once[VOCAB], again[VOCAB], other[VOCAB];
        for (size_t i = 0; i < VOCAB; i++)
            logits[i] = sl_test_rng_below(&rng, 9) ? 5.0f * sl_test_rng_normal(&rng) : -INFINITY;
        sl_sampling s = {
            .presence_penalty = 1.0f + (float)sl_test_rng_below(&rng, 3),
            .frequency_penalty = 0.5f * (float)sl_test_rng_below(&rng, 3),
            .repetition_penalty = round % 2 ? 1.3f : 0.0f,
            .dry_multiplier = round % 3 ? 0.0f : 0.7f,
        };
        memcpy(once, logits, sizeof logits);
        memcpy(again, logits, sizeof logits);
        memcpy(other, logits, sizeof logits);
        apply(s, tokens, n_tokens, n_prompt, NULL, once);
        apply(s, tokens, n_tokens, n_prompt, NULL, again);
        assert_memory_equal(once, again, sizeof once);
        for (size_t i = 0; i < VOCAB; i++) {
            const bool is_changed = once[i] != logits[i];
            assert_true(!is_changed || present[i]);
            assert_true(once[i] <= logits[i]);
            assert_true(!in_output[i] || logits[i] == -INFINITY || is_changed);
        }
        s.dry_multiplier = 0.0f;
        for (size_t i = 0; i < n_tokens; i++) /* both parts reversed */
            shuffled[i] = tokens[i < n_prompt ? n_prompt - 1 - i : n_tokens - 1 - (i - n_prompt)];
        memcpy(again, logits, sizeof logits);
        apply(s, tokens, n_tokens, n_prompt, NULL, again);
        apply(s, shuffled, n_tokens, n_prompt, NULL, other);
        assert_memory_equal(again, other, sizeof again);
    }
}

static void test_refuses_histories(void **state)
{
    (void)state;
    sl_error err;
    const int32_t tokens[] = {1, -1, 2, VOCAB, 3, 4};
    float logits[VOCAB] = {0};
    const float zeros[VOCAB] = {0};
    sl_sampling s = {.presence_penalty = 1.0f, .penalty_window = 2};
    sl_history history = {tokens, 6, 0};
    const sl_history reversed = {tokens, 2, 3};
    assert_refused(sl_penalties_apply(&penalties, &s, &reversed, NULL, logits, VOCAB, &err),
                   SL_ERR_ARGUMENT, "a history of 2 tokens with a prompt of 3");
    /* What no setting looks at is not read. */
    assert_ok(sl_penalties_apply(&penalties, &s, &history, NULL, logits, VOCAB, &err));
    memset(logits, 0, sizeof logits);
    s.penalty_window = 3;
    assert_refused(sl_penalties_apply(&penalties, &s, &history, NULL, logits, VOCAB, &err),
                   SL_ERR_ARGUMENT, "token 3 of the history is 50, it must be from 0 to 49");
    history.n_tokens = 3;
    assert_refused(sl_penalties_apply(&penalties, &s, &history, NULL, logits, VOCAB, &err),
                   SL_ERR_ARGUMENT, "token 1 of the history is -1");
    /* Fewer logits than the vocabulary has tokens. */
    history.n_tokens = 1;
    assert_refused(sl_penalties_apply(&penalties, &s, &history, NULL, logits, 1, &err),
                   SL_ERR_ARGUMENT, "token 0 of the history is 1, it must be from 0 to 0");
    assert_memory_equal(logits, zeros, sizeof zeros);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    const size_t blocks = sl_mem_get_stats().blocks;
    const sl_sampling plain = {.temperature = 1.0f, .top_p = 1.0f, .seed = 5};
    sl_sampling s = {.temperature = 0.0f, .dry_multiplier = 1.0f, .dry_window = 100};
    sl_sampler *sampler;
    sl_error err;
    int32_t before, token;
    const float logits[VOCAB] = {0};
    assert_ok(sl_sampler_create(VOCAB, &sampler, &err));
    assert_ok(sl_sampler_set(sampler, &plain, &err));
    assert_ok(sl_sample(sampler, logits, VOCAB, 9, &before, &err));
    sl_mem_fail_at(1, false);
    assert_refused(sl_sampler_set(sampler, &s, &err), SL_ERR_MEMORY, "dry_window of 100 tokens");
    sl_mem_fail_at(0, false);
    assert_ok(sl_sample(sampler, logits, VOCAB, 9, &token, &err)); /* as before */
    assert_int_equal(token, before);

    assert_ok(sl_sampler_set(sampler, &s, &err));
    assert_refused(sl_sample(sampler, logits, VOCAB, 9, &token, &err), SL_ERR_ARGUMENT,
                   "penalties need the tokens so far");
    s.dry_window = 1000;
    assert_ok(sl_sampler_set(sampler, &s, &err)); /* grows */
    const uint64_t requests = sl_mem_get_stats().requests;
    s.dry_window = 900;
    assert_ok(sl_sampler_set(sampler, &s, &err));
    int32_t tokens[1500];
    for (size_t i = 0; i < SL_COUNTOF(tokens); i++)
        tokens[i] = (int32_t)(i % 7);
    const sl_sample_context context = {.history = {tokens, SL_COUNTOF(tokens), 7}};
    assert_ok(sl_sample_next(sampler, logits, VOCAB, &context, &token, &err));
    assert_int_equal(sl_mem_get_stats().requests, requests);
    sl_sampler_destroy(sampler);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_presence_counts_output_only),
        cmocka_unit_test(test_repetition_counts_the_prompt_too),
        cmocka_unit_test(test_window),
        cmocka_unit_test(test_loop_breaking),
        cmocka_unit_test(test_long_loops_stay_finite),
        cmocka_unit_test(test_properties),
        cmocka_unit_test(test_refuses_histories),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
