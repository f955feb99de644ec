/* Owns the tokenizer, the compiled template, the stop tokens and the ban list of a model. It
 * refuses tokenizers of other families by name, and vocabularies that do not fit the embedding. */
#include "engine/text.h"

#include <string.h>

#include "base/fpenv.h"
#include "engine/breakers.h"
#include "text/chat.h"

enum { MAX_STOPS = SL_MAX_STOP_IDS + 2 };

struct sl_text {
    sl_tokenizer *tokenizer;
    char *template_name;   /* for messages */
    sl_template *compiled; /* NULL: template_error says why */
    sl_error template_error;
    uint32_t *banned, *breakers;
    size_t n_stops;
    int32_t stops[MAX_STOPS];
};

/* ---- GGUF ---- */

/* Token types of GGUF files. */
enum { GGUF_NORMAL = 1, GGUF_UNKNOWN, GGUF_CONTROL, GGUF_USER_DEFINED, GGUF_UNUSED };

static sl_status refuse_kind(const sl_gguf *gguf, size_t i, sl_error *err)
{
    return sl_fail(err, SL_ERR_FORMAT,
                   "%s: tokenizer.ggml.token_type[%zu] is not a type of byte-level BPE (1 to 5)",
                   sl_gguf_file(gguf), i);
}

static sl_status read_kinds(const sl_gguf *gguf, size_t n_tokens, sl_token_kind *kinds,
                            sl_error *err)
{
    sl_gguf_array types;
    SL_TRY(sl_gguf_get_array_or_empty(gguf, "tokenizer.ggml.token_type", &types, err));
    if (types.n_items != n_tokens)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tokenizer.ggml.token_type has %zu entries, tokenizer.ggml.tokens %zu",
                       sl_gguf_file(gguf), types.n_items, n_tokens);
    for (size_t i = 0; i < n_tokens; i++) {
        int64_t type;
        if (!sl_gguf_array_int(&types, i, &type))
            return refuse_kind(gguf, i, err);
        switch (type) {
        case GGUF_NORMAL:
            kinds[i] = SL_TOKEN_NORMAL;
            break;
        case GGUF_CONTROL:
            kinds[i] = SL_TOKEN_CONTROL;
            break;
        case GGUF_USER_DEFINED:
            kinds[i] = SL_TOKEN_USER_DEFINED;
            break;
        case GGUF_UNKNOWN:
        case GGUF_UNUSED:
            kinds[i] = SL_TOKEN_UNUSED;
            break;
        default:
            return refuse_kind(gguf, i, err);
        }
    }
    return SL_OK;
}

static sl_status read_strings(const sl_gguf *gguf, const char *key, sl_gguf_array *out,
                              sl_error *err)
{
    SL_TRY(sl_gguf_get_array_or_empty(gguf, key, out, err));
    if (out->n_items == 0 || out->type != SL_GGUF_STRING)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %s is not a list of strings", sl_gguf_file(gguf),
                       key);
    return SL_OK;
}

static sl_status read_pretok(const sl_gguf *gguf, sl_pretok_rule *rule, sl_error *err)
{
    sl_str model, pre;
    SL_TRY(sl_gguf_get_string(gguf, "tokenizer.ggml.model", &model, err));
    if (!sl_str_is(model, "gpt2"))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: tokenizer.ggml.model is '%.*s'; only 'gpt2' (byte-level BPE) is known",
                       sl_gguf_file(gguf), (int)sl_min_size(model.n_bytes, 64), model.data);
    SL_TRY(sl_gguf_get_string(gguf, "tokenizer.ggml.pre", &pre, err));
    if (sl_str_is(pre, "qwen35"))
        *rule = SL_PRETOK_QWEN35;
    else if (sl_str_is(pre, "qwen2"))
        *rule = SL_PRETOK_QWEN2;
    else
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: tokenizer.ggml.pre is '%.*s'; only 'qwen35' and 'qwen2' are known",
                       sl_gguf_file(gguf), (int)sl_min_size(pre.n_bytes, 64), pre.data);
    return SL_OK;
}

static sl_status open_gguf_tokenizer(const sl_gguf *gguf, size_t n_vocab, sl_tokenizer **out,
                                     sl_error *err)
{
    /* Hugging Face normalises to NFC for both families; GGUF files have no key for it. */
    sl_tokenizer_spec spec = {.nfc = true};
    sl_gguf_array tokens, merges;
    SL_TRY(read_pretok(gguf, &spec.pretok, err));
    SL_TRY(read_strings(gguf, "tokenizer.ggml.tokens", &tokens, err));
    SL_TRY(read_strings(gguf, "tokenizer.ggml.merges", &merges, err));
    if (tokens.n_items != n_vocab)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: tokenizer.ggml.tokens has %zu entries, the embedding has %zu rows",
                       sl_gguf_file(gguf), tokens.n_items, n_vocab);
    sl_token_kind *kinds = sl_alloc_array(SL_MEM_TEXT, tokens.n_items, sizeof *kinds);
    if (!kinds)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu tokens", sl_gguf_file(gguf),
                       tokens.n_items);
    sl_status status = read_kinds(gguf, tokens.n_items, kinds, err);
    if (status == SL_OK) {
        spec.n_tokens = tokens.n_items;
        spec.tokens = tokens.strings;
        spec.kinds = kinds;
        spec.n_merges = merges.n_items;
        spec.merges = merges.strings;
        status = sl_tokenizer_create(&spec, out, err);
        if (status != SL_OK)
            status = sl_fail_within(err, status, "%s: tokenizer", sl_gguf_file(gguf));
    }
    sl_free(kinds);
    return status;
}

/* ---- Hugging Face ---- */

static sl_status open_folder_tokenizer(const sl_weights *weights, size_t n_vocab,
                                       sl_tokenizer **out, sl_error *err)
{
    const json_t *tokenizer = sl_weights_tokenizer(weights);
    if (!tokenizer)
        return sl_fail(err, SL_ERR_FORMAT, "%s: tokenizer.json is missing",
                       sl_weights_path(weights));
    const json_t *added =
        json_object_get(sl_weights_tokenizer_config(weights), "added_tokens_decoder");
    return sl_tokenizer_create_json(tokenizer, json_is_object(added) ? added : NULL, n_vocab,
                                    "tokenizer.json", out, err);
}

/* ---- opening ---- */

static void add_stop(sl_text *text, int32_t id)
{
    if (id >= 0 && !sl_text_is_stop(text, id) && text->n_stops < MAX_STOPS)
        text->stops[text->n_stops++] = id;
}

static void find_stops(sl_text *text, const sl_config *config)
{
    static const char *const names[] = {"<|im_end|>", "<|endoftext|>"};
    for (uint32_t i = 0; i < config->n_stop_ids; i++)
        add_stop(text, config->stop_ids[i]);
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        const int32_t id = sl_tokenizer_find(text->tokenizer, names[i]);
        if (id >= 0 && sl_tokenizer_kind(text->tokenizer, id) == SL_TOKEN_CONTROL)
            add_stop(text, id);
    }
}

static sl_status make_sets(sl_text *text, sl_error *err)
{
    const size_t n = sl_tokenizer_count(text->tokenizer);
    text->banned = sl_alloc_array(SL_MEM_TEXT, n / 32 + 1, sizeof *text->banned);
    if (!text->banned)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a vocabulary of %zu", n);
    for (size_t i = 0; i < n; i++) {
        if (sl_tokenizer_kind(text->tokenizer, (int32_t)i) == SL_TOKEN_UNUSED)
            text->banned[i / 32] |= (uint32_t)1 << (i % 32);
    }
    text->breakers =
        sl_breakers_create(text->tokenizer, sl_default_breakers, SL_N_DEFAULT_BREAKERS, n);
    if (!text->breakers)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a vocabulary of %zu", n);
    return SL_OK;
}

/* A template that cannot be used is remembered, not refused: text completion needs none. */
static sl_status compile_template(sl_text *text, const sl_weights *weights, sl_error *err)
{
    static const char suffix[] = ": chat template";
    const char *path = sl_weights_path(weights);
    const sl_str source = sl_weights_chat_template(weights);
    if (source.n_bytes == 0) {
        sl_fail(&text->template_error, SL_ERR_UNSUPPORTED, "%s has no chat template", path);
        return SL_OK;
    }
    const size_t capacity = strlen(path) + sizeof suffix;
    text->template_name = sl_alloc(SL_MEM_TEXT, capacity);
    if (!text->template_name)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    memcpy(text->template_name, path, strlen(path));
    memcpy(text->template_name + strlen(path), suffix, sizeof suffix);
    const sl_status status = sl_template_compile(source.data, source.n_bytes, text->template_name,
                                                 &text->compiled, &text->template_error);
    if (status == SL_ERR_MEMORY && err)
        *err = text->template_error;
    return status == SL_ERR_MEMORY ? status : SL_OK;
}

sl_status sl_text_open(const sl_weights *weights, const sl_config *config, sl_text **out,
                       sl_error *err)
{
    *out = NULL;
    sl_status status;
    sl_text *text = sl_alloc_zero(SL_MEM_TEXT, sizeof *text);
    if (!text)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", sl_weights_path(weights));
    sl_fpenv env = sl_fpenv_enter(); /* numbers in the template are read here */
    if (sl_weights_container(weights) == SL_CONTAINER_GGUF)
        SL_CHECK(
            open_gguf_tokenizer(sl_weights_gguf(weights), config->vocab, &text->tokenizer, err));
    else
        SL_CHECK(open_folder_tokenizer(weights, config->vocab, &text->tokenizer, err));
    find_stops(text, config);
    SL_CHECK(make_sets(text, err));
    SL_CHECK(compile_template(text, weights, err));
    SL_CHECK(sl_weights_check(weights, err));
    *out = text;
    text = NULL;
done:
    sl_fpenv_leave(env);
    sl_text_close(text);
    return status;
}

void sl_text_close(sl_text *text)
{
    if (!text)
        return;
    sl_template_free(text->compiled);
    sl_tokenizer_free(text->tokenizer);
    sl_free(text->template_name);
    sl_free(text->banned);
    sl_free(text->breakers);
    sl_free(text);
}

/* ---- use ---- */

const sl_tokenizer *sl_text_tokenizer(const sl_text *text)
{
    return text->tokenizer;
}

bool sl_text_is_stop(const sl_text *text, int32_t token)
{
    for (size_t i = 0; i < text->n_stops; i++) {
        if (text->stops[i] == token)
            return true;
    }
    return false;
}

bool sl_text_has_template(const sl_text *text)
{
    return text->compiled != NULL;
}

const uint32_t *sl_text_breakers(const sl_text *text)
{
    return text->breakers;
}

const uint32_t *sl_text_banned(const sl_text *text)
{
    return text->banned;
}

sl_status sl_text_render(const sl_text *text, const sl_template_input *input, sl_ids *ids,
                         sl_marked_text *prompt, size_t *n_replaced, sl_error *err)
{
    if (n_replaced)
        *n_replaced = 0;
    if (!text->compiled)
        return sl_fail(err, text->template_error.status, "%s", text->template_error.message);
    sl_fpenv env = sl_fpenv_enter(); /* templates may compute */

    sl_marked_text rendered = {0};
    json_t *messages = NULL;
    sl_status status;
    sl_buf_init(&rendered.text, SL_MEM_TEXT, 0);
    SL_CHECK(sl_chat_normalise(input->messages, &messages, err));
    sl_template_input normalised = *input;
    normalised.messages = messages;
    SL_CHECK(sl_template_render(text->compiled, &normalised, &rendered, err));
    const sl_encode_options options = {
        .control = true,
        .user_defined = true,
        .untrusted = rendered.untrusted,
        .n_untrusted = rendered.n_untrusted,
    };
    SL_CHECK(sl_tokenizer_encode(text->tokenizer, rendered.text.data, rendered.text.n_bytes,
                                 &options, ids, n_replaced, err));
    if (prompt) {
        *prompt = rendered;
        rendered = (sl_marked_text){0};
        sl_buf_init(&rendered.text, SL_MEM_TEXT, 0);
    }
done:
    sl_fpenv_leave(env);
    sl_marked_text_free(&rendered);
    json_decref(messages);
    return status;
}
