/* Owns the sorting of logits: a radix sort over keys, of which only those in the buckets that hold
 * the first `limit` are sorted. */
#include "engine/ranking.h"

#include <math.h>

#include "base/mem.h"

enum {
    DIGITS = 1 << SL_RANKING_DIGIT_BITS,
    TOP_SHIFT = 64 - SL_RANKING_DIGIT_BITS /* a key's top digit is the bucket of a logit */
};

bool sl_ranking_init(sl_ranking *ranking, size_t capacity)
{
    ranking->capacity = capacity;
    ranking->keys = sl_alloc_array(SL_MEM_SCRATCH, capacity, sizeof *ranking->keys);
    ranking->spare = sl_alloc_array(SL_MEM_SCRATCH, capacity, sizeof *ranking->spare);
    return ranking->keys && ranking->spare;
}

void sl_ranking_free(sl_ranking *ranking)
{
    sl_free(ranking->keys);
    sl_free(ranking->spare);
    *ranking = (sl_ranking){0};
}

/* Writes the keys by ascending id and returns their number; leaves out buckets after the one in
 * which the limit is reached. */
static size_t gather(sl_ranking *ranking, const float *logits, size_t n, double lowest,
                     size_t limit)
{
    memset(ranking->counts, 0, sizeof ranking->counts);
    size_t n_keys = 0;
    for (size_t id = 0; id < n; id++) {
        if (logits[id] == -INFINITY || (double)logits[id] < lowest)
            continue;
        const uint64_t key = sl_ranking_key(logits[id], id);
        ranking->counts[key >> TOP_SHIFT]++;
        ranking->keys[n_keys++] = key;
    }
    if (n_keys <= limit)
        return n_keys;
    size_t last_bucket = 0;
    for (size_t n_covered = 0; (n_covered += ranking->counts[last_bucket]) < limit; last_bucket++)
        ;
    size_t n_left = 0;
    for (size_t i = 0; i < n_keys; i++) {
        if (ranking->keys[i] >> TOP_SHIFT <= last_bucket)
            ranking->keys[n_left++] = ranking->keys[i];
    }
    return n_left;
}

/* One stable pass by the digit at `shift`. */
static void sort_by_digit(sl_ranking *ranking, size_t n_keys, int shift)
{
    uint32_t *counts = ranking->counts;
    memset(counts, 0, sizeof ranking->counts);
    for (size_t i = 0; i < n_keys; i++)
        counts[ranking->keys[i] >> shift & (DIGITS - 1)]++;
    uint32_t start = 0;
    for (size_t digit = 0; digit < DIGITS; digit++) {
        const uint32_t count = counts[digit];
        counts[digit] = start;
        start += count;
    }
    for (size_t i = 0; i < n_keys; i++)
        ranking->spare[counts[ranking->keys[i] >> shift & (DIGITS - 1)]++] = ranking->keys[i];
    uint64_t *sorted = ranking->spare;
    ranking->spare = ranking->keys;
    ranking->keys = sorted;
}

size_t sl_ranking_sort(sl_ranking *ranking, const float *logits, size_t n, double lowest,
                       size_t limit)
{
    const size_t n_keys = gather(ranking, logits, n, lowest, limit);
    /* From the lowest digit of the value up; the ids ascend before the first pass. */
    for (int shift = SL_RANKING_VALUE_SHIFT; shift < 64; shift += SL_RANKING_DIGIT_BITS)
        sort_by_digit(ranking, n_keys, shift);
    return n_keys;
}

void sl_ranking_insert(sl_ranking *ranking, size_t n, uint64_t key)
{
    for (; n > 0 && ranking->keys[n - 1] > key; n--)
        ranking->keys[n] = ranking->keys[n - 1];
    ranking->keys[n] = key;
}
