/* Decoding on a device: batches of any size, whose states join and leave, give the bits that each
 * state gives alone; and what stays on the device of a row of logits, with its short list, is what
 * the row says. Skipped, with the reason, where no device can be used. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

#include "device.h"
#include "models.h"

#include "base/mem.h"
#include "engine/engine_internal.h"
#include "engine/ranking.h"
#include "engine/sampler.h"

enum { BATCH = 64, PROMPT = 32, STEPS = 24 };

static sl_engine *open_synthetic(const char *shape, const char *type, uint32_t n_layers)
{
    sl_engine_params params = sl_engine_params_default();
    params.device = "cuda:0";
    params.max_rows = 2048;
    sl_engine *engine = NULL;
    sl_error err;
    assert_ok(sl_engine_open_synthetic(
        &(sl_synthetic){.shape = shape, .type = type, .n_layers = n_layers}, &params, &engine,
        &err));
    return engine;
}

static sl_engine *open_model(const char *name)
{
    sl_engine_params params = sl_engine_params_default();
    params.device = "cuda:0";
    sl_engine *engine = NULL;
    sl_error err;
    assert_ok(sl_engine_open(sl_model_path(name), &params, &engine, &err));
    return engine;
}

/* ---- batches ---- */

enum { LENGTH = PROMPT + STEPS };

/* State s reads this at position i. */
static int32_t token_at(size_t s, size_t i)
{
    return (int32_t)((31 * s + 7 * i) % 500);
}

/* Prompts end at different places, so that the steps after them cross the border of a chunk at
 * different times. */
static size_t prompt_of(size_t s)
{
    return PROMPT - 3 * (s % 10);
}

/* Hashes of all rows of logits of state s, alone and in one piece. */
static void hash_alone(sl_engine *engine, size_t s, float *room, uint64_t hashes[LENGTH])
{
    const size_t vocab = sl_engine_vocab(engine);
    sl_error err;
    sl_state *state;
    int32_t tokens[LENGTH];
    for (size_t i = 0; i < LENGTH; i++)
        tokens[i] = token_at(s, i);
    assert_ok(sl_state_create(engine, LENGTH, &state, &err));
    const sl_eval_item item = {
        .state = state, .tokens = tokens, .n_tokens = LENGTH, .all_logits = true, .logits = room};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    for (size_t i = 0; i < LENGTH; i++)
        hashes[i] = XXH3_64bits(room + i * vocab, vocab * sizeof *room);
    sl_state_free(state);
}

/* One step of n states from `first` on, each to read its own next token. */
static void step_together(sl_engine *engine, sl_state **states, size_t first, size_t n)
{
    sl_eval_item items[BATCH];
    int32_t tokens[BATCH];
    sl_error err;
    for (size_t i = 0; i < n; i++) {
        const size_t s = (first + 5 * i) % BATCH; /* 5 and BATCH have no common factor */
        tokens[i] = token_at(s, sl_state_length(states[s]));
        items[i] = (sl_eval_item){
            .state = states[s], .tokens = &tokens[i], .n_tokens = 1, .keep_logits = true};
    }
    assert_ok(sl_engine_eval(engine, items, n, NULL, &err));
}

static void check_batches(sl_engine *engine, const char *what)
{
    static const size_t sizes[] = {1, 2, 8, 9, 16, 17, 33, 63, 64, 5, 40};
    const size_t vocab = sl_engine_vocab(engine);
    static uint64_t hashes[BATCH][LENGTH];
    float *room = sl_alloc_array(SL_MEM_GENERAL, LENGTH * vocab, sizeof *room);
    sl_state *states[BATCH];
    sl_error err;
    sl_test_rng rng = sl_test_rng_of(8);
    for (size_t s = 0; s < BATCH; s++) {
        hash_alone(engine, s, room, hashes[s]);
        assert_ok(sl_state_create(engine, LENGTH, &states[s], &err));
        int32_t prompt[PROMPT];
        for (size_t i = 0; i < prompt_of(s); i++)
            prompt[i] = token_at(s, i);
        const sl_eval_item item = {.state = states[s], .tokens = prompt, .n_tokens = prompt_of(s)};
        assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    }
    sl_free(room);
    for (size_t k = 0; k < SL_COUNTOF(sizes); k++) {
        const size_t first = sl_test_rng_below(&rng, BATCH), n = sizes[k];
        for (int again = 0; again < 2; again++) { /* the second time a captured run */
            step_together(engine, states, first, n);
            for (size_t i = 0; i < n; i++) {
                const size_t s = (first + 5 * i) % BATCH, at = sl_state_length(states[s]) - 1;
                const float *logits;
                assert_ok(sl_state_logits(states[s], &logits, &err));
                if (XXH3_64bits(logits, vocab * sizeof *logits) != hashes[s][at])
                    fail_msg("%s: %zu together: state %zu at position %zu differs from itself "
                             "alone",
                             what, n, s, at);
            }
        }
    }
    for (size_t s = 0; s < BATCH; s++)
        sl_state_free(states[s]);
}

static void test_batches(void **state)
{
    (void)state;
    sl_test_need_device();
    static const char *const names[] = {"rand-r3-q8_0.gguf", "rand-moe-q8_0.gguf"};
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        sl_engine *engine = open_model(names[i]);
        check_batches(engine, names[i]);
        sl_engine_close(engine);
    }
    static const char *const types[] = {"q8_0", "q4_k", "q4_1", "bf16"};
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        sl_engine *engine = open_synthetic("tiny", types[i], 0);
        check_batches(engine, types[i]);
        sl_engine_close(engine);
    }
}

/* The widths of a real model, where a block of threads has several panels and rows of columns. */
static void test_batches_of_real_widths(void **state)
{
    (void)state;
    sl_test_need_device();
    sl_engine *engine = open_synthetic("0.8b", "q8_0", 4);
    check_batches(engine, "0.8b");
    sl_engine_close(engine);
}

/* ---- rows that stay, and their lists ---- */

static int by_key(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void check_list(const sl_engine *engine, const sl_state *state, const float *logits)
{
    const size_t vocab = engine->config.vocab;
    const sl_shortlist *list = &engine->shortlists[state->kept_place];
    uint64_t *keys = sl_alloc_array(SL_MEM_GENERAL, vocab, sizeof *keys);
    for (size_t id = 0; id < vocab; id++)
        keys[id] = sl_ranking_key(logits[id], id);
    qsort(keys, vocab, sizeof *keys, by_key);
    assert_int_equal(list->n, sl_min_size(vocab, SL_SHORTLIST_TOKENS));
    assert_memory_equal(list->keys, keys, list->n * sizeof *keys);
    sl_free(keys);
}

static void check_sampling(sl_state *state, sl_sampler *sampler, const float *logits, size_t vocab)
{
    static const sl_sampling settings[] = {
        {.temperature = 0.0f, .top_p = 1.0f},
        {.temperature = 1.0f, .top_k = 20, .top_p = 0.95f, .presence_penalty = 1.5f},
        {.temperature = 0.7f, .top_p = 1.0f, .min_p = 0.1f, .repetition_penalty = 1.1f},
        {.temperature = 1.0f, .top_p = 0.9f, .seed = 4}, /* needs the row */
    };
    sl_error err;
    for (size_t i = 0; i < SL_COUNTOF(settings); i++) {
        assert_ok(sl_sampler_set(sampler, &settings[i], &err));
        const sl_sample_context context = {
            .history = {.tokens = sl_state_tokens(state), .n_tokens = sl_state_length(state)},
            .position = sl_state_length(state)};
        int32_t expected, got;
        assert_ok(sl_sample_next(sampler, logits, vocab, &context, &expected, &err));
        assert_ok(sl_state_sample(state, sampler, &context, &got, &err));
        assert_int_equal(got, expected);
    }
}

/* Prompts of several lengths in one evaluation of many runs, one of which wants its logits. */
static void check_kept(sl_engine *engine)
{
    enum { N = 5 };
    static const size_t lengths[N] = {1, 40, 3, 17, 8};
    const size_t vocab = sl_engine_vocab(engine);
    float *wanted = sl_alloc_array(SL_MEM_GENERAL, vocab, sizeof *wanted);
    sl_sampler *sampler;
    sl_state *states[N];
    sl_eval_item items[N];
    int32_t tokens[N][40];
    sl_error err;
    assert_ok(sl_sampler_create(vocab, &sampler, &err));
    for (size_t s = 0; s < N; s++) {
        for (size_t i = 0; i < lengths[s]; i++)
            tokens[s][i] = token_at(s, i);
        assert_ok(sl_state_create(engine, 64, &states[s], &err));
        items[s] = (sl_eval_item){.state = states[s],
                                  .tokens = tokens[s],
                                  .n_tokens = lengths[s],
                                  .keep_logits = s != 2,
                                  .logits = s == 2 ? wanted : NULL};
    }
    const sl_eval_options options = {.max_rows = 23};
    assert_ok(sl_engine_eval(engine, items, N, &options, &err));
    float *copies[N];
    for (size_t s = 0; s < N; s++) {
        const float *logits = wanted;
        if (s != 2) {
            assert_ok(sl_state_logits(states[s], &logits, &err));
            check_list(engine, states[s], logits);
        }
        copies[s] = sl_alloc_array(SL_MEM_GENERAL, vocab, sizeof *logits);
        memcpy(copies[s], logits, vocab * sizeof *logits);
        if (s != 2)
            check_sampling(states[s], sampler, copies[s], vocab);
    }
    for (size_t s = 0; s < N; s++) {
        float *all = sl_test_logits(engine, tokens[s], lengths[s], 0);
        assert_memory_equal(copies[s], all + (lengths[s] - 1) * vocab, vocab * sizeof *all);
        sl_free(all);
        sl_free(copies[s]);
        sl_state_free(states[s]);
    }
    sl_sampler_destroy(sampler);
    sl_free(wanted);
}

static void test_kept(void **state)
{
    (void)state;
    sl_test_need_device();
    sl_engine *engine = open_model("rand-r1-q8_0.gguf");
    check_kept(engine);
    sl_engine_close(engine);
    static const char *const types[] = {"q8_0", "q4_k", "f16"};
    for (size_t i = 0; i < SL_COUNTOF(types); i++) {
        engine = open_synthetic("0.8b", types[i], 2);
        check_kept(engine);
        sl_engine_close(engine);
    }
}

/* A row that is not finite is found where it lies. */
static void test_faults(void **state)
{
    (void)state;
    sl_test_need_device();
    for (size_t n = 1; n <= 12; n += 11) {
        sl_engine *engine = open_model("rand-r1-q8_0.gguf");
        float *norm = (float *)(uintptr_t)engine->model->output_norm;
        norm[5] = NAN; /* before it goes to the device */
        int32_t tokens[12] = {7};
        sl_state *s;
        sl_error err;
        assert_ok(sl_state_create(engine, 16, &s, &err));
        const sl_eval_item item = {
            .state = s, .tokens = tokens, .n_tokens = n, .keep_logits = true};
        char expected[64];
        snprintf(expected, sizeof expected, "the logits are not finite at position %zu", n - 1);
        assert_refused(sl_engine_eval(engine, &item, 1, NULL, &err), SL_ERR_NUMERIC, expected);
        const float *logits;
        assert_refused(sl_state_logits(s, &logits, &err), SL_ERR_ARGUMENT, "reset it");
        sl_state_free(s);
        sl_engine_close(engine);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_batches),
        cmocka_unit_test(test_batches_of_real_widths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
