/* Products of the avx512vnni level. Compiled for AVX-512 with VNNI. */
#if defined(__x86_64__)

#include "backend/cpu/kernels/codes_avx512.h"

#include "backend/cpu/kernels/product_tiles.h"

void sl_products_avx512vnni(sl_cpu_kernels *k)
{
    set_products(k);
}

#endif
