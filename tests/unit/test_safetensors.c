/* safetensors headers: what is accepted and how it comes out, and hostile ones. Bytes are parsed
 * from blocks of exactly their size, so that the sanitizers see a read past the end. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/safetensors.h"
#include "model_build.h"

/* A file of that header and n_data bytes of data. */
static uint8_t *make_file(const char *header, size_t n_data, size_t *n_bytes)
{
    size_t n_header = strlen(header);
    *n_bytes = 8 + n_header + n_data;
    uint8_t *bytes = malloc(*n_bytes);
    assert_non_null(bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)n_header >> (8 * i));
    memcpy(bytes + 8, header, n_header);
    for (size_t i = 0; i < n_data; i++)
        bytes[8 + n_header + i] = (uint8_t)i;
    return bytes;
}

static sl_status parse_header(const char *header, size_t n_data, sl_error *err)
{
    size_t n_bytes;
    uint8_t *bytes = make_file(header, n_data, &n_bytes);
    sl_safetensors *safetensors;
    sl_status status = sl_safetensors_parse(bytes, n_bytes, "x.safetensors", &safetensors, err);
    assert_true((status == SL_OK) == (safetensors != NULL));
    sl_safetensors_free(safetensors);
    free(bytes);
    return status;
}

static const char good[] =
    "{\"__metadata__\":{\"format\":\"pt\"},"
    "\"b\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[16,28]},"
    "\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]},"
    "\"scalar\":{\"dtype\":\"F16\",\"shape\":[],\"data_offsets\":[30,32]},"
    "\"empty\":{\"dtype\":\"F32\",\"shape\":[3,0],\"data_offsets\":[32,32]},"
    "\"five\":{\"dtype\":\"F32\",\"shape\":[1,2,1,1,1],\"data_offsets\":[32,40]},"
    "\"fp8\":{\"dtype\":\"F8_E4M3\",\"shape\":[2,2],\"data_offsets\":[40,44]},"
    "\"fp4\":{\"dtype\":\"F4\",\"shape\":[2,4],\"data_offsets\":[44,48]},"
    "\"new\":{\"dtype\":\"F3_NEW\",\"shape\":[2,4],\"data_offsets\":[48,49],\"more\":1}}   ";
enum { GOOD_DATA = 50 };

static void test_good(void **state)
{
    (void)state;
    sl_error err;
    sl_safetensors *safetensors;
    size_t n_bytes;
    uint8_t *bytes = make_file(good, GOOD_DATA, &n_bytes);
    assert_ok(sl_safetensors_parse(bytes, n_bytes, "x", &safetensors, &err));
    static const struct expected {
        const char *name, *type;
        bool usable;
        sl_dtype dtype;
        uint32_t n_dims;
        uint64_t ne[4];
        size_t offset, n_bytes;
    } expected[] = {
        {"a", "F32", true, SL_F32, 1, {4, 1, 1, 1}, 0, 16},
        {"b", "BF16", true, SL_BF16, 2, {3, 2, 1, 1}, 16, 12},
        {"scalar", "F16", true, SL_F16, 0, {1, 1, 1, 1}, 30, 2},
        {"empty", "F32", true, SL_F32, 2, {0, 3, 1, 1}, 32, 0},
        {"five", "F32", false, SL_F32, 5, {1, 1, 1, 2}, 32, 8},
        {"fp8", "F8_E4M3", false, SL_DTYPE_COUNT, 2, {2, 2, 1, 1}, 40, 4},
        {"fp4", "F4", false, SL_DTYPE_COUNT, 2, {4, 2, 1, 1}, 44, 4},
        {"new", "F3_NEW", false, SL_F32, 2, {4, 2, 1, 1}, 48, 1},
    };
    assert_int_equal(sl_safetensors_count(safetensors), SL_COUNTOF(expected));
    for (size_t i = 0; i < SL_COUNTOF(expected); i++) {
        const sl_safetensors_tensor *t = sl_safetensors_at(safetensors, i);
        const struct expected *e = &expected[i];
        assert_string_equal(t->name, e->name);
        assert_string_equal(t->type, e->type);
        assert_int_equal(t->usable, e->usable);
        if (t->usable)
            assert_int_equal(t->dtype, e->dtype);
        assert_int_equal(t->n_dims, e->n_dims);
        assert_memory_equal(t->ne, e->ne, sizeof e->ne);
        assert_int_equal(t->offset, 8 + strlen(good) + e->offset);
        assert_int_equal(t->n_bytes, e->n_bytes);
    }
    assert_null(sl_safetensors_at(safetensors, SL_COUNTOF(expected)));
    sl_safetensors_free(safetensors);
    free(bytes);

    assert_ok(parse_header("{}", 0, &err));
}

static void test_refused(void **state)
{
    (void)state;
    static const struct refused {
        const char *header;
        sl_status status;
        const char *part;
    } cases[] = {
        {"", SL_ERR_FORMAT, "the header length at byte offset 0 is 0, too few"},
        {"{", SL_ERR_FORMAT, "the header length at byte offset 0 is 1, too few"},
        {"[]", SL_ERR_FORMAT, "not a JSON object"},
        {"{} x", SL_ERR_FORMAT, "x.safetensors"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         SL_ERR_FORMAT, "x.safetensors"},
        {"{\"__metadata__\":[]}", SL_ERR_FORMAT, "__metadata__ is not an object"},
        {"{\"__metadata__\":{\"format\":1}}", SL_ERR_FORMAT, "__metadata__.format"},
        {"{\"__metadata__\":{\"format\":12345678901234567890}}", SL_ERR_FORMAT,
         "__metadata__.format is not a string"},
        {"{\"a\":{\"dtype\":12345678901234567890,\"shape\":[1],\"data_offsets\":[0,4]}}",
         SL_ERR_FORMAT, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[12345678901234567890],\"data_offsets\":[0,4]}}",
         SL_ERR_FORMAT, "shape[0] is not a size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,12345678901234567890]}}",
         SL_ERR_FORMAT, "data_offsets"},
        {"{\"a\":1}", SL_ERR_FORMAT, "tensor a: its description is not an object"},
        {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", SL_ERR_FORMAT, "dtype"},
        {"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", SL_ERR_FORMAT, "dtype"},
        {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", SL_ERR_FORMAT,
         "tensor a: shape is not an array"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,-1],\"data_offsets\":[0,4]}}", SL_ERR_FORMAT,
         "shape[1] is not a size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]}}", SL_ERR_FORMAT,
         "shape[0] is not a size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
         SL_ERR_FORMAT, "9 dimensions"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
         SL_ERR_FORMAT, "overflows"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904],\"data_offsets\":[0,0]}}",
         SL_ERR_FORMAT, "not the size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", SL_ERR_FORMAT, "data_offsets is not a pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", SL_ERR_FORMAT,
         "data_offsets is not a pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", SL_ERR_FORMAT,
         "data_offsets is not a pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[-4,0]}}", SL_ERR_FORMAT,
         "data_offsets is not a pair"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}", SL_ERR_FORMAT,
         "data_offsets [4, 0] do not lie in the 16 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[13,17]}}", SL_ERR_FORMAT,
         "data_offsets [13, 17] do not lie in the 16 bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}", SL_ERR_FORMAT,
         "not the size of 2 F32 values"},
        {"{\"a\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", SL_ERR_FORMAT,
         "not the size of 3 F4 values"},
        {"{\"a\":{\"dtype\":\"I64\",\"shape\":[1],\"data_offsets\":[0,4]}}", SL_ERR_FORMAT,
         "not the size of 1 I64 values"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]}}",
         SL_ERR_FORMAT, "tensors a and b overlap"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]},"
         "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
         SL_ERR_FORMAT, "tensors a and b overlap"},
        {"{\"a\":{\"b\":{\"c\":{\"d\":{\"e\":{\"f\":{\"g\":{\"h\":[[[[]]]]}}}}}}}}", SL_ERR_LIMIT,
         "x.safetensors"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_error err;
        assert_refused(parse_header(cases[i].header, 16, &err), cases[i].status, cases[i].part);
    }
}

/* Also a header length of every magnitude. */
static void test_truncated_at_every_byte(void **state)
{
    (void)state;
    size_t n_bytes;
    uint8_t *bytes = make_file(good, GOOD_DATA, &n_bytes);
    /* The last byte belongs to no tensor. */
    for (size_t n = 0; n < n_bytes - 1; n++) {
        sl_error err;
        sl_safetensors *safetensors;
        uint8_t *cut = malloc(n > 0 ? n : 1);
        assert_non_null(cut);
        memcpy(cut, bytes, n);
        assert_int_equal(sl_safetensors_parse(cut, n, "x", &safetensors, &err), SL_ERR_FORMAT);
        assert_null(safetensors);
        free(cut);
    }
    for (unsigned shift = 0; shift < 64; shift++) {
        for (int add = -1; add <= 1; add++) {
            sl_error err;
            sl_safetensors *safetensors;
            uint64_t length = (UINT64_C(1) << shift) + (uint64_t)add;
            for (int i = 0; i < 8; i++)
                bytes[i] = (uint8_t)(length >> (8 * i));
            if (length != strlen(good) && length != strlen(good) - 1)
                assert_int_equal(sl_safetensors_parse(bytes, n_bytes, "x", &safetensors, &err),
                                 SL_ERR_FORMAT);
        }
    }
    free(bytes);
}

/* Replaces each number of the header in turn. Whatever is accepted must lie inside the file. */
static void test_every_integer_at_its_boundaries(void **state)
{
    (void)state;
    static const char *const values[] = {"-1",
                                         "0",
                                         "1",
                                         "2",
                                         "47",
                                         "50",
                                         "51",
                                         "2147483648",
                                         "4294967295",
                                         "4294967296",
                                         "9223372036854775807",
                                         "9223372036854775808",
                                         "-9223372036854775808",
                                         "1e300",
                                         "0.5",
                                         "\"1\"",
                                         "null",
                                         "true",
                                         "[]",
                                         "{}",
                                         "[1]"};
    size_t n_changed = 0;
    for (const char *at = good; *at;) {
        if (*at < '0' || *at > '9' || (at[-1] != '[' && at[-1] != ',')) {
            at++;
            continue;
        }
        const char *end = at;
        while (*end >= '0' && *end <= '9')
            end++;
        for (size_t i = 0; i < SL_COUNTOF(values); i++) {
            char header[2048];
            snprintf(header, sizeof header, "%.*s%s%s", (int)(at - good), good, values[i], end);
            size_t n_bytes;
            sl_error err;
            sl_safetensors *safetensors;
            uint8_t *bytes = make_file(header, GOOD_DATA, &n_bytes);
            if (sl_safetensors_parse(bytes, n_bytes, "x", &safetensors, &err) == SL_OK) {
                for (size_t t = 0; t < sl_safetensors_count(safetensors); t++) {
                    const sl_safetensors_tensor *tensor = sl_safetensors_at(safetensors, t);
                    assert_true(tensor->offset <= n_bytes &&
                                tensor->n_bytes <= n_bytes - tensor->offset);
                }
                sl_safetensors_free(safetensors);
            }
            free(bytes);
            n_changed++;
        }
        at = end;
    }
    assert_int_equal(n_changed, 32 * SL_COUNTOF(values));
}

static void test_flipped_bytes(void **state)
{
    (void)state;
    sl_test_rng rng = sl_test_rng_of(11);
    for (int i = 0; i < 20000; i++) {
        size_t n_bytes;
        uint8_t *bytes = make_file(good, GOOD_DATA, &n_bytes);
        for (uint32_t n = 1 + sl_test_rng_below(&rng, 3); n > 0; n--)
            bytes[sl_test_rng_below(&rng, (uint32_t)n_bytes - GOOD_DATA)] =
                (uint8_t)sl_test_rng_next(&rng);
        sl_error err;
        sl_safetensors *safetensors;
        sl_status status = sl_safetensors_parse(bytes, n_bytes, "x", &safetensors, &err);
        if (status != SL_OK)
            assert_true(err.message[0] != '\0' && err.status == status);
        sl_safetensors_free(safetensors);
        free(bytes);
    }
}

static void test_out_of_memory(void **state)
{
    (void)state;
    size_t n_bytes;
    uint8_t *bytes = make_file(good, GOOD_DATA, &n_bytes);
    size_t blocks = sl_mem_get_stats().blocks;
    sl_status status = SL_ERR_MEMORY;
    uint64_t n = 1;
    for (; status == SL_ERR_MEMORY; n++) {
        sl_error err;
        sl_safetensors *safetensors;
        sl_mem_fail_at(n, false);
        status = sl_safetensors_parse(bytes, n_bytes, "x", &safetensors, &err);
        sl_mem_fail_at(0, false);
        sl_safetensors_free(safetensors);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    assert_int_equal(status, SL_OK);
    assert_true(n > 2);
    free(bytes);
}

/* The limit is checked before a byte of the header is read. */
static void test_header_above_the_limit(void **state)
{
    (void)state;
    const uint32_t limit = 100 * 1000 * 1000;
    uint8_t *bytes = calloc(limit + 9, 1);
    assert_non_null(bytes);
    for (int i = 0; i < 4; i++)
        bytes[i] = (uint8_t)((limit + 1) >> (8 * i));
    sl_error err;
    sl_safetensors *safetensors;
    assert_refused(sl_safetensors_parse(bytes, limit + 9, "x", &safetensors, &err), SL_ERR_FORMAT,
                   "the header length at byte offset 0 is 100000001");
    free(bytes);
}

static void test_real_file(void **state)
{
    (void)state;
    size_t n_bytes;
    uint8_t *bytes = sl_read_whole("tests/data/models/rand-moe/model.safetensors", &n_bytes);
    sl_error err;
    sl_safetensors *safetensors;
    assert_ok(sl_safetensors_parse(bytes, n_bytes, "x", &safetensors, &err));
    assert_int_equal(sl_safetensors_count(safetensors), 71);
    const sl_safetensors_tensor *last = sl_safetensors_at(safetensors, 70);
    assert_string_equal(last->name, "model.norm.weight");
    assert_int_equal(last->offset + last->n_bytes, n_bytes);
    sl_safetensors_free(safetensors);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_truncated_at_every_byte),
        cmocka_unit_test(test_every_integer_at_its_boundaries),
        cmocka_unit_test(test_flipped_bytes),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_header_above_the_limit),
        cmocka_unit_test(test_real_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
