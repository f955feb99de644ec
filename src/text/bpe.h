/* Byte-pair encoding of one piece: every byte is a token at first; then the neighbouring pair with
 * the lowest rank (the leftmost of equals) becomes one token, until no pair has a rank. */
#ifndef SL_TEXT_BPE_H
#define SL_TEXT_BPE_H

#include "text/vocab.h"

typedef struct sl_bpe_pair {
    uint32_t left, right, rank;
} sl_bpe_pair;

typedef struct sl_bpe {
    uint32_t byte_id[256];
    uint32_t *merged; /* by rank: the token a pair becomes */
    size_t n_merges;
    sl_bpe_pair *pairs; /* hash table; rank = SL_BPE_NO_RANK where empty */
    size_t n_pairs;     /* a power of two, at least twice the merges */
} sl_bpe;

#define SL_BPE_NO_RANK UINT32_MAX

/* Errors: SL_ERR_FORMAT naming the byte without a token, or the merge that is not "left right" of
 * normal tokens that join to a normal token, or that repeats a pair; SL_ERR_LIMIT, SL_ERR_MEMORY.
 * On failure there is nothing to free. */
sl_status sl_bpe_init(sl_bpe *bpe, const sl_vocab *vocab, const sl_tokenizer_spec *spec,
                      sl_error *err);
void sl_bpe_free(sl_bpe *bpe);

enum { SL_BPE_MAX_LEVELS = 8 }; /* 16^8 symbols: more than fit in 32 bits */
#define SL_BPE_MAX_PIECE ((size_t)UINT32_MAX - 16)

/* Memory for sl_bpe_encode, grown to the longest piece. Zero-initialise; free with
 * sl_bpe_work_free. */
typedef struct sl_bpe_work {
    uint32_t *memory;
    size_t capacity;
    uint64_t n_steps; /* groups of 16 ranks looked at so far: what the time is proportional to */
} sl_bpe_work;
void sl_bpe_work_free(sl_bpe_work *work);

/* Appends the tokens of piece[0..n), n > 0, in time O(n log n) and with a small stack. */
sl_status sl_bpe_encode(const sl_bpe *bpe, sl_bpe_work *work, const char *piece, size_t n,
                        sl_ids *ids, sl_error *err);

#endif
