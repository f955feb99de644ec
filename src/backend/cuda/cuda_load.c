/* Weights on the device, in the layouts of kernels/launch.h. */
#ifdef SL_CUDA

#include <string.h>

#include "backend/cuda/cuda_internal.h"
#include "format/codes.h"

enum { ROWS = 16, CODE_BYTES = 512 };

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
    default:
        *kind = sl_codes_are_plain(dtype) ? SL_CU_PLAIN : SL_CU_GENERAL;
        return false;
    }
}

/* Row r of a panel's block: where its 4-input groups lie is the order of the tensor cores' operand.
 */
static void put_codes(const int8_t q[32], size_t r, uint8_t *block)
{
    for (size_t group = 0; group < 8; group++) {
        size_t lane = 4 * (r % 8) + group % 4, word = r / 8 + 2 * (group / 4);
        memcpy(block + 16 * lane + 4 * word, q + 4 * group, 4);
    }
}

static void put_row(sl_cu_kind kind, const sl_codes *codes, size_t r, uint8_t *block)
{
    put_codes(codes->q, r, block);
    uint8_t *at = block + CODE_BYTES;
    if (kind == SL_CU_PLAIN) {
        uint16_t d = sl_f32_to_f16(codes->d); /* it came from a half */
        memcpy(at + 2 * r, &d, sizeof d);
        return;
    }
    memcpy(at + 4 * r, &codes->d, sizeof codes->d);
    memcpy(at + 64 + 4 * r, &codes->m, sizeof codes->m);
    at[128 + r] = (uint8_t)codes->scale[0];
    at[144 + r] = (uint8_t)codes->scale[1];
    at[160 + r] = codes->min[0];
    at[176 + r] = codes->min[1];
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
    size_t block_bytes = work->panel_bytes / n_blocks;
    for (size_t p = begin; p < end; p++) {
        uint32_t stack = (uint32_t)(p / work->n_panels);
        size_t first = p % work->n_panels * ROWS;
        for (size_t r = 0; r < ROWS && first + r < m->n_rows; r++) {
            const uint8_t *row = sl_matrix_row(m, stack, first + r);
            for (size_t b = 0; b < n_blocks; b++) {
                sl_codes codes;
                sl_read_codes(m->dtype, row, b, &codes);
                put_row(work->kind, &codes, r, work->out + p * work->panel_bytes + b * block_bytes);
            }
        }
    }
}

static size_t panel_bytes(sl_cu_kind kind, const sl_matrix *matrix)
{
    const size_t block = kind == SL_CU_PLAIN ? SL_CU_PLAIN_BYTES : SL_CU_GENERAL_BYTES;
    return matrix->n_cols / SL_Q8_BLOCK * block;
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
