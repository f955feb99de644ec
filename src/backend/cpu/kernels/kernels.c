/* The kernel table: the scalar kernels, then whatever the processor does better. */
#include "backend/cpu/kernels/kernels.h"

#include <string.h>

sl_cpu_kernels sl_cpu_kernels_choose(void)
{
    sl_cpu_kernels k = {
        .quantise_row = sl_quantise_row_scalar,
        .rms_norm = sl_rms_norm_scalar,
        .l2_norm = sl_l2_norm_scalar,
        .swiglu = sl_swiglu_scalar,
        .mul_silu = sl_mul_silu_scalar,
        .mul_sigmoid = sl_mul_sigmoid_scalar,
        .add = sl_add_scalar,
        .axpy = sl_axpy_scalar,
        .gdn_gates = sl_gdn_gates_scalar,
        .rope_angles = sl_rope_angles_scalar,
        .rope = sl_rope_scalar,
        .conv_silu = sl_conv_silu_scalar,
        .gdn_rows = sl_gdn_rows_scalar,
        .gdn_border = sl_gdn_border_scalar,
        .kv_store = sl_kv_store_scalar,
        .attention = sl_attention_scalar,
        .route = sl_route_scalar,
    };
    memcpy(k.dot_q8, sl_dot_q8_scalar, sizeof k.dot_q8);
    memcpy(k.dot_float, sl_dot_float_scalar, sizeof k.dot_float);
    return k;
}
