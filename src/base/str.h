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

/* Whether two names differ in the case of ASCII letters at most. */
static inline bool sl_same_name(const char *a, const char *b)
{
    for (;; a++, b++) {
        const int x = *a >= 'A' && *a <= 'Z' ? *a - 'A' + 'a' : *a;
        const int y = *b >= 'A' && *b <= 'Z' ? *b - 'A' + 'a' : *b;
        if (x != y || x == '\0')
            return x == y;
    }
}

#endif
