/* Every kernel of every instruction-set level gives the bits of the scalar one. A kernel is one
 * line in `cases`: it runs with random, hostile and misaligned input of many lengths, into memory
 * between guards. */
#include "numbers.h"

#include <string.h>

#include "backend/cpu/kernels/kernels.h"
#include "base/cpuid.h"

enum { MAX_N = 600, GUARD = 32, N_VALUES = MAX_N + 2 * GUARD };

static const float guard_value = 12345.0f;

typedef struct input {
    float a[MAX_N + GUARD], b[MAX_N + GUARD];
    size_t n, shift; /* elements, and how far the vectors start from an aligned place */
} input;

/* Runs a kernel into y, which holds random numbers that kernels may add to. */
typedef void (*run_fn)(const sl_cpu_kernels *k, const input *in, float *y);

static void run_add(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->add(in->a + in->shift, in->b + in->shift, in->n, y);
}

static void run_swiglu(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->swiglu(in->a + in->shift, in->b + in->shift, in->n, y);
}

static void run_mul_silu(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->mul_silu(in->a + in->shift, in->n, y);
}

static void run_mul_sigmoid(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->mul_sigmoid(in->a + in->shift, in->n, y);
}

static void run_scale(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->scale(in->a[in->shift], in->n, y);
}

static void run_axpy(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->axpy(in->a[0], in->b + in->shift, in->n, y);
}

static void run_all_finite(const sl_cpu_kernels *k, const input *in, float *y)
{
    if (in->n > 0)
        y[0] = k->all_finite(in->a + in->shift, in->n) ? 1.0f : 0.0f;
}

static void run_rms_norm(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->rms_norm(in->a + in->shift, in->b + in->shift, in->n, 1e-6f, y);
}

static void run_l2_norm(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->l2_norm(in->a + in->shift, in->n, 0.25f, y);
}

static void run_rope(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->rope(y, in->a + in->shift, in->b + in->shift, in->n / 2);
}

static void run_rope_angles(const sl_cpu_kernels *k, const input *in, float *y)
{
    k->rope_angles((uint32_t)in->n * 977u, in->a + in->shift, 1.5f, in->n / 2, y, y + in->n / 2);
}

static void run_gdn_gates(const sl_cpu_kernels *k, const input *in, float *y)
{
    const size_t n = in->n / 2;
    k->gdn_gates(in->a + in->shift, in->b + in->shift, in->b + n, in->a + n, n, y, y + n);
}

/* Three rows, or as many as shift says, before which there may be nothing. */
static void run_conv_silu(const sl_cpu_kernels *k, const input *in, float *y)
{
    enum { ROWS = 10 };
    const size_t n = in->n / ROWS, begin = sl_min_size(in->shift, n);
    const float *x[ROWS + SL_CONV_HISTORY + 1];
    float *out[ROWS];
    for (size_t i = 0; i < SL_COUNTOF(x); i++)
        x[i] = i < in->shift % SL_CONV_TAPS ? NULL : in->a + i * n / 2;
    for (size_t i = 0; i < ROWS; i++)
        out[i] = y + i * n;
    k->conv_silu(&(sl_conv_rows){.x = x,
                                 .n = in->shift % 2 ? ROWS : 1,
                                 .n_ahead = 1,
                                 .w = in->b + in->shift,
                                 .begin = begin,
                                 .end = n,
                                 .y = out});
}

/* Codes, scales and sums one after the other in y. */
static void run_quantise_row(const sl_cpu_kernels *k, const input *in, float *y)
{
    const size_t n = in->n / 2, n_blocks = (n + SL_Q8_BLOCK - 1) / SL_Q8_BLOCK;
    int8_t codes[MAX_N + 2 * SL_Q8_BLOCK];
    int16_t sums[MAX_N];
    memset(codes, 7, sizeof codes);
    k->quantise_row(in->a + in->shift, n, codes + in->shift, y, sums);
    assert_int_equal(codes[in->shift + n_blocks * SL_Q8_BLOCK], 7);
    for (size_t i = 0; i < n; i++)
        y[n_blocks + i] = codes[in->shift + i];
    for (size_t i = n; i < n_blocks * SL_Q8_BLOCK; i++)
        assert_int_equal(codes[in->shift + i], 0);
    for (size_t i = 0; i < 2 * n_blocks && n_blocks + n + i < in->n; i++)
        y[n_blocks + n + i] = sums[i];
}

static const struct {
    const char *name;
    run_fn run;
} cases[] = {
    {"add", run_add},
    {"swiglu", run_swiglu},
    {"mul_silu", run_mul_silu},
    {"mul_sigmoid", run_mul_sigmoid},
    {"scale", run_scale},
    {"axpy", run_axpy},
    {"all_finite", run_all_finite},
    {"rms_norm", run_rms_norm},
    {"l2_norm", run_l2_norm},
    {"rope", run_rope},
    {"rope_angles", run_rope_angles},
    {"gdn_gates", run_gdn_gates},
    {"conv_silu", run_conv_silu},
    {"quantise_row", run_quantise_row},
};

static void check_case(size_t c, const sl_cpu_kernels *scalar, const sl_cpu_kernels *level,
                       const char *name)
{
    sl_test_rng rng = sl_test_rng_of(1 + c);
    static input in;
    static float expected[N_VALUES], got[N_VALUES];
    const size_t n_rounds = sl_test_shortened() ? 200 : 400;
    for (size_t round = 0; round < n_rounds; round++) {
        in.n = round < 100 ? round : sl_test_rng_below(&rng, MAX_N + 1);
        in.shift = sl_test_rng_below(&rng, GUARD);
        sl_fill_floats(&rng, (sl_test_fill)(round % SL_FILL_COUNT), in.a, SL_COUNTOF(in.a));
        sl_fill_floats(&rng, (sl_test_fill)(round / 3 % SL_FILL_COUNT), in.b, SL_COUNTOF(in.b));
        for (size_t i = 0; i < N_VALUES; i++)
            expected[i] = guard_value;
        sl_fill_floats(&rng, SL_FILL_NORMAL, expected + GUARD, in.n);
        memcpy(got, expected, sizeof got);
        cases[c].run(scalar, &in, expected + GUARD);
        cases[c].run(level, &in, got + GUARD);
        for (size_t i = 0; i < N_VALUES; i++) {
            if (!sl_same_float(expected[i], got[i]))
                fail_msg("%s of level %s: other bits at n = %zu, element %td", cases[c].name, name,
                         in.n, (ptrdiff_t)i - GUARD);
        }
    }
}

/* ---- the gated delta rule ---- */

enum { DIM = SL_GDN_DIM, CHUNK = SL_GDN_CHUNK };

/* One call on a chunk of its own, which lies in pages, and the border after it. */
typedef struct delta {
    float S[DIM * DIM], k[CHUNK][DIM], u[CHUNK][DIM], g[CHUNK];
    float q[CHUNK][DIM], v[CHUNK][DIM], beta[CHUNK], o[CHUNK][DIM];
    float border[DIM * DIM];
} delta;

typedef struct delta_cut {
    size_t begin, n, col_begin, col_end;
    bool in_place; /* outputs over values */
} delta_cut;

static void run_delta(const sl_cpu_kernels *kernels, delta *x, delta_cut cut)
{
    const float *k[CHUNK], *q[CHUNK], *v[CHUNK];
    float *u[CHUNK], *o[CHUNK];
    for (size_t j = 0; j < CHUNK; j++) {
        k[j] = x->k[j];
        q[j] = x->q[j];
        v[j] = x->v[j];
        u[j] = x->u[j];
        o[j] = cut.in_place ? x->v[j] : x->o[j];
    }
    kernels->gdn_rows(&(sl_gdn_rows){x->S, k, u, x->g, cut.begin, cut.n, q, v, x->beta, o,
                                     cut.col_begin, cut.col_end, x->S});
    kernels->gdn_border(x->S, k, (const float *const *)u, x->g, cut.col_begin, cut.col_end,
                        x->border);
}

static void check_delta(const sl_cpu_kernels *scalar, const sl_cpu_kernels *level, const char *name)
{
    static delta start, expected, got;
    sl_test_rng rng = sl_test_rng_of(99);
    const size_t n_rounds = sl_test_shortened() ? 60 : 120;
    for (size_t round = 0; round < n_rounds; round++) {
        /* Whole chunks and single rows of all columns, as models run them; then anything. */
        delta_cut cut = {0, CHUNK, 0, DIM, round % 5 == 0};
        if (round % 3 != 0) {
            cut.begin = sl_test_rng_below(&rng, CHUNK);
            cut.n = round % 3 == 1 ? 1 : 1 + sl_test_rng_below(&rng, (uint32_t)(CHUNK - cut.begin));
        }
        if (round % 4 == 3) {
            cut.col_begin = sl_test_rng_below(&rng, DIM);
            cut.col_end =
                cut.col_begin + 1 + sl_test_rng_below(&rng, (uint32_t)(DIM - cut.col_begin));
        }
        const sl_test_fill fill =
            round < n_rounds / 2 ? SL_FILL_NORMAL : (sl_test_fill)(round % SL_FILL_COUNT);
        sl_fill_floats(&rng, fill, (float *)&start, sizeof start / sizeof(float));
        for (size_t j = 0; j < CHUNK && fill == SL_FILL_NORMAL; j++) {
            start.g[j] = round % 2 ? -0.01f * start.g[j] * start.g[j] : -start.g[j] * start.g[j];
            for (size_t a = 0; a < DIM; a++)
                start.k[j][a] *= 0.1f; /* or u grows beyond all bounds */
        }
        memcpy(&expected, &start, sizeof start);
        memcpy(&got, &start, sizeof start);
        run_delta(scalar, &expected, cut);
        run_delta(level, &got, cut);
        const float *e = (const float *)&expected, *g = (const float *)&got;
        for (size_t i = 0; i < sizeof start / sizeof(float); i++) {
            if (!sl_same_float(e[i], g[i]))
                fail_msg("gated delta rule of level %s: other bits in round %zu, float %zu: rows "
                         "%zu + %zu, columns %zu .. %zu",
                         name, round, i, cut.begin, cut.n, cut.col_begin, cut.col_end);
        }
    }
}

static void test_every_level(void **state)
{
    (void)state;
    const sl_cpu_kernels scalar = sl_cpu_kernels_of(SL_ISA_SCALAR);
    for (int isa = 1; isa < SL_ISA_COUNT; isa++) {
        if (!sl_isa_usable((sl_isa)isa))
            continue;
        const sl_cpu_kernels level = sl_cpu_kernels_of((sl_isa)isa);
        for (size_t c = 0; c < SL_COUNTOF(cases); c++)
            check_case(c, &scalar, &level, sl_isa_name((sl_isa)isa));
        check_delta(&scalar, &level, sl_isa_name((sl_isa)isa));
    }
}

static void test_names(void **state)
{
    (void)state;
    sl_error err;
    sl_isa isa = SL_ISA_COUNT;
    assert_int_equal(sl_isa_choose("scalar", &isa, &err), SL_OK);
    assert_int_equal(isa, SL_ISA_SCALAR);
    sl_isa best;
    assert_int_equal(sl_isa_choose(NULL, &best, &err), SL_OK);
    assert_true(sl_isa_usable(best));
    assert_int_equal(sl_isa_choose("auto", &isa, &err), SL_OK);
    assert_int_equal(isa, best);
    assert_int_equal(sl_isa_choose("avx1024", &isa, &err), SL_ERR_ARGUMENT);
    assert_non_null(strstr(err.message, "avx512vnni"));
    for (int i = 0; i < SL_ISA_COUNT; i++)
        assert_int_equal(sl_isa_choose(sl_isa_name((sl_isa)i), &isa, &err),
                         sl_isa_usable((sl_isa)i) ? SL_OK : SL_ERR_UNSUPPORTED);
}

#if defined(__x86_64__)
/* The processor's features, as the compiler's own checks see them. */
static void test_features(void **state)
{
    (void)state;
    const sl_cpuid cpu = sl_cpuid_read();
    assert_int_equal(cpu.avx2, __builtin_cpu_supports("avx2") != 0);
    assert_int_equal(cpu.fma, __builtin_cpu_supports("fma") != 0);
    assert_int_equal(cpu.avx512f, __builtin_cpu_supports("avx512f") != 0);
    assert_int_equal(cpu.avx512bw, __builtin_cpu_supports("avx512bw") != 0);
    assert_int_equal(cpu.avx512dq, __builtin_cpu_supports("avx512dq") != 0);
    assert_int_equal(cpu.avx512vl, __builtin_cpu_supports("avx512vl") != 0);
    assert_int_equal(cpu.avx512vnni, __builtin_cpu_supports("avx512vnni") != 0);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level),
        cmocka_unit_test(test_names),
#if defined(__x86_64__)
        cmocka_unit_test(test_features),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
