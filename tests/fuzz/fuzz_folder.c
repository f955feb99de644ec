/* A Hugging Face folder: open, bind, read its tokenizer, evaluate two tokens. The input is a list
 * of files, each behind a line "--- NAME". A .safetensors file is given as its header; its length
 * goes in front and zeros follow. "--- raw NAME" gives such a file byte for byte. */
#include <stdio.h>
#include <unistd.h>

#include "engine/engine.h"
#include "engine/text.h"
#include "fuzz.h"

enum { N_ZEROS = 2 << 20 };

static const char *const files[] = {
    "config.json",    "model.safetensors",     "model.safetensors.index.json",
    "a.safetensors",  "b.safetensors",         "generation_config.json",
    "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
};

static bool ends_with(const char *name, const char *end)
{
    const size_t n = strlen(name), n_end = strlen(end);
    return n >= n_end && strcmp(name + n - n_end, end) == 0;
}

static void write_safetensors(const char *path, sl_str header)
{
    static uint8_t bytes[1 << 20];
    if (header.n_bytes > sizeof bytes - 8)
        return;
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)header.n_bytes >> (8 * i));
    if (header.n_bytes > 0)
        memcpy(bytes + 8, header.data, header.n_bytes);
    sl_fuzz_write(path, bytes, header.n_bytes + 8, N_ZEROS);
}

static void write_file(sl_str name, sl_str content)
{
    const bool raw = name.n_bytes > 4 && memcmp(name.data, "raw ", 4) == 0;
    if (raw)
        name = (sl_str){name.data + 4, name.n_bytes - 4};
    for (size_t i = 0; i < SL_COUNTOF(files); i++) {
        if (!sl_str_is(name, files[i]))
            continue;
        if (!raw && ends_with(files[i], ".safetensors"))
            write_safetensors(sl_fuzz_path(files[i]), content);
        else
            sl_fuzz_write(sl_fuzz_path(files[i]), content.data, content.n_bytes, 0);
    }
}

static void evaluate(sl_engine *engine)
{
    sl_error err = {0};
    sl_state *state;
    const int32_t tokens[2] = {0, (int32_t)sl_engine_vocab(engine) - 1};
    if (!sl_fuzz_ok(sl_state_create(engine, 1, &state, &err), &err))
        return;
    sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = 2};
    sl_fuzz_check(sl_engine_eval(engine, &item, 1, NULL, &err) == SL_ERR_CONTEXT);
    item.n_tokens = 1;
    sl_fuzz_ok(sl_engine_eval(engine, &item, 1, NULL, &err), &err);
    sl_state_free(state);
}

static void body(const uint8_t *data, size_t n)
{
    (void)data;
    (void)n;
    sl_error err = {0};
    sl_engine *engine;
    sl_text *text;
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 1;
    params.max_rows = 2;
    if (!sl_fuzz_ok(sl_engine_open(sl_fuzz_folder(), &params, &engine, &err), &err))
        return;
    if (sl_fuzz_ok(sl_text_open(sl_engine_weights(engine), sl_engine_config(engine), &text, &err),
                   &err))
        sl_text_close(text);
    evaluate(engine);
    sl_engine_close(engine);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    sl_fuzz_input in = {data, n};
    sl_str name, next;
    sl_fuzz_section(&in, &name);
    while (name.n_bytes > 0) {
        const sl_str content = sl_fuzz_section(&in, &next);
        write_file(name, content);
        name = next;
    }
    const int result = sl_fuzz_run(body, data, n);
    for (size_t i = 0; i < SL_COUNTOF(files); i++)
        unlink(sl_fuzz_path(files[i]));
    return result;
}
