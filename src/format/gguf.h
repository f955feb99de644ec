/* GGUF v2 and v3 containers: metadata keys and tensor descriptions, parsed from memory. */
#ifndef SL_FORMAT_GGUF_H
#define SL_FORMAT_GGUF_H

#include "base/err.h"
#include "base/str.h"
#include "format/dtype.h"

typedef struct sl_gguf sl_gguf;

typedef enum sl_gguf_type {
    SL_GGUF_U8,
    SL_GGUF_I8,
    SL_GGUF_U16,
    SL_GGUF_I16,
    SL_GGUF_U32,
    SL_GGUF_I32,
    SL_GGUF_F32,
    SL_GGUF_BOOL,
    SL_GGUF_STRING,
    SL_GGUF_ARRAY,
    SL_GGUF_U64,
    SL_GGUF_I64,
    SL_GGUF_F64,
    SL_GGUF_TYPE_COUNT
} sl_gguf_type;

typedef struct sl_gguf_tensor {
    sl_str name;
    uint32_t n_dims; /* 1 to 4 */
    uint64_t ne[4];  /* ne[0] is contiguous; unused ones are 1 */
    uint32_t ggml_type;
    bool usable; /* dtype is valid */
    sl_dtype dtype;
    uint64_t offset;      /* in the file */
    size_t n_bytes;       /* 0 when not usable */
    uint64_t info_offset; /* where its description begins in the file, for messages */
} sl_gguf_tensor;

/* Parses data[0..size), which must outlive the result. file names it in messages. Everything is
 * bounds-checked against size before it is believed; memory is proportional to what is really in
 * the file. Errors: SL_ERR_FORMAT / SL_ERR_UNSUPPORTED with field and byte offset. */
sl_status sl_gguf_parse(const uint8_t *data, size_t size, const char *file, sl_gguf **out,
                        sl_error *err);
void sl_gguf_free(sl_gguf *gguf);

uint32_t sl_gguf_version(const sl_gguf *gguf);
const char *sl_gguf_file(const sl_gguf *gguf);

size_t sl_gguf_tensor_count(const sl_gguf *gguf);
const sl_gguf_tensor *sl_gguf_tensor_at(const sl_gguf *gguf, size_t i);
const sl_gguf_tensor *sl_gguf_find_tensor(const sl_gguf *gguf, const char *name);

/* Metadata, in file order. */
size_t sl_gguf_key_count(const sl_gguf *gguf);
sl_str sl_gguf_key_at(const sl_gguf *gguf, size_t i);
/* "u32 24", "string \"qwen35\"", "array of 248320 strings ["!", ...]": for `sluice info`. */
sl_status sl_gguf_describe(const sl_gguf *gguf, size_t i, char *text, size_t capacity);

bool sl_gguf_has(const sl_gguf *gguf, const char *key);

/* Where the key begins in the file, for messages about its value; 0 when it is missing. */
uint64_t sl_gguf_key_offset(const sl_gguf *gguf, const char *key);

/* Typed getters. Any integer type that fits [low, high] is accepted (and bool for
 * sl_gguf_get_bool); a missing key gives the fallback in the _or forms and SL_ERR_FORMAT in the
 * others; a wrong type or range is SL_ERR_FORMAT naming key, offset and what was expected. */
sl_status sl_gguf_get_uint(const sl_gguf *gguf, const char *key, uint64_t low, uint64_t high,
                           uint64_t *out, sl_error *err);
sl_status sl_gguf_get_uint_or(const sl_gguf *gguf, const char *key, uint64_t low, uint64_t high,
                              uint64_t fallback, uint64_t *out, sl_error *err);
sl_status sl_gguf_get_float_or(const sl_gguf *gguf, const char *key, double fallback, double *out,
                               sl_error *err); /* finite; f32, f64 or integers */
sl_status sl_gguf_get_bool_or(const sl_gguf *gguf, const char *key, bool fallback, bool *out,
                              sl_error *err);
sl_status sl_gguf_get_string(const sl_gguf *gguf, const char *key, sl_str *out, sl_error *err);
sl_status sl_gguf_get_string_or(const sl_gguf *gguf, const char *key, sl_str fallback, sl_str *out,
                                sl_error *err);

/* Arrays. n_items = 0 and type = SL_GGUF_TYPE_COUNT when the key is missing. */
typedef struct sl_gguf_array {
    sl_gguf_type type; /* of the items; nested arrays are accepted in files but not returned here */
    size_t n_items;
    const uint8_t *data;   /* the packed items of a fixed-size type, unaligned */
    const sl_str *strings; /* for SL_GGUF_STRING */
} sl_gguf_array;

sl_status sl_gguf_get_array_or_empty(const sl_gguf *gguf, const char *key, sl_gguf_array *out,
                                     sl_error *err);
/* Item i of an integer or bool array as int64; false when the item does not fit. */
bool sl_gguf_array_int(const sl_gguf_array *array, size_t i, int64_t *out);
/* Item i of an f32 or f64 array; NaN for other types and beyond the end. */
double sl_gguf_array_float(const sl_gguf_array *array, size_t i);

#endif
