/* Products of the neon level. Compiled for Armv8.2 with its dot products. */
#if defined(__aarch64__)

#include "backend/cpu/kernels/codes_neon.h"

#include "backend/cpu/kernels/product_float.h"

void sl_products_neon(sl_cpu_kernels *k)
{
    set_products(k);
    set_float_products(k);
}

#endif
