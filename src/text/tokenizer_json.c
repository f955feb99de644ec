/* Hugging Face's tokenizer.json. Every part of the pipeline is either understood exactly or refused
 * by name, because a part taken for something else gives wrong ids and no error.
 *
 *   model           BPE: vocab, merges as "a b" or ["a", "b"]. Refused: ignore_merges, dropout,
 *                   affixes. Without effect, since every byte has a token: unk_token, fuse_unk,
 *                   byte_fallback.
 *   added_tokens    special -> control, else user-defined. Refused: lstrip, rstrip, single_word,
 *                   normalized.
 *   normalizer      null, NFC, or a Sequence of NFC
 *   pre_tokenizer   Sequence of Split by a known pattern and ByteLevel without its own split
 *   decoder         ByteLevel
 *   post_processor  null, ByteLevel, or a template that adds no tokens
 *
 * "truncation" and "padding" belong to training scripts and are not read. */
#include <stdio.h>

#include "text/pretok.h"
#include "text/vocab.h"

typedef struct reader {
    size_t n_vocab;
    sl_str *tokens; /* by id, texts borrowed from the JSON */
    sl_token_kind *kinds;
    sl_str *merges;
    sl_buf joined; /* "a b" of merges that are pairs */
    sl_tokenizer_spec spec;
} reader;

static sl_str string_of(const json_t *value)
{
    return (sl_str){json_string_value(value), json_string_length(value)};
}

/* A member that is there and not null, or NULL. */
static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* Refuses a flag that is set; `missing` is what a missing one counts as. */
static sl_status refuse_true(const json_t *object, const char *key, bool missing, const char *where,
                             sl_error *err)
{
    bool value;
    SL_TRY(sl_json_get_bool_or(object, key, missing, &value, where, err));
    if (value)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: \"%s\" is not supported", where, key);
    return SL_OK;
}

/* ---- vocabulary, merges, added tokens ---- */

static sl_status read_vocab(reader *r, json_t *vocab, sl_error *err)
{
    if (!json_is_object(vocab))
        return sl_fail(err, SL_ERR_FORMAT, "model: \"vocab\" is not an object");
    for (void *it = json_object_iter(vocab); it; it = json_object_iter_next(vocab, it)) {
        const sl_str text = {json_object_iter_key(it), json_object_iter_key_len(it)};
        const json_t *value = json_object_iter_value(it);
        const json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || (uint64_t)id >= r->n_vocab)
            return sl_fail(err, SL_ERR_FORMAT,
                           "model: the id of \"%.*s\" is not one of the model's %zu rows",
                           SL_VOCAB_SHOW(text), r->n_vocab);
        if (r->kinds[id] != SL_TOKEN_UNUSED)
            return sl_fail(err, SL_ERR_FORMAT, "model: \"%.*s\" and \"%.*s\" have the same id %lld",
                           SL_VOCAB_SHOW(r->tokens[id]), SL_VOCAB_SHOW(text), (long long)id);
        r->tokens[id] = text;
        r->kinds[id] = SL_TOKEN_NORMAL;
    }
    return SL_OK;
}

static sl_status read_merges(reader *r, const json_t *merges, sl_error *err)
{
    if (!json_is_array(merges))
        return sl_fail(err, SL_ERR_FORMAT, "model: \"merges\" is not an array");
    const size_t n = json_array_size(merges);
    r->merges = sl_alloc_array(SL_MEM_TEXT, n, sizeof *r->merges);
    if (!r->merges)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu merges", n);
    for (size_t i = 0; i < n; i++) {
        const json_t *merge = json_array_get(merges, i);
        const json_t *left = json_array_get(merge, 0), *right = json_array_get(merge, 1);
        if (sl_json_is_string(merge)) {
            r->merges[i] = string_of(merge);
        } else if (json_array_size(merge) == 2 && sl_json_is_string(left) &&
                   sl_json_is_string(right)) {
            const sl_str a = string_of(left), b = string_of(right);
            SL_TRY(sl_buf_append(&r->joined, a.data, a.n_bytes, err));
            SL_TRY(sl_buf_append_char(&r->joined, ' ', err));
            SL_TRY(sl_buf_append(&r->joined, b.data, b.n_bytes, err));
            r->merges[i].n_bytes = a.n_bytes + 1 + b.n_bytes;
        } else {
            return sl_fail(err, SL_ERR_FORMAT, "model: merge %zu is not a pair of strings", i);
        }
    }
    /* Only now does the text of the pairs stay where it is. */
    size_t offset = 0;
    for (size_t i = 0; i < n; i++) {
        if (r->merges[i].data)
            continue;
        r->merges[i].data = r->joined.data + offset;
        offset += r->merges[i].n_bytes;
    }
    r->spec.merges = r->merges;
    r->spec.n_merges = n;
    return SL_OK;
}

static sl_status read_model(reader *r, const json_t *model, sl_error *err)
{
    const char *const where = "model";
    const char *type, *prefix, *suffix;
    SL_TRY(sl_json_get_string(model, "type", &type, where, err));
    if (strcmp(type, "BPE") != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "model: type \"%.64s\" is not supported", type);
    SL_TRY(refuse_true(model, "ignore_merges", false, where, err));
    double dropout;
    SL_TRY(sl_json_get_number_or(model, "dropout", 0.0, &dropout, where, err));
    if (dropout != 0.0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "model: \"dropout\" is not supported");
    SL_TRY(sl_json_get_string_or(model, "continuing_subword_prefix", "", &prefix, where, err));
    SL_TRY(sl_json_get_string_or(model, "end_of_word_suffix", "", &suffix, where, err));
    if (*prefix || *suffix)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "model: \"%s\" is not supported",
                       *prefix ? "continuing_subword_prefix" : "end_of_word_suffix");
    SL_TRY(read_vocab(r, json_object_get(model, "vocab"), err));
    return read_merges(r, json_object_get(model, "merges"), err);
}

/* One added token. What tokenizer.json says of an id goes before what `extra` says. */
static sl_status add_token(reader *r, const json_t *token, int64_t id, bool extra, sl_error *err)
{
    static const char *const refused[] = {"lstrip", "rstrip", "single_word", "normalized"};
    char where[64];
    snprintf(where, sizeof where, "added token %lld", (long long)id);
    const char *content;
    bool special;
    SL_TRY(sl_json_get_string(token, "content", &content, where, err));
    SL_TRY(sl_json_get_bool_or(token, "special", false, &special, where, err));
    for (size_t i = 0; i < SL_COUNTOF(refused); i++)
        SL_TRY(refuse_true(token, refused[i], false, where, err));
    const sl_token_kind before = r->kinds[id];
    if (before != SL_TOKEN_UNUSED && !sl_str_is(r->tokens[id], content))
        return sl_fail(err, SL_ERR_FORMAT, "%s: \"%.64s\" has the id of \"%.*s\"", where, content,
                       SL_VOCAB_SHOW(r->tokens[id]));
    r->tokens[id] = sl_str_of(content);
    if (!extra || before == SL_TOKEN_UNUSED || before == SL_TOKEN_NORMAL)
        r->kinds[id] = special ? SL_TOKEN_CONTROL : SL_TOKEN_USER_DEFINED;
    return SL_OK;
}

static sl_status read_added(reader *r, const json_t *tokens, sl_error *err)
{
    if (tokens && !json_is_array(tokens))
        return sl_fail(err, SL_ERR_FORMAT, "\"added_tokens\" is not an array");
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const json_t *token = json_array_get(tokens, i);
        char where[64];
        int64_t id;
        snprintf(where, sizeof where, "added_tokens[%zu]", i);
        SL_TRY(sl_json_get_int(token, "id", 0, (int64_t)r->n_vocab - 1, &id, where, err));
        SL_TRY(add_token(r, token, id, false, err));
    }
    return SL_OK;
}

/* added_tokens_decoder: the ids are the keys. */
static sl_status read_extra(reader *r, json_t *tokens, sl_error *err)
{
    if (tokens && !json_is_object(tokens))
        return sl_fail(err, SL_ERR_FORMAT, "\"added_tokens_decoder\" is not an object");
    for (void *it = json_object_iter(tokens); it; it = json_object_iter_next(tokens, it)) {
        const char *key = json_object_iter_key(it);
        int64_t id = *key ? 0 : -1;
        for (const char *c = key; *c; c++) {
            if (*c < '0' || *c > '9' || id >= (int64_t)r->n_vocab) {
                id = -1;
                break;
            }
            id = id * 10 + (*c - '0');
        }
        if (id < 0 || id >= (int64_t)r->n_vocab)
            return sl_fail(err, SL_ERR_FORMAT,
                           "added_tokens_decoder: \"%.64s\" is not one of the model's %zu rows",
                           key, r->n_vocab);
        SL_TRY(add_token(r, json_object_iter_value(it), id, true, err));
    }
    return SL_OK;
}

/* ---- the pipeline around the model ---- */

static sl_status read_type(const json_t *part, const char **type, const char *where, sl_error *err)
{
    if (!json_is_object(part))
        return sl_fail(err, SL_ERR_FORMAT, "%s is not an object", where);
    return sl_json_get_string(part, "type", type, where, err);
}

static sl_status refuse_type(const char *type, const char *where, sl_error *err)
{
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: type \"%.64s\" is not supported", where, type);
}

static sl_status read_nfc(reader *r, const json_t *part, sl_error *err)
{
    const char *type;
    SL_TRY(read_type(part, &type, "normalizer", err));
    if (strcmp(type, "NFC") != 0)
        return refuse_type(type, "normalizer", err);
    r->spec.nfc = true;
    return SL_OK;
}

static sl_status read_normaliser(reader *r, const json_t *normaliser, sl_error *err)
{
    const char *type;
    if (!normaliser)
        return SL_OK;
    SL_TRY(read_type(normaliser, &type, "normalizer", err));
    if (strcmp(type, "Sequence") != 0)
        return read_nfc(r, normaliser, err);
    const json_t *list = json_object_get(normaliser, "normalizers");
    if (!json_is_array(list))
        return sl_fail(err, SL_ERR_FORMAT, "normalizer: \"normalizers\" is not an array");
    for (size_t i = 0; i < json_array_size(list); i++)
        SL_TRY(read_nfc(r, json_array_get(list, i), err));
    return SL_OK;
}

static sl_status read_split(reader *r, const json_t *split, sl_error *err)
{
    const char *const where = "pre_tokenizer";
    const char *type, *pattern, *behaviour;
    SL_TRY(read_type(split, &type, where, err));
    if (strcmp(type, "Split") != 0)
        return refuse_type(type, where, err);
    SL_TRY(sl_json_get_string(json_object_get(split, "pattern"), "Regex", &pattern, where, err));
    if (!sl_pretok_rule_of(pattern, &r->spec.pretok))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: the split pattern \"%.300s\" is not known",
                       where, pattern);
    SL_TRY(sl_json_get_string(split, "behavior", &behaviour, where, err));
    if (strcmp(behaviour, "Isolated") != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: behavior \"%.64s\" is not supported", where,
                       behaviour);
    return refuse_true(split, "invert", false, where, err);
}

static sl_status read_pretokenizer(reader *r, const json_t *part, sl_error *err)
{
    const char *const where = "pre_tokenizer";
    const char *type;
    SL_TRY(read_type(part, &type, where, err));
    if (strcmp(type, "Sequence") != 0)
        return refuse_type(type, where, err);
    const json_t *list = json_object_get(part, "pretokenizers");
    if (json_array_size(list) != 2)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: a sequence that is not Split and ByteLevel is not supported", where);
    SL_TRY(read_split(r, json_array_get(list, 0), err));
    const json_t *byte_level = json_array_get(list, 1);
    SL_TRY(read_type(byte_level, &type, where, err));
    if (strcmp(type, "ByteLevel") != 0)
        return refuse_type(type, where, err);
    SL_TRY(refuse_true(byte_level, "add_prefix_space", true, where, err));
    return refuse_true(byte_level, "use_regex", true, where, err);
}

static sl_status check_decoder(const json_t *decoder, sl_error *err)
{
    const char *type;
    SL_TRY(read_type(decoder, &type, "decoder", err));
    return strcmp(type, "ByteLevel") == 0 ? SL_OK : refuse_type(type, "decoder", err);
}

static sl_status check_post_processor(const json_t *part, sl_error *err)
{
    const char *const where = "post_processor";
    const char *type;
    if (!part)
        return SL_OK;
    SL_TRY(read_type(part, &type, where, err));
    if (strcmp(type, "ByteLevel") == 0)
        return SL_OK;
    if (strcmp(type, "TemplateProcessing") != 0)
        return refuse_type(type, where, err);
    const json_t *single = json_object_get(part, "single");
    for (size_t i = 0; i < json_array_size(single); i++) {
        if (!json_object_get(json_array_get(single, i), "Sequence"))
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "%s: a template that adds tokens is not supported", where);
    }
    if (json_array_size(single) != 1)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: a template that is not the text once is not supported", where);
    return SL_OK;
}

static sl_status read_all(reader *r, const json_t *root, const json_t *extra, sl_error *err)
{
    const json_t *model = json_object_get(root, "model");
    if (!json_is_object(model))
        return sl_fail(err, SL_ERR_FORMAT, "\"model\" is not an object");
    SL_TRY(read_model(r, model, err));
    SL_TRY(read_added(r, member(root, "added_tokens"), err));
    SL_TRY(read_extra(r, json_is_null(extra) ? NULL : (json_t *)extra, err));
    SL_TRY(read_normaliser(r, member(root, "normalizer"), err));
    SL_TRY(read_pretokenizer(r, member(root, "pre_tokenizer"), err));
    SL_TRY(check_decoder(member(root, "decoder"), err));
    return check_post_processor(member(root, "post_processor"), err);
}

sl_status sl_tokenizer_create_json(const json_t *tokenizer_json, const json_t *extra_added,
                                   size_t n_vocab, const char *name, sl_tokenizer **out,
                                   sl_error *err)
{
    *out = NULL;
    if (n_vocab == 0 || n_vocab > SL_VOCAB_MAX_TOKENS)
        return sl_fail(err, SL_ERR_LIMIT, "%s: a vocabulary of %zu tokens (1 to %d)", name, n_vocab,
                       SL_VOCAB_MAX_TOKENS);
    sl_status status = SL_OK;
    reader r = {.n_vocab = n_vocab};
    sl_buf_init(&r.joined, SL_MEM_TEXT, SL_VOCAB_MAX_BYTES);
    r.tokens = sl_alloc_array(SL_MEM_TEXT, n_vocab, sizeof *r.tokens);
    r.kinds = sl_alloc_array(SL_MEM_TEXT, n_vocab, sizeof *r.kinds);
    if (!r.tokens || !r.kinds) {
        status = sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu tokens", n_vocab);
        goto done;
    }
    for (size_t i = 0; i < n_vocab; i++) {
        r.tokens[i] = (sl_str){"", 0};
        r.kinds[i] = SL_TOKEN_UNUSED;
    }
    SL_CHECK(read_all(&r, tokenizer_json, extra_added, err));
    r.spec.n_tokens = n_vocab;
    r.spec.tokens = r.tokens;
    r.spec.kinds = r.kinds;
    SL_CHECK(sl_tokenizer_create(&r.spec, out, err));
done:
    sl_free(r.tokens);
    sl_free(r.kinds);
    sl_free(r.merges);
    sl_buf_free(&r.joined);
    return status == SL_OK ? SL_OK : sl_fail_within(err, status, "%s", name);
}
