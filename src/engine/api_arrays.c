/* Safetensors files of float and id arrays, for users. Owns the mapped file and its header. */
#include <string.h>

#include "base/filemap.h"
#include "format/safetensors.h"

struct sl_arrays {
    sl_filemap *map;
    sl_safetensors *file;
};

sl_status sl_arrays_open(const char *path, sl_arrays **out, sl_error *err)
{
    *out = NULL;
    sl_arrays *arrays = sl_alloc_zero(SL_MEM_GENERAL, sizeof *arrays);
    if (!arrays)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", path);
    sl_status status = sl_filemap_open(path, &arrays->map, err);
    if (status == SL_OK)
        status = sl_safetensors_parse(sl_filemap_data(arrays->map), sl_filemap_size(arrays->map),
                                      path, &arrays->file, err);
    if (status != SL_OK) {
        sl_arrays_close(arrays);
        return status;
    }
    *out = arrays;
    return SL_OK;
}

void sl_arrays_close(sl_arrays *arrays)
{
    if (!arrays)
        return;
    sl_safetensors_free(arrays->file);
    sl_filemap_close(arrays->map);
    sl_free(arrays);
}

size_t sl_arrays_count(const sl_arrays *arrays)
{
    return sl_safetensors_count(arrays->file);
}

sl_array sl_arrays_at(const sl_arrays *arrays, size_t i)
{
    const sl_safetensors_tensor *tensor = sl_safetensors_at(arrays->file, i);
    sl_array array = {.name = tensor->name,
                      .type = SL_ARRAY_OTHER,
                      .data = sl_filemap_data(arrays->map) + tensor->offset};
    const bool is_ids = strcmp(tensor->type, "I32") == 0;
    if (tensor->n_dims > SL_ARRAY_DIMS || (!is_ids && strcmp(tensor->type, "F32") != 0))
        return array;
    array.type = is_ids ? SL_ARRAY_I32 : SL_ARRAY_F32;
    array.n_dims = tensor->n_dims;
    for (uint32_t d = 0; d < tensor->n_dims; d++)
        array.shape[d] = (size_t)tensor->ne[tensor->n_dims - 1 - d];
    return array;
}

sl_status sl_arrays_check(const sl_arrays *arrays, sl_error *err)
{
    return sl_filemap_check(arrays->map, err);
}
