/* The causal convolution of four taps before the gated delta rule, with its SiLU. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_CONV_H
#define SL_BACKEND_CPU_KERNELS_LANES_CONV_H

#include <string.h>

#include "backend/cpu/kernels/lanes_elementwise.h"

/* Rows that share a load of the taps; also how far ahead rows are fetched, since rows lie too far
 * apart for the processor to guess the next one. */
enum { CONV_ROWS = 8 };

SL_INLINE vf conv_load(const sl_conv_rows *conv, size_t i, size_t c, size_t n)
{
    return conv->x[i] ? load_some(conv->x[i] + c, n) : v_zero();
}

/* Rows first .. last of sixteen channels from c, or the first n of them. */
SL_INLINE void conv_block(const sl_conv_rows *conv, size_t first, size_t last, const float *w,
                          size_t c, size_t n)
{
    vf taps[SL_CONV_TAPS];
    v_load_taps(w, taps);
    vf a = conv_load(conv, first, c, n), b = conv_load(conv, first + 1, c, n);
    vf d = conv_load(conv, first + 2, c, n);
    for (size_t i = first; i < last; i++) {
        const size_t ahead = i + SL_CONV_HISTORY + CONV_ROWS;
        if (ahead < conv->n + SL_CONV_HISTORY + conv->n_ahead && conv->x[ahead])
            __builtin_prefetch(conv->x[ahead] + c);
        const vf e = conv_load(conv, i + SL_CONV_HISTORY, c, n);
        vf sum = v_fma(taps[0], a, v_zero());
        sum = v_fma(taps[1], b, sum);
        sum = v_fma(taps[2], d, sum);
        sum = v_fma(taps[3], e, sum);
        store_some(conv->y[i] + c - conv->begin, v_silu(sum), n);
        a = b;
        b = d;
        d = e;
    }
}

static void conv_silu(const sl_conv_rows *conv)
{
    for (size_t first = 0; first < conv->n; first += CONV_ROWS) {
        const size_t last = sl_min_size(first + CONV_ROWS, conv->n);
        size_t c = conv->begin;
        for (; c + LANES <= conv->end; c += LANES)
            conv_block(conv, first, last, conv->w + SL_CONV_TAPS * c, c, LANES);
        if (c < conv->end) {
            float rest[SL_CONV_TAPS * LANES] = {0};
            memcpy(rest, conv->w + SL_CONV_TAPS * c, SL_CONV_TAPS * (conv->end - c) * sizeof *rest);
            conv_block(conv, first, last, rest, c, conv->end - c);
        }
    }
}

#endif
