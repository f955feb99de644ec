/* A Hugging Face tokenizer.json; behind a line "--- added", the added_tokens_decoder object. An
 * accepted one encodes and decodes a text. */
#include "fuzz.h"
#include "text/decode.h"

enum { N_VOCAB = 400 };

/* Every byte has a token, so what goes in comes out. */
static void use(const sl_tokenizer *tokenizer)
{
    static const char text[] = "It's 12 <|im_end|>\n\n  caf\xC3\xA9 \xE4\xB8\xAD!";
    sl_error err = {0};
    sl_ids ids = {0};
    sl_buf out;
    const sl_encode_options options = {.control = true, .user_defined = true};
    sl_decoder decoder = sl_decoder_of(tokenizer, false);
    sl_buf_init(&out, SL_MEM_TEXT, 1 << 20);
    bool ok = sl_fuzz_ok(
        sl_tokenizer_encode(tokenizer, text, sizeof text - 1, &options, &ids, NULL, &err), &err);
    for (size_t i = 0; ok && i < ids.n; i++)
        ok = sl_fuzz_ok(sl_decoder_push(&decoder, ids.ids[i], &out, &err), &err);
    if (ok)
        sl_fuzz_check(sl_str_is((sl_str){out.data, out.n_bytes}, text));
    sl_buf_free(&out);
    sl_ids_free(&ids);
}

static json_t *parse(sl_str text)
{
    sl_error err = {0};
    json_t *value = NULL;
    sl_fuzz_ok(sl_json_parse(text.data, text.n_bytes, "tokenizer.json", sl_json_limits_default(),
                             &value, &err),
               &err);
    return value;
}

static void body(const uint8_t *data, size_t n)
{
    sl_fuzz_input in = {data, n};
    sl_str name;
    sl_error err = {0};
    sl_tokenizer *tokenizer = NULL;
    json_t *json = parse(sl_fuzz_section(&in, &name));
    json_t *added = name.n_bytes > 0 ? parse(sl_fuzz_section(&in, &name)) : NULL;
    if (json && sl_fuzz_ok(sl_tokenizer_create_json(json, json_is_object(added) ? added : NULL,
                                                    N_VOCAB, "tokenizer.json", &tokenizer, &err),
                           &err)) {
        sl_fuzz_check(sl_tokenizer_count(tokenizer) == N_VOCAB);
        use(tokenizer);
        sl_tokenizer_free(tokenizer);
    }
    json_decref(json);
    json_decref(added);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return sl_fuzz_run(body, data, n);
}
