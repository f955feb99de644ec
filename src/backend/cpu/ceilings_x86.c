/* The loops that measure x86 processors. Every function is compiled for its own instructions and
 * called only where processor and operating system have them. */
#include "backend/cpu/ceilings.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include "base/cpuid.h"

/* Chains: two units with a latency of five cycles need ten, and twelve leave room. */
enum { CHAINS = 12, ROUND = 4 };

/* ---- integer products ---- */

__attribute__((target("avx512f,avx512bw,avx512vnni"))) static uint64_t int8_vnni512(size_t n_rounds)
{
    __m512i sums[CHAINS];
    const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-5);
    for (int i = 0; i < CHAINS; i++)
        sums[i] = _mm512_set1_epi32(i);
    for (size_t r = 0; r < n_rounds; r++) {
#pragma GCC unroll 48
        for (int i = 0; i < CHAINS * ROUND; i++)
            sums[i % CHAINS] = _mm512_dpbusd_epi32(sums[i % CHAINS], a, b);
    }
    __m512i all = sums[0];
    for (int i = 1; i < CHAINS; i++)
        all = _mm512_xor_si512(all, sums[i]);
    return (uint64_t)_mm512_reduce_add_epi64(all);
}

__attribute__((target("avx512f,avx512bw"))) static uint64_t int8_avx512(size_t n_rounds)
{
    __m512i sums[CHAINS];
    __m512i a = _mm512_set1_epi16(3), b = _mm512_set1_epi16(-5);
    for (int i = 0; i < CHAINS; i++)
        sums[i] = _mm512_set1_epi32(i);
    for (size_t r = 0; r < n_rounds; r++) {
#pragma GCC unroll 48
        for (int i = 0; i < CHAINS * ROUND; i++) {
            __asm__("" : "+v"(a)); /* or one product would serve all */
            sums[i % CHAINS] = _mm512_add_epi32(sums[i % CHAINS], _mm512_madd_epi16(a, b));
        }
    }
    __m512i all = sums[0];
    for (int i = 1; i < CHAINS; i++)
        all = _mm512_xor_si512(all, sums[i]);
    return (uint64_t)_mm512_reduce_add_epi64(all);
}

__attribute__((target("avx2"))) static uint64_t fold256(__m256i v)
{
    const __m128i half = _mm_xor_si128(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    return (uint64_t)_mm_cvtsi128_si64(half) ^ (uint64_t)_mm_extract_epi64(half, 1);
}

__attribute__((target("avx2,avxvnni"))) static uint64_t int8_vnni256(size_t n_rounds)
{
    __m256i sums[CHAINS];
    const __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(-5);
    for (int i = 0; i < CHAINS; i++)
        sums[i] = _mm256_set1_epi32(i);
    for (size_t r = 0; r < n_rounds; r++) {
#pragma GCC unroll 48
        for (int i = 0; i < CHAINS * ROUND; i++)
            sums[i % CHAINS] = _mm256_dpbusd_avx_epi32(sums[i % CHAINS], a, b);
    }
    __m256i all = sums[0];
    for (int i = 1; i < CHAINS; i++)
        all = _mm256_xor_si256(all, sums[i]);
    return fold256(all);
}

__attribute__((target("avx2"))) static uint64_t int8_avx2(size_t n_rounds)
{
    __m256i sums[CHAINS];
    __m256i a = _mm256_set1_epi16(3), b = _mm256_set1_epi16(-5);
    for (int i = 0; i < CHAINS; i++)
        sums[i] = _mm256_set1_epi32(i);
    for (size_t r = 0; r < n_rounds; r++) {
#pragma GCC unroll 48
        for (int i = 0; i < CHAINS * ROUND; i++) {
            __asm__("" : "+x"(a)); /* or one product would serve all */
            sums[i % CHAINS] = _mm256_add_epi32(sums[i % CHAINS], _mm256_madd_epi16(a, b));
        }
    }
    __m256i all = sums[0];
    for (int i = 1; i < CHAINS; i++)
        all = _mm256_xor_si256(all, sums[i]);
    return fold256(all);
}

/* ---- tiles ---- */

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t n_bytes[16]; /* of a row */
    uint8_t n_rows[16];
} tile_config;

_Static_assert(sizeof(tile_config) == 64, "the processor reads 64 bytes");

/* A constant of the program, as in product_amx.c. */
static const tile_config all_whole = {.palette = 1,
                                      .n_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
                                      .n_rows = {16, 16, 16, 16, 16, 16, 16, 16}};

__attribute__((target("amx-tile,amx-int8"))) static uint64_t int8_amx(size_t n_rounds)
{
    int8_t ones[16][64];
    int32_t sums[16][16] = {{0}};
    for (int r = 0; r < 16; r++) {
        for (int c = 0; c < 64; c++)
            ones[r][c] = 1;
    }
    _tile_loadconfig(&all_whole);
    _tile_loadd(4, ones, 64);
    _tile_loadd(5, ones, 64);
    _tile_loadd(6, ones, 64);
    _tile_loadd(7, ones, 64);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (size_t r = 0; r < n_rounds; r++) {
        _tile_dpbusd(0, 4, 6);
        _tile_dpbusd(1, 4, 7);
        _tile_dpbusd(2, 5, 6);
        _tile_dpbusd(3, 5, 7);
    }
    _tile_stored(0, sums, 64);
    _tile_release();
    return (uint64_t)(uint32_t)sums[3][5];
}

/* ---- float ---- */

__attribute__((target("avx512f"))) static uint64_t f32_fma512(size_t n_rounds)
{
    __m512 sums[CHAINS];
    const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
    for (int i = 0; i < CHAINS; i++)
        sums[i] = _mm512_set1_ps((float)i);
    for (size_t r = 0; r < n_rounds; r++) {
#pragma GCC unroll 48
        for (int i = 0; i < CHAINS * ROUND; i++)
            sums[i % CHAINS] = _mm512_fmadd_ps(sums[i % CHAINS], a, b);
    }
    __m512 all = sums[0];
    for (int i = 1; i < CHAINS; i++)
        all = _mm512_add_ps(all, sums[i]);
    return (uint64_t)_mm512_reduce_add_ps(all);
}

__attribute__((target("avx2,fma"))) static uint64_t f32_fma256(size_t n_rounds)
{
    __m256 sums[CHAINS];
    const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
    for (int i = 0; i < CHAINS; i++)
        sums[i] = _mm256_set1_ps((float)i);
    for (size_t r = 0; r < n_rounds; r++) {
#pragma GCC unroll 48
        for (int i = 0; i < CHAINS * ROUND; i++)
            sums[i % CHAINS] = _mm256_fmadd_ps(sums[i % CHAINS], a, b);
    }
    __m256 all = sums[0];
    for (int i = 1; i < CHAINS; i++)
        all = _mm256_add_ps(all, sums[i]);
    return fold256(_mm256_castps_si256(all));
}

/* ---- reading ---- */

__attribute__((target("avx512f"))) static uint64_t read_avx512(const uint8_t *p, size_t n,
                                                               size_t ahead)
{
    __m512i sums[4];
    for (int k = 0; k < 4; k++)
        sums[k] = _mm512_setzero_si512();
    for (size_t i = 0; i < n; i += 256) {
#pragma GCC unroll 4
        for (size_t k = 0; k < 4; k++) {
            if (ahead != 0)
                _mm_prefetch((const char *)p + i + ahead + 64 * k, _MM_HINT_T0);
            sums[k] = _mm512_xor_si512(sums[k], _mm512_loadu_si512(p + i + 64 * k));
        }
    }
    const __m512i all =
        _mm512_xor_si512(_mm512_xor_si512(sums[0], sums[1]), _mm512_xor_si512(sums[2], sums[3]));
    return (uint64_t)_mm512_reduce_add_epi64(all);
}

__attribute__((target("avx2"))) static uint64_t read_avx2(const uint8_t *p, size_t n, size_t ahead)
{
    __m256i sums[4];
    for (int k = 0; k < 4; k++)
        sums[k] = _mm256_setzero_si256();
    for (size_t i = 0; i < n; i += 128) {
#pragma GCC unroll 4
        for (size_t k = 0; k < 4; k++) {
            if (ahead != 0 && k % 2 == 0)
                _mm_prefetch((const char *)p + i + ahead + 32 * k, _MM_HINT_T0);
            const __m256i *from = (const __m256i *)(const void *)(p + i + 32 * k);
            sums[k] = _mm256_xor_si256(sums[k], _mm256_loadu_si256(from));
        }
    }
    return fold256(
        _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3])));
}

/* ---- the choice ---- */

void sl_ceiling_loops_x86(sl_ceiling_loops *loops)
{
    const sl_cpuid cpu = sl_cpuid_read();
    const double steps = CHAINS * ROUND;
    if (cpu.avx2) {
        loops->int8 = (sl_ceiling_loop){"vpmaddwd ymm", int8_avx2, steps * 32};
        loops->read = read_avx2;
    }
    if (cpu.avx2 && cpu.fma)
        loops->f32 = (sl_ceiling_loop){"fma ymm", f32_fma256, steps * 16};
    if (cpu.avx2 && cpu.avxvnni)
        loops->int8 = (sl_ceiling_loop){"vpdpbusd ymm", int8_vnni256, steps * 64};
    if (cpu.avx512f) {
        loops->f32 = (sl_ceiling_loop){"fma zmm", f32_fma512, steps * 32};
        loops->read = read_avx512;
    }
    if (cpu.avx512f && cpu.avx512bw && !cpu.avxvnni)
        loops->int8 = (sl_ceiling_loop){"vpmaddwd zmm", int8_avx512, steps * 64};
    if (cpu.avx512f && cpu.avx512bw && cpu.avx512vnni)
        loops->int8 = (sl_ceiling_loop){"vpdpbusd zmm", int8_vnni512, steps * 128};
    if (cpu.amx_int8 && sl_cpuid_allow_amx())
        loops->amx = (sl_ceiling_loop){"tdpbusd", int8_amx, 4.0 * 16 * 16 * 64 * 2};
}

#endif
