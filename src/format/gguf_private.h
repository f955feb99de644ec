/* What gguf.c (parsing) and gguf_meta.c (typed access) share; no other file includes it. */
#ifndef SL_FORMAT_GGUF_PRIVATE_H
#define SL_FORMAT_GGUF_PRIVATE_H

#include "format/gguf.h"

/* One metadata key. All pointers but `strings` lie in the file's bytes. */
typedef struct gguf_key {
    sl_str name;     /* first, so that the name index can point at it */
    uint64_t offset; /* of the key's length field in the file */
    sl_gguf_type type;
    const uint8_t *data; /* the scalar; a string's text; an array's packed items */
    size_t n;            /* bytes of a string, items of an array */
    sl_gguf_type item_type;
    sl_str *strings; /* an array of strings, owned; NULL for every other */
} gguf_key;

/* Names in byte order, for look-ups by bisection. A hash table would be attackable by colliding
 * names; this is n log n for every file. */
typedef struct name_index {
    const sl_str **names; /* each the first member of a gguf_key or an sl_gguf_tensor */
    size_t n;
} name_index;

struct sl_gguf {
    char *file;
    const char *label; /* the end of file, short enough to leave room in messages */
    uint32_t version;
    size_t n_keys;
    gguf_key *keys;
    size_t n_tensors;
    sl_gguf_tensor *tensors;
    name_index key_index, tensor_index;
};

/* Bytes of a fixed-size value; 0 for strings and arrays. */
size_t sl_gguf_type_size(sl_gguf_type type);
const char *sl_gguf_type_name(sl_gguf_type type);

/* A little-endian unsigned integer of n bytes, 1 to 8, at any address. */
static inline uint64_t load_le(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        value |= (uint64_t)bytes[i] << 8 * i;
    return value;
}

/* The entry of index with that name, or NULL. */
const sl_str *sl_gguf_index_find(const name_index *index, const char *name);

#endif
