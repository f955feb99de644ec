/* Errors are values: a status to branch on and a sentence to show. */
#ifndef SL_BASE_ERR_H
#define SL_BASE_ERR_H

#include "base/base.h"
#include "sluice.h"

/* Writes the sentence into err (which may be NULL) and returns status, so that a caller can write
 * `return sl_fail(err, SL_ERR_FORMAT, "%s: ...", path);`. Invalid UTF-8 and control characters in
 * the text are replaced, because parts of it often come from a hostile file. */
sl_status sl_fail(sl_error *err, sl_status status, const char *format, ...) SL_PRINTF(3, 4);

/* Puts "prefix: " before the sentence that err already holds; returns its status. */
sl_status sl_fail_within(sl_error *err, sl_status status, const char *format, ...) SL_PRINTF(3, 4);

void sl_error_clear(sl_error *err);

/* SL_ERR_ARGUMENT unless all of a public struct's reserved members are 0; name is the struct's. */
sl_status sl_check_reserved(const uint64_t *reserved, size_t n, const char *name, sl_error *err);

/* Returns from the enclosing function when expr is not SL_OK. */
#define SL_TRY(expr) \
    do { \
        sl_status sl_try_status_ = (expr); \
        if (sl_try_status_ != SL_OK) \
            return sl_try_status_; \
    } while (0)

/* The same for functions with one clean-up label: sets `status` and jumps to `done`. */
#define SL_CHECK(expr) \
    do { \
        status = (expr); \
        if (status != SL_OK) \
            goto done; \
    } while (0)

#endif
