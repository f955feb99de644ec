/* Rotary positions: the angle is a float product, its sine and cosine come from double. */
#include "backend/cpu/kernels/scalar.h"

SL_SCALAR_CLONES
void sl_rope_angles_scalar(uint32_t position, const float *inv_freq, float scale, size_t n,
                           float *cos, float *sin)
{
    for (size_t i = 0; i < n; i++) {
        float c, s;
        sl_sincos((float)position * inv_freq[i], &s, &c);
        cos[i] = c * scale;
        sin[i] = s * scale;
    }
}

SL_SCALAR_CLONES
void sl_rope_scalar(float *x, const float *cos, const float *sin, size_t half)
{
    for (size_t i = 0; i < half; i++) {
        float a = x[i], b = x[i + half];
        x[i] = fmaf(a, cos[i], -(b * sin[i]));
        x[i + half] = fmaf(b, cos[i], a * sin[i]);
    }
}
