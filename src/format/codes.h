/* Blocks of quantised weights taken apart: the integers and scales that a product computes with,
 * whatever the type. For those who rearrange weights; products themselves read packed forms. */
#ifndef SL_FORMAT_CODES_H
#define SL_FORMAT_CODES_H

#include "format/dtype.h"

/* 32 weights. Element i of half h = i / 16 is d * scale[h] * q[i] + m * min[h]. */
typedef struct sl_codes {
    int8_t q[32];
    float d, m; /* m 0 for types without a minimum; negative where the format subtracts it */
    int8_t scale[2];
    uint8_t min[2];
} sl_codes;

/* Block b (of 32 elements) of a row of a quantised type, at any address. */
void sl_read_codes(sl_dtype dtype, const void *row, size_t b, sl_codes *out);

/* Whether the type is d * q alone, with d a half. */
bool sl_codes_are_plain(sl_dtype dtype);
/* Whether the type has minimums. */
bool sl_codes_have_min(sl_dtype dtype);

#endif
