/* The gated delta rule by itself: the chunk form of the contract beside the token-serial rule,
 * whose state slice stays in the innermost cache; every level of this machine, one thread,
 * interleaved, medians. usage: bench/gdn [REPEATS]
 *
 * Prefill: T tokens of one head. Decode: single tokens of the heads of a whole model, whose states
 * do not fit into the inner caches; chunk positions are taken in turn. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/cpu/kernels/kernels.h"
#include "base/fpenv.h"
#include "base/mem.h"

enum {
    DIM = SL_GDN_DIM,
    CHUNK = SL_GDN_CHUNK,
    STATE = DIM * DIM,
    MOST_TOKENS = 4096,
    DECODE_HEADS = 18 * 16,
    MOST_REPEATS = 1001
};

typedef struct workload {
    float *k, *q, *v, *o;   /* [MOST_TOKENS][DIM] */
    float *g, *beta;        /* [MOST_TOKENS] */
    float *states;          /* [DECODE_HEADS][STATE] */
    float *tape_k, *tape_u; /* [DECODE_HEADS][CHUNK][DIM] */
    const float *k_rows[MOST_TOKENS], *q_rows[MOST_TOKENS], *v_rows[MOST_TOKENS];
    float *o_rows[MOST_TOKENS];
} workload;

static float *floats(size_t n)
{
    float *x = sl_pages_alloc(SL_MEM_GENERAL, n * sizeof *x);
    if (!x) {
        fprintf(stderr, "gdn: out of memory\n");
        exit(1);
    }
    uint32_t seed = 1;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = ((float)(seed >> 8) - 0x1p23f) * 0x1p-27f; /* below 1/16 */
    }
    return x;
}

static workload *prepare(void)
{
    static workload w;
    w.k = floats(MOST_TOKENS * DIM);
    w.q = floats(MOST_TOKENS * DIM);
    w.v = floats(MOST_TOKENS * DIM);
    w.o = floats(MOST_TOKENS * DIM);
    w.g = floats(MOST_TOKENS);
    w.beta = floats(MOST_TOKENS);
    w.states = floats((size_t)DECODE_HEADS * STATE);
    w.tape_k = floats((size_t)DECODE_HEADS * CHUNK * DIM);
    w.tape_u = floats((size_t)DECODE_HEADS * CHUNK * DIM);
    for (size_t t = 0; t < MOST_TOKENS; t++) {
        w.g[t] = w.g[t] < 0.0f ? w.g[t] : -w.g[t];
        w.beta[t] = w.beta[t] < 0.0f ? -w.beta[t] : w.beta[t];
        w.k_rows[t] = w.k + t * DIM;
        w.q_rows[t] = w.q + t * DIM;
        w.v_rows[t] = w.v + t * DIM;
        w.o_rows[t] = w.o + t * DIM;
    }
    return &w;
}

/* ---- the two rules ---- */

static void prefill_chunks(const sl_cpu_kernels *kernels, workload *w, size_t n)
{
    float *u[CHUNK];
    for (size_t j = 0; j < CHUNK; j++)
        u[j] = w->tape_u + j * DIM;
    for (size_t t = 0; t < n; t += CHUNK) {
        kernels->gdn_rows(&(sl_gdn_rows){w->states, w->k_rows + t, u, w->g + t, 0, CHUNK,
                                         w->q_rows + t, w->v_rows + t, w->beta + t, w->o_rows + t,
                                         0, DIM, NULL});
        kernels->gdn_border(w->states, w->k_rows + t, (const float *const *)u, w->g + t, 0, DIM,
                            w->states);
    }
}

static void prefill_serial(const sl_cpu_kernels *kernels, workload *w, size_t n)
{
    kernels->gdn_tokens(&(sl_gdn_tokens){w->states, n, w->k_rows, w->q_rows, w->v_rows, w->g,
                                         w->beta, w->o_rows, 0, DIM});
}

/* n steps of all heads; a step at the end of a chunk writes the state. */
static void decode_chunks(const sl_cpu_kernels *kernels, workload *w, size_t n)
{
    const float *k[CHUNK];
    float *u[CHUNK];
    for (size_t step = 0; step < n; step++) {
        const size_t begin = step % CHUNK;
        for (size_t h = 0; h < DECODE_HEADS; h++) {
            float *S = w->states + h * STATE;
            for (size_t j = 0; j < CHUNK; j++) {
                k[j] = w->tape_k + (h * CHUNK + j) * DIM;
                u[j] = w->tape_u + (h * CHUNK + j) * DIM;
            }
            kernels->gdn_rows(&(sl_gdn_rows){S, k, u, w->g, begin, 1, w->q_rows, w->v_rows, w->beta,
                                             w->o_rows, 0, DIM, S + STATE});
            if (begin == CHUNK - 1)
                kernels->gdn_border(S, k, (const float *const *)u, w->g, 0, DIM, S);
        }
    }
}

static void decode_serial(const sl_cpu_kernels *kernels, workload *w, size_t n)
{
    for (size_t step = 0; step < n; step++) {
        for (size_t h = 0; h < DECODE_HEADS; h++)
            kernels->gdn_tokens(&(sl_gdn_tokens){w->states + h * STATE, 1, w->k_rows, w->q_rows,
                                                 w->v_rows, w->g, w->beta, w->o_rows, 0, DIM});
    }
}

/* ---- measuring ---- */

/* Of this thread: what others do on the machine does not count. */
static double cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

typedef void (*rule)(const sl_cpu_kernels *kernels, workload *w, size_t n);

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints one row: nanoseconds of a token and head. */
static void measure(const char *name, const sl_cpu_kernels *kernels, workload *w, const char *what,
                    rule chunks, rule serial, size_t n, size_t n_heads, size_t repeats)
{
    static double ns[2][MOST_REPEATS];
    for (size_t i = 0; i <= repeats; i++) { /* the first one warms up */
        for (int arm = 0; arm < 2; arm++) {
            const double begin = cpu_ns();
            (arm == 0 ? chunks : serial)(kernels, w, n);
            if (i > 0)
                ns[arm][i - 1] = (cpu_ns() - begin) / (double)(n * n_heads);
        }
    }
    for (int arm = 0; arm < 2; arm++)
        qsort(ns[arm], repeats, sizeof ns[arm][0], compare);
    const double c = ns[0][repeats / 2], s = ns[1][repeats / 2];
    printf("| %s | %s | %zu | %.0f | %.0f | %.2f |\n", name, what, n, c, s, c / s);
    fflush(stdout);
}

int main(int argc, char **argv)
{
    size_t repeats = argc > 1 ? strtoul(argv[1], NULL, 10) : 21;
    if (repeats == 0 || repeats > MOST_REPEATS) {
        fprintf(stderr, "usage: %s [REPEATS], at most %d\n", argv[0], MOST_REPEATS);
        return 2;
    }
    sl_fpenv_enter();
    workload *w = prepare();
    printf("C = %d; ns a token and head\n\n| level | | tokens | chunk form | serial | ratio |\n"
           "|---|---|---|---|---|---|\n",
           CHUNK);
    for (int isa = 0; isa < SL_ISA_COUNT; isa++) {
        if (!sl_isa_usable((sl_isa)isa))
            continue;
        const sl_cpu_kernels kernels = sl_cpu_kernels_of((sl_isa)isa);
        static const size_t lengths[] = {64, 256, 1024, MOST_TOKENS};
        for (size_t i = 0; i < SL_COUNTOF(lengths); i++)
            measure(sl_isa_name((sl_isa)isa), &kernels, w, "prefill", prefill_chunks,
                    prefill_serial, lengths[i], 1, repeats);
        measure(sl_isa_name((sl_isa)isa), &kernels, w, "decode", decode_chunks, decode_serial,
                CHUNK, DECODE_HEADS, (repeats + 4) / 5);
    }
    return 0;
}
