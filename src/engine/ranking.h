/* Tokens in the one order that sampling knows: logit descending, id ascending. */
#ifndef SL_ENGINE_RANKING_H
#define SL_ENGINE_RANKING_H

#include <string.h>

#include "base/base.h"

enum {
    SL_RANKING_DIGIT_BITS = 11, /* three passes over the 32 bits of a logit */
    SL_RANKING_VALUE_SHIFT = 32 /* where a key's value begins, above the id */
};

/* A key is the logit's bits, mapped so that unsigned order is descending value, above the id. */
typedef struct sl_ranking {
    uint64_t *keys;  /* [capacity], in order after sl_ranking_sort */
    uint64_t *spare; /* [capacity], the other side of a sorting pass */
    size_t capacity;
    uint32_t counts[1 << SL_RANKING_DIGIT_BITS];
} sl_ranking;

/* Room for that many tokens; false when memory is short (sl_ranking_free all the same). The struct
 * is zero before. */
bool sl_ranking_init(sl_ranking *ranking, size_t capacity);
void sl_ranking_free(sl_ranking *ranking);

/* Ranks the tokens whose logit is at least `lowest` and not -inf, and returns how many keys are in
 * order: all of them, or, where there are more than `limit`, at least the first `limit`. No logit
 * is NaN; n is at most the capacity. */
size_t sl_ranking_sort(sl_ranking *ranking, const float *logits, size_t n, double lowest,
                       size_t limit);

/* Puts a key among the first n, which are in order; quick where it belongs near their end. */
void sl_ranking_insert(sl_ranking *ranking, size_t n, uint64_t key);

/* Keys as in sl_shortlist. */
static inline uint64_t sl_ranking_key(float logit, size_t id)
{
    const float value = logit + 0.0f; /* -0 and +0 are the same value */
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    /* Positive values: larger bits, larger value; negative ones the other way round. */
    const uint32_t descending = bits >> 31 ? bits : ~(bits | 0x80000000u);
    return (uint64_t)descending << SL_RANKING_VALUE_SHIFT | (uint64_t)id;
}

static inline float sl_ranking_logit(uint64_t key)
{
    const uint32_t descending = (uint32_t)(key >> SL_RANKING_VALUE_SHIFT);
    const uint32_t bits = descending >> 31 ? descending : ~descending & 0x7FFFFFFFu;
    float logit;
    memcpy(&logit, &bits, sizeof logit);
    return logit;
}

static inline size_t sl_ranking_id(const sl_ranking *ranking, size_t i)
{
    return (size_t)(ranking->keys[i] & UINT32_MAX);
}

#endif
