/* Matrices rearranged into panels when a model is loaded: kernels/panels.h says how they lie. */
#ifndef SL_BACKEND_CPU_PACK_H
#define SL_BACKEND_CPU_PACK_H

#include "backend/cpu/kernels/kernels.h"
#include "base/pool.h"
#include "plan/op.h"

/* Room for a matrix or stack as panels, a multiple of SL_MEM_ALIGN; 0 when its type has none or the
 * size overflows. */
size_t sl_packed_bytes(const sl_matrix *matrix);

/* All panels of a matrix that has some, made by the threads of the pool at `to`: as much room as
 * sl_packed_bytes says, aligned to SL_MEM_ALIGN, all zero. */
sl_panels sl_pack(sl_pool *pool, const sl_matrix *matrix, uint8_t *to);

#endif
