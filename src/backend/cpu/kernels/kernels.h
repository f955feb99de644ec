/* CPU kernels: plain pointers, sizes and strides in, numbers out. They know no model, sequence or
 * plan. The *_scalar functions are the specification of record of docs/EXACTNESS.md: every other
 * kernel must equal them bit for bit. A struct of function pointers starts from them and is
 * overwritten upward by what the processor can do. Sections are those of docs/EXACTNESS.md. */
#ifndef SL_BACKEND_CPU_KERNELS_KERNELS_H
#define SL_BACKEND_CPU_KERNELS_KERNELS_H

#include "backend/cpu/kernels/isa.h"
#include "base/base.h"
#include "format/dtype.h"
#include "plan/dims.h"

enum {
    SL_ATTN_BLOCK = 256, /* keys of one softmax block, at absolute positions; whole pages */
    SL_SEGMENT = 256     /* inputs of one partial sum of a projection */
};

typedef enum sl_kv_type { SL_KV_F16, SL_KV_F32 } sl_kv_type;

/* ---- activations and projections ---- */

/* One row x[n] as int8 codes with a float scale per block of 32, section 1.
 * q has room for n rounded up to 32 codes (the tail is zeroed), d for ceil(n / 32) scales, sums for
 * 2 * ceil(n / 32) code sums, one per 16 codes. */
void sl_quantise_row_scalar(const float *x, size_t n, int8_t *q, float *d, int16_t *sums);

/* Dot of one weight row of n elements with a quantised row; n is a whole number of blocks. The row
 * may lie at any address. */
typedef float (*sl_dot_q8_fn)(const void *w, const int8_t *q, const float *d, const int16_t *sums,
                              size_t n);
/* Indexed by sl_dtype; NULL for the float types. */
extern const sl_dot_q8_fn sl_dot_q8_scalar[SL_DTYPE_COUNT];

/* Dot of one F32, F16 or BF16 weight row, at any address, with a float row, section 3. NULL for
 * other types. */
typedef float (*sl_dot_float_fn)(const void *w, const float *x, size_t n);
extern const sl_dot_float_fn sl_dot_float_scalar[SL_DTYPE_COUNT];

/* A matrix, or a stack of them, rearranged into panels of 16 output rows (the last one padded with
 * zero rows). What a panel looks like depends on the type: panels.h. */
enum { SL_PANEL_ROWS = 16 };
typedef struct sl_panels {
    sl_dtype dtype;
    uint32_t n_rows, n_cols; /* of one matrix, as in the file */
    uint32_t n_stack;
    size_t panel_bytes, stack_bytes, n_bytes;
    uint8_t *data; /* aligned to 64 bytes */
} sl_panels;

/* Activations of a product: quantised for quantised weights, else floats. */
typedef struct sl_product_rows {
    size_t n;
    const uint32_t *index; /* row i lies at index[i] of the arrays; NULL = at i */
    const float *f32;      /* [.][stride] */
    size_t stride;
    const int8_t *q;     /* [.][32 * n_blocks] */
    const float *d;      /* [.][n_blocks] */
    const int16_t *sums; /* [.][2 * n_blocks] */
    size_t n_blocks;
} sl_product_rows;

/* y[i][16 p + r] = row 16 p + r of matrix `stack` times activation row i, for the panels
 * begin <= p < end; nothing is written beyond the matrix's rows. Bits are those of dot_q8 and
 * dot_float of the same row. */
typedef void (*sl_product_fn)(const sl_panels *w, uint32_t stack, size_t begin, size_t end,
                              const sl_product_rows *x, float *const *y);

enum { SL_MANY_ROWS = 32 };

/* ---- norms and elementwise, sections 4 and 5 ---- */

/* y = (x * r) * w with r = 1 / sqrt(mean(x^2) + eps); y may be x. */
void sl_rms_norm_scalar(const float *x, const float *w, size_t n, float eps, float *y);
/* y = (x * r) * scale with r = 1 / sqrt(sum(x^2) + 1e-6); y may be x. */
void sl_l2_norm_scalar(const float *x, size_t n, float scale, float *y);
/* y = silu(gate) * up */
void sl_swiglu_scalar(const float *gate, const float *up, size_t n, float *y);
/* y = y * silu(z); y = y * sigmoid(z) */
void sl_mul_silu_scalar(const float *z, size_t n, float *y);
void sl_mul_sigmoid_scalar(const float *z, size_t n, float *y);
/* y = a + b; y may be a or b */
void sl_add_scalar(const float *a, const float *b, size_t n, float *y);
/* y = w * y */
void sl_scale_scalar(float w, size_t n, float *y);
/* y = fma(w, x, y) */
void sl_axpy_scalar(float w, const float *x, size_t n, float *y);
/* Whether x holds neither an infinity nor a NaN. */
bool sl_all_finite_scalar(const float *x, size_t n);
/* beta = sigmoid(b); g = a_coef * softplus(a + dt), per value head */
void sl_gdn_gates_scalar(const float *a, const float *b, const float *a_coef, const float *dt,
                         size_t n_heads, float *g, float *beta);

/* cos and sin of (float)position * inv_freq[i], times scale (1 without YaRN); n of them. */
void sl_rope_angles_scalar(uint32_t position, const float *inv_freq, float scale, size_t n,
                           float *cos, float *sin);
/* Rotates pairs (x[i], x[i + half]), i < half, in place. */
void sl_rope_scalar(float *x, const float *cos, const float *sin, size_t half);

/* y[i][c - begin] = silu(sum_j w[c][j] * x[i + j][c]) for the channels begin <= c < end. */
typedef struct sl_conv_rows {
    const float *const *x; /* [n + 3]: x[i + 3] is row i, three come before; NULL = zeros */
    size_t n, n_ahead;     /* so many more in x are coming rows, to be fetched meanwhile */
    const float *w;        /* [channels][4] */
    size_t begin, end;
    float *const *y; /* [n] */
} sl_conv_rows;
void sl_conv_silu_scalar(const sl_conv_rows *conv);

/* ---- gated delta rule, section 6 ---- */

/* Rows begin .. begin + n of the current chunk of one value head, value columns
 * [col_begin, col_end). Pointers are per tape row, so that a tape may lie in pages. */
typedef struct sl_gdn_rows {
    const float *S;        /* [128 key][128 value], the state at the chunk's border */
    const float *const *k; /* k[j][128], tape rows 0 .. begin + n - 1, normalised */
    float *const *u;       /* u[j][128], rows below begin are read, the others written */
    const float *g;        /* g[j], log decay of tape rows 0 .. begin + n - 1 */
    size_t begin, n;       /* begin + n <= SL_GDN_CHUNK */
    /* per new row i < n: */
    const float *const *q; /* q[i][128], normalised and scaled */
    const float *const *v; /* v[i][128] */
    const float *beta;     /* beta[i] */
    float *const *o;       /* o[i][128], written; may be v */
    size_t col_begin, col_end;
    const float *next_S; /* a hint: the state that is read after this one, or NULL */
} sl_gdn_rows;
void sl_gdn_rows_scalar(const sl_gdn_rows *rows);

/* The state after a full chunk: out[a][c] for the columns [col_begin, col_end). out may be S. */
void sl_gdn_border_scalar(const float *S, const float *const *k, const float *const *u,
                          const float *g, size_t col_begin, size_t col_end, float *out);

/* The token-serial rule in float32, which docs/GDN-ACCURACY.md measures the tape form against. S is
 * updated in place. One token, all columns. */
void sl_gdn_serial_scalar(float *S, const float *q, const float *k, const float *v, float g,
                          float beta, float *o);

/* The same for n tokens in a row, as fast as it goes, to compare speeds with: the one kernel that
 * is no part of the contract, so its levels may differ in their last bits. */
typedef struct sl_gdn_tokens {
    float *S;
    size_t n;
    const float *const *k, *const *q, *const *v; /* [n][128] */
    const float *g, *beta;
    float *const *o;
    size_t col_begin, col_end;
} sl_gdn_tokens;
void sl_gdn_tokens_scalar(const sl_gdn_tokens *tokens);

/* ---- attention, section 7 ---- */

/* A KV page of one layer and KV head: keys [256 dim][SL_KV_PAGE] (a dimension's keys are
 * contiguous, so that vector lanes are keys), values [SL_KV_PAGE][256]; uint16_t halves or floats
 * by kv type. Keys and values of the positions `slot` .. slot + n - 1 of one page become columns
 * and rows of it. */
typedef struct sl_kv_rows {
    sl_kv_type type;
    const float *k, *v; /* [n][256] at these strides */
    size_t k_stride, v_stride;
    size_t slot, n;
    void *k_page, *v_page;
} sl_kv_rows;
void sl_kv_store_scalar(const sl_kv_rows *rows);

/* Floats from one row of queries or scores to the next: rows of 256 would fall into the same few
 * sets of the cache. */
enum { SL_ATTN_STRIDE = SL_ATTN_DIM + 16, SL_ATTN_PANEL = SL_ATTN_BLOCK * 32 };

/* The softmax over some keys of one query: largest score, sum of weights, weighted sum of values.
 * As long as a row of scores. */
typedef struct sl_softmax {
    float o[SL_ATTN_DIM];
    float m, l;
    float unused[SL_ATTN_STRIDE - SL_ATTN_DIM - 2];
} sl_softmax;

/* Queries of one sequence and KV head against one block of its keys. pages[p] holds the block's
 * keys p * SL_KV_PAGE onward, k_offset bytes into it, and its values at v_offset; pages behind the
 * last key that a query sees are not touched. */
typedef struct sl_attend {
    sl_kv_type type;
    void *const *pages;
    size_t k_offset, v_offset;
    size_t n_more; /* a hint: pages after those of this block whose keys are read next, 0 .. 4 */
    size_t n;
    const float *q;         /* [n][SL_ATTN_STRIDE] */
    const uint16_t *n_keys; /* [n], how many keys of the block each query sees: 1 .. 256 */
    float *scratch;         /* [n * SL_ATTN_STRIDE + SL_ATTN_PANEL] */
} sl_attend;

/* out[n]: each query's softmax over its keys of the block. */
void sl_attend_block_scalar(const sl_attend *block, sl_softmax *out);

/* all = all and then `block`, which holds the keys that follow. */
void sl_softmax_merge_scalar(sl_softmax *all, const sl_softmax *block);

/* o[256] = the weighted mean times sigmoid(gate). */
void sl_softmax_finish_scalar(const sl_softmax *all, const float *gate, float *o);

/* The whole of it for one query without a gate: o[256] = softmax(q . K / 16) V over the keys
 * 0 .. n_keys - 1, block by block. Only tests need it. */
void sl_attention_scalar(sl_kv_type type, const float *q, void *const *pages, size_t k_offset,
                         size_t v_offset, size_t n_keys, float *o);

/* ---- mixture of experts, section 8 ---- */

/* ids[top_k] and weights[top_k] in selection order from n router logits. False when a logit is not
 * finite or NaN came out. scratch: n floats. */
bool sl_route_scalar(const float *logits, size_t n, size_t top_k, float *scratch, uint32_t *ids,
                     float *weights);

/* ---- the table ---- */

/* One pointer per kernel; comments are at the functions above. */
typedef struct sl_cpu_kernels {
    void (*quantise_row)(const float *x, size_t n, int8_t *q, float *d, int16_t *sums);
    sl_dot_q8_fn dot_q8[SL_DTYPE_COUNT];
    sl_dot_float_fn dot_float[SL_DTYPE_COUNT];
    /* By type of weights; NULL = the level has none and reads rows of the file by the dots. */
    sl_product_fn product[SL_DTYPE_COUNT];
    /* The same, better for SL_MANY_ROWS rows and more, where there is one. */
    sl_product_fn product_many[SL_DTYPE_COUNT];
    void (*rms_norm)(const float *x, const float *w, size_t n, float eps, float *y);
    void (*l2_norm)(const float *x, size_t n, float scale, float *y);
    void (*swiglu)(const float *gate, const float *up, size_t n, float *y);
    void (*mul_silu)(const float *z, size_t n, float *y);
    void (*mul_sigmoid)(const float *z, size_t n, float *y);
    void (*add)(const float *a, const float *b, size_t n, float *y);
    void (*scale)(float w, size_t n, float *y);
    void (*axpy)(float w, const float *x, size_t n, float *y);
    bool (*all_finite)(const float *x, size_t n);
    void (*gdn_gates)(const float *a, const float *b, const float *a_coef, const float *dt,
                      size_t n_heads, float *g, float *beta);
    void (*rope_angles)(uint32_t position, const float *inv_freq, float scale, size_t n, float *cos,
                        float *sin);
    void (*rope)(float *x, const float *cos, const float *sin, size_t half);
    void (*conv_silu)(const sl_conv_rows *conv);
    void (*gdn_rows)(const sl_gdn_rows *rows);
    void (*gdn_border)(const float *S, const float *const *k, const float *const *u, const float *g,
                       size_t col_begin, size_t col_end, float *out);
    void (*gdn_tokens)(const sl_gdn_tokens *tokens);
    void (*kv_store)(const sl_kv_rows *rows);
    void (*attend_block)(const sl_attend *block, sl_softmax *out);
    void (*softmax_merge)(sl_softmax *all, const sl_softmax *block);
    void (*softmax_finish)(const sl_softmax *all, const float *gate, float *o);
    bool (*route)(const float *logits, size_t n, size_t top_k, float *scratch, uint32_t *ids,
                  float *weights);
} sl_cpu_kernels;

/* The kernels of a level that this machine can run: the scalar ones, overwritten upward by those of
 * every level below it. */
sl_cpu_kernels sl_cpu_kernels_of(sl_isa isa);

/* Put a level's own kernels into the table. */
void sl_level_avx2(sl_cpu_kernels *k);
void sl_level_avx512(sl_cpu_kernels *k);
void sl_level_neon(sl_cpu_kernels *k);
void sl_products_avx2(sl_cpu_kernels *k);
void sl_products_avx512(sl_cpu_kernels *k);
void sl_products_avx512vnni(sl_cpu_kernels *k);
void sl_products_neon(sl_cpu_kernels *k);
void sl_products_amx(sl_cpu_kernels *k);

#endif
