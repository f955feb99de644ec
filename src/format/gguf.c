/* Parsing of GGUF containers from memory.
 *
 * The layout, all integers little-endian:
 *
 *   offset  size  meaning
 *   0       4     "GGUF"
 *   4       4     version: 2 or 3
 *   8       8     number of tensors
 *   16      8     number of keys
 *   24      ...   keys: string name, u32 value type, value
 *   ...     ...   tensors: string name, u32 n_dims, u64 ne[n_dims], u32 ggml type, u64 offset
 *   ...     ...   padding to a multiple of general.alignment (u32 key, 32 when absent)
 *   ...     ...   tensor data; a tensor's offset counts from here and is a multiple of the
 * alignment
 *
 * A string is a u64 length and that many bytes. Value types: 0 u8, 1 i8, 2 u16, 3 i16, 4 u32, 5
 * i32, 6 f32, 7 bool (a byte, 0 or 1), 8 string, 9 array (u32 item type, u64 number, items), 10
 * u64, 11 i64, 12 f64.
 *
 * Refused: other versions and big-endian files; any count or length that the bytes which follow
 * cannot hold; value types that are not defined; bools other than 0 and 1; empty names, names with
 * a NUL byte and names given twice; tensors without elements, of more than 4 dimensions, with 2^63
 * elements or more, with rows that are no whole number of blocks, not at a multiple of the
 * alignment, not inside the file, or sharing bytes with another; an alignment that is not a u32 and
 * a power of two; and what exceeds the limits below. Tensors of types that sluice cannot use are
 * kept and marked, because a file may carry tensors that nobody needs; their first byte must lie in
 * the file.
 *
 * Memory is taken as items are read, never for a number that the file merely claims. Look-ups and
 * the search for duplicates and overlaps sort, so no choice of names makes them slow. */
#include "format/gguf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/gguf_private.h"

enum {
    MAX_KEYS = 1 << 20,
    MAX_TENSORS = 1 << 20,
    MAX_KEY_BYTES = 65535,
    MAX_NAME_BYTES = 255,      /* the format says 64, some writers exceed it */
    MAX_ARRAY_DEPTH = 4,       /* 1 = an array of scalars or strings */
    MAX_ARRAY_ITEMS = 4 << 20, /* strings and inner arrays of a file, all arrays together */
    MAX_ALIGNMENT = 1 << 20,
    DEFAULT_ALIGNMENT = 32,
    LABEL_BYTES = 160,
    QUOTED_BYTES = 80, /* of a name in a message */

    HEADER_BYTES = 24,
    MIN_KEY_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 8 + 4 + 8,
};

static const struct {
    const char *name;
    size_t size;
} value_types[SL_GGUF_TYPE_COUNT] = {
    [SL_GGUF_U8] = {"u8", 1},   [SL_GGUF_I8] = {"i8", 1},       [SL_GGUF_U16] = {"u16", 2},
    [SL_GGUF_I16] = {"i16", 2}, [SL_GGUF_U32] = {"u32", 4},     [SL_GGUF_I32] = {"i32", 4},
    [SL_GGUF_F32] = {"f32", 4}, [SL_GGUF_BOOL] = {"bool", 1},   [SL_GGUF_STRING] = {"string", 0},
    [SL_GGUF_U64] = {"u64", 8}, [SL_GGUF_ARRAY] = {"array", 0}, [SL_GGUF_I64] = {"i64", 8},
    [SL_GGUF_F64] = {"f64", 8},
};

size_t sl_gguf_type_size(sl_gguf_type type)
{
    return value_types[type].size;
}

const char *sl_gguf_type_name(sl_gguf_type type)
{
    return value_types[type].name;
}

/* ---- the bounded reader ---- */

typedef struct reader {
    const uint8_t *data;
    size_t size;
    size_t pos;
    sl_error *err;
    const char *label;
    size_t items_left; /* of MAX_ARRAY_ITEMS */

    /* What is being read, for messages. */
    const char *part; /* "key", "tensor"; NULL in the header */
    size_t number;    /* 1 = the first */
    sl_str name;      /* empty until it has been read */
} reader;

/* "FILE: tensor 3 "blk.0.ssm_a": SENTENCE (byte OFFSET)" */
static sl_status refuse(const reader *r, sl_status status, uint64_t offset, const char *format, ...)
    SL_PRINTF(4, 5);

static sl_status refuse(const reader *r, sl_status status, uint64_t offset, const char *format, ...)
{
    char sentence[256], place[QUOTED_BYTES + 64] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    if (r->part && r->name.n_bytes > 0)
        snprintf(place, sizeof place, "%s %zu \"%.*s\": ", r->part, r->number,
                 (int)sl_min_size(r->name.n_bytes, QUOTED_BYTES), r->name.data);
    else if (r->part)
        snprintf(place, sizeof place, "%s %zu: ", r->part, r->number);
    return sl_fail(r->err, status, "%s: %s%s (byte %" PRIu64 ")", r->label, place, sentence,
                   offset);
}

static sl_status out_of_memory(const reader *r)
{
    return sl_fail(r->err, SL_ERR_MEMORY, "%s: out of memory for the metadata", r->label);
}

static sl_status take(reader *r, uint64_t n, const char *what, const uint8_t **bytes)
{
    size_t left = r->size - r->pos;
    if (n > left)
        return refuse(r, SL_ERR_FORMAT, r->pos,
                      "%s needs %" PRIu64 " bytes, but only %zu remain in the file", what, n, left);
    *bytes = r->data + r->pos;
    r->pos += (size_t)n;
    return SL_OK;
}

static sl_status take_uint(reader *r, size_t n_bytes, const char *what, uint64_t *value)
{
    const uint8_t *bytes = NULL;
    SL_TRY(take(r, n_bytes, what, &bytes));
    *value = load_le(bytes, n_bytes);
    return SL_OK;
}

static sl_status take_string(reader *r, const char *what, sl_str *string)
{
    uint64_t n = 0;
    const uint8_t *bytes = NULL;
    SL_TRY(take_uint(r, 8, "a string length", &n));
    SL_TRY(take(r, n, what, &bytes));
    *string = (sl_str){(const char *)bytes, (size_t)n};
    return SL_OK;
}

/* The name of a key or tensor, which then names it in messages. */
static sl_status take_name(reader *r, size_t max_bytes, sl_str *name)
{
    size_t begin = r->pos;
    SL_TRY(take_string(r, "the name", name));
    if (name->n_bytes == 0)
        return refuse(r, SL_ERR_FORMAT, begin, "the name is empty");
    if (name->n_bytes > max_bytes)
        return refuse(r, SL_ERR_UNSUPPORTED, begin, "the name has %zu bytes, the limit is %zu",
                      name->n_bytes, max_bytes);
    if (memchr(name->data, '\0', name->n_bytes))
        return refuse(r, SL_ERR_FORMAT, begin, "the name contains a NUL byte");
    r->name = *name;
    return SL_OK;
}

/* Room for one more item of an array that grows as the file is read. NULL = out of memory. */
static void *grown(void *array, size_t count, size_t *capacity, size_t item_bytes)
{
    if (count < *capacity)
        return array;
    size_t wanted = *capacity == 0 ? 32 : *capacity + *capacity / 2, n_bytes;
    if (!sl_size_mul(wanted, item_bytes, &n_bytes))
        return NULL;
    void *larger = sl_realloc(SL_MEM_FORMAT, array, n_bytes);
    if (larger)
        *capacity = wanted;
    return larger;
}

/* ---- names in order ---- */

static int compare_names(const sl_str *a, const sl_str *b)
{
    int order = memcmp(a->data, b->data, sl_min_size(a->n_bytes, b->n_bytes));
    return order != 0 ? order : (a->n_bytes > b->n_bytes) - (a->n_bytes < b->n_bytes);
}

static int compare_entries(const void *a, const void *b)
{
    const sl_str *left = *(const sl_str *const *)a, *right = *(const sl_str *const *)b;
    int order = compare_names(left, right);
    /* Equal names in file order, so that the later one is the one complained about. */
    return order != 0 ? order : (left > right) - (left < right);
}

/* Indexes n structs of `stride` bytes that begin with their name. *again is a struct whose name
 * an earlier one has, or NULL. */
static sl_status build_index(const reader *r, name_index *index, const void *first, size_t n,
                             size_t stride, const void **again)
{
    *again = NULL;
    index->names = sl_alloc_array(SL_MEM_FORMAT, n, sizeof *index->names);
    if (!index->names)
        return out_of_memory(r);
    index->n = n;
    for (size_t i = 0; i < n; i++)
        index->names[i] = (const sl_str *)(const void *)((const char *)first + i * stride);
    qsort(index->names, n, sizeof *index->names, compare_entries);
    for (size_t i = 1; i < n && !*again; i++)
        if (compare_names(index->names[i - 1], index->names[i]) == 0)
            *again = index->names[i];
    return SL_OK;
}

const sl_str *sl_gguf_index_find(const name_index *index, const char *name)
{
    sl_str wanted = sl_str_of(name);
    size_t low = 0, high = index->n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = compare_names(index->names[middle], &wanted);
        if (order == 0)
            return index->names[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* ---- header ---- */

static sl_status parse_magic(reader *r)
{
    const uint8_t *magic = NULL;
    SL_TRY(take(r, 4, "the magic number of a GGUF file", &magic));
    if (memcmp(magic, "GGUF", 4) == 0)
        return SL_OK;
    if (memcmp(magic, "FUGG", 4) == 0)
        return refuse(r, SL_ERR_UNSUPPORTED, 0, "this is a big-endian GGUF file");
    static const char pointer[] = "version https://git-lfs";
    if (r->size >= sizeof pointer - 1 && memcmp(r->data, pointer, sizeof pointer - 1) == 0)
        return refuse(r, SL_ERR_FORMAT, 0,
                      "this is a Git LFS pointer: the model itself was not downloaded");
    return refuse(r, SL_ERR_FORMAT, 0,
                  "this is not a GGUF file: it begins with bytes %02x %02x %02x %02x", magic[0],
                  magic[1], magic[2], magic[3]);
}

static sl_status parse_version(reader *r, uint32_t *version)
{
    uint64_t value = 0;
    SL_TRY(take_uint(r, 4, "the version", &value));
    if (value >= 0x10000 && (value & 0xffff) == 0)
        return refuse(r, SL_ERR_UNSUPPORTED, 4, "this is a big-endian GGUF file");
    if (value != 2 && value != 3)
        return refuse(r, SL_ERR_UNSUPPORTED, 4,
                      "GGUF version %" PRIu64 " cannot be read, only 2 and 3", value);
    *version = (uint32_t)value;
    return SL_OK;
}

/* A count of the header that the rest of the file can hold, each item taking at least min_bytes. */
static sl_status parse_count(reader *r, const char *what, size_t max, size_t min_bytes,
                             size_t *count)
{
    size_t begin = r->pos;
    uint64_t n = 0;
    SL_TRY(take_uint(r, 8, what, &n));
    size_t left = r->size > HEADER_BYTES ? r->size - HEADER_BYTES : 0;
    if (n > left / min_bytes)
        return refuse(r, SL_ERR_FORMAT, begin, "%s is %" PRIu64 ", but only %zu bytes follow", what,
                      n, left);
    if (n > max)
        return refuse(r, SL_ERR_UNSUPPORTED, begin, "%s is %" PRIu64 ", the limit is %zu", what, n,
                      max);
    *count = (size_t)n;
    return SL_OK;
}

/* ---- keys ---- */

static sl_status take_type(reader *r, const char *what, sl_gguf_type *type)
{
    size_t begin = r->pos;
    uint64_t value = 0;
    SL_TRY(take_uint(r, 4, what, &value));
    if (value >= SL_GGUF_TYPE_COUNT)
        return refuse(r, SL_ERR_FORMAT, begin, "%s is %" PRIu64 ", which GGUF does not define",
                      what, value);
    *type = (sl_gguf_type)value;
    return SL_OK;
}

/* The type and number of an array's items; the number is one that the file can hold. */
static sl_status take_array_head(reader *r, sl_gguf_type *item_type, size_t *n_items)
{
    SL_TRY(take_type(r, "the item type", item_type));
    size_t begin = r->pos;
    uint64_t n = 0;
    SL_TRY(take_uint(r, 8, "the number of items", &n));
    size_t fixed = sl_gguf_type_size(*item_type), left = r->size - r->pos;
    /* A string is at least its length, an array its type and length. */
    size_t min_bytes = fixed > 0 ? fixed : *item_type == SL_GGUF_STRING ? 8 : 12;
    if (n > left / min_bytes)
        return refuse(r, SL_ERR_FORMAT, begin,
                      "%" PRIu64 " items of type %s do not fit in the %zu bytes that remain", n,
                      sl_gguf_type_name(*item_type), left);
    if (fixed == 0 && n > r->items_left)
        return refuse(r, SL_ERR_UNSUPPORTED, begin, "the file has more than %d strings in arrays",
                      MAX_ARRAY_ITEMS);
    if (fixed == 0)
        r->items_left -= (size_t)n;
    *n_items = (size_t)n;
    return SL_OK;
}

/* Checks and passes n items. depth counts the arrays around them. */
static sl_status skip_items(reader *r, sl_gguf_type type, size_t n, int depth)
{
    const uint8_t *bytes = NULL;
    if (sl_gguf_type_size(type) > 0) /* the product was bounded with the number */
        return take(r, n * sl_gguf_type_size(type), "an array", &bytes);
    if (type == SL_GGUF_ARRAY && depth >= MAX_ARRAY_DEPTH)
        return refuse(r, SL_ERR_UNSUPPORTED, r->pos, "arrays are nested more than %d deep",
                      MAX_ARRAY_DEPTH);
    for (size_t i = 0; i < n; i++) {
        if (type == SL_GGUF_STRING) {
            sl_str string;
            SL_TRY(take_string(r, "a string of an array", &string));
        } else {
            sl_gguf_type inner_type = SL_GGUF_U8;
            size_t n_inner = 0;
            SL_TRY(take_array_head(r, &inner_type, &n_inner));
            SL_TRY(skip_items(r, inner_type, n_inner, depth + 1));
        }
    }
    return SL_OK;
}

/* Every length is read once: the file may be written over while it is mapped, and what was checked
 * must be what is used. */
static sl_status parse_strings(reader *r, gguf_key *key, size_t n)
{
    size_t capacity = 0;
    for (size_t i = 0; i < n; i++) {
        sl_str *strings = grown(key->strings, i, &capacity, sizeof *strings);
        if (!strings)
            return out_of_memory(r);
        key->strings = strings;
        SL_TRY(take_string(r, "a string of an array", &strings[i]));
        key->n = i + 1;
    }
    if (n == capacity)
        return SL_OK;
    sl_str *exact = sl_realloc(SL_MEM_FORMAT, key->strings, n * sizeof *exact);
    if (!exact)
        return out_of_memory(r);
    key->strings = exact;
    return SL_OK;
}

static sl_status parse_array(reader *r, gguf_key *key)
{
    size_t n = 0;
    SL_TRY(take_array_head(r, &key->item_type, &n));
    key->data = r->data + r->pos;
    if (key->item_type == SL_GGUF_STRING)
        return parse_strings(r, key, n);
    key->n = n;
    return skip_items(r, key->item_type, n, 1);
}

static sl_status parse_key(reader *r, gguf_key *key)
{
    key->offset = r->pos;
    SL_TRY(take_name(r, MAX_KEY_BYTES, &key->name));
    SL_TRY(take_type(r, "the value type", &key->type));
    if (key->type == SL_GGUF_ARRAY)
        return parse_array(r, key);
    if (key->type == SL_GGUF_STRING) {
        sl_str text;
        SL_TRY(take_string(r, "the string", &text));
        key->data = (const uint8_t *)text.data;
        key->n = text.n_bytes;
        return SL_OK;
    }
    SL_TRY(take(r, sl_gguf_type_size(key->type), "the value", &key->data));
    if (key->type == SL_GGUF_BOOL && *key->data > 1)
        return refuse(r, SL_ERR_FORMAT, r->pos - 1, "the bool is %u, neither 0 nor 1", *key->data);
    return SL_OK;
}

static sl_status parse_keys(reader *r, sl_gguf *g, size_t n)
{
    size_t capacity = 0;
    r->part = "key";
    for (size_t i = 0; i < n; i++) {
        gguf_key *keys = grown(g->keys, i, &capacity, sizeof *keys);
        if (!keys)
            return out_of_memory(r);
        g->keys = keys;
        keys[i] = (gguf_key){0};
        g->n_keys = i + 1; /* before it is parsed: it may come to own a table */
        r->number = i + 1;
        r->name = (sl_str){0};
        SL_TRY(parse_key(r, &keys[i]));
    }
    const void *again;
    SL_TRY(build_index(r, &g->key_index, g->keys, n, sizeof *g->keys, &again));
    if (again) {
        const gguf_key *key = again;
        r->number = (size_t)(key - g->keys) + 1;
        r->name = key->name;
        return refuse(r, SL_ERR_FORMAT, key->offset, "an earlier key has the same name");
    }
    return SL_OK;
}

static sl_status find_alignment(reader *r, const sl_gguf *g, size_t *alignment)
{
    *alignment = DEFAULT_ALIGNMENT;
    const void *found = sl_gguf_index_find(&g->key_index, "general.alignment");
    if (!found)
        return SL_OK;
    const gguf_key *key = found;
    r->number = (size_t)(key - g->keys) + 1;
    r->name = key->name;
    if (key->type != SL_GGUF_U32)
        return refuse(r, SL_ERR_FORMAT, key->offset, "the value has type %s, not u32",
                      sl_gguf_type_name(key->type));
    uint64_t value = load_le(key->data, 4);
    if (value == 0 || (value & (value - 1)) != 0 || value > MAX_ALIGNMENT)
        return refuse(r, SL_ERR_FORMAT, key->offset,
                      "%" PRIu64 " is not a power of two from 1 to %d", value, MAX_ALIGNMENT);
    *alignment = (size_t)value;
    return SL_OK;
}

/* ---- tensors ---- */

/* ne, and the number of elements below 2^63. */
static sl_status parse_shape(reader *r, sl_gguf_tensor *tensor)
{
    size_t begin = r->pos;
    uint64_t n_dims = 0, n_elems = 1;
    SL_TRY(take_uint(r, 4, "the number of dimensions", &n_dims));
    if (n_dims < 1 || n_dims > 4)
        return refuse(r, SL_ERR_FORMAT, begin, "%" PRIu64 " dimensions, expected 1 to 4", n_dims);
    tensor->n_dims = (uint32_t)n_dims;
    for (uint32_t d = 0; d < 4; d++) {
        tensor->ne[d] = 1;
        if (d >= n_dims)
            continue;
        begin = r->pos;
        SL_TRY(take_uint(r, 8, "a dimension", &tensor->ne[d]));
        if (tensor->ne[d] == 0)
            return refuse(r, SL_ERR_FORMAT, begin, "dimension %u is 0", d);
        if (tensor->ne[d] > INT64_MAX / n_elems)
            return refuse(r, SL_ERR_FORMAT, begin, "dimension %u is %" PRIu64 ": too many elements",
                          d, tensor->ne[d]);
        n_elems *= tensor->ne[d];
    }
    return SL_OK;
}

/* The type, and for usable ones the number of bytes. */
static sl_status parse_type(reader *r, sl_gguf_tensor *tensor)
{
    size_t begin = r->pos;
    uint64_t type = 0;
    SL_TRY(take_uint(r, 4, "the ggml type", &type));
    tensor->ggml_type = (uint32_t)type;
    const char *name;
    tensor->usable = sl_dtype_from_ggml(tensor->ggml_type, &tensor->dtype, &name);
    if (!tensor->usable)
        return SL_OK;
    uint32_t block = sl_dtype_get(tensor->dtype)->block_elems;
    if (tensor->ne[0] % block != 0)
        return refuse(r, SL_ERR_FORMAT, begin,
                      "rows of %" PRIu64 " elements are not a whole number of %s blocks of %u",
                      tensor->ne[0], name, block);
    size_t row_bytes;
    uint64_t n_rows = tensor->ne[1] * tensor->ne[2] * tensor->ne[3]; /* below 2^63 */
    if (!sl_dtype_row_bytes(tensor->dtype, tensor->ne[0], &row_bytes) || n_rows > SIZE_MAX ||
        !sl_size_mul(row_bytes, (size_t)n_rows, &tensor->n_bytes))
        return refuse(r, SL_ERR_FORMAT, begin, "the size in bytes overflows");
    return SL_OK;
}

static sl_status parse_tensors(reader *r, sl_gguf *g, size_t n)
{
    size_t capacity = 0;
    r->part = "tensor";
    for (size_t i = 0; i < n; i++) {
        sl_gguf_tensor *tensors = grown(g->tensors, i, &capacity, sizeof *tensors);
        if (!tensors)
            return out_of_memory(r);
        g->tensors = tensors;
        g->n_tensors = i + 1;
        sl_gguf_tensor *tensor = &tensors[i];
        *tensor = (sl_gguf_tensor){.info_offset = r->pos};
        r->number = i + 1;
        r->name = (sl_str){0};
        SL_TRY(take_name(r, MAX_NAME_BYTES, &tensor->name));
        SL_TRY(parse_shape(r, tensor));
        SL_TRY(parse_type(r, tensor));
        SL_TRY(take_uint(r, 8, "the offset", &tensor->offset));
    }
    const void *again;
    SL_TRY(build_index(r, &g->tensor_index, g->tensors, n, sizeof *g->tensors, &again));
    if (again) {
        const sl_gguf_tensor *tensor = again;
        r->number = (size_t)(tensor - g->tensors) + 1;
        r->name = tensor->name;
        return refuse(r, SL_ERR_FORMAT, tensor->info_offset, "an earlier tensor has the same name");
    }
    return SL_OK;
}

/* The size of an unusable type is not known: its first byte stands for it. */
static size_t least_bytes(const sl_gguf_tensor *tensor)
{
    return tensor->usable ? tensor->n_bytes : 1;
}

static int compare_offsets(const void *a, const void *b)
{
    const sl_gguf_tensor *left = *(const sl_gguf_tensor *const *)a;
    const sl_gguf_tensor *right = *(const sl_gguf_tensor *const *)b;
    if (left->offset != right->offset)
        return left->offset < right->offset ? -1 : 1;
    return (left > right) - (left < right);
}

static sl_status check_overlaps(reader *r, const sl_gguf *g)
{
    const sl_gguf_tensor **sorted = sl_alloc_array(SL_MEM_FORMAT, g->n_tensors, sizeof *sorted);
    if (!sorted)
        return out_of_memory(r);
    for (size_t i = 0; i < g->n_tensors; i++)
        sorted[i] = &g->tensors[i];
    qsort(sorted, g->n_tensors, sizeof *sorted, compare_offsets);
    sl_status status = SL_OK;
    for (size_t i = 1; i < g->n_tensors && status == SL_OK; i++) {
        const sl_gguf_tensor *before = sorted[i - 1], *tensor = sorted[i];
        if (tensor->offset - before->offset >= least_bytes(before))
            continue;
        r->number = (size_t)(tensor - g->tensors) + 1;
        r->name = tensor->name;
        status = refuse(r, SL_ERR_FORMAT, tensor->info_offset,
                        "its data at byte %" PRIu64 " overlaps that of \"%.*s\"", tensor->offset,
                        (int)sl_min_size(before->name.n_bytes, QUOTED_BYTES), before->name.data);
    }
    sl_free(sorted);
    return status;
}

/* Turns offsets in the data into offsets in the file, and checks that the data is there. */
static sl_status place_tensors(reader *r, sl_gguf *g, size_t alignment)
{
    size_t begin;
    if (!sl_size_align(r->pos, alignment, &begin))
        begin = SIZE_MAX;
    size_t available = begin < r->size ? r->size - begin : 0;
    for (size_t i = 0; i < g->n_tensors; i++) {
        sl_gguf_tensor *tensor = &g->tensors[i];
        r->number = i + 1;
        r->name = tensor->name;
        if (tensor->offset % alignment != 0)
            return refuse(r, SL_ERR_FORMAT, tensor->info_offset,
                          "its offset %" PRIu64 " is not a multiple of the alignment %zu",
                          tensor->offset, alignment);
        size_t n_bytes = least_bytes(tensor);
        if (tensor->offset > available || n_bytes > available - tensor->offset)
            return refuse(r, SL_ERR_FORMAT, tensor->info_offset,
                          "its %zu bytes at offset %" PRIu64
                          " of the data (from byte %zu) end past "
                          "the file's %zu bytes: the file is cut short or damaged",
                          n_bytes, tensor->offset, begin, r->size);
        tensor->offset += begin;
    }
    return g->n_tensors > 1 ? check_overlaps(r, g) : SL_OK;
}

/* ---- the whole ---- */

static sl_status parse(reader *r, sl_gguf *g)
{
    size_t n_tensors = 0, n_keys = 0, alignment = 0;
    SL_TRY(parse_magic(r));
    SL_TRY(parse_version(r, &g->version));
    SL_TRY(parse_count(r, "the number of tensors", MAX_TENSORS, MIN_TENSOR_BYTES, &n_tensors));
    SL_TRY(parse_count(r, "the number of keys", MAX_KEYS, MIN_KEY_BYTES, &n_keys));
    SL_TRY(parse_keys(r, g, n_keys));
    SL_TRY(find_alignment(r, g, &alignment));
    SL_TRY(parse_tensors(r, g, n_tensors));
    return place_tensors(r, g, alignment);
}

sl_status sl_gguf_parse(const uint8_t *data, size_t size, const char *file, sl_gguf **out,
                        sl_error *err)
{
    *out = NULL;
    size_t n_file = strlen(file);
    reader r = {
        .data = data,
        .size = size,
        .err = err,
        .label = file + (n_file > LABEL_BYTES ? n_file - LABEL_BYTES : 0),
        .items_left = MAX_ARRAY_ITEMS,
    };
    sl_gguf *g = sl_alloc_zero(SL_MEM_FORMAT, sizeof *g);
    if (!g)
        return out_of_memory(&r);
    sl_status status = SL_OK;
    g->file = sl_strndup(SL_MEM_FORMAT, file, n_file);
    if (g->file) {
        g->label = g->file + (r.label - file);
        status = parse(&r, g);
    } else {
        status = out_of_memory(&r);
    }
    if (status != SL_OK) {
        sl_gguf_free(g);
        return status;
    }
    *out = g;
    return SL_OK;
}

void sl_gguf_free(sl_gguf *gguf)
{
    if (!gguf)
        return;
    for (size_t i = 0; i < gguf->n_keys; i++)
        sl_free(gguf->keys[i].strings);
    sl_free(gguf->keys);
    sl_free(gguf->tensors);
    sl_free(gguf->key_index.names);
    sl_free(gguf->tensor_index.names);
    sl_free(gguf->file);
    sl_free(gguf);
}

uint32_t sl_gguf_version(const sl_gguf *gguf)
{
    return gguf->version;
}

const char *sl_gguf_file(const sl_gguf *gguf)
{
    return gguf->file;
}

size_t sl_gguf_tensor_count(const sl_gguf *gguf)
{
    return gguf->n_tensors;
}

const sl_gguf_tensor *sl_gguf_tensor_at(const sl_gguf *gguf, size_t i)
{
    return i < gguf->n_tensors ? &gguf->tensors[i] : NULL;
}

const sl_gguf_tensor *sl_gguf_find_tensor(const sl_gguf *gguf, const char *name)
{
    /* The name is the first member. */
    return (const sl_gguf_tensor *)(const void *)sl_gguf_index_find(&gguf->tensor_index, name);
}
