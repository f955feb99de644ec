/* Opens models and says why they were refused. */
#include "model.h"

#include "opts.h"
#include "out.h"

int sl_model_refused(sl_status status, const sl_error *err)
{
    sl_fail_with(err);
    if (status == SL_ERR_ARGUMENT)
        return SL_EXIT_USAGE;
    return status == SL_ERR_MEMORY ? SL_EXIT_FAILURE : SL_EXIT_MODEL;
}

int sl_model_open(const char *path, const sl_engine_params *params, sl_engine **engine)
{
    sl_error err;
    *engine = NULL;
    if (*path == '\0') {
        sl_failf("the name of the model is empty"); /* an unset variable of a script */
        return SL_EXIT_USAGE;
    }
    const sl_status status = sl_engine_open(path, params, engine, &err);
    return status == SL_OK ? -1 : sl_model_refused(status, &err);
}

int sl_model_open_text(const char *path, const sl_engine_params *params, sl_engine **engine,
                       const sl_tokenizer **tokenizer)
{
    sl_error err;
    const int exit_status = sl_model_open(path, params, engine);
    if (exit_status >= 0)
        return exit_status;
    const sl_status status = sl_engine_tokenizer(*engine, tokenizer, &err);
    if (status == SL_OK)
        return -1;
    sl_engine_close(*engine);
    *engine = NULL;
    return sl_model_refused(status, &err);
}
