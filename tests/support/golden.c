#include "golden.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

struct sl_golden {
    char *path;
    json_t *header;
    uint8_t *data;
    size_t n_tensors;
    sl_golden_tensor *tensors;
};

static void broken(const char *path, const char *what)
{
    print_error("%s: %s\n", path, what);
    fail();
}

static void *must_alloc(size_t n)
{
    void *p = malloc(n > 0 ? n : 1);
    if (!p)
        broken("golden data", "out of memory");
    return p;
}

static void *read_exact(FILE *file, size_t n, const char *path)
{
    char *bytes = must_alloc(n + 1);
    if (fread(bytes, 1, n, file) != n)
        broken(path, "shorter than its header says");
    bytes[n] = '\0';
    return bytes;
}

static void read_tensor(const sl_golden *g, const char *name, const json_t *entry, size_t n_data,
                        sl_golden_tensor *out)
{
    *out = (sl_golden_tensor){.name = name, .shape = {1, 1, 1, 1}, .n_elems = 1};
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape");
    const json_t *offsets = json_object_get(entry, "data_offsets");
    out->n_dims = json_array_size(shape);
    if (!dtype || out->n_dims > 4 || json_array_size(offsets) != 2)
        broken(g->path, name);
    for (size_t i = 0; i < out->n_dims; i++) {
        out->shape[i] = (size_t)json_integer_value(json_array_get(shape, i));
        out->n_elems *= out->shape[i];
    }
    size_t begin = (size_t)json_integer_value(json_array_get(offsets, 0));
    size_t end = (size_t)json_integer_value(json_array_get(offsets, 1));
    bool is_f32 = strcmp(dtype, "F32") == 0, is_i32 = strcmp(dtype, "I32") == 0;
    size_t elem = is_f32 || is_i32 ? 4 : strcmp(dtype, "U8") == 0 ? 1 : 2;
    out->n_bytes = out->n_elems * elem;
    if (begin > end || end > n_data || end - begin != out->n_bytes || begin % elem != 0)
        broken(g->path, name);
    out->u8 = g->data + begin;
    if (is_f32)
        out->f32 = (const float *)(const void *)out->u8;
    if (is_i32)
        out->i32 = (const int32_t *)(const void *)out->u8;
}

sl_golden *sl_golden_open(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        broken(path, "cannot be opened");
    uint64_t n_header;
    if (fread(&n_header, sizeof n_header, 1, file) != 1 || n_header > 100u << 20)
        broken(path, "has no header");
    char *text = read_exact(file, (size_t)n_header, path);
    long begin = ftell(file);
    fseek(file, 0, SEEK_END);
    size_t n_data = (size_t)(ftell(file) - begin);
    fseek(file, begin, SEEK_SET);

    sl_golden *g = must_alloc(sizeof *g);
    *g = (sl_golden){.path = must_alloc(strlen(path) + 1)};
    memcpy(g->path, path, strlen(path) + 1);
    g->data = read_exact(file, n_data, path);
    fclose(file);
    g->header = json_loadb(text, (size_t)n_header, 0, NULL);
    free(text);
    if (!json_is_object(g->header))
        broken(path, "has a header that is not JSON");
    g->tensors = must_alloc(json_object_size(g->header) * sizeof *g->tensors);
    const char *name;
    json_t *entry;
    json_object_foreach(g->header, name, entry)
    {
        if (strcmp(name, "__metadata__") != 0)
            read_tensor(g, name, entry, n_data, &g->tensors[g->n_tensors++]);
    }
    return g;
}

void sl_golden_close(sl_golden *golden)
{
    if (!golden)
        return;
    json_decref(golden->header);
    free(golden->data);
    free(golden->tensors);
    free(golden->path);
    free(golden);
}

const char *sl_golden_about(const sl_golden *golden)
{
    const json_t *metadata = json_object_get(golden->header, "__metadata__");
    const char *about = json_string_value(json_object_get(metadata, "about"));
    return about ? about : "";
}

size_t sl_golden_count(const sl_golden *golden)
{
    return golden->n_tensors;
}

const sl_golden_tensor *sl_golden_at(const sl_golden *golden, size_t i)
{
    return i < golden->n_tensors ? &golden->tensors[i] : NULL;
}

const sl_golden_tensor *sl_golden_find(const sl_golden *golden, const char *name)
{
    for (size_t i = 0; i < golden->n_tensors; i++)
        if (strcmp(golden->tensors[i].name, name) == 0)
            return &golden->tensors[i];
    return NULL;
}

const sl_golden_tensor *sl_golden_get(const sl_golden *golden, const char *name)
{
    const sl_golden_tensor *tensor = sl_golden_find(golden, name);
    if (!tensor)
        print_error("%s: no tensor %s\n", golden->path, name);
    assert_non_null(tensor);
    return tensor;
}

const float *sl_golden_f32(const sl_golden *golden, const char *name, size_t n_elems)
{
    const sl_golden_tensor *tensor = sl_golden_get(golden, name);
    if (!tensor->f32 || (n_elems > 0 && tensor->n_elems != n_elems))
        print_error("%s: %s is not F32 of %zu elements\n", golden->path, name, n_elems);
    assert_non_null(tensor->f32);
    assert_true(n_elems == 0 || tensor->n_elems == n_elems);
    return tensor->f32;
}

const int32_t *sl_golden_i32(const sl_golden *golden, const char *name, size_t n_elems)
{
    const sl_golden_tensor *tensor = sl_golden_get(golden, name);
    if (!tensor->i32 || (n_elems > 0 && tensor->n_elems != n_elems))
        print_error("%s: %s is not I32 of %zu elements\n", golden->path, name, n_elems);
    assert_non_null(tensor->i32);
    assert_true(n_elems == 0 || tensor->n_elems == n_elems);
    return tensor->i32;
}
