/* The weights of a model, bound by name, as the forward pass wants them. Matrices are views of the
 * mapped file (or of rearranged copies); vectors are float32 and owned by the model.
 *
 * Shapes are written [rows x columns], a row being one output's weights. H hidden, V vocab, F
 * feed-forward, E experts, Hq and Hkv attention heads, nk and nv key and value heads of gated delta
 * layers, C = (2 nk + nv) * 128 their channels. */
#ifndef SL_MODEL_MODEL_H
#define SL_MODEL_MODEL_H

#include "model/config.h"
#include "plan/op.h"

typedef struct sl_attention_weights {
    sl_matrix q;         /* [Hq * 512 x H]: per head 256 rows of query, then 256 rows of gate */
    sl_matrix k;         /* [Hkv * 256 x H] */
    sl_matrix v;         /* [Hkv * 256 x H] */
    sl_matrix o;         /* [H x Hq * 256] */
    const float *q_norm; /* [256] */
    const float *k_norm; /* [256] */
} sl_attention_weights;

typedef struct sl_gdn_weights {
    sl_matrix qkv;       /* [C x H]: nk * 128 rows of q, nk * 128 of k, nv * 128 of v */
    sl_matrix z;         /* [nv * 128 x H] */
    sl_matrix a;         /* [nv x H], alpha: the decay's input */
    sl_matrix b;         /* [nv x H], beta: the write strength's input */
    const float *conv;   /* [C][4], the last tap is the current token's */
    const float *a_coef; /* [nv], -exp(A_log) */
    const float *dt;     /* [nv] */
    const float *norm;   /* [128], shared by the heads */
    sl_matrix out;       /* [H x nv * 128] */
} sl_gdn_weights;

/* gate, up and down are the dense feed-forward or, with a router, the shared expert (F is then
 * shared_ffn). Router and shared_gate_row are always of a float type. */
typedef struct sl_ffn_weights {
    sl_matrix gate;            /* [F x H] */
    sl_matrix up;              /* [F x H] */
    sl_matrix down;            /* [H x F] */
    sl_matrix router;          /* [E x H] */
    sl_matrix gate_exps;       /* E stacked [Fe x H] */
    sl_matrix up_exps;         /* E stacked [Fe x H] */
    sl_matrix down_exps;       /* E stacked [H x Fe] */
    sl_matrix shared_gate_row; /* [1 x H] */
} sl_ffn_weights;

typedef struct sl_layer {
    sl_layer_kind kind;
    const float *attn_norm; /* [H], before the mixer */
    const float *post_norm; /* [H], before the feed-forward */
    union {                 /* by kind */
        sl_attention_weights attention;
        sl_gdn_weights gdn;
    };
    sl_ffn_weights ffn;
} sl_layer;

typedef struct sl_mtp_weights {
    const float *enorm;    /* [H], of the embedding */
    const float *hnorm;    /* [H], of the hidden state */
    sl_matrix eh_proj;     /* [H x 2H], columns of the embedding first */
    sl_layer layer;        /* an attention layer */
    const float *norm;     /* [H]; the model's output_norm when the file has no own one */
    sl_matrix embed, head; /* [V x H]; the model's unless the file has own ones */
} sl_mtp_weights;

typedef struct sl_model {
    sl_config config;
    sl_matrix embed;          /* [V x H] */
    const float *output_norm; /* [H] */
    sl_matrix head;           /* [V x H]; the embedding when tied */
    sl_layer *layers;         /* [config.n_layers] */
    bool has_mtp;
    sl_mtp_weights *mtp; /* NULL without MTP */

    /* Blocks behind vectors and rearranged matrices. */
    void **owned;
    size_t n_owned, owned_capacity;
    size_t owned_bytes;
} sl_model;

/* weights must stay open as long as the model lives. Every tensor is checked for shape and type;
 * the sentence names tensor, found and expected shape, and file. A missing MTP block is no error:
 * has_mtp is false. Errors: SL_ERR_FORMAT, SL_ERR_UNSUPPORTED, SL_ERR_IO, SL_ERR_MEMORY. */
sl_status sl_model_bind(const sl_weights *weights, const sl_config *config, sl_model **out,
                        sl_error *err);

/* The same checks and shapes, but matrices that would have to be rearranged have no content: for
 * recording and measuring plans, not for running them. owned_bytes is what sl_model_bind takes. */
sl_status sl_model_measure(const sl_weights *weights, const sl_config *config, sl_model **out,
                           sl_error *err);
/* Whether that is such a matrix. */
bool sl_model_has_no_rows(const sl_matrix *matrix);
void sl_model_free(sl_model *model);

/* Calls visit for every matrix that products read, in the order of the forward pass; the table that
 * embeddings are read from is not among them unless it is the head as well. Stops at the first
 * error. A head that the draft block shares is visited once, and its `packed` copied. */
typedef sl_status (*sl_matrix_visit)(void *context, sl_matrix *matrix, sl_error *err);
sl_status sl_model_visit(sl_model *model, sl_matrix_visit visit, void *context, sl_error *err);

/* Frees the rows of a rearranged matrix, which must not be read any more; false when its rows are
 * the file's. */
bool sl_model_release(sl_model *model, sl_matrix *matrix);

#endif
