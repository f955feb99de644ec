/* Words of 16 rows into groups, as panels hold them. Only the instructions that every processor of
 * the architecture has: packing waits for memory, not for them. */
#ifndef SL_BACKEND_CPU_KERNELS_TRANSPOSE_H
#define SL_BACKEND_CPU_KERNELS_TRANSPOSE_H

#include <string.h>

#include "backend/cpu/kernels/kernels.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

enum { SL_TRANSPOSE_BYTES = 256 }; /* of a row, at most */

/* Rows whose words are to become groups; what a row does not fill is zero. */
typedef struct sl_row_words {
    _Alignas(64) uint8_t bytes[SL_PANEL_ROWS][SL_TRANSPOSE_BYTES];
} sl_row_words;

/* Four words of four rows: word r of group g is word g of row r. Rows are `step` bytes apart,
 * groups
 * 64. Written out: compilers leave small loops over registers in memory. */
#if defined(__x86_64__)
static inline __m128i sl_words_load(const uint8_t *p)
{
    return _mm_loadu_si128((const __m128i *)(const void *)p);
}

static inline void sl_words_store(uint8_t *p, __m128i words)
{
    _mm_storeu_si128((__m128i *)(void *)p, words);
}

static inline void sl_transpose_square(const uint8_t *from, size_t step, uint8_t *to)
{
    const __m128i row_0 = sl_words_load(from), row_1 = sl_words_load(from + step);
    const __m128i row_2 = sl_words_load(from + 2 * step), row_3 = sl_words_load(from + 3 * step);
    const __m128i low_01 = _mm_unpacklo_epi32(row_0, row_1);
    const __m128i low_23 = _mm_unpacklo_epi32(row_2, row_3);
    const __m128i high_01 = _mm_unpackhi_epi32(row_0, row_1);
    const __m128i high_23 = _mm_unpackhi_epi32(row_2, row_3);
    sl_words_store(to, _mm_unpacklo_epi64(low_01, low_23));
    sl_words_store(to + 64, _mm_unpackhi_epi64(low_01, low_23));
    sl_words_store(to + 128, _mm_unpacklo_epi64(high_01, high_23));
    sl_words_store(to + 192, _mm_unpackhi_epi64(high_01, high_23));
}
#elif defined(__aarch64__)
static inline uint32x4_t sl_words_load(const uint8_t *p)
{
    return vreinterpretq_u32_u8(vld1q_u8(p));
}

static inline void sl_words_store(uint8_t *p, uint32x2_t low, uint32x2_t high)
{
    vst1q_u8(p, vreinterpretq_u8_u32(vcombine_u32(low, high)));
}

static inline void sl_transpose_square(const uint8_t *from, size_t step, uint8_t *to)
{
    /* val[0] has words 0 and 2 of two rows, in turn; val[1] words 1 and 3 */
    const uint32x4x2_t of_01 = vtrnq_u32(sl_words_load(from), sl_words_load(from + step));
    const uint32x4x2_t of_23 =
        vtrnq_u32(sl_words_load(from + 2 * step), sl_words_load(from + 3 * step));
    sl_words_store(to, vget_low_u32(of_01.val[0]), vget_low_u32(of_23.val[0]));
    sl_words_store(to + 64, vget_low_u32(of_01.val[1]), vget_low_u32(of_23.val[1]));
    sl_words_store(to + 128, vget_high_u32(of_01.val[0]), vget_high_u32(of_23.val[0]));
    sl_words_store(to + 192, vget_high_u32(of_01.val[1]), vget_high_u32(of_23.val[1]));
}
#else
static inline void sl_transpose_square(const uint8_t *from, size_t step, uint8_t *to)
{
    for (size_t g = 0; g < 4; g++) {
        for (size_t r = 0; r < 4; r++)
            memcpy(to + 64 * g + 4 * r, from + step * r + 4 * g, 4);
    }
}
#endif

/* The first n words of the rows into n groups of 64 bytes. */
static inline void sl_transpose(const sl_row_words *from, size_t n, uint8_t *to)
{
    size_t g = 0;
    for (; g + 4 <= n; g += 4) {
        for (size_t r = 0; r < SL_PANEL_ROWS; r += 4)
            sl_transpose_square(from->bytes[r] + 4 * g, SL_TRANSPOSE_BYTES, to + 64 * g + 4 * r);
    }
    for (; g < n; g++) {
        for (size_t r = 0; r < SL_PANEL_ROWS; r++)
            memcpy(to + 64 * g + 4 * r, from->bytes[r] + 4 * g, 4);
    }
}

#endif
