/* The form that the options hold an answer to: a JSON schema, any JSON object, a grammar. */
#ifndef SL_CLI_FORM_H
#define SL_CLI_FORM_H

#include "run_options.h"

/* Zero-initialise. */
typedef struct sl_form {
    sl_grammar *grammar; /* NULL: none is asked for */
    sl_constraint *constraint;
} sl_form;

/* Whether one is asked for. */
bool sl_form_wanted(const sl_run_options *options);

/* What can be known without a model. Errors: those of reading the file; SL_ERR_ARGUMENT when more
 * than one form is asked for; those of sl_grammar_from_json_schema and _from_gbnf behind the name
 * of the file. */
sl_status sl_form_read(const sl_run_options *options, sl_form *form, sl_error *err);

/* The rest: for the tokens of a model. */
sl_status sl_form_open(sl_form *form, sl_engine *engine, sl_error *err);
void sl_form_free(sl_form *form);

#endif
