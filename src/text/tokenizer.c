/* Creation from a spec, look-ups, and the order in which a text is taken apart. The parts are in
 * vocab.c (tokens), added.c (control and user-defined tokens in text), nfc.c, pretok.c (pieces) and
 * bpe.c (tokens of a piece). A tokenizer does not change once it is made: any number of threads may
 * use it. */
#include "text/tokenizer.h"

#include "base/utf8.h"
#include "text/added.h"
#include "text/bpe.h"
#include "text/nfc.h"
#include "text/pretok.h"
#include "text/vocab.h"

struct sl_tokenizer {
    sl_vocab vocab;
    sl_added added;
    sl_bpe bpe;
    sl_pretok_rule pretok;
    bool nfc;
};

sl_status sl_tokenizer_create(const sl_tokenizer_spec *spec, sl_tokenizer **out, sl_error *err)
{
    *out = NULL;
    if (spec->pretok != SL_PRETOK_QWEN35 && spec->pretok != SL_PRETOK_QWEN2)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "split rule %d is not known", (int)spec->pretok);
    sl_tokenizer *tokenizer = sl_alloc_zero(SL_MEM_TEXT, sizeof *tokenizer);
    if (!tokenizer)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a tokenizer");
    sl_status status = SL_OK;
    tokenizer->pretok = spec->pretok;
    tokenizer->nfc = spec->nfc;
    SL_CHECK(sl_vocab_init(&tokenizer->vocab, spec, err));
    SL_CHECK(sl_added_init(&tokenizer->added, &tokenizer->vocab, err));
    SL_CHECK(sl_bpe_init(&tokenizer->bpe, &tokenizer->vocab, spec, err));
    *out = tokenizer;
done:
    if (status != SL_OK)
        sl_tokenizer_free(tokenizer);
    return status;
}

void sl_tokenizer_free(sl_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    sl_bpe_free(&tokenizer->bpe);
    sl_added_free(&tokenizer->added);
    sl_vocab_free(&tokenizer->vocab);
    sl_free(tokenizer);
}

sl_token_kind sl_token_kind_from_gguf(int type)
{
    switch (type) {
    case 1:
        return SL_TOKEN_NORMAL;
    case 3:
        return SL_TOKEN_CONTROL;
    case 4:
        return SL_TOKEN_USER_DEFINED;
    case 5:
        return SL_TOKEN_UNUSED;
    default:
        return SL_TOKEN_INVALID;
    }
}

size_t sl_tokenizer_count(const sl_tokenizer *tokenizer)
{
    return tokenizer->vocab.n_tokens;
}

static bool in_range(const sl_tokenizer *tokenizer, int32_t id)
{
    return id >= 0 && (size_t)id < tokenizer->vocab.n_tokens;
}

sl_token_kind sl_tokenizer_kind(const sl_tokenizer *tokenizer, int32_t id)
{
    return in_range(tokenizer, id) ? (sl_token_kind)tokenizer->vocab.kind[id] : SL_TOKEN_UNUSED;
}

sl_str sl_tokenizer_bytes(const sl_tokenizer *tokenizer, int32_t id)
{
    return in_range(tokenizer, id) ? sl_vocab_bytes(&tokenizer->vocab, (size_t)id)
                                   : (sl_str){"", 0};
}

int32_t sl_tokenizer_find(const sl_tokenizer *tokenizer, const char *text)
{
    return sl_vocab_find_text(&tokenizer->vocab, text, strlen(text));
}

/* ---- lists of ids ---- */

sl_status sl_ids_push(sl_ids *ids, int32_t id, sl_error *err)
{
    if (ids->n == ids->capacity) {
        size_t capacity = sl_max_size(64, ids->capacity + ids->capacity / 2), bytes;
        int32_t *grown = NULL;
        if (sl_size_mul(capacity, sizeof *grown, &bytes))
            grown = sl_realloc(SL_MEM_TEXT, ids->ids, bytes);
        if (!grown)
            return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu tokens", capacity);
        ids->ids = grown;
        ids->capacity = capacity;
    }
    ids->ids[ids->n++] = id;
    return SL_OK;
}

void sl_ids_free(sl_ids *ids)
{
    sl_free(ids->ids);
    *ids = (sl_ids){0};
}

/* ---- encoding ---- */

/* One call of sl_tokenizer_encode. */
typedef struct encoder {
    const sl_tokenizer *tokenizer;
    const char *text;
    size_t plain_begin; /* text from here on has not become ids yet */
    sl_added_matches matches;
    sl_buf repaired, normal; /* the plain text in work: valid UTF-8, then normalised */
    sl_bpe_work bpe;
    sl_ids *ids;
    size_t n_replaced;
} encoder;

/* Copies text with U+FFFD for every invalid sequence. */
static sl_status repair(encoder *e, sl_str *text, sl_error *err)
{
    if (sl_utf8_valid(text->data, text->n_bytes, NULL))
        return SL_OK;
    sl_buf_clear(&e->repaired);
    size_t good = 0; /* valid text from here on has not been copied yet */
    for (size_t pos = 0; pos < text->n_bytes;) {
        uint32_t code;
        size_t used = sl_utf8_decode(text->data + pos, text->n_bytes - pos, &code);
        /* U+FFFD that stands in the text is three bytes of its own. */
        if (code == SL_UTF8_REPLACEMENT && !sl_utf8_valid(text->data + pos, used, NULL)) {
            char replacement[4];
            size_t n = sl_utf8_encode(SL_UTF8_REPLACEMENT, replacement);
            SL_TRY(sl_buf_append(&e->repaired, text->data + good, pos - good, err));
            SL_TRY(sl_buf_append(&e->repaired, replacement, n, err));
            good = pos + used;
            e->n_replaced++;
        }
        pos += used;
    }
    SL_TRY(sl_buf_append(&e->repaired, text->data + good, text->n_bytes - good, err));
    *text = (sl_str){e->repaired.data, e->repaired.n_bytes};
    return SL_OK;
}

/* The text from plain_begin to end has no added tokens. */
static sl_status encode_plain(encoder *e, size_t end, sl_error *err)
{
    const sl_tokenizer *t = e->tokenizer;
    sl_str text = {e->text + e->plain_begin, end - e->plain_begin};
    e->plain_begin = end;
    SL_TRY(repair(e, &text, err));
    if (t->nfc)
        SL_TRY(sl_nfc(text.data, text.n_bytes, &e->normal, &text, err));
    for (size_t pos = 0; pos < text.n_bytes;) {
        size_t piece_end = sl_pretok_next(t->pretok, text.data, text.n_bytes, pos);
        SL_TRY(sl_bpe_encode(&t->bpe, &e->bpe, text.data + pos, piece_end - pos, e->ids, err));
        pos = piece_end;
    }
    return SL_OK;
}

/* Added tokens in the trusted text[begin..end), and the plain text before each of them. */
static sl_status encode_trusted(encoder *e, const sl_encode_options *options, size_t begin,
                                size_t end, sl_error *err)
{
    SL_TRY(sl_added_find(&e->tokenizer->added, e->text, begin, end, options->control,
                         options->user_defined, &e->matches, err));
    for (size_t i = e->matches.n; i-- > 0;) {
        sl_added_match match = e->matches.list[i];
        if (match.pos < e->plain_begin)
            continue; /* it begins inside the token before */
        SL_TRY(encode_plain(e, match.pos, err));
        SL_TRY(sl_ids_push(e->ids, match.id, err));
        e->plain_begin = match.pos + sl_tokenizer_bytes(e->tokenizer, match.id).n_bytes;
    }
    return SL_OK;
}

static sl_status check_ranges(const sl_encode_options *options, size_t n, sl_error *err)
{
    size_t last = 0;
    for (size_t i = 0; i < options->n_untrusted; i++) {
        sl_range range = options->untrusted[i];
        if (range.begin < last || range.begin > range.end || range.end > n)
            return sl_fail(err, SL_ERR_ARGUMENT,
                           "untrusted range %zu, [%zu, %zu), is out of order or outside the %zu "
                           "bytes of text",
                           i, range.begin, range.end, n);
        last = range.end;
    }
    return SL_OK;
}

sl_status sl_tokenizer_encode(const sl_tokenizer *tokenizer, const char *text, size_t n,
                              const sl_encode_options *options, sl_ids *ids, size_t *n_replaced,
                              sl_error *err)
{
    static const sl_encode_options none = {0};
    if (!options)
        options = &none;
    if (n_replaced)
        *n_replaced = 0;
    if (n > SL_TOKENIZER_MAX_TEXT)
        return sl_fail(err, SL_ERR_LIMIT, "a text of %zu bytes (at most %zu)", n,
                       SL_TOKENIZER_MAX_TEXT);
    SL_TRY(check_ranges(options, n, err));

    sl_status status = SL_OK;
    const size_t n_before = ids->n;
    encoder e = {.tokenizer = tokenizer, .text = text, .ids = ids};
    /* U+FFFD is three bytes, and NFC makes text at most three times as long. */
    sl_buf_init(&e.repaired, SL_MEM_TEXT, 3 * SL_TOKENIZER_MAX_TEXT);
    sl_buf_init(&e.normal, SL_MEM_TEXT, 3 * SL_TOKENIZER_MAX_TEXT);
    size_t begin = 0; /* of trusted text */
    for (size_t i = 0; i < options->n_untrusted; i++) {
        SL_CHECK(encode_trusted(&e, options, begin, options->untrusted[i].begin, err));
        begin = options->untrusted[i].end;
    }
    SL_CHECK(encode_trusted(&e, options, begin, n, err));
    SL_CHECK(encode_plain(&e, n, err));
done:
    sl_free(e.matches.list);
    sl_buf_free(&e.repaired);
    sl_buf_free(&e.normal);
    sl_bpe_work_free(&e.bpe);
    if (status != SL_OK)
        ids->n = n_before;
    else if (n_replaced)
        *n_replaced = e.n_replaced;
    return status;
}
