/* The types that `--type` knows. The mixtures are those of the usual converter: Q6_K for the head,
 * and for values and down projections in the first and the last eighth of the layers and every
 * third one between. */
#include "model/synthetic_types.h"

#include "base/err.h"
#include "base/str.h"

struct sl_type_mix {
    const char *name;
    sl_dtype main;
    bool mixed;
};

static const sl_type_mix mixes[] = {
    {"q8_0", SL_Q8_0, false},     {"q4_0", SL_Q4_0, false},     {"q4_k_m", SL_Q4_K, true},
    {"q5_k_m", SL_Q5_K, true},    {"q4_k", SL_Q4_K, false},     {"q5_k", SL_Q5_K, false},
    {"q6_k", SL_Q6_K, false},     {"bf16", SL_BF16, false},     {"f16", SL_F16, false},
    {"f32", SL_F32, false},       {"q4_1", SL_Q4_1, false},     {"q5_0", SL_Q5_0, false},
    {"q5_1", SL_Q5_1, false},     {"q2_k", SL_Q2_K, false},     {"q3_k", SL_Q3_K, false},
    {"iq4_nl", SL_IQ4_NL, false}, {"iq4_xs", SL_IQ4_XS, false}, {"mxfp4", SL_MXFP4, false},
};

const sl_type_mix *sl_type_mix_find(const char *name)
{
    for (size_t i = 0; i < SL_COUNTOF(mixes); i++) {
        if (sl_same_name(mixes[i].name, name)) /* files call them Q8_0 */
            return &mixes[i];
    }
    return NULL;
}

const char *sl_synthetic_type_name(size_t i)
{
    return i < SL_COUNTOF(mixes) ? mixes[i].name : NULL;
}

static bool gets_more_bits(uint32_t layer, uint32_t n_layers)
{
    const uint32_t eighth = n_layers / 8;
    return layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
}

sl_dtype sl_type_mix_of(const sl_type_mix *mix, sl_matrix_role role, uint32_t layer,
                        uint32_t n_layers)
{
    if (!mix->mixed || role == SL_ROLE_OTHER)
        return mix->main;
    return role == SL_ROLE_HEAD || gets_more_bits(layer, n_layers) ? SL_Q6_K : mix->main;
}
