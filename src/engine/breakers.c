/* Finds the tokens that contain a text. */
#include "engine/breakers.h"

#include <string.h>

#include "base/mem.h"

const sl_str sl_default_breakers[SL_N_DEFAULT_BREAKERS] = {
    {"\n", 1}, {":", 1}, {"\"", 1}, {"*", 1}};

static bool contains(sl_str bytes, sl_str text)
{
    for (size_t i = 0; i + text.n_bytes <= bytes.n_bytes; i++) {
        if (memcmp(bytes.data + i, text.data, text.n_bytes) == 0)
            return true;
    }
    return false;
}

static bool breaks(const sl_tokenizer *tokenizer, int32_t id, const sl_str *texts, size_t n)
{
    const sl_token_kind kind = sl_tokenizer_kind(tokenizer, id);
    if (kind != SL_TOKEN_NORMAL)
        return kind == SL_TOKEN_CONTROL || kind == SL_TOKEN_USER_DEFINED;
    const sl_str bytes = sl_tokenizer_bytes(tokenizer, id);
    for (size_t i = 0; i < n; i++) {
        if (texts[i].n_bytes > 0 && contains(bytes, texts[i]))
            return true;
    }
    return false;
}

uint32_t *sl_breakers_create(const sl_tokenizer *tokenizer, const sl_str *texts, size_t n,
                             size_t n_vocab)
{
    uint32_t *set = sl_alloc_array(SL_MEM_TEXT, n_vocab / 32 + 1, sizeof *set);
    const size_t n_tokens = sl_min_size(n_vocab, sl_tokenizer_count(tokenizer));
    for (size_t id = 0; set && id < n_tokens; id++) {
        if (breaks(tokenizer, (int32_t)id, texts, n))
            set[id / 32] |= (uint32_t)1 << (id % 32);
    }
    return set;
}
