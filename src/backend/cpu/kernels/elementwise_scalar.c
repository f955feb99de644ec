/* Activation functions, sums, and the gates of the gated delta rule: one element at a time, no
 * element depends on another. */
#include "backend/cpu/kernels/scalar.h"

SL_SCALAR_CLONES
void sl_swiglu_scalar(const float *gate, const float *up, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = sl_silu(gate[i]) * up[i];
}

SL_SCALAR_CLONES
void sl_mul_silu_scalar(const float *z, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] * sl_silu(z[i]);
}

SL_SCALAR_CLONES
void sl_mul_sigmoid_scalar(const float *z, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = y[i] * sl_sigmoid(z[i]);
}

void sl_add_scalar(const float *a, const float *b, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = a[i] + b[i];
}

void sl_scale_scalar(float w, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = w * y[i];
}

bool sl_all_finite_scalar(const float *x, size_t n)
{
    return sl_all_finite(x, n);
}

SL_SCALAR_CLONES
void sl_axpy_scalar(float w, const float *x, size_t n, float *y)
{
    for (size_t i = 0; i < n; i++)
        y[i] = fmaf(w, x[i], y[i]);
}

SL_SCALAR_CLONES
void sl_gdn_gates_scalar(const float *a, const float *b, const float *a_coef, const float *dt,
                         size_t n_heads, float *g, float *beta)
{
    for (size_t h = 0; h < n_heads; h++) {
        g[h] = a_coef[h] * sl_softplus(a[h] + dt[h]);
        beta[h] = sl_sigmoid(b[h]);
    }
}
