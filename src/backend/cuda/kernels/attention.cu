/* Gated softmax attention between its projections, section 7: which kernels a run goes through. */
#include "backend/cuda/kernels/attention.cuh"

size_t sl_cu_attention_scratch(uint32_t n_split_rows, uint32_t n_heads, uint32_t n_key_blocks)
{
    return n_key_blocks > 1 ? (size_t)n_split_rows * n_heads * n_key_blocks * PART : 0;
}

void sl_cu_attention_layer(const sl_cu_queue *queue, const sl_cu_rows *rows,
                           const sl_cu_attention *at)
{
    if (at->kv_f32) {
        sl_cu_attend_f32(queue, rows, at);
        return;
    }
    if (rows->n_split_rows < rows->n_rows)
        sl_cu_attend_tiles(queue, rows, at);
    if (rows->n_split_rows > 0)
        sl_cu_attend_split(queue, rows, at);
}
