/* The sampler against a plain full sort, exact probabilities, and hostile settings and logits. */
#include "support.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dmath.h"
#include "base/mem.h"
#include "engine/rng.h"
#include "engine/sampler.h"

enum { MANY = 5000 };

static sl_sampler *new_sampler(size_t n_vocab, sl_sampling sampling)
{
    sl_error err;
    sl_sampler *sampler;
    assert_ok(sl_sampler_create(n_vocab, &sampler, &err));
    assert_ok(sl_sampler_set(sampler, &sampling, &err));
    return sampler;
}

static int32_t sample(sl_sampler *sampler, const float *logits, size_t n, uint64_t position)
{
    sl_error err;
    int32_t token = -1;
    assert_ok(sl_sample(sampler, logits, n, position, &token, &err));
    return token;
}

/* One token with settings of its own. */
static int32_t sample_once(sl_sampling sampling, const float *logits, size_t n, uint64_t position)
{
    sl_sampler *sampler = new_sampler(n, sampling);
    const int32_t token = sample(sampler, logits, n, position);
    sl_sampler_destroy(sampler);
    return token;
}

/* ---- a second implementation: sort all, cut nothing early ---- */

typedef struct ranked {
    float logit;
    int32_t id;
    double weight;
} ranked;

static int by_rank(const void *a, const void *b)
{
    const ranked *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* Fills all[n] in order with weights; returns how many tokens the filters keep. */
static size_t reference_kept(const sl_sampling *s, const float *logits, size_t n, ranked *all)
{
    for (size_t i = 0; i < n; i++)
        all[i] = (ranked){logits[i], (int32_t)i, 0.0};
    qsort(all, n, sizeof *all, by_rank);
    for (size_t i = 0; i < n; i++)
        all[i].weight =
            sl_exp_f64(((double)all[i].logit - (double)all[0].logit) / (double)s->temperature);
    size_t kept = s->top_k > 0 && s->top_k < n ? s->top_k : n;
    if (s->top_p < 1.0f) {
        double total = 0.0, before = 0.0;
        for (size_t i = 0; i < kept; i++)
            total += all[i].weight;
        size_t i = 0;
        while (i < kept && (i == 0 || before < (double)s->top_p * total))
            before += all[i++].weight;
        kept = i;
    }
    size_t i = 1;
    while (i < kept && all[i].weight >= (double)s->min_p)
        i++;
    return i;
}

static int32_t reference_sample(const sl_sampling *s, const float *logits, size_t n,
                                uint64_t position)
{
    static ranked all[MANY];
    const size_t kept = reference_kept(s, logits, n, all);
    double total = 0.0, sum = 0.0;
    for (size_t i = 0; i < kept; i++)
        total += all[i].weight;
    const double target = sl_rng_uniform(s->seed, position, 0) * total;
    for (size_t i = 0; i < kept; i++) {
        sum += all[i].weight;
        if (sum > target)
            return all[i].id;
    }
    return -1;
}

static void test_equals_a_full_sort(void **state)
{
    (void)state;
    static float logits[MANY];
    sl_test_rng rng = sl_test_rng_of(11);
    sl_sampler *sampler = new_sampler(MANY, sl_sampling_default());
    sl_error err;
    for (int round = 0; round < 400; round++) {
        const size_t n = 1 + sl_test_rng_below(&rng, round % 4 ? 300 : MANY);
        static const float spreads[] = {0.0f, 0.25f, 3.0f, 20.0f, 1000.0f};
        const float spread = spreads[sl_test_rng_below(&rng, SL_COUNTOF(spreads))];
        const bool rounded = sl_test_rng_below(&rng, 2); /* many ties */
        for (size_t i = 0; i < n; i++) {
            const float x = sl_test_rng_normal(&rng) * spread;
            logits[i] = rounded ? rintf(x) : x;
        }
        static const float temperatures[] = {1e-30f, 0.1f, 0.7f, 1.0f, 2.0f, 100.0f};
        static const uint32_t top_ks[] = {0, 1, 2, 20, 40, 10000};
        static const float top_ps[] = {0.0f, 0.1f, 0.8f, 0.95f, 0.9999999f, 1.0f};
        static const float min_ps[] = {0.0f, 1e-4f, 0.05f, 1.0f};
        const sl_sampling sampling = {
            .temperature = temperatures[sl_test_rng_below(&rng, SL_COUNTOF(temperatures))],
            .top_k = top_ks[sl_test_rng_below(&rng, SL_COUNTOF(top_ks))],
            .top_p = top_ps[sl_test_rng_below(&rng, SL_COUNTOF(top_ps))],
            .min_p = min_ps[sl_test_rng_below(&rng, SL_COUNTOF(min_ps))],
            .seed = sl_test_rng_next(&rng),
        };
        assert_ok(sl_sampler_set(sampler, &sampling, &err));
        for (uint64_t position = 0; position < 20; position++)
            assert_int_equal(sample(sampler, logits, n, position),
                             reference_sample(&sampling, logits, n, position));
    }
    sl_sampler_destroy(sampler);
}

/* ---- distributions ---- */

/* Draws 100,000 tokens and compares with p[n]; critical is the 99.9 % point of chi-square. */
static void check_distribution(sl_sampling sampling, const float *logits, const double *p, size_t n,
                               double critical)
{
    enum { DRAWS = 100000, MOST = 16 };
    uint32_t counts[MOST] = {0};
    assert_true(n <= MOST);
    sl_sampler *sampler = new_sampler(n, sampling);
    for (uint64_t position = 0; position < DRAWS; position++)
        counts[sample(sampler, logits, n, position)]++;
    double chi2 = 0.0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] == 0.0) {
            assert_int_equal(counts[i], 0);
            continue;
        }
        const double expected = p[i] * DRAWS, d = counts[i] - expected;
        chi2 += d * d / expected;
    }
    if (chi2 >= critical)
        fail_msg("chi-square %g, at most %g", chi2, critical);
    sl_sampler_destroy(sampler);
}

/* Logits whose probabilities at temperature 1 are 0.02, 0.4, 0.08, 0.3, 0.2. */
static const double known_p[5] = {0.02, 0.4, 0.08, 0.3, 0.2};
static void known_logits(float logits[5])
{
    for (int i = 0; i < 5; i++)
        logits[i] = (float)log(known_p[i]) + 3.0f;
}

static void test_distributions(void **state)
{
    (void)state;
    float logits[5];
    known_logits(logits);
    sl_sampling s = {.temperature = 1.0f, .top_p = 1.0f, .seed = 1};
    check_distribution(s, logits, known_p, 5, 18.47);

    double p[5], total = 0.0; /* temperature 2: p is proportional to its square root */
    for (int i = 0; i < 5; i++)
        total += sqrt(known_p[i]);
    for (int i = 0; i < 5; i++)
        p[i] = sqrt(known_p[i]) / total;
    s.temperature = 2.0f;
    s.seed = 2;
    check_distribution(s, logits, p, 5, 18.47);

    s = (sl_sampling){.temperature = 1.0f, .top_k = 3, .top_p = 1.0f, .seed = 3};
    check_distribution(s, logits, (double[]){0, 4 / 9.0, 0, 3 / 9.0, 2 / 9.0}, 5, 13.82);

    /* 0.4 + 0.3 = 0.7 is not yet 0.75, so the token of 0.2 stays too. */
    s = (sl_sampling){.temperature = 1.0f, .top_p = 0.75f, .seed = 4};
    check_distribution(s, logits, (double[]){0, 4 / 9.0, 0, 3 / 9.0, 2 / 9.0}, 5, 13.82);
    s.top_p = 0.65f;
    check_distribution(s, logits, (double[]){0, 4 / 7.0, 0, 3 / 7.0, 0}, 5, 10.83);

    /* 0.45 times the largest is 0.18. */
    s = (sl_sampling){.temperature = 1.0f, .top_p = 1.0f, .min_p = 0.45f, .seed = 5};
    check_distribution(s, logits, (double[]){0, 4 / 9.0, 0, 3 / 9.0, 2 / 9.0}, 5, 13.82);

    /* top_p counts shares of what top_k left: 4/9 is below 0.5, 7/9 is not. */
    s = (sl_sampling){.temperature = 1.0f, .top_k = 3, .top_p = 0.5f, .seed = 6};
    check_distribution(s, logits, (double[]){0, 4 / 7.0, 0, 3 / 7.0, 0}, 5, 10.83);

    const float equal[8] = {0};
    const double eighth[8] = {0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125, 0.125};
    s = (sl_sampling){.temperature = 1e-30f, .top_p = 1.0f, .seed = 7};
    check_distribution(s, equal, eighth, 8, 24.32);
}

static void test_depends_on_seed_and_position_only(void **state)
{
    (void)state;
    enum { N = 64, DRAWS = 500 };
    float logits[N], other[N];
    sl_test_rng rng = sl_test_rng_of(5);
    for (int i = 0; i < N; i++) {
        logits[i] = sl_test_rng_normal(&rng);
        other[i] = sl_test_rng_normal(&rng);
    }
    const sl_sampling sampling = {.temperature = 1.0f, .top_p = 0.95f, .seed = 99};
    int32_t forward[DRAWS];
    sl_sampler *sampler = new_sampler(N, sampling);
    for (uint64_t i = 0; i < DRAWS; i++)
        forward[i] = sample(sampler, logits, N, i);
    /* Backwards, with other work between, and in a larger sampler. */
    sl_sampler *large = new_sampler(1000, sampling);
    size_t n_changed = 0;
    for (uint64_t i = DRAWS; i-- > 0;) {
        sample(large, other, N, i);
        assert_int_equal(sample(large, logits, N, i), forward[i]);
        sl_sampling reseeded = sampling;
        reseeded.seed = 100;
        n_changed += sample_once(reseeded, logits, N, i) != forward[i];
    }
    assert_true(n_changed > DRAWS / 2);
    sl_sampler_destroy(large);
    sl_sampler_destroy(sampler);
}

/* ---- edges ---- */

static void test_greedy(void **state)
{
    (void)state;
    const float logits[] = {-1.0f, 2.0f, 2.0f, 0.5f};
    sl_sampling s = sl_sampling_default();
    assert_int_equal(sample_once(s, logits, 4, 0), 1);
    s.temperature = -0.0f;
    s.top_k = 3;
    s.top_p = 0.5f;
    assert_int_equal(sample_once(s, logits, 4, 0), 1);
    const float zeros[] = {-0.0f, 0.0f, -0.0f};
    assert_int_equal(sample_once(sl_sampling_default(), zeros, 3, 0), 0);
    const float low[] = {-INFINITY, -FLT_MAX, -INFINITY};
    assert_int_equal(sample_once(sl_sampling_default(), low, 3, 0), 1);
    assert_int_equal(sample_once(sl_sampling_default(), low + 1, 1, 0), 0);
}

static void test_settings_that_leave_one_token(void **state)
{
    (void)state;
    const float logits[] = {0.0f, 1.0f, 1.5f, 1.5f, -3.0f};
    const sl_sampling settings[] = {
        {.temperature = 1.0f, .top_k = 1, .top_p = 1.0f},
        {.temperature = 1.0f, .top_p = 0.0f},
        {.temperature = 1.0f, .top_p = FLT_MIN},
    };
    for (size_t i = 0; i < SL_COUNTOF(settings); i++) {
        for (uint64_t position = 0; position < 200; position++)
            assert_int_equal(sample_once(settings[i], logits, 5, position), 2);
    }
    /* min_p = 1 and a tiny temperature keep what equals the best. */
    const sl_sampling ties[] = {
        {.temperature = 1.0f, .top_p = 1.0f, .min_p = 1.0f},
        {.temperature = FLT_TRUE_MIN, .top_p = 1.0f},
    };
    for (size_t i = 0; i < SL_COUNTOF(ties); i++) {
        bool seen[5] = {false};
        for (uint64_t position = 0; position < 200; position++)
            seen[sample_once(ties[i], logits, 5, position)] = true;
        assert_true(seen[2] && seen[3] && !seen[0] && !seen[1] && !seen[4]);
    }
    /* Ties at the edge of top_k go to the lowest ids; -0 ties with +0. */
    const float tied[] = {-0.0f, 0.0f, -0.0f, 0.0f};
    bool seen[4] = {false};
    for (uint64_t position = 0; position < 200; position++)
        seen[sample_once((sl_sampling){.temperature = 1.0f, .top_k = 2, .top_p = 1.0f}, tied, 4,
                         position)] = true;
    assert_true(seen[0] && seen[1] && !seen[2] && !seen[3]);
    /* Values at the ends of the range, where differences overflow a float. */
    const float far[] = {-FLT_MAX, FLT_MAX, 0.0f};
    for (uint64_t position = 0; position < 200; position++)
        assert_int_equal(
            sample_once((sl_sampling){.temperature = 1.0f, .top_p = 1.0f}, far, 3, position), 1);
}

/* A share that is reached exactly is enough, and ties at the edge go to the lowest ids. */
static void test_exact_shares(void **state)
{
    (void)state;
    const float equal[8] = {0};
    const sl_sampling settings[] = {
        {.temperature = 1.0f, .top_p = 0.5f},
        {.temperature = 1.0f, .top_p = 1.0f, .typical_p = 0.5f},
        {.temperature = 1.0f, .top_p = 1.0f, .top_k = 4},
        {.temperature = 1.0f, .top_p = 0.5f, .typical_p = 0.75f, .min_p = 1.0f},
    };
    const size_t n_left[] = {4, 4, 4, 3};
    for (size_t i = 0; i < SL_COUNTOF(settings); i++) {
        sl_sampler *sampler = new_sampler(8, settings[i]);
        sample(sampler, equal, 8, 0);
        assert_int_equal(sl_sampler_n_candidates(sampler), n_left[i]);
        for (size_t j = 0; j < n_left[i]; j++) {
            assert_int_equal(sl_sampler_candidate(sampler, j).id, j);
            assert_true(sl_sampler_candidate(sampler, j).p == 1.0 / (double)n_left[i]);
        }
        sl_sampler_destroy(sampler);
    }
}

static void test_masks(void **state)
{
    (void)state;
    enum { N = 70 };
    float logits[N];
    uint32_t banned[3] = {0};
    for (size_t i = 0; i < N; i++) {
        logits[i] = (float)i;
        if (i != 3 && i != 40)
            banned[i / 32] |= 1u << (i % 32);
    }
    const sl_sampling settings[] = {
        sl_sampling_default(),
        {.temperature = 100.0f, .top_p = 1.0f, .seed = 1},
        {.temperature = 100.0f, .top_k = 5, .top_p = 0.9f, .min_p = 0.1f, .seed = 1},
    };
    for (size_t i = 0; i < SL_COUNTOF(settings); i++) {
        sl_sampler *sampler = new_sampler(N, settings[i]);
        sl_sampler_set_banned(sampler, banned);
        bool seen[N] = {false};
        for (uint64_t position = 0; position < 100; position++)
            seen[sample(sampler, logits, N, position)] = true;
        for (size_t id = 0; id < N; id++)
            assert_int_equal(seen[id], id == 40 || (id == 3 && i > 0));
        /* -inf masks the same way. */
        logits[40] = -INFINITY;
        for (uint64_t position = 0; position < 100; position++)
            assert_int_equal(sample(sampler, logits, N, position), 3);
        logits[3] = -INFINITY;
        sl_error err;
        int32_t token;
        assert_refused(sl_sample(sampler, logits, N, 12, &token, &err), SL_ERR_NUMERIC,
                       "no token is left at position 12");
        sl_sampler_set_banned(sampler, NULL);
        assert_true(sample(sampler, logits, N, 0) > 40 || i > 0);
        logits[3] = 3.0f;
        logits[40] = 40.0f;
        sl_sampler_destroy(sampler);
    }
}

static void test_allowed(void **state)
{
    (void)state;
    enum { N = 70 };
    float logits[N];
    uint32_t allowed[3] = {1u << 3 | 1u << 9, 1u << 8, 0}, banned[3] = {1u << 9};
    for (size_t i = 0; i < N; i++)
        logits[i] = (float)i;
    for (int greedy = 0; greedy < 2; greedy++) {
        const sl_sampling s = {.temperature = greedy ? 0.0f : 50.0f, .top_p = 1.0f};
        sl_sampler *sampler = new_sampler(N, s);
        sl_sampler_set_banned(sampler, banned);
        sl_sample_context context = {.allowed = allowed};
        bool seen[N] = {false};
        sl_error err;
        int32_t token;
        for (; context.position < 100; context.position++) {
            assert_ok(sl_sample_next(sampler, logits, N, &context, &token, &err));
            seen[token] = true;
        }
        for (size_t id = 0; id < N; id++)
            assert_int_equal(seen[id], id == 40 || (id == 3 && !greedy));
        const uint32_t none[3] = {1u << 9};
        context.allowed = none;
        assert_refused(sl_sample_next(sampler, logits, N, &context, &token, &err), SL_ERR_NUMERIC,
                       "no token is left at position 100");
        sl_sampler_destroy(sampler);
    }
}

/* A forced token comes whatever the rest says, but never out of broken logits. */
static void test_forced(void **state)
{
    (void)state;
    float logits[4] = {0.0f, 5.0f, -INFINITY, 1.0f};
    const uint32_t banned[1] = {4}, allowed[1] = {2};
    const sl_logit_bias bias = {1, 100.0f};
    sl_sampling s = {.temperature = 1.0f, .top_p = 1.0f, .bias = &bias, .n_bias = 1};
    sl_sampler *sampler = new_sampler(4, s);
    sl_sampler_set_banned(sampler, banned);
    int32_t token, forced = 2;
    sl_error err;
    const sl_sample_context context = {.allowed = allowed, .forced = &forced, .position = 6};
    assert_ok(sl_sample_next(sampler, logits, 4, &context, &token, &err));
    assert_int_equal(token, 2);
    assert_int_equal(sl_sampler_n_candidates(sampler), 1);
    assert_int_equal(sl_sampler_candidate(sampler, 0).id, 2);
    assert_true(sl_sampler_candidate(sampler, 0).p == 1.0);
    forced = 4;
    assert_refused(sl_sample_next(sampler, logits, 4, &context, &token, &err), SL_ERR_ARGUMENT,
                   "the forced token is 4, it must be from 0 to 3");
    forced = -1;
    assert_refused(sl_sample_next(sampler, logits, 4, &context, &token, &err), SL_ERR_ARGUMENT,
                   "the forced token is -1");
    forced = 2;
    logits[0] = NAN;
    assert_refused(sl_sample_next(sampler, logits, 4, &context, &token, &err), SL_ERR_NUMERIC,
                   "token 0 at position 6 is NaN");
    sl_sampler_destroy(sampler);
}

static void test_bias(void **state)
{
    (void)state;
    const float logits[5] = {0.0f, 1.0f, 2.0f, -INFINITY, FLT_MAX};
    const sl_logit_bias bias[] = {{0, 1.5f},     {0, 1.5f},     {3, 100.0f},
                                  {4, -FLT_MAX}, {4, -FLT_MAX}, {4, -FLT_MAX},
                                  {1, FLT_MAX},  {1, FLT_MAX},  {1, -FLT_MAX}};
    sl_sampling s = {.bias = bias, .n_bias = 3};
    assert_int_equal(sample_once(s, logits, 4, 0), 0);
    /* What lies out of n is for other calls; infinities do not arise on the way. */
    s.n_bias = SL_COUNTOF(bias);
    assert_int_equal(sample_once(s, logits, 5, 0), 0);
    sl_sampler *sampler = new_sampler(5, s);
    assert_int_equal(sample(sampler, logits, 3, 0), 0);
    sl_sampler_destroy(sampler);
}

static void test_logprobs(void **state)
{
    (void)state;
    enum { N = 300 };
    float logits[N];
    sl_logprob top[N];
    sl_test_rng rng = sl_test_rng_of(12);
    const uint32_t banned[10] = {UINT32_MAX};
    sl_sampling s = {.temperature = 0.3f, .top_k = 3, .top_p = 0.5f};
    sl_sampler *sampler = new_sampler(N, s);
    sl_sampler_set_banned(sampler, banned); /* no mask and no setting counts */
    sl_error err;
    double logprob;
    size_t n_top;
    for (int round = 0; round < 50; round++) {
        for (size_t i = 0; i < N; i++)
            logits[i] = rintf(sl_test_rng_normal(&rng) * (float)round);
        logits[17] = -INFINITY;
        assert_ok(sl_sampler_logprobs(sampler, logits, N, 0, 17, &logprob, top, N, &n_top, &err));
        assert_true(logprob == -INFINITY);
        assert_int_equal(n_top, N - 1);
        double sum = 0.0;
        for (size_t i = 0; i < n_top; i++) {
            sum += sl_exp_f64(top[i].logprob);
            assert_true(top[i].logprob <= 0.0);
            assert_true(i == 0 || top[i - 1].logprob > top[i].logprob ||
                        (top[i - 1].logprob == top[i].logprob && top[i - 1].id < top[i].id));
            assert_ok(sl_sampler_logprobs(sampler, logits, N, 0, top[i].id, &logprob, NULL, 0,
                                          &(size_t){0}, &err));
            assert_true(logprob == top[i].logprob);
        }
        assert_float_equal(sum, 1.0, 1e-13);
    }
    const float far[3] = {FLT_MAX, -FLT_MAX, FLT_MAX};
    assert_ok(sl_sampler_logprobs(sampler, far, 3, 0, 1, &logprob, top, 2, &n_top, &err));
    assert_true(logprob == -2.0 * (double)FLT_MAX);
    assert_true(n_top == 2 && top[0].id == 0 && top[1].id == 2 && top[0].logprob < -0.69);
    assert_int_equal(sl_sampler_n_candidates(sampler), 0);

    const float none[2] = {-INFINITY, -INFINITY}, bad[2] = {0.0f, NAN};
    assert_refused(sl_sampler_logprobs(sampler, none, 2, 8, 1, &logprob, top, 2, &n_top, &err),
                   SL_ERR_NUMERIC, "every one of 2 logits at position 8 is -inf");
    assert_refused(sl_sampler_logprobs(sampler, bad, 2, 8, 1, &logprob, top, 2, &n_top, &err),
                   SL_ERR_NUMERIC, "the logit of token 1 at position 8 is NaN");
    assert_refused(sl_sampler_logprobs(sampler, far, 3, 8, 3, &logprob, top, 2, &n_top, &err),
                   SL_ERR_ARGUMENT, "the chosen token is 3, it must be from 0 to 2");
    sl_sampler_destroy(sampler);
}

/* Two sequences in turns on one sampler, with histories, give what each gives alone. */
static void test_turns_do_not_matter(void **state)
{
    (void)state;
    enum { N = 40, STEPS = 200 };
    sl_sampler *shared = new_sampler(N, sl_sampling_default());
    int32_t alone[2][STEPS], together[2][STEPS];
    const sl_sampling settings[2] = {{.temperature = 1.0f,
                                      .top_p = 0.9f,
                                      .typical_p = 0.8f,
                                      .seed = 1,
                                      .presence_penalty = 1.0f,
                                      .repetition_penalty = 1.2f},
                                     {.temperature = 0.8f,
                                      .top_p = 1.0f,
                                      .seed = 2,
                                      .frequency_penalty = 0.3f,
                                      .dry_multiplier = 0.8f}};
    sl_error err;
    for (int in_turns = 0; in_turns < 2; in_turns++) {
        for (int step = 0; step < 2 * STEPS; step++) {
            const int who = in_turns ? step % 2 : step / STEPS;
            const size_t length = (size_t)(in_turns ? step / 2 : step % STEPS);
            float logits[N];
            sl_test_rng rng = sl_test_rng_of((uint64_t)(1 + who));
            for (size_t i = 0; i < N; i++)
                logits[i] = sl_test_rng_normal(&rng);
            int32_t *tokens = in_turns ? together[who] : alone[who];
            const sl_sample_context context = {.history = {tokens, length, length / 2},
                                               .position = length};
            assert_ok(sl_sampler_set(shared, &settings[who], &err));
            assert_ok(sl_sample_next(shared, logits, N, &context, &tokens[length], &err));
        }
    }
    assert_memory_equal(alone, together, sizeof alone);
    sl_sampler_destroy(shared);
}

static void test_refuses_logits_that_are_no_numbers(void **state)
{
    (void)state;
    const float bad[] = {NAN, -NAN, INFINITY};
    uint32_t banned[1] = {1u << 5};
    for (int greedy = 0; greedy < 2; greedy++) {
        const sl_sampling s = {.temperature = greedy ? 0.0f : 1.0f, .top_p = 1.0f};
        sl_sampler *sampler = new_sampler(8, s);
        sl_sampler_set_banned(sampler, banned); /* a broken row is reported all the same */
        sl_error err;
        int32_t token = 77;
        for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
            float logits[8] = {0.0f, 1.0f};
            logits[5] = bad[i];
            assert_refused(sl_sample(sampler, logits, 8, 9, &token, &err), SL_ERR_NUMERIC,
                           "token 5 at position 9");
        }
        const float none[8] = {-INFINITY, -INFINITY, -INFINITY, -INFINITY,
                               -INFINITY, 0.0f,      -INFINITY, -INFINITY};
        assert_refused(sl_sample(sampler, none, 8, 10, &token, &err), SL_ERR_NUMERIC,
                       "position 10");
        assert_refused(sl_sample(sampler, none, 9, 0, &token, &err), SL_ERR_ARGUMENT, "9 logits");
        assert_refused(sl_sample(sampler, none, 0, 0, &token, &err), SL_ERR_ARGUMENT, "0 logits");
        assert_int_equal(token, 77);
        assert_int_equal(sl_sampler_n_candidates(sampler), 0);
        sl_sampler_destroy(sampler);
    }
}

static void test_refuses_settings(void **state)
{
    (void)state;
    sl_sampling ok = {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f, .min_p = 0.0f, .seed = 3};
    sl_error err;
    assert_ok(sl_sampling_check(&ok, &err));
    const float bad[] = {NAN, -NAN, INFINITY, -INFINITY, -0.1f, -FLT_TRUE_MIN};
    sl_sampler *sampler = new_sampler(4, ok);
    for (size_t i = 0; i < SL_COUNTOF(bad); i++) {
        sl_sampling s = ok;
        s.temperature = bad[i];
        assert_refused(sl_sampling_check(&s, &err), SL_ERR_ARGUMENT, "temperature");
        assert_refused(sl_sampler_set(sampler, &s, &err), SL_ERR_ARGUMENT, "temperature");
        s = ok;
        s.top_p = bad[i];
        assert_refused(sl_sampling_check(&s, &err), SL_ERR_ARGUMENT, "top_p");
        s = ok;
        s.min_p = bad[i];
        assert_refused(sl_sampling_check(&s, &err), SL_ERR_ARGUMENT, "min_p");
    }
    sl_sampling s = ok;
    s.top_p = 1.001f;
    assert_refused(sl_sampling_check(&s, &err), SL_ERR_ARGUMENT, "top_p");
    s = ok;
    s.min_p = 1.001f;
    assert_refused(sl_sampling_check(&s, &err), SL_ERR_ARGUMENT, "min_p");
    /* A refused call leaves the settings in place. */
    const float logits[4] = {0.0f, 0.1f, 0.2f, 0.3f};
    for (uint64_t position = 0; position < 50; position++)
        assert_int_equal(sample(sampler, logits, 4, position),
                         sample_once(ok, logits, 4, position));
    sl_sampler_destroy(sampler);

    assert_refused(sl_sampler_create(0, &sampler, &err), SL_ERR_ARGUMENT, "0 tokens");
    assert_refused(sl_sampler_create((size_t)INT32_MAX + 1, &sampler, &err), SL_ERR_ARGUMENT,
                   "2147483648 tokens");
    assert_null(sampler);
    sl_sampler_destroy(NULL);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    const size_t blocks = sl_mem_get_stats().blocks;
    sl_sampler *sampler = NULL;
    sl_error err;
    for (uint64_t n = 1; !sampler; n++) {
        sl_mem_fail_at(n, true);
        const sl_status status = sl_sampler_create(100, &sampler, &err);
        sl_mem_fail_at(0, false);
        assert_int_equal(status, sampler ? SL_OK : SL_ERR_MEMORY);
        if (!sampler)
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        else
            assert_int_equal(n, 7);
    }
    const uint64_t requests = sl_mem_get_stats().requests;
    const float logits[100] = {0};
    const sl_sampling s = {.temperature = 1.0f, .top_p = 0.5f};
    assert_ok(sl_sampler_set(sampler, &s, &err));
    sample(sampler, logits, 100, 0);
    assert_int_equal(sl_mem_get_stats().requests, requests);
    sl_sampler_destroy(sampler);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_a_full_sort),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_depends_on_seed_and_position_only),
        cmocka_unit_test(test_greedy),
        cmocka_unit_test(test_settings_that_leave_one_token),
        cmocka_unit_test(test_exact_shares),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_allowed),
        cmocka_unit_test(test_forced),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_turns_do_not_matter),
        cmocka_unit_test(test_refuses_logits_that_are_no_numbers),
        cmocka_unit_test(test_refuses_settings),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
