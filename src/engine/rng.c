/* Philox4x32-10: ten rounds of two 32 x 32 -> 64 bit products over a 128-bit counter. */
#include "engine/rng.h"

enum { PHILOX_ROUNDS = 10 };

static const uint32_t multiplier_0 = 0xD2511F53, multiplier_1 = 0xCD9E8D57;
/* Added to the key between rounds: the golden ratio and sqrt(3) - 1, as 32-bit fractions. */
static const uint32_t weyl_0 = 0x9E3779B9, weyl_1 = 0xBB67AE85;

void sl_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t x0 = counter[0], x1 = counter[1], x2 = counter[2], x3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        const uint64_t p0 = (uint64_t)multiplier_0 * x0;
        const uint64_t p1 = (uint64_t)multiplier_1 * x2;
        x0 = (uint32_t)(p1 >> 32) ^ x1 ^ k0;
        x1 = (uint32_t)p1;
        x2 = (uint32_t)(p0 >> 32) ^ x3 ^ k1;
        x3 = (uint32_t)p0;
        k0 += weyl_0;
        k1 += weyl_1;
    }
    out[0] = x0;
    out[1] = x1;
    out[2] = x2;
    out[3] = x3;
}

double sl_rng_uniform(uint64_t seed, uint64_t position, uint32_t draw)
{
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    const uint32_t counter[4] = {(uint32_t)position, draw, (uint32_t)(position >> 32), 0};
    uint32_t out[4];
    sl_philox4x32_10(counter, key, out);
    return ((double)(out[0] >> 8) + 0.5) * 0x1p-24;
}
