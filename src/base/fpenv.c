#include "base/fpenv.h"

#if defined(__x86_64__)
#include <xmmintrin.h>

/* All exceptions masked, rounding to nearest, DAZ and FTZ off. */
enum { MXCSR_CANONICAL = 0x1F80 };

sl_fpenv sl_fpenv_enter(void)
{
    sl_fpenv env = {.saved = _mm_getcsr()};
    _mm_setcsr(MXCSR_CANONICAL);
    return env;
}

void sl_fpenv_leave(sl_fpenv env)
{
    _mm_setcsr((unsigned)env.saved);
}

#elif defined(__aarch64__)

sl_fpenv sl_fpenv_enter(void)
{
    sl_fpenv env;
    __asm__ volatile("mrs %0, fpcr" : "=r"(env.saved));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return env;
}

void sl_fpenv_leave(sl_fpenv env)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(env.saved));
}

#else
#error "the floating-point environment of this processor is not known yet"
#endif
