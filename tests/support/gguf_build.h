/* Makes GGUF files in memory, good and bad ones, and finds the fields of a good one so that a test
 * can overwrite them. Nothing is checked: the point is to write what no converter would.
 * Independent of the parser under test. Test code only: it fails the running test when memory is
 * short or when a file that must be good is not. */
#ifndef SL_TESTS_GGUF_BUILD_H
#define SL_TESTS_GGUF_BUILD_H

#include "support.h"

#include "format/gguf.h"

typedef struct sl_gguf_build {
    uint8_t *data;
    size_t n_bytes;
    size_t capacity;
} sl_gguf_build;

/* Begins a file with that version and both counts 0; or a copy of existing bytes. */
void sl_gguf_build_init(sl_gguf_build *b, uint32_t version);
void sl_gguf_build_copy(sl_gguf_build *b, const uint8_t *data, size_t n_bytes);
void sl_gguf_build_read(sl_gguf_build *b, const char *path);
void sl_gguf_build_free(sl_gguf_build *b);

/* Raw pieces at the end. */
void sl_gguf_build_bytes(sl_gguf_build *b, const void *bytes, size_t n_bytes);
void sl_gguf_build_uint(sl_gguf_build *b, size_t width, uint64_t value);
void sl_gguf_build_string(sl_gguf_build *b, const char *string);
void sl_gguf_build_string_n(sl_gguf_build *b, const char *string, size_t n_bytes);

/* Overwrites width bytes at offset. */
void sl_gguf_build_set(sl_gguf_build *b, size_t offset, size_t width, uint64_t value);

/* A key: counted in the header, its name and type written; the value is up to the caller. */
void sl_gguf_build_key(sl_gguf_build *b, const char *name, uint32_t type);

/* Keys with values. Numbers of any type are given by their bits. */
void sl_gguf_build_key_bits(sl_gguf_build *b, const char *name, sl_gguf_type type, uint64_t bits);
void sl_gguf_build_key_u32(sl_gguf_build *b, const char *name, uint32_t value);
void sl_gguf_build_key_f32(sl_gguf_build *b, const char *name, float value);
void sl_gguf_build_key_string(sl_gguf_build *b, const char *name, const char *value);
/* An array's type and number; the items are up to the caller. */
void sl_gguf_build_key_array(sl_gguf_build *b, const char *name, uint32_t item_type, uint64_t n);

/* A tensor's description, counted in the header. All keys come before the first tensor. */
void sl_gguf_build_tensor(sl_gguf_build *b, const char *name, uint32_t n_dims, const uint64_t *ne,
                          uint32_t ggml_type, uint64_t offset);

/* Zeros to a multiple of alignment, then n_bytes of a pattern. */
void sl_gguf_build_data(sl_gguf_build *b, size_t alignment, size_t n_bytes);

/* ---- the fields of a good file ---- */

typedef enum sl_gguf_field_kind {
    SL_FIELD_VERSION,
    SL_FIELD_TENSOR_COUNT,
    SL_FIELD_KEY_COUNT,
    SL_FIELD_KEY_LENGTH, /* of a key's name; its bytes follow */
    SL_FIELD_VALUE_TYPE,
    SL_FIELD_VALUE,         /* a number or bool */
    SL_FIELD_STRING_LENGTH, /* of a string value or an array's item; its bytes follow */
    SL_FIELD_ITEM_TYPE,
    SL_FIELD_ITEM_COUNT,
    SL_FIELD_ITEM,        /* a number or bool in an array: the first two and the last only */
    SL_FIELD_NAME_LENGTH, /* of a tensor's name; its bytes follow */
    SL_FIELD_N_DIMS,
    SL_FIELD_NE,
    SL_FIELD_GGML_TYPE,
    SL_FIELD_OFFSET,
} sl_gguf_field_kind;

typedef struct sl_gguf_field {
    sl_gguf_field_kind kind;
    const char *name; /* of the key or tensor, not terminated; NULL in the header */
    size_t n_name;
    size_t offset;
    size_t width; /* bytes: 1, 2, 4 or 8 */
} sl_gguf_field;

typedef struct sl_gguf_fields {
    sl_gguf_field *at;
    size_t n;
    size_t metadata_end; /* where the last description ends */
    size_t data_begin;
    size_t alignment;
} sl_gguf_fields;

void sl_gguf_fields_init(sl_gguf_fields *fields, const uint8_t *data, size_t n_bytes);
void sl_gguf_fields_free(sl_gguf_fields *fields);

/* The i-th field (0 = first) of that kind and key or tensor name (NULL in the header); must exist.
 */
const sl_gguf_field *sl_gguf_fields_get(const sl_gguf_fields *fields, sl_gguf_field_kind kind,
                                        const char *name, size_t i);

/* Finds that field of b, a good file, and overwrites it. */
void sl_gguf_build_change(sl_gguf_build *b, sl_gguf_field_kind kind, const char *name, size_t i,
                          uint64_t value);

/* Gives a key of b, a good file, another type (any number) and value, or removes it; the data stays
 * aligned. */
void sl_gguf_build_replace_key(sl_gguf_build *b, const char *name, uint32_t type, const void *value,
                               size_t n_bytes);
void sl_gguf_build_remove_key(sl_gguf_build *b, const char *name);

#endif
