/* The hyper-parameters of a model, read from GGUF metadata or config.json and checked: whoever
 * holds an sl_config may divide by its counts and index with them. Shapes in comments elsewhere use
 * the names given here: H hidden, V vocab, nk and nv key and value heads of gated delta layers. */
#ifndef SL_MODEL_CONFIG_H
#define SL_MODEL_CONFIG_H

#include "format/weights.h"

enum { SL_MAX_LAYERS = 1024, SL_MAX_EXPERTS = 4096, SL_MAX_ROPE_DIM = 256, SL_MAX_STOP_IDS = 16 };

typedef enum sl_arch { SL_ARCH_QWEN35, SL_ARCH_QWEN35MOE, SL_ARCH_QWEN3NEXT } sl_arch;
const char *sl_arch_name(sl_arch arch); /* "qwen35", as in GGUF files */

typedef enum sl_layer_kind { SL_LAYER_GDN, SL_LAYER_ATTENTION } sl_layer_kind;

/* Which key head a value head h of a gated delta layer uses. */
typedef enum sl_pairing {
    SL_PAIRING_GROUPED, /* h / (nv / nk): Hugging Face order */
    SL_PAIRING_TILED    /* h mod nk: order of GGUF files */
} sl_pairing;

/* What the makers of the model recommend; values without their flag are unset. */
typedef struct sl_sampling_defaults {
    bool has_temperature, has_top_k, has_top_p, has_min_p, has_typical_p;
    bool has_repetition_penalty, has_presence_penalty, has_frequency_penalty, has_penalty_window;
    float temperature;
    uint32_t top_k; /* 0 = off */
    float top_p;
    float min_p;
    float typical_p;
    float repetition_penalty;
    float presence_penalty;
    float frequency_penalty;
    uint32_t penalty_window; /* 0 = all */
} sl_sampling_defaults;

/* How the tensors of a Hugging Face folder are named. */
typedef struct sl_hf_names {
    const char *model; /* before "layers.0.": "model.language_model." or the like */
    const char *outer; /* before "lm_head.weight" and "mtp.": usually "" */
} sl_hf_names;

/* A plain value: copy it freely. */
typedef struct sl_config {
    sl_arch arch;
    uint32_t n_layers; /* without the MTP block */
    uint32_t n_mtp;    /* 0 or 1, as announced; the block itself may still be missing */
    uint32_t hidden;   /* H */
    uint32_t vocab;    /* V: rows of the embedding */
    uint32_t context_length;
    bool tied; /* the head is the embedding */
    float rms_eps;
    uint8_t layer_kinds[SL_MAX_LAYERS]; /* sl_layer_kind of the first n_layers */
    uint32_t n_gdn_layers, n_attention_layers;

    /* attention */
    uint32_t n_heads, n_kv_heads; /* n_heads is a multiple of n_kv_heads */
    uint32_t head_dim;            /* 256 */
    uint32_t rope_dim;            /* even; pairs are (i, i + rope_dim / 2) */
    float inv_freq[SL_MAX_ROPE_DIM / 2];
    float rope_scale; /* of cos and sin: 1 without YaRN */

    /* gated delta layers */
    uint32_t gdn_key_heads;   /* nk */
    uint32_t gdn_value_heads; /* nv, a multiple of nk */
    uint32_t gdn_dim;         /* 128, of keys and values */
    uint32_t conv_taps;       /* 4 */
    sl_pairing pairing;

    /* feed-forward: n_experts 0 = dense */
    uint32_t ffn; /* 0 for MoE */
    uint32_t n_experts, top_k, expert_ffn, shared_ffn;

    /* How the file stores what the forward pass wants otherwise. */
    bool norm_plus_one;          /* norm weights lack the 1 (all but linear_attn.norm) */
    bool a_log_raw;              /* A_log instead of -exp(A_log) */
    const sl_hf_names *hf_names; /* NULL for GGUF */

    /* text side; ids are below vocab, -1 = none */
    int32_t bos_id, pad_id;
    bool add_bos;
    uint32_t n_stop_ids;
    int32_t stop_ids[SL_MAX_STOP_IDS];
    sl_sampling_defaults sampling;
} sl_config;

/* q, k and v channels of a gated delta layer: 2 * nk * 128 + nv * 128. */
static inline uint32_t sl_config_channels(const sl_config *config)
{
    return (2 * config->gdn_key_heads + config->gdn_value_heads) * config->gdn_dim;
}

/* Errors: SL_ERR_UNSUPPORTED for other architectures and variants, by name; SL_ERR_FORMAT naming
 * file, field, the value found and what was expected. */
sl_status sl_config_load(const sl_weights *weights, sl_config *out, sl_error *err);

#endif
