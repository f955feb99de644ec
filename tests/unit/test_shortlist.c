/* Sampling from a short list of the likeliest tokens gives what sampling from the whole row gives,
 * or says that the list does not decide; and logits that an engine keeps. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models.h"

#include "base/mem.h"
#include "engine/ranking.h"
#include "engine/sampler.h"

enum { VOCAB = 3000, HISTORY = 40 };

static int by_key(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static sl_shortlist list_of(const float *logits, size_t n)
{
    static uint64_t keys[VOCAB];
    for (size_t id = 0; id < n; id++)
        keys[id] = sl_ranking_key(logits[id], id);
    qsort(keys, n, sizeof *keys, by_key);
    sl_shortlist list = {.n = (uint32_t)sl_min_size(n, SL_SHORTLIST_TOKENS)};
    memcpy(list.keys, keys, list.n * sizeof *keys);
    return list;
}

static void test_keys(void **state)
{
    (void)state;
    static const float values[] = {-INFINITY, -3e38f, -1.5f, -1e-40f, 0.0f, 1e-40f, 2.0f, 3e38f};
    for (size_t i = 0; i < SL_COUNTOF(values); i++) {
        const uint64_t key = sl_ranking_key(values[i], 7);
        const float back = sl_ranking_logit(key);
        assert_memory_equal(&back, &values[i], sizeof back);
        assert_int_equal(key & UINT32_MAX, 7);
        assert_true(i == 0 || key < sl_ranking_key(values[i - 1], 7));
    }
    assert_true(sl_ranking_key(-0.0f, 3) == sl_ranking_key(0.0f, 3));
    assert_true(sl_ranking_key(1.0f, 3) < sl_ranking_key(1.0f, 4));
}

static sl_sampling random_sampling(sl_test_rng *rng, const sl_logit_bias *bias)
{
    static const float temperatures[] = {0.0f, 1e-30f, 0.1f, 0.7f, 1.0f, 5.0f};
    static const uint32_t top_ks[] = {0, 1, 2, 20, 100, 128, 129, 10000};
    static const float top_ps[] = {0.0f, 0.5f, 0.95f, 1.0f, 1.0f};
    static const float min_ps[] = {0.0f, 1e-4f, 0.05f, 1.0f};
    static const float typical_ps[] = {0.0f, 0.0f, 0.3f, 0.9f, 1.0f};
    static const float penalties[] = {0.0f, 0.0f, 0.5f, 1.5f, -1.0f};
    static const float repetitions[] = {0.0f, 1.0f, 1.1f, 3.0f, 0.8f};
#define ANY(list) list[sl_test_rng_below(rng, SL_COUNTOF(list))]
    return (sl_sampling){.temperature = ANY(temperatures),
                         .top_k = ANY(top_ks),
                         .top_p = ANY(top_ps),
                         .min_p = ANY(min_ps),
                         .typical_p = ANY(typical_ps),
                         .seed = sl_test_rng_below(rng, 1000),
                         .presence_penalty = ANY(penalties),
                         .frequency_penalty = ANY(penalties),
                         .repetition_penalty = ANY(repetitions),
                         .penalty_window = sl_test_rng_below(rng, 2) ? 8 : 0,
                         .dry_multiplier = sl_test_rng_below(rng, 3) ? 0.0f : 0.8f,
                         .bias = bias,
                         .n_bias = sl_test_rng_below(rng, 3) ? 0 : 2};
#undef ANY
}

/* The same token from the same candidates with the same probabilities, bit for bit. */
static void assert_same_draw(sl_sampler *whole, sl_sampler *listed)
{
    const size_t n = sl_sampler_n_candidates(whole);
    assert_int_equal(sl_sampler_n_candidates(listed), n);
    for (size_t i = 0; i < n; i++) {
        const sl_candidate a = sl_sampler_candidate(whole, i), b = sl_sampler_candidate(listed, i);
        assert_int_equal(a.id, b.id);
        assert_memory_equal(&a.p, &b.p, sizeof a.p);
    }
}

static void test_equals_the_row(void **state)
{
    (void)state;
    static float logits[VOCAB];
    static uint32_t banned[VOCAB / 32 + 1], allowed[VOCAB / 32 + 1];
    sl_test_rng rng = sl_test_rng_of(21);
    sl_error err;
    sl_sampler *whole, *listed;
    assert_ok(sl_sampler_create(VOCAB, &whole, &err));
    assert_ok(sl_sampler_create(VOCAB, &listed, &err));
    size_t n_decided = 0, n_greedy = 0, n_rounds = 0, n_none = 0;
    for (int round = 0; round < 6000; round++) {
        const size_t n = 1 + sl_test_rng_below(&rng, round % 3 ? VOCAB : 150);
        static const float spreads[] = {0.0f, 0.5f, 3.0f, 30.0f};
        const float spread = spreads[sl_test_rng_below(&rng, SL_COUNTOF(spreads))];
        const bool rounded = sl_test_rng_below(&rng, 2);
        for (size_t i = 0; i < n; i++) {
            const float x = sl_test_rng_normal(&rng) * spread;
            logits[i] = rounded ? rintf(x) : x;
        }
        const sl_shortlist list = list_of(logits, n);
        for (size_t i = 0; i < SL_COUNTOF(banned); i++) {
            banned[i] = sl_test_rng_below(&rng, 40) ? 0 : UINT32_MAX;
            allowed[i] = sl_test_rng_below(&rng, 8) ? UINT32_MAX : 0;
        }
        int32_t tokens[HISTORY]; /* mostly likely ones, as in life */
        for (size_t i = 0; i < HISTORY; i++)
            tokens[i] = sl_test_rng_below(&rng, 3)
                            ? (int32_t)(list.keys[sl_test_rng_below(&rng, list.n)] & UINT32_MAX)
                            : (int32_t)sl_test_rng_below(&rng, (uint32_t)n);
        const sl_logit_bias bias[2] = {{.id = (int32_t)(list.keys[0] & UINT32_MAX), .bias = -2.0f},
                                       {.id = (int32_t)sl_test_rng_below(&rng, (uint32_t)n),
                                        .bias = sl_test_rng_below(&rng, 2) ? 5.0f : -100.0f}};
        const sl_sampling sampling = random_sampling(&rng, bias);
        const int32_t forced = (int32_t)sl_test_rng_below(&rng, (uint32_t)n);
        const sl_sample_context context = {
            .history = {.tokens = tokens, .n_tokens = HISTORY, .n_prompt = 10},
            .position = sl_test_rng_below(&rng, 100000),
            .allowed = sl_test_rng_below(&rng, 4) ? NULL : allowed,
            .forced = sl_test_rng_below(&rng, 50) ? NULL : &forced};
        sl_sampler *const both[] = {whole, listed};
        for (int i = 0; i < 2; i++) {
            assert_ok(sl_sampler_set(both[i], &sampling, &err));
            sl_sampler_set_banned(both[i], round % 2 ? banned : NULL);
        }
        int32_t expected = -1, got = -2;
        const sl_status status = sl_sample_next(whole, logits, n, &context, &expected, &err);
        bool decided;
        assert_ok(sl_sample_shortlist(listed, &list, n, &context, &got, &decided, &err));
        n_rounds++;
        if (status != SL_OK) { /* no token is left: the row has to say so */
            assert_false(decided);
            n_none++;
            continue;
        }
        if (decided) {
            assert_int_equal(got, expected);
            assert_same_draw(whole, listed);
        } else { /* the row takes over, also in the sampler that has seen the list */
            assert_ok(sl_sample_next(listed, logits, n, &context, &got, &err));
            assert_int_equal(got, expected);
        }
        n_decided += decided;
        n_greedy += decided && sampling.temperature == 0.0f;
    }
    print_message("%zu of %zu decided, %zu of them greedy; none left: %zu\n", n_decided, n_rounds,
                  n_greedy, n_none);
    assert_true(n_decided > n_rounds / 4);
    assert_true(n_greedy > 100);
    sl_sampler_destroy(whole);
    sl_sampler_destroy(listed);
}

/* What the makers of the models recommend is decided by the list. */
static void test_usual_settings(void **state)
{
    (void)state;
    static float logits[VOCAB];
    sl_test_rng rng = sl_test_rng_of(3);
    sl_error err;
    sl_sampler *sampler;
    assert_ok(sl_sampler_create(VOCAB, &sampler, &err));
    int32_t tokens[HISTORY] = {0};
    const sl_sampling usual[] = {
        sl_sampling_default(),
        {.temperature = 1.0f, .top_k = 20, .top_p = 0.95f, .presence_penalty = 1.5f},
        {.temperature = 0.6f, .top_k = 20, .top_p = 0.95f, .repetition_penalty = 1.05f},
        {.temperature = 1.0f, .top_p = 1.0f, .min_p = 0.05f},
    };
    for (size_t i = 0; i < SL_COUNTOF(usual); i++) {
        assert_ok(sl_sampler_set(sampler, &usual[i], &err));
        for (int round = 0; round < 50; round++) {
            for (size_t id = 0; id < VOCAB; id++)
                logits[id] = 3.0f * sl_test_rng_normal(&rng);
            const sl_shortlist list = list_of(logits, VOCAB);
            const sl_sample_context context = {.history = {.tokens = tokens, .n_tokens = HISTORY},
                                               .position = (uint64_t)round};
            int32_t token;
            bool decided;
            assert_ok(sl_sample_shortlist(sampler, &list, VOCAB, &context, &token, &decided, &err));
            assert_true(decided);
        }
    }
    /* An empty list decides nothing but a token that has to come. */
    const sl_shortlist none = {.n = 0};
    const int32_t forced = 5;
    sl_sample_context context = {.position = 1};
    int32_t token;
    bool decided;
    assert_ok(sl_sampler_set(sampler, &usual[0], &err));
    assert_ok(sl_sample_shortlist(sampler, &none, VOCAB, &context, &token, &decided, &err));
    assert_false(decided);
    context.forced = &forced;
    assert_ok(sl_sample_shortlist(sampler, &none, VOCAB, &context, &token, &decided, &err));
    assert_true(decided && token == forced);
    sl_sampler_destroy(sampler);
}

static void eval_kept(sl_engine *engine, sl_state *const *states, size_t n, const int32_t *tokens,
                      size_t n_tokens)
{
    sl_eval_item items[3] = {0};
    sl_error err;
    for (size_t i = 0; i < n; i++)
        items[i] = (sl_eval_item){
            .state = states[i], .tokens = tokens + i, .n_tokens = n_tokens, .keep_logits = true};
    const sl_eval_options options = {.max_rows = 7};
    assert_ok(sl_engine_eval(engine, items, n, &options, &err));
}

static void test_kept(void **state)
{
    (void)state;
    enum { N = 3, TOKENS = 10 };
    sl_engine *engine = sl_test_engine(sl_model_path("rand-r1-q8_0.gguf"), 1, false);
    const size_t vocab = sl_engine_vocab(engine);
    int32_t tokens[TOKENS + N];
    for (int i = 0; i < TOKENS + N; i++)
        tokens[i] = 11 * i;
    sl_state *states[N];
    sl_error err;
    for (size_t i = 0; i < N; i++)
        assert_ok(sl_state_create(engine, 64, &states[i], &err));
    const float *logits;
    assert_refused(sl_state_logits(states[0], &logits, &err), SL_ERR_ARGUMENT, "kept no logits");
    eval_kept(engine, states, N, tokens, TOKENS);
    float *expected[N];
    int32_t greedy[N];
    sl_sampler *sampler;
    assert_ok(sl_sampler_create(vocab, &sampler, &err));
    for (size_t i = 0; i < N; i++) { /* in any order */
        const size_t s = (i + 1) % N;
        assert_ok(sl_state_logits(states[s], &logits, &err));
        const sl_sample_context context = {.position = TOKENS};
        assert_ok(sl_state_sample(states[s], sampler, &context, &greedy[s], &err));
        expected[s] = sl_alloc_array(SL_MEM_GENERAL, vocab, sizeof(float));
        memcpy(expected[s], logits, vocab * sizeof *logits);
    }
    for (size_t i = 0; i < N; i++) {
        float *all = sl_test_logits(engine, tokens + i, TOKENS, 0);
        const float *row = all + (TOKENS - 1) * vocab;
        assert_memory_equal(row, expected[i], vocab * sizeof *row);
        int32_t token;
        assert_ok(sl_sample(sampler, row, vocab, TOKENS, &token, &err));
        assert_int_equal(token, greedy[i]);
        /* That evaluation was another one. */
        assert_refused(sl_state_logits(states[i], &logits, &err), SL_ERR_ARGUMENT,
                       "kept no logits");
        sl_free(all);
        sl_free(expected[i]);
    }
    /* A state that has changed has no logits, even at the same length. */
    eval_kept(engine, states, N, tokens, 1);
    assert_ok(sl_state_rewind(states[0], TOKENS, NULL, &err));
    sl_state_reset(states[1]);
    for (size_t i = 0; i < 2; i++) {
        const sl_sample_context context = {.position = 0};
        int32_t token;
        assert_refused(sl_state_sample(states[i], sampler, &context, &token, &err), SL_ERR_ARGUMENT,
                       "kept no logits");
    }
    sl_state *fork;
    assert_ok(sl_state_fork(states[2], &fork, &err));
    assert_refused(sl_state_logits(fork, &logits, &err), SL_ERR_ARGUMENT, "kept no logits");
    assert_ok(sl_state_logits(states[2], &logits, &err));
    float room[1];
    const sl_eval_item both = {
        .state = states[2], .tokens = tokens, .n_tokens = 1, .keep_logits = true, .logits = room};
    assert_refused(sl_engine_eval(engine, &both, 1, NULL, &err), SL_ERR_ARGUMENT,
                   "both kept and wanted");
    sl_state_free(fork);
    for (size_t i = 0; i < N; i++)
        sl_state_free(states[i]);
    sl_sampler_destroy(sampler);
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_equals_the_row),
        cmocka_unit_test(test_usual_settings),
        cmocka_unit_test(test_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
