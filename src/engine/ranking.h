/* Tokens in the one order that sampling knows: logit descending, id ascending. */
#ifndef SL_ENGINE_RANKING_H
#define SL_ENGINE_RANKING_H

#include "base/base.h"

enum { SL_RANKING_DIGIT_BITS = 11 /* three passes over the 32 bits of a logit */ };

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

static inline size_t sl_ranking_id(const sl_ranking *ranking, size_t i)
{
    return (size_t)(ranking->keys[i] & UINT32_MAX);
}

#endif
