/* What every test file includes: cmocka with its prerequisites, and a few helpers. Tests run with
 * the repository root as working directory. */
#ifndef SL_TESTS_SUPPORT_H
#define SL_TESTS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/err.h"

/* Fails the test with the error's sentence when the call did not return SL_OK. Declare
 * `sl_error err` first. */
#define assert_ok(call) sl_assert_ok((call), &err, #call, __FILE__, __LINE__)
void sl_assert_ok(sl_status status, const sl_error *err, const char *call, const char *file,
                  int line);

/* Fails the test unless the call returned `expected` and its sentence contains `part`. */
#define assert_refused(call, expected, part) \
    sl_assert_refused((call), (expected), &err, (part), #call, __FILE__, __LINE__)
void sl_assert_refused(sl_status status, sl_status expected, const sl_error *err, const char *part,
                       const char *call, const char *file, int line);

/* $SL_BUILD, by default "build": where the program and unpacked test data lie. The result of
 * sl_build_path is static, valid until the next call. */
const char *sl_build_path(const char *relative);

/* True under `make check`: the sanitizers see the same paths in a shorter form of the long tests. */
bool sl_test_shortened(void);

/* Prints "skipped: reason" for the runner and ends the test as skipped. */
#define skip_because(...) \
    do { \
        sl_print_skip(__VA_ARGS__); \
        skip(); \
    } while (0)
void sl_print_skip(const char *format, ...) SL_PRINTF(1, 2);

/* xorshift64*: the same numbers on every machine. */
typedef struct sl_test_rng {
    uint64_t state;
} sl_test_rng;
sl_test_rng sl_test_rng_of(uint64_t seed);
uint64_t sl_test_rng_next(sl_test_rng *rng);
uint32_t sl_test_rng_below(sl_test_rng *rng, uint32_t n);
float sl_test_rng_normal(sl_test_rng *rng); /* about N(0, 1) */

#endif
