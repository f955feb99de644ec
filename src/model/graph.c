/* THE forward pass. Each line records an op; T is the rows of a run.
 *
 *     x = E[token]
 *     for every layer:  x = x + mixer(norm(x));  x = x + ffn(norm(x))
 *     logits = W_head norm(x)
 *
 * Shapes are written [rows, columns] with the letters of model.h. */
#include "model/graph.h"

/* Gated delta layer: u is the normed input. */
static sl_value gdn_mixer(sl_plan *plan, const sl_config *config, const sl_gdn_weights *w, sl_act u,
                          int layer, uint32_t index)
{
    sl_value qkv = sl_plan_project(plan, u, &w->qkv, "qkv"); /* [T, C] */
    sl_plan_tap(plan, "L%d.in_proj_qkv", layer);
    sl_value z = sl_plan_project(plan, u, &w->z, "z"); /* [T, nv * 128] */
    sl_plan_tap(plan, "L%d.in_proj_z", layer);
    sl_value a = sl_plan_project(plan, u, &w->a, "a"); /* [T, nv] */
    sl_plan_tap(plan, "L%d.in_proj_a", layer);
    sl_value b = sl_plan_project(plan, u, &w->b, "b"); /* [T, nv] */
    sl_plan_tap(plan, "L%d.in_proj_b", layer);
    sl_gdn_args args = {
        .index = index,
        .n_key_heads = config->gdn_key_heads,
        .n_value_heads = config->gdn_value_heads,
        .tiled = config->pairing == SL_PAIRING_TILED,
        .conv = w->conv,
        .a_coef = w->a_coef,
        .dt = w->dt,
        .norm = w->norm,
        .eps = config->rms_eps,
    };
    sl_act o = sl_plan_gdn(plan, qkv, z, a, b, &args, sl_matrix_need(&w->out)); /* [T, nv * 128] */
    return sl_plan_project(plan, o, &w->out, "mixed");                          /* [T, H] */
}

/* Gated softmax attention: u is the normed input. */
static sl_value attention_mixer(sl_plan *plan, const sl_config *config,
                                const sl_attention_weights *w, sl_act u, uint32_t index)
{
    sl_value q = sl_plan_project(plan, u, &w->q, "q"); /* [T, Hq * 512], query and gate per head */
    sl_value k = sl_plan_project(plan, u, &w->k, "k"); /* [T, Hkv * 256] */
    sl_value v = sl_plan_project(plan, u, &w->v, "v"); /* [T, Hkv * 256] */
    sl_attention_args args = {
        .index = index,
        .n_heads = config->n_heads,
        .n_kv_heads = config->n_kv_heads,
        .q_norm = w->q_norm,
        .k_norm = w->k_norm,
        .eps = config->rms_eps,
        .inv_freq = config->inv_freq,
        .n_pairs = config->rope_dim / 2,
        .rope_scale = config->rope_scale,
    };
    sl_act o = sl_plan_attention(plan, q, k, v, &args, sl_matrix_need(&w->o)); /* [T, Hq * 256] */
    return sl_plan_project(plan, o, &w->o, "mixed");                           /* [T, H] */
}

/* down(silu(gate x) * up x); also the shared expert of a mixture. */
static sl_value dense_ffn(sl_plan *plan, const sl_ffn_weights *w, sl_act x)
{
    sl_value gate = sl_plan_project(plan, x, &w->gate, "gate");            /* [T, F] */
    sl_value up = sl_plan_project(plan, x, &w->up, "up");                  /* [T, F] */
    sl_act act = sl_plan_swiglu(plan, gate, up, sl_matrix_need(&w->down)); /* [T, F] */
    return sl_plan_project(plan, act, &w->down, "ffn_out");                /* [T, H] */
}

/* The chosen experts, weighted, plus the shared expert behind its own gate. */
static sl_value moe_ffn(sl_plan *plan, const sl_config *config, const sl_ffn_weights *w, sl_act x,
                        int layer)
{
    sl_value router = sl_plan_project(plan, x, &w->router, "router"); /* [T, E] */
    sl_plan_tap(plan, "L%d.router", layer);
    sl_routed routed = sl_plan_route(plan, router, config->top_k);
    sl_experts_args args = {
        .gate = w->gate_exps,
        .up = w->up_exps,
        .down = w->down_exps,
        .top_k = config->top_k,
    };
    sl_value y = sl_plan_experts(plan, x, routed, &args); /* [T, H] */
    if (!w->shared_gate_row.data)
        return y;
    sl_value gate = sl_plan_project(plan, x, &w->shared_gate_row, "shared_gate"); /* [T, 1] */
    return sl_plan_add_gated(plan, y, gate, dense_ffn(plan, w, x));
}

/* The forms that the first products of a mixer or feed-forward read. */
static unsigned mixer_need(const sl_layer *layer)
{
    if (layer->kind == SL_LAYER_ATTENTION) {
        const sl_attention_weights *w = &layer->attention;
        return sl_matrix_need(&w->q) | sl_matrix_need(&w->k) | sl_matrix_need(&w->v);
    }
    const sl_gdn_weights *w = &layer->gdn;
    return sl_matrix_need(&w->qkv) | sl_matrix_need(&w->z) | sl_matrix_need(&w->a) |
           sl_matrix_need(&w->b);
}

static unsigned ffn_need(const sl_ffn_weights *w)
{
    unsigned need = 0;
    const sl_matrix *const inputs[] = {&w->gate,      &w->up,      &w->router,
                                       &w->gate_exps, &w->up_exps, &w->shared_gate_row};
    for (size_t i = 0; i < SL_COUNTOF(inputs); i++)
        need |= inputs[i]->data ? sl_matrix_need(inputs[i]) : 0;
    return need;
}

/* One layer, the residual stream x in and out. index counts the layers of its kind. */
static sl_value layer_block(sl_plan *plan, const sl_config *config, const sl_layer *w, sl_value x,
                            int layer, uint32_t index)
{
    sl_act u = sl_plan_norm(plan, x, w->attn_norm, config->rms_eps, mixer_need(w)); /* [T, H] */
    sl_value mixed = w->kind == SL_LAYER_GDN
                         ? gdn_mixer(plan, config, &w->gdn, u, layer, index)
                         : attention_mixer(plan, config, &w->attention, u, index);
    sl_plan_tap(plan, "L%d.mixer", layer);
    x = sl_plan_add(plan, x, mixed);

    sl_act v = sl_plan_norm(plan, x, w->post_norm, config->rms_eps, ffn_need(&w->ffn)); /* [T, H] */
    sl_value ffn = config->n_experts > 0 ? moe_ffn(plan, config, &w->ffn, v, layer)
                                         : dense_ffn(plan, &w->ffn, v);
    sl_plan_tap(plan, "L%d.ffn", layer);
    x = sl_plan_add(plan, x, ffn);
    sl_plan_tap(plan, "L%d.out", layer);
    return x;
}

void sl_graph_record(const sl_model *model, sl_plan *plan)
{
    const sl_config *config = &model->config;
    uint32_t n_gdn = 0, n_attention = 0;
    sl_value x = sl_plan_embed(plan, &model->embed); /* [T, H] */
    sl_plan_tap(plan, "embed");
    for (uint32_t i = 0; i < config->n_layers; i++) {
        const sl_layer *layer = &model->layers[i];
        sl_plan_layer(plan, (int)i);
        uint32_t index = layer->kind == SL_LAYER_GDN ? n_gdn++ : n_attention++;
        x = layer_block(plan, config, layer, x, (int)i, index);
    }
    sl_plan_layer(plan, -1);
    sl_act h = sl_plan_norm(plan, x, model->output_norm, config->rms_eps,
                            sl_matrix_need(&model->head)); /* [T, H] */
    sl_plan_tap(plan, "final_norm");
    sl_plan_keep(plan, h.f32); /* the draft head reads the normed state */
    sl_plan_head(plan, h, &model->head);
}

void sl_graph_record_mtp(const sl_model *model, sl_plan *plan)
{
    const sl_config *config = &model->config;
    const sl_mtp_weights *w = model->mtp;
    int layer = (int)config->n_layers;
    sl_value e = sl_plan_embed(plan, &w->embed); /* [T, H], of the token after each position */
    sl_mtp_input_args args = {
        .x_norm = w->enorm,
        .hidden_norm = w->hnorm,
        .eps = config->rms_eps,
    };
    sl_plan_layer(plan, layer);
    sl_act input = sl_plan_mtp_input(plan, e, &args, sl_matrix_need(&w->eh_proj)); /* [T, 2H] */
    sl_value x = sl_plan_project(plan, input, &w->eh_proj, "x");                   /* [T, H] */
    x = layer_block(plan, config, &w->layer, x, layer, config->n_attention_layers);
    sl_plan_layer(plan, -1);
    sl_act h =
        sl_plan_norm(plan, x, w->norm, config->rms_eps, sl_matrix_need(&w->head)); /* [T, H] */
    sl_plan_keep(plan, h.f32); /* feeds a second drafted token */
    sl_plan_head(plan, h, &w->head);
}
