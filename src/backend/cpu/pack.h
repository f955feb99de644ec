/* Matrices rearranged into panels when a model is loaded: kernels/panels.h says how they lie. */
#ifndef SL_BACKEND_CPU_PACK_H
#define SL_BACKEND_CPU_PACK_H

#include "backend/cpu/kernels/kernels.h"
#include "base/pool.h"
#include "plan/op.h"

/* Bytes of a matrix or stack as panels; 0 when its type has none or the size overflows. */
size_t sl_packed_bytes(const sl_matrix *matrix);

/* All panels of a matrix, made by the threads of the pool. Errors: SL_ERR_MEMORY. */
sl_status sl_pack(sl_pool *pool, const sl_matrix *matrix, sl_panels **out, sl_error *err);
void sl_panels_free(sl_panels *panels);

#endif
