/* The options that say how tokens are chosen, and the settings made of them. */
#ifndef SL_CLI_SAMPLING_H
#define SL_CLI_SAMPLING_H

#include "opts.h"

typedef struct sl_sampling_options {
    sl_opt_number temp, top_p, min_p, typical;
    sl_opt_number presence_penalty, frequency_penalty, repetition_penalty;
    sl_opt_number dry_multiplier, dry_base;
    sl_opt_count top_k, seed, penalty_window, dry_allowed_length, dry_window;
    sl_opt_count think_budget, think_grace;
    sl_opt_list dry_breakers, logit_bias, stop;
    bool greedy;
} sl_sampling_options;

/* What was chosen. Zero-initialise; not to be moved, for it points into itself, and to be used as
 * long as the options. */
typedef struct sl_choices {
    sl_generate_params params;
    sl_logit_bias bias[SL_OPT_MAX_LIST];
    sl_str stops[SL_OPT_MAX_LIST];
    uint32_t *breakers; /* NULL = the usual ones */
} sl_choices;

/* What can be known without a model. The sentences name the option. */
sl_status sl_choices_begin(sl_choices *choices, const sl_sampling_options *options, sl_error *err);

/* The rest: an option, else what the file recommends, else the family. Without a seed a new one is
 * made. */
sl_status sl_choices_finish(sl_choices *choices, const sl_sampling_options *options,
                            const sl_engine *engine, sl_error *err);
void sl_choices_free(sl_choices *choices);

#endif
