/* The sampler's settings: every one refused by name and range, and defaults from the model file. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "engine/sampler.h"

static const sl_sampling usual = {
    .temperature = 0.7f,
    .top_k = 20,
    .top_p = 0.8f,
    .min_p = 0.1f,
    .seed = 3,
    .typical_p = 0.9f,
    .presence_penalty = 1.5f,
    .frequency_penalty = 0.2f,
    .repetition_penalty = 1.1f,
    .penalty_window = 64,
    .dry_multiplier = 0.8f,
    .dry_base = 1.75f,
    .dry_allowed_length = 2,
    .dry_window = 1000,
};

typedef struct float_setting {
    const char *name;
    size_t offset;
    float low, high;
} float_setting;

static const float_setting settings[] = {
    {"temperature", offsetof(sl_sampling, temperature), 0.0f, FLT_MAX},
    {"top_p", offsetof(sl_sampling, top_p), 0.0f, 1.0f},
    {"min_p", offsetof(sl_sampling, min_p), 0.0f, 1.0f},
    {"typical_p", offsetof(sl_sampling, typical_p), 0.0f, 1.0f},
    {"presence_penalty", offsetof(sl_sampling, presence_penalty), -100.0f, 100.0f},
    {"frequency_penalty", offsetof(sl_sampling, frequency_penalty), -100.0f, 100.0f},
    {"repetition_penalty", offsetof(sl_sampling, repetition_penalty), 0.0f, 100.0f},
    {"dry_multiplier", offsetof(sl_sampling, dry_multiplier), 0.0f, 100.0f},
    {"dry_base", offsetof(sl_sampling, dry_base), 1.0f, 100.0f},
};

static sl_sampling with(const float_setting *setting, float value)
{
    sl_sampling sampling = usual;
    memcpy((char *)&sampling + setting->offset, &value, sizeof value);
    return sampling;
}

static void test_ranges(void **state)
{
    (void)state;
    sl_error err;
    assert_ok(sl_sampling_check(&usual, &err));
    const sl_sampling off = sl_sampling_default(), zero = {0};
    assert_ok(sl_sampling_check(&off, &err));
    assert_ok(sl_sampling_check(&zero, &err));
    for (size_t i = 0; i < SL_COUNTOF(settings); i++) {
        const float_setting *s = &settings[i];
        const float good[] = {s->low, s->high, 0.0f, -0.0f, 1.0f};
        for (size_t j = 0; j < SL_COUNTOF(good); j++) {
            const sl_sampling sampling = with(s, good[j]);
            assert_ok(sl_sampling_check(&sampling, &err));
        }
        const float bad[] = {NAN,
                             -NAN,
                             INFINITY,
                             -INFINITY,
                             nextafterf(s->low, -INFINITY),
                             nextafterf(s->high, INFINITY)};
        char name[40];
        snprintf(name, sizeof name, "%s is ", s->name);
        for (size_t j = 0; j < SL_COUNTOF(bad); j++) {
            const sl_sampling sampling = with(s, bad[j]);
            assert_refused(sl_sampling_check(&sampling, &err), SL_ERR_ARGUMENT, name);
        }
    }
    sl_sampling sampling = usual;
    sampling.dry_window = SL_DRY_MAX_WINDOW;
    assert_ok(sl_sampling_check(&sampling, &err));
    sampling.dry_window++;
    assert_refused(sl_sampling_check(&sampling, &err), SL_ERR_ARGUMENT,
                   "dry_window is 65537, it must be from 0 to 65536");
    const sl_sampling base = with(&settings[8], 0.5f);
    assert_refused(sl_sampling_check(&base, &err), SL_ERR_ARGUMENT,
                   "dry_base is 0.5, it must be from 1 to 100");
}

static void test_logit_bias(void **state)
{
    (void)state;
    static sl_logit_bias bias[SL_MAX_LOGIT_BIAS + 1];
    sl_sampling sampling = usual;
    sl_error err;
    sampling.bias = bias;
    sampling.n_bias = SL_MAX_LOGIT_BIAS;
    assert_ok(sl_sampling_check(&sampling, &err));
    sampling.n_bias++;
    assert_refused(sl_sampling_check(&sampling, &err), SL_ERR_LIMIT, "logit_bias has 1025 entries");
    sampling.n_bias = 5;
    const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        bias[4] = (sl_logit_bias){7, bad[i]};
        assert_refused(sl_sampling_check(&sampling, &err), SL_ERR_ARGUMENT,
                       "logit_bias of token 7 is");
    }
    bias[4] = (sl_logit_bias){-1, 0.0f};
    assert_refused(sl_sampling_check(&sampling, &err), SL_ERR_ARGUMENT, "token -1");

    sl_sampler *sampler;
    assert_ok(sl_sampler_create(10, &sampler, &err));
    bias[4] = (sl_logit_bias){10, 1.0f};
    assert_refused(sl_sampler_set(sampler, &sampling, &err), SL_ERR_ARGUMENT,
                   "logit_bias names token 10, the last one is 9");
    bias[4].id = 9;
    assert_ok(sl_sampler_set(sampler, &sampling, &err));
    sl_sampler_destroy(sampler);
}

/* Any bytes as settings: taken or refused, and what was taken gives a token. */
static void test_random_settings(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(8);
    sl_error err;
    sl_sampler *sampler;
    assert_ok(sl_sampler_create(16, &sampler, &err));
    const float logits[16] = {1.0f, -2.0f, FLT_MAX, -FLT_MAX, 0.0f, 1e-40f, -INFINITY};
    const int32_t tokens[] = {2, 4, 2, 4, 2, 4, 5, 5, 5, 0, 15, 2, 4, 2};
    const sl_sample_context context = {.history = {tokens, SL_COUNTOF(tokens), 3}};
    size_t n_taken = 0;
    for (int round = 0; round < 20000; round++) {
        sl_sampling sampling = usual;
        for (uint32_t n = 1 + sl_test_rng_below(&rng, 3); n > 0; n--) {
            const float_setting *s = &settings[sl_test_rng_below(&rng, SL_COUNTOF(settings))];
            const uint32_t bits = (uint32_t)(sl_test_rng_next(&rng) >> 32);
            memcpy((char *)&sampling + s->offset, &bits, sizeof bits);
        }
        sampling.dry_window = (uint32_t)(sl_test_rng_next(&rng) >> (40 + round % 24));
        sampling.dry_allowed_length = (uint32_t)(sl_test_rng_next(&rng) >> (32 + round % 32));
        sampling.top_k = (uint32_t)(sl_test_rng_next(&rng) >> (32 + round % 32));
        sampling.penalty_window = (uint32_t)(sl_test_rng_next(&rng) >> (32 + round % 32));
        const sl_status status = sl_sampler_set(sampler, &sampling, &err);
        if (status != SL_OK) {
            assert_int_equal(status, SL_ERR_ARGUMENT);
            continue;
        }
        int32_t token = -1;
        assert_ok(sl_sample_next(sampler, logits, 16, &context, &token, &err));
        assert_in_range(token, 0, 15);
        assert_int_not_equal(token, 6);
        n_taken++;
    }
    assert_in_range(n_taken, 1000, 19000);
    sl_sampler_destroy(sampler);
}

static void test_from_config(void **state)
{
    (void)state;
    const sl_sampling_defaults nothing = {.temperature = 9.0f, .top_k = 9, .min_p = 0.9f};
    sl_sampling sampling = sl_sampling_from_config(&nothing, &usual);
    assert_true(sampling.temperature == usual.temperature && sampling.top_k == usual.top_k &&
                sampling.top_p == usual.top_p && sampling.min_p == usual.min_p &&
                sampling.presence_penalty == usual.presence_penalty);
    const sl_sampling_defaults all = {
        .has_temperature = true,
        .has_top_k = true,
        .has_top_p = true,
        .has_min_p = true,
        .has_typical_p = true,
        .has_repetition_penalty = true,
        .has_presence_penalty = true,
        .has_frequency_penalty = true,
        .has_penalty_window = true,
        .temperature = 1.0f,
        .top_k = 40,
        .top_p = 0.95f,
        .min_p = 0.05f,
        .typical_p = 0.9f,
        .repetition_penalty = 1.1f,
        .presence_penalty = 2.0f,
        .frequency_penalty = 0.25f,
        .penalty_window = 64,
    };
    sampling = sl_sampling_from_config(&all, &usual);
    assert_true(sampling.temperature == 1.0f && sampling.top_k == 40 && sampling.top_p == 0.95f &&
                sampling.min_p == 0.05f && sampling.presence_penalty == 2.0f);
    assert_true(sampling.typical_p == 0.9f && sampling.repetition_penalty == 1.1f &&
                sampling.frequency_penalty == 0.25f && sampling.penalty_window == 64);
    assert_true(sampling.dry_multiplier == usual.dry_multiplier && sampling.seed == 3);
}

static void test_needs_history(void **state)
{
    (void)state;
    sl_sampling sampling = {
        .temperature = 1.0f, .top_p = 0.5f, .repetition_penalty = 1.0f, .penalty_window = 3};
    assert_false(sl_penalties_needed(&sampling));
    const size_t looking_back[] = {4, 5, 6, 7};
    for (size_t i = 0; i < SL_COUNTOF(looking_back); i++) {
        const float value = 0.5f;
        sl_sampling changed = sampling;
        memcpy((char *)&changed + settings[looking_back[i]].offset, &value, sizeof value);
        assert_true(sl_penalties_needed(&changed));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranges),          cmocka_unit_test(test_logit_bias),
        cmocka_unit_test(test_random_settings), cmocka_unit_test(test_from_config),
        cmocka_unit_test(test_needs_history),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
