/* The library in a host that has changed the floating-point environment: numbers read from files,
 * weights brought into form, logits, draft logits, samples and rendered prompts are the same bits,
 * and the host finds its mode again after every call. */
#include "hostmode.h"

#include <stdlib.h>
#include <string.h>

#include "model_build.h"
#include "models.h"

#include "base/mem.h"
#include "engine/sampler.h"
#include "engine/text.h"
#include "model/model.h"

/* What a mode leads to. */
typedef struct outcome {
    sl_config config;
    float *logits; /* of the last token */
    size_t n_logits;
    int32_t samples[16];
    double logprob;
    char prompt[64];
} outcome;

enum { N_TOKENS = 40 };

static void check_mode(uint64_t mode)
{
    assert_int_equal(sl_host_mode() & ~(uint64_t)SL_HOST_SEEN, mode & ~(uint64_t)SL_HOST_SEEN);
}

static void evaluate(sl_engine *engine, const int32_t *tokens, uint64_t mode, outcome *out)
{
    sl_error err;
    sl_state *state;
    out->n_logits = sl_engine_vocab(engine);
    out->logits = sl_alloc_array(SL_MEM_GENERAL, out->n_logits, sizeof *out->logits);
    assert_ok(sl_state_create(engine, N_TOKENS, &state, &err));
    const sl_eval_item item = {
        .state = state, .tokens = tokens, .n_tokens = N_TOKENS, .logits = out->logits};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    check_mode(mode);
    sl_state_free(state);
}

static void sample(const float *logits, size_t n, uint64_t mode, outcome *out)
{
    sl_error err;
    sl_sampler *sampler;
    sl_sampling sampling = sl_sampling_default();
    sampling.temperature = 1.5f;
    sampling.top_p = 0.9f;
    sampling.seed = 7;
    assert_ok(sl_sampler_create(n, &sampler, &err));
    assert_ok(sl_sampler_set(sampler, &sampling, &err));
    for (size_t i = 0; i < SL_COUNTOF(out->samples); i++)
        assert_ok(sl_sample(sampler, logits, n, i, &out->samples[i], &err));
    check_mode(mode);
    sl_logprob top[1];
    size_t n_top;
    assert_ok(sl_sampler_logprobs(sampler, logits, n, 0, 3, &out->logprob, top, 1, &n_top, &err));
    check_mode(mode);
    sl_sampler_destroy(sampler);
}

static void render(const sl_engine *engine, uint64_t mode, outcome *out)
{
    sl_error err;
    sl_text *text;
    assert_ok(sl_text_open(sl_engine_weights(engine), sl_engine_config(engine), &text, &err));
    check_mode(mode);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "x");
    const sl_template_input input = {.messages = messages};
    sl_ids ids = {0};
    sl_marked_text prompt;
    assert_ok(sl_text_render(text, &input, &ids, &prompt, NULL, &err));
    check_mode(mode);
    assert_in_range(prompt.text.n_bytes, 1, sizeof out->prompt - 1);
    memcpy(out->prompt, prompt.text.data, prompt.text.n_bytes);
    sl_marked_text_free(&prompt);
    sl_ids_free(&ids);
    json_decref(messages);
    sl_text_close(text);
}

static outcome outcome_of(const char *folder, const int32_t *tokens, uint64_t mode)
{
    sl_error err;
    outcome out = {0};
    sl_engine *engine;
    sl_weights *weights;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 2;
    sl_set_host_mode(mode);
    assert_ok(sl_weights_open(folder, &weights, &err));
    assert_ok(sl_config_load(weights, &out.config, &err));
    check_mode(mode);
    sl_weights_close(weights);
    assert_ok(sl_engine_open(folder, &params, &engine, &err));
    check_mode(mode);
    evaluate(engine, tokens, mode, &out);
    sample(out.logits, out.n_logits, mode, &out);
    render(engine, mode, &out);
    sl_engine_close(engine);
    sl_set_host_mode(SL_HOST_PLAIN);
    return out;
}

/* A folder: norm weights get their 1, decays their exponential, YaRN its powers and logarithms. */
static const char *make_folder(void)
{
    const char *source = sl_model_path("rand-r3");
    const char *folder = sl_temp_make();
    sl_test_model model;
    sl_test_model_read(&model, source);
    sl_test_model_set(&model, "rope_scaling",
                      json_pack("{s:s, s:f, s:i}", "rope_type", "yarn", "factor", 3.3,
                                "original_max_position_embeddings", 8192));
    sl_test_model_write_hf(&model, folder);
    sl_test_model_free(&model);
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < SL_COUNTOF(files); i++)
        sl_copy_file(sl_path(source, files[i]), sl_path(folder, files[i]));
    sl_write_text(sl_path(folder, "chat_template.jinja"), "{{ 0.1 + 0.2 }} {{ 1 / 3 }} {{ 0.7 }}");
    return folder;
}

static void test_every_host(void **state)
{
    (void)state;
    sl_prompt prompt = sl_test_prompt("rand", "A");
    const char *folder = make_folder();
    outcome plain = outcome_of(folder, prompt.ids, SL_HOST_PLAIN);
    assert_string_equal(plain.prompt, "0.30000000000000004 0.3333333333333333 0.7");
    for (size_t i = 1; i < SL_COUNTOF(sl_host_modes); i++) {
        outcome other = outcome_of(folder, prompt.ids, sl_host_modes[i]);
        assert_memory_equal(other.config.inv_freq, plain.config.inv_freq,
                            sizeof plain.config.inv_freq);
        assert_memory_equal(&other.config.rope_scale, &plain.config.rope_scale, sizeof(float));
        assert_memory_equal(&other.config.rms_eps, &plain.config.rms_eps, sizeof(float));
        assert_memory_equal(other.logits, plain.logits, plain.n_logits * sizeof *plain.logits);
        assert_memory_equal(other.samples, plain.samples, sizeof plain.samples);
        assert_memory_equal(&other.logprob, &plain.logprob, sizeof plain.logprob);
        assert_string_equal(other.prompt, plain.prompt);
        sl_free(other.logits);
    }
    sl_free(plain.logits);
    sl_temp_remove(folder);
}

/* Draft logits of the demonstration model, in the mode that changes most. */
static void test_draft_head(void **state)
{
    (void)state;
    enum { N = 4 };
    sl_error err;
    sl_prompt prompt = sl_test_prompt("tiny", "M0");
    float *drafts[2];
    for (int i = 0; i < 2; i++) {
        uint64_t mode = i ? sl_host_modes[SL_COUNTOF(sl_host_modes) > 5 ? 5 : 4] : SL_HOST_PLAIN;
        sl_set_host_mode(mode);
        sl_engine *engine = sl_test_engine(sl_model_path("tiny-q8_0.gguf"), 2, false);
        size_t vocab = sl_engine_vocab(engine), width = sl_engine_config(engine)->hidden;
        float *hidden = sl_alloc_array(SL_MEM_GENERAL, N * width, sizeof *hidden);
        drafts[i] = sl_alloc_array(SL_MEM_GENERAL, (N - 1) * vocab, sizeof *hidden);
        sl_state *sequence;
        assert_ok(sl_state_create(engine, N, &sequence, &err));
        const sl_eval_item item = {
            .state = sequence, .tokens = prompt.ids, .n_tokens = N, .hidden = hidden};
        assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
        assert_ok(sl_engine_eval_mtp(engine, sequence, prompt.ids + 1, hidden, 0, N - 1, drafts[i],
                                     &err));
        check_mode(mode);
        if (i)
            assert_memory_equal(drafts[1], drafts[0], (N - 1) * vocab * sizeof(float));
        sl_state_free(sequence);
        sl_free(hidden);
        sl_engine_close(engine);
        sl_set_host_mode(SL_HOST_PLAIN);
    }
    sl_free(drafts[0]);
    sl_free(drafts[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_host),
        cmocka_unit_test(test_draft_head),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
