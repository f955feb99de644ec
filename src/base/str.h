/* Making and comparing sl_str. */
#ifndef SL_BASE_STR_H
#define SL_BASE_STR_H

#include <string.h>

#include "base/base.h"
#include "sluice.h"

static inline sl_str sl_str_of(const char *s)
{
    return (sl_str){s, strlen(s)};
}

static inline bool sl_str_equal(sl_str a, sl_str b)
{
    return a.n_bytes == b.n_bytes && (a.n_bytes == 0 || memcmp(a.data, b.data, a.n_bytes) == 0);
}

static inline bool sl_str_is(sl_str a, const char *s)
{
    return sl_str_equal(a, sl_str_of(s));
}

#endif
