#include "models.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/mem.h"

const char *sl_model_path(const char *name)
{
    static char path[4096];
    bool tiny = strncmp(name, "tiny", 4) == 0;
    snprintf(path, sizeof path, "%s/%s", tiny ? "models" : "tests/data/models", name);
    return path;
}

const char *sl_tiny_folder(void)
{
    static const char folder[] = "../shared/models/tiny-hf";
    return access(folder, R_OK) == 0 ? folder : NULL;
}

sl_engine *sl_test_engine(const char *path, unsigned n_threads, bool kv_f32)
{
    sl_error err;
    sl_engine *engine = NULL;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = n_threads;
    params.kv_f32 = kv_f32;
    assert_ok(sl_engine_open(path, &params, &engine, &err));
    return engine;
}

sl_prompt sl_test_prompt(const char *set, const char *name)
{
    json_error_t error;
    json_t *all = json_load_file("tests/data/logits/prompts.json", 0, &error);
    assert_non_null(all);
    const json_t *ids = json_object_get(json_object_get(all, set), name);
    sl_prompt prompt = {.n = json_array_size(ids)};
    assert_in_range(prompt.n, 1, SL_COUNTOF(prompt.ids));
    for (size_t i = 0; i < prompt.n; i++)
        prompt.ids[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    json_decref(all);
    return prompt;
}

float *sl_test_logits(sl_engine *engine, const int32_t *tokens, size_t n, uint32_t max_rows)
{
    sl_error err;
    sl_state *state = NULL;
    assert_ok(sl_state_create(engine, (uint32_t)n, &state, &err));
    float *logits = sl_alloc_array(SL_MEM_GENERAL, n * sl_engine_vocab(engine), sizeof(float));
    assert_non_null(logits);
    sl_eval_item item = {
        .state = state, .tokens = tokens, .n_tokens = n, .all_logits = true, .logits = logits};
    sl_eval_options options = {.max_rows = max_rows};
    assert_ok(sl_engine_eval(engine, &item, 1, &options, &err));
    sl_state_free(state);
    return logits;
}
