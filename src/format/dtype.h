/* Element types of weights and the layout of their blocks (docs of GGUF; little-endian). */
#ifndef SL_FORMAT_DTYPE_H
#define SL_FORMAT_DTYPE_H

#include "base/base.h"

typedef enum sl_dtype {
    SL_F32,
    SL_F16,
    SL_BF16,
    SL_Q8_0,
    SL_Q4_0,
    SL_Q4_1,
    SL_Q5_0,
    SL_Q5_1,
    SL_Q2_K,
    SL_Q3_K,
    SL_Q4_K,
    SL_Q5_K,
    SL_Q6_K,
    SL_IQ4_NL,
    SL_IQ4_XS,
    SL_MXFP4,
    SL_DTYPE_COUNT
} sl_dtype;

typedef struct sl_dtype_info {
    const char *name;     /* "Q8_0" */
    uint32_t block_elems; /* elements of a block: 1, 32 or 256 */
    uint32_t block_bytes;
    bool quantised; /* multiplied with int8 activations */
} sl_dtype_info;

const sl_dtype_info *sl_dtype_get(sl_dtype dtype);

/* The type with a ggml number (0 F32, 1 F16, 2 Q4_0, ...); false when sluice cannot use it.
 * *name is the type's usual name whenever it is a known one, else NULL. */
bool sl_dtype_from_ggml(uint32_t ggml_type, sl_dtype *dtype, const char **name);

/* Bytes of a row of n elements; false when n is not a multiple of the block or overflows. */
bool sl_dtype_row_bytes(sl_dtype dtype, uint64_t n, size_t *n_bytes);

/* n elements of src (a whole number of blocks) as float32, each exactly the value the format
 * defines (one rounding where a product of a block's constants is not exact). No alignment is
 * needed. */
void sl_dequantise(sl_dtype dtype, const void *src, float *dst, size_t n);

/* IEEE half and bfloat16, exact; no rounding mode or flush-to-zero setting of the host matters. To
 * half: round to nearest even, denormals kept, overflow to infinity. A NaN stays one: between half
 * and float32 it keeps the upper bits of its payload and becomes quiet, as F16C and NEON do it. */
float sl_f16_to_f32(uint16_t h);
uint16_t sl_f32_to_f16(float f);
float sl_bf16_to_f32(uint16_t h);

/* Byte layouts. d, m and dmin are IEEE halves. Nibbles: low first, unless said otherwise. */
typedef struct sl_block_q8_0 {
    uint16_t d;
    int8_t q[32];
} sl_block_q8_0;

typedef struct sl_block_q4_0 {
    uint16_t d;
    uint8_t q[16];
} sl_block_q4_0;

typedef struct sl_block_q4_1 {
    uint16_t d, m;
    uint8_t q[16];
} sl_block_q4_1;

typedef struct sl_block_q5_0 {
    uint16_t d;
    uint8_t high[4]; /* bit i = fifth bit of element i */
    uint8_t q[16];
} sl_block_q5_0;

typedef struct sl_block_q5_1 {
    uint16_t d, m;
    uint8_t high[4];
    uint8_t q[16];
} sl_block_q5_1;

typedef struct sl_block_q2_k {
    uint8_t scales[16]; /* low nibble scale, high nibble minimum, per 16 elements */
    uint8_t q[64];
    uint16_t d, dmin;
} sl_block_q2_k;

typedef struct sl_block_q3_k {
    uint8_t high[32];
    uint8_t q[64];
    uint8_t scales[12]; /* sixteen 6-bit scales, offset 32 */
    uint16_t d;
} sl_block_q3_k;

typedef struct sl_block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12]; /* eight 6-bit scales and eight 6-bit minimums */
    uint8_t q[128];
} sl_block_q4_k;

typedef struct sl_block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t high[32];
    uint8_t q[128];
} sl_block_q5_k;

typedef struct sl_block_q6_k {
    uint8_t low[128];
    uint8_t high[64];
    int8_t scales[16];
    uint16_t d;
} sl_block_q6_k;

typedef struct sl_block_iq4_nl {
    uint16_t d;
    uint8_t q[16];
} sl_block_iq4_nl;

typedef struct sl_block_iq4_xs {
    uint16_t d;
    uint16_t scales_high;
    uint8_t scales_low[4];
    uint8_t q[128];
} sl_block_iq4_xs;

typedef struct sl_block_mxfp4 {
    uint8_t e; /* E8M0 */
    uint8_t q[16];
} sl_block_mxfp4;

/* Values of the 4-bit codes of IQ4_NL and IQ4_XS, and of MXFP4 (doubled E2M1). */
extern const int8_t sl_iq4_values[16];
extern const int8_t sl_mxfp4_values[16];

/* Scale and minimum s (0 to 7) of a Q4_K or Q5_K block, scale s (0 to 15) of a Q3_K block (signed,
 * offset removed), scale s (0 to 7) of an IQ4_XS block (offset removed). */
void sl_q4_k_scale_min(const uint8_t scales[12], int s, int *scale, int *min);
int sl_q3_k_scale(const uint8_t scales[12], int s);
int sl_iq4_xs_scale(const sl_block_iq4_xs *block, int s);

/* The scale of an MXFP4 block for the doubled codes: 2^(e - 128), for every e. */
float sl_mxfp4_scale(uint8_t e);

#endif
