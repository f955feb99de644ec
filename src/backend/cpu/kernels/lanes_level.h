/* All kernels that are written over lanes, for the table of the level that includes this. */
#ifndef SL_BACKEND_CPU_KERNELS_LANES_LEVEL_H
#define SL_BACKEND_CPU_KERNELS_LANES_LEVEL_H

#include "backend/cpu/kernels/lanes_attention.h"
#include "backend/cpu/kernels/lanes_conv.h"
#include "backend/cpu/kernels/lanes_elementwise.h"
#include "backend/cpu/kernels/lanes_gdn.h"
#include "backend/cpu/kernels/lanes_gdn_serial.h"
#include "backend/cpu/kernels/lanes_norm.h"
#include "backend/cpu/kernels/lanes_quantise.h"
#include "backend/cpu/kernels/lanes_rope.h"

SL_INLINE void use_lane_kernels(sl_cpu_kernels *k)
{
    k->quantise_row = quantise_row;
    k->rms_norm = rms_norm;
    k->l2_norm = l2_norm;
    k->swiglu = swiglu;
    k->mul_silu = mul_silu;
    k->mul_sigmoid = mul_sigmoid;
    k->add = add;
    k->scale = scale;
    k->axpy = axpy;
    k->all_finite = all_finite;
    k->gdn_gates = gdn_gates;
    k->rope = rope;
    k->conv_silu = conv_silu;
    k->gdn_rows = gdn_rows;
    k->gdn_border = gdn_border;
    k->gdn_tokens = gdn_tokens;
    k->kv_store = kv_store;
    k->attend_block = attend_block;
    k->softmax_merge = softmax_merge;
    k->softmax_finish = softmax_finish;
}

#endif
