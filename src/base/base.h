/* Names and checked size arithmetic that every other file may use. */
#ifndef SL_BASE_BASE_H
#define SL_BASE_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_COUNTOF(array) (sizeof(array) / sizeof((array)[0]))
/* The struct of which *pointer is a member. */
#define SL_CONTAINER_OF(pointer, type, member) \
    ((type *)(void *)((char *)(pointer)-offsetof(type, member)))

#if defined(__GNUC__)
#define SL_PRINTF(format_index, args_index) \
    __attribute__((format(printf, format_index, args_index)))
#else
#define SL_PRINTF(format_index, args_index)
#endif

/* For helpers that must become part of their caller: kernels exist once per processor family
 * (kernels/scalar.h, and files with their own flags), and a helper that stayed a function of its
 * own would run with the plain instructions of its file. In CUDA they serve both sides. */
#if defined(__CUDACC__)
#define SL_INLINE static inline __host__ __device__
#elif defined(__GNUC__)
#define SL_INLINE static inline __attribute__((always_inline))
#else
#define SL_INLINE static inline
#endif

static inline size_t sl_min_size(size_t a, size_t b)
{
    return a < b ? a : b;
}
static inline size_t sl_max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* *out = a + b, a * b, or a rounded up to a multiple of align (a power of two).
 * Each returns false and leaves *out alone when the result does not fit. */
static inline bool sl_size_add(size_t a, size_t b, size_t *out)
{
    if (b > SIZE_MAX - a)
        return false;
    *out = a + b;
    return true;
}

static inline bool sl_size_mul(size_t a, size_t b, size_t *out)
{
    if (b != 0 && a > SIZE_MAX / b)
        return false;
    *out = a * b;
    return true;
}

static inline bool sl_size_align(size_t a, size_t align, size_t *out)
{
    if (a > SIZE_MAX - (align - 1))
        return false;
    *out = (a + (align - 1)) & ~(align - 1);
    return true;
}

#endif
