/* A model on disk, whatever its container: tensors by name, and the metadata sources beside them.
 *
 * path is a .gguf file (the first or only part of a split file, any name: blobs of other tools have
 * none), or a Hugging Face folder with config.json and safetensors. The bytes stay mapped; nothing
 * is copied. Tensor names are those of the container (blk.0.attn_norm.weight or
 * model.layers.0.input_layernorm.weight); model/bind.c knows both vocabularies. */
#ifndef SL_FORMAT_WEIGHTS_H
#define SL_FORMAT_WEIGHTS_H

#include "base/json.h"
#include "format/gguf.h"

typedef enum sl_container { SL_CONTAINER_GGUF, SL_CONTAINER_HF } sl_container;

typedef struct sl_tensor {
    const char *name;
    sl_dtype dtype;
    uint32_t n_dims;
    uint64_t ne[4];      /* ne[0] contiguous, as in GGUF, for both containers; unused ones are 1 */
    const uint8_t *data; /* mapped, possibly unaligned */
    size_t n_bytes;
    const char *file; /* the part it lies in, for messages */
    uint64_t offset;  /* of data in that file */
} sl_tensor;

typedef struct sl_weights sl_weights;

/* Errors: SL_ERR_IO, SL_ERR_FORMAT, SL_ERR_UNSUPPORTED; the sentence names file, field, offset.
 * Tensors of types that sluice cannot use are left out of the lookup, and sl_weights_why_missing
 * tells. */
sl_status sl_weights_open(const char *path, sl_weights **out, sl_error *err);
void sl_weights_close(sl_weights *weights);

/* The same for a GGUF file of n_bytes in memory, without a chat template. Only the first n_present
 * bytes are there, at least the header; tensors that begin behind them can be described and bound
 * but have other bytes than their own, which nobody may read. block is from sl_alloc and belongs to
 * the result, and is released when there is none. path names it in messages. */
sl_status sl_weights_adopt(const char *path, uint8_t *block, size_t n_present, size_t n_bytes,
                           sl_weights **out, sl_error *err);

sl_container sl_weights_container(const sl_weights *weights);
const char *sl_weights_path(const sl_weights *weights);

size_t sl_weights_count(const sl_weights *weights);
const sl_tensor *sl_weights_at(const sl_weights *weights, size_t i);
const sl_tensor *sl_weights_find(const sl_weights *weights, const char *name);

/* True also for a tensor whose type sluice cannot use: it is there, so it is not optional. */
bool sl_weights_has(const sl_weights *weights, const char *name);

/* For a name that sl_weights_find does not know: writes why ("is not in FILE", or "has type IQ2_XS,
 * which sluice cannot use"). */
void sl_weights_why_missing(const sl_weights *weights, const char *name, char *text,
                            size_t capacity);

/* GGUF: the metadata of the first part. NULL for folders. */
const sl_gguf *sl_weights_gguf(const sl_weights *weights);

/* Folders: the parsed files, NULL when absent (config.json never is). For GGUF all NULL. */
const json_t *sl_weights_config(const sl_weights *weights);
const json_t *sl_weights_generation_config(const sl_weights *weights);
const json_t *sl_weights_tokenizer(const sl_weights *weights); /* tokenizer.json */
const json_t *sl_weights_tokenizer_config(const sl_weights *weights);

/* The chat template: `tokenizer.chat_template`, chat_template.jinja, or the member of
 * tokenizer_config.json (a string, or the entry named "default" of a list). Empty when there is
 * none. The bytes live as long as the weights. */
sl_str sl_weights_chat_template(const sl_weights *weights);

/* See sl_filemap_release; does nothing for bytes that are not of these weights. Bytes of files come
 * back when they are read again, those of adopted memory are lost: sl_weights_come_back. */
void sl_weights_release(const sl_weights *weights, const uint8_t *data, size_t n);
bool sl_weights_come_back(const sl_weights *weights);

/* SL_ERR_IO when part of a mapped file went away while it was being read. */
sl_status sl_weights_check(const sl_weights *weights, sl_error *err);

#endif
