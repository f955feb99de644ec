/* Makes models on disk for tests: takes the tensors of a good model, changes them at will, and
 * writes them as a GGUF file or as a Hugging Face folder inside a temporary folder. Test code only:
 * it fails the running test when something cannot be read or written. */
#ifndef SL_TESTS_MODEL_BUILD_H
#define SL_TESTS_MODEL_BUILD_H

#include <jansson.h>

#include "support.h"

#include "format/dtype.h"

/* ---- temporary folders ---- */

/* A new empty folder; the path lies in a static buffer per call depth of 4. sl_temp_remove deletes
 * it with the files and folders in it. */
const char *sl_temp_make(void);
void sl_temp_remove(const char *folder);

/* "FOLDER/name" in one of eight static buffers. */
const char *sl_path(const char *folder, const char *name);

void sl_write_file(const char *path, const void *bytes, size_t n_bytes);
void sl_write_text(const char *path, const char *text);
uint8_t *sl_read_whole(const char *path, size_t *n_bytes); /* free() it */
void sl_copy_file(const char *from, const char *to);

/* ---- tensors ---- */

typedef struct sl_test_tensor {
    char name[128];
    char type[16]; /* safetensors spelling; used instead of dtype there when not empty */
    sl_dtype dtype;
    uint32_t n_dims;
    uint64_t ne[8]; /* contiguous first */
    uint8_t *data;
    size_t n_bytes;
} sl_test_tensor;

typedef struct sl_test_model {
    sl_test_tensor *tensors;
    size_t n_tensors;
    uint8_t *gguf; /* the GGUF file whose metadata sl_test_model_write_gguf repeats */
    size_t n_gguf;
    json_t *config; /* what sl_test_model_write_hf writes as config.json */
} sl_test_model;

/* path: a GGUF file or a folder with model.safetensors. */
void sl_test_model_read(sl_test_model *model, const char *path);
void sl_test_model_free(sl_test_model *model);

sl_test_tensor *sl_test_model_find(sl_test_model *model, const char *name); /* NULL: absent */
sl_test_tensor *sl_test_model_get(sl_test_model *model, const char *name);  /* must be there */
/* A new tensor of zeros. */
sl_test_tensor *sl_test_model_add(sl_test_model *model, const char *name, sl_dtype dtype,
                                  uint32_t n_dims, const uint64_t *ne);
void sl_test_model_remove(sl_test_model *model, const char *name);
void sl_test_model_rename(sl_test_model *model, const char *from, const char *to);
/* A new tensor that holds the bytes of n others one after the other (their rows stacked). */
void sl_test_model_fuse(sl_test_model *model, const char *name, const char *const *parts, size_t n);

/* config member `key`, created or replaced; value is a new reference, NULL removes the member. The

 * text_config of nested files is used when it has the key. */
void sl_test_model_set(sl_test_model *model, const char *key, json_t *value);

void sl_test_model_write_gguf(const sl_test_model *model, const char *path);
/* config.json and model.safetensors; folder must exist. */
void sl_test_model_write_hf(const sl_test_model *model, const char *folder);
/* One safetensors file with the tensors [begin, end). */
void sl_test_model_write_shard(const sl_test_model *model, size_t begin, size_t end,
                               const char *path);

#endif
