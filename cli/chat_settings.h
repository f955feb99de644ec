/* The settings of a chat that can change while it runs: the options of `sluice run` that choose
 * tokens and end answers, by their names, as the texts that were given for them. */
#ifndef SL_CLI_CHAT_SETTINGS_H
#define SL_CLI_CHAT_SETTINGS_H

#include "base/json.h"
#include "run_options.h"

typedef struct sl_settings {
    json_t *values; /* option name -> text; -> array of texts where an option may come often */
} sl_settings;

/* What was given on the command line. */
sl_status sl_settings_create(sl_settings *settings, const sl_run_options *given, sl_error *err);
sl_status sl_settings_copy(const sl_settings *from, sl_settings *to, sl_error *err);
void sl_settings_free(sl_settings *settings);

/* Takes one more text for an option that may come often, another one for the rest; NULL takes the
 * option away. A temperature ends greedy, and greedy a temperature. SL_ERR_ARGUMENT: no such
 * setting (with the nearest one), or what is wrong with the text. */
sl_status sl_settings_set(sl_settings *settings, const char *name, const char *text, sl_error *err);

/* The options that the settings make. Texts in *out are borrowed from the settings. */
void sl_settings_options(const sl_settings *settings, sl_run_options *out);

/* From the JSON object that `values` is. Errors as above, SL_ERR_FORMAT. */
sl_status sl_settings_from_json(const json_t *values, const char *name, sl_settings *out,
                                sl_error *err);

/* The table that /set shows: every setting with its value; `chosen` says what the model's file
 * and the family make of those not set. */
sl_status sl_settings_list(const sl_settings *settings, const sl_sampling *chosen, sl_buf *out,
                           sl_error *err);

#endif
