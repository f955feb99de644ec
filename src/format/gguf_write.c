/* Owns the layout of the GGUF files it writes, version 3, little-endian:
 *
 *   offset  size  meaning
 *   0       4     "GGUF"
 *   4       4     version, 3
 *   8       8     number of tensors
 *   16      8     number of metadata keys
 *   24            per key: name, u32 type, value
 *                 per tensor: name, u32 dimensions, u64 extents, u32 type, u64 offset of its data
 *                 zeros up to a multiple of 32
 *                 the tensors' data, each at a multiple of 32
 *
 * A name is a u64 length and bytes; offsets count from the first tensor. Refused: tensors whose
 * rows are not whole blocks, arrays of strings with another number of strings than announced,
 * headers beyond HEADER_LIMIT. */
#include "format/gguf_write.h"

#include "base/buf.h"
#include "base/outfile.h"
#include "format/gguf.h"

enum { HEADER_LIMIT = 1 << 30, ALIGNMENT = 32, PIECE_BYTES = 4 << 20 };

typedef struct place {
    size_t offset; /* from the first tensor */
    size_t n_bytes;
} place;

struct sl_gguf_writer {
    char *file;
    sl_buf keys, infos;
    sl_buf header; /* after finishing */
    uint64_t n_keys;
    size_t strings_left; /* of an array that was begun */
    place *places;       /* [n_tensors] */
    size_t n_tensors, capacity;
    size_t data_bytes;
    sl_status status;
    sl_error error;
};

sl_status sl_gguf_writer_create(const char *file, sl_gguf_writer **out, sl_error *err)
{
    *out = NULL;
    sl_gguf_writer *writer = sl_alloc_zero(SL_MEM_FORMAT, sizeof *writer);
    char *name = writer ? sl_strndup(SL_MEM_FORMAT, file, strlen(file)) : NULL;
    if (!name) {
        sl_free(writer);
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for its header", file);
    }
    writer->file = name;
    sl_buf_init(&writer->keys, SL_MEM_FORMAT, HEADER_LIMIT);
    sl_buf_init(&writer->infos, SL_MEM_FORMAT, HEADER_LIMIT);
    sl_buf_init(&writer->header, SL_MEM_FORMAT, HEADER_LIMIT);
    *out = writer;
    return SL_OK;
}

void sl_gguf_writer_free(sl_gguf_writer *writer)
{
    if (!writer)
        return;
    sl_buf_free(&writer->keys);
    sl_buf_free(&writer->infos);
    sl_buf_free(&writer->header);
    sl_free(writer->places);
    sl_free(writer->file);
    sl_free(writer);
}

/* ---- pieces ---- */

static void put_bytes(sl_gguf_writer *writer, sl_buf *buf, const void *bytes, size_t n)
{
    if (writer->status == SL_OK)
        writer->status = sl_buf_append(buf, bytes, n, &writer->error);
}

static void put_uint(sl_gguf_writer *writer, sl_buf *buf, uint64_t value, size_t width)
{
    unsigned char bytes[8];
    for (size_t i = 0; i < width; i++)
        bytes[i] = (unsigned char)(value >> 8 * i);
    put_bytes(writer, buf, bytes, width);
}

static void put_text(sl_gguf_writer *writer, sl_buf *buf, sl_str text)
{
    put_uint(writer, buf, text.n_bytes, 8);
    put_bytes(writer, buf, text.data, text.n_bytes);
}

static void refuse(sl_gguf_writer *writer, const char *what, const char *why)
{
    if (writer->status == SL_OK)
        writer->status =
            sl_fail(&writer->error, SL_ERR_ARGUMENT, "%s: %s %s", writer->file, what, why);
}

/* ---- metadata ---- */

/* Types in the file are numbered as sl_gguf_type is. */
static void begin_key(sl_gguf_writer *writer, const char *key, sl_gguf_type type)
{
    if (writer->strings_left > 0)
        refuse(writer, key, "comes before the array ahead of it is complete");
    put_text(writer, &writer->keys, sl_str_of(key));
    put_uint(writer, &writer->keys, (uint64_t)type, 4);
    writer->n_keys++;
}

void sl_gguf_put_u32(sl_gguf_writer *writer, const char *key, uint32_t value)
{
    begin_key(writer, key, SL_GGUF_U32);
    put_uint(writer, &writer->keys, value, 4);
}

void sl_gguf_put_f32(sl_gguf_writer *writer, const char *key, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    begin_key(writer, key, SL_GGUF_F32);
    put_uint(writer, &writer->keys, bits, 4);
}

void sl_gguf_put_bool(sl_gguf_writer *writer, const char *key, bool value)
{
    begin_key(writer, key, SL_GGUF_BOOL);
    put_uint(writer, &writer->keys, value, 1);
}

void sl_gguf_put_string(sl_gguf_writer *writer, const char *key, sl_str value)
{
    begin_key(writer, key, SL_GGUF_STRING);
    put_text(writer, &writer->keys, value);
}

static void begin_array(sl_gguf_writer *writer, const char *key, sl_gguf_type type, size_t n)
{
    begin_key(writer, key, SL_GGUF_ARRAY);
    put_uint(writer, &writer->keys, (uint64_t)type, 4);
    put_uint(writer, &writer->keys, n, 8);
}

void sl_gguf_put_i32s(sl_gguf_writer *writer, const char *key, const int32_t *values, size_t n)
{
    begin_array(writer, key, SL_GGUF_I32, n);
    for (size_t i = 0; i < n; i++)
        put_uint(writer, &writer->keys, (uint32_t)values[i], 4);
}

void sl_gguf_put_strings(sl_gguf_writer *writer, const char *key, size_t n)
{
    begin_array(writer, key, SL_GGUF_STRING, n);
    writer->strings_left = n;
}

void sl_gguf_add_string(sl_gguf_writer *writer, sl_str value)
{
    if (writer->strings_left == 0) {
        refuse(writer, "an array", "gets more strings than announced");
        return;
    }
    put_text(writer, &writer->keys, value);
    writer->strings_left--;
}

/* ---- tensors ---- */

/* No type of ours lies beyond the numbers tried. */
static uint32_t ggml_number(sl_dtype dtype)
{
    for (uint32_t number = 0; number < UINT8_MAX; number++) {
        const char *name;
        sl_dtype found;
        if (sl_dtype_from_ggml(number, &found, &name) && found == dtype)
            return number;
    }
    return UINT32_MAX;
}

static bool tensor_bytes(sl_dtype dtype, uint32_t n_dims, const uint64_t *ne, size_t *n_bytes)
{
    if (n_dims < 1 || n_dims > 4 || !sl_dtype_row_bytes(dtype, ne[0], n_bytes))
        return false;
    for (uint32_t d = 1; d < n_dims; d++) {
        if (ne[d] > SIZE_MAX || !sl_size_mul(*n_bytes, (size_t)ne[d], n_bytes))
            return false;
    }
    return true;
}

static place *new_place(sl_gguf_writer *writer)
{
    if (writer->n_tensors == writer->capacity) {
        const size_t capacity = writer->capacity ? 2 * writer->capacity : 256;
        place *places = sl_realloc(SL_MEM_FORMAT, writer->places, capacity * sizeof *places);
        if (!places) {
            if (writer->status == SL_OK)
                writer->status = sl_fail(&writer->error, SL_ERR_MEMORY,
                                         "%s: out of memory for its tensors", writer->file);
            return NULL;
        }
        writer->places = places;
        writer->capacity = capacity;
    }
    return &writer->places[writer->n_tensors++];
}

void sl_gguf_put_tensor(sl_gguf_writer *writer, const char *name, sl_dtype dtype, uint32_t n_dims,
                        const uint64_t *ne)
{
    size_t n_bytes, end;
    if (writer->status != SL_OK)
        return;
    if (!tensor_bytes(dtype, n_dims, ne, &n_bytes)) {
        refuse(writer, name, "has a shape that its type or a file cannot hold");
        return;
    }
    if (!sl_size_add(writer->data_bytes, n_bytes, &end) || !sl_size_align(end, ALIGNMENT, &end)) {
        refuse(writer, name, "makes the file too large");
        return;
    }
    place *p = new_place(writer);
    if (!p)
        return;
    *p = (place){writer->data_bytes, n_bytes};
    put_text(writer, &writer->infos, sl_str_of(name));
    put_uint(writer, &writer->infos, n_dims, 4);
    for (uint32_t d = 0; d < n_dims; d++)
        put_uint(writer, &writer->infos, ne[d], 8);
    put_uint(writer, &writer->infos, ggml_number(dtype), 4);
    put_uint(writer, &writer->infos, writer->data_bytes, 8);
    writer->data_bytes = end;
}

/* ---- the header ---- */

sl_status sl_gguf_writer_finish(sl_gguf_writer *writer, sl_error *err)
{
    static const char zeros[ALIGNMENT] = {0};
    if (writer->strings_left > 0)
        refuse(writer, "the last array", "is not complete");
    sl_buf *header = &writer->header;
    put_bytes(writer, header, "GGUF", 4);
    put_uint(writer, header, 3, 4);
    put_uint(writer, header, writer->n_tensors, 8);
    put_uint(writer, header, writer->n_keys, 8);
    put_bytes(writer, header, writer->keys.data, writer->keys.n_bytes);
    put_bytes(writer, header, writer->infos.data, writer->infos.n_bytes);
    put_bytes(writer, header, zeros, (ALIGNMENT - header->n_bytes % ALIGNMENT) % ALIGNMENT);
    size_t total;
    if (!sl_size_add(header->n_bytes, writer->data_bytes, &total))
        refuse(writer, "its header", "makes the file too large");
    if (writer->status != SL_OK)
        return sl_fail(err, writer->status, "%s", writer->error.message);
    return SL_OK;
}

sl_str sl_gguf_writer_header(const sl_gguf_writer *writer)
{
    return (sl_str){writer->header.data, writer->header.n_bytes};
}

size_t sl_gguf_writer_count(const sl_gguf_writer *writer)
{
    return writer->n_tensors;
}

size_t sl_gguf_writer_offset(const sl_gguf_writer *writer, size_t i)
{
    return writer->header.n_bytes + writer->places[i].offset;
}

size_t sl_gguf_writer_bytes(const sl_gguf_writer *writer, size_t i)
{
    return writer->places[i].n_bytes;
}

size_t sl_gguf_writer_total(const sl_gguf_writer *writer)
{
    return writer->header.n_bytes + writer->data_bytes;
}

/* ---- the file ---- */

/* Each tensor is followed by zeros up to the next multiple of the alignment. */
static sl_status write_tensor(const sl_gguf_writer *writer, size_t i, uint8_t *piece,
                              sl_gguf_source source, void *context, sl_outfile *file, sl_error *err)
{
    size_t left = writer->places[i].n_bytes;
    while (left > 0) {
        size_t n = sl_min_size(left, PIECE_BYTES);
        SL_TRY(source(context, i, piece, n, err));
        left -= n;
        if (left == 0) {
            const size_t padding = (ALIGNMENT - n % ALIGNMENT) % ALIGNMENT;
            memset(piece + n, 0, padding);
            n += padding;
        }
        SL_TRY(sl_outfile_write(file, piece, n, err));
    }
    return SL_OK;
}

sl_status sl_gguf_writer_save(const sl_gguf_writer *writer, sl_gguf_source source, void *context,
                              sl_error *err)
{
    sl_outfile *file = NULL;
    sl_status status = SL_OK;
    uint8_t *piece = sl_alloc(SL_MEM_FORMAT, PIECE_BYTES);
    if (!piece)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for writing it", writer->file);
    SL_CHECK(sl_outfile_open(writer->file, &file, err));
    SL_CHECK(sl_outfile_write(file, writer->header.data, writer->header.n_bytes, err));
    for (size_t i = 0; i < writer->n_tensors; i++)
        SL_CHECK(write_tensor(writer, i, piece, source, context, file, err));
    status = sl_outfile_commit(file, err);
    file = NULL;
done:
    sl_outfile_abandon(file);
    sl_free(piece);
    return status;
}
