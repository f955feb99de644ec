/* Finds the tensors of a model by name, in the vocabulary of GGUF files and in that of Hugging Face
 * folders, checks every shape, and brings what differs between files into one form: fused tensors
 * become views of their parts, interleaved and per-expert ones are gathered into owned memory,
 * vectors become float32 with the conventions of GGUF (norm weights with their 1, -exp(A_log)).
 *
 * Refused: missing tensors (with the reason), other shapes, ssm_ba in files of Qwen3.5 (there its
 * rows may be in either of two orders). Tensors that nothing asks for are ignored. */
#include "model/model.h"

#include <stdio.h>

#include "base/dmath.h"
#include "base/log.h"

/* ---- names ---- */

enum role {
    EMBED,
    OUTPUT_NORM,
    HEAD,
    ATTN_NORM,
    POST_NORM,
    ATTN_Q,
    ATTN_K,
    ATTN_V,
    ATTN_O,
    ATTN_Q_NORM,
    ATTN_K_NORM,
    ATTN_FUSED_QKV,
    GDN_QKV,
    GDN_Z,
    GDN_FUSED_QKVZ,
    GDN_A,
    GDN_B,
    GDN_FUSED_BA,
    GDN_CONV,
    GDN_A_COEF,
    GDN_DT,
    GDN_DT_SHORT,
    GDN_NORM,
    GDN_OUT,
    FFN_GATE,
    FFN_UP,
    FFN_DOWN,
    ROUTER,
    EXPERTS_GATE,
    EXPERTS_UP,
    EXPERTS_DOWN,
    EXPERTS_GATE_UP,
    SHARED_GATE_ROW,
    SHARED_GATE,
    SHARED_UP,
    SHARED_DOWN,
    MTP_ENORM,
    MTP_HNORM,
    MTP_EH_PROJ,
    MTP_NORM,
    MTP_EMBED,
    MTP_HEAD,
    ROLE_COUNT
};

/* After the prefix of the block; NULL = the container never has it. */
static const struct role_names {
    const char *gguf, *hf;
} roles[ROLE_COUNT] = {
    [EMBED] = {"token_embd.weight", "embed_tokens.weight"},
    [OUTPUT_NORM] = {"output_norm.weight", "norm.weight"},
    [HEAD] = {"output.weight", "lm_head.weight"},
    [ATTN_NORM] = {"attn_norm.weight", "input_layernorm.weight"},
    [POST_NORM] = {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    [ATTN_Q] = {"attn_q.weight", "self_attn.q_proj.weight"},
    [ATTN_K] = {"attn_k.weight", "self_attn.k_proj.weight"},
    [ATTN_V] = {"attn_v.weight", "self_attn.v_proj.weight"},
    [ATTN_O] = {"attn_output.weight", "self_attn.o_proj.weight"},
    [ATTN_Q_NORM] = {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    [ATTN_K_NORM] = {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    [ATTN_FUSED_QKV] = {"attn_qkv.weight", NULL},
    [GDN_QKV] = {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    [GDN_Z] = {"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    [GDN_FUSED_QKVZ] = {"ssm_in.weight", "linear_attn.in_proj_qkvz.weight"},
    [GDN_A] = {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    [GDN_B] = {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    [GDN_FUSED_BA] = {"ssm_ba.weight", "linear_attn.in_proj_ba.weight"},
    [GDN_CONV] = {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    [GDN_A_COEF] = {"ssm_a", "linear_attn.A_log"},
    [GDN_DT] = {"ssm_dt.bias", "linear_attn.dt_bias"},
    [GDN_DT_SHORT] = {"ssm_dt", NULL},
    [GDN_NORM] = {"ssm_norm.weight", "linear_attn.norm.weight"},
    [GDN_OUT] = {"ssm_out.weight", "linear_attn.out_proj.weight"},
    [FFN_GATE] = {"ffn_gate.weight", "mlp.gate_proj.weight"},
    [FFN_UP] = {"ffn_up.weight", "mlp.up_proj.weight"},
    [FFN_DOWN] = {"ffn_down.weight", "mlp.down_proj.weight"},
    [ROUTER] = {"ffn_gate_inp.weight", "mlp.gate.weight"},
    [EXPERTS_GATE] = {"ffn_gate_exps.weight", NULL},
    [EXPERTS_UP] = {"ffn_up_exps.weight", NULL},
    [EXPERTS_DOWN] = {"ffn_down_exps.weight", "mlp.experts.down_proj"},
    [EXPERTS_GATE_UP] = {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj"},
    [SHARED_GATE_ROW] = {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    [SHARED_GATE] = {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    [SHARED_UP] = {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    [SHARED_DOWN] = {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    [MTP_ENORM] = {"nextn.enorm.weight", "pre_fc_norm_embedding.weight"},
    [MTP_HNORM] = {"nextn.hnorm.weight", "pre_fc_norm_hidden.weight"},
    [MTP_EH_PROJ] = {"nextn.eh_proj.weight", "fc.weight"},
    [MTP_NORM] = {"nextn.shared_head_norm.weight", "norm.weight"},
    [MTP_EMBED] = {"nextn.embed_tokens.weight", NULL},
    [MTP_HEAD] = {"nextn.shared_head_head.weight", NULL},
};

typedef struct binder {
    const sl_weights *weights;
    const sl_config *config;
    sl_model *model;
    char prefix[96]; /* of the block being bound: "blk.3." */
    char name[192];  /* scratch of name_of */
    bool measure;    /* only count what rearranged matrices would take */
    uint32_t n_low_bit;
    char low_bit[256]; /* the first of them */
    sl_error *err;
} binder;

static bool is_gguf(const binder *b)
{
    return b->config->hf_names == NULL;
}

/* NULL when the container never has it; valid until the next call. */
static const char *name_of(binder *b, enum role role)
{
    const char *suffix = is_gguf(b) ? roles[role].gguf : roles[role].hf;
    if (!suffix)
        return NULL;
    snprintf(b->name, sizeof b->name, "%s%s", b->prefix, suffix);
    return b->name;
}

static bool has(binder *b, enum role role)
{
    const char *name = name_of(b, role);
    return name && sl_weights_has(b->weights, name);
}

/* ---- tensors of a known shape ---- */

typedef struct shape {
    uint32_t n_dims;
    uint64_t ne[4]; /* contiguous first */
} shape;

/* "[1024, 64]", in the order of the container's own tools. */
static void describe_shape(const binder *b, uint32_t n_dims, const uint64_t ne[4], char text[96])
{
    size_t n = (size_t)snprintf(text, 96, "[");
    for (uint32_t i = 0; i < n_dims; i++) {
        uint64_t extent = ne[is_gguf(b) ? i : n_dims - 1 - i];
        n +=
            (size_t)snprintf(text + n, 96 - n, "%s%llu", i ? ", " : "", (unsigned long long)extent);
    }
    snprintf(text + n, 96 - n, "]");
}

/* Extents of 1 at the end do not count: a file may leave them out or add them. */
static bool same_shape(const sl_tensor *tensor, const shape *expected)
{
    for (uint32_t i = 0; i < 4; i++) {
        if (tensor->ne[i] != (i < expected->n_dims ? expected->ne[i] : 1))
            return false;
    }
    return true;
}

static sl_status find(binder *b, const char *name, const shape *expected, const sl_tensor **out)
{
    *out = sl_weights_find(b->weights, name);
    if (!*out) {
        char why[256];
        sl_weights_why_missing(b->weights, name, why, sizeof why);
        if (sl_weights_has(b->weights, name))
            return sl_fail(b->err, SL_ERR_UNSUPPORTED, "%s: tensor %s %s",
                           sl_weights_path(b->weights), name, why);
        return sl_fail(b->err, SL_ERR_FORMAT, "tensor %s %s", name, why);
    }
    if (same_shape(*out, expected))
        return SL_OK;
    char found_text[96], expected_text[96];
    describe_shape(b, (*out)->n_dims, (*out)->ne, found_text);
    describe_shape(b, expected->n_dims, expected->ne, expected_text);
    return sl_fail(b->err, SL_ERR_FORMAT, "%s: tensor %s has shape %s, expected %s", (*out)->file,
                   name, found_text, expected_text);
}

/* Readers of files have made sure that the bytes are whole rows; no extent of a shape that was
 * found is 0. */
static size_t row_bytes_of(const sl_tensor *tensor)
{
    return tensor->n_bytes / (tensor->ne[1] * tensor->ne[2]);
}

/* n_stack matrices [n_rows x n_cols] under one name. */
static sl_status find_stack(binder *b, const char *name, uint32_t n_stack, uint32_t n_rows,
                            uint32_t n_cols, sl_matrix *out)
{
    const shape expected = {n_stack > 1 ? 3 : 2, {n_cols, n_rows, n_stack, 1}};
    const sl_tensor *tensor;
    SL_TRY(find(b, name, &expected, &tensor));
    const size_t n_bytes = row_bytes_of(tensor);
    *out = (sl_matrix){.data = tensor->data,
                       .dtype = tensor->dtype,
                       .n_rows = n_rows,
                       .n_cols = n_cols,
                       .row_bytes = n_bytes,
                       .n_stack = n_stack,
                       .stack_bytes = n_bytes * n_rows};
    return SL_OK;
}

static sl_status stack(binder *b, enum role role, uint32_t n_stack, uint32_t n_rows,
                       uint32_t n_cols, sl_matrix *out)
{
    return find_stack(b, name_of(b, role), n_stack, n_rows, n_cols, out);
}

static sl_status matrix(binder *b, enum role role, uint32_t n_rows, uint32_t n_cols, sl_matrix *out)
{
    return stack(b, role, 1, n_rows, n_cols, out);
}

/* Rows [first, first + n) of every matrix of a stack. */
static sl_matrix rows_of(const sl_matrix *m, uint32_t first, uint32_t n)
{
    sl_matrix view = *m;
    view.data += first * m->row_bytes;
    view.n_rows = n;
    return view;
}

/* ---- owned memory ---- */

static sl_status own(binder *b, size_t n_bytes, void **out)
{
    sl_model *model = b->model;
    *out = NULL;
    if (model->n_owned == model->owned_capacity) {
        size_t capacity = model->owned_capacity ? model->owned_capacity * 2 : 64;
        void **owned = sl_realloc(SL_MEM_WEIGHTS, model->owned, capacity * sizeof *owned);
        if (owned) {
            model->owned = owned;
            model->owned_capacity = capacity;
        }
    }
    if (model->n_owned < model->owned_capacity)
        *out = sl_alloc(SL_MEM_WEIGHTS, n_bytes);
    if (!*out)
        return sl_fail(b->err, SL_ERR_MEMORY, "%s: out of memory for %zu bytes of weights",
                       sl_weights_path(b->weights), n_bytes);
    model->owned[model->n_owned++] = *out;
    model->owned_bytes += n_bytes;
    return SL_OK;
}

/* Where the rows of a converted matrix would be; never read. */
static const uint8_t no_rows[1];

bool sl_model_has_no_rows(const sl_matrix *matrix)
{
    return matrix->data == no_rows;
}

/* A stack of the given extents with room for its rows. When only measuring there is none, and *data
 * is NULL. */
static sl_status own_stack(binder *b, sl_dtype dtype, size_t n_row_bytes, uint32_t n_stack,
                           uint32_t n_rows, uint32_t n_cols, sl_matrix *out, uint8_t **data)
{
    size_t stack_bytes, n_bytes;
    if (!sl_size_mul(n_row_bytes, n_rows, &stack_bytes) ||
        !sl_size_mul(stack_bytes, n_stack, &n_bytes))
        return sl_fail(b->err, SL_ERR_LIMIT, "%s: a stack of matrices is too large",
                       sl_weights_path(b->weights));
    void *block = NULL;
    if (b->measure)
        b->model->owned_bytes += n_bytes;
    else
        SL_TRY(own(b, n_bytes, &block));
    *data = block;
    *out = (sl_matrix){.data = block ? block : no_rows,
                       .dtype = dtype,
                       .n_rows = n_rows,
                       .n_cols = n_cols,
                       .row_bytes = n_row_bytes,
                       .n_stack = n_stack,
                       .stack_bytes = stack_bytes};
    return SL_OK;
}

static sl_status read_floats(binder *b, const char *name, const shape *expected, size_t n,
                             float **out)
{
    const sl_tensor *tensor;
    void *block;
    SL_TRY(find(b, name, expected, &tensor));
    SL_TRY(own(b, n * sizeof(float), &block));
    *out = block;
    sl_dequantise(tensor->dtype, tensor->data, *out, n);
    return SL_OK;
}

/* n floats exactly as stored. */
static sl_status vector(binder *b, enum role role, uint32_t n, float **out)
{
    const shape expected = {1, {n, 1, 1, 1}};
    return read_floats(b, name_of(b, role), &expected, n, out);
}

/* The factors of an RMS norm. */
static sl_status norm(binder *b, enum role role, uint32_t n, const float **out)
{
    float *w;
    SL_TRY(vector(b, role, n, &w));
    if (b->config->norm_plus_one) {
        for (uint32_t i = 0; i < n; i++)
            w[i] += 1.0f;
    }
    *out = w;
    return SL_OK;
}

/* A small matrix whose product must not be rounded to int8: quantised ones become float32. */
static sl_status float_matrix(binder *b, enum role role, uint32_t n_rows, uint32_t n_cols,
                              sl_matrix *out)
{
    sl_matrix found;
    uint8_t *data;
    SL_TRY(matrix(b, role, n_rows, n_cols, &found));
    *out = found;
    if (!sl_dtype_get(found.dtype)->quantised)
        return SL_OK;
    SL_TRY(own_stack(b, SL_F32, n_cols * sizeof(float), 1, n_rows, n_cols, out, &data));
    for (uint32_t row = 0; data && row < n_rows; row++)
        sl_dequantise(found.dtype, sl_matrix_row(&found, 0, row),
                      (float *)(void *)(data + row * out->row_bytes), n_cols);
    return SL_OK;
}

/* ---- attention ---- */

static sl_status bind_attention(binder *b, sl_attention_weights *out)
{
    const sl_config *c = b->config;
    const uint32_t n_q = c->n_heads * 2 * c->head_dim, n_kv = c->n_kv_heads * c->head_dim;
    if (has(b, ATTN_FUSED_QKV)) {
        sl_matrix qkv;
        SL_TRY(matrix(b, ATTN_FUSED_QKV, n_q + 2 * n_kv, c->hidden, &qkv));
        out->q = rows_of(&qkv, 0, n_q);
        out->k = rows_of(&qkv, n_q, n_kv);
        out->v = rows_of(&qkv, n_q + n_kv, n_kv);
    } else {
        SL_TRY(matrix(b, ATTN_Q, n_q, c->hidden, &out->q));
        SL_TRY(matrix(b, ATTN_K, n_kv, c->hidden, &out->k));
        SL_TRY(matrix(b, ATTN_V, n_kv, c->hidden, &out->v));
    }
    SL_TRY(matrix(b, ATTN_O, c->hidden, c->n_heads * c->head_dim, &out->o));
    SL_TRY(norm(b, ATTN_Q_NORM, c->head_dim, &out->q_norm));
    return norm(b, ATTN_K_NORM, c->head_dim, &out->k_norm);
}

/* ---- gated delta layers ---- */

/* From each of n_groups groups of group_rows rows, the n rows from `first` on, in order. */
static uint8_t *copy_groups(const sl_matrix *from, uint32_t n_groups, uint32_t group_rows,
                            uint32_t first, uint32_t n, uint8_t *to)
{
    for (uint32_t group = 0; to && group < n_groups; group++) {
        memcpy(to, sl_matrix_row(from, 0, (size_t)group * group_rows + first), n * from->row_bytes);
        to += n * from->row_bytes;
    }
    return to;
}

static sl_status check_grouped(binder *b, enum role role)
{
    if (b->config->pairing == SL_PAIRING_GROUPED)
        return SL_OK;
    return sl_fail(b->err, SL_ERR_UNSUPPORTED,
                   "%s: tensor %s has its rows by key head, but the file says that its value heads "
                   "are reordered",
                   sl_weights_path(b->weights), name_of(b, role));
}

/* Qwen3-Next: rows by key head, [q 128 | k 128 | v r * 128 | z r * 128] with r = nv / nk. */
static sl_status split_qkvz(binder *b, sl_gdn_weights *out)
{
    const sl_config *c = b->config;
    const uint32_t nk = c->gdn_key_heads, dim = c->gdn_dim;
    const uint32_t group_v = c->gdn_value_heads / nk * dim, group = 2 * dim + 2 * group_v;
    sl_matrix all;
    uint8_t *qkv, *z;
    SL_TRY(check_grouped(b, GDN_FUSED_QKVZ));
    SL_TRY(matrix(b, GDN_FUSED_QKVZ, nk * group, c->hidden, &all));
    SL_TRY(own_stack(b, all.dtype, all.row_bytes, 1, sl_config_channels(c), c->hidden, &out->qkv,
                     &qkv));
    SL_TRY(own_stack(b, all.dtype, all.row_bytes, 1, nk * group_v, c->hidden, &out->z, &z));
    qkv = copy_groups(&all, nk, group, 0, dim, qkv);
    qkv = copy_groups(&all, nk, group, dim, dim, qkv);
    copy_groups(&all, nk, group, 2 * dim, group_v, qkv);
    copy_groups(&all, nk, group, 2 * dim + group_v, group_v, z);
    return SL_OK;
}

/* Qwen3-Next: rows by key head, [b r | a r]. */
static sl_status split_ba(binder *b, sl_gdn_weights *out)
{
    const sl_config *c = b->config;
    const uint32_t nk = c->gdn_key_heads, nv = c->gdn_value_heads, r = nv / nk;
    sl_matrix all;
    uint8_t *rows_a, *rows_b;
    SL_TRY(check_grouped(b, GDN_FUSED_BA));
    SL_TRY(matrix(b, GDN_FUSED_BA, 2 * nv, c->hidden, &all));
    SL_TRY(own_stack(b, all.dtype, all.row_bytes, 1, nv, c->hidden, &out->a, &rows_a));
    SL_TRY(own_stack(b, all.dtype, all.row_bytes, 1, nv, c->hidden, &out->b, &rows_b));
    copy_groups(&all, nk, 2 * r, 0, r, rows_b);
    copy_groups(&all, nk, 2 * r, r, r, rows_a);
    return SL_OK;
}

/* Gates and convolution decide what the recurrent state keeps: coarse types cost accuracy there
 * that shows only over long texts. */
static void watch_precision(binder *b, enum role role, sl_dtype dtype)
{
    const sl_dtype_info *info = sl_dtype_get(dtype);
    if (info->block_bytes * 8 >= info->block_elems * 6)
        return;
    if (b->n_low_bit++ == 0)
        snprintf(b->low_bit, sizeof b->low_bit, "%s is %s", name_of(b, role), info->name);
}

static sl_status bind_conv(binder *b, const float **out)
{
    const sl_config *c = b->config;
    const uint32_t channels = sl_config_channels(c);
    /* The four taps of a channel are contiguous in each of the three forms. */
    shape expected = {2, {c->conv_taps, channels, 1, 1}};
    if (!is_gguf(b))
        expected = c->norm_plus_one ? (shape){3, {c->conv_taps, 1, channels, 1}}
                                    : (shape){3, {1, c->conv_taps, channels, 1}};
    float *taps;
    SL_TRY(read_floats(b, name_of(b, GDN_CONV), &expected, (size_t)channels * c->conv_taps, &taps));
    *out = taps;
    return SL_OK;
}

static sl_status bind_gdn(binder *b, sl_gdn_weights *out)
{
    const sl_config *c = b->config;
    const uint32_t nv = c->gdn_value_heads;
    const bool next = c->arch == SL_ARCH_QWEN3NEXT;
    if (!next && has(b, GDN_FUSED_BA))
        return sl_fail(b->err, SL_ERR_UNSUPPORTED,
                       "%s: tensor %s does not belong in a file of architecture %s; the order of "
                       "its rows is ambiguous",
                       sl_weights_path(b->weights), name_of(b, GDN_FUSED_BA),
                       sl_arch_name(c->arch));
    if (next && has(b, GDN_FUSED_QKVZ)) {
        SL_TRY(split_qkvz(b, out));
    } else {
        SL_TRY(matrix(b, GDN_QKV, sl_config_channels(c), c->hidden, &out->qkv));
        SL_TRY(matrix(b, GDN_Z, nv * c->gdn_dim, c->hidden, &out->z));
    }
    if (next && has(b, GDN_FUSED_BA)) {
        SL_TRY(split_ba(b, out));
    } else {
        SL_TRY(matrix(b, GDN_A, nv, c->hidden, &out->a));
        SL_TRY(matrix(b, GDN_B, nv, c->hidden, &out->b));
    }
    watch_precision(b, GDN_A, out->a.dtype);
    watch_precision(b, GDN_B, out->b.dtype);
    SL_TRY(bind_conv(b, &out->conv));

    float *a_coef, *dt, *w;
    SL_TRY(vector(b, GDN_A_COEF, nv, &a_coef));
    if (c->a_log_raw) {
        for (uint32_t i = 0; i < nv; i++)
            a_coef[i] = (float)-sl_exp_f64((double)a_coef[i]);
    }
    SL_TRY(vector(b, has(b, GDN_DT_SHORT) ? GDN_DT_SHORT : GDN_DT, nv, &dt));
    SL_TRY(vector(b, GDN_NORM, c->gdn_dim, &w));
    out->a_coef = a_coef;
    out->dt = dt;
    out->norm = w;
    return matrix(b, GDN_OUT, c->hidden, nv * c->gdn_dim, &out->out);
}

/* ---- feed-forward ---- */

/* mlp.experts.J.KIND_proj.weight */
static sl_status find_expert(binder *b, const char *kind, uint32_t j, uint32_t n_rows,
                             uint32_t n_cols, sl_matrix *out)
{
    snprintf(b->name, sizeof b->name, "%smlp.experts.%u.%s_proj.weight", b->prefix, j, kind);
    return find_stack(b, b->name, 1, n_rows, n_cols, out);
}

/* The experts' matrices of one kind copied into one stack. All must be there before memory for all
 * is taken. */
static sl_status gather_experts(binder *b, const char *kind, uint32_t n_rows, uint32_t n_cols,
                                sl_matrix *out)
{
    const uint32_t n = b->config->n_experts;
    sl_matrix first, expert;
    uint8_t *data;
    SL_TRY(find_expert(b, kind, 0, n_rows, n_cols, &first));
    for (uint32_t j = 1; j < n; j++) {
        SL_TRY(find_expert(b, kind, j, n_rows, n_cols, &expert));
        if (expert.dtype != first.dtype)
            return sl_fail(b->err, SL_ERR_UNSUPPORTED,
                           "%s: tensor %s has type %s, that of expert 0 is %s",
                           sl_weights_path(b->weights), b->name, sl_dtype_get(expert.dtype)->name,
                           sl_dtype_get(first.dtype)->name);
    }
    SL_TRY(own_stack(b, first.dtype, first.row_bytes, n, n_rows, n_cols, out, &data));
    for (uint32_t j = 0; data && j < n; j++) {
        SL_TRY(find_expert(b, kind, j, n_rows, n_cols, &expert));
        memcpy(data + j * out->stack_bytes, expert.data, out->stack_bytes);
    }
    return SL_OK;
}

static sl_status bind_experts(binder *b, sl_ffn_weights *out)
{
    const sl_config *c = b->config;
    const uint32_t n = c->n_experts, f = c->expert_ffn;
    if (has(b, EXPERTS_GATE_UP)) {
        sl_matrix both;
        SL_TRY(stack(b, EXPERTS_GATE_UP, n, 2 * f, c->hidden, &both));
        out->gate_exps = rows_of(&both, 0, f);
        out->up_exps = rows_of(&both, f, f);
    } else if (is_gguf(b)) {
        SL_TRY(stack(b, EXPERTS_GATE, n, f, c->hidden, &out->gate_exps));
        SL_TRY(stack(b, EXPERTS_UP, n, f, c->hidden, &out->up_exps));
    } else {
        SL_TRY(gather_experts(b, "gate", f, c->hidden, &out->gate_exps));
        SL_TRY(gather_experts(b, "up", f, c->hidden, &out->up_exps));
    }
    if (is_gguf(b) || has(b, EXPERTS_DOWN))
        return stack(b, EXPERTS_DOWN, n, c->hidden, f, &out->down_exps);
    return gather_experts(b, "down", c->hidden, f, &out->down_exps);
}

static sl_status bind_ffn(binder *b, sl_ffn_weights *out)
{
    const sl_config *c = b->config;
    const uint32_t h = c->hidden;
    if (c->n_experts == 0) {
        SL_TRY(matrix(b, FFN_GATE, c->ffn, h, &out->gate));
        SL_TRY(matrix(b, FFN_UP, c->ffn, h, &out->up));
        return matrix(b, FFN_DOWN, h, c->ffn, &out->down);
    }
    SL_TRY(float_matrix(b, ROUTER, c->n_experts, h, &out->router));
    SL_TRY(bind_experts(b, out));
    SL_TRY(float_matrix(b, SHARED_GATE_ROW, 1, h, &out->shared_gate_row));
    SL_TRY(matrix(b, SHARED_GATE, c->shared_ffn, h, &out->gate));
    SL_TRY(matrix(b, SHARED_UP, c->shared_ffn, h, &out->up));
    return matrix(b, SHARED_DOWN, h, c->shared_ffn, &out->down);
}

/* ---- layers and the whole ---- */

static sl_status bind_layer(binder *b, sl_layer_kind kind, sl_layer *out)
{
    out->kind = kind;
    SL_TRY(norm(b, ATTN_NORM, b->config->hidden, &out->attn_norm));
    SL_TRY(kind == SL_LAYER_GDN ? bind_gdn(b, &out->gdn) : bind_attention(b, &out->attention));
    SL_TRY(norm(b, POST_NORM, b->config->hidden, &out->post_norm));
    return bind_ffn(b, &out->ffn);
}

/* "blk.N.", or "OUTERlayers.N.". */
static void enter_layer(binder *b, const char *outer, uint32_t i)
{
    if (is_gguf(b))
        snprintf(b->prefix, sizeof b->prefix, "blk.%u.", i);
    else
        snprintf(b->prefix, sizeof b->prefix, "%slayers.%u.", outer, i);
}

static sl_status bind_mtp(binder *b)
{
    const sl_config *c = b->config;
    sl_model *model = b->model;
    char outer[64] = ""; /* "mtp." */
    if (is_gguf(b)) {
        enter_layer(b, outer, c->n_layers);
    } else {
        snprintf(outer, sizeof outer, "%smtp.", c->hf_names->outer);
        snprintf(b->prefix, sizeof b->prefix, "%s", outer);
    }
    if (!has(b, MTP_EH_PROJ)) {
        sl_log(SL_LOG_INFO, "%s announces an MTP block but does not hold it",
               sl_weights_path(b->weights));
        return SL_OK;
    }
    void *block;
    SL_TRY(own(b, sizeof *model->mtp, &block));
    sl_mtp_weights *mtp = block;
    *mtp = (sl_mtp_weights){.norm = model->output_norm, .embed = model->embed, .head = model->head};
    SL_TRY(norm(b, MTP_ENORM, c->hidden, &mtp->enorm));
    SL_TRY(norm(b, MTP_HNORM, c->hidden, &mtp->hnorm));
    SL_TRY(matrix(b, MTP_EH_PROJ, c->hidden, 2 * c->hidden, &mtp->eh_proj));
    if (!is_gguf(b) || has(b, MTP_NORM))
        SL_TRY(norm(b, MTP_NORM, c->hidden, &mtp->norm));
    if (has(b, MTP_EMBED))
        SL_TRY(matrix(b, MTP_EMBED, c->vocab, c->hidden, &mtp->embed));
    if (has(b, MTP_HEAD))
        SL_TRY(matrix(b, MTP_HEAD, c->vocab, c->hidden, &mtp->head));
    enter_layer(b, outer, is_gguf(b) ? c->n_layers : 0);
    SL_TRY(bind_layer(b, SL_LAYER_ATTENTION, &mtp->layer));
    model->mtp = mtp;
    model->has_mtp = true;
    return SL_OK;
}

static sl_status bind_all(binder *b)
{
    const sl_config *c = b->config;
    sl_model *model = b->model;
    const char *outer = is_gguf(b) ? "" : c->hf_names->model;
    snprintf(b->prefix, sizeof b->prefix, "%s", outer);
    SL_TRY(matrix(b, EMBED, c->vocab, c->hidden, &model->embed));
    SL_TRY(norm(b, OUTPUT_NORM, c->hidden, &model->output_norm));
    model->head = model->embed;
    if (!c->tied) {
        snprintf(b->prefix, sizeof b->prefix, "%s", is_gguf(b) ? "" : c->hf_names->outer);
        SL_TRY(matrix(b, HEAD, c->vocab, c->hidden, &model->head));
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        enter_layer(b, outer, i);
        SL_TRY(bind_layer(b, (sl_layer_kind)c->layer_kinds[i], &model->layers[i]));
    }
    if (c->n_mtp)
        SL_TRY(bind_mtp(b));
    if (b->n_low_bit)
        sl_log(SL_LOG_WARNING,
               "%s: %s (and %u more such tensors): coarse gates of the gated delta rule cost "
               "accuracy on long texts",
               sl_weights_path(b->weights), b->low_bit, b->n_low_bit - 1);
    return sl_weights_check(b->weights, b->err);
}

static sl_status bind_model(const sl_weights *weights, const sl_config *config, bool measure,
                            sl_model **out, sl_error *err)
{
    *out = NULL;
    sl_model *model = sl_alloc_zero(SL_MEM_WEIGHTS, sizeof *model);
    if (!model)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for its model",
                       sl_weights_path(weights));
    model->config = *config;
    binder b = {.weights = weights,
                .config = &model->config,
                .model = model,
                .measure = measure,
                .err = err};
    model->layers = sl_alloc_array(SL_MEM_WEIGHTS, config->n_layers, sizeof *model->layers);
    sl_status status = model->layers
                           ? bind_all(&b)
                           : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for its layers",
                                     sl_weights_path(weights));
    if (status != SL_OK) {
        sl_model_free(model);
        return status;
    }
    *out = model;
    return SL_OK;
}

sl_status sl_model_bind(const sl_weights *weights, const sl_config *config, sl_model **out,
                        sl_error *err)
{
    return bind_model(weights, config, false, out, err);
}

sl_status sl_model_measure(const sl_weights *weights, const sl_config *config, sl_model **out,
                           sl_error *err)
{
    return bind_model(weights, config, true, out, err);
}

void sl_model_free(sl_model *model)
{
    if (!model)
        return;
    for (size_t i = 0; i < model->n_owned; i++)
        sl_free(model->owned[i]);
    sl_free(model->owned);
    sl_free(model->layers);
    sl_free(model);
}
