/* The canonical floating-point environment, whatever the host had set. */
#include "hostmode.h"
#include "support.h"

#include "base/fpenv.h"

/* The operands are volatile so that the compiler does not compute for us. */
static float multiply(float a, float b)
{
    volatile float x = a, y = b;
    volatile float product = x * y;
    return product;
}

static float add(float a, float b)
{
    volatile float x = a, y = b;
    volatile float sum = x + y;
    return sum;
}

typedef struct results {
    float denormal, from_denormal, tie_to_even, tie_up, negative, invalid;
} results;

static results compute(void)
{
    return (results){
        .denormal = multiply(0x1p-126f, 0.5f),
        .from_denormal = multiply(0x1p-149f, 0x1p+100f),
        .tie_to_even = add(1.0f, 0x1p-24f),
        .tie_up = add(1.0f + 0x1p-23f, 0x1p-24f),
        .negative = add(-1.0f, -0x1.8p-24f),
        .invalid = multiply(0.0f, __builtin_inff()),
    };
}

static void test_every_host(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(sl_host_modes); i++) {
        sl_set_host_mode(sl_host_modes[i]);
        sl_fpenv env = sl_fpenv_enter();
        results r = compute();
        sl_fpenv_leave(env);
        uint64_t after = sl_host_mode();
        sl_set_host_mode(SL_HOST_PLAIN);
        assert_int_equal(after, sl_host_modes[i]);
        assert_true(r.denormal == 0x1p-127f);
        assert_true(r.from_denormal == 0x1p-49f);
        assert_true(r.tie_to_even == 1.0f);
        assert_true(r.tie_up == 1.0f + 0x1p-22f);
        assert_true(r.negative == -1.0f - 0x1p-23f);
        assert_true(r.invalid != r.invalid);
    }
}

static void test_nesting(void **state)
{
    (void)state;
    sl_set_host_mode(sl_host_modes[1]);
    sl_fpenv outer = sl_fpenv_enter();
    sl_fpenv inner = sl_fpenv_enter();
    sl_fpenv_leave(inner);
    float denormal = multiply(0x1p-126f, 0.5f);
    sl_fpenv_leave(outer);
    uint64_t after = sl_host_mode();
    sl_set_host_mode(SL_HOST_PLAIN);
    assert_true(denormal == 0x1p-127f);
    assert_int_equal(after, sl_host_modes[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_host),
        cmocka_unit_test(test_nesting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
