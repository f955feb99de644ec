/* The kernel table: the scalar kernels, then what each level up to the chosen one does better. */
#include "backend/cpu/kernels/kernels.h"

#include <string.h>

sl_cpu_kernels sl_cpu_kernels_of(sl_isa isa)
{
    sl_cpu_kernels k = {
        .quantise_row = sl_quantise_row_scalar,
        .rms_norm = sl_rms_norm_scalar,
        .l2_norm = sl_l2_norm_scalar,
        .swiglu = sl_swiglu_scalar,
        .mul_silu = sl_mul_silu_scalar,
        .mul_sigmoid = sl_mul_sigmoid_scalar,
        .add = sl_add_scalar,
        .scale = sl_scale_scalar,
        .axpy = sl_axpy_scalar,
        .all_finite = sl_all_finite_scalar,
        .gdn_gates = sl_gdn_gates_scalar,
        .rope_angles = sl_rope_angles_scalar,
        .rope = sl_rope_scalar,
        .conv_silu = sl_conv_silu_scalar,
        .gdn_rows = sl_gdn_rows_scalar,
        .gdn_border = sl_gdn_border_scalar,
        .gdn_tokens = sl_gdn_tokens_scalar,
        .kv_store = sl_kv_store_scalar,
        .attend_block = sl_attend_block_scalar,
        .softmax_merge = sl_softmax_merge_scalar,
        .softmax_finish = sl_softmax_finish_scalar,
        .route = sl_route_scalar,
    };
    memcpy(k.dot_q8, sl_dot_q8_scalar, sizeof k.dot_q8);
    memcpy(k.dot_float, sl_dot_float_scalar, sizeof k.dot_float);
#if defined(__x86_64__)
    if (isa >= SL_ISA_AVX2 && isa <= SL_ISA_AMX) {
        sl_level_avx2(&k);
        sl_products_avx2(&k);
    }
    if (isa >= SL_ISA_AVX512 && isa <= SL_ISA_AMX) {
        sl_level_avx512(&k);
        sl_products_avx512(&k);
    }
    if (isa >= SL_ISA_AVX512VNNI && isa <= SL_ISA_AMX)
        sl_products_avx512vnni(&k);
    if (isa == SL_ISA_AMX)
        sl_products_amx(&k);
#elif defined(__aarch64__)
    if (isa == SL_ISA_NEON) {
        sl_level_neon(&k);
        sl_products_neon(&k);
    }
#else
    (void)isa;
#endif
    return k;
}
