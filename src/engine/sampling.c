/* Owns the ranges and the defaults of the sampler's settings. */
#include "engine/sampling.h"

#include <math.h>

sl_sampling sl_sampling_default(void)
{
    return (sl_sampling){.temperature = 0.0f, .top_p = 1.0f};
}

sl_sampling sl_sampling_of_family(void)
{
    return (sl_sampling){.temperature = 1.0f, .top_k = 20, .top_p = 0.95f};
}

sl_sampling sl_sampling_from_config(const sl_sampling_defaults *file, const sl_sampling *otherwise)
{
    sl_sampling sampling = *otherwise;
    if (file->has_temperature)
        sampling.temperature = file->temperature;
    if (file->has_top_k)
        sampling.top_k = file->top_k;
    if (file->has_top_p)
        sampling.top_p = file->top_p;
    if (file->has_min_p)
        sampling.min_p = file->min_p;
    if (file->has_typical_p)
        sampling.typical_p = file->typical_p;
    if (file->has_repetition_penalty)
        sampling.repetition_penalty = file->repetition_penalty;
    if (file->has_presence_penalty)
        sampling.presence_penalty = file->presence_penalty;
    if (file->has_frequency_penalty)
        sampling.frequency_penalty = file->frequency_penalty;
    if (file->has_penalty_window)
        sampling.penalty_window = file->penalty_window;
    return sampling;
}

static sl_status check_bias(const sl_sampling *sampling, sl_error *err)
{
    if (sampling->n_bias > SL_MAX_LOGIT_BIAS)
        return sl_fail(err, SL_ERR_LIMIT, "logit_bias has %zu entries, it may have %d",
                       sampling->n_bias, SL_MAX_LOGIT_BIAS);
    for (size_t i = 0; i < sampling->n_bias; i++) {
        const sl_logit_bias *entry = &sampling->bias[i];
        if (entry->id < 0)
            return sl_fail(err, SL_ERR_ARGUMENT, "logit_bias names token %d, ids begin at 0",
                           entry->id);
        if (!isfinite(entry->bias))
            return sl_fail(err, SL_ERR_ARGUMENT,
                           "logit_bias of token %d is %g, it must be a finite number", entry->id,
                           (double)entry->bias);
    }
    return SL_OK;
}

sl_status sl_sampling_check(const sl_sampling *sampling, sl_error *err)
{
    if (!(sampling->temperature >= 0.0f && sampling->temperature < INFINITY))
        return sl_fail(err, SL_ERR_ARGUMENT, "temperature is %g, it must be 0 or more and finite",
                       (double)sampling->temperature);
    const struct setting {
        const char *name;
        float value, low, high;
    } settings[] = {
        {"top_p", sampling->top_p, 0.0f, 1.0f},
        {"min_p", sampling->min_p, 0.0f, 1.0f},
        {"typical_p", sampling->typical_p, 0.0f, 1.0f},
        {"presence_penalty", sampling->presence_penalty, -100.0f, 100.0f},
        {"frequency_penalty", sampling->frequency_penalty, -100.0f, 100.0f},
        {"repetition_penalty", sampling->repetition_penalty, 0.0f, 100.0f},
        {"dry_multiplier", sampling->dry_multiplier, 0.0f, 100.0f},
        {"dry_base", sampling->dry_base, sampling->dry_base == 0.0f ? 0.0f : 1.0f, 100.0f},
    };
    for (size_t i = 0; i < SL_COUNTOF(settings); i++) {
        const struct setting *s = &settings[i];
        if (!(s->value >= s->low && s->value <= s->high)) /* true for NaN */
            return sl_fail(err, SL_ERR_ARGUMENT, "%s is %g, it must be from %g to %g", s->name,
                           (double)s->value, (double)s->low, (double)s->high);
    }
    if (sampling->dry_window > SL_DRY_MAX_WINDOW)
        return sl_fail(err, SL_ERR_ARGUMENT, "dry_window is %u, it must be from 0 to %d",
                       sampling->dry_window, SL_DRY_MAX_WINDOW);
    SL_TRY(check_bias(sampling, err));
    return sl_check_reserved(sampling->reserved, SL_COUNTOF(sampling->reserved), "sl_sampling",
                             err);
}
