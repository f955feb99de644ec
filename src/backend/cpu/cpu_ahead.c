/* What a thread that waits can fetch in the meantime. One core alone reads only a part of what the
 * memory gives, so with few rows, which are limited by reading weights, every wait is lost
 * bandwidth. Each thread's first units of an op are known beforehand (cpu_spread.c), so the ops
 * ahead say what those read. */
#include "backend/cpu/cpu_internal.h"

enum {
    BYTES = 256 << 10, /* a part of the second level of cache, some waits long */
    FEW_ROWS = 32      /* more of them compute longer than they read */
};

void sl_cpu_will_read(sl_cpu_ahead *ahead, const void *p, size_t n_bytes)
{
    if (ahead->n_pieces == SL_POOL_AHEAD) {
        ahead->bytes_left = 0;
        return;
    }
    const size_t n = sl_min_size(n_bytes, ahead->bytes_left);
    ahead->pieces[ahead->n_pieces++] = (sl_pool_piece){p, n};
    ahead->bytes_left -= n;
}

/* After the last op comes the next step, most likely of the same plan. */
void sl_cpu_look_ahead(const sl_cpu_step *step, unsigned i, unsigned n)
{
    sl_cpu_ahead ahead = {.bytes_left = step->run->n_rows <= FEW_ROWS ? BYTES : 0};
    const size_t n_ops = sl_plan_op_count(step->plan);
    sl_cpu_step later = *step;
    for (size_t k = step->i_op + step->n_ops; ahead.bytes_left > 0; k++) {
        later.i_op = k % n_ops;
        later.op = sl_plan_op(step->plan, later.i_op);
        if (k == step->i_op + n_ops || later.op->kind == SL_OP_EXPERTS)
            break; /* once around; nobody knows yet which experts */
        if (later.op->kind == SL_OP_PROJECT || later.op->kind == SL_OP_HEAD)
            sl_cpu_product_reads(&later, i, n, &ahead);
        if (later.op->kind == SL_OP_GDN)
            sl_cpu_gdn_reads(&later, i, n, &ahead);
    }
    sl_pool_look_ahead(step->cpu->pool, i, ahead.pieces, ahead.n_pieces);
}
