/* The canonical floating-point environment, whatever the host had set. */
#include "support.h"

#include "base/fpenv.h"

#if defined(__x86_64__)
#include <xmmintrin.h>
static uint64_t host_get(void)
{
    return _mm_getcsr();
}
static void host_set(uint64_t value)
{
    _mm_setcsr((unsigned)value);
}
enum { PLAIN = 0x1F80 };
static const uint64_t hosts[] = {
    PLAIN,          PLAIN | 0x8000, /* denormal results become zero */
    PLAIN | 0x0040,                 /* denormal inputs count as zero */
    PLAIN | 0x2000,                 /* round down */
    PLAIN | 0x4000,                 /* round up */
    PLAIN | 0xE040,                 /* all of it, rounding towards zero */
    PLAIN & ~0x80,                  /* traps on invalid operations */
    PLAIN | 0x003F,                 /* every exception already seen */
};
#elif defined(__aarch64__)
static uint64_t host_get(void)
{
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
}
static void host_set(uint64_t value)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(value));
}
enum { PLAIN = 0 };
static const uint64_t hosts[] = {PLAIN, 1u << 24, 1u << 22, 2u << 22, 3u << 22};
#endif

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
    for (size_t i = 0; i < SL_COUNTOF(hosts); i++) {
        host_set(hosts[i]);
        sl_fpenv env = sl_fpenv_enter();
        results r = compute();
        sl_fpenv_leave(env);
        uint64_t after = host_get();
        host_set(PLAIN);
        assert_int_equal(after, hosts[i]);
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
    host_set(hosts[1]);
    sl_fpenv outer = sl_fpenv_enter();
    sl_fpenv inner = sl_fpenv_enter();
    sl_fpenv_leave(inner);
    float denormal = multiply(0x1p-126f, 0.5f);
    sl_fpenv_leave(outer);
    uint64_t after = host_get();
    host_set(PLAIN);
    assert_true(denormal == 0x1p-127f);
    assert_int_equal(after, hosts[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_host),
        cmocka_unit_test(test_nesting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
