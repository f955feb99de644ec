/* The loop of `sluice run`, from logits to the bytes of the answer: it takes no memory per token.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "answer.h"
#include "models.h"
#include "out.h"

#include "base/mem.h"

typedef struct parts {
    sl_engine *engine;
    sl_text *text;
    sl_ids prompt;
    sl_stops *stops;
    sl_sampling sampling;
} parts;

/* Allocation requests of one answer of exactly n tokens. */
static uint64_t requests_of(const parts *p, sl_answer_mode mode, uint64_t n)
{
    sl_error err;
    sl_answer answer;
    sl_generated generated;
    const uint64_t before = sl_mem_get_stats().requests;
    sl_answer_begin(&answer, mode, mode != SL_ANSWER_RAW, sl_text_tokenizer(p->text), &p->prompt,
                    p->stops);
    const sl_generation generation = {
        .engine = p->engine,
        .text = p->text,
        .sampling = &p->sampling,
        .prompt = &p->prompt,
        .context = 512,
        .max_tokens = n,
        .sink = sl_answer_sink(&answer),
    };
    assert_ok(sl_generate(&generation, &generated, &err));
    assert_ok(sl_answer_finish(&answer, &err));
    assert_int_equal(generated.n_tokens, n);
    sl_answer_free(&answer);
    return sl_mem_get_stats().requests - before;
}

static void test_no_memory_per_token(void **state)
{
    (void)state;
    sl_error err;
    parts p = {.sampling = sl_sampling_default()};
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 1;
    params.checkpoint_budget = 0;
    assert_ok(sl_engine_open(sl_model_path("rand-r1-q8_0.gguf"), &params, &p.engine, &err));
    assert_ok(sl_text_open(sl_engine_weights(p.engine), sl_engine_config(p.engine), &p.text, &err));
    assert_ok(sl_tokenizer_encode(sl_text_tokenizer(p.text), "Once upon", 9, NULL, &p.prompt, NULL,
                                  &err));
    const sl_str stop = {"no such text \xE2\x82\xAC", 16};
    assert_ok(sl_stops_create(&stop, 1, &p.stops, &err));
    p.sampling.temperature = 2.0f; /* every filter and penalty at once */
    p.sampling.top_k = 300;
    p.sampling.top_p = 0.99f;
    p.sampling.min_p = 1e-6f;
    p.sampling.typical_p = 0.99f;
    p.sampling.presence_penalty = 0.5f;
    p.sampling.frequency_penalty = 0.1f;
    p.sampling.repetition_penalty = 1.1f;
    p.sampling.dry_multiplier = 0.5f;
    p.sampling.seed = 11;
    sl_logit_bias endless[8]; /* the end tokens never come */
    for (int32_t id = 0; id < (int32_t)sl_engine_vocab(p.engine); id++) {
        if (sl_text_is_stop(p.text, id) && p.sampling.n_bias < SL_COUNTOF(endless))
            endless[p.sampling.n_bias++] = (sl_logit_bias){.id = id, .bias = -1000.0f};
    }
    p.sampling.bias = endless;

    const int standard_output = dup(STDOUT_FILENO), nowhere = open("/dev/null", O_WRONLY);
    assert_true(standard_output >= 0 && nowhere >= 0);
    static const sl_answer_mode modes[] = {SL_ANSWER_PLAIN, SL_ANSWER_RAW};
    for (size_t i = 0; i < SL_COUNTOF(modes); i++) {
        dup2(nowhere, STDOUT_FILENO);
        requests_of(&p, modes[i], 64); /* blocks of states are kept for the next one */
        const uint64_t few = requests_of(&p, modes[i], 64);
        const uint64_t many = requests_of(&p, modes[i], 320);
        dup2(standard_output, STDOUT_FILENO);
        assert_int_equal(many, few);
    }
    close(nowhere);
    close(standard_output);
    sl_stops_destroy(p.stops);
    sl_ids_free(&p.prompt);
    sl_text_close(p.text);
    sl_engine_close(p.engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_memory_per_token),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
