/* The matrices of a model one by one, for whoever brings them into another form. */
#include "model/model.h"

/* Absent matrices have no data. */
static sl_status visit_all(sl_matrix *const *matrices, size_t n, sl_matrix_visit visit,
                           void *context, sl_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (matrices[i]->data)
            SL_TRY(visit(context, matrices[i], err));
    }
    return SL_OK;
}

static sl_status visit_layer(sl_layer *layer, sl_matrix_visit visit, void *context, sl_error *err)
{
    sl_attention_weights *attention = &layer->attention;
    sl_gdn_weights *gdn = &layer->gdn;
    sl_ffn_weights *ffn = &layer->ffn;
    sl_matrix *const of_attention[] = {&attention->q, &attention->k, &attention->v, &attention->o};
    sl_matrix *const of_gdn[] = {&gdn->qkv, &gdn->z, &gdn->a, &gdn->b, &gdn->out};
    sl_matrix *const of_ffn[] = {
        &ffn->router,          &ffn->gate_exps, &ffn->up_exps, &ffn->down_exps,
        &ffn->shared_gate_row, &ffn->gate,      &ffn->up,      &ffn->down};
    if (layer->kind == SL_LAYER_ATTENTION)
        SL_TRY(visit_all(of_attention, SL_COUNTOF(of_attention), visit, context, err));
    else
        SL_TRY(visit_all(of_gdn, SL_COUNTOF(of_gdn), visit, context, err));
    return visit_all(of_ffn, SL_COUNTOF(of_ffn), visit, context, err);
}

sl_status sl_model_visit(sl_model *model, sl_matrix_visit visit, void *context, sl_error *err)
{
    for (uint32_t i = 0; i < model->config.n_layers; i++)
        SL_TRY(visit_layer(&model->layers[i], visit, context, err));
    sl_mtp_weights *mtp = model->mtp;
    const bool shared = mtp && mtp->head.data == model->head.data;
    SL_TRY(visit(context, &model->head, err));
    if (!mtp)
        return SL_OK;
    SL_TRY(visit(context, &mtp->eh_proj, err));
    SL_TRY(visit_layer(&mtp->layer, visit, context, err));
    if (shared)
        mtp->head.packed = model->head.packed;
    else
        SL_TRY(visit(context, &mtp->head, err));
    return SL_OK;
}

bool sl_model_release(sl_model *model, sl_matrix *matrix)
{
    for (size_t i = 0; i < model->n_owned; i++) {
        if (model->owned[i] != matrix->data)
            continue;
        model->owned_bytes -= matrix->stack_bytes * matrix->n_stack;
        sl_free(model->owned[i]);
        model->owned[i] = model->owned[--model->n_owned];
        matrix->data = model->embed.data; /* something that is there */
        return true;
    }
    return false;
}
