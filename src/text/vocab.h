/* The tokens of a model as bytes, and the way back from bytes to a token. Normal tokens are written
 * in the alphabet of GPT-2, in which every byte is a printable character; here they are the bytes
 * themselves. Added tokens (control and user-defined) live in a name space of their own: "\n" as an
 * added token is not the newline byte that merges start from. */
#ifndef SL_TEXT_VOCAB_H
#define SL_TEXT_VOCAB_H

#include "text/tokenizer.h"

enum {
    SL_VOCAB_MAX_TOKENS = 1 << 24,
    SL_VOCAB_MAX_BYTES = 1 << 28, /* of all tokens */
    SL_VOCAB_SHOWN_BYTES = 64     /* of a token's text in messages */
};

/* How messages show a token: printf("%.*s", SL_VOCAB_SHOW(str)). */
#define SL_VOCAB_SHOW(str) (int)sl_min_size((str).n_bytes, SL_VOCAB_SHOWN_BYTES), (str).data

typedef struct sl_vocab_slot {
    uint32_t hash;
    int32_t id; /* -1 = empty */
} sl_vocab_slot;

typedef struct sl_vocab {
    size_t n_tokens;
    char *bytes;      /* of all tokens, one after the other */
    uint32_t *offset; /* n_tokens + 1 */
    uint8_t *kind;    /* sl_token_kind */
    sl_vocab_slot *slots;
    size_t n_slots; /* a power of two, at least twice the tokens */
} sl_vocab;

/* Errors: SL_ERR_FORMAT naming the token (empty text, text outside the alphabet, added text that is
 * not UTF-8, the same text twice, unknown kind), SL_ERR_LIMIT, SL_ERR_MEMORY. On failure there is
 * nothing to free. */
sl_status sl_vocab_init(sl_vocab *vocab, const sl_tokenizer_spec *spec, sl_error *err);
void sl_vocab_free(sl_vocab *vocab);

/* The id of the normal or the added token with these bytes, or -1. */
int32_t sl_vocab_find(const sl_vocab *vocab, bool added, const char *bytes, size_t n);

/* The id of the token with this text as the file writes it: plain for an added token, which goes
 * first, in the alphabet for a normal one; or -1. */
int32_t sl_vocab_find_text(const sl_vocab *vocab, const char *text, size_t n);

static inline sl_str sl_vocab_bytes(const sl_vocab *vocab, size_t id)
{
    return (sl_str){vocab->bytes + vocab->offset[id], vocab->offset[id + 1] - vocab->offset[id]};
}

static inline bool sl_vocab_is_added(const sl_vocab *vocab, size_t id)
{
    return vocab->kind[id] == SL_TOKEN_CONTROL || vocab->kind[id] == SL_TOKEN_USER_DEFINED;
}

/* Reads text[0..n) in GPT-2's alphabet: writes at most n bytes to out and their number to *n_out.
 * False when a character is outside the alphabet. */
bool sl_alphabet_decode(const char *text, size_t n, char *out, size_t *n_out);

#endif
