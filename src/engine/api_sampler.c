/* Samplers and settings that know a model: its recommendations, its padding tokens, and what
 * separates the parts of its texts. */
#include "engine/engine_internal.h"
#include "engine/sampler.h"

sl_sampling sl_engine_sampling(const sl_engine *engine)
{
    const sl_sampling family = sl_sampling_of_family();
    return sl_sampling_from_config(&engine->config.sampling, &family);
}

sl_status sl_engine_sampler(const sl_engine *engine, const sl_sampling *sampling, sl_sampler **out,
                            sl_error *err)
{
    SL_TRY(sl_sampler_create(engine->config.vocab, out, err));
    const sl_status status = sl_sampler_set(*out, sampling, err);
    if (status != SL_OK) {
        sl_sampler_destroy(*out);
        *out = NULL;
        return status;
    }
    if (engine->text) {
        sl_sampler_set_banned(*out, sl_text_banned(engine->text));
        sl_sampler_set_breakers(*out, sl_text_breakers(engine->text));
    }
    return SL_OK;
}
