/* Models of random weights in the shapes of the family: the bytes of a GGUF file made in memory, so
 * that everything behind sl_weights works on them as on a file. Speed depends on shapes and types
 * and, with these weights, not on a download. The public part is in sluice.h: sl_synthetic. */
#ifndef SL_MODEL_SYNTHETIC_H
#define SL_MODEL_SYNTHETIC_H

#include "format/weights.h"

/* The numbers of a shape that differ between models of the family. */
typedef struct sl_shape {
    const char *name, *title; /* "0.8b", "Qwen3.5-0.8B" */
    uint32_t n_layers, hidden, vocab;
    bool tied;
    uint32_t n_heads, n_kv_heads;
    uint32_t gdn_key_heads, gdn_value_heads;
    uint32_t ffn; /* 0 for mixtures of experts */
    uint32_t n_experts, top_k, expert_ffn, shared_ffn;
    uint32_t context_length;
} sl_shape;

/* NULL when there is none of that name. */
const sl_shape *sl_shape_find(const char *name);

/* Weights of the first n_layers layers of a shape. headers_only: tensors of two and three
 * dimensions have no content (see sl_weights_adopt). Errors: SL_ERR_ARGUMENT (no such shape or
 * type, too many layers, rows that are no whole blocks), SL_ERR_MEMORY. */
sl_status sl_synthetic_weights(const sl_synthetic *model, bool headers_only, sl_weights **out,
                               sl_error *err);

/* The same for a shape of one's own; model->shape only names it. */
sl_status sl_synthetic_weights_of(const sl_shape *shape, const sl_synthetic *model,
                                  bool headers_only, sl_weights **out, sl_error *err);

#endif
