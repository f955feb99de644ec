/* Writing GGUF v3: first the metadata and the tensors' descriptions, then the header that these
 * make, then a file with the tensors' bytes. */
#ifndef SL_FORMAT_GGUF_WRITE_H
#define SL_FORMAT_GGUF_WRITE_H

#include "base/err.h"
#include "base/str.h"
#include "format/dtype.h"

/* The first failure while describing is kept, and later calls do nothing: sl_gguf_writer_finish
 * tells it. */
typedef struct sl_gguf_writer sl_gguf_writer;

/* file names the result in messages and is copied. SL_ERR_MEMORY. */
sl_status sl_gguf_writer_create(const char *file, sl_gguf_writer **out, sl_error *err);
void sl_gguf_writer_free(sl_gguf_writer *writer);

/* Metadata, in the order of the calls. Keys must differ. */
void sl_gguf_put_u32(sl_gguf_writer *writer, const char *key, uint32_t value);
void sl_gguf_put_f32(sl_gguf_writer *writer, const char *key, float value);
void sl_gguf_put_bool(sl_gguf_writer *writer, const char *key, bool value);
void sl_gguf_put_string(sl_gguf_writer *writer, const char *key, sl_str value);
void sl_gguf_put_i32s(sl_gguf_writer *writer, const char *key, const int32_t *values, size_t n);

/* An array of n strings, which the next n calls of sl_gguf_add_string give. */
void sl_gguf_put_strings(sl_gguf_writer *writer, const char *key, size_t n);
void sl_gguf_add_string(sl_gguf_writer *writer, sl_str value);

/* A tensor; its bytes lie after those of the one before. ne[0] is the contiguous extent. Names must
 * differ. SL_ERR_ARGUMENT when rows are not whole blocks or the size does not fit. */
void sl_gguf_put_tensor(sl_gguf_writer *writer, const char *name, sl_dtype dtype, uint32_t n_dims,
                        const uint64_t *ne);

/* Ends the description. Errors: the first of the calls above, SL_ERR_MEMORY, SL_ERR_LIMIT. */
sl_status sl_gguf_writer_finish(sl_gguf_writer *writer, sl_error *err);

/* ---- after finishing ---- */

/* Everything before the first tensor, padding included; lives as long as the writer. */
sl_str sl_gguf_writer_header(const sl_gguf_writer *writer);

size_t sl_gguf_writer_count(const sl_gguf_writer *writer);            /* tensors */
size_t sl_gguf_writer_offset(const sl_gguf_writer *writer, size_t i); /* in the file */
size_t sl_gguf_writer_bytes(const sl_gguf_writer *writer, size_t i);
size_t sl_gguf_writer_total(const sl_gguf_writer *writer); /* of the whole file */

/* Gives the next n bytes of tensor i: called for every tensor in order, from its first byte to its
 * last, in pieces that are a multiple of 64 bytes but for the last. */
typedef sl_status (*sl_gguf_source)(void *context, size_t i, uint8_t *bytes, size_t n,
                                    sl_error *err);

/* Writes the file under the name given to create; it appears complete or not at all. Errors:
 * SL_ERR_IO naming the file, SL_ERR_MEMORY, and those of the source. */
sl_status sl_gguf_writer_save(const sl_gguf_writer *writer, sl_gguf_source source, void *context,
                              sl_error *err);

#endif
