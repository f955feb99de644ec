/* The vocabulary of a plan: ops, the values that flow between them, and what one run supplies.
 *
 * An op is coarse (one line of the forward pass) and is plain data: the same record is executed by
 * every backend, listed by `sluice run --plan`, timed by `sluice profile` and checked by tests. A
 * plan holds no token, position or sequence; those come with each run (sl_run), so that one plan
 * serves every step and a short prompt never pays for padding. */
#ifndef SL_PLAN_OP_H
#define SL_PLAN_OP_H

#include "base/err.h"
#include "format/dtype.h"
#include "plan/dims.h"

/* ---- weights as the ops see them ---- */

/* n_stack matrices of n_rows rows of n_cols elements (1 but for experts). A row is one output's
 * weights. The bytes may lie in a mapped file at any alignment. data NULL = absent. */
typedef struct sl_matrix {
    const uint8_t *data;
    sl_dtype dtype;
    uint32_t n_rows;
    uint32_t n_cols;
    size_t row_bytes;
    uint32_t n_stack;
    size_t stack_bytes; /* from one matrix of the stack to the next */
    /* The form that the backend computes with, its own affair; NULL = the rows as they lie. */
    const void *packed;
} sl_matrix;

static inline const uint8_t *sl_matrix_row(const sl_matrix *m, uint32_t stack, size_t row)
{
    return m->data + stack * m->stack_bytes + row * m->row_bytes;
}

/* ---- values ---- */

/* A value is a buffer of n_cols per row of the run, in one of these forms. */
typedef enum sl_form {
    SL_FORM_F32,
    SL_FORM_Q8, /* int8 codes, a float scale per 32, an int16 code sum per 16 */
    SL_FORM_U32
} sl_form;

typedef uint16_t sl_value; /* index into the plan's values */
enum { SL_NO_VALUE = 0xFFFF, SL_OP_MAX_IN = 4, SL_OP_MAX_OUT = 6 };

/* A Q8 value of `capacity` rows: three arrays one after the other. */
typedef struct sl_q8_rows {
    int8_t *q;     /* [capacity][n_padded] */
    float *d;      /* [capacity][n_blocks] */
    int16_t *sums; /* [capacity][2 * n_blocks] */
    size_t n_padded, n_blocks;
} sl_q8_rows;

/* ---- ops ---- */

/* X(NAME, "name", "inputs", "outputs", "synopsis"). Outputs after a '|' are scratch of the op
 * itself. A missing optional operand is SL_NO_VALUE. Where an output is given twice (y, yq), the
 * op leaves its result as floats and, when a projection that follows reads them, as int8 blocks. */
#define SL_OPS(X) \
    X(EMBED, "embed", "", "x", "x = E[token]") \
    X(NORM, "norm", "x", "y yq", "y = x / rms(x) * w") \
    X(PROJECT, "project", "x", "y", "y = W x") \
    X(GDN, "gdn", "qkv z a b", "y yq | c beta g", \
      "conv, gates, gated delta rule, gated norm; advances the state") \
    X(ATTENTION, "attention", "q k v", "y yq", \
      "q/k norm, rope, append to KV, softmax attention, output gate") \
    X(SWIGLU, "swiglu", "gate up", "y yq", "y = silu(gate) * up") \
    X(ADD, "add", "x y", "x", "x = x + y") \
    X(ROUTE, "route", "logits", "ids weights | scratch", "top-k experts and their weights") \
    X(EXPERTS, "experts", "x ids weights", "y | gate up act down order", \
      "y = sum over the chosen experts of w * down(silu(gate x) * up x)") \
    X(ADD_GATED, "add_gated", "x gate y", "x", "x = x + sigmoid(gate) * y") \
    X(MTP_INPUT, "mtp_input", "x", "y yq", "y = [norm(x), norm(hidden state of the run)]") \
    X(KEEP, "keep", "x", "", "copies x to the run's hidden-state rows, when it asks for them") \
    X(HEAD, "head", "x", "", "logits of the rows that the run asks for")

typedef enum sl_op_kind {
#define SL_OP_ENUM(name, text, in, out, synopsis) SL_OP_##name,
    SL_OPS(SL_OP_ENUM)
#undef SL_OP_ENUM
        SL_OP_KIND_COUNT
} sl_op_kind;

typedef struct sl_norm_args {
    const float *w; /* [n_cols] */
    float eps;
} sl_norm_args;

typedef struct sl_gdn_args {
    uint32_t index; /* which gated delta layer of the state */
    uint32_t n_key_heads, n_value_heads;
    bool tiled;          /* value head h uses key head h mod n_key_heads, else h / ratio */
    const float *conv;   /* [channels][4] */
    const float *a_coef; /* [n_value_heads], -exp(A_log) */
    const float *dt;     /* [n_value_heads] */
    const float *norm;   /* [128] */
    float eps;
} sl_gdn_args;

typedef struct sl_attention_args {
    uint32_t index; /* which KV layer of the state */
    uint32_t n_heads, n_kv_heads;
    const float *q_norm, *k_norm; /* [256] */
    float eps;
    const float *inv_freq; /* [n_pairs] */
    uint32_t n_pairs;      /* rotated pairs (i, i + n_pairs) */
    float rope_scale;      /* of cos and sin, 1 without YaRN */
} sl_attention_args;

typedef struct sl_experts_args {
    sl_matrix gate, up, down; /* stacks */
    uint32_t top_k;
} sl_experts_args;

typedef struct sl_mtp_input_args {
    const float *x_norm, *hidden_norm; /* [n_cols / 2] */
    float eps;
} sl_mtp_input_args;

typedef struct sl_op {
    sl_op_kind kind;
    int layer;       /* -1 outside the layers */
    const char *tap; /* name of in[0] or out[0] shown to observers after the op, or NULL */
    sl_value in[SL_OP_MAX_IN];
    sl_value out[SL_OP_MAX_OUT];
    union {
        sl_matrix matrix; /* EMBED, PROJECT, HEAD */
        sl_norm_args norm;
        sl_gdn_args gdn;
        sl_attention_args attention;
        uint32_t top_k; /* ROUTE */
        sl_experts_args experts;
        sl_mtp_input_args mtp_input;
    } args;
} sl_op;

/* ---- the state of a sequence as the ops see it ---- */

/* How the blocks of a state are laid out; fixed by the model and the engine's options.
 *   border     [n_gdn][n_value_heads][128 key][128 value] floats
 *   tape page  per gated delta layer: k [n_key_heads][16][128], u [n_value_heads][16][128],
 *              g [n_value_heads][16], floats
 *   conv rows  [n_gdn][n_conv_rows][n_channels] floats; position p lies in row p mod n_conv_rows
 *   KV page    per KV layer: K [n_kv_heads][256][64], V [n_kv_heads][64][256], halves or floats */
typedef struct sl_state_shape {
    uint32_t n_gdn, n_key_heads, n_value_heads, n_channels, n_conv_rows;
    uint32_t n_kv, n_kv_heads;
    bool kv_f32;
    bool gdn_serial; /* see sl_engine_params */
} sl_state_shape;

size_t sl_shape_border_floats(const sl_state_shape *shape);
size_t sl_shape_tape_layer_floats(const sl_state_shape *shape); /* of one layer in one page */
size_t sl_shape_tape_floats(const sl_state_shape *shape);
size_t sl_shape_conv_floats(const sl_state_shape *shape);
size_t sl_shape_kv_head_bytes(const sl_state_shape *shape); /* of K or V of one head in a page */
size_t sl_shape_kv_bytes(const sl_state_shape *shape);

/* The rows of one sequence in a run. Number the chunks that the rows touch m = 0, 1, ...: chunk 0
 * holds position `pos`. The state at the end of chunk m - 1 is border m; only the last two borders
 * and the tapes of the last two chunks survive a run, so they alternate between two places.
 *
 * With gdn_serial, border_out[0] is the state at pos before the run (whatever it holds at pos 0)
 * and the one after its rows afterwards, and the tapes, one for all chunks, are room for keys and
 * decays. */
typedef struct sl_segment {
    uint32_t pos;       /* position of its first row = tokens already in the sequence */
    uint32_t first_row; /* its rows in the run */
    uint32_t n_rows;
    const float *border;                 /* state at the border before pos; NULL = zeros */
    float *border_out[2];                /* border m >= 1 is written to [m & 1] */
    float *tape[3][SL_TAPE_CHUNK_PAGES]; /* pages of chunk 0, then of m >= 1 at [1 + (m & 1)] */
    float *conv;
    void *const *kv_pages; /* page p holds positions p * SL_KV_PAGE onward */
} sl_segment;

/* ---- one run of a plan ---- */

/* What an op took, added up over runs. A region is a piece of work that is spread over the threads;
 * an op has some of them, one after the other. */
typedef struct sl_op_record {
    uint64_t calls;
    uint64_t wall_ns;    /* from the op's beginning to its end */
    uint64_t busy_ns;    /* of all threads together, inside of regions */
    uint64_t longest_ns; /* of the region's busiest thread, over all regions */
} sl_op_record;

/* The first row of a segment where an activation was not finite. */
typedef struct sl_fault {
    bool found;
    int layer;
    uint32_t pos;
    const char *op;
} sl_fault;

/* The first tokens of a row of logits in the order in which sampling ranks them: logit descending,
 * id ascending. A key is the logit's bits, mapped so that unsigned order is descending value (-0
 * counts as +0), above the 32 bits of the id. Every token that is not listed comes after the last
 * one that is. */
typedef struct sl_shortlist {
    uint32_t n; /* 0: none was made */
    uint64_t keys[SL_SHORTLIST_TOKENS];
} sl_shortlist;

typedef struct sl_run {
    uint32_t n_rows;            /* at most the plan's capacity */
    const int32_t *tokens;      /* [n_rows] */
    const sl_segment *segments; /* in order, covering the rows */
    uint32_t n_segments;
    const uint32_t *logit_rows; /* rows whose logits are wanted, ascending */
    uint32_t n_logit_rows;
    float *const *logits; /* [n_logit_rows], each [vocabulary]; NULL = the backend keeps it */
    /* Rows that the backend keeps until the next evaluation, which may be several runs: those of
     * this run go to the places first_kept, first_kept + 1, ... of n_kept in all. */
    uint32_t first_kept, n_kept;
    sl_shortlist *shortlists; /* [n_kept], those of the rows that are kept are filled */
    const float *hidden_in;   /* MTP plans: [n_rows][hidden] */
    float *const *hidden_out; /* [n_rows], each [hidden] after the final norm or NULL; or NULL */
    sl_fault *faults;         /* [n_segments], cleared by the caller, filled by the backend */
    uint8_t *row_flags;       /* [n_rows], zeroed; the backend's, for finding faults */
    sl_tap_fn tap;            /* or NULL */
    void *tap_context;
    sl_op_record *records; /* [ops of the plan], added to; or NULL */
} sl_run;

#endif
