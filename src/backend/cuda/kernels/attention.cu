/* Gated softmax attention between its projections, section 7: which kernels a run goes through. */
#include "backend/cuda/kernels/attention.cuh"

/* Key blocks of prompts are computed apart, too, where their tiles are so few that most of the
 * device would be idle, and contexts are deep: so many at once; 0 where they are not. */
static uint32_t parts_of_tiles(const sl_cu_queue *queue, uint32_t n_rows, uint32_t n_heads,
                               uint32_t n_kv_heads, uint32_t n_key_blocks)
{
    enum { LEAST_BLOCKS = 4, MOST_PARTS = 1 << 17 };
    const uint64_t tiles =
        (uint64_t)div_up(n_rows * (n_heads / n_kv_heads), TILE_ROWS) * n_kv_heads;
    if (2 * tiles > (uint64_t)queue->n_multiprocessors || n_key_blocks < LEAST_BLOCKS)
        return 0;
    const uint32_t most = MOST_PARTS / (n_rows * n_heads);
    return most < 2 ? 0 : n_key_blocks < most ? n_key_blocks : most;
}

static size_t scratch_of(uint32_t n_rows, uint32_t n_heads, uint32_t n_parts)
{
    return n_parts > 1 ? (size_t)n_rows * n_heads * (PLACES_BEFORE + n_parts) * PART : 0;
}

size_t sl_cu_attention_scratch(const sl_cu_queue *queue, uint32_t n_rows, uint32_t n_split_rows,
                               uint32_t n_heads, uint32_t n_kv_heads, uint32_t n_key_blocks)
{
    const uint32_t n = parts_of_tiles(queue, n_rows, n_heads, n_kv_heads, n_key_blocks);
    const size_t tiles = n_split_rows < n_rows ? scratch_of(n_rows, n_heads, n) : 0;
    const size_t split = scratch_of(n_split_rows, n_heads, n_key_blocks);
    return tiles < split ? split : tiles;
}

/* Prompts: all key blocks in turn, or some apart and merged with what was before them, until all
 * have been. */
static void attend_prompts(const sl_cu_queue *queue, const sl_cu_rows *rows, sl_cu_attention at)
{
    const uint32_t n =
        parts_of_tiles(queue, rows->n_rows, at.n_heads, at.n_kv_heads, at.n_key_blocks);
    at.tiles_apart = n > 0;
    at.n_parts = n > 0 ? n : at.n_key_blocks;
    sl_cu_append(queue, rows, &at);
    for (at.first_part = 0; at.first_part < at.n_key_blocks; at.first_part += at.n_parts) {
        sl_cu_attend_tiles(queue, rows, &at);
        if (at.tiles_apart)
            sl_cu_merge_blocks(queue, rows, &at);
    }
}

void sl_cu_attention_layer(const sl_cu_queue *queue, const sl_cu_rows *rows,
                           const sl_cu_attention *a)
{
    sl_cu_attention at = *a;
    at.tiles_apart = 0;
    at.first_part = 0;
    at.n_parts = at.n_key_blocks;
    if (at.kv_f32) {
        sl_cu_attend_f32(queue, rows, &at);
        return;
    }
    if (rows->n_split_rows < rows->n_rows)
        attend_prompts(queue, rows, at);
    if (rows->n_split_rows > 0) {
        sl_cu_attend_split(queue, rows, &at);
        if (at.n_key_blocks > 1)
            sl_cu_merge_blocks(queue, rows, &at);
    }
}
