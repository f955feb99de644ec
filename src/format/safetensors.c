/* The safetensors header:
 *
 *   offset 0      u64, little-endian: n, the bytes of the header
 *   offset 8      n bytes of JSON, an object (padded with spaces):
 *                   "NAME": {"dtype": "BF16", "shape": [rows, cols], "data_offsets": [begin, end]}
 *                   "__metadata__": {"key": "value", ...}
 *   offset 8 + n  the data; offsets count from here
 *
 * Refused: a header that is longer than the file or 100 MB, names that occur twice, offsets that
 * run backwards, lie outside the file or overlap, sizes that are not shape times type. Allowed:
 * bytes that no tensor claims, and types that sluice cannot use. */
#include "format/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MAX_BYTES = 100 * 1000 * 1000, HEADER_MAX_DEPTH = 8 };

struct sl_safetensors {
    json_t *header; /* owns the names */
    size_t n_tensors;
    sl_safetensors_tensor tensors[];
};

static const struct element_type {
    const char *name;
    uint32_t bits;
    sl_dtype dtype; /* SL_DTYPE_COUNT when sluice cannot use it */
} element_types[] = {
    {"F32", 32, SL_F32},
    {"F16", 16, SL_F16},
    {"BF16", 16, SL_BF16},
    {"BOOL", 8, SL_DTYPE_COUNT},
    {"U8", 8, SL_DTYPE_COUNT},
    {"I8", 8, SL_DTYPE_COUNT},
    {"U16", 16, SL_DTYPE_COUNT},
    {"I16", 16, SL_DTYPE_COUNT},
    {"U32", 32, SL_DTYPE_COUNT},
    {"I32", 32, SL_DTYPE_COUNT},
    {"U64", 64, SL_DTYPE_COUNT},
    {"I64", 64, SL_DTYPE_COUNT},
    {"F64", 64, SL_DTYPE_COUNT},
    {"C64", 64, SL_DTYPE_COUNT},
    {"F8_E4M3", 8, SL_DTYPE_COUNT},
    {"F8_E5M2", 8, SL_DTYPE_COUNT},
    {"F8_E8M0", 8, SL_DTYPE_COUNT},
    {"F6_E2M3", 6, SL_DTYPE_COUNT},
    {"F6_E3M2", 6, SL_DTYPE_COUNT},
    {"F4", 4, SL_DTYPE_COUNT},
};

static const struct element_type *find_type(const char *name)
{
    for (size_t i = 0; i < SL_COUNTOF(element_types); i++) {
        if (strcmp(element_types[i].name, name) == 0)
            return &element_types[i];
    }
    return NULL;
}

/* Item i of an array of non-negative integers. */
static bool item(const json_t *array, size_t i, uint64_t *out)
{
    const json_t *value = json_array_get(array, i);
    if (!json_is_integer(value) || json_integer_value(value) < 0)
        return false;
    *out = (uint64_t)json_integer_value(value);
    return true;
}

static sl_status read_shape(const json_t *entry, const char *where, sl_safetensors_tensor *tensor,
                            uint64_t *n_elements, sl_error *err)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape))
        return sl_fail(err, SL_ERR_FORMAT, "%s: shape is not an array", where);
    size_t n_dims = json_array_size(shape);
    if (n_dims > SL_SAFETENSORS_MAX_DIMS)
        return sl_fail(err, SL_ERR_FORMAT, "%s: shape has %zu dimensions, at most %d are possible",
                       where, n_dims, SL_SAFETENSORS_MAX_DIMS);
    tensor->n_dims = (uint32_t)n_dims;
    for (size_t i = 0; i < SL_COUNTOF(tensor->ne); i++)
        tensor->ne[i] = 1;
    size_t product = 1;
    for (size_t i = 0; i < n_dims; i++) {
        uint64_t extent;
        if (!item(shape, n_dims - 1 - i, &extent))
            return sl_fail(err, SL_ERR_FORMAT, "%s: shape[%zu] is not a size", where,
                           n_dims - 1 - i);
        if (!sl_size_mul(product, extent, &product))
            return sl_fail(err, SL_ERR_FORMAT, "%s: the product of its shape overflows", where);
        if (i < SL_COUNTOF(tensor->ne))
            tensor->ne[i] = extent;
    }
    *n_elements = product;
    return SL_OK;
}

static sl_status read_tensor(const char *name, const json_t *entry, size_t data_begin, size_t size,
                             const char *file, sl_safetensors_tensor *tensor, sl_error *err)
{
    char where[SL_ERROR_MESSAGE_BYTES / 2];
    snprintf(where, sizeof where, "%s: tensor %s", file, name);

    if (!json_is_object(entry))
        return sl_fail(err, SL_ERR_FORMAT, "%s: its description is not an object", where);
    tensor->name = name;
    SL_TRY(sl_json_get_string(entry, "dtype", &tensor->type, where, err));
    size_t n_elements = 0;
    SL_TRY(read_shape(entry, where, tensor, &n_elements, err));

    const json_t *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end;
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !item(offsets, 0, &begin) ||
        !item(offsets, 1, &end))
        return sl_fail(err, SL_ERR_FORMAT, "%s: data_offsets is not a pair of offsets", where);
    size_t available = size - data_begin;
    if (begin > end || end > available)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: data_offsets [%llu, %llu] do not lie in the %zu bytes of data", where,
                       (unsigned long long)begin, (unsigned long long)end, available);
    tensor->offset = data_begin + begin;
    tensor->n_bytes = (size_t)(end - begin);

    const struct element_type *type = find_type(tensor->type);
    if (!type)
        return SL_OK; /* a type of the future: its size cannot be checked, nor can it be used */
    size_t n_bits;
    if (!sl_size_mul(n_elements, type->bits, &n_bits) || n_bits % 8 != 0 ||
        n_bits / 8 != tensor->n_bytes)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: data_offsets [%llu, %llu] hold %zu bytes, which is not the size of %zu "
                       "%s values",
                       where, (unsigned long long)begin, (unsigned long long)end, tensor->n_bytes,
                       n_elements, tensor->type);
    tensor->dtype = type->dtype;
    tensor->usable = type->dtype != SL_DTYPE_COUNT && tensor->n_dims <= SL_COUNTOF(tensor->ne);
    return SL_OK;
}

static sl_status check_metadata(json_t *metadata, const char *file, sl_error *err)
{
    if (!json_is_object(metadata))
        return sl_fail(err, SL_ERR_FORMAT, "%s: __metadata__ is not an object", file);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value)
    {
        if (!sl_json_is_string(value))
            return sl_fail(err, SL_ERR_FORMAT, "%s: __metadata__.%s is not a string", file, key);
    }
    return SL_OK;
}

static int compare_offsets(const void *a, const void *b)
{
    const sl_safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->n_bytes != y->n_bytes)
        return x->n_bytes < y->n_bytes ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Puts the tensors in the order of their bytes. */
static sl_status check_overlaps(sl_safetensors *safetensors, const char *file, sl_error *err)
{
    qsort(safetensors->tensors, safetensors->n_tensors, sizeof safetensors->tensors[0],
          compare_offsets);
    for (size_t i = 1; i < safetensors->n_tensors; i++) {
        const sl_safetensors_tensor *a = &safetensors->tensors[i - 1];
        const sl_safetensors_tensor *b = &safetensors->tensors[i];
        if (b->offset - a->offset < a->n_bytes)
            return sl_fail(err, SL_ERR_FORMAT, "%s: tensors %s and %s overlap at byte offset %llu",
                           file, a->name, b->name, (unsigned long long)b->offset);
    }
    return SL_OK;
}

sl_status sl_safetensors_parse(const uint8_t *data, size_t size, const char *file,
                               sl_safetensors **out, sl_error *err)
{
    *out = NULL;
    if (size < 8)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %zu bytes are too few for a safetensors header",
                       file, size);
    uint64_t header_bytes = 0;
    for (int i = 7; i >= 0; i--)
        header_bytes = header_bytes << 8 | data[i];
    if (header_bytes > size - 8 || header_bytes > HEADER_MAX_BYTES)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: the header length at byte offset 0 is %llu; the file has %zu bytes and "
                       "a header at most %d",
                       file, (unsigned long long)header_bytes, size, HEADER_MAX_BYTES);
    if (header_bytes < 2)
        return sl_fail(err, SL_ERR_FORMAT,
                       "%s: the header length at byte offset 0 is %llu, too few for a header", file,
                       (unsigned long long)header_bytes);
    size_t data_begin = 8 + (size_t)header_bytes;

    json_t *header = NULL;
    sl_safetensors *safetensors = NULL;
    sl_status status;
    const sl_json_limits limits = {.max_bytes = HEADER_MAX_BYTES, .max_depth = HEADER_MAX_DEPTH};
    SL_CHECK(
        sl_json_parse((const char *)data + 8, (size_t)header_bytes, file, limits, &header, err));
    if (!json_is_object(header)) {
        status = sl_fail(err, SL_ERR_FORMAT, "%s: the header is not a JSON object", file);
        goto done;
    }

    size_t n_bytes = json_object_size(header);
    if (!sl_size_mul(n_bytes, sizeof(sl_safetensors_tensor), &n_bytes) ||
        !sl_size_add(n_bytes, sizeof *safetensors, &n_bytes) ||
        !(safetensors = sl_alloc_zero(SL_MEM_FORMAT, n_bytes))) {
        status = sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %zu tensor descriptions", file,
                         json_object_size(header));
        goto done;
    }
    safetensors->header = header;

    const char *name;
    json_t *entry;
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            SL_CHECK(check_metadata(entry, file, err));
        else
            SL_CHECK(read_tensor(name, entry, data_begin, size, file,
                                 &safetensors->tensors[safetensors->n_tensors++], err));
    }
    SL_CHECK(check_overlaps(safetensors, file, err));
    *out = safetensors;
    return SL_OK;

done:
    json_decref(header);
    sl_free(safetensors);
    return status;
}

void sl_safetensors_free(sl_safetensors *safetensors)
{
    if (!safetensors)
        return;
    json_decref(safetensors->header);
    sl_free(safetensors);
}

size_t sl_safetensors_count(const sl_safetensors *safetensors)
{
    return safetensors->n_tensors;
}

const sl_safetensors_tensor *sl_safetensors_at(const sl_safetensors *safetensors, size_t i)
{
    return i < safetensors->n_tensors ? &safetensors->tensors[i] : NULL;
}
