/* Every kernel of every instruction-set level gives the bits of the scalar one. A kernel is one
 * line in `cases`: it runs with random, hostile and misaligned input of many lengths, into memory
 * between guards. */
#include "numbers.h"

#include <string.h>

#include "backend/cpu/kernels/kernels.h"

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

static const struct {
    const char *name;
    run_fn run;
} cases[] = {
    {"add", run_add},
    {"swiglu", run_swiglu},
};

static void check_case(size_t c, const sl_cpu_kernels *scalar, const sl_cpu_kernels *level,
                       const char *name)
{
    sl_test_rng rng = sl_test_rng_of(1 + c);
    static input in;
    static float expected[N_VALUES], got[N_VALUES];
    for (size_t round = 0; round < 400; round++) {
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
