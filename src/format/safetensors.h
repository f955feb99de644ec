/* safetensors files: the tensor descriptions of one file, parsed from memory. */
#ifndef SL_FORMAT_SAFETENSORS_H
#define SL_FORMAT_SAFETENSORS_H

#include "base/json.h"
#include "format/dtype.h"

/* The most dimensions a tensor may have; those with more than four are listed but not usable
 * (vision towers have some). */
enum { SL_SAFETENSORS_MAX_DIMS = 8 };

typedef struct sl_safetensors sl_safetensors;

typedef struct sl_safetensors_tensor {
    const char *name;
    const char *type; /* as the file spells it: "BF16" */
    bool usable;      /* dtype and ne are valid */
    sl_dtype dtype;
    uint32_t n_dims;
    uint64_t ne[4];  /* ne[0] contiguous (the last number of "shape"); unused ones are 1 */
    uint64_t offset; /* of the first byte, in the file */
    size_t n_bytes;
} sl_safetensors_tensor;

/* Parses data[0..size), which must outlive the result. file names it in messages. Every offset is
 * checked against size, every size against shape and type, and no two tensors overlap. Errors:
 * SL_ERR_FORMAT naming tensor and field, SL_ERR_LIMIT, SL_ERR_MEMORY. */
sl_status sl_safetensors_parse(const uint8_t *data, size_t size, const char *file,
                               sl_safetensors **out, sl_error *err);
void sl_safetensors_free(sl_safetensors *safetensors);

/* Tensors in the order of their bytes in the file. */
size_t sl_safetensors_count(const sl_safetensors *safetensors);
const sl_safetensors_tensor *sl_safetensors_at(const sl_safetensors *safetensors, size_t i);

#endif
