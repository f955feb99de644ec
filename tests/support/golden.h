/* Reads reference tensors (.safetensors files of float32, int32 and uint8) for tests.
 *
 * Test code only: a missing file, a broken one or a missing tensor fails the running test with a
 * message. The production reader of safetensors is elsewhere and is itself under test. */
#ifndef SL_TESTS_GOLDEN_H
#define SL_TESTS_GOLDEN_H

#include "support.h"

typedef struct sl_golden sl_golden;

typedef struct sl_golden_tensor {
    const char *name;
    size_t n_dims;   /* 0 to 4 */
    size_t shape[4]; /* row-major as in the file, outermost first; unused ones are 1 */
    size_t n_elems;
    size_t n_bytes;
    const uint8_t *u8;  /* the bytes, whatever the type */
    const float *f32;   /* NULL unless the type is F32 */
    const int32_t *i32; /* NULL unless the type is I32 */
} sl_golden_tensor;

/* path: "tests/data/quants/blocks.safetensors", or sl_build_path("testdata/...") for a file that
 * is kept compressed. Never NULL. */
sl_golden *sl_golden_open(const char *path);
void sl_golden_close(sl_golden *golden);

/* The metadata entry "about"; "" when the file has none. */
const char *sl_golden_about(const sl_golden *golden);

size_t sl_golden_count(const sl_golden *golden);
const sl_golden_tensor *sl_golden_at(const sl_golden *golden, size_t i);

/* By name: NULL when absent; the _get form fails the test instead. */
const sl_golden_tensor *sl_golden_find(const sl_golden *golden, const char *name);
const sl_golden_tensor *sl_golden_get(const sl_golden *golden, const char *name);

/* The values of a tensor that must be there with that type and number of elements
 * (0 = any number). */
const float *sl_golden_f32(const sl_golden *golden, const char *name, size_t n_elems);
const int32_t *sl_golden_i32(const sl_golden *golden, const char *name, size_t n_elems);

#endif
