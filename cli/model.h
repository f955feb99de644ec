/* Opening a model for a command that does not run it: the file, its configuration, its text side.
 */
#ifndef SL_CLI_MODEL_H
#define SL_CLI_MODEL_H

#include "engine/text.h"

typedef struct sl_model_file {
    sl_weights *weights;
    sl_config config;
    sl_text *text; /* only when asked for */
} sl_model_file;

/* Returns -1, or an exit status after telling what was wrong; *file needs sl_model_file_close only
 * after -1. */
int sl_model_file_open(const char *path, bool with_text, sl_model_file *file);
void sl_model_file_close(sl_model_file *file);

/* Tells the sentence; the exit status is SL_EXIT_MODEL unless this machine failed, not the file. */
int sl_model_refused(sl_status status, const sl_error *err);

/* Parameters of all tensors, and the type that holds most of the bytes. */
uint64_t sl_model_parameters(const sl_weights *weights);
sl_dtype sl_model_main_type(const sl_weights *weights);

#endif
