/* The CPU backend: op runners over a thread pool and a table of kernels. */
#ifndef SL_BACKEND_CPU_CPU_H
#define SL_BACKEND_CPU_CPU_H

#include "backend/backend.h"

/* n_threads = 0: one per processor this process may use. */
sl_status sl_cpu_backend_create(unsigned n_threads, sl_backend **out, sl_error *err);
unsigned sl_cpu_backend_threads(const sl_backend *backend);

#endif
