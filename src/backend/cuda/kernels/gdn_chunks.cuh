/* Chunks of the rows of a run, and their operands, which gdn_prepare.cu makes for gdn.cu. */
#ifndef SL_BACKEND_CUDA_KERNELS_GDN_CHUNKS_CUH
#define SL_BACKEND_CUDA_KERNELS_GDN_CHUNKS_CUH

#include "backend/cuda/kernels/gdn.cuh"

/* Chunk m of a segment's. */
typedef struct chunk_ref {
    uint32_t m;
    uint32_t begin, end; /* tape rows below begin are old, the others rows of the run */
    uint32_t row;        /* in the run, of tape row `begin` */
    bool is_kept;        /* of the last two: its tape survives */
} chunk_ref;

static __device__ inline uint32_t count_chunks(const sl_cu_segment &segment)
{
    return div_up(segment.pos % CHUNK + segment.n_rows, CHUNK);
}

static __device__ inline chunk_ref chunk_of(const sl_cu_segment &segment, uint32_t m)
{
    const uint32_t offset = segment.pos % CHUNK, done = m == 0 ? 0 : m * CHUNK - offset;
    chunk_ref out;
    out.m = m;
    out.begin = m == 0 ? offset : 0;
    out.end = min((uint32_t)CHUNK, out.begin + segment.n_rows - done);
    out.row = segment.first_row + done;
    out.is_kept = m + 2 >= count_chunks(segment);
    return out;
}

/* Operands of chunks: keys of every key head, then pairs and values of every value head. */
typedef struct value_block {
    float v[SLICES][CHUNK][SLICE]; /* beta v */
} value_block;

static __device__ inline key_block *keys_of(const sl_cu_gdn &gdn, uint32_t chunk, uint32_t key_head)
{
    return (key_block *)gdn.chunks + (size_t)chunk * gdn.n_key_heads + key_head;
}
static __device__ inline pair_block *pairs_of(const sl_cu_gdn &gdn, uint32_t n_chunks,
                                              uint32_t chunk, uint32_t head)
{
    return (pair_block *)keys_of(gdn, n_chunks, 0) + (size_t)chunk * gdn.n_value_heads + head;
}
static __device__ inline value_block *values_of(const sl_cu_gdn &gdn, uint32_t n_chunks,
                                                uint32_t chunk, uint32_t head)
{
    return (value_block *)pairs_of(gdn, n_chunks, n_chunks, 0) + (size_t)chunk * gdn.n_value_heads +
           head;
}

#endif
