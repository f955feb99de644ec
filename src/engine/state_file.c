/* State files. All integers and floats are little-endian, as on every processor this runs on.
 *
 *   offset  size  header (64 bytes)
 *   0       8     magic "sluiceST"
 *   8       2     major version: another one is refused
 *   10      2     minor version: newer ones may add sections that may be skipped, as 1.1 did
 *   12      4     bytes of the header
 *   16      8     features a reader must know; none exist yet
 *   24      8     features a reader may ignore
 *   32      4     number of sections
 *   36      4     zero
 *   40      8     bytes of the file
 *   48      8     XXH3-64 of the section table
 *   56      8     XXH3-64 of the header's first 56 bytes
 *
 *   section table entry (40 bytes)
 *   0       4     kind
 *   4       4     1 = a reader that does not know the kind must refuse the file
 *   8       8     offset in the file, a multiple of 64
 *   16      8     bytes
 *   24      8     XXH3-64 of the bytes
 *   32      8     zero
 *
 * Sections: see the enum and docs/STATE-FORMAT.md. Floats lie in the layout of the state's blocks
 * (plan/op.h); rows that were never written are stored as zeros. */
#define XXH_STATIC_LINKING_ONLY
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

#include "base/filemap.h"
#include "base/outfile.h"
#include "engine/engine_internal.h"

enum {
    HEADER_BYTES = 64,
    ENTRY_BYTES = 40,
    SECTION_ALIGN = 64,
    MAJOR = 1,
    MINOR = 1,
    MAX_SECTIONS = 64,
    ARITHMETIC = 1, /* the canonical arithmetic of docs/EXACTNESS.md, first edition */
    STAGING = 64 << 10
};

static const char magic[8] = "sluiceST";

typedef enum section_kind {
    SECTION_MODEL = 1,  /* what the state belongs to: model_section */
    SECTION_TOKENS = 2, /* int32 ids */
    SECTION_BORDER = 3, /* the border block; only with length >= chunk */
    SECTION_TAPE = 4,   /* tape pages that have rows */
    SECTION_CONV = 5, /* [n_gdn][rows][channels]: the last min(3, length) raw rows, oldest first */
    SECTION_KV = 6,   /* KV pages that have positions */
    SECTION_OWN = 7,  /* the caller's bytes; may be skipped, and so may what follows */
    /* Since 1.1, what going back without recomputing needs: */
    SECTION_WINDOW = 8,   /* [n_gdn][rows][channels]: the raw rows before those of SECTION_CONV */
    SECTION_PREVIOUS = 9, /* border (only with length >= 2 chunks) and tape of the chunk before */
    SECTION_COUNT
} section_kind;

static const char *const section_names[SECTION_COUNT] = {
    [SECTION_MODEL] = "model",   [SECTION_TOKENS] = "tokens", [SECTION_BORDER] = "border",
    [SECTION_TAPE] = "tape",     [SECTION_CONV] = "conv",     [SECTION_KV] = "KV",
    [SECTION_OWN] = "own bytes", [SECTION_WINDOW] = "window", [SECTION_PREVIOUS] = "previous chunk",
};

/* Fixed-width members only, no padding. */
typedef struct model_section {
    uint8_t fingerprint[16];
    uint32_t arithmetic, chunk, tape_page, kv_f32;
    uint32_t n_gdn, n_key_heads, n_value_heads, n_channels;
    uint32_t n_kv, n_kv_heads, head_dim, attn_dim;
    uint32_t kv_positions, length, mtp_length, zero;
} model_section;

typedef struct section {
    uint32_t kind, required;
    uint64_t offset, n_bytes, hash, zero;
} section;

_Static_assert(sizeof(model_section) == 80, "the model section has no padding");
_Static_assert(sizeof(section) == ENTRY_BYTES, "a section entry has no padding");

typedef struct header {
    char magic[8];
    uint16_t major, minor;
    uint32_t header_bytes;
    uint64_t required, optional;
    uint32_t n_sections, zero;
    uint64_t file_bytes, table_hash, header_hash;
} header;

_Static_assert(sizeof(header) == HEADER_BYTES, "the header has no padding");

/* ---- where the bytes of a section go: into a hash, then into the file ---- */

typedef struct sink {
    XXH3_state_t hash;
    sl_outfile *file; /* NULL while only hashing */
    uint64_t n_bytes;
} sink;

static sl_status put(sink *to, const void *bytes, size_t n, sl_error *err)
{
    to->n_bytes += n;
    if (to->file)
        return sl_outfile_write(to->file, bytes, n, err);
    XXH3_64bits_update(&to->hash, bytes, n);
    return SL_OK;
}

static sl_status put_zeros(sink *to, size_t n, sl_error *err)
{
    static const uint8_t zeros[4096];
    for (size_t done = 0; done < n; done += sizeof zeros)
        SL_TRY(put(to, zeros, sl_min_size(sizeof zeros, n - done), err));
    return SL_OK;
}

/* n bytes of device memory, of which the first `valid` count. */
static sl_status put_block(sink *to, sl_backend *backend, const void *from, size_t valid, size_t n,
                           sl_error *err)
{
    uint8_t staging[STAGING / 16];
    for (size_t done = 0; done < valid;) {
        size_t piece = sl_min_size(sizeof staging, valid - done);
        backend->copy(backend, staging, (const uint8_t *)from + done, piece);
        SL_TRY(put(to, staging, piece, err));
        done += piece;
    }
    return put_zeros(to, n - valid, err);
}

/* ---- sections ---- */

static model_section model_of(const sl_state *state)
{
    const sl_state_shape *shape = &state->engine->shape;
    model_section m = {
        .arithmetic = ARITHMETIC,
        .chunk = SL_GDN_CHUNK,
        .tape_page = SL_TAPE_PAGE,
        .kv_f32 = shape->kv_f32,
        .n_gdn = shape->n_gdn,
        .n_key_heads = shape->n_key_heads,
        .n_value_heads = shape->n_value_heads,
        .n_channels = shape->n_channels,
        .n_kv = shape->n_kv,
        .n_kv_heads = shape->n_kv_heads,
        .head_dim = SL_GDN_DIM,
        .attn_dim = SL_ATTN_DIM,
        .kv_positions = SL_KV_PAGE,
        .length = state->length,
        .mtp_length = sl_state_mtp_certain(state),
    };
    memcpy(m.fingerprint, state->engine->fingerprint, sizeof m.fingerprint);
    return m;
}

static sl_status put_border(sink *to, const sl_state *state, const sl_chunk *chunk, sl_error *err)
{
    const size_t n = state->engine->borders.n_bytes;
    return put_block(to, state->engine->backend, chunk->border->data, n, n, err);
}

static sl_status put_tape(sink *to, const sl_state *state, const sl_chunk *chunk, size_t n_rows,
                          sl_error *err)
{
    const sl_state_shape *shape = &state->engine->shape;
    sl_backend *backend = state->engine->backend;
    const size_t row = SL_GDN_DIM * sizeof(float);
    for (size_t page = 0, left = n_rows; left > 0; page++) {
        size_t rows = sl_min_size(left, SL_TAPE_PAGE);
        const uint8_t *at = chunk->tape[page]->data;
        for (uint32_t layer = 0; layer < shape->n_gdn; layer++) {
            for (uint32_t h = 0; h < shape->n_key_heads + shape->n_value_heads; h++) {
                SL_TRY(put_block(to, backend, at, rows * row, SL_TAPE_PAGE * row, err));
                at += SL_TAPE_PAGE * row;
            }
            for (uint32_t h = 0; h < shape->n_value_heads; h++) {
                SL_TRY(put_block(to, backend, at, rows * sizeof(float),
                                 SL_TAPE_PAGE * sizeof(float), err));
                at += SL_TAPE_PAGE * sizeof(float);
            }
        }
        left -= rows;
    }
    return SL_OK;
}

/* The chunk before, as far as it exists. */
static sl_status put_previous(sink *to, const sl_state *state, sl_error *err)
{
    if (state->length >= 2 * SL_GDN_CHUNK)
        SL_TRY(put_border(to, state, &state->previous, err));
    return put_tape(to, state, &state->previous, SL_GDN_CHUNK, err);
}

/* Raw rows of the positions first .. end - 1. */
static sl_status put_conv(sink *to, const sl_state *state, uint32_t first, uint32_t end,
                          sl_error *err)
{
    const sl_state_shape *shape = &state->engine->shape;
    const size_t row = shape->n_channels * sizeof(float);
    for (uint32_t layer = 0; layer < shape->n_gdn; layer++) {
        for (uint32_t pos = first; pos < end; pos++)
            SL_TRY(put_block(to, state->engine->backend, sl_conv_row(state, layer, pos), row, row,
                             err));
    }
    return SL_OK;
}

/* One page of one KV head: keys [256][64], then values are put by the caller's second call. */
static sl_status put_kv_head(sink *to, sl_backend *backend, const uint8_t *at, bool keys,
                             size_t positions, size_t element, sl_error *err)
{
    if (!keys)
        return put_block(to, backend, at, positions * SL_ATTN_DIM * element,
                         SL_KV_PAGE * SL_ATTN_DIM * element, err);
    for (size_t dim = 0; dim < SL_ATTN_DIM; dim++)
        SL_TRY(put_block(to, backend, at + dim * SL_KV_PAGE * element, positions * element,
                         SL_KV_PAGE * element, err));
    return SL_OK;
}

static sl_status put_kv(sink *to, const sl_state *state, sl_error *err)
{
    const sl_state_shape *shape = &state->engine->shape;
    const size_t element = shape->kv_f32 ? 4 : 2, head = sl_shape_kv_head_bytes(shape);
    const uint32_t n_main = state->engine->config.n_attention_layers;
    for (size_t page = 0; page < sl_kv_pages_of(state->length); page++) {
        const uint8_t *at = state->kv[page]->data;
        for (uint32_t layer = 0; layer < shape->n_kv; layer++) {
            size_t end = layer < n_main ? state->length : sl_state_mtp_certain(state);
            size_t first = page * SL_KV_PAGE;
            size_t positions = end > first ? sl_min_size(end - first, SL_KV_PAGE) : 0;
            for (uint32_t h = 0; h < 2 * shape->n_kv_heads; h++, at += head)
                SL_TRY(put_kv_head(to, state->engine->backend, at, h < shape->n_kv_heads, positions,
                                   element, err));
        }
    }
    return SL_OK;
}

typedef struct own_bytes {
    const void *bytes;
    size_t n;
} own_bytes;

static sl_status put_section(sink *to, section_kind kind, const sl_state *state, own_bytes own,
                             sl_error *err)
{
    model_section model;
    const uint32_t length = state->length, reach = length - sl_conv_reach(length);
    switch (kind) {
    case SECTION_MODEL:
        model = model_of(state);
        return put(to, &model, sizeof model, err);
    case SECTION_TOKENS:
        return put(to, state->tokens, length * sizeof *state->tokens, err);
    case SECTION_BORDER:
        return put_border(to, state, &state->current, err);
    case SECTION_TAPE:
        return put_tape(to, state, &state->current, length % SL_GDN_CHUNK, err);
    case SECTION_CONV:
        return put_conv(to, state, reach, length, err);
    case SECTION_KV:
        return put_kv(to, state, err);
    case SECTION_WINDOW:
        return put_conv(to, state, state->conv_low, reach, err);
    case SECTION_PREVIOUS:
        return put_previous(to, state, err);
    default:
        return put(to, own.bytes, own.n, err);
    }
}

/* ---- saving ---- */

static sl_status check_rule(const sl_engine *engine, sl_error *err)
{
    if (!engine->shape.gdn_serial)
        return SL_OK;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "states by the token-serial rule have no file form");
}

static size_t align_up(size_t n)
{
    return (n + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
}

/* Which required sections a state of that length has; the same when saving and when loading. */
static bool needs_section(section_kind kind, uint32_t length)
{
    switch (kind) {
    case SECTION_BORDER:
        return length >= SL_GDN_CHUNK;
    case SECTION_TAPE:
        return length % SL_GDN_CHUNK > 0;
    case SECTION_CONV:
    case SECTION_KV:
        return length > 0;
    default:
        return true;
    }
}

/* Whether the rows of the window lead back into the chunk before. */
static bool can_cross(const sl_state *state)
{
    const uint32_t lowest = state->conv_low > 0 ? state->conv_low + SL_CONV_HISTORY : 1;
    return state->has_previous && lowest / SL_GDN_CHUNK < state->length / SL_GDN_CHUNK;
}

static bool has_section(section_kind kind, const sl_state *state, own_bytes own)
{
    switch (kind) {
    case SECTION_OWN:
        return own.n > 0;
    case SECTION_WINDOW:
        return state->conv_low < state->length - sl_conv_reach(state->length);
    case SECTION_PREVIOUS:
        return can_cross(state);
    default:
        return needs_section(kind, state->length);
    }
}

static sl_status write_file(sl_outfile *file, const sl_state *state, own_bytes own, sl_error *err)
{
    section table[SECTION_COUNT] = {0};
    uint32_t n = 0;
    for (int kind = SECTION_MODEL; kind < SECTION_COUNT; kind++)
        n += has_section((section_kind)kind, state, own);
    uint64_t offset = align_up(HEADER_BYTES + n * sizeof *table);
    section *entry = table;
    for (int kind = SECTION_MODEL; kind < SECTION_COUNT; kind++) {
        if (!has_section((section_kind)kind, state, own))
            continue;
        sink hashing = {0};
        XXH3_64bits_reset(&hashing.hash);
        SL_TRY(put_section(&hashing, (section_kind)kind, state, own, err));
        *entry++ = (section){.kind = (uint32_t)kind,
                             .required = kind < SECTION_OWN,
                             .offset = offset,
                             .n_bytes = hashing.n_bytes,
                             .hash = XXH3_64bits_digest(&hashing.hash)};
        offset = align_up(offset + hashing.n_bytes);
    }
    header head = {.major = MAJOR,
                   .minor = MINOR,
                   .header_bytes = HEADER_BYTES,
                   .n_sections = n,
                   .file_bytes = offset,
                   .table_hash = XXH3_64bits(table, n * sizeof *table)};
    memcpy(head.magic, magic, sizeof magic);
    head.header_hash = XXH3_64bits(&head, offsetof(header, header_hash));

    sink out = {.file = file};
    SL_TRY(put(&out, &head, sizeof head, err));
    SL_TRY(put(&out, table, n * sizeof *table, err));
    for (uint32_t i = 0; i < n; i++) {
        SL_TRY(put_zeros(&out, table[i].offset - out.n_bytes, err));
        SL_TRY(put_section(&out, (section_kind)table[i].kind, state, own, err));
    }
    return put_zeros(&out, offset - out.n_bytes, err);
}

sl_status sl_state_save(sl_state *state, const char *path, const void *own, size_t n, sl_error *err)
{
    SL_TRY(sl_state_check_sound(state, err));
    SL_TRY(check_rule(state->engine, err));
    uint8_t fingerprint[SL_FINGERPRINT_BYTES];
    SL_TRY(sl_engine_fingerprint(state->engine, fingerprint, err));
    sl_outfile *file;
    SL_TRY(sl_outfile_open(path, &file, err));
    sl_status status = write_file(file, state, (own_bytes){own, n}, err);
    if (status != SL_OK) {
        sl_outfile_abandon(file);
        return status;
    }
    return sl_outfile_commit(file, err);
}

/* ---- verifying ---- */

typedef struct state_file {
    const char *path;
    const uint8_t *data;
    size_t size;
    section sections[SECTION_COUNT]; /* by kind; kind 0 = absent */
    model_section model;
} state_file;

static sl_status read_header(const state_file *f, header *head, sl_error *err)
{
    if (f->size < HEADER_BYTES)
        return sl_fail(err, SL_ERR_FORMAT, "%s: %zu bytes are too few for a state file", f->path,
                       f->size);
    memcpy(head, f->data, sizeof *head);
    if (memcmp(head->magic, magic, sizeof magic) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: not a state file (offset 0)", f->path);
    if (head->header_hash != XXH3_64bits(head, offsetof(header, header_hash)))
        return sl_fail(err, SL_ERR_FORMAT, "%s: the header is damaged (offset 0)", f->path);
    if (head->major != MAJOR)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: state format version %u.%u, this program reads %d.x", f->path,
                       head->major, head->minor, MAJOR);
    if (head->required != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: needs features (0x%llx) that this program does not know", f->path,
                       (unsigned long long)head->required);
    if (head->header_bytes != HEADER_BYTES || head->n_sections == 0 ||
        head->n_sections > MAX_SECTIONS ||
        head->n_sections * sizeof(section) > f->size - HEADER_BYTES)
        return sl_fail(err, SL_ERR_FORMAT, "%s: the section table is not in the file (offset 32)",
                       f->path);
    if (head->file_bytes != f->size)
        return sl_fail(err, SL_ERR_FORMAT, "%s: has %zu bytes, %llu were written (offset 40)",
                       f->path, f->size, (unsigned long long)head->file_bytes);
    if (head->table_hash != XXH3_64bits(f->data + HEADER_BYTES, head->n_sections * sizeof(section)))
        return sl_fail(err, SL_ERR_FORMAT, "%s: the section table is damaged (offset %d)", f->path,
                       HEADER_BYTES);
    return SL_OK;
}

static sl_status read_section(state_file *f, const section *s, sl_error *err)
{
    if (s->offset > f->size || s->n_bytes > f->size - s->offset)
        return sl_fail(err, SL_ERR_FORMAT, "%s: section %u reaches beyond the file (offset %llu)",
                       f->path, s->kind, (unsigned long long)s->offset);
    const bool known = s->kind > 0 && s->kind < SECTION_COUNT;
    const char *name = known ? section_names[s->kind] : "unknown";
    if (!known && s->required)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: needs a section (%u) that this program does not know", f->path,
                       s->kind);
    if (s->hash != XXH3_64bits(f->data + s->offset, s->n_bytes))
        return sl_fail(err, SL_ERR_FORMAT, "%s: the %s section is damaged (offset %llu)", f->path,
                       name, (unsigned long long)s->offset);
    if (!known)
        return SL_OK;
    if (f->sections[s->kind].kind != 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: has its %s section twice", f->path, name);
    f->sections[s->kind] = *s;
    return SL_OK;
}

/* Padding is zero, so that no byte of a file can change unseen. */
static sl_status check_padding(const state_file *f, const header *head, sl_error *err)
{
    size_t at = HEADER_BYTES + head->n_sections * sizeof(section);
    for (uint32_t i = 0; i <= head->n_sections; i++) {
        section s = {.offset = f->size};
        if (i < head->n_sections)
            memcpy(&s, f->data + HEADER_BYTES + i * sizeof s, sizeof s);
        if (s.offset < at)
            return sl_fail(err, SL_ERR_FORMAT, "%s: sections overlap (offset %llu)", f->path,
                           (unsigned long long)s.offset);
        for (; at < s.offset; at++) {
            if (f->data[at] != 0)
                return sl_fail(err, SL_ERR_FORMAT, "%s: padding is damaged (offset %zu)", f->path,
                               at);
        }
        at = s.offset + s.n_bytes;
    }
    return SL_OK;
}

static sl_status check_model(const state_file *f, sl_engine *engine, sl_error *err)
{
    const model_section *m = &f->model;
    sl_state empty = {.engine = engine, .length = m->length, .mtp_length = m->mtp_length};
    model_section expected = model_of(&empty);
    expected.mtp_length = m->mtp_length;
    if (memcmp(m->fingerprint, expected.fingerprint, sizeof expected.fingerprint) != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: belongs to another model than %s", f->path,
                       sl_weights_path(engine->weights));
    if (m->arithmetic != expected.arithmetic || m->chunk != expected.chunk)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: was made with arithmetic %u and chunks of %u tokens, this program has "
                       "%u and %u",
                       f->path, m->arithmetic, m->chunk, expected.arithmetic, expected.chunk);
    if (m->kv_f32 != expected.kv_f32)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: has KV in %s, this engine in %s", f->path,
                       m->kv_f32 ? "float32" : "float16", expected.kv_f32 ? "float32" : "float16");
    if (memcmp(m, &expected, sizeof expected) != 0 || m->mtp_length > m->length)
        return sl_fail(err, SL_ERR_FORMAT, "%s: the model section contradicts itself", f->path);
    return SL_OK;
}

/* Of one position in all layers. */
static uint64_t conv_row_bytes(const sl_engine *engine)
{
    return (uint64_t)engine->shape.n_gdn * engine->shape.n_channels * sizeof(float);
}

/* Bytes that a section of a state of that length must have. */
static uint64_t expected_bytes(const sl_engine *engine, section_kind kind, uint32_t length)
{
    switch (kind) {
    case SECTION_MODEL:
        return sizeof(model_section);
    case SECTION_TOKENS:
        return (uint64_t)length * sizeof(int32_t);
    case SECTION_BORDER:
        return engine->borders.n_bytes;
    case SECTION_TAPE:
        return sl_tape_pages_of(length) * engine->tapes.n_bytes;
    case SECTION_CONV:
        return sl_conv_reach(length) * conv_row_bytes(engine);
    case SECTION_PREVIOUS:
        return (length >= 2 * SL_GDN_CHUNK ? engine->borders.n_bytes : 0) +
               SL_TAPE_CHUNK_PAGES * engine->tapes.n_bytes;
    default:
        return sl_kv_pages_of(length) * engine->kvs.n_bytes;
    }
}

static sl_status check_presence(const state_file *f, section_kind kind, bool expected,
                                sl_error *err)
{
    const bool present = f->sections[kind].kind != 0;
    if (present == expected)
        return SL_OK;
    return sl_fail(err, SL_ERR_FORMAT, "%s: the %s section is %s", f->path, section_names[kind],
                   present ? "out of place" : "missing");
}

static sl_status check_bytes(const state_file *f, section_kind kind, uint64_t expected,
                             sl_error *err)
{
    const section *s = &f->sections[kind];
    if (s->kind == 0 || s->n_bytes == expected)
        return SL_OK;
    return sl_fail(err, SL_ERR_FORMAT, "%s: the %s section has %llu bytes, expected %llu", f->path,
                   section_names[kind], (unsigned long long)s->n_bytes,
                   (unsigned long long)expected);
}

/* Rows of the window section; 0 without one. */
static uint64_t window_rows(const state_file *f, const sl_engine *engine)
{
    const uint64_t row = conv_row_bytes(engine);
    return row > 0 ? f->sections[SECTION_WINDOW].n_bytes / row : 0; /* 0: no such layers */
}

/* The sections that a file may lack. */
static sl_status check_window(const state_file *f, const sl_engine *engine, sl_error *err)
{
    const uint32_t length = f->model.length;
    if (f->sections[SECTION_PREVIOUS].kind != 0)
        SL_TRY(check_presence(f, SECTION_PREVIOUS, length >= SL_GDN_CHUNK, err));
    SL_TRY(check_bytes(f, SECTION_PREVIOUS, expected_bytes(engine, SECTION_PREVIOUS, length), err));
    const uint64_t n_rows = window_rows(f, engine);
    if (n_rows > SL_GDN_CHUNK || n_rows > length - sl_conv_reach(length))
        return sl_fail(err, SL_ERR_FORMAT, "%s: the window section has %llu rows before %u tokens",
                       f->path, (unsigned long long)n_rows, length);
    return check_bytes(f, SECTION_WINDOW, n_rows * conv_row_bytes(engine), err);
}

static sl_status check_sections(const state_file *f, const sl_engine *engine, sl_error *err)
{
    uint32_t length = f->model.length;
    for (int i = SECTION_MODEL; i < SECTION_OWN; i++) {
        section_kind kind = (section_kind)i;
        SL_TRY(check_presence(f, kind, needs_section(kind, length), err));
        SL_TRY(check_bytes(f, kind, expected_bytes(engine, kind, length), err));
    }
    SL_TRY(check_window(f, engine, err));
    const uint8_t *tokens = f->data + f->sections[SECTION_TOKENS].offset;
    for (uint32_t i = 0; i < length; i++) {
        int32_t token;
        memcpy(&token, tokens + i * sizeof token, sizeof token);
        if (token < 0 || (uint32_t)token >= engine->config.vocab)
            return sl_fail(err, SL_ERR_FORMAT, "%s: token %u is %d, the vocabulary has %u", f->path,
                           i, token, engine->config.vocab);
    }
    return SL_OK;
}

static sl_status verify(state_file *f, sl_engine *engine, sl_error *err)
{
    header head;
    SL_TRY(read_header(f, &head, err));
    for (uint32_t i = 0; i < head.n_sections; i++) {
        section s;
        memcpy(&s, f->data + HEADER_BYTES + i * sizeof s, sizeof s);
        SL_TRY(read_section(f, &s, err));
    }
    SL_TRY(check_padding(f, &head, err));
    const section *model = &f->sections[SECTION_MODEL];
    if (model->kind == 0 || model->n_bytes != sizeof f->model)
        return sl_fail(err, SL_ERR_FORMAT, "%s: the model section is missing or has a wrong size",
                       f->path);
    memcpy(&f->model, f->data + model->offset, sizeof f->model);
    SL_TRY(check_model(f, engine, err));
    return check_sections(f, engine, err);
}

/* ---- loading ---- */

/* Copies the next n bytes of the file. */
static void take(const sl_state *state, void *to, const uint8_t **from, size_t n)
{
    sl_backend *backend = state->engine->backend;
    backend->copy(backend, to, *from, n);
    *from += n;
}

static const uint8_t *bytes_of(const state_file *f, section_kind kind)
{
    return f->data + f->sections[kind].offset;
}

/* The last n_kept of n_rows raw rows of every layer, which end before position `end`. */
static void fill_conv(sl_state *state, const uint8_t *from, uint32_t n_rows, uint32_t n_kept,
                      uint32_t end)
{
    const size_t row = state->engine->shape.n_channels * sizeof(float);
    for (uint32_t layer = 0; layer < state->engine->shape.n_gdn; layer++) {
        from += (n_rows - n_kept) * row;
        for (uint32_t pos = end - n_kept; pos < end; pos++)
            take(state, sl_conv_row(state, layer, pos), &from, row);
    }
}

static void fill_tape(sl_state *state, const sl_chunk *chunk, const uint8_t *from, size_t n_pages)
{
    for (size_t page = 0; page < n_pages; page++)
        take(state, chunk->tape[page]->data, &from, state->engine->tapes.n_bytes);
}

/* What going back needs, as far as the file has it and this engine's window reaches. */
static void fill_window(const state_file *f, sl_state *state)
{
    const sl_engine *engine = state->engine;
    if (f->sections[SECTION_WINDOW].kind) {
        const uint32_t n_rows = (uint32_t)window_rows(f, engine);
        const uint32_t fit = engine->shape.n_conv_rows - SL_CONV_HISTORY;
        const uint32_t n_kept = n_rows < fit ? n_rows : fit;
        fill_conv(state, bytes_of(f, SECTION_WINDOW), n_rows, n_kept, state->conv_low);
        state->conv_low -= n_kept;
    }
    state->has_previous = f->sections[SECTION_PREVIOUS].kind != 0;
    if (state->has_previous) {
        const uint8_t *from = bytes_of(f, SECTION_PREVIOUS);
        if (state->length >= 2 * SL_GDN_CHUNK)
            take(state, state->previous.border->data, &from, engine->borders.n_bytes);
        fill_tape(state, &state->previous, from, SL_TAPE_CHUNK_PAGES);
    }
}

/* Into a state that was just created, so that every block is its own. */
static void fill_state(const state_file *f, sl_state *state)
{
    const sl_engine *engine = state->engine;
    const uint8_t *from = bytes_of(f, SECTION_BORDER);
    const uint32_t reach = sl_conv_reach(f->model.length);
    state->length = f->model.length;
    state->mtp_length = f->model.mtp_length;
    state->mtp_length = sl_state_mtp_certain(state);
    state->conv_low = state->length - reach;
    memcpy(state->tokens, bytes_of(f, SECTION_TOKENS), state->length * sizeof *state->tokens);
    if (f->sections[SECTION_BORDER].kind)
        take(state, state->current.border->data, &from, engine->borders.n_bytes);
    fill_tape(state, &state->current, bytes_of(f, SECTION_TAPE), sl_tape_pages_of(state->length));
    from = bytes_of(f, SECTION_KV);
    for (size_t i = 0; i < sl_kv_pages_of(state->length); i++) {
        take(state, state->kv[i]->data, &from, engine->kvs.n_bytes);
        const int32_t *ids = state->tokens + i * SL_KV_PAGE;
        memcpy(state->kv[i]->ids, ids,
               sl_min_size(SL_KV_PAGE, state->length - i * SL_KV_PAGE) * sizeof *ids);
    }
    fill_conv(state, bytes_of(f, SECTION_CONV), reach, reach, state->length);
    fill_window(f, state);
}

static sl_status load(state_file *f, sl_engine *engine, uint32_t context, sl_state **out,
                      char **own, size_t *n, sl_error *err)
{
    SL_TRY(verify(f, engine, err));
    if (context == 0)
        context = f->model.length;
    if (context < f->model.length)
        return sl_fail(err, SL_ERR_CONTEXT, "%s: has %u tokens, the context is %u", f->path,
                       f->model.length, context);
    const section *s = &f->sections[SECTION_OWN];
    char *copy = NULL;
    if (own) {
        copy = sl_strndup(SL_MEM_GENERAL, (const char *)f->data + s->offset, s->n_bytes);
        if (!copy)
            return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", f->path);
    }
    sl_state *state;
    sl_status status = sl_state_create(engine, context > 0 ? context : 1, &state, err);
    if (status != SL_OK) {
        sl_free(copy);
        return status;
    }
    fill_state(f, state);
    if (own) {
        *own = copy;
        *n = s->n_bytes;
    }
    *out = state;
    return SL_OK;
}

sl_status sl_state_load(sl_engine *engine, const char *path, uint32_t context, sl_state **out,
                        char **own, size_t *n, sl_error *err)
{
    SL_TRY(check_rule(engine, err));
    uint8_t fingerprint[SL_FINGERPRINT_BYTES];
    SL_TRY(sl_engine_fingerprint(engine, fingerprint, err));
    sl_filemap *map;
    SL_TRY(sl_filemap_open(path, &map, err));
    state_file f = {.path = path, .data = sl_filemap_data(map), .size = sl_filemap_size(map)};
    sl_state *state = NULL;
    sl_status status = load(&f, engine, context, &state, own, n, err);
    sl_status lost = sl_filemap_check(map, status == SL_OK ? err : NULL);
    if (status == SL_OK && lost != SL_OK) {
        sl_state_free(state);
        if (own)
            sl_free(*own);
        status = lost;
    }
    sl_filemap_close(map);
    if (status == SL_OK)
        *out = state;
    return status;
}
