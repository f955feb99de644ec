#define _GNU_SOURCE /* syscall */
#include "base/cpuid.h"

#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__x86_64__)

#include <cpuid.h>

enum { EAX, EBX, ECX, EDX, N_REGISTERS };

/* Parts of the processor's state that the operating system keeps: XCR0. */
enum { KEEPS_SSE = 1 << 1, KEEPS_AVX = 1 << 2, KEEPS_AVX512 = 7 << 5, KEEPS_TILES = 3 << 17 };

/* Linux: arch_prctl(ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA). */
enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };

static bool leaf(unsigned number, unsigned sub, unsigned registers[N_REGISTERS])
{
    return __get_cpuid_count(number, sub, &registers[EAX], &registers[EBX], &registers[ECX],
                             &registers[EDX]) != 0;
}

static bool bit(unsigned word, unsigned i)
{
    return (word >> i & 1) != 0;
}

static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static void read_brand(char brand[64])
{
    unsigned words[12];
    if (__get_cpuid_max(0x80000000, NULL) < 0x80000004)
        return;
    for (unsigned i = 0; i < 3; i++) {
        if (!leaf(0x80000002 + i, 0, words + 4 * i))
            return;
    }
    char text[sizeof words + 1];
    memcpy(text, words, sizeof words);
    text[sizeof words] = '\0';
    const char *start = text + strspn(text, " ");
    size_t n = strlen(start);
    while (n > 0 && start[n - 1] == ' ')
        n--;
    memcpy(brand, start, n);
    brand[n] = '\0';
}

sl_cpuid sl_cpuid_read(void)
{
    sl_cpuid cpu = {0};
    unsigned r[N_REGISTERS];
    read_brand(cpu.brand);
    if (!leaf(1, 0, r))
        return cpu;
    const unsigned features = r[ECX];
    const uint64_t kept = bit(features, 27) ? read_xcr0() : 0; /* OSXSAVE */
    cpu.hypervisor = bit(features, 31);
    cpu.has_avx = bit(features, 28);
    cpu.os_avx = (kept & (KEEPS_SSE | KEEPS_AVX)) == (KEEPS_SSE | KEEPS_AVX);
    cpu.os_avx512 = cpu.os_avx && (kept & KEEPS_AVX512) == KEEPS_AVX512;
    cpu.os_amx = (kept & KEEPS_TILES) == KEEPS_TILES;
    const bool avx = cpu.has_avx && cpu.os_avx;
    cpu.fma = avx && bit(features, 12);
    cpu.f16c = avx && bit(features, 29);
    if (!leaf(7, 0, r))
        return cpu;
    cpu.avx2 = avx && bit(r[EBX], 5);
    cpu.has_avx512f = bit(r[EBX], 16);
    cpu.avx512f = cpu.has_avx512f && cpu.os_avx512;
    cpu.avx512dq = cpu.avx512f && bit(r[EBX], 17);
    cpu.avx512bw = cpu.avx512f && bit(r[EBX], 30);
    cpu.avx512vl = cpu.avx512f && bit(r[EBX], 31);
    cpu.avx512vnni = cpu.avx512f && bit(r[ECX], 11);
    cpu.has_amx_int8 = bit(r[EDX], 24) && bit(r[EDX], 25);
    cpu.amx_int8 = cpu.has_amx_int8 && cpu.os_amx;
    if (r[EAX] >= 1 && leaf(7, 1, r))
        cpu.avxvnni = cpu.avx2 && bit(r[EAX], 4);
    return cpu;
}

bool sl_cpuid_allow_amx(void)
{
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}

#elif defined(__aarch64__)

#include <sys/auxv.h>

/* Of the kernel's HWCAP and HWCAP2 words. */
enum { CAP_ASIMD = 1, CAP_DOTPROD = 20, CAP2_I8MM = 13 };

sl_cpuid sl_cpuid_read(void)
{
    const unsigned long caps = getauxval(AT_HWCAP), caps2 = getauxval(AT_HWCAP2);
    return (sl_cpuid){.neon = (caps >> CAP_ASIMD & 1) != 0,
                      .dotprod = (caps >> CAP_DOTPROD & 1) != 0,
                      .i8mm = (caps2 >> CAP2_I8MM & 1) != 0};
}

bool sl_cpuid_allow_amx(void)
{
    return false;
}

#else

sl_cpuid sl_cpuid_read(void)
{
    return (sl_cpuid){0};
}

bool sl_cpuid_allow_amx(void)
{
    return false;
}

#endif
