/* Writes safetensors files: a JSON header and the tensors' bytes, little-endian, row-major. */
#ifndef SL_FORMAT_SAFETENSORS_WRITE_H
#define SL_FORMAT_SAFETENSORS_WRITE_H

#include "base/err.h"

typedef enum sl_safetensors_type { SL_SAFETENSORS_F32, SL_SAFETENSORS_I32 } sl_safetensors_type;

enum { SL_SAFETENSORS_WRITE_DIMS = 4 };

typedef struct sl_safetensors_entry {
    const char *name;
    sl_safetensors_type type;
    uint32_t n_dims;
    size_t shape[SL_SAFETENSORS_WRITE_DIMS]; /* outermost first */
    const void *data;                        /* all elements, contiguous */
} sl_safetensors_entry;

/* An entry of the header's "__metadata__". */
typedef struct sl_safetensors_note {
    const char *key, *text;
} sl_safetensors_note;

/* Writes path, which appears complete or not at all. Tensors lie in the order given. Errors:
 * SL_ERR_IO naming the path, SL_ERR_ARGUMENT (a name twice, a size that does not fit),
 * SL_ERR_MEMORY. */
sl_status sl_safetensors_write(const char *path, const sl_safetensors_entry *entries,
                               size_t n_entries, const sl_safetensors_note *notes, size_t n_notes,
                               sl_error *err);

#endif
