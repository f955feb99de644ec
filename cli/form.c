/* Reads the form of an answer. */
#include "form.h"

#include "prompt.h"

bool sl_form_wanted(const sl_run_options *options)
{
    return options->json_schema || options->grammar || options->json_object;
}

sl_status sl_form_read(const sl_run_options *options, sl_form *form, sl_error *err)
{
    const char *file = options->json_schema ? options->json_schema : options->grammar;
    if (!!options->json_schema + !!options->grammar + options->json_object > 1)
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "--json-schema, --json-object and --grammar exclude each other");
    if (options->json_object)
        return sl_grammar_json_object(&form->grammar, err);
    if (!file)
        return SL_OK;
    sl_buf text;
    SL_TRY(sl_prompt_read(NULL, file, &text, err));
    const sl_str bytes = {text.data, text.n_bytes};
    const sl_status status = options->json_schema
                                 ? sl_grammar_from_json_schema(bytes, &form->grammar, err)
                                 : sl_grammar_from_gbnf(bytes, &form->grammar, err);
    sl_buf_free(&text);
    return status == SL_OK ? SL_OK : sl_fail_within(err, status, "%s", file);
}

sl_status sl_form_open(sl_form *form, sl_engine *engine, sl_error *err)
{
    const sl_constraint_vocab *vocab;
    if (!form->grammar)
        return SL_OK;
    SL_TRY(sl_engine_constraint_vocab(engine, &vocab, err));
    return sl_constraint_create(form->grammar, vocab, &form->constraint, err);
}

void sl_form_free(sl_form *form)
{
    sl_constraint_free(form->constraint);
    sl_grammar_free(form->grammar);
    *form = (sl_form){0};
}
