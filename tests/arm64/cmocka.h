/* As much of cmocka as the kernels' tests use, for another machine's programs: cross compilers come
 * without it. A failed assertion ends the program. */
#ifndef SL_TESTS_ARM64_CMOCKA_H
#define SL_TESTS_ARM64_CMOCKA_H

#include <stdio.h>
#include <stdlib.h>

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(function) \
    { \
#function, function \
    }

static const char *cmocka_running = "";

#define print_error(...)       (void)fprintf(stderr, __VA_ARGS__)
#define print_message(...)     (void)printf(__VA_ARGS__)
#define fail()                 (printf("[  FAILED  ] %s\n", cmocka_running), exit(1))
#define fail_msg(...)          (print_error(__VA_ARGS__), print_error("\n"), fail())
#define skip()                 (printf("[  SKIPPED ] %s\n", cmocka_running), exit(0))
#define cmocka_check(ok, text) ((ok) ? (void)0 : fail_msg("%s:%d: %s", __FILE__, __LINE__, (text)))
#define assert_true(x)         cmocka_check((x), #x)
#define assert_non_null(x)     cmocka_check((x) != NULL, #x)
#define assert_int_equal(a, b) cmocka_check((long long)(a) == (long long)(b), #a " == " #b)
#define _fail(file, line)      (print_error("%s:%d: failed\n", (file), (line)), fail())

static inline int cmocka_run_all(const struct CMUnitTest *tests, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        cmocka_running = tests[i].name;
        tests[i].run(NULL);
        printf("[       OK ] %s\n", tests[i].name);
        (void)fflush(stdout);
    }
    return 0;
}
#define cmocka_run_group_tests(tests, setup, teardown) \
    cmocka_run_all((tests), sizeof(tests) / sizeof *(tests))

#endif
