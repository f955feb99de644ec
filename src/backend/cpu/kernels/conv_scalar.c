/* The causal depthwise convolution of four taps before the gated delta rule, with its SiLU. */
#include "backend/cpu/kernels/scalar.h"

SL_SCALAR_CLONES
void sl_conv_silu_scalar(const sl_conv_rows *conv)
{
    for (size_t i = 0; i < conv->n; i++) {
        const float *const *x = conv->x + i;
        float *y = conv->y[i];
        for (size_t c = conv->begin; c < conv->end; c++) {
            float sum = 0.0f;
            for (size_t j = 0; j < SL_CONV_TAPS; j++)
                sum = fmaf(conv->w[SL_CONV_TAPS * c + j], x[j] ? x[j][c] : 0.0f, sum);
            y[c - conv->begin] = sl_silu(sum);
        }
    }
}
