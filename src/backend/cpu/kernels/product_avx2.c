/* Products of the avx2 level. Compiled for AVX2, FMA and F16C. */
#if defined(__x86_64__)

#include "backend/cpu/kernels/codes_avx2.h"

#include "backend/cpu/kernels/product_float.h"

void sl_products_avx2(sl_cpu_kernels *k)
{
    set_products(k);
    set_float_products(k);
}

#endif
