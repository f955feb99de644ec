/* The CUDA kernels as C functions that launch them: device pointers, sizes and strides in. They
 * know no model, plan or sequence. Products are the CPU's to the last bit; everything gives a row
 * the same bits however a run is cut (sections are those of docs/EXACTNESS.md). A launch returns at
 * once; errors are the stream's. */
#ifndef SL_BACKEND_CUDA_KERNELS_LAUNCH_H
#define SL_BACKEND_CUDA_KERNELS_LAUNCH_H

#include <cuda_runtime_api.h>

#include "plan/dims.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Where launches go. overlap: a kernel may start while the one before it ends (from Hopper on).
 * begins: the one before is that of sl_cu_begin_run, with which only a kernel may overlap that
 * looks up nothing it copies and does not let the next one start before it has ended. */
typedef struct sl_cu_queue {
    cudaStream_t stream;
    int overlap, begins;
    int n_multiprocessors;
    void *carry; /* sl_cu_carry_bytes, zeroed once, for kernels one after another; or NULL */
} sl_cu_queue;

/* For sums of products that one block of threads begins and another one ends. */
size_t sl_cu_carry_bytes(int n_multiprocessors);

/* ---- what a run supplies ---- */

/* sl_segment of plan/op.h, on the device. */
typedef struct sl_cu_segment {
    uint32_t pos, first_row, n_rows;
    uint32_t first_chunk; /* of its chunks among all that the run's rows touch */
    uint32_t first_split; /* of its rows among those of all segments of at most SL_CU_SPLIT_ROWS */
    uint32_t first_key_block; /* likewise, of its key blocks */
    const float *border;
    float *border_out[2];
    float *tape[3][SL_TAPE_CHUNK_PAGES];
    float *conv;
    void *const *kv_pages;
} sl_cu_segment;

typedef struct sl_cu_rows {
    uint32_t n_rows, n_segments, n_chunks; /* n_chunks may count some too many */
    uint32_t n_split_rows;                 /* of segments of at most SL_CU_SPLIT_ROWS rows */
    uint32_t most_split_rows, most_rows;   /* of one of these, of any; may be some too many */
    const sl_cu_segment *segments;         /* [n_segments] */
    const uint32_t *segment_of;            /* [n_rows] */
    uint32_t *flags; /* [n_rows], set to the op's number where a value is not finite */
} sl_cu_rows;

/* ---- activations ---- */

typedef struct sl_cu_q8 {
    int8_t *q;     /* [.][32 * n_blocks] */
    float *d;      /* [.][n_blocks] */
    int16_t *sums; /* [.][2 * n_blocks] */
    uint32_t n_blocks;
} sl_cu_q8;

/* Each op's optional rounding: out.q NULL = none. */

/* x = x + add where add is given (with flags as in sl_cu_add); y = its norm, where y is given. */
void sl_cu_norm(const sl_cu_queue *queue, float *x, const float *add, const float *w,
                uint32_t n_rows, uint32_t n, float eps, float *y, uint32_t y_stride, sl_cu_q8 yq,
                uint32_t *flags, uint32_t mark);
/* The same of many rows, rounded, with the scales also where sl_cu_many wants them unless scales is
 * NULL; y or NULL. */
int sl_cu_norm_many_fits(uint32_t n);
void sl_cu_norm_many(const sl_cu_queue *queue, const float *x, const float *w, uint32_t n_rows,
                     uint32_t n, float eps, float *y, uint32_t y_stride, sl_cu_q8 yq,
                     float *scales);
void sl_cu_quantise(cudaStream_t stream, const float *x, uint32_t n_rows, uint32_t n, sl_cu_q8 q);
void sl_cu_swiglu(cudaStream_t stream, const float *gate, const float *up, uint32_t n_rows,
                  uint32_t n, float *y, sl_cu_q8 yq);
/* x = x + y; rows with a value that is not finite get flags[row] = mark unless they have one. */
void sl_cu_add(cudaStream_t stream, float *x, const float *y, uint32_t n_rows, uint32_t n,
               uint32_t *flags, uint32_t mark);
/* x = x + sigmoid(gate) * y, one gate a row */
void sl_cu_add_gated(cudaStream_t stream, float *x, const float *gate, const float *y,
                     uint32_t n_rows, uint32_t n);

/* ---- products, sections 2 and 3 ---- */

/* Quantised weights are kept in panels of 16 rows, in one of these forms. A panel is segments of
 * 256 inputs, a segment its head and blocks of 32 inputs. In a block lane l = 4 g + t of the operand
 * of mma.m16n8k32 has four words of four codes: rows g and g + 8 at inputs 4 t .., then the same at
 * inputs 16 + 4 t ...
 *
 *            head                  block
 *   plain    -                     32 x 16 bytes codes; 16 halves d                  8.5 bits each
 *   general  -                     32 x 16 bytes codes; 16 floats d, 16 floats m, 16 bytes each of
 *                                  s0, s1 (signed), m0, m1                            11 bits
 *   K4       16 x (halves d, m)    32 x 8 bytes of nibbles; 16 x (bytes s, m)         4.6 bits
 *   K5       16 x (halves d, m)    as K4, then 32 x 2 bytes of fifth bits before the bytes
 *   K6       16 floats d           32 x 8 bytes of nibbles; 32 x 4 bytes of upper pairs of bits;
 *                                  16 x (bytes s0, s1)                                6.6 bits
 *
 * Byte 4 k + i of the nibbles has code i of word 2 k low and of word 2 k + 1 high. Bit 4 w + i of
 * K5's, bits 8 i + 2 w .. of K6's belong to code i of word w; K6's codes are signed.
 *
 * n = s0 * dot of the first 16 codes + s1 * dot of the others (K4, K5: s * dot); seg = fma(d * da,
 * n, seg), then seg = fma(m * da, m0 * asum0 + m1 * asum1, seg) when has_min. */
typedef enum sl_cu_kind {
    SL_CU_PLAIN,
    SL_CU_GENERAL,
    SL_CU_K4,
    SL_CU_K5,
    SL_CU_K6,
    SL_CU_F32,
    SL_CU_F16,
    SL_CU_BF16
} sl_cu_kind;
enum { SL_CU_PLAIN_BYTES = 544, SL_CU_GENERAL_BYTES = 704, SL_CU_SEGMENT_BLOCKS = 8 };

typedef struct sl_cu_matrix {
    sl_cu_kind kind;
    int has_min;
    uint32_t n_rows, n_cols, n_stack;
    size_t row_bytes;   /* float kinds: rows as in the file */
    size_t panel_bytes; /* quantised kinds */
    size_t stack_bytes;
    const uint8_t *data;
} sl_cu_matrix;

static inline int sl_cu_is_quantised(const sl_cu_matrix *w)
{
    return w->kind < SL_CU_F32;
}

/* Rows in groups of 32 or 64, each with a matrix of the targets' stacks: group i that of stack[i],
 * of *n groups. Both on the device; the number of rows of a product is then the room for them.
 * n_rows 0: no groups, and one matrix. */
typedef struct sl_cu_groups {
    uint32_t n_rows;
    const uint32_t *stack, *n;
} sl_cu_groups;

/* Product i of n reads activation row rows[i] (NULL: i) and matrix stack[i] (NULL: 0) and writes
 * y[i * y_stride + out]. With groups, of quantised weights, it reads row i and the group's matrix. */
typedef struct sl_cu_product {
    uint32_t n;
    const uint32_t *rows;
    const uint32_t *stack;
    uint32_t row_divisor; /* activation row = i / row_divisor when rows is NULL */
    const float *f32;
    uint32_t f32_stride;
    sl_cu_q8 q8;
    float *y;
    uint32_t y_stride;
    sl_cu_groups groups;
} sl_cu_product;

typedef struct sl_cu_target {
    sl_cu_matrix w;
    float *y;
    uint32_t y_stride;
} sl_cu_target;

void sl_cu_matrix_product(const sl_cu_queue *queue, const sl_cu_matrix *w, const sl_cu_product *p);
/* The part of it that is for float weights. */
void sl_cu_float_product(const sl_cu_queue *queue, const sl_cu_matrix *w, const sl_cu_product *p);

/* ---- steps of few rows: products and what lies around them ---- */

enum {
    SL_CU_STEP_ROWS = 64,
    SL_CU_NORM_ROWS = 8, /* with more it is quicker to norm them once, apart */
    SL_CU_STEP_TARGETS = 4,
    SL_CU_STEP_AHEAD = 4
};

/* Memory that a later kernel reads and that nobody writes. */
typedef struct sl_cu_ahead {
    const uint8_t *data;
    size_t n_bytes;
} sl_cu_ahead;

/* y_i = W_i a for every target, for n_rows activations a: rows of q8 or, where norm is given, the
 * norm of x[n_rows][n_cols].
 * With add there is one target, and y = y + W a (flags as in sl_cu_add).
 * With swiglu there are two targets of one shape, gate and up; their results go nowhere but into
 * act = silu(gate) * up, unless that is NULL, and rounded into act_q8. */
typedef struct sl_cu_step {
    uint32_t n_rows, n_cols;
    sl_cu_q8 q8;
    const float *x, *norm;
    float eps;
    uint32_t n_targets;
    sl_cu_target targets[SL_CU_STEP_TARGETS];
    int add;
    uint32_t *flags, mark;
    int swiglu;
    float *act;
    sl_cu_q8 act_q8;
    sl_cu_ahead ahead[SL_CU_STEP_AHEAD];
} sl_cu_step;

/* Whether it can be done in one kernel: few rows, quantised weights, and room in shared memory. */
int sl_cu_step_fits(const sl_cu_queue *queue, const sl_cu_step *step);
void sl_cu_run_step(const sl_cu_queue *queue, const sl_cu_step *step);

/* The same for one row, and plain weights. */
int sl_cu_row_fits(const sl_cu_step *step);
void sl_cu_run_row(const sl_cu_queue *queue, const sl_cu_step *step);

/* The same for one target with very many rows. */
int sl_cu_head_fits(const sl_cu_step *step);
void sl_cu_run_head(const sl_cu_queue *queue, const sl_cu_step *step);
/* The same for more than SL_CU_NORM_ROWS rows. */
int sl_cu_batch_head_fits(const sl_cu_queue *queue, const sl_cu_step *step);
void sl_cu_run_batch_head(const sl_cu_queue *queue, const sl_cu_step *step);

/* ---- both ends of a run ---- */

/* Goes before all other kernels, and the one after it may not overlap with it, but see sl_cu_queue:
 * what it copies is what they look up before they wait for each other. Copies what the host says to
 * the device, clears the flags, and makes x[n_rows][n_cols]: rows of the table or, where tokens is
 * NULL, rows that the host has made. All but table, to, flags and x is memory of the host. */
typedef struct sl_cu_begin {
    const void *from;
    void *to;
    uint32_t n_words; /* of 16 bytes */
    uint32_t n_rows, n_cols;
    const int32_t *tokens;
    sl_cu_matrix table;
    const float *embedded;
    float *x;
    uint32_t *flags;
} sl_cu_begin;
void sl_cu_begin_run(const sl_cu_queue *queue, const sl_cu_begin *begin);

/* Short lists of n rows of logits: keys[n][SL_CU_LISTED] and their counts (0: no list could be
 * made); flags[rows[i]] = mark for a row that is not finite, unless it has one. Then all flags go
 * to host_flags[n_rows]. */
enum { SL_CU_LISTED = SL_SHORTLIST_TOKENS };
typedef struct sl_cu_shortlists {
    uint32_t n, vocab;
    const float *logits;
    uint32_t *groups; /* scratch of sl_cu_group_bytes */
    const uint32_t *rows;
    uint32_t *flags, mark, n_rows;
    uint64_t *keys;                /* the host's */
    uint32_t *counts, *host_flags; /* the host's */
    uint32_t *done;                /* [n], the host's: becomes 1 when all of a row is there */
} sl_cu_shortlists;
size_t sl_cu_group_bytes(uint32_t n, uint32_t vocab);
void sl_cu_make_shortlists(const sl_cu_queue *queue, const sl_cu_shortlists *lists);

/* ---- products of many rows, and what lies around them ---- */

enum { SL_CU_MANY_TARGETS = 4, SL_CU_MANY_BLOCKS = 4 };

/* y_i = W_i a for every target, for n_rows activations a. With flags the results are added to what
 * lies there, and rows with a value that is not finite get flags[row] = mark unless they have one.
 * With swiglu there are two targets of one shape, gate and up, whose results go nowhere but, as
 * silu(gate) * up, into act_q8. */
typedef struct sl_cu_many {
    uint32_t n_rows;
    sl_cu_q8 q8;
    float *scales; /* sl_cu_many_scales floats, for q8.d in the order in which it is read ... */
    int scales_are_there; /* ... where it lies already */
    uint32_t n_targets;
    sl_cu_target targets[SL_CU_MANY_TARGETS];
    uint32_t *flags;
    uint32_t mark;
    int swiglu;
    sl_cu_q8 act_q8;
    float *act_scales; /* of act_q8, or NULL; whole where n_blocks is of SL_CU_MANY_BLOCKS */
    sl_cu_groups groups;
} sl_cu_many;

size_t sl_cu_many_scales(uint32_t n_rows, uint32_t n_blocks);

/* Whether the device and the weights suit it. */
int sl_cu_many_fits(const sl_cu_many *many);
void sl_cu_run_many(const sl_cu_queue *queue, const sl_cu_many *many);

/* ---- gated delta layer, section 6 ---- */

typedef struct sl_cu_gdn {
    uint32_t index, n_key_heads, n_value_heads, tiled;
    uint32_t n_conv_rows, n_channels, layer_floats; /* of one layer of a tape page */
    const float *conv, *a_coef, *dt, *norm;
    float eps;
    const float *qkv, *z, *a, *b;
    float *y;
    int keeps_y; /* y is read as floats; else only its rounding counts */
    sl_cu_q8 yq;
    void *chunks; /* scratch of sl_cu_gdn_chunk_bytes */
} sl_cu_gdn;
size_t sl_cu_gdn_chunk_bytes(uint32_t n_chunks, uint32_t n_key_heads, uint32_t n_value_heads);
/* One after the other: chunks from the projections; the rule, whose outputs go to y; their gated
 * norm and rounding. */
void sl_cu_gdn_prepare(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn);
void sl_cu_gdn_rule(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn);
void sl_cu_gdn_finish(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn);
/* All three when every segment has one row; no scratch is needed. */
void sl_cu_gdn_step(const sl_cu_queue *queue, const sl_cu_rows *rows, const sl_cu_gdn *gdn);

/* ---- attention, section 7 ---- */

enum {
    SL_CU_KEY_BLOCK = 256, /* keys of one softmax block, at absolute positions */
    SL_CU_SPLIT_ROWS = 16  /* up to so many rows a segment, key blocks are computed apart */
};

typedef struct sl_cu_attention {
    uint32_t index, n_heads, n_kv_heads, kv_f32, n_pairs;
    const float *q_norm, *k_norm, *inv_freq;
    float eps, rope_scale;
    size_t kv_head_bytes;
    const float *q, *k, *v;
    float *y;
    int keeps_y; /* y is read as floats; else only its rounding counts */
    sl_cu_q8 yq;
    uint32_t n_key_blocks; /* at least as many as a row of the run sees */
    float *scratch;        /* of sl_cu_attention_scratch floats */
    /* Set by sl_cu_attention_layer: whose key blocks are computed apart, those of prompts or of few
     * rows, and which of them. */
    int tiles_apart;
    uint32_t first_part, n_parts;
} sl_cu_attention;
/* n_rows, n_split_rows: as in sl_cu_rows. */
size_t sl_cu_attention_scratch(const sl_cu_queue *queue, uint32_t n_rows, uint32_t n_split_rows,
                               uint32_t n_heads, uint32_t n_kv_heads, uint32_t n_key_blocks);
void sl_cu_attention_layer(const sl_cu_queue *queue, const sl_cu_rows *rows,
                           const sl_cu_attention *a);

/* ---- mixture of experts, section 8 ---- */

enum { SL_CU_MOST_EXPERTS = 4096 };

/* logits [n_rows][n]; ids and weights [n_rows][top_k] */
void sl_cu_route(const sl_cu_queue *queue, const float *logits, uint32_t n_rows, uint32_t n,
                 uint32_t top_k, uint32_t *ids, float *weights, uint32_t *flags, uint32_t mark);

/* Pairs of a row and a chosen expert, n_pairs of them (pair / top_k is the row), brought together
 * by expert, in groups of group_rows places. */
typedef struct sl_cu_grouping {
    uint32_t n_pairs, n_experts, group_rows;
    const uint32_t *ids; /* [n_pairs] */
    uint32_t *place;     /* [n_pairs] of each pair */
    uint32_t *pair;      /* [room] its inverse, 2^32 - 1 where there is none */
    uint32_t *stack;     /* [sl_cu_most_groups] the expert of each group */
    uint32_t *n_groups;
    uint32_t *counts; /* [n_experts], scratch */
} sl_cu_grouping;
uint32_t sl_cu_most_groups(uint32_t n_pairs, uint32_t n_experts, uint32_t group_rows);
void sl_cu_group_pairs(const sl_cu_queue *queue, const sl_cu_grouping *g);
/* The rows of the pairs to their places: codes, scales and, unless to->sums is NULL, sums. */
void sl_cu_gather_pairs(const sl_cu_queue *queue, const sl_cu_grouping *g, uint32_t top_k,
                        const sl_cu_q8 *from, const sl_cu_q8 *to);

/* y[row] = sum over slots ascending of weights[pair] * down[place[pair]] (NULL: the pair itself) */
void sl_cu_combine(const sl_cu_queue *queue, const float *down, const uint32_t *place,
                   const float *weights, uint32_t n_rows, uint32_t top_k, uint32_t n, float *y);

/* The feed-forward part for one row: the router's logits and the choice of top_k experts; x_out =
 * x_out + y, where y is the sum over the choices in order of weight * down(silu(gate x) * (up x))
 * and, where there is a shared expert (shared_down.data), sigmoid of its logit times what that
 * makes of x. x_f32 and x are the same row. All vectors but those are scratch: logits [experts],
 * shared_logit [1], act [top_k], shared_act [1]. x_out has been written before the last kernel but
 * one began. */
typedef struct sl_cu_experts {
    uint32_t top_k;
    const float *x_f32;
    sl_cu_q8 x, act, shared_act;
    float *logits, *shared_logit, *x_out;
    sl_cu_matrix router, gate, up, down, shared_logit_w, shared_gate, shared_up, shared_down;
    uint32_t *flags, route_mark, mark; /* as in sl_cu_add; route_mark: logits are not finite */
} sl_cu_experts;
int sl_cu_experts_fit(const sl_cu_queue *queue, const sl_cu_experts *e);
void sl_cu_run_experts(const sl_cu_queue *queue, const sl_cu_experts *e);

/* ---- ceilings: loops that do one thing ---- */

/* n_units is the number of multiprocessors; out is some device memory. The last two return how many
 * operations they do. */
void sl_cu_read_ceiling(cudaStream_t stream, const void *data, size_t n_bytes, uint32_t n_units,
                        uint32_t *out);
double sl_cu_int8_ceiling(cudaStream_t stream, uint32_t n_units, uint32_t n_rounds, uint32_t *out);
double sl_cu_tf32_ceiling(cudaStream_t stream, uint32_t n_units, uint32_t n_rounds, uint32_t *out);

#ifdef __cplusplus
}
#endif

#endif
