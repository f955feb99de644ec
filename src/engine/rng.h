/* Random numbers as a function of (seed, position, draw): no state to save, and the same number
 * whatever was drawn before. The generator is Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011). */
#ifndef SL_ENGINE_RNG_H
#define SL_ENGINE_RNG_H

#include "base/base.h"

void sl_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* The draw-th number for an absolute position of a sequence, in (0, 1): (n + 0.5) * 2^-24 with n
 * the upper 24 bits of the first word. Key: the seed's low and high half; counter: (low half of
 * position, draw, high half of position, 0). */
double sl_rng_uniform(uint64_t seed, uint64_t position, uint32_t draw);

#endif
