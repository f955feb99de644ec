/* The causal depthwise convolution of four taps before the gated delta rule, with its SiLU. */
#include "backend/cpu/kernels/scalar.h"

SL_SCALAR_CLONES
void sl_conv_silu_scalar(const float *const rows[SL_CONV_TAPS], const float *w, size_t n_channels,
                         float *y)
{
    for (size_t c = 0; c < n_channels; c++) {
        float sum = 0.0f;
        for (size_t j = 0; j < SL_CONV_TAPS; j++)
            sum = fmaf(w[SL_CONV_TAPS * c + j], rows[j] ? rows[j][c] : 0.0f, sum);
        y[c] = sl_silu(sum);
    }
}
