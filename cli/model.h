/* Opening a model for a command. */
#ifndef SL_CLI_MODEL_H
#define SL_CLI_MODEL_H

#include "sluice.h"

/* Tells the sentence; the exit status is SL_EXIT_MODEL, or SL_EXIT_USAGE when an option was wrong,
 * or SL_EXIT_FAILURE when this machine failed, not the file. */
int sl_model_refused(sl_status status, const sl_error *err);

/* Returns -1, or an exit status after telling what was wrong; *engine is NULL then. */
int sl_model_open(const char *path, const sl_engine_params *params, sl_engine **engine);

/* The same, and its tokenizer has to be usable. */
int sl_model_open_text(const char *path, const sl_engine_params *params, sl_engine **engine,
                       const sl_tokenizer **tokenizer);

#endif
