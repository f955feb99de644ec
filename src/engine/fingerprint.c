/* What makes two model files "the same model": 128 bits over everything that its logits depend on.
 *
 * Covered: the hyper-parameters, and of every tensor its name, type, shape and bytes. Of tensors
 * above 64 KiB only sixteen evenly spread pieces of 4 KiB are read, so that a file of many
 * gigabytes takes milliseconds; a model trained further differs in all of them. */
#define XXH_STATIC_LINKING_ONLY
#include <string.h>
#include <xxhash.h>

#include "engine/engine_internal.h"

enum { WHOLE = 64 << 10, PIECE = 4096, N_PIECES = 16 };

static void add_config(XXH3_state_t *hash, const sl_config *c)
{
    const uint32_t numbers[] = {
        (uint32_t)c->arch,
        c->n_layers,
        c->n_mtp,
        c->hidden,
        c->vocab,
        c->tied,
        c->n_heads,
        c->n_kv_heads,
        c->rope_dim,
        c->gdn_key_heads,
        c->gdn_value_heads,
        (uint32_t)c->pairing,
        c->ffn,
        c->n_experts,
        c->top_k,
        c->expert_ffn,
        c->shared_ffn,
        c->norm_plus_one,
        c->a_log_raw,
    };
    XXH3_128bits_update(hash, numbers, sizeof numbers);
    XXH3_128bits_update(hash, c->layer_kinds, c->n_layers);
    XXH3_128bits_update(hash, &c->rms_eps, sizeof c->rms_eps);
    XXH3_128bits_update(hash, c->inv_freq, c->rope_dim / 2 * sizeof *c->inv_freq);
    XXH3_128bits_update(hash, &c->rope_scale, sizeof c->rope_scale);
}

static void add_tensor(XXH3_state_t *hash, const sl_tensor *tensor)
{
    XXH3_128bits_update(hash, tensor->name, strlen(tensor->name) + 1);
    const uint32_t dtype = (uint32_t)tensor->dtype;
    XXH3_128bits_update(hash, &dtype, sizeof dtype);
    XXH3_128bits_update(hash, tensor->ne, sizeof tensor->ne);
    if (tensor->n_bytes <= WHOLE) {
        XXH3_128bits_update(hash, tensor->data, tensor->n_bytes);
        return;
    }
    for (size_t i = 0; i < N_PIECES; i++)
        XXH3_128bits_update(hash, tensor->data + (tensor->n_bytes - PIECE) / (N_PIECES - 1) * i,
                            PIECE);
}

sl_status sl_engine_fingerprint(sl_engine *engine, uint8_t out[SL_FINGERPRINT_BYTES], sl_error *err)
{
    SL_TRY(sl_engine_need_weights(engine, err)); /* the draft head is known with them only */
    if (!engine->has_fingerprint) {
        XXH3_state_t hash;
        XXH3_128bits_reset(&hash);
        add_config(&hash, &engine->config);
        for (size_t i = 0; i < sl_weights_count(engine->weights); i++)
            add_tensor(&hash, sl_weights_at(engine->weights, i));
        SL_TRY(sl_weights_check(engine->weights, err));
        XXH128_canonical_t canonical;
        XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&hash));
        memcpy(engine->fingerprint, canonical.digest, sizeof engine->fingerprint);
        engine->has_fingerprint = true;
    }
    memcpy(out, engine->fingerprint, SL_FINGERPRINT_BYTES);
    return SL_OK;
}
