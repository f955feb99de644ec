/* Sizes of the blocks of a state, see sl_state_shape. */
#include "plan/op.h"

size_t sl_shape_border_floats(const sl_state_shape *shape)
{
    return (size_t)shape->n_gdn * shape->n_value_heads * SL_GDN_DIM * SL_GDN_DIM;
}

size_t sl_shape_tape_layer_floats(const sl_state_shape *shape)
{
    size_t heads = (size_t)shape->n_key_heads + shape->n_value_heads;
    return SL_TAPE_PAGE * (heads * SL_GDN_DIM + shape->n_value_heads);
}

size_t sl_shape_tape_floats(const sl_state_shape *shape)
{
    return shape->n_gdn * sl_shape_tape_layer_floats(shape);
}

size_t sl_shape_conv_floats(const sl_state_shape *shape)
{
    return (size_t)shape->n_gdn * shape->n_conv_rows * shape->n_channels;
}

size_t sl_shape_kv_head_bytes(const sl_state_shape *shape)
{
    return (size_t)SL_KV_PAGE * SL_ATTN_DIM * (shape->kv_f32 ? 4 : 2);
}

size_t sl_shape_kv_bytes(const sl_state_shape *shape)
{
    return (size_t)shape->n_kv * shape->n_kv_heads * 2 * sl_shape_kv_head_bytes(shape);
}
