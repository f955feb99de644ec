#include "gguf_build.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bits.h"

static void *must_realloc(void *p, size_t n_bytes)
{
    p = realloc(p, n_bytes > 0 ? n_bytes : 1);
    assert_non_null(p);
    return p;
}

/* ---- writing ---- */

void sl_gguf_build_init(sl_gguf_build *b, uint32_t version)
{
    *b = (sl_gguf_build){0};
    sl_gguf_build_bytes(b, "GGUF", 4);
    sl_gguf_build_uint(b, 4, version);
    sl_gguf_build_uint(b, 8, 0);
    sl_gguf_build_uint(b, 8, 0);
}

void sl_gguf_build_copy(sl_gguf_build *b, const uint8_t *data, size_t n_bytes)
{
    *b = (sl_gguf_build){0};
    sl_gguf_build_bytes(b, data, n_bytes);
}

void sl_gguf_build_read(sl_gguf_build *b, const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        print_error("%s cannot be opened\n", path);
    assert_non_null(file);
    *b = (sl_gguf_build){0};
    char piece[65536];
    size_t n;
    while ((n = fread(piece, 1, sizeof piece, file)) > 0)
        sl_gguf_build_bytes(b, piece, n);
    fclose(file);
}

void sl_gguf_build_free(sl_gguf_build *b)
{
    free(b->data);
    *b = (sl_gguf_build){0};
}

static uint8_t *extend(sl_gguf_build *b, size_t n_bytes)
{
    if (n_bytes > b->capacity - b->n_bytes) {
        b->capacity = 2 * b->capacity + n_bytes;
        b->data = must_realloc(b->data, b->capacity);
    }
    uint8_t *end = b->data + b->n_bytes;
    b->n_bytes += n_bytes;
    return end;
}

void sl_gguf_build_bytes(sl_gguf_build *b, const void *bytes, size_t n_bytes)
{
    if (n_bytes > 0)
        memcpy(extend(b, n_bytes), bytes, n_bytes);
}

void sl_gguf_build_uint(sl_gguf_build *b, size_t width, uint64_t value)
{
    extend(b, width);
    sl_gguf_build_set(b, b->n_bytes - width, width, value);
}

void sl_gguf_build_string_n(sl_gguf_build *b, const char *string, size_t n_bytes)
{
    sl_gguf_build_uint(b, 8, n_bytes);
    sl_gguf_build_bytes(b, string, n_bytes);
}

void sl_gguf_build_string(sl_gguf_build *b, const char *string)
{
    sl_gguf_build_string_n(b, string, strlen(string));
}

void sl_gguf_build_set(sl_gguf_build *b, size_t offset, size_t width, uint64_t value)
{
    assert_true(offset <= b->n_bytes && width <= b->n_bytes - offset);
    for (size_t i = 0; i < width; i++)
        b->data[offset + i] = (uint8_t)(value >> 8 * i);
}

static void add_to_count(sl_gguf_build *b, size_t offset, int n)
{
    uint64_t count;
    memcpy(&count, b->data + offset, sizeof count);
    sl_gguf_build_set(b, offset, 8, count + (uint64_t)(int64_t)n);
}

void sl_gguf_build_key(sl_gguf_build *b, const char *name, uint32_t type)
{
    add_to_count(b, 16, 1);
    sl_gguf_build_string(b, name);
    sl_gguf_build_uint(b, 4, type);
}

static size_t type_width(uint32_t type)
{
    static const size_t widths[SL_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < SL_GGUF_TYPE_COUNT ? widths[type] : 0;
}

void sl_gguf_build_key_bits(sl_gguf_build *b, const char *name, sl_gguf_type type, uint64_t bits)
{
    sl_gguf_build_key(b, name, type);
    sl_gguf_build_uint(b, type_width(type), bits);
}

void sl_gguf_build_key_u32(sl_gguf_build *b, const char *name, uint32_t value)
{
    sl_gguf_build_key_bits(b, name, SL_GGUF_U32, value);
}

void sl_gguf_build_key_f32(sl_gguf_build *b, const char *name, float value)
{
    sl_gguf_build_key_bits(b, name, SL_GGUF_F32, sl_bits_of_float(value));
}

void sl_gguf_build_key_string(sl_gguf_build *b, const char *name, const char *value)
{
    sl_gguf_build_key(b, name, SL_GGUF_STRING);
    sl_gguf_build_string(b, value);
}

void sl_gguf_build_key_array(sl_gguf_build *b, const char *name, uint32_t item_type, uint64_t n)
{
    sl_gguf_build_key(b, name, SL_GGUF_ARRAY);
    sl_gguf_build_uint(b, 4, item_type);
    sl_gguf_build_uint(b, 8, n);
}

void sl_gguf_build_tensor(sl_gguf_build *b, const char *name, uint32_t n_dims, const uint64_t *ne,
                          uint32_t ggml_type, uint64_t offset)
{
    add_to_count(b, 8, 1);
    sl_gguf_build_string(b, name);
    sl_gguf_build_uint(b, 4, n_dims);
    for (uint32_t d = 0; d < n_dims; d++)
        sl_gguf_build_uint(b, 8, ne[d]);
    sl_gguf_build_uint(b, 4, ggml_type);
    sl_gguf_build_uint(b, 8, offset);
}

void sl_gguf_build_data(sl_gguf_build *b, size_t alignment, size_t n_bytes)
{
    while (b->n_bytes % alignment != 0)
        sl_gguf_build_uint(b, 1, 0);
    for (size_t i = 0; i < n_bytes; i++)
        sl_gguf_build_uint(b, 1, i * 31 + 7);
}

/* ---- the fields of a good file ---- */

typedef struct walker {
    const uint8_t *data;
    size_t n_bytes;
    size_t pos;
    sl_gguf_fields *fields;
    size_t capacity;
    const char *name;
    size_t n_name;
} walker;

static uint64_t read_uint(walker *w, size_t width)
{
    assert_true(width <= w->n_bytes - w->pos);
    uint64_t value = 0;
    memcpy(&value, w->data + w->pos, width);
    w->pos += width;
    return value;
}

/* Reads an integer and notes it as a field. */
static uint64_t field(walker *w, sl_gguf_field_kind kind, size_t width)
{
    sl_gguf_fields *fields = w->fields;
    if (fields->n == w->capacity) {
        w->capacity = 2 * w->capacity + 64;
        fields->at = must_realloc(fields->at, w->capacity * sizeof *fields->at);
    }
    fields->at[fields->n++] = (sl_gguf_field){kind, w->name, w->n_name, w->pos, width};
    return read_uint(w, width);
}

static void pass_over(walker *w, uint64_t n_bytes)
{
    assert_true(n_bytes <= w->n_bytes - w->pos);
    w->pos += (size_t)n_bytes;
}

static void walk_name(walker *w, sl_gguf_field_kind kind)
{
    /* The name lies behind its length, but the length's field should carry it already. */
    uint64_t n = read_uint(w, 8);
    w->name = (const char *)w->data + w->pos;
    w->n_name = (size_t)n;
    w->pos -= 8;
    pass_over(w, field(w, kind, 8));
}

static void walk_array(walker *w)
{
    uint32_t type = (uint32_t)field(w, SL_FIELD_ITEM_TYPE, 4);
    uint64_t n = field(w, SL_FIELD_ITEM_COUNT, 8);
    for (uint64_t i = 0; i < n; i++) {
        bool noted = i < 2 || i == n - 1;
        if (type == SL_GGUF_ARRAY)
            walk_array(w);
        else if (type == SL_GGUF_STRING)
            pass_over(w, noted ? field(w, SL_FIELD_STRING_LENGTH, 8) : read_uint(w, 8));
        else if (noted)
            field(w, SL_FIELD_ITEM, type_width(type));
        else
            pass_over(w, type_width(type));
    }
}

void sl_gguf_fields_init(sl_gguf_fields *fields, const uint8_t *data, size_t n_bytes)
{
    *fields = (sl_gguf_fields){0};
    walker w = {.data = data, .n_bytes = n_bytes, .fields = fields};
    fields->alignment = 32;
    pass_over(&w, 4);
    field(&w, SL_FIELD_VERSION, 4);
    uint64_t n_tensors = field(&w, SL_FIELD_TENSOR_COUNT, 8);
    uint64_t n_keys = field(&w, SL_FIELD_KEY_COUNT, 8);
    for (uint64_t i = 0; i < n_keys; i++) {
        walk_name(&w, SL_FIELD_KEY_LENGTH);
        uint32_t type = (uint32_t)field(&w, SL_FIELD_VALUE_TYPE, 4);
        if (type == SL_GGUF_ARRAY) {
            walk_array(&w);
        } else if (type == SL_GGUF_STRING) {
            pass_over(&w, field(&w, SL_FIELD_STRING_LENGTH, 8));
        } else {
            uint64_t value = field(&w, SL_FIELD_VALUE, type_width(type));
            if (w.n_name == 17 && memcmp(w.name, "general.alignment", 17) == 0)
                fields->alignment = (size_t)value;
        }
    }
    for (uint64_t i = 0; i < n_tensors; i++) {
        walk_name(&w, SL_FIELD_NAME_LENGTH);
        uint64_t n_dims = field(&w, SL_FIELD_N_DIMS, 4);
        for (uint64_t d = 0; d < n_dims; d++)
            field(&w, SL_FIELD_NE, 8);
        field(&w, SL_FIELD_GGML_TYPE, 4);
        field(&w, SL_FIELD_OFFSET, 8);
    }
    fields->metadata_end = w.pos;
    assert_true(sl_size_align(w.pos, fields->alignment, &fields->data_begin));
}

void sl_gguf_fields_free(sl_gguf_fields *fields)
{
    free(fields->at);
    *fields = (sl_gguf_fields){0};
}

static bool names(const sl_gguf_field *f, const char *name)
{
    if (!name || !f->name)
        return !name && !f->name;
    return f->n_name == strlen(name) && memcmp(f->name, name, f->n_name) == 0;
}

const sl_gguf_field *sl_gguf_fields_get(const sl_gguf_fields *fields, sl_gguf_field_kind kind,
                                        const char *name, size_t i)
{
    for (size_t k = 0; k < fields->n; k++)
        if (fields->at[k].kind == kind && names(&fields->at[k], name) && i-- == 0)
            return &fields->at[k];
    print_error("no such field: kind %d of %s\n", (int)kind, name ? name : "the header");
    fail();
    return NULL;
}

void sl_gguf_build_change(sl_gguf_build *b, sl_gguf_field_kind kind, const char *name, size_t i,
                          uint64_t value)
{
    sl_gguf_fields fields;
    sl_gguf_fields_init(&fields, b->data, b->n_bytes);
    const sl_gguf_field *f = sl_gguf_fields_get(&fields, kind, name, i);
    sl_gguf_build_set(b, f->offset, f->width, value);
    sl_gguf_fields_free(&fields);
}

/* The fields of one key are neighbours: from its name's length up to the next name or the end. */
static void key_extent(const sl_gguf_fields *fields, const char *name, size_t *begin, size_t *type,
                       size_t *end)
{
    const sl_gguf_field *first = sl_gguf_fields_get(fields, SL_FIELD_KEY_LENGTH, name, 0);
    *begin = first->offset;
    *type = sl_gguf_fields_get(fields, SL_FIELD_VALUE_TYPE, name, 0)->offset;
    *end = fields->metadata_end;
    for (const sl_gguf_field *f = first + 1; f < fields->at + fields->n; f++) {
        if (f->kind == SL_FIELD_KEY_LENGTH || f->kind == SL_FIELD_NAME_LENGTH) {
            *end = f->offset;
            break;
        }
    }
}

/* Puts other bytes in place of [begin, end) of the metadata and pads anew before the data. */
static void splice(sl_gguf_build *b, const sl_gguf_fields *fields, size_t begin, size_t end,
                   const sl_gguf_build *middle)
{
    sl_gguf_build out = {0};
    sl_gguf_build_bytes(&out, b->data, begin);
    sl_gguf_build_bytes(&out, middle->data, middle->n_bytes);
    sl_gguf_build_bytes(&out, b->data + end, fields->metadata_end - end);
    sl_gguf_build_data(&out, fields->alignment, 0);
    if (fields->data_begin < b->n_bytes)
        sl_gguf_build_bytes(&out, b->data + fields->data_begin, b->n_bytes - fields->data_begin);
    free(b->data);
    *b = out;
}

void sl_gguf_build_replace_key(sl_gguf_build *b, const char *name, uint32_t type, const void *value,
                               size_t n_bytes)
{
    sl_gguf_fields fields;
    size_t begin, type_at, end;
    sl_gguf_fields_init(&fields, b->data, b->n_bytes);
    key_extent(&fields, name, &begin, &type_at, &end);
    sl_gguf_build middle = {0};
    sl_gguf_build_uint(&middle, 4, type);
    sl_gguf_build_bytes(&middle, value, n_bytes);
    splice(b, &fields, type_at, end, &middle);
    sl_gguf_build_free(&middle);
    sl_gguf_fields_free(&fields);
}

void sl_gguf_build_remove_key(sl_gguf_build *b, const char *name)
{
    sl_gguf_fields fields;
    size_t begin, type_at, end;
    sl_gguf_fields_init(&fields, b->data, b->n_bytes);
    key_extent(&fields, name, &begin, &type_at, &end);
    add_to_count(b, 16, -1);
    sl_gguf_build nothing = {0};
    splice(b, &fields, begin, end, &nothing);
    sl_gguf_fields_free(&fields);
}
