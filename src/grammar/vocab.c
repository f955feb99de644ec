/* Sorts the tokens of a vocabulary by their bytes and lays them out as a trie. */
#include "grammar/vocab.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/mem.h"

static void set_bit(uint32_t *mask, size_t id)
{
    mask[id / 32] |= (uint32_t)1 << (id % 32);
}

/* ---- the order of tokens ---- */

typedef struct sorted {
    const char *bytes;
    uint32_t n, id;
} sorted;

static int compare(const void *a, const void *b)
{
    const sorted *x = a, *y = b;
    const int order = memcmp(x->bytes, y->bytes, x->n < y->n ? x->n : y->n);
    if (order != 0)
        return order;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static sl_status sort_tokens(const sl_constraint_vocab *vocab, sorted **out, size_t *n,
                             sl_error *err)
{
    sorted *tokens = sl_alloc_array(SL_MEM_TEXT, vocab->n_vocab, sizeof *tokens);
    if (!tokens)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu tokens", vocab->n_vocab);
    *n = 0;
    for (size_t id = 0; id < vocab->n_vocab; id++) {
        const uint32_t begin = vocab->offsets[id], end = vocab->offsets[id + 1];
        if (end > begin)
            tokens[(*n)++] = (sorted){vocab->bytes + begin, end - begin, (uint32_t)id};
    }
    qsort(tokens, *n, sizeof *tokens, compare);
    *out = tokens;
    return SL_OK;
}

/* ---- the trie ---- */

/* Bytes at the beginning that a token shares with the one before it. */
static uint32_t shared(const sorted *tokens, size_t i)
{
    uint32_t n = 0;
    if (i == 0)
        return 0;
    const sorted *a = &tokens[i - 1], *b = &tokens[i];
    while (n < a->n && n < b->n && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

static size_t count_nodes(const sorted *tokens, size_t n)
{
    size_t n_nodes = 0;
    for (size_t i = 0; i < n; i++)
        n_nodes += tokens[i].n - shared(tokens, i);
    return n_nodes;
}

static void fill_nodes(sl_constraint_vocab *vocab, const sorted *tokens, size_t n)
{
    uint32_t path[SL_VOCAB_MAX_TOKEN + 1]; /* the nodes of the last token */
    uint32_t n_path = 0;
    for (size_t i = 0; i < n; i++) {
        const sorted *token = &tokens[i];
        const uint32_t kept = shared(tokens, i);
        while (n_path > kept)
            vocab->nodes[path[--n_path]].skip = vocab->n_nodes;
        for (; n_path < token->n; n_path++) {
            path[n_path] = vocab->n_nodes;
            vocab->nodes[vocab->n_nodes++] = (sl_trie_node){.token = SL_VOCAB_NONE,
                                                            .depth = (uint16_t)(n_path + 1),
                                                            .byte = (uint8_t)token->bytes[n_path]};
        }
        sl_trie_node *node = &vocab->nodes[path[n_path - 1]];
        vocab->same[token->id] = node->token;
        node->token = token->id;
        vocab->max_bytes = sl_max_size(vocab->max_bytes, token->n);
    }
    while (n_path > 0)
        vocab->nodes[path[--n_path]].skip = vocab->n_nodes;
}

static sl_status build_trie(sl_constraint_vocab *vocab, sl_error *err)
{
    sorted *tokens = NULL;
    size_t n = 0;
    SL_TRY(sort_tokens(vocab, &tokens, &n, err));
    const size_t n_nodes = count_nodes(tokens, n);
    vocab->nodes = sl_alloc_array(SL_MEM_TEXT, n_nodes, sizeof *vocab->nodes);
    if (vocab->nodes)
        fill_nodes(vocab, tokens, n);
    sl_free(tokens);
    return vocab->nodes
               ? SL_OK
               : sl_fail(err, SL_ERR_MEMORY, "out of memory for a trie of %zu nodes", n_nodes);
}

/* ---- making one ---- */

static sl_status copy_bytes(sl_constraint_vocab *vocab, const sl_vocab_token *tokens, sl_error *err)
{
    size_t total = 0;
    for (size_t id = 0; id < vocab->n_vocab; id++) {
        const size_t n = tokens[id].bytes.n_bytes;
        if (n > SL_VOCAB_MAX_TOKEN)
            return sl_fail(err, SL_ERR_LIMIT, "token %zu has %zu bytes, the limit is %d", id, n,
                           SL_VOCAB_MAX_TOKEN);
        if (!sl_size_add(total, n, &total) || total >= UINT32_MAX)
            return sl_fail(err, SL_ERR_LIMIT, "the tokens have more than 4 GiB of text");
    }
    vocab->bytes = sl_alloc(SL_MEM_TEXT, total);
    if (!vocab->bytes)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu bytes of tokens", total);
    uint32_t at = 0;
    for (size_t id = 0; id < vocab->n_vocab; id++) {
        const sl_str bytes = tokens[id].bytes;
        vocab->offsets[id] = at;
        if (bytes.n_bytes > 0)
            memcpy(vocab->bytes + at, bytes.data, bytes.n_bytes);
        at += (uint32_t)bytes.n_bytes;
        if (tokens[id].added)
            set_bit(vocab->added, id);
    }
    vocab->offsets[vocab->n_vocab] = at;
    return SL_OK;
}

static sl_status fill(sl_constraint_vocab *vocab, const sl_vocab_token *tokens,
                      const int32_t *stops, size_t n_stops, sl_error *err)
{
    const size_t n = vocab->n_vocab;
    vocab->same = sl_alloc_array(SL_MEM_TEXT, n, sizeof *vocab->same);
    vocab->offsets = sl_alloc_array(SL_MEM_TEXT, n + 1, sizeof *vocab->offsets);
    vocab->stops = sl_alloc_array(SL_MEM_TEXT, vocab->n_words, sizeof *vocab->stops);
    vocab->added = sl_alloc_array(SL_MEM_TEXT, vocab->n_words, sizeof *vocab->added);
    if (!vocab->same || !vocab->offsets || !vocab->stops || !vocab->added)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu tokens", n);
    for (size_t i = 0; i < n_stops; i++) {
        if (stops[i] < 0 || (size_t)stops[i] >= n)
            return sl_fail(err, SL_ERR_ARGUMENT, "stop token %d, there are %zu tokens", stops[i],
                           n);
        set_bit(vocab->stops, (size_t)stops[i]);
    }
    SL_TRY(copy_bytes(vocab, tokens, err));
    return build_trie(vocab, err);
}

sl_status sl_vocab_create(const sl_vocab_token *tokens, size_t n, const int32_t *stops,
                          size_t n_stops, sl_constraint_vocab **out, sl_error *err)
{
    *out = NULL;
    if (n == 0 || n >= INT32_MAX)
        return sl_fail(err, SL_ERR_ARGUMENT, "a vocabulary of %zu tokens", n);
    sl_constraint_vocab *vocab = sl_alloc_zero(SL_MEM_TEXT, sizeof *vocab);
    if (!vocab)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a vocabulary");
    vocab->n_vocab = n;
    vocab->n_words = (n + 31) / 32;
    const sl_status status = fill(vocab, tokens, stops, n_stops, err);
    if (status != SL_OK) {
        sl_constraint_vocab_free(vocab);
        return status;
    }
    *out = vocab;
    return SL_OK;
}

sl_status sl_constraint_vocab_create(const sl_tokenizer *tokenizer, size_t n_vocab,
                                     const int32_t *stops, size_t n_stops,
                                     sl_constraint_vocab **out, sl_error *err)
{
    *out = NULL;
    sl_vocab_token *tokens = sl_alloc_array(SL_MEM_TEXT, n_vocab, sizeof *tokens);
    if (!tokens)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu tokens", n_vocab);
    const size_t n = sl_min_size(n_vocab, sl_tokenizer_count(tokenizer));
    for (size_t id = 0; id < n; id++) {
        const sl_token_kind kind = sl_tokenizer_kind(tokenizer, (int32_t)id);
        if (kind != SL_TOKEN_NORMAL && kind != SL_TOKEN_USER_DEFINED)
            continue;
        tokens[id].bytes = sl_tokenizer_bytes(tokenizer, (int32_t)id);
        tokens[id].added = kind == SL_TOKEN_USER_DEFINED;
    }
    for (size_t i = 0; i < n_stops; i++) {
        if (stops[i] >= 0 && (size_t)stops[i] < n_vocab)
            tokens[stops[i]] = (sl_vocab_token){0};
    }
    const sl_status status = sl_vocab_create(tokens, n_vocab, stops, n_stops, out, err);
    sl_free(tokens);
    return status;
}

void sl_constraint_vocab_free(sl_constraint_vocab *vocab)
{
    if (!vocab)
        return;
    sl_free(vocab->nodes);
    sl_free(vocab->same);
    sl_free(vocab->offsets);
    sl_free(vocab->bytes);
    sl_free(vocab->stops);
    sl_free(vocab->added);
    sl_free(vocab);
}
