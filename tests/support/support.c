#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void sl_assert_ok(sl_status status, const sl_error *err, const char *call, const char *file,
                  int line)
{
    if (status == SL_OK)
        return;
    print_error("%s failed: %s: %s\n", call, sl_status_name(status), err->message);
    _fail(file, line);
}

void sl_assert_refused(sl_status status, sl_status expected, const sl_error *err, const char *part,
                       const char *call, const char *file, int line)
{
    if (status == expected && (status == SL_OK || strstr(err->message, part)))
        return;
    print_error("%s: expected %s with \"%s\", got %s: %s\n", call, sl_status_name(expected), part,
                sl_status_name(status), status == SL_OK ? "" : err->message);
    _fail(file, line);
}

const char *sl_build_path(const char *relative)
{
    static char path[4096];
    const char *build = getenv("SL_BUILD");
    snprintf(path, sizeof path, "%s/%s", build ? build : "build", relative);
    return path;
}

bool sl_test_shortened(void)
{
    return getenv("SL_SHORT_TESTS") != NULL;
}

void sl_print_skip(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    printf("skipped: ");
    vprintf(format, args);
    printf("\n");
    va_end(args);
    fflush(stdout);
}

sl_test_rng sl_test_rng_of(uint64_t seed)
{
    return (sl_test_rng){seed * 0x9E3779B97F4A7C15u + 0x2545F4914F6CDD1Du};
}

uint64_t sl_test_rng_next(sl_test_rng *rng)
{
    rng->state ^= rng->state >> 12;
    rng->state ^= rng->state << 25;
    rng->state ^= rng->state >> 27;
    return rng->state * 0x2545F4914F6CDD1Du;
}

uint32_t sl_test_rng_below(sl_test_rng *rng, uint32_t n)
{
    return (uint32_t)(((sl_test_rng_next(rng) >> 32) * n) >> 32);
}

float sl_test_rng_normal(sl_test_rng *rng)
{
    /* The sum of twelve uniforms is close enough to a Gaussian for test inputs. */
    float sum = -6.0f;
    for (int i = 0; i < 12; i++)
        sum += (float)(sl_test_rng_next(rng) >> 40) * 0x1p-24f;
    return sum;
}
