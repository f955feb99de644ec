/* Attention on a CUDA device by itself, 0.8B shape: 8 query heads, 2 KV heads. Figures, not
 * assertions, and beside them what they are good for: the error against double and whether every
 * schedule gives the same bits.
 * usage: bench/cuda_attention [check] [prefill] [decode] [batch]   all of them without arguments */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda_attention.h"

/* Of one H200, measured: streaming reads, and mma.m16n8k16 of halves with operands in registers. */
static const double bytes_per_us = 4635e3, flop_per_us = 640e6;

enum { HEADS = 8, KV_HEADS = 2, DIM = SL_ATTN_DIM };

static sl_attention_rig *rig_of(uint32_t n_sequences, uint32_t n_positions, uint32_t n_layers,
                                uint32_t most_rows, bool f32)
{
    const sl_attention_shape shape = {.n_heads = HEADS,
                                      .n_kv_heads = KV_HEADS,
                                      .n_pairs = 32,
                                      .n_sequences = n_sequences,
                                      .n_positions = n_positions,
                                      .n_layers = n_layers,
                                      .kv_f32 = f32,
                                      .most_rows = most_rows};
    sl_attention_rig *rig = sl_attention_rig_create(&shape, 7);
    if (!rig) {
        fprintf(stderr, "cuda_attention: no device, or not enough memory on it\n");
        exit(1);
    }
    return rig;
}

/* Relative L2 error of a few rows of a prompt. */
static double error_of(sl_attention_rig *rig, uint32_t length)
{
    const sl_attention_piece whole = {0, 0, length};
    const float *y;
    const int8_t *codes;
    double difference = 0.0, square = 0.0;
    if (!sl_attention_rig_run(rig, &whole, 1, &y, &codes))
        return NAN;
    for (uint32_t i = 0; i < 12; i++) {
        const uint32_t pos = i == 0 ? 0 : length - 1 - i * (length / 13), head = i * 5 % HEADS;
        double expected[DIM];
        sl_attention_rig_reference(rig, 0, pos, head, expected);
        for (uint32_t d = 0; d < DIM; d++) {
            const double x = (double)y[((size_t)pos * HEADS + head) * DIM + d] - expected[d];
            difference += x * x;
            square += expected[d] * expected[d];
        }
    }
    return sqrt(difference / square);
}

/* Steps and prompts after a deep context. */
static void check_deep(uint32_t length)
{
    static const uint32_t sizes[] = {1, 1, 2, 3, 4, 5, 16, 1, 15, 17, 40, 100, 27, 80, 300};
    sl_attention_rig *rig = rig_of(1, length, 1, length, false);
    size_t n_rows = 0;
    const size_t different =
        sl_attention_rig_last(rig, sizes, sizeof sizes / sizeof *sizes, &n_rows);
    printf("pieces of the last %zu of %u: %zu rows differ\n", n_rows, length, different);
    sl_attention_rig_free(rig);
}

static void check(void)
{
    for (int f32 = 0; f32 < 2; f32++) {
        sl_attention_rig *rig = rig_of(3, 700, 1, 2100, f32);
        size_t n_rows = 0;
        const size_t different = sl_attention_rig_schedules(rig, 4, &n_rows);
        printf("schedules, KV %s: %zu of %zu rows differ; error %.2g\n", f32 ? "f32" : "f16",
               different, n_rows, error_of(rig, 700));
        sl_attention_rig_free(rig);
    }
    sl_attention_rig *rig = rig_of(1, 4096, 1, 4096, false);
    printf("error at 4,096: %.2g\n", error_of(rig, 4096));
    sl_attention_rig_free(rig);
    check_deep(4100);
    check_deep(20000);
}

static void prefill(void)
{
    static const uint32_t lengths[] = {512, 4096, 16384};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        const uint32_t n = lengths[i];
        sl_attention_rig *rig = rig_of(1, n, 2, n, false);
        const sl_attention_piece whole = {0, 0, n};
        sl_attention_rig_set(rig, &whole, 1);
        const double us = sl_attention_rig_time(rig, 4, n > 8192 ? 2 : 5);
        const double flop = (double)n * n / 2 * HEADS * 4 * DIM; /* once; high and low: twice */
        printf("prefill %5u: %8.1f us, %3.0f TFLOP/s, with both halves %2.0f %% of mma\n", n, us,
               flop / us / 1e6, 200 * flop / us / flop_per_us);
        sl_attention_rig_free(rig);
    }
}

static void steps(const char *what, uint32_t n_sequences, uint32_t depth, uint32_t n_rows,
                  uint32_t n_layers)
{
    sl_attention_rig *rig =
        rig_of(n_sequences, depth + n_rows, n_layers, n_sequences * n_rows, false);
    sl_attention_piece pieces[64];
    for (uint32_t i = 0; i < n_sequences; i++)
        pieces[i] = (sl_attention_piece){i, depth, n_rows};
    sl_attention_rig_fill(rig);
    sl_attention_rig_set(rig, pieces, n_sequences);
    const double us = sl_attention_rig_time(rig, 48, 10);
    const double bytes = (double)n_sequences * depth * KV_HEADS * DIM * 2 * 2;
    printf("%s %2u x %2u rows after %5u: %7.2f us, %3.0f %% of reading\n", what, n_sequences,
           n_rows, depth, us, 100 * bytes / us / bytes_per_us);
    sl_attention_rig_free(rig);
}

static void decode(void)
{
    steps("decode", 1, 0, 1, 48);
    steps("decode", 1, 200, 1, 48);
    steps("decode", 1, 256, 1, 48);
    steps("decode", 1, 4096, 1, 24);
    steps("decode", 1, 65535, 1, 4);
    steps("verify", 1, 4096, 4, 24);
    steps("verify", 1, 4096, 16, 24);
    steps("decode", 8, 512, 1, 24);
    steps("prompt", 1, 4096, 17, 8);
    steps("prompt", 1, 16000, 64, 2);
    steps("prompt", 1, 30000, 100, 1);
    steps("prompt", 1, 65000, 30, 1);
    steps("prompt", 1, 65000, 300, 1);
}

static void batch(void)
{
    steps("decode", 64, 511, 1, 4);
    steps("decode", 64, 4096, 1, 2);
}

static bool wanted(int argc, char **argv, const char *part)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], part) == 0)
            return true;
    }
    return argc < 2;
}

int main(int argc, char **argv)
{
    if (wanted(argc, argv, "check"))
        check();
    if (wanted(argc, argv, "prefill"))
        prefill();
    if (wanted(argc, argv, "decode"))
        decode();
    if (wanted(argc, argv, "batch"))
        batch();
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        printf("%s\n", cudaGetErrorString(error));
    return error == cudaSuccess ? 0 : 1;
}
