/* RMS and L2 normalisation. The sum of squares has 16 fixed lanes, whatever the vector width. */
#include "backend/cpu/kernels/scalar.h"

SL_SCALAR_CLONES
void sl_rms_norm_scalar(const float *x, const float *w, size_t n, float eps, float *y)
{
    float r = 1.0f / sqrtf(sl_sum_squares(x, n) / (float)n + eps);
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] * r) * w[i];
}

SL_SCALAR_CLONES
void sl_l2_norm_scalar(const float *x, size_t n, float scale, float *y)
{
    float r = 1.0f / sqrtf(sl_sum_squares(x, n) + 1e-6f);
    for (size_t i = 0; i < n; i++)
        y[i] = (x[i] * r) * scale;
}
