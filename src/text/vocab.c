#include "text/vocab.h"

#include "base/utf8.h"

/* The alphabet: bytes that print as themselves in Latin-1 stand for themselves, the other 68 are
 * U+0100, U+0101, ... in ascending order. Returns the byte or -1. */
static int alphabet_byte(uint32_t code)
{
    if ((code >= 0x21 && code <= 0x7E) || (code >= 0xA1 && code <= 0xFF && code != 0xAD))
        return (int)code;
    if (code < 0x100 || code > 0x143)
        return -1;
    unsigned i = code - 0x100; /* 0x00..0x20, 0x7F..0xA0, 0xAD */
    return (int)(i < 0x21 ? i : i < 0x43 ? i - 0x21 + 0x7F : 0xAD);
}

bool sl_alphabet_decode(const char *text, size_t n, char *out, size_t *n_out)
{
    *n_out = 0;
    for (size_t i = 0; i < n;) {
        uint32_t code;
        i += sl_utf8_decode(text + i, n - i, &code);
        int byte = alphabet_byte(code);
        if (byte < 0)
            return false;
        out[(*n_out)++] = (char)byte;
    }
    return true;
}

/* FNV-1a, mixed at the end because only the low bits choose a slot. */
static uint64_t hash_begin(bool added)
{
    return 0xCBF29CE484222325u + added;
}

static uint64_t hash_add(uint64_t hash, unsigned char byte)
{
    return (hash ^ byte) * 0x100000001B3u;
}

static uint32_t hash_end(uint64_t hash)
{
    hash ^= hash >> 32;
    return (uint32_t)((hash * 0x9E3779B97F4A7C15u) >> 32);
}

static uint32_t hash_bytes(bool added, const char *bytes, size_t n)
{
    uint64_t hash = hash_begin(added);
    for (size_t i = 0; i < n; i++)
        hash = hash_add(hash, (unsigned char)bytes[i]);
    return hash_end(hash);
}

/* The slot that holds these bytes, or the empty slot where they belong. */
static sl_vocab_slot *find_slot(const sl_vocab *vocab, bool added, const char *bytes, size_t n,
                                uint32_t hash)
{
    for (size_t i = hash;; i++) {
        sl_vocab_slot *slot = &vocab->slots[i & (vocab->n_slots - 1)];
        if (slot->id < 0)
            return slot;
        size_t id = (size_t)slot->id;
        if (slot->hash == hash && sl_vocab_is_added(vocab, id) == added &&
            sl_str_equal(sl_vocab_bytes(vocab, id), (sl_str){bytes, n}))
            return slot;
    }
}

int32_t sl_vocab_find(const sl_vocab *vocab, bool added, const char *bytes, size_t n)
{
    return find_slot(vocab, added, bytes, n, hash_bytes(added, bytes, n))->id;
}

/* True when text, in the alphabet, spells these bytes. */
static bool spells(const char *text, size_t n, sl_str bytes)
{
    size_t n_spelt = 0;
    for (size_t i = 0; i < n; n_spelt++) {
        uint32_t code;
        i += sl_utf8_decode(text + i, n - i, &code);
        if (n_spelt == bytes.n_bytes || alphabet_byte(code) != (unsigned char)bytes.data[n_spelt])
            return false;
    }
    return n_spelt == bytes.n_bytes;
}

int32_t sl_vocab_find_text(const sl_vocab *vocab, const char *text, size_t n)
{
    int32_t id = sl_vocab_find(vocab, true, text, n);
    if (id >= 0)
        return id;
    uint64_t hash = hash_begin(false);
    for (size_t i = 0; i < n;) {
        uint32_t code;
        i += sl_utf8_decode(text + i, n - i, &code);
        hash = hash_add(hash, (unsigned char)alphabet_byte(code));
    }
    for (size_t i = hash_end(hash);; i++) {
        sl_vocab_slot slot = vocab->slots[i & (vocab->n_slots - 1)];
        if (slot.id < 0)
            return -1;
        if (!sl_vocab_is_added(vocab, (size_t)slot.id) &&
            spells(text, n, sl_vocab_bytes(vocab, (size_t)slot.id)))
            return slot.id;
    }
}

/* Appends the bytes of token i at vocab->offset[i]. */
static sl_status add_token(sl_vocab *vocab, const sl_tokenizer_spec *spec, size_t i, sl_error *err)
{
    const sl_token_kind kind = spec->kinds[i];
    const sl_str text = spec->tokens[i];
    char *out = vocab->bytes + vocab->offset[i];
    size_t n = 0;
    switch (kind) {
    case SL_TOKEN_UNUSED:
        break;
    case SL_TOKEN_NORMAL:
        if (!sl_alphabet_decode(text.data, text.n_bytes, out, &n))
            return sl_fail(err, SL_ERR_FORMAT,
                           "token %zu (\"%.*s\") is not written in the byte alphabet", i,
                           SL_VOCAB_SHOW(text));
        break;
    case SL_TOKEN_CONTROL:
    case SL_TOKEN_USER_DEFINED:
        if (!sl_utf8_valid(text.data, text.n_bytes, NULL))
            return sl_fail(err, SL_ERR_FORMAT, "token %zu (\"%.*s\") is not valid UTF-8", i,
                           SL_VOCAB_SHOW(text));
        n = text.n_bytes;
        if (n > 0)
            memcpy(out, text.data, n);
        break;
    default:
        return sl_fail(err, SL_ERR_FORMAT, "token %zu (\"%.*s\") has an unknown kind (%d)", i,
                       SL_VOCAB_SHOW(text), (int)kind);
    }
    vocab->kind[i] = (uint8_t)kind;
    vocab->offset[i + 1] = vocab->offset[i] + (uint32_t)n;
    if (kind == SL_TOKEN_UNUSED)
        return SL_OK;
    if (n == 0)
        return sl_fail(err, SL_ERR_FORMAT, "token %zu is empty", i);

    bool added = sl_vocab_is_added(vocab, i);
    uint32_t hash = hash_bytes(added, out, n);
    sl_vocab_slot *slot = find_slot(vocab, added, out, n, hash);
    if (slot->id >= 0)
        return sl_fail(err, SL_ERR_FORMAT, "tokens %d and %zu are the same (\"%.*s\")",
                       (int)slot->id, i, SL_VOCAB_SHOW(text));
    *slot = (sl_vocab_slot){hash, (int32_t)i};
    return SL_OK;
}

sl_status sl_vocab_init(sl_vocab *vocab, const sl_tokenizer_spec *spec, sl_error *err)
{
    *vocab = (sl_vocab){0};
    if (spec->n_tokens == 0)
        return sl_fail(err, SL_ERR_FORMAT, "the vocabulary has no tokens");
    if (spec->n_tokens > SL_VOCAB_MAX_TOKENS)
        return sl_fail(err, SL_ERR_LIMIT, "a vocabulary of %zu tokens (at most %d)", spec->n_tokens,
                       SL_VOCAB_MAX_TOKENS);
    size_t n_bytes = 0;
    for (size_t i = 0; i < spec->n_tokens; i++) {
        if (spec->tokens[i].n_bytes > SL_VOCAB_MAX_BYTES - n_bytes)
            return sl_fail(err, SL_ERR_LIMIT, "the tokens up to %zu have more than %d bytes", i,
                           SL_VOCAB_MAX_BYTES);
        n_bytes += spec->tokens[i].n_bytes;
    }

    sl_status status = SL_OK;
    vocab->n_tokens = spec->n_tokens;
    vocab->n_slots = 1;
    while (vocab->n_slots < 2 * vocab->n_tokens)
        vocab->n_slots *= 2;
    vocab->bytes = sl_alloc(SL_MEM_TEXT, n_bytes);
    vocab->offset = sl_alloc_array(SL_MEM_TEXT, vocab->n_tokens + 1, sizeof *vocab->offset);
    vocab->kind = sl_alloc_array(SL_MEM_TEXT, vocab->n_tokens, sizeof *vocab->kind);
    vocab->slots = sl_alloc_array(SL_MEM_TEXT, vocab->n_slots, sizeof *vocab->slots);
    if (!vocab->bytes || !vocab->offset || !vocab->kind || !vocab->slots) {
        status = sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu tokens", vocab->n_tokens);
        goto done;
    }
    for (size_t i = 0; i < vocab->n_slots; i++)
        vocab->slots[i].id = -1;
    for (size_t i = 0; i < vocab->n_tokens; i++)
        SL_CHECK(add_token(vocab, spec, i, err));
done:
    if (status != SL_OK)
        sl_vocab_free(vocab);
    return status;
}

void sl_vocab_free(sl_vocab *vocab)
{
    sl_free(vocab->bytes);
    sl_free(vocab->offset);
    sl_free(vocab->kind);
    sl_free(vocab->slots);
    *vocab = (sl_vocab){0};
}
