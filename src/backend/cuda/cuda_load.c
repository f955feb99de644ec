/* Weights on the device, in the layouts of kernels/launch.h. */
#ifdef SL_CUDA

#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "format/codes.h"

enum { ROWS = 16, CODE_BYTES = 512, SEGMENT = SL_CU_SEGMENT_BLOCKS };

/* The kind of a type; whether it is one of floats. */
static bool is_float(sl_dtype dtype, sl_cu_kind *kind)
{
    switch (dtype) {
    case SL_F32:
        *kind = SL_CU_F32;
        return true;
    case SL_F16:
        *kind = SL_CU_F16;
        return true;
    case SL_BF16:
        *kind = SL_CU_BF16;
        return true;
    case SL_Q4_K:
        *kind = SL_CU_K4;
        return false;
    case SL_Q5_K:
        *kind = SL_CU_K5;
        return false;
    case SL_Q6_K:
        *kind = SL_CU_K6;
        return false;
    default:
        *kind = sl_codes_are_plain(dtype) ? SL_CU_PLAIN : SL_CU_GENERAL;
        return false;
    }
}

/* ---- the forms of launch.h ---- */

/* Bytes of a segment's head, of a block's codes, of a block. */
typedef struct form {
    size_t head, codes, block;
} form;

static form form_of(sl_cu_kind kind)
{
    enum { NIBBLES = CODE_BYTES / 2, BITS = NIBBLES / 4, PAIRS_OF_BITS = NIBBLES / 2 };
    switch (kind) {
    case SL_CU_PLAIN:
        return (form){0, CODE_BYTES, SL_CU_PLAIN_BYTES};
    case SL_CU_K4:
        return (form){4 * ROWS, NIBBLES, NIBBLES + 2 * ROWS};
    case SL_CU_K5:
        return (form){4 * ROWS, NIBBLES + BITS, NIBBLES + BITS + 2 * ROWS};
    case SL_CU_K6:
        return (form){4 * ROWS, NIBBLES + PAIRS_OF_BITS, NIBBLES + PAIRS_OF_BITS + 2 * ROWS};
    default:
        return (form){0, CODE_BYTES, SL_CU_GENERAL_BYTES};
    }
}

static size_t panel_bytes(sl_cu_kind kind, const sl_matrix *matrix)
{
    const form f = form_of(kind);
    const size_t n_blocks = matrix->n_cols / SL_Q8_BLOCK;
    return (n_blocks + SEGMENT - 1) / SEGMENT * f.head + n_blocks * f.block;
}

/* Row r of a panel's block: where its groups of four inputs lie is the order of the tensor cores'
 * operand. */
static void put_codes(sl_cu_kind kind, const int8_t q[32], size_t r, uint8_t *block)
{
    uint8_t *more = block + CODE_BYTES / 2;
    for (size_t group = 0; group < 8; group++) {
        const size_t lane = 4 * (r % 8) + group % 4, word = r / 8 + 2 * (group / 4);
        if (kind == SL_CU_PLAIN || kind == SL_CU_GENERAL) {
            memcpy(block + 16 * lane + 4 * word, q + 4 * group, 4);
            continue;
        }
        for (size_t i = 0; i < 4; i++) {
            const unsigned code = (uint8_t)q[4 * group + i];
            uint8_t *nibbles = block + 8 * lane + word / 2 * 4 + i;
            *nibbles = (uint8_t)(*nibbles | (code & 15) << word % 2 * 4);
            if (kind == SL_CU_K5)
                more[2 * lane + word / 2] =
                    (uint8_t)(more[2 * lane + word / 2] | (code >> 4 & 1) << (word % 2 * 4 + i));
            if (kind == SL_CU_K6)
                more[4 * lane + i] = (uint8_t)(more[4 * lane + i] | (code >> 4 & 3) << 2 * word);
        }
    }
}

/* d and m of K4 and K5 came from halves, as d of plain ones. */
static void put_scales(sl_cu_kind kind, const sl_codes *codes, size_t r, uint8_t *head, uint8_t *at)
{
    const uint16_t halves[2] = {sl_f32_to_f16(codes->d), sl_f32_to_f16(codes->m)};
    switch (kind) {
    case SL_CU_PLAIN:
        memcpy(at + 2 * r, halves, 2);
        return;
    case SL_CU_K4:
    case SL_CU_K5:
        memcpy(head + 4 * r, halves, 4);
        at[2 * r] = (uint8_t)codes->scale[0];
        at[2 * r + 1] = codes->min[0];
        return;
    case SL_CU_K6:
        memcpy(head + 4 * r, &codes->d, sizeof codes->d);
        at[2 * r] = (uint8_t)codes->scale[0];
        at[2 * r + 1] = (uint8_t)codes->scale[1];
        return;
    default:
        memcpy(at + 4 * r, &codes->d, sizeof codes->d);
        memcpy(at + 64 + 4 * r, &codes->m, sizeof codes->m);
        at[128 + r] = (uint8_t)codes->scale[0];
        at[144 + r] = (uint8_t)codes->scale[1];
        at[160 + r] = codes->min[0];
        at[176 + r] = codes->min[1];
    }
}

static void put_row(sl_cu_kind kind, const sl_codes *codes, size_t r, size_t b, uint8_t *panel)
{
    const form f = form_of(kind);
    uint8_t *head = panel + b / SEGMENT * (f.head + SEGMENT * f.block);
    uint8_t *block = head + f.head + b % SEGMENT * f.block;
    put_codes(kind, codes->q, r, block);
    put_scales(kind, codes, r, head, block + f.codes);
}

typedef struct packing {
    const sl_matrix *matrix;
    sl_cu_kind kind;
    size_t n_panels, panel_bytes;
    uint8_t *out;
} packing;

/* A share of the panels of all matrices of the stack; out is cleared. */
static void pack_share(void *context, unsigned thread, unsigned n_threads)
{
    const packing *work = context;
    const sl_matrix *m = work->matrix;
    size_t begin, end;
    sl_pool_share(work->n_panels * m->n_stack, 1, thread, n_threads, &begin, &end);
    size_t n_blocks = m->n_cols / SL_Q8_BLOCK;
    for (size_t p = begin; p < end; p++) {
        uint32_t stack = (uint32_t)(p / work->n_panels);
        size_t first = p % work->n_panels * ROWS;
        for (size_t r = 0; r < ROWS && first + r < m->n_rows; r++) {
            const uint8_t *row = sl_matrix_row(m, stack, first + r);
            for (size_t b = 0; b < n_blocks; b++) {
                sl_codes codes;
                sl_read_codes(m->dtype, row, b, &codes);
                put_row(work->kind, &codes, r, b, work->out + p * work->panel_bytes);
            }
        }
    }
}

static size_t panel_count(const sl_matrix *matrix)
{
    return ((size_t)matrix->n_rows + ROWS - 1) / ROWS;
}

static size_t float_bytes(const sl_matrix *matrix)
{
    return matrix->n_stack > 1 ? matrix->n_stack * matrix->stack_bytes
                               : matrix->n_rows * matrix->row_bytes;
}

size_t sl_cuda_packed_bytes(const sl_matrix *matrix)
{
    sl_cu_kind kind;
    return is_float(matrix->dtype, &kind)
               ? float_bytes(matrix)
               : matrix->n_stack * panel_count(matrix) * panel_bytes(kind, matrix);
}

static sl_status load_quantised(sl_cuda *cuda, const sl_matrix *matrix, sl_cu_matrix *out,
                                sl_error *err)
{
    size_t n_panels = panel_count(matrix);
    out->panel_bytes = panel_bytes(out->kind, matrix);
    out->stack_bytes = n_panels * out->panel_bytes;
    size_t n_bytes = matrix->n_stack * out->stack_bytes;
    packing work = {.matrix = matrix,
                    .kind = out->kind,
                    .n_panels = n_panels,
                    .panel_bytes = out->panel_bytes,
                    .out = sl_alloc_zero(SL_MEM_SCRATCH, n_bytes)};
    if (!work.out)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for rearranging a matrix of %zu bytes",
                       n_bytes);
    sl_pool_run(cuda->pool, pack_share, &work);
    void *memory = NULL;
    sl_status status = sl_cuda_upload(cuda, work.out, n_bytes, &memory, err);
    sl_free(work.out);
    out->data = memory;
    return status;
}

static sl_status load_float(sl_cuda *cuda, const sl_matrix *matrix, sl_cu_matrix *out,
                            sl_error *err)
{
    out->row_bytes = matrix->row_bytes;
    out->stack_bytes = matrix->stack_bytes;
    void *memory = NULL;
    sl_status status = sl_cuda_upload(cuda, matrix->data, float_bytes(matrix), &memory, err);
    out->data = memory;
    return status;
}

sl_status sl_cuda_load(sl_backend *backend, sl_matrix *matrix, sl_error *err)
{
    sl_cuda *cuda = (sl_cuda *)(void *)backend;
    sl_cuda_matrix *record = sl_alloc_zero(SL_MEM_GENERAL, sizeof *record);
    if (!record)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a matrix");
    record->next = cuda->matrices;
    cuda->matrices = record;
    sl_cu_matrix *made = &record->matrix;
    *made = (sl_cu_matrix){.n_rows = matrix->n_rows,
                           .n_cols = matrix->n_cols,
                           .n_stack = matrix->n_stack,
                           .has_min = sl_codes_have_min(matrix->dtype)};
    SL_TRY(is_float(matrix->dtype, &made->kind) ? load_float(cuda, matrix, made, err)
                                                : load_quantised(cuda, matrix, made, err));
    matrix->packed = made;
    return SL_OK;
}

#endif
