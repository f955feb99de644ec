/* Gated softmax attention between its projections, section 7: which kernels a run goes through. */
#include "backend/cuda/kernels/attention.cuh"

/* Whether key blocks of prompts are computed apart, too: where their tiles are so few that most of
 * the device would be idle, contexts are deep, and the parts are not too many. */
static bool is_all_apart(const sl_cu_queue *queue, uint32_t n_rows, uint32_t n_heads,
                         uint32_t n_kv_heads, uint32_t n_key_blocks)
{
    enum { LEAST_BLOCKS = 4, MOST_PARTS = 1 << 17 };
    const uint64_t tiles =
        (uint64_t)div_up(n_rows * (n_heads / n_kv_heads), TILE_ROWS) * n_kv_heads;
    return 2 * tiles <= (uint64_t)queue->n_multiprocessors && n_key_blocks >= LEAST_BLOCKS &&
           (uint64_t)n_rows * n_heads * n_key_blocks <= MOST_PARTS;
}

size_t sl_cu_attention_scratch(const sl_cu_queue *queue, uint32_t n_rows, uint32_t n_split_rows,
                               uint32_t n_heads, uint32_t n_kv_heads, uint32_t n_key_blocks)
{
    const bool all = is_all_apart(queue, n_rows, n_heads, n_kv_heads, n_key_blocks);
    const size_t parts = (size_t)(all ? n_rows : n_split_rows) * n_heads * n_key_blocks;
    return n_key_blocks > 1 ? parts * PART : 0;
}

void sl_cu_attention_layer(const sl_cu_queue *queue, const sl_cu_rows *rows,
                           const sl_cu_attention *a)
{
    if (a->kv_f32) {
        sl_cu_attend_f32(queue, rows, a);
        return;
    }
    sl_cu_attention at = *a;
    at.all_apart = is_all_apart(queue, rows->n_rows, at.n_heads, at.n_kv_heads, at.n_key_blocks);
    if (rows->n_split_rows < rows->n_rows)
        sl_cu_attend_tiles(queue, rows, &at);
    if (rows->n_split_rows > 0)
        sl_cu_attend_split(queue, rows, &at);
    if (at.n_key_blocks > 1 && (at.all_apart || rows->n_split_rows > 0))
        sl_cu_merge_blocks(queue, rows, &at);
}
