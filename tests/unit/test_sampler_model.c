/* The sampler against tools/sampler_model.py, a plain model that shares no code with it: what is
 * left after all steps, with probabilities, what is drawn, and raw log probabilities. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "engine/sampler.h"

enum { MAX_TOKENS = 128, MAX_HISTORY = 256, MAX_BIAS = 8, SET_WORDS = MAX_TOKENS / 32 };

typedef struct model_case {
    int line;
    sl_sampling sampling;
    sl_logit_bias bias[MAX_BIAS];
    float logits[MAX_TOKENS];
    size_t n;
    int32_t tokens[MAX_HISTORY];
    sl_sample_context context;
    uint32_t banned[SET_WORDS], allowed[SET_WORDS], breakers[SET_WORDS];
} model_case;

static float number(const json_t *json, const char *key)
{
    const json_t *value = json_object_get(json, key);
    return value ? (float)json_number_value(value)
                 : (strcmp(key, "temperature") == 0 || strcmp(key, "top_p") == 0 ? 1.0f : 0.0f);
}

static uint32_t count(const json_t *json, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(json, key));
}

/* False when the case has no such set. */
static bool read_set(const json_t *json, const char *key, uint32_t *set)
{
    size_t i;
    json_t *id;
    const json_t *ids = json_object_get(json, key);
    json_array_foreach(ids, i, id)
    {
        const json_int_t bit = json_integer_value(id);
        set[bit / 32] |= 1u << (bit % 32);
    }
    return ids;
}

static void read_case(const json_t *json, model_case *c)
{
    sl_sampling *s = &c->sampling;
    *s = (sl_sampling){
        .temperature = number(json, "temperature"),
        .top_k = count(json, "top_k"),
        .top_p = number(json, "top_p"),
        .min_p = number(json, "min_p"),
        .typical_p = number(json, "typical_p"),
        .presence_penalty = number(json, "presence_penalty"),
        .frequency_penalty = number(json, "frequency_penalty"),
        .repetition_penalty = number(json, "repetition_penalty"),
        .penalty_window = count(json, "penalty_window"),
        .dry_multiplier = number(json, "dry_multiplier"),
        .dry_base = number(json, "dry_base"),
        .dry_allowed_length = count(json, "dry_allowed_length"),
        .dry_window = count(json, "dry_window"),
        .bias = c->bias,
    };
    s->seed = strtoull(json_string_value(json_object_get(json, "seed")), NULL, 16);
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(json, "logit_bias"), i, item)
    {
        assert_true(i < MAX_BIAS);
        c->bias[i] = (sl_logit_bias){(int32_t)json_integer_value(json_array_get(item, 0)),
                                     (float)json_number_value(json_array_get(item, 1))};
        s->n_bias = i + 1;
    }
    json_array_foreach(json_object_get(json, "logits"), i, item)
    {
        assert_true(i < MAX_TOKENS);
        c->logits[i] = json_is_null(item) ? -INFINITY : (float)json_number_value(item);
        c->n = i + 1;
    }
    json_array_foreach(json_object_get(json, "history"), i, item)
    {
        assert_true(i < MAX_HISTORY);
        c->tokens[i] = (int32_t)json_integer_value(item);
        c->context.history.n_tokens = i + 1;
    }
    c->context.history.tokens = c->tokens;
    c->context.history.n_prompt = count(json, "n_prompt");
    c->context.position = (uint64_t)json_integer_value(json_object_get(json, "position"));
    read_set(json, "banned", c->banned);
    read_set(json, "breakers", c->breakers);
    if (read_set(json, "allowed", c->allowed))
        c->context.allowed = c->allowed;
}

static void assert_near(double value, double expected, const char *what, int line)
{
    if (!(fabs(value - expected) <= 1e-12 * fmax(1.0, fabs(expected))))
        fail_msg("line %d: %s is %.17g, the model says %.17g", line, what, value, expected);
}

static void check_left(const sl_sampler *sampler, const json_t *left, int line)
{
    size_t i;
    json_t *item;
    if (sl_sampler_n_candidates(sampler) != json_array_size(left))
        fail_msg("line %d: %zu tokens are left, the model says %zu", line,
                 sl_sampler_n_candidates(sampler), json_array_size(left));
    json_array_foreach(left, i, item)
    {
        const sl_candidate candidate = sl_sampler_candidate(sampler, i);
        if (candidate.id != json_integer_value(json_array_get(item, 0)))
            fail_msg("line %d: token %zu in order is %d", line, i, candidate.id);
        assert_near(candidate.p, json_number_value(json_array_get(item, 1)), "a probability", line);
    }
}

static void check_logprobs(sl_sampler *sampler, const model_case *c, const json_t *expected)
{
    sl_error err;
    sl_logprob top[32];
    double logprob;
    size_t n_top;
    const json_t *value = json_array_get(expected, 1), *list = json_array_get(expected, 3);
    assert_ok(sl_sampler_logprobs(
        sampler, c->logits, c->n, 0, (int32_t)json_integer_value(json_array_get(expected, 0)),
        &logprob, top, (size_t)json_integer_value(json_array_get(expected, 2)), &n_top, &err));
    if (json_is_null(value))
        assert_true(logprob == -INFINITY);
    else
        assert_near(logprob, json_number_value(value), "the log probability", c->line);
    assert_int_equal(n_top, json_array_size(list));
    for (size_t i = 0; i < n_top; i++) {
        const json_t *item = json_array_get(list, i);
        assert_int_equal(top[i].id, json_integer_value(json_array_get(item, 0)));
        assert_near(top[i].logprob, json_number_value(json_array_get(item, 1)), "a log probability",
                    c->line);
    }
}

static void check_case(const json_t *json, int line, sl_sampler *sampler)
{
    static model_case c;
    sl_error err;
    c = (model_case){.line = line};
    read_case(json, &c);
    assert_ok(sl_sampler_set(sampler, &c.sampling, &err));
    sl_sampler_set_banned(sampler, c.banned);
    sl_sampler_set_breakers(sampler, c.breakers);
    int32_t token = -7;
    const json_t *left = json_object_get(json, "left");
    if (json_is_null(left)) {
        assert_refused(sl_sample_next(sampler, c.logits, c.n, &c.context, &token, &err),
                       SL_ERR_NUMERIC, "no token is left at position");
        assert_int_equal(token, -7);
        assert_int_equal(sl_sampler_n_candidates(sampler), 0);
        return;
    }
    size_t i;
    json_t *drawn;
    json_array_foreach(json_object_get(json, "drawn"), i, drawn)
    {
        assert_ok(sl_sample_next(sampler, c.logits, c.n, &c.context, &token, &err));
        check_left(sampler, left, line);
        if (token != json_integer_value(drawn))
            fail_msg("line %d: draw %zu is %d", line, i, token);
        c.context.position++;
    }
    if (json_object_get(json, "logprob"))
        check_logprobs(sampler, &c, json_object_get(json, "logprob"));
}

static void test_equals_the_model(void **state)
{
    (void)state;
    FILE *file = fopen(sl_build_path("testdata/sampler.jsonl"), "r");
    assert_non_null(file);
    static char text[1 << 16];
    sl_error err;
    sl_sampler *sampler;
    assert_ok(sl_sampler_create(MAX_TOKENS, &sampler, &err));
    int line = 0;
    while (fgets(text, sizeof text, file)) {
        json_t *json;
        line++;
        assert_ok(sl_json_parse(text, strlen(text), "sampler.jsonl", sl_json_limits_default(),
                                &json, &err));
        check_case(json, line, sampler);
        json_decref(json);
    }
    assert_int_equal(line, 720);
    sl_sampler_destroy(sampler);
    fclose(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_the_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
