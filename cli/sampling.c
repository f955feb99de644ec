/* Turns options into settings of the sampler, stop strings and the limit of thinking. */
#include "sampling.h"

#include <float.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/str.h"
#include "out.h"

static uint64_t random_seed(void)
{
    /* 32 bits: short enough to be typed, exact in every JSON reader. */
    uint32_t seed;
    if (getentropy(&seed, sizeof seed) != 0)
        seed = (uint32_t)(sl_clock_ns() * 2654435761u);
    return seed;
}

/* "ID=BIAS" */
static bool parse_bias(const char *text, sl_logit_bias *out)
{
    char id_text[12];
    const size_t n = strcspn(text, "=");
    uint64_t id;
    double bias;
    if (text[n] != '=' || n >= sizeof id_text)
        return false;
    memcpy(id_text, text, n);
    id_text[n] = '\0';
    if (!sl_parse_count(id_text, 0, INT32_MAX, &id) ||
        !sl_parse_number(text + n + 1, -(double)FLT_MAX, (double)FLT_MAX, &bias))
        return false;
    *out = (sl_logit_bias){(int32_t)id, (float)bias};
    return true;
}

static size_t strings_of(const sl_opt_list *list, sl_str *strings)
{
    for (size_t i = 0; i < list->n; i++)
        strings[i] = sl_str_of(list->items[i]);
    return list->n;
}

sl_status sl_choices_begin(sl_choices *choices, const sl_sampling_options *options, sl_error *err)
{
    for (size_t i = 0; i < options->logit_bias.n; i++) {
        if (!parse_bias(options->logit_bias.items[i], &choices->bias[i]))
            return sl_fail(err, SL_ERR_ARGUMENT,
                           "--logit-bias: '%s' is not a token id, = and a number",
                           options->logit_bias.items[i]);
    }
    if (options->think_grace.set && !options->think_budget.set)
        return sl_fail(err, SL_ERR_ARGUMENT, "--think-grace belongs to --think-budget");
    /* Made to be checked. */
    sl_stop_filter *filter = NULL;
    const size_t n_stops = strings_of(&options->stop, choices->stops);
    const sl_status status = sl_stop_filter_create(choices->stops, n_stops, &filter, err);
    sl_stop_filter_free(filter);
    return status == SL_OK || status == SL_ERR_MEMORY ? status
                                                      : sl_fail_within(err, status, "--stop");
}

static void take_number(const sl_opt_number *option, float *value)
{
    if (option->set)
        *value = (float)option->value;
}

static void take_count(const sl_opt_count *option, uint32_t *value)
{
    if (option->set)
        *value = (uint32_t)option->value;
}

static sl_status make_breakers(sl_choices *choices, const sl_sampling_options *options,
                               const sl_tokenizer *tokenizer, size_t n_vocab, sl_error *err)
{
    sl_str texts[SL_OPT_MAX_LIST];
    const size_t n = strings_of(&options->dry_breakers, texts);
    choices->breakers = sl_breakers_create(tokenizer, texts, n, n_vocab);
    choices->params.breakers = choices->breakers;
    return choices->breakers ? SL_OK : sl_fail(err, SL_ERR_MEMORY, "no memory for breakers");
}

/* The rules are the library's to make; here they are made to be checked. */
static sl_status limit_thinking(sl_choices *choices, const sl_sampling_options *options,
                                const sl_tokenizer *tokenizer, sl_error *err)
{
    sl_generate_params *params = &choices->params;
    sl_think_rules rules;
    params->limit_thinking = true;
    params->think_budget = (uint32_t)options->think_budget.value;
    take_count(&options->think_grace, &params->think_grace);
    return sl_think_rules_create(tokenizer, params->think_budget, params->think_grace, &rules, err);
}

sl_status sl_choices_finish(sl_choices *choices, const sl_sampling_options *options,
                            const sl_engine *engine, sl_error *err)
{
    const sl_tokenizer *tokenizer;
    SL_TRY(sl_engine_tokenizer(engine, &tokenizer, err));
    choices->params = sl_generate_params_default(engine);
    choices->params.stops = choices->stops;
    choices->params.n_stops = options->stop.n;
    sl_sampling *sampling = &choices->params.sampling;
    take_number(&options->temp, &sampling->temperature);
    take_count(&options->top_k, &sampling->top_k);
    take_number(&options->top_p, &sampling->top_p);
    take_number(&options->min_p, &sampling->min_p);
    take_number(&options->typical, &sampling->typical_p);
    take_count(&options->penalty_window, &sampling->penalty_window);
    take_number(&options->dry_multiplier, &sampling->dry_multiplier);
    take_number(&options->dry_base, &sampling->dry_base);
    take_count(&options->dry_allowed_length, &sampling->dry_allowed_length);
    take_count(&options->dry_window, &sampling->dry_window);
    if (options->greedy)
        sampling->temperature = 0;
    /* The file's penalties belong to its temperature: without drawing, the likeliest token counts.
     */
    if (sampling->temperature == 0)
        sampling->presence_penalty = sampling->frequency_penalty = sampling->repetition_penalty = 0;
    take_number(&options->presence_penalty, &sampling->presence_penalty);
    take_number(&options->frequency_penalty, &sampling->frequency_penalty);
    take_number(&options->repetition_penalty, &sampling->repetition_penalty);
    sampling->seed = options->seed.set ? options->seed.value : random_seed();
    sampling->bias = choices->bias;
    sampling->n_bias = options->logit_bias.n;

    if (sampling->dry_multiplier > 0 && options->dry_breakers.n > 0)
        SL_TRY(make_breakers(choices, options, tokenizer, sl_engine_vocab(engine), err));
    return options->think_budget.set ? limit_thinking(choices, options, tokenizer, err) : SL_OK;
}

void sl_choices_free(sl_choices *choices)
{
    sl_free(choices->breakers);
}
