/* Opens model files and says why they were refused. */
#include "model.h"

#include "opts.h"
#include "out.h"

int sl_model_refused(sl_status status, const sl_error *err)
{
    sl_fail_with(err);
    return status == SL_ERR_MEMORY ? SL_EXIT_FAILURE : SL_EXIT_MODEL;
}

int sl_model_file_open(const char *path, bool with_text, sl_model_file *file)
{
    sl_error err;
    *file = (sl_model_file){0};
    sl_status status = sl_weights_open(path, &file->weights, &err);
    if (status == SL_OK)
        status = sl_config_load(file->weights, &file->config, &err);
    if (status == SL_OK && with_text)
        status = sl_text_open(file->weights, &file->config, &file->text, &err);
    if (status == SL_OK)
        return -1;
    sl_model_file_close(file);
    return sl_model_refused(status, &err);
}

void sl_model_file_close(sl_model_file *file)
{
    sl_text_close(file->text);
    sl_weights_close(file->weights);
    *file = (sl_model_file){0};
}

static uint64_t elements(const sl_tensor *tensor)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < tensor->n_dims; d++)
        n *= tensor->ne[d];
    return n;
}

uint64_t sl_model_parameters(const sl_weights *weights)
{
    uint64_t n = 0;
    for (size_t i = 0; i < sl_weights_count(weights); i++)
        n += elements(sl_weights_at(weights, i));
    return n;
}

sl_dtype sl_model_main_type(const sl_weights *weights)
{
    size_t bytes[SL_DTYPE_COUNT] = {0};
    size_t best = 0;
    for (size_t i = 0; i < sl_weights_count(weights); i++)
        bytes[sl_weights_at(weights, i)->dtype] += sl_weights_at(weights, i)->n_bytes;
    for (size_t type = 1; type < SL_DTYPE_COUNT; type++)
        best = bytes[type] > bytes[best] ? type : best;
    return (sl_dtype)best;
}
