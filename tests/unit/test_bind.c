/* Binding: GGUF file and Hugging Face folder of one model give the same weights, every dialect of
 * names and layouts gives them too, and what is missing or misshapen is refused by name. */
#include "support.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/mem.h"
#include "gguf_build.h"
#include "model/model.h"
#include "model_build.h"
#include "numbers.h"

#define MODELS "tests/data/models/"
#define HF     "model.language_model.layers.0."

/* ---- opening ---- */

typedef struct opened {
    sl_weights *weights;
    sl_config config;
    sl_model *model;
} opened;

static sl_status open_model(const char *path, opened *out, sl_error *err)
{
    *out = (opened){0};
    sl_status status = sl_weights_open(path, &out->weights, err);
    if (status == SL_OK)
        status = sl_config_load(out->weights, &out->config, err);
    if (status == SL_OK)
        status = sl_model_bind(out->weights, &out->config, &out->model, err);
    assert_true((status == SL_OK) == (out->model != NULL));
    if (status != SL_OK) {
        sl_weights_close(out->weights);
        *out = (opened){0};
    }
    return status;
}

static opened must_open(const char *path)
{
    sl_error err;
    opened o;
    assert_ok(open_model(path, &o, &err));
    return o;
}

static void close_model(opened *o)
{
    sl_model_free(o->model);
    sl_weights_close(o->weights);
}

static void must_refuse(const char *path, sl_status status, const char *part)
{
    sl_error err;
    opened o;
    size_t blocks = sl_mem_get_stats().blocks;
    assert_refused(open_model(path, &o, &err), status, part);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
}

/* ---- comparing two models ---- */

/* Where row or column i of a tensor in the order of `a` lies in that of `b`. The value heads of the
 * second may be in tiled order; only rows (columns) from `first` on are affected. */
typedef struct head_order {
    uint32_t n_key_heads, n_value_heads;
    bool reorder;
} head_order;

static uint32_t place(const head_order *order, uint32_t i, uint32_t first, uint32_t unit)
{
    if (!order->reorder || i < first)
        return i;
    uint32_t ratio = order->n_value_heads / order->n_key_heads;
    uint32_t h = (i - first) / unit, inside = (i - first) % unit;
    uint32_t j = h % ratio * order->n_key_heads + h / ratio;
    return first + j * unit + inside;
}

static float *row_floats(const sl_matrix *m, uint32_t stack, uint32_t row)
{
    float *x = malloc(m->n_cols * sizeof *x);
    assert_non_null(x);
    sl_dequantise(m->dtype, sl_matrix_row(m, stack, row), x, m->n_cols);
    return x;
}

/* Row i of a is row place(i) of b, with the columns in place as well. unit 0 = no reordering. */
static void same_matrix(const sl_matrix *a, const sl_matrix *b, const head_order *order,
                        uint32_t row_first, uint32_t row_unit, uint32_t col_unit)
{
    assert_int_equal(a->n_rows, b->n_rows);
    assert_int_equal(a->n_cols, b->n_cols);
    assert_int_equal(a->n_stack, b->n_stack);
    for (uint32_t s = 0; s < a->n_stack; s++) {
        for (uint32_t i = 0; i < a->n_rows; i++) {
            float *x = row_floats(a, s, i);
            float *y = row_floats(b, s, row_unit ? place(order, i, row_first, row_unit) : i);
            for (uint32_t c = 0; c < a->n_cols; c++) {
                float found = y[col_unit ? place(order, c, 0, col_unit) : c];
                if (x[c] != found)
                    fail_msg("row %u, column %u: %a, not %a", i, c, (double)found, (double)x[c]);
            }
            free(x);
            free(y);
        }
    }
}

static void equal_matrix(const sl_matrix *a, const sl_matrix *b)
{
    assert_true((a->data == NULL) == (b->data == NULL));
    if (a->data)
        same_matrix(a, b, NULL, 0, 0, 0);
}

static void same_ffn(const sl_ffn_weights *a, const sl_ffn_weights *b)
{
    equal_matrix(&a->gate, &b->gate);
    equal_matrix(&a->up, &b->up);
    equal_matrix(&a->down, &b->down);
    equal_matrix(&a->router, &b->router);
    equal_matrix(&a->gate_exps, &b->gate_exps);
    equal_matrix(&a->up_exps, &b->up_exps);
    equal_matrix(&a->down_exps, &b->down_exps);
    equal_matrix(&a->shared_gate_row, &b->shared_gate_row);
}

static void same_gdn(const sl_gdn_weights *a, const sl_gdn_weights *b, const head_order *order)
{
    const uint32_t n_qk = 2 * order->n_key_heads * 128, nv = order->n_value_heads;
    same_matrix(&a->qkv, &b->qkv, order, n_qk, 128, 0);
    same_matrix(&a->z, &b->z, order, 0, 128, 0);
    same_matrix(&a->a, &b->a, order, 0, 1, 0);
    same_matrix(&a->b, &b->b, order, 0, 1, 0);
    same_matrix(&a->out, &b->out, order, 0, 0, 128);
    for (uint32_t c = 0; c < n_qk + nv * 128; c++)
        assert_same_floats(&b->conv[(size_t)place(order, c, n_qk, 128) * 4],
                           &a->conv[(size_t)c * 4], 4);
    assert_same_floats(b->norm, a->norm, 128);
    for (uint32_t h = 0; h < nv; h++) {
        uint32_t j = place(order, h, 0, 1);
        assert_true(a->dt[h] == b->dt[j]);
        /* The converter's exp is a float32 one: the last bit may differ. */
        assert_true(b->a_coef[j] < 0.0f);
        assert_true(fabsf(a->a_coef[h] - b->a_coef[j]) <= fabsf(b->a_coef[j]) * 0x1p-23f);
    }
}

static void same_layer(const sl_layer *a, const sl_layer *b, uint32_t hidden,
                       const head_order *order)
{
    assert_int_equal(a->kind, b->kind);
    assert_same_floats(b->attn_norm, a->attn_norm, hidden);
    assert_same_floats(b->post_norm, a->post_norm, hidden);
    if (a->kind == SL_LAYER_GDN) {
        same_gdn(&a->gdn, &b->gdn, order);
    } else {
        equal_matrix(&a->attention.q, &b->attention.q);
        equal_matrix(&a->attention.k, &b->attention.k);
        equal_matrix(&a->attention.v, &b->attention.v);
        equal_matrix(&a->attention.o, &b->attention.o);
        assert_same_floats(b->attention.q_norm, a->attention.q_norm, 256);
        assert_same_floats(b->attention.k_norm, a->attention.k_norm, 256);
    }
    same_ffn(&a->ffn, &b->ffn);
}

static void same_model(const sl_model *a, const sl_model *b)
{
    const sl_config *c = &a->config;
    head_order order = {c->gdn_key_heads, c->gdn_value_heads,
                        a->config.pairing != b->config.pairing};
    assert_int_equal(c->n_layers, b->config.n_layers);
    equal_matrix(&a->embed, &b->embed);
    equal_matrix(&a->head, &b->head);
    assert_same_floats(b->output_norm, a->output_norm, c->hidden);
    for (uint32_t i = 0; i < c->n_layers; i++)
        same_layer(&a->layers[i], &b->layers[i], c->hidden, &order);
    assert_int_equal(a->has_mtp, b->has_mtp);
    assert_int_equal(a->mtp != NULL, a->has_mtp);
    if (a->has_mtp) {
        assert_same_floats(b->mtp->enorm, a->mtp->enorm, c->hidden);
        assert_same_floats(b->mtp->hnorm, a->mtp->hnorm, c->hidden);
        assert_same_floats(b->mtp->norm, a->mtp->norm, c->hidden);
        equal_matrix(&a->mtp->eh_proj, &b->mtp->eh_proj);
        same_layer(&a->mtp->layer, &b->mtp->layer, c->hidden, &order);
    }
}

/* Measuring tells what binding takes and takes no more than the vectors itself. */
static void check_measured(const opened *o)
{
    sl_error err;
    sl_model *model;
    const size_t before = sl_mem_get_stats().bytes[SL_MEM_WEIGHTS];
    assert_ok(sl_model_measure(o->weights, &o->config, &model, &err));
    const size_t taken = sl_mem_get_stats().bytes[SL_MEM_WEIGHTS] - before;
    assert_int_equal(model->owned_bytes, o->model->owned_bytes);
    assert_in_range(taken, 1, 96 << 10);
    for (uint32_t i = 0; i < o->config.n_layers; i++) {
        const sl_ffn_weights *a = &model->layers[i].ffn, *b = &o->model->layers[i].ffn;
        assert_int_equal(a->gate_exps.n_stack, b->gate_exps.n_stack);
        assert_int_equal(a->down_exps.row_bytes, b->down_exps.row_bytes);
        assert_int_equal(!a->router.data, !b->router.data);
    }
    sl_model_free(model);
    assert_int_equal(sl_mem_get_stats().bytes[SL_MEM_WEIGHTS], before);
}

static void same_paths(const char *a, const char *b)
{
    opened x = must_open(a), y = must_open(b);
    check_measured(&x);
    same_model(x.model, y.model);
    close_model(&x);
    close_model(&y);
}

/* ---- the models of the tree ---- */

static void test_both_containers_agree(void **state)
{
    (void)state;
    same_paths(MODELS "rand-r1", MODELS "rand-r1-bf16.gguf");
    same_paths(MODELS "rand-r3", MODELS "rand-r3-bf16.gguf");
    same_paths(MODELS "rand-moe", MODELS "rand-moe-bf16.gguf");
}

static void check_matrix(const sl_matrix *m, sl_dtype dtype, uint32_t n_rows, uint32_t n_cols,
                         uint32_t n_stack)
{
    size_t row_bytes;
    assert_non_null(m->data);
    assert_true(sl_dtype_row_bytes(dtype, n_cols, &row_bytes));
    assert_int_equal(m->dtype, dtype);
    assert_int_equal(m->n_rows, n_rows);
    assert_int_equal(m->n_cols, n_cols);
    assert_int_equal(m->n_stack, n_stack);
    assert_int_equal(m->row_bytes, row_bytes);
    assert_int_equal(m->stack_bytes, row_bytes * n_rows);
}

static void test_shapes(void **state)
{
    (void)state;
    opened o = must_open(MODELS "rand-moe-q8_0.gguf");
    const sl_layer *gdn = &o.model->layers[0], *attention = &o.model->layers[3];
    check_matrix(&o.model->embed, SL_Q8_0, 512, 64, 1);
    assert_ptr_equal(o.model->head.data, o.model->embed.data);
    check_matrix(&gdn->gdn.qkv, SL_Q8_0, 1024, 64, 1);
    check_matrix(&gdn->gdn.z, SL_Q8_0, 512, 64, 1);
    check_matrix(&gdn->gdn.a, SL_Q8_0, 4, 64, 1);
    check_matrix(&gdn->gdn.b, SL_Q8_0, 4, 64, 1);
    check_matrix(&gdn->gdn.out, SL_Q8_0, 64, 512, 1);
    check_matrix(&attention->attention.q, SL_Q8_0, 1024, 64, 1);
    check_matrix(&attention->attention.k, SL_Q8_0, 256, 64, 1);
    check_matrix(&attention->attention.v, SL_Q8_0, 256, 64, 1);
    check_matrix(&attention->attention.o, SL_Q8_0, 64, 512, 1);
    check_matrix(&gdn->ffn.router, SL_F32, 8, 64, 1);
    check_matrix(&gdn->ffn.gate_exps, SL_Q8_0, 32, 64, 8);
    check_matrix(&gdn->ffn.up_exps, SL_Q8_0, 32, 64, 8);
    check_matrix(&gdn->ffn.down_exps, SL_Q8_0, 64, 32, 8);
    check_matrix(&gdn->ffn.shared_gate_row, SL_F32, 1, 64, 1);
    check_matrix(&gdn->ffn.gate, SL_Q8_0, 32, 64, 1);
    check_matrix(&gdn->ffn.up, SL_Q8_0, 32, 64, 1);
    check_matrix(&gdn->ffn.down, SL_Q8_0, 64, 32, 1);
    assert_false(o.model->has_mtp);
    close_model(&o);

    o = must_open(MODELS "rand-r3-q8_0.gguf");
    check_matrix(&o.model->head, SL_Q8_0, 512, 64, 1);
    assert_ptr_not_equal(o.model->head.data, o.model->embed.data);
    assert_null(o.model->layers[0].ffn.router.data);
    check_matrix(&o.model->layers[0].ffn.gate, SL_Q8_0, 128, 64, 1);
    close_model(&o);
}

static void test_tiny(void **state)
{
    (void)state;
    opened o = must_open("models/tiny-q8_0.gguf");
    assert_true(o.model->has_mtp);
    const sl_mtp_weights *mtp = o.model->mtp;
    check_matrix(&mtp->eh_proj, SL_Q8_0, 256, 512, 1);
    check_matrix(&mtp->layer.attention.q, SL_Q8_0, 1024, 256, 1);
    check_matrix(&mtp->layer.ffn.down, SL_Q8_0, 256, 768, 1);
    assert_ptr_equal(mtp->embed.data, o.model->embed.data);
    assert_ptr_equal(mtp->head.data, o.model->head.data);
    assert_ptr_not_equal(mtp->norm, o.model->output_norm);
    if (access("../shared/models/tiny-hf/config.json", R_OK) != 0) {
        close_model(&o);
        skip_because("../shared/models/tiny-hf is not there");
    }
    /* Matrices are Q8_0 on one side: vectors must be equal, and rows nearly. */
    opened hf = must_open("../shared/models/tiny-hf");
    assert_true(hf.model->has_mtp);
    assert_same_floats(mtp->enorm, hf.model->mtp->enorm, 256);
    assert_same_floats(mtp->hnorm, hf.model->mtp->hnorm, 256);
    assert_same_floats(mtp->norm, hf.model->mtp->norm, 256);
    assert_same_floats(mtp->layer.attn_norm, hf.model->mtp->layer.attn_norm, 256);
    assert_same_floats(o.model->output_norm, hf.model->output_norm, 256);
    for (uint32_t row = 0; row < 256; row++) {
        float *x = row_floats(&mtp->eh_proj, 0, row);
        float *y = row_floats(&hf.model->mtp->eh_proj, 0, row);
        for (uint32_t i = 0; i < 512; i++)
            assert_true(fabsf(x[i] - y[i]) < 0.01f);
        free(x);
        free(y);
    }
    close_model(&hf);
    close_model(&o);
}

/* ---- dialects ---- */

/* Writes the changed model beside nothing else and compares it with the unchanged one. */
static void same_after(sl_test_model *model, const char *original)
{
    const char *folder = sl_temp_make();
    char path[128];
    if (model->gguf) {
        snprintf(path, sizeof path, "%s/x.gguf", folder);
        sl_test_model_write_gguf(model, path);
    } else {
        snprintf(path, sizeof path, "%s", folder);
        sl_test_model_write_hf(model, folder);
    }
    same_paths(path, original);
    sl_temp_remove(folder);
    sl_test_model_free(model);
}

static void test_gguf_aliases(void **state)
{
    (void)state;
    sl_test_model model;
    sl_test_model_read(&model, MODELS "rand-r3-bf16.gguf");
    sl_test_model_rename(&model, "blk.0.ssm_dt.bias", "blk.0.ssm_dt");
    sl_test_model_rename(&model, "blk.2.ssm_dt.bias", "blk.2.ssm_dt");
    const uint64_t ne[2] = {32, 2};
    sl_test_model_add(&model, "v.patch_embd.weight", SL_F32, 2, ne);
    sl_test_model_add(&model, "mtp.fc.weight", SL_F32, 2, ne);
    same_after(&model, MODELS "rand-r3-bf16.gguf");

    sl_test_model_read(&model, MODELS "rand-r1-bf16.gguf");
    const char *const parts[] = {"blk.3.attn_q.weight", "blk.3.attn_k.weight",
                                 "blk.3.attn_v.weight"};
    sl_test_model_fuse(&model, "blk.3.attn_qkv.weight", parts, 3);
    same_after(&model, MODELS "rand-r1-bf16.gguf");
}

/* Rows of the experts' gate and up matrices alternate per expert in a fused stack. */
static void fuse_experts(sl_test_model *model, const char *gate, const char *up, const char *fused)
{
    sl_test_tensor *g = sl_test_model_get(model, gate), *u = sl_test_model_get(model, up);
    const uint64_t ne[3] = {g->ne[0], 2 * g->ne[1], g->ne[2]};
    size_t n = g->n_bytes / g->ne[2];
    uint8_t *both = malloc(2 * g->n_bytes);
    assert_non_null(both);
    for (size_t e = 0; e < ne[2]; e++) {
        memcpy(both + 2 * e * n, g->data + e * n, n);
        memcpy(both + (2 * e + 1) * n, u->data + e * n, n);
    }
    sl_test_tensor *f = sl_test_model_add(model, fused, g->dtype, 3, ne);
    memcpy(f->data, both, f->n_bytes);
    free(both);
    sl_test_model_remove(model, gate);
    sl_test_model_remove(model, up);
}

static void test_experts(void **state)
{
    (void)state;
    static const char *const files[] = {MODELS "rand-moe-bf16.gguf", MODELS "rand-moe-q8_0.gguf"};
    for (size_t i = 0; i < SL_COUNTOF(files); i++) {
        sl_test_model model;
        sl_test_model_read(&model, files[i]);
        fuse_experts(&model, "blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight",
                     "blk.1.ffn_gate_up_exps.weight");
        same_after(&model, files[i]);
    }

    /* One tensor per expert and kind. */
    sl_test_model model;
    sl_test_model_read(&model, MODELS "rand-moe");
    for (unsigned layer = 0; layer < 4; layer += 3) {
        char name[128], both[128], down[128];
        snprintf(both, sizeof both, "model.layers.%u.mlp.experts.gate_up_proj", layer);
        snprintf(down, sizeof down, "model.layers.%u.mlp.experts.down_proj", layer);
        const uint64_t in[2] = {64, 32}, out[2] = {32, 64};
        const size_t n = 64 * 32 * 2;
        for (unsigned e = 0; e < 8; e++) {
            static const char *const kinds[] = {"gate", "up", "down"};
            for (unsigned k = 0; k < 3; k++) {
                snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer,
                         e, kinds[k]);
                sl_test_tensor *t = sl_test_model_add(&model, name, SL_BF16, 2, k < 2 ? in : out);
                assert_int_equal(t->n_bytes, n);
                const uint8_t *from = k < 2 ? sl_test_model_get(&model, both)->data
                                            : sl_test_model_get(&model, down)->data;
                memcpy(t->data, from + (k < 2 ? (2 * e + k) * n : e * n), n);
            }
        }
        sl_test_model_remove(&model, both);
        sl_test_model_remove(&model, down);
    }
    const char *folder = sl_temp_make();
    sl_test_model_write_hf(&model, folder);
    same_paths(folder, MODELS "rand-moe");
    same_paths(folder, MODELS "rand-moe-bf16.gguf");
    sl_test_tensor *odd = sl_test_model_get(&model, "model.layers.3.mlp.experts.7.up_proj.weight");
    odd->dtype = SL_F16;
    sl_test_model_write_hf(&model, folder);
    must_refuse(folder, SL_ERR_UNSUPPORTED,
                "experts.7.up_proj.weight has type F16, that of expert 0 is BF16");
    odd->dtype = SL_BF16;
    sl_test_model_rename(&model, "model.layers.3.mlp.experts.7.up_proj.weight", "gone");
    sl_test_model_write_hf(&model, folder);
    must_refuse(folder, SL_ERR_FORMAT, "experts.7.up_proj.weight is not in");
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

/* Rows of a tensor from several others: `take` lists {tensor, first row, number}, group by group.
 */
typedef struct rows {
    const uint8_t *data;
    size_t first, n;
} rows;

static uint8_t *append_rows(uint8_t *to, rows from, size_t row_bytes)
{
    memcpy(to, from.data + from.first * row_bytes, from.n * row_bytes);
    return to + from.n * row_bytes;
}

/* Turns the projections of a gated delta layer in grouped order (nk 2, nv 4) into the interleaved
 * ones of Qwen3-Next. */
static void interleave(sl_test_model *model, const char *qkv, const char *z, const char *a,
                       const char *b, const char *qkvz, const char *ba)
{
    enum { NK = 2, NV = 4, R = NV / NK, D = 128 };
    const uint64_t ne[2] = {64, 2 * NK * D + 2 * NV * D}, ne_ba[2] = {64, 2 * NV};
    size_t row_bytes = sl_test_model_get(model, qkv)->n_bytes / (2 * NK * D + NV * D);
    sl_dtype dtype = sl_test_model_get(model, qkv)->dtype;
    if (qkvz) {
        uint8_t *to = sl_test_model_add(model, qkvz, dtype, 2, ne)->data;
        const uint8_t *from = sl_test_model_get(model, qkv)->data;
        const uint8_t *from_z = sl_test_model_get(model, z)->data;
        for (size_t k = 0; k < NK; k++) {
            to = append_rows(to, (rows){from, k * D, D}, row_bytes);
            to = append_rows(to, (rows){from, (NK + k) * D, D}, row_bytes);
            to = append_rows(to, (rows){from, (2 * NK + k * R) * D, R * D}, row_bytes);
            to = append_rows(to, (rows){from_z, k * R * D, R * D}, row_bytes);
        }
        sl_test_model_remove(model, qkv);
        sl_test_model_remove(model, z);
    }
    uint8_t *to = sl_test_model_add(model, ba, dtype, 2, ne_ba)->data;
    const uint8_t *from_a = sl_test_model_get(model, a)->data;
    const uint8_t *from_b = sl_test_model_get(model, b)->data;
    for (size_t k = 0; k < NK; k++) {
        to = append_rows(to, (rows){from_b, k * R, R}, row_bytes);
        to = append_rows(to, (rows){from_a, k * R, R}, row_bytes);
    }
    sl_test_model_remove(model, a);
    sl_test_model_remove(model, b);
}

static void interleave_hf(sl_test_model *model)
{
    for (unsigned layer = 0; layer < 3; layer++) {
        char names[6][128];
        static const char *const suffixes[6] = {"qkv", "z", "a", "b", "qkvz", "ba"};
        for (size_t i = 0; i < 6; i++)
            snprintf(names[i], sizeof names[i], "model.layers.%u.linear_attn.in_proj_%s.weight",
                     layer, suffixes[i]);
        interleave(model, names[0], names[1], names[2], names[3], names[4], names[5]);
    }
}

static void test_qwen3next_folder(void **state)
{
    (void)state;
    sl_test_model model;
    sl_test_model_read(&model, MODELS "rand-moe");
    sl_test_model_set(&model, "model_type", json_string("qwen3_next"));
    same_after(&model, MODELS "rand-moe"); /* separate projections are accepted as well */

    sl_test_model_read(&model, MODELS "rand-moe");
    sl_test_model_set(&model, "model_type", json_string("qwen3_next"));
    interleave_hf(&model);
    same_after(&model, MODELS "rand-moe-bf16.gguf");

    /* Under another architecture the order of these rows is not known. */
    sl_test_model_read(&model, MODELS "rand-moe");
    interleave_hf(&model);
    const char *folder = sl_temp_make();
    sl_test_model_write_hf(&model, folder);
    must_refuse(folder, SL_ERR_UNSUPPORTED, "in_proj_ba.weight does not belong");
    sl_temp_remove(folder);
    sl_test_model_free(&model);
}

/* The metadata of the MoE model with the prefix of another architecture. */
static void rename_arch(sl_test_model *model, const char *to)
{
    sl_gguf_build out;
    sl_gguf_fields fields;
    sl_gguf_fields_init(&fields, model->gguf, model->n_gguf);
    sl_gguf_build_init(&out, 3);
    /* Keys are copied one by one: those of the architecture get the new prefix. */
    for (size_t i = 0; i < fields.n; i++) {
        const sl_gguf_field *f = &fields.at[i];
        if (f->kind != SL_FIELD_KEY_LENGTH)
            continue;
        size_t end = fields.metadata_end;
        for (size_t k = i + 1; k < fields.n; k++) {
            if (fields.at[k].kind == SL_FIELD_KEY_LENGTH ||
                fields.at[k].kind == SL_FIELD_NAME_LENGTH) {
                end = fields.at[k].offset;
                break;
            }
        }
        size_t value = f->offset + 8 + f->n_name + 4;
        char key[128];
        bool own = f->n_name > 10 && memcmp(f->name, "qwen35moe.", 10) == 0;
        if (own)
            snprintf(key, sizeof key, "%s.%.*s", to, (int)f->n_name - 10, f->name + 10);
        else
            snprintf(key, sizeof key, "%.*s", (int)f->n_name, f->name);
        if (strcmp(key, "general.architecture") == 0) {
            sl_gguf_build_key_string(&out, key, to);
        } else {
            sl_gguf_build_key(&out, key, model->gguf[value - 4]);
            sl_gguf_build_bytes(&out, model->gguf + value, end - value);
        }
    }
    sl_gguf_fields_free(&fields);
    free(model->gguf);
    model->gguf = out.data;
    model->n_gguf = out.n_bytes;
}

/* The GGUF file of the MoE model with everything back in grouped order. */
static void read_grouped(sl_test_model *model)
{
    sl_test_model hf;
    sl_test_model_read(model, MODELS "rand-moe-bf16.gguf");
    sl_test_model_read(&hf, MODELS "rand-moe");
    static const char *const pairs[][2] = {
        {"attn_qkv.weight", "in_proj_qkv.weight"}, {"attn_gate.weight", "in_proj_z.weight"},
        {"ssm_alpha.weight", "in_proj_a.weight"},  {"ssm_beta.weight", "in_proj_b.weight"},
        {"ssm_out.weight", "out_proj.weight"},
    };
    for (unsigned layer = 0; layer < 3; layer++) {
        char to[128], from[128];
        for (size_t i = 0; i < SL_COUNTOF(pairs); i++) {
            snprintf(to, sizeof to, "blk.%u.%s", layer, pairs[i][0]);
            snprintf(from, sizeof from, "model.layers.%u.linear_attn.%s", layer, pairs[i][1]);
            sl_test_tensor *t = sl_test_model_get(model, to);
            memcpy(t->data, sl_test_model_get(&hf, from)->data, t->n_bytes);
        }
        /* nk 2 and nv 4: tiled order 0 2 1 3. */
        const head_order order = {2, 4, true};
        static const char *const vectors[] = {"ssm_a", "ssm_dt.bias", "ssm_conv1d.weight"};
        for (size_t i = 0; i < SL_COUNTOF(vectors); i++) {
            snprintf(to, sizeof to, "blk.%u.%s", layer, vectors[i]);
            sl_test_tensor *t = sl_test_model_get(model, to);
            float *x = (float *)(void *)t->data, *copy = malloc(t->n_bytes);
            assert_non_null(copy);
            memcpy(copy, x, t->n_bytes);
            uint32_t unit = i == 2 ? 128 * 4 : 1, first = i == 2 ? 512 * 4 : 0;
            for (uint32_t k = 0; k < t->n_bytes / 4; k++)
                x[k] = copy[place(&order, k, first, unit)];
            free(copy);
        }
    }
    sl_test_model_free(&hf);
}

static void test_qwen3next_gguf(void **state)
{
    (void)state;
    sl_test_model model;
    read_grouped(&model);
    rename_arch(&model, "qwen3next");
    same_after(&model, MODELS "rand-moe");

    for (int legacy = 0; legacy <= 1; legacy++) {
        read_grouped(&model);
        rename_arch(&model, "qwen3next");
        for (unsigned layer = 0; layer < 3; layer++) {
            char names[6][64];
            static const char *const suffixes[6] = {"attn_qkv", "attn_gate", "ssm_alpha",
                                                    "ssm_beta", "ssm_in",    "ssm_ba"};
            for (size_t i = 0; i < 6; i++)
                snprintf(names[i], sizeof names[i], "blk.%u.%s.weight", layer, suffixes[i]);
            interleave(&model, names[0], names[1], names[2], names[3], legacy ? names[4] : NULL,
                       names[5]);
        }
        same_after(&model, MODELS "rand-moe");
    }

    /* Reordered heads and interleaved rows contradict each other. */
    const char *folder = sl_temp_make(), *path = sl_path(folder, "x.gguf");
    for (int legacy = 0; legacy <= 1; legacy++) {
        read_grouped(&model);
        rename_arch(&model, "qwen3next");
        sl_gguf_build tiled = {model.gguf, model.n_gguf, model.n_gguf};
        sl_gguf_build_key_bits(&tiled, "qwen3next.ssm.v_head_reordered", SL_GGUF_BOOL, 1);
        model.gguf = tiled.data;
        model.n_gguf = tiled.n_bytes;
        interleave(&model, "blk.0.attn_qkv.weight", "blk.0.attn_gate.weight",
                   "blk.0.ssm_alpha.weight", "blk.0.ssm_beta.weight",
                   legacy ? "blk.0.ssm_in.weight" : NULL, "blk.0.ssm_ba.weight");
        sl_test_model_write_gguf(&model, path);
        must_refuse(path, SL_ERR_UNSUPPORTED,
                    legacy ? "blk.0.ssm_in.weight has its rows by key head"
                           : "blk.0.ssm_ba.weight has its rows by key head");
        sl_test_model_free(&model);
    }

    /* ssm_ba has two orders in files of Qwen3.5. */
    sl_test_model_read(&model, MODELS "rand-moe-bf16.gguf");
    interleave(&model, "blk.1.attn_qkv.weight", NULL, "blk.1.ssm_alpha.weight",
               "blk.1.ssm_beta.weight", NULL, "blk.1.ssm_ba.weight");
    sl_test_model_write_gguf(&model, path);
    must_refuse(path, SL_ERR_UNSUPPORTED,
                "blk.1.ssm_ba.weight does not belong in a file of architecture qwen35moe");
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

/* Norm weights with their 1, conv1d as [channels, 4, 1], other prefixes. */
static void test_mlx_folder(void **state)
{
    (void)state;
    sl_test_model model;
    sl_test_model_read(&model, MODELS "rand-r3");
    for (size_t i = 0; i < model.n_tensors; i++) {
        sl_test_tensor *t = &model.tensors[i];
        char name[128];
        bool head = strcmp(t->name, "lm_head.weight") == 0;
        snprintf(name, sizeof name, "language_model.%.100s", t->name);
        snprintf(t->name, sizeof t->name, "%s", name);
        assert_true(head || strncmp(name, "language_model.model.", 21) == 0);
        size_t n = strlen(name);
        bool norm = strcmp(name + n - 11, "norm.weight") == 0 && !strstr(name, "linear_attn");
        if (norm) {
            /* float32, so that the sum is the one binding makes */
            size_t n_elems = t->n_bytes / 2;
            float *x = malloc(n_elems * sizeof *x);
            assert_non_null(x);
            sl_dequantise(t->dtype, t->data, x, n_elems);
            for (size_t k = 0; k < n_elems; k++)
                x[k] += 1.0f;
            free(t->data);
            t->data = (uint8_t *)x;
            t->dtype = SL_F32;
            t->n_bytes = n_elems * sizeof *x;
        }
        if (strstr(name, "conv1d")) {
            t->ne[0] = 1;
            t->ne[1] = 4;
        }
    }
    /* All convolutions must be of one form. */
    const char *folder = sl_temp_make();
    sl_test_tensor *conv =
        sl_test_model_get(&model, "language_model.model.layers.2.linear_attn.conv1d.weight");
    conv->ne[0] = 4;
    conv->ne[1] = 1;
    sl_test_model_write_hf(&model, folder);
    must_refuse(folder, SL_ERR_FORMAT,
                "layers.2.linear_attn.conv1d.weight has shape [1280, 1, 4], expected [1280, 4, 1]");
    sl_temp_remove(folder);
    conv->ne[0] = 1;
    conv->ne[1] = 4;
    same_after(&model, MODELS "rand-r3");
}

static char logged[512];
static unsigned n_logged;

static void note(void *context, sl_log_level level, const char *message)
{
    (void)context;
    (void)level;
    snprintf(logged, sizeof logged, "%s", message);
    n_logged++;
}

static void test_mtp_variants(void **state)
{
    (void)state;
    const char *folder = sl_temp_make(), *path = sl_path(folder, "x.gguf");
    sl_test_model model;

    /* Announced but not there: a message, no error. */
    sl_test_model_read(&model, "models/tiny-q8_0.gguf");
    sl_test_model_remove(&model, "blk.8.nextn.eh_proj.weight");
    sl_test_model_write_gguf(&model, path);
    n_logged = 0;
    sl_log_set_callback(note, NULL, SL_LOG_DEBUG);
    opened o = must_open(path);
    sl_log_set_callback(NULL, NULL, SL_LOG_ERROR);
    assert_false(o.model->has_mtp);
    assert_null(o.model->mtp);
    assert_int_equal(n_logged, 1);
    assert_non_null(strstr(logged, "announces an MTP block but does not hold it"));
    close_model(&o);
    sl_test_model_free(&model);

    /* Without an own norm the model's serves; own embedding and head are used when present. */
    sl_test_model_read(&model, "models/tiny-q8_0.gguf");
    sl_test_model_remove(&model, "blk.8.nextn.shared_head_norm.weight");
    const uint64_t ne[2] = {256, 2688};
    sl_test_model_add(&model, "blk.8.nextn.embed_tokens.weight", SL_Q8_0, 2, ne);
    sl_test_model_add(&model, "blk.8.nextn.shared_head_head.weight", SL_F16, 2, ne);
    sl_test_model_write_gguf(&model, path);
    o = must_open(path);
    assert_true(o.model->has_mtp);
    assert_ptr_equal(o.model->mtp->norm, o.model->output_norm);
    check_matrix(&o.model->mtp->embed, SL_Q8_0, 2688, 256, 1);
    assert_ptr_not_equal(o.model->mtp->embed.data, o.model->embed.data);
    check_matrix(&o.model->mtp->head, SL_F16, 2688, 256, 1);
    close_model(&o);

    /* A part of the block missing is an error. */
    sl_test_model_remove(&model, "blk.8.attn_v.weight");
    sl_test_model_write_gguf(&model, path);
    must_refuse(path, SL_ERR_FORMAT, "tensor blk.8.attn_v.weight is not in");
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

/* A folder with an MTP block, made from the attention layer of the random model. */
static void test_mtp_folder(void **state)
{
    (void)state;
    sl_test_model model;
    sl_test_model_read(&model, MODELS "rand-r3");
    sl_test_model_set(&model, "mtp_num_hidden_layers", json_integer(1));
    static const char layer[] = "model.layers.3.";
    size_t n = model.n_tensors;
    for (size_t i = 0; i < n; i++) {
        sl_test_tensor from = model.tensors[i];
        if (strncmp(from.name, layer, strlen(layer)) != 0)
            continue;
        char name[128];
        snprintf(name, sizeof name, "mtp.layers.0.%.100s", from.name + strlen(layer));
        sl_test_tensor *to = sl_test_model_add(&model, name, from.dtype, from.n_dims, from.ne);
        memcpy(to->data, from.data, from.n_bytes);
    }
    const uint64_t hidden[1] = {64}, fc[2] = {128, 64};
    sl_test_model_add(&model, "mtp.pre_fc_norm_embedding.weight", SL_BF16, 1, hidden);
    sl_test_model_add(&model, "mtp.pre_fc_norm_hidden.weight", SL_BF16, 1, hidden);
    sl_test_model_add(&model, "mtp.norm.weight", SL_BF16, 1, hidden);
    sl_test_model_add(&model, "mtp.fc.weight", SL_BF16, 2, fc);
    const char *folder = sl_temp_make();
    sl_test_model_write_hf(&model, folder);
    opened o = must_open(folder);
    assert_true(o.model->has_mtp);
    const head_order order = {2, 6, false};
    same_layer(&o.model->mtp->layer, &o.model->layers[3], 64, &order);
    check_matrix(&o.model->mtp->eh_proj, SL_BF16, 64, 128, 1);
    assert_true(o.model->mtp->enorm[5] == 1.0f && o.model->mtp->norm[63] == 1.0f);
    close_model(&o);
    sl_test_model_remove(&model, "mtp.norm.weight");
    sl_test_model_write_hf(&model, folder);
    must_refuse(folder, SL_ERR_FORMAT, "tensor mtp.norm.weight is not in");
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

/* ---- types ---- */

static void test_float_routers(void **state)
{
    (void)state;
    sl_test_model model;
    const char *folder = sl_temp_make(), *path = sl_path(folder, "x.gguf");
    const uint64_t router[2] = {64, 8}, row[1] = {64};
    sl_test_model_read(&model, MODELS "rand-moe-bf16.gguf");
    sl_test_model_remove(&model, "blk.0.ffn_gate_inp.weight");
    sl_test_model_remove(&model, "blk.0.ffn_gate_inp_shexp.weight");
    sl_test_tensor *r = sl_test_model_add(&model, "blk.0.ffn_gate_inp.weight", SL_Q8_0, 2, router);
    sl_block_q8_0 block = {.d = 0x3c00}; /* 1.0 */
    for (int i = 0; i < 32; i++)
        block.q[i] = (int8_t)(i - 16);
    for (size_t i = 0; i < 16; i++)
        memcpy(r->data + i * sizeof block, &block, sizeof block);
    sl_test_model_add(&model, "blk.0.ffn_gate_inp_shexp.weight", SL_Q4_0, 1, row);
    sl_test_model_write_gguf(&model, path);
    opened o = must_open(path);
    const sl_matrix *m = &o.model->layers[0].ffn.router;
    check_matrix(m, SL_F32, 8, 64, 1);
    for (uint32_t i = 0; i < 8; i++) {
        const float *x = (const float *)(const void *)sl_matrix_row(m, 0, i);
        for (int k = 0; k < 64; k++)
            assert_true(x[k] == (float)(k % 32 - 16));
    }
    check_matrix(&o.model->layers[0].ffn.shared_gate_row, SL_F32, 1, 64, 1);
    close_model(&o);
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

static void test_coarse_gates_are_reported(void **state)
{
    (void)state;
    sl_test_model model;
    const char *folder = sl_temp_make(), *path = sl_path(folder, "x.gguf");
    const uint64_t ne[2] = {64, 2};
    sl_log_set_callback(note, NULL, SL_LOG_WARNING);
    n_logged = 0;
    opened o = must_open(MODELS "rand-r1-q8_0.gguf");
    close_model(&o);
    assert_int_equal(n_logged, 0);
    sl_test_model_read(&model, MODELS "rand-r1-q8_0.gguf");
    static const char *const names[] = {"blk.1.ssm_alpha.weight", "blk.1.ssm_beta.weight",
                                        "blk.2.ssm_beta.weight"};
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        sl_test_model_remove(&model, names[i]);
        sl_test_model_add(&model, names[i], SL_Q4_0, 2, ne);
    }
    sl_test_model_write_gguf(&model, path);
    o = must_open(path);
    sl_log_set_callback(NULL, NULL, SL_LOG_ERROR);
    assert_int_equal(n_logged, 1);
    assert_non_null(strstr(logged, "blk.1.ssm_alpha.weight is Q4_0 (and 2 more such tensors)"));
    close_model(&o);
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

/* ---- refusals ---- */

/* An embedding of fewer rows is a smaller vocabulary, and a file without a head is tied. */
static bool is_harmless(const char *name, int way)
{
    return (way == 3 && strcmp(name, "model.embed_tokens.weight") == 0) ||
           (way == 0 && strcmp(name, "output.weight") == 0);
}

/* Each tensor of the model in turn: gone, of a type that cannot be used, and of another shape. */
static void spoil_every_tensor(const char *original, bool gguf)
{
    sl_test_model model;
    sl_test_model_read(&model, original);
    const char *folder = sl_temp_make();
    char path[128];
    snprintf(path, sizeof path, "%s%s", folder, gguf ? "/x.gguf" : "");
    for (size_t i = 0; i < model.n_tensors; i++) {
        sl_test_tensor *t = &model.tensors[i];
        const sl_test_tensor good = *t;
        for (int way = 0; way < 4; way++) {
            if (way == 0) {
                snprintf(t->name, sizeof t->name, "renamed");
            } else if (way == 1) {
                if (gguf)
                    continue; /* test_weights.c */
                snprintf(t->type, sizeof t->type, t->dtype == SL_F32 ? "I32" : "I16");
            } else if (way == 2) {
                /* As many elements, fewer rows; or one more dimension. */
                if (t->n_dims > 1 && t->ne[t->n_dims - 1] % 2 == 0) {
                    t->ne[t->n_dims - 1] /= 2;
                    t->ne[t->n_dims++] = 2;
                } else {
                    t->ne[t->n_dims] = t->ne[0] / 2;
                    t->ne[0] = 2;
                    t->n_dims++;
                    if (gguf && sl_dtype_get(t->dtype)->block_elems > 1)
                        t->ne[0] = 0;
                }
            } else {
                /* One row less, or one element. */
                uint64_t last = t->ne[t->n_dims - 1];
                if (t->n_dims == 1 || last == 1)
                    continue;
                t->ne[t->n_dims - 1]--;
                t->n_bytes = t->n_bytes / last * (last - 1);
            }
            if (t->n_dims <= 4 && t->ne[0] != 0 && !is_harmless(good.name, way)) {
                if (gguf)
                    sl_test_model_write_gguf(&model, path);
                else
                    sl_test_model_write_hf(&model, path);
                sl_error err;
                opened o;
                size_t blocks = sl_mem_get_stats().blocks;
                sl_status status = open_model(path, &o, &err);
                if (status == SL_OK)
                    fail_msg("%s, way %d: accepted", good.name, way);
                bool unsupported = way == 1 && status == SL_ERR_UNSUPPORTED;
                if (status != SL_ERR_FORMAT && !unsupported)
                    fail_msg("%s, way %d: %s", good.name, way, err.message);
                /* The embedding's size is the vocabulary's, so its absence or size may show first
                 * elsewhere: a token id out of range, a head of another size. */
                bool elsewhere = strstr(good.name, "embd") || strstr(good.name, "embed");
                /* Without a stack of experts, single ones are looked for. */
                elsewhere |= way == 0 && strstr(good.name, "mlp.experts.") &&
                             strstr(err.message, "mlp.experts.0.");
                if (!strstr(err.message, good.name) && !elsewhere)
                    fail_msg("%s, way %d: %s", good.name, way, err.message);
                assert_int_equal(sl_mem_get_stats().blocks, blocks);
            }
            *t = good;
        }
    }
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

static void test_spoiled_folders(void **state)
{
    (void)state;
    spoil_every_tensor(MODELS "rand-r3", false);
    spoil_every_tensor(MODELS "rand-moe", false);
}

static void test_spoiled_gguf(void **state)
{
    (void)state;
    spoil_every_tensor(MODELS "rand-r3-q8_0.gguf", true);
    spoil_every_tensor(MODELS "rand-moe-q8_0.gguf", true);
}

/* Every number of the metadata and every extent of a tensor at its boundaries: whatever is accepted
 * must be usable, so all weights are read. */
static void test_gguf_numbers_at_their_boundaries(void **state)
{
    (void)state;
    static const uint64_t values[] = {0,          1,          2,          255,        0x7fff,
                                      0x10000,    0x7fffffff, 0x80000000, 0xffffffff, 1ull << 33,
                                      1ull << 62, 1ull << 63, UINT64_MAX};
    const char *folder = sl_temp_make(), *path = sl_path(folder, "x.gguf");
    sl_gguf_build good;
    sl_gguf_fields fields;
    sl_gguf_build_read(&good, MODELS "rand-moe-q8_0.gguf");
    sl_gguf_fields_init(&fields, good.data, good.n_bytes);
    sl_write_file(path, good.data, good.n_bytes);
    unsigned n_accepted = 0, n_refused = 0;
    for (size_t i = 0; i < fields.n; i++) {
        const sl_gguf_field *f = &fields.at[i];
        bool number = f->kind == SL_FIELD_VALUE || f->kind == SL_FIELD_ITEM;
        bool own = f->n_name > 10 && memcmp(f->name, "qwen35moe.", 10) == 0;
        bool extent = f->kind == SL_FIELD_NE && i % 5 == 0;
        if (!(number && own) && !extent)
            continue;
        for (size_t v = 0; v < SL_COUNTOF(values); v++) {
            /* Only the changed bytes are written: the file is large for that many rounds. */
            FILE *file = fopen(path, "r+b");
            assert_non_null(file);
            assert_int_equal(fseek(file, (long)f->offset, SEEK_SET), 0);
            assert_int_equal(fwrite(&values[v], 1, f->width, file), f->width);
            assert_int_equal(fclose(file), 0);
            sl_error err;
            opened o;
            if (open_model(path, &o, &err) == SL_OK) {
                equal_matrix(&o.model->embed, &o.model->embed);
                for (uint32_t k = 0; k < o.config.n_layers; k++) {
                    const head_order order = {o.config.gdn_key_heads, o.config.gdn_value_heads,
                                              false};
                    same_layer(&o.model->layers[k], &o.model->layers[k], o.config.hidden, &order);
                }
                n_accepted++;
            } else {
                n_refused++;
            }
            close_model(&o);
        }
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, (long)f->offset, SEEK_SET), 0);
        assert_int_equal(fwrite(good.data + f->offset, 1, f->width, file), f->width);
        assert_int_equal(fclose(file), 0);
    }
    assert_true(n_accepted > 20 && n_refused > 200);
    sl_gguf_fields_free(&fields);
    sl_gguf_build_free(&good);
    sl_temp_remove(folder);
}

static void test_messages(void **state)
{
    (void)state;
    sl_test_model model;
    const char *folder = sl_temp_make(), *path = sl_path(folder, "x.gguf");
    sl_test_model_read(&model, MODELS "rand-r1-bf16.gguf");
    sl_test_tensor *q = sl_test_model_get(&model, "blk.3.attn_q.weight");
    q->ne[0] = 128;
    q->ne[1] = 512;
    sl_test_model_write_gguf(&model, path);
    must_refuse(path, SL_ERR_FORMAT,
                "x.gguf: tensor blk.3.attn_q.weight has shape [128, 512], expected [64, 1024]");
    sl_test_model_free(&model);
    sl_test_model_read(&model, MODELS "rand-r1");
    q = sl_test_model_get(&model, "model.language_model.layers.3.self_attn.q_proj.weight");
    q->ne[0] = 128;
    q->ne[1] = 512;
    sl_test_model_write_hf(&model, folder);
    must_refuse(folder, SL_ERR_FORMAT,
                "model.safetensors: tensor model.language_model.layers.3.self_attn.q_proj.weight "
                "has shape [512, 128], expected [1024, 64]");
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

/* ---- memory ---- */

static void fail_every_allocation(const char *path)
{
    size_t blocks = sl_mem_get_stats().blocks;
    for (int forever = 0; forever <= 1; forever++) {
        sl_status status = SL_ERR_MEMORY;
        for (uint64_t n = 1; status == SL_ERR_MEMORY; n++) {
            sl_error err;
            opened o;
            sl_mem_fail_at(n, forever);
            status = open_model(path, &o, &err);
            sl_mem_fail_at(0, false);
            close_model(&o);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
        assert_int_equal(status, SL_OK);
    }
}

static void test_out_of_memory(void **state)
{
    (void)state;
    fail_every_allocation(MODELS "rand-moe-q8_0.gguf");
    fail_every_allocation(MODELS "rand-r1");
    fail_every_allocation("models/tiny-q8_0.gguf");
    /* Everything that is gathered. */
    sl_test_model model;
    sl_test_model_read(&model, MODELS "rand-moe");
    sl_test_model_set(&model, "model_type", json_string("qwen3_next"));
    interleave_hf(&model);
    const char *folder = sl_temp_make();
    sl_test_model_write_hf(&model, folder);
    fail_every_allocation(folder);
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_both_containers_agree),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_gguf_aliases),
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_qwen3next_folder),
        cmocka_unit_test(test_qwen3next_gguf),
        cmocka_unit_test(test_mlx_folder),
        cmocka_unit_test(test_mtp_variants),
        cmocka_unit_test(test_mtp_folder),
        cmocka_unit_test(test_float_routers),
        cmocka_unit_test(test_coarse_gates_are_reported),
        cmocka_unit_test(test_spoiled_folders),
        cmocka_unit_test(test_spoiled_gguf),
        cmocka_unit_test(test_gguf_numbers_at_their_boundaries),
        cmocka_unit_test(test_messages),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
