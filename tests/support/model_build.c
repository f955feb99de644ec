#include "model_build.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "format/weights.h"
#include "gguf_build.h"

/* ---- temporary folders ---- */

const char *sl_temp_make(void)
{
    static char paths[4][64];
    static unsigned next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "/tmp/sluice-test-XXXXXX");
    assert_non_null(mkdtemp(path));
    return path;
}

void sl_temp_remove(const char *folder)
{
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        char path[1024];
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        assert_int_equal(lstat(path, &info), 0);
        if (S_ISDIR(info.st_mode))
            sl_temp_remove(path);
        else
            assert_int_equal(unlink(path), 0);
    }
    closedir(dir);
    assert_int_equal(rmdir(folder), 0);
}

const char *sl_path(const char *folder, const char *name)
{
    static char paths[8][1024];
    static unsigned next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

void sl_write_file(const char *path, const void *bytes, size_t n_bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        print_error("%s cannot be written\n", path);
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n_bytes, file), n_bytes);
    assert_int_equal(fclose(file), 0);
}

void sl_write_text(const char *path, const char *text)
{
    sl_write_file(path, text, strlen(text));
}

uint8_t *sl_read_whole(const char *path, size_t *n_bytes)
{
    sl_gguf_build bytes;
    sl_gguf_build_read(&bytes, path);
    *n_bytes = bytes.n_bytes;
    return bytes.data;
}

void sl_copy_file(const char *from, const char *to)
{
    size_t n;
    uint8_t *bytes = sl_read_whole(from, &n);
    sl_write_file(to, bytes, n);
    free(bytes);
}

/* ---- tensors ---- */

void sl_test_model_read(sl_test_model *model, const char *path)
{
    sl_error err;
    sl_weights *weights;
    *model = (sl_test_model){0};
    assert_ok(sl_weights_open(path, &weights, &err));
    for (size_t i = 0; i < sl_weights_count(weights); i++) {
        const sl_tensor *from = sl_weights_at(weights, i);
        sl_test_tensor *to =
            sl_test_model_add(model, from->name, from->dtype, from->n_dims, from->ne);
        assert_int_equal(to->n_bytes, from->n_bytes);
        memcpy(to->data, from->data, from->n_bytes);
    }
    if (sl_weights_container(weights) == SL_CONTAINER_GGUF) {
        model->gguf = sl_read_whole(path, &model->n_gguf);
    } else {
        model->config = json_deep_copy(sl_weights_config(weights));
        assert_non_null(model->config);
    }
    sl_weights_close(weights);
}

void sl_test_model_free(sl_test_model *model)
{
    for (size_t i = 0; i < model->n_tensors; i++)
        free(model->tensors[i].data);
    free(model->tensors);
    free(model->gguf);
    json_decref(model->config);
    *model = (sl_test_model){0};
}

sl_test_tensor *sl_test_model_find(sl_test_model *model, const char *name)
{
    for (size_t i = 0; i < model->n_tensors; i++) {
        if (strcmp(model->tensors[i].name, name) == 0)
            return &model->tensors[i];
    }
    return NULL;
}

sl_test_tensor *sl_test_model_get(sl_test_model *model, const char *name)
{
    sl_test_tensor *tensor = sl_test_model_find(model, name);
    if (!tensor)
        print_error("the model has no tensor %s\n", name);
    assert_non_null(tensor);
    return tensor;
}

sl_test_tensor *sl_test_model_add(sl_test_model *model, const char *name, sl_dtype dtype,
                                  uint32_t n_dims, const uint64_t *ne)
{
    model->tensors = realloc(model->tensors, (model->n_tensors + 1) * sizeof *model->tensors);
    assert_non_null(model->tensors);
    sl_test_tensor *tensor = &model->tensors[model->n_tensors++];
    *tensor = (sl_test_tensor){.dtype = dtype, .n_dims = n_dims};
    snprintf(tensor->name, sizeof tensor->name, "%s", name);
    assert_true(sl_dtype_row_bytes(dtype, n_dims > 0 ? ne[0] : 1, &tensor->n_bytes));
    for (uint32_t d = 0; d < n_dims; d++) {
        tensor->ne[d] = ne[d];
        if (d > 0)
            tensor->n_bytes *= ne[d];
    }
    tensor->data = calloc(tensor->n_bytes + 1, 1);
    assert_non_null(tensor->data);
    return tensor;
}

void sl_test_model_remove(sl_test_model *model, const char *name)
{
    sl_test_tensor *tensor = sl_test_model_get(model, name);
    free(tensor->data);
    *tensor = model->tensors[--model->n_tensors];
}

void sl_test_model_rename(sl_test_model *model, const char *from, const char *to)
{
    sl_test_tensor *tensor = sl_test_model_get(model, from);
    snprintf(tensor->name, sizeof tensor->name, "%s", to);
}

void sl_test_model_fuse(sl_test_model *model, const char *name, const char *const *parts, size_t n)
{
    const sl_test_tensor *first = sl_test_model_get(model, parts[0]);
    sl_dtype dtype = first->dtype;
    uint64_t ne[2] = {first->ne[0], 0};
    for (size_t i = 0; i < n; i++)
        ne[1] += sl_test_model_get(model, parts[i])->ne[1];
    const uint8_t *data[16];
    size_t n_bytes[16];
    for (size_t i = 0; i < n; i++) {
        data[i] = sl_test_model_get(model, parts[i])->data;
        n_bytes[i] = sl_test_model_get(model, parts[i])->n_bytes;
    }
    uint8_t *to = sl_test_model_add(model, name, dtype, 2, ne)->data;
    for (size_t i = 0; i < n; i++) {
        memcpy(to, data[i], n_bytes[i]);
        to += n_bytes[i];
    }
    for (size_t i = 0; i < n; i++)
        sl_test_model_remove(model, parts[i]);
}

void sl_test_model_set(sl_test_model *model, const char *key, json_t *value)
{
    json_t *text = json_object_get(model->config, "text_config");
    json_t *object = json_object_get(text, key) ? text : model->config;
    if (value)
        assert_int_equal(json_object_set_new(object, key, value), 0);
    else
        json_object_del(object, key);
}

/* ---- writing ---- */

static uint32_t ggml_type_of(sl_dtype dtype)
{
    for (uint32_t type = 0; type < 64; type++) {
        sl_dtype found;
        const char *name;
        if (sl_dtype_from_ggml(type, &found, &name) && found == dtype)
            return type;
    }
    fail_msg("no ggml type for %s", sl_dtype_get(dtype)->name);
    return 0;
}

void sl_test_model_write_gguf(const sl_test_model *model, const char *path)
{
    sl_gguf_fields fields;
    sl_gguf_build b;
    sl_gguf_fields_init(&fields, model->gguf, model->n_gguf);
    size_t keys_end = fields.metadata_end;
    for (size_t i = 0; i < fields.n; i++) {
        if (fields.at[i].kind == SL_FIELD_NAME_LENGTH) {
            keys_end = fields.at[i].offset;
            break;
        }
    }
    sl_gguf_build_copy(&b, model->gguf, keys_end);
    sl_gguf_build_set(&b, 8, 8, 0); /* the tensor count */
    uint64_t offset = 0;
    for (size_t i = 0; i < model->n_tensors; i++) {
        const sl_test_tensor *t = &model->tensors[i];
        sl_gguf_build_tensor(&b, t->name, t->n_dims, t->ne, ggml_type_of(t->dtype), offset);
        offset += (t->n_bytes + 31) / 32 * 32;
    }
    for (size_t i = 0; i < model->n_tensors; i++) {
        sl_gguf_build_data(&b, 32, 0);
        sl_gguf_build_bytes(&b, model->tensors[i].data, model->tensors[i].n_bytes);
    }
    sl_write_file(path, b.data, b.n_bytes);
    sl_gguf_build_free(&b);
    sl_gguf_fields_free(&fields);
}

void sl_test_model_write_shard(const sl_test_model *model, size_t begin, size_t end,
                               const char *path)
{
    json_t *header = json_object();
    size_t offset = 0;
    for (size_t i = begin; i < end; i++) {
        const sl_test_tensor *t = &model->tensors[i];
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->n_dims; d++)
            json_array_insert_new(shape, 0, json_integer((json_int_t)t->ne[d]));
        json_object_set_new(header, t->name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype",
                                      t->type[0] ? t->type : sl_dtype_get(t->dtype)->name, "shape",
                                      shape, "data_offsets", (json_int_t)offset,
                                      (json_int_t)(offset + t->n_bytes)));
        offset += t->n_bytes;
    }
    char *text = json_dumps(header, JSON_COMPACT);
    assert_non_null(text);
    sl_gguf_build b = {0};
    sl_gguf_build_uint(&b, 8, strlen(text));
    sl_gguf_build_bytes(&b, text, strlen(text));
    for (size_t i = begin; i < end; i++)
        sl_gguf_build_bytes(&b, model->tensors[i].data, model->tensors[i].n_bytes);
    sl_write_file(path, b.data, b.n_bytes);
    sl_gguf_build_free(&b);
    free(text);
    json_decref(header);
}

void sl_test_model_write_hf(const sl_test_model *model, const char *folder)
{
    char *text = json_dumps(model->config, JSON_INDENT(1));
    assert_non_null(text);
    sl_write_text(sl_path(folder, "config.json"), text);
    free(text);
    sl_test_model_write_shard(model, 0, model->n_tensors, sl_path(folder, "model.safetensors"));
}
