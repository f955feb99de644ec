/* The CPU backend: op runners over a thread pool and a table of kernels. */
#ifndef SL_BACKEND_CPU_CPU_H
#define SL_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/cpu/kernels/isa.h"

/* isa: a name of kernels/isa.h, NULL = the best level of this machine. n_threads = 0: one per
 * physical core this process may use. */
sl_status sl_cpu_backend_create(const char *isa, unsigned n_threads, sl_backend **out,
                                sl_error *err);

/* What loading a matrix takes at a level; 0 = it is read from the file. */
size_t sl_cpu_packed_bytes(sl_isa isa, const sl_matrix *matrix);

sl_isa sl_cpu_backend_isa(const sl_backend *backend);
unsigned sl_cpu_backend_threads(const sl_backend *backend);

#endif
