/* Owns the layout of the files it writes:
 *
 *   offset  size  meaning
 *   0       8     n, bytes of the header, little-endian
 *   8       n     JSON: "__metadata__", then per tensor dtype, shape and data_offsets (relative to
 *                 the end of the header), padded with spaces so that the data begins at a multiple
 *                 of 8
 *   8 + n         the tensors, one after the other
 *
 * The hosts this project supports are little-endian, so elements are written as they lie. */
#include <string.h>

#include "base/buf.h"
#include "base/json.h"
#include "base/outfile.h"

enum { ELEMENT_BYTES = 4, HEADER_LIMIT = 64 << 20, HEADER_ALIGN = 8 };

static const char *const type_names[] = {[SL_ARRAY_F32] = "F32", [SL_ARRAY_I32] = "I32"};

static bool entry_bytes(const sl_array *entry, size_t *n_bytes)
{
    size_t n = ELEMENT_BYTES;
    for (uint32_t d = 0; d < entry->n_dims; d++) {
        if (!sl_size_mul(n, entry->shape[d], &n))
            return false;
    }
    *n_bytes = n;
    return true;
}

static sl_status append_key(sl_buf *header, const char *key, sl_error *err)
{
    if (header->data[header->n_bytes - 1] != '{')
        SL_TRY(sl_buf_append_char(header, ',', err));
    SL_TRY(sl_json_append_string(header, key, strlen(key), err));
    return sl_buf_append_char(header, ':', err);
}

static sl_status append_notes(sl_buf *header, const sl_array_note *notes, size_t n, sl_error *err)
{
    if (n == 0)
        return SL_OK;
    SL_TRY(append_key(header, "__metadata__", err));
    SL_TRY(sl_buf_append_char(header, '{', err));
    for (size_t i = 0; i < n; i++) {
        SL_TRY(append_key(header, notes[i].key, err));
        SL_TRY(sl_json_append_string(header, notes[i].text, strlen(notes[i].text), err));
    }
    return sl_buf_append_char(header, '}', err);
}

static sl_status append_entry(sl_buf *header, const sl_array *entry, size_t begin, size_t end,
                              sl_error *err)
{
    SL_TRY(append_key(header, entry->name, err));
    SL_TRY(sl_buf_printf(header, err, "{\"dtype\":\"%s\",\"shape\":[", type_names[entry->type]));
    for (uint32_t d = 0; d < entry->n_dims; d++)
        SL_TRY(sl_buf_printf(header, err, "%s%zu", d > 0 ? "," : "", entry->shape[d]));
    return sl_buf_printf(header, err, "],\"data_offsets\":[%zu,%zu]}", begin, end);
}

static sl_status build_header(sl_buf *header, const char *path, const sl_array *entries,
                              size_t n_entries, const sl_array_note *notes, size_t n_notes,
                              sl_error *err)
{
    SL_TRY(sl_buf_append_char(header, '{', err));
    SL_TRY(append_notes(header, notes, n_notes, err));
    size_t begin = 0;
    for (size_t i = 0; i < n_entries; i++) {
        for (size_t j = 0; j < i; j++) {
            if (strcmp(entries[i].name, entries[j].name) == 0)
                return sl_fail(err, SL_ERR_ARGUMENT, "%s: there are two tensors named '%s'", path,
                               entries[i].name);
        }
        size_t n_bytes, end;
        if (entries[i].type != SL_ARRAY_F32 && entries[i].type != SL_ARRAY_I32)
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: '%s' is neither of floats nor of ids", path,
                           entries[i].name);
        if (entries[i].n_dims > SL_ARRAY_DIMS || !entry_bytes(&entries[i], &n_bytes) ||
            !sl_size_add(begin, n_bytes, &end))
            return sl_fail(err, SL_ERR_ARGUMENT, "%s: tensor '%s' is too large", path,
                           entries[i].name);
        SL_TRY(append_entry(header, &entries[i], begin, end, err));
        begin = end;
    }
    SL_TRY(sl_buf_append_char(header, '}', err));
    while (header->n_bytes % HEADER_ALIGN != 0)
        SL_TRY(sl_buf_append_char(header, ' ', err));
    return SL_OK;
}

sl_status sl_arrays_write(const char *path, const sl_array *entries, size_t n_entries,
                          const sl_array_note *notes, size_t n_notes, sl_error *err)
{
    sl_outfile *file = NULL;
    sl_status status;
    sl_buf header;
    sl_buf_init(&header, SL_MEM_FORMAT, HEADER_LIMIT);
    SL_CHECK(build_header(&header, path, entries, n_entries, notes, n_notes, err));

    unsigned char length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (unsigned char)((uint64_t)header.n_bytes >> (8 * i));
    SL_CHECK(sl_outfile_open(path, &file, err));
    SL_CHECK(sl_outfile_write(file, length, sizeof length, err));
    SL_CHECK(sl_outfile_write(file, header.data, header.n_bytes, err));
    for (size_t i = 0; i < n_entries; i++) {
        size_t n_bytes = 0;
        entry_bytes(&entries[i], &n_bytes);
        SL_CHECK(sl_outfile_write(file, entries[i].data, n_bytes, err));
    }
    status = sl_outfile_commit(file, err);
    file = NULL;
done:
    sl_outfile_abandon(file);
    sl_buf_free(&header);
    return status;
}
