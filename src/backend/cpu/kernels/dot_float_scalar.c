/* Rows of float weights times a row of float activations. The blocks of a segment are independent
 * sums, so they advance side by side; the order inside each, and of the blocks, is fixed. */
#include "backend/cpu/kernels/scalar.h"

enum { BLOCK = 32, BLOCKS = SL_SEGMENT / BLOCK };

/* The sum of a segment of n <= 256 products. */
SL_INLINE float segment_sum(const float *w, const float *x, size_t n)
{
    float blocks[BLOCKS] = {0};
    size_t whole = n / BLOCK;
    for (size_t k = 0; k < BLOCK; k++) {
        for (size_t b = 0; b < whole; b++)
            blocks[b] = fmaf(w[BLOCK * b + k], x[BLOCK * b + k], blocks[b]);
    }
    for (size_t k = BLOCK * whole; k < n; k++)
        blocks[whole] = fmaf(w[k], x[k], blocks[whole]);
    float seg = 0.0f;
    for (size_t b = 0; BLOCK * b < n; b++)
        seg = seg + blocks[b];
    return seg;
}

/* Converts n weights, at any address, which is exact. */
typedef void (*load_fn)(const uint8_t *w, size_t n, float *values);

SL_INLINE void load_f32(const uint8_t *w, size_t n, float *values)
{
    memcpy(values, w, n * sizeof *values);
}

SL_INLINE void load_f16(const uint8_t *w, size_t n, float *values)
{
    uint16_t halves[SL_SEGMENT];
    memcpy(halves, w, n * sizeof *halves);
    for (size_t k = 0; k < n; k++)
        values[k] = sl_half_value(halves[k]);
}

SL_INLINE void load_bf16(const uint8_t *w, size_t n, float *values)
{
    uint16_t halves[SL_SEGMENT];
    memcpy(halves, w, n * sizeof *halves);
    for (size_t k = 0; k < n; k++)
        values[k] = sl_float_of_bits((uint32_t)halves[k] << 16);
}

/* Inlined together with load, so that a type's kernel is one loop. */
SL_INLINE float sum_segments(const void *w, size_t elem_bytes, load_fn load, const float *x,
                             size_t n)
{
    const uint8_t *bytes = w;
    float total = 0.0f;
    for (size_t i = 0; i < n; i += SL_SEGMENT) {
        size_t m = sl_min_size(n - i, SL_SEGMENT);
        float values[SL_SEGMENT];
        load(bytes + elem_bytes * i, m, values);
        total = total + segment_sum(values, x + i, m);
    }
    return total;
}

SL_SCALAR_CLONES
static float dot_f32(const void *w, const float *x, size_t n)
{
    return sum_segments(w, sizeof(float), load_f32, x, n);
}

SL_SCALAR_CLONES
static float dot_f16(const void *w, const float *x, size_t n)
{
    return sum_segments(w, sizeof(uint16_t), load_f16, x, n);
}

SL_SCALAR_CLONES
static float dot_bf16(const void *w, const float *x, size_t n)
{
    return sum_segments(w, sizeof(uint16_t), load_bf16, x, n);
}

const sl_dot_float_fn sl_dot_float_scalar[SL_DTYPE_COUNT] = {
    [SL_F32] = dot_f32,
    [SL_F16] = dot_f16,
    [SL_BF16] = dot_bf16,
};
