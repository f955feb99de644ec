/* The model that bench and profile measure, a file or random weights: what can be told of it, and
 * of the memory that measuring takes, before anything large is opened. */
#ifndef SL_CLI_MEASURED_H
#define SL_CLI_MEASURED_H

#include "common.h"

typedef struct sl_measured {
    const char *path; /* NULL: random weights */
    sl_synthetic synthetic;
} sl_measured;

/* Looks at the arguments and the options of SL_TAKES_MEASURING and SL_TAKES_COMPUTE. Returns -1, or
 * SL_EXIT_USAGE after telling what was wrong. */
int sl_measured_check(const sl_command *command, const sl_common_options *options,
                      const sl_args *args);

sl_status sl_measured_open(const sl_measured *model, const sl_engine_params *params,
                           sl_engine **out, sl_error *err);

/* What goes on in one engine at the same time. */
typedef struct sl_measured_use {
    uint64_t context; /* tokens of the longest sequence */
    size_t n_states;  /* of that length */
    uint32_t batch_context;
    size_t n_batch_states; /* further ones, of that length */
    size_t n_logits;       /* rows */
} sl_measured_use;

/* Opens the headers with each of the params, for all of which there has to be room at a time.
 * Returns -1; or an exit status after telling that the context is longer than the model's, or what
 * is needed and what there is, or why the model was refused. */
int sl_measured_fits(const char *command, const sl_measured *model,
                     const sl_engine_params *const *params, size_t n, const sl_measured_use *use);

#endif
