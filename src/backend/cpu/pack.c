/* Rows of the file, as they lie there and at any address, into panels of 16. */
#include "backend/cpu/pack.h"

#include <string.h>

#include "backend/cpu/kernels/panels.h"
#include "base/mem.h"

enum { ROWS = SL_PANEL_ROWS };

/* The rows of one panel; rows beyond the matrix are NULL and become zeros. */
typedef struct panel_rows {
    const uint8_t *rows[ROWS];
    size_t n_cols;
} panel_rows;

/* The same n bytes of every row, one row after the other. */
static void gather(const panel_rows *from, size_t offset, size_t n, uint8_t *to)
{
    for (size_t r = 0; r < ROWS; r++, to += n) {
        if (from->rows[r])
            memcpy(to, from->rows[r] + offset, n);
        else
            memset(to, 0, n);
    }
}

/* Groups of four bytes of every row: [n_groups][16 rows][4]. */
static void gather_groups(const panel_rows *from, size_t offset, size_t n_groups, uint32_t flip,
                          uint8_t *to)
{
    for (size_t r = 0; r < ROWS; r++) {
        for (size_t g = 0; g < n_groups; g++) {
            uint32_t four = 0;
            if (from->rows[r])
                memcpy(&four, from->rows[r] + offset + 4 * g, sizeof four);
            four ^= flip;
            memcpy(to + SL_GROUP_BYTES * g + 4 * r, &four, sizeof four);
        }
    }
}

/* ---- types ---- */

/* n blocks of 32, from block `first` of the rows on. */
static void pack_q8_0(const panel_rows *from, size_t first, size_t n, uint8_t *to)
{
    uint8_t *codes = to + 2 * ROWS * n;
    for (size_t b = 0; b < n; b++) {
        const size_t offset = (first + b) * sizeof(sl_block_q8_0);
        gather(from, offset + offsetof(sl_block_q8_0, d), 2, to + 2 * ROWS * b);
        gather_groups(from, offset + offsetof(sl_block_q8_0, q), 8, 0x80808080u,
                      codes + 8 * SL_GROUP_BYTES * b);
    }
}

/* One panel, segment by segment. */
static void pack_panel(sl_dtype dtype, const panel_rows *from, uint8_t *to)
{
    const size_t block_bytes = sl_panel_block_bytes(dtype) * 32 / sl_dtype_get(dtype)->block_elems;
    const size_t n_blocks = from->n_cols / 32;
    for (size_t first = 0; first < n_blocks; first += SL_SEGMENT_BLOCKS) {
        const size_t n = sl_min_size(SL_SEGMENT_BLOCKS, n_blocks - first);
        pack_q8_0(from, first, n, to);
        to += n * block_bytes;
    }
}

/* ---- a matrix ---- */

static bool sizes_of(const sl_matrix *m, sl_panels *out)
{
    const size_t block_bytes = sl_panel_block_bytes(m->dtype);
    *out = (sl_panels){
        .dtype = m->dtype, .n_rows = m->n_rows, .n_cols = m->n_cols, .n_stack = m->n_stack};
    return block_bytes > 0 &&
           sl_size_mul(block_bytes, m->n_cols / sl_dtype_get(m->dtype)->block_elems,
                       &out->panel_bytes) &&
           sl_size_mul(out->panel_bytes, sl_panel_count(m->n_rows), &out->stack_bytes) &&
           sl_size_mul(out->stack_bytes, m->n_stack, &out->n_bytes);
}

size_t sl_packed_bytes(const sl_matrix *matrix)
{
    sl_panels sizes;
    return sizes_of(matrix, &sizes) ? sizes.n_bytes : 0;
}

typedef struct packing {
    const sl_matrix *matrix;
    const sl_panels *panels;
} packing;

static void pack_share(void *context, unsigned i, unsigned n)
{
    const packing *work = context;
    const sl_matrix *m = work->matrix;
    const size_t n_panels = sl_panel_count(m->n_rows);
    size_t begin, end;
    sl_pool_share(n_panels * m->n_stack, 1, i, n, &begin, &end);
    for (size_t unit = begin; unit < end; unit++) {
        const uint32_t stack = (uint32_t)(unit / n_panels);
        const size_t panel = unit % n_panels;
        panel_rows from = {.n_cols = m->n_cols};
        for (size_t r = 0; r < ROWS; r++) {
            if (ROWS * panel + r < m->n_rows)
                from.rows[r] = sl_matrix_row(m, stack, ROWS * panel + r);
        }
        pack_panel(m->dtype, &from, work->panels->data + unit * work->panels->panel_bytes);
    }
}

sl_status sl_pack(sl_pool *pool, const sl_matrix *matrix, sl_panels **out, sl_error *err)
{
    sl_panels sizes;
    if (!sizes_of(matrix, &sizes))
        return sl_fail(err, SL_ERR_LIMIT, "a matrix of %u x %u x %u %s is too large",
                       matrix->n_stack, matrix->n_rows, matrix->n_cols,
                       sl_dtype_get(matrix->dtype)->name);
    sl_panels *panels = sl_alloc(SL_MEM_WEIGHTS, sizeof *panels);
    if (panels) {
        *panels = sizes;
        panels->data = sl_pages_alloc(SL_MEM_WEIGHTS, panels->n_bytes);
    }
    if (!panels || !panels->data) {
        sl_free(panels);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a matrix of %zu bytes",
                       sizes.n_bytes);
    }
    packing work = {.matrix = matrix, .panels = panels};
    sl_pool_run(pool, pack_share, &work);
    *out = panels;
    return SL_OK;
}

void sl_panels_free(sl_panels *panels)
{
    if (!panels)
        return;
    sl_pages_free(SL_MEM_WEIGHTS, panels->data, panels->n_bytes);
    sl_free(panels);
}
