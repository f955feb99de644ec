/* Which element type the matrices of a random model get. */
#ifndef SL_MODEL_SYNTHETIC_TYPES_H
#define SL_MODEL_SYNTHETIC_TYPES_H

#include "format/dtype.h"

/* Matrices that mixtures treat in their own way. */
typedef enum sl_matrix_role {
    SL_ROLE_OTHER,
    SL_ROLE_HEAD,    /* the output matrix, also when it is the embedding */
    SL_ROLE_VALUES,  /* attn_v, and attn_qkv of gated delta layers */
    SL_ROLE_FFN_DOWN /* of experts as well */
} sl_matrix_role;

/* A name of `--type`: an element type, which all matrices then have, or a mixture. */
typedef struct sl_type_mix sl_type_mix;
const sl_type_mix *sl_type_mix_find(const char *name); /* NULL when there is none of that name */

/* The type of a matrix of that role in layer `layer` of n_layers; the layer of the head is
 * ignored. */
sl_dtype sl_type_mix_of(const sl_type_mix *mix, sl_matrix_role role, uint32_t layer,
                        uint32_t n_layers);

#endif
