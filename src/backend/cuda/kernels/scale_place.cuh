/* Where products of many rows find the scales of their activations: whoever rounds activations for
 * them can put the scales there at once. */
#ifndef SL_BACKEND_CUDA_KERNELS_SCALE_PLACE_CUH
#define SL_BACKEND_CUDA_KERNELS_SCALE_PLACE_CUH

#include "backend/cuda/kernels/common.cuh"

enum { STAGE_BLOCKS = SL_CU_MANY_BLOCKS, SCALE_ROWS = 64 /* rows whose scales lie together */ };

/* A lane's columns of a unit, 8 j + 2 t and the next, lie such that four of them are 16 bytes and
 * those of the four t are adjacent. */
static __host__ __device__ inline uint32_t place_of(uint32_t column)
{
    const uint32_t j = column / 8, t = column % 8 / 2;
    return (j / 2 * 4 + t) * 4 + j % 2 * 2 + column % 2;
}

/* Where the scale of a row's block lies: in tiles of 64 rows, whole stages of blocks, what a stage
 * wants adjacent. */
static __host__ __device__ inline size_t scale_place(uint32_t n_blocks, uint32_t row, uint32_t b)
{
    const size_t padded = div_up(n_blocks, STAGE_BLOCKS) * STAGE_BLOCKS;
    return (row / SCALE_ROWS * padded + b) * SCALE_ROWS + place_of(row % SCALE_ROWS);
}

#endif
