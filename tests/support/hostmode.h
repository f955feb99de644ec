/* Floating-point modes that a host program may have set before it calls the library. */
#ifndef SL_TESTS_HOSTMODE_H
#define SL_TESTS_HOSTMODE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
static inline uint64_t sl_host_mode(void)
{
    return _mm_getcsr();
}
static inline void sl_set_host_mode(uint64_t mode)
{
    _mm_setcsr((unsigned)mode);
}
enum { SL_HOST_PLAIN = 0x1F80 };
static const uint64_t sl_host_modes[] = {
    SL_HOST_PLAIN,          SL_HOST_PLAIN | 0x8000, /* denormal results become zero */
    SL_HOST_PLAIN | 0x0040,                         /* denormal inputs count as zero */
    SL_HOST_PLAIN | 0x2000,                         /* round down */
    SL_HOST_PLAIN | 0x4000,                         /* round up */
    SL_HOST_PLAIN | 0xE040,                         /* all of it, rounding towards zero */
    SL_HOST_PLAIN & ~0x80,                          /* traps on invalid operations */
    SL_HOST_PLAIN | 0x003F,                         /* every exception already seen */
};
#elif defined(__aarch64__)
static inline uint64_t sl_host_mode(void)
{
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static inline void sl_set_host_mode(uint64_t mode)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
enum { SL_HOST_PLAIN = 0 };
static const uint64_t sl_host_modes[] = {SL_HOST_PLAIN, 1u << 24, 1u << 22, 2u << 22, 3u << 22};
#endif

/* Bits of x86's register that operations set and no mode: they may differ after a call. */
enum { SL_HOST_SEEN = SL_HOST_PLAIN ? 0x3F : 0 };

#endif
