/* Random weights as bytes of any element type, a piece at a time. */
#ifndef SL_MODEL_RANDOM_WEIGHTS_H
#define SL_MODEL_RANDOM_WEIGHTS_H

#include "base/err.h"
#include "format/dtype.h"

/* How the values of a tensor are distributed. The ranges are those of trained and of freshly
 * initialised models. */
typedef enum sl_random_law {
    SL_RANDOM_NORMAL, /* mean 0, the given deviation: matrices and convolutions */
    SL_RANDOM_NORM,   /* 0.9 to 1.1: factors of RMS norms */
    SL_RANDOM_A_COEF, /* -8 to -0.1, evenly by logarithm: -exp(A_log) */
    SL_RANDOM_DT      /* softplus of it is 0.001 to 0.1, evenly by logarithm: the step's bias */
} sl_random_law;

typedef struct sl_random_source sl_random_source;

/* The bytes of a tensor of n_elems elements, a function of the arguments alone. Laws but the first
 * are of float types only. deviation is that of the first law. SL_ERR_MEMORY. */
sl_status sl_random_open(sl_dtype dtype, size_t n_elems, sl_random_law law, double deviation,
                         uint64_t seed, sl_random_source **out, sl_error *err);
void sl_random_close(sl_random_source *source);

/* The next n bytes; the same however they are cut into pieces. */
void sl_random_read(sl_random_source *source, uint8_t *bytes, size_t n);

#endif
