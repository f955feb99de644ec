/* The causal convolution of four taps before the gated delta rule, with its SiLU. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_CONV_H
#define SL_BACKEND_CPU_KERNELS_LANES_CONV_H

#include <string.h>

#include "backend/cpu/kernels/lanes_elementwise.h"

/* Sixteen channels, or the first n of them. */
SL_INLINE void conv_vector(const float *const rows[SL_CONV_TAPS], const float *w, size_t c,
                           size_t n, float *y)
{
    vf taps[SL_CONV_TAPS], sum = v_zero();
    v_load_taps(w, taps);
    for (size_t j = 0; j < SL_CONV_TAPS; j++)
        sum = v_fma(taps[j], rows[j] ? load_some(rows[j] + c, n) : v_zero(), sum);
    store_some(y + c, v_silu(sum), n);
}

static void conv_silu(const float *const rows[SL_CONV_TAPS], const float *w, size_t n_channels,
                      float *y)
{
    size_t c = 0;
    for (; c + LANES <= n_channels; c += LANES)
        conv_vector(rows, w + SL_CONV_TAPS * c, c, LANES, y);
    if (c < n_channels) {
        float rest[SL_CONV_TAPS * LANES] = {0};
        memcpy(rest, w + SL_CONV_TAPS * c, SL_CONV_TAPS * (n_channels - c) * sizeof *rest);
        conv_vector(rows, rest, c, n_channels - c, y);
    }
}

#endif
