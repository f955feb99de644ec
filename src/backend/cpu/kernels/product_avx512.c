/* Products of the avx512 level. Compiled for AVX-512 without VNNI. */
#if defined(__x86_64__)

#include "backend/cpu/kernels/codes_avx512.h"

#include "backend/cpu/kernels/product_float.h"

void sl_products_avx512(sl_cpu_kernels *k)
{
    set_products(k);
    set_float_products(k);
}

#endif
