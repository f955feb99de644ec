/* A GGUF file: open, bind, read its tokenizer, render a chat, evaluate four tokens. The input is
 * the file up to somewhere in its data; zeros follow, so that a whole model fits in a few KiB. */
#include <unistd.h>

#include "engine/engine.h"
#include "engine/text.h"
#include "fuzz.h"

enum { N_ZEROS = 2 << 20 };

static void use_text(const sl_engine *engine)
{
    sl_error err = {0};
    sl_text *text;
    sl_ids ids = {0};
    if (!sl_fuzz_ok(sl_text_open(sl_engine_weights(engine), sl_engine_config(engine), &text, &err),
                    &err))
        return;
    json_t *messages = json_pack("[{ss, ss}]", "role", "user", "content", "a<|im_end|>b");
    if (messages) {
        const sl_template_input input = {.messages = messages, .add_generation_prompt = true};
        sl_fuzz_ok(sl_text_render(text, &input, &ids, NULL, NULL, &err), &err);
        json_decref(messages);
    }
    for (size_t i = 0; i < ids.n; i++)
        sl_fuzz_check(ids.ids[i] >= 0 && (uint32_t)ids.ids[i] < sl_engine_vocab(engine));
    sl_ids_free(&ids);
    sl_text_close(text);
}

static void evaluate(sl_engine *engine)
{
    sl_error err = {0};
    sl_state *state;
    const uint32_t limit = sl_engine_config(engine)->context_length;
    const uint32_t n = limit < 4 ? limit : 4;
    int32_t tokens[4];
    for (uint32_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(i % sl_engine_vocab(engine));
    if (!sl_fuzz_ok(sl_state_create(engine, n, &state, &err), &err))
        return;
    const sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = n};
    sl_fuzz_ok(sl_engine_eval(engine, &item, 1, NULL, &err), &err);
    sl_state_free(state);
}

static void body(const uint8_t *data, size_t n)
{
    (void)data;
    (void)n;
    sl_error err = {0};
    sl_engine *engine;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 1;
    params.max_rows = 4;
    if (!sl_fuzz_ok(sl_engine_open(sl_fuzz_path("model.gguf"), &params, &engine, &err), &err))
        return;
    use_text(engine);
    evaluate(engine);
    sl_engine_close(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    sl_fuzz_write(sl_fuzz_path("model.gguf"), data, n, N_ZEROS);
    const int result = sl_fuzz_run(body, data, n);
    unlink(sl_fuzz_path("model.gguf"));
    return result;
}
