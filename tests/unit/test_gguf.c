/* Good GGUF files: everything the parser accepts and how values come out of it. Bad files are in
 * test_gguf_hostile.c. */
#include "gguf_build.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "format/gguf.h"

/* A file with a key of every type and kinds of arrays, and tensors in an order of their own. */
static void build_everything(sl_gguf_build *b)
{
    sl_gguf_build_init(b, 3);
    sl_gguf_build_key_string(b, "general.architecture", "qwen35");
    sl_gguf_build_key_u32(b, "general.alignment", 64);
    sl_gguf_build_key_bits(b, "t.u8", SL_GGUF_U8, 0xff);
    sl_gguf_build_key_bits(b, "t.i8", SL_GGUF_I8, 0x80);
    sl_gguf_build_key_bits(b, "t.u16", SL_GGUF_U16, 0xffff);
    sl_gguf_build_key_bits(b, "t.i16", SL_GGUF_I16, 0x8000);
    sl_gguf_build_key_bits(b, "t.u32", SL_GGUF_U32, 0xffffffff);
    sl_gguf_build_key_bits(b, "t.i32", SL_GGUF_I32, 0x80000000);
    sl_gguf_build_key_f32(b, "t.f32", 1e-6f);
    sl_gguf_build_key_bits(b, "t.bool", SL_GGUF_BOOL, 1);
    sl_gguf_build_key_string(b, "t.string", "a\"b\\c\n\t\x01\xC3\xA9\xFF");
    sl_gguf_build_key_bits(b, "t.u64", SL_GGUF_U64, UINT64_MAX);
    sl_gguf_build_key_bits(b, "t.i64", SL_GGUF_I64, UINT64_C(1) << 63);
    sl_gguf_build_key_bits(b, "t.f64", SL_GGUF_F64, UINT64_C(0x3fb999999999999a));
    sl_gguf_build_key_bits(b, "t.inf", SL_GGUF_F32, 0x7f800000);
    sl_gguf_build_key_bits(b, "t.nan", SL_GGUF_F64, UINT64_C(0x7ff8000000000000));
    sl_gguf_build_key_bits(b, "t.one", SL_GGUF_I16, 1);
    sl_gguf_build_key_array(b, "a.i32", SL_GGUF_I32, 4);
    for (uint32_t i = 0; i < 4; i++)
        sl_gguf_build_uint(b, 4, i == 3 ? 0 - 7u : 11 - i);
    sl_gguf_build_key_array(b, "a.u64", SL_GGUF_U64, 2);
    sl_gguf_build_uint(b, 8, INT64_MAX);
    sl_gguf_build_uint(b, 8, (uint64_t)INT64_MAX + 1);
    sl_gguf_build_key_array(b, "a.i64", SL_GGUF_I64, 1);
    sl_gguf_build_uint(b, 8, UINT64_C(1) << 63);
    sl_gguf_build_key_array(b, "a.bool", SL_GGUF_BOOL, 3);
    sl_gguf_build_bytes(b, "\x01\x00\x02", 3);
    sl_gguf_build_key_array(b, "a.f32", SL_GGUF_F32, 10);
    for (int i = 0; i < 10; i++)
        sl_gguf_build_uint(b, 4, 0x3fc00000); /* 1.5 */
    sl_gguf_build_key_array(b, "a.f64", SL_GGUF_F64, 1);
    sl_gguf_build_uint(b, 8, UINT64_C(0x4004000000000000)); /* 2.5 */
    sl_gguf_build_key_array(b, "a.string", SL_GGUF_STRING, 6);
    sl_gguf_build_string(b, "!");
    sl_gguf_build_string(b, "");
    sl_gguf_build_string_n(b, "nul\0in", 6);
    for (int i = 0; i < 3; i++)
        sl_gguf_build_string(b, "more");
    sl_gguf_build_key_array(b, "a.none", SL_GGUF_STRING, 0);
    sl_gguf_build_key_array(b, "a.nested", SL_GGUF_ARRAY, 2);
    sl_gguf_build_uint(b, 4, SL_GGUF_U16);
    sl_gguf_build_uint(b, 8, 3);
    sl_gguf_build_bytes(b, "abcdef", 6);
    sl_gguf_build_uint(b, 4, SL_GGUF_ARRAY);
    sl_gguf_build_uint(b, 8, 1);
    sl_gguf_build_uint(b, 4, SL_GGUF_STRING);
    sl_gguf_build_uint(b, 8, 1);
    sl_gguf_build_string(b, "deep");
    sl_gguf_build_tensor(b, "late", 2, (const uint64_t[]){32, 3}, 8, 256);
    sl_gguf_build_tensor(b, "first", 1, (const uint64_t[]){5}, 0, 0);
    sl_gguf_build_tensor(b, "cube", 4, (const uint64_t[]){2, 3, 1, 2}, 30, 64);
    sl_gguf_build_tensor(b, "exotic", 1, (const uint64_t[]){256}, 16, 128);
    sl_gguf_build_data(b, 64, 256 + 3 * 34);
}

static sl_gguf *parse(const sl_gguf_build *b)
{
    sl_gguf *g = NULL;
    sl_error err;
    assert_ok(sl_gguf_parse(b->data, b->n_bytes, "dir/made.gguf", &g, &err));
    return g;
}

static void test_header(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        sl_gguf_build b;
        build_everything(&b);
        sl_gguf_build_set(&b, 4, 4, version);
        sl_gguf *g = parse(&b);
        assert_int_equal(sl_gguf_version(g), version);
        assert_string_equal(sl_gguf_file(g), "dir/made.gguf");
        assert_int_equal(sl_gguf_tensor_count(g), 4);
        assert_int_equal(sl_gguf_key_count(g), 26);
        assert_true(sl_str_is(sl_gguf_key_at(g, 1), "general.alignment"));
        assert_true(sl_str_is(sl_gguf_key_at(g, 26), ""));
        sl_gguf_free(g);
        sl_gguf_build_free(&b);
    }
    sl_gguf_free(NULL);
}

static void test_tensors(void **state)
{
    (void)state;
    sl_gguf_build b;
    build_everything(&b);
    sl_gguf_fields fields;
    sl_gguf_fields_init(&fields, b.data, b.n_bytes);
    assert_int_equal(fields.data_begin % 64, 0);
    sl_gguf *g = parse(&b);

    const sl_gguf_tensor *late = sl_gguf_tensor_at(g, 0);
    assert_ptr_equal(late, sl_gguf_find_tensor(g, "late"));
    assert_true(late->usable);
    assert_int_equal(late->dtype, SL_Q8_0);
    assert_int_equal(late->n_dims, 2);
    assert_int_equal(late->ne[0], 32);
    assert_int_equal(late->ne[1], 3);
    assert_int_equal(late->ne[2], 1);
    assert_int_equal(late->ne[3], 1);
    assert_int_equal(late->offset, fields.data_begin + 256);
    assert_int_equal(late->n_bytes, 3 * 34);
    assert_int_equal(late->info_offset,
                     sl_gguf_fields_get(&fields, SL_FIELD_NAME_LENGTH, "late", 0)->offset);

    const sl_gguf_tensor *cube = sl_gguf_find_tensor(g, "cube");
    assert_int_equal(cube->dtype, SL_BF16);
    assert_int_equal(cube->n_dims, 4);
    assert_int_equal(cube->ne[3], 2);
    assert_int_equal(cube->n_bytes, 24);
    assert_int_equal(sl_gguf_find_tensor(g, "first")->n_bytes, 20);

    const sl_gguf_tensor *exotic = sl_gguf_find_tensor(g, "exotic");
    assert_false(exotic->usable);
    assert_int_equal(exotic->ggml_type, 16);
    assert_int_equal(exotic->n_bytes, 0);

    assert_null(sl_gguf_find_tensor(g, "lat"));
    assert_null(sl_gguf_find_tensor(g, "later"));
    assert_null(sl_gguf_find_tensor(g, ""));
    assert_null(sl_gguf_tensor_at(g, 4));
    sl_gguf_free(g);
    sl_gguf_fields_free(&fields);
    sl_gguf_build_free(&b);
}

static void test_integers(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint64_t low, high, value;
        const char *refused; /* part of the sentence; NULL = accepted */
    } cases[] = {
        {"t.u8", 0, 255, 255, NULL},
        {"t.u8", 0, 254, 0, "key \"t.u8\" is u8 255, expected an integer from 0 to 254 (byte "},
        {"t.i8", 0, UINT64_MAX, 0, "is i8 -128, expected"},
        {"t.u16", 65535, 65535, 65535, NULL},
        {"t.i16", 0, UINT64_MAX, 0, "is i16 -32768, expected"},
        {"t.u32", 1, UINT32_MAX, UINT32_MAX, NULL},
        {"t.i32", 0, UINT64_MAX, 0, "is i32 -2147483648, expected"},
        {"t.u64", 0, UINT64_MAX, UINT64_MAX, NULL},
        {"t.u64", 0, INT64_MAX, 0, "is u64 18446744073709551615, expected"},
        {"t.i64", 0, UINT64_MAX, 0, "is i64 -9223372036854775808, expected"},
        {"t.one", 1, 1, 1, NULL},
        {"t.one", 2, 9, 0, "is i16 1, expected an integer from 2 to 9"},
        {"t.f32", 0, 9, 0, "is f32 1e-06, expected an integer"},
        {"t.bool", 0, 9, 0, "is bool true, expected an integer"},
        {"t.string", 0, 9, 0, "is string \"a\\\"b"},
        {"a.i32", 0, 9, 0, "is array of 4 i32 [11, 10, 9, -7], expected an integer"},
        {"no.such", 0, 9, 0, "dir/made.gguf: key \"no.such\" is missing"},
    };
    sl_gguf_build b;
    build_everything(&b);
    sl_gguf *g = parse(&b);
    sl_error err;
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        uint64_t value = 4711;
        sl_status status =
            sl_gguf_get_uint(g, cases[i].key, cases[i].low, cases[i].high, &value, &err);
        if (cases[i].refused) {
            assert_refused(status, SL_ERR_FORMAT, cases[i].refused);
            assert_int_equal(value, 4711);
        } else {
            assert_ok(status);
            assert_int_equal(value, cases[i].value);
        }
    }
    uint64_t value;
    assert_ok(sl_gguf_get_uint_or(g, "no.such", 1, 2, 77, &value, &err));
    assert_int_equal(value, 77);
    assert_ok(sl_gguf_get_uint_or(g, "t.one", 1, 2, 77, &value, &err));
    assert_int_equal(value, 1);
    assert_refused(sl_gguf_get_uint_or(g, "t.u8", 1, 2, 77, &value, &err), SL_ERR_FORMAT, "t.u8");
    sl_gguf_free(g);
    sl_gguf_build_free(&b);
}

static void test_floats_and_bools(void **state)
{
    (void)state;
    sl_gguf_build b;
    build_everything(&b);
    sl_gguf *g = parse(&b);
    sl_error err;
    double real;
    assert_ok(sl_gguf_get_float_or(g, "t.f32", 0, &real, &err));
    assert_true(real == (double)1e-6f);
    assert_ok(sl_gguf_get_float_or(g, "t.f64", 0, &real, &err));
    assert_true(real == 0.1);
    assert_ok(sl_gguf_get_float_or(g, "t.i8", 0, &real, &err));
    assert_true(real == -128.0);
    assert_ok(sl_gguf_get_float_or(g, "no.such", 2.5, &real, &err));
    assert_true(real == 2.5);
    assert_refused(sl_gguf_get_float_or(g, "t.inf", 0, &real, &err), SL_ERR_FORMAT,
                   "is f32 inf, expected a finite number");
    assert_refused(sl_gguf_get_float_or(g, "t.nan", 0, &real, &err), SL_ERR_FORMAT, "is f64 nan");
    assert_refused(sl_gguf_get_float_or(g, "t.bool", 0, &real, &err), SL_ERR_FORMAT, "is bool");
    assert_refused(sl_gguf_get_float_or(g, "t.string", 0, &real, &err), SL_ERR_FORMAT, "is string");

    bool flag = false;
    assert_ok(sl_gguf_get_bool_or(g, "t.bool", false, &flag, &err));
    assert_true(flag);
    assert_ok(sl_gguf_get_bool_or(g, "t.one", false, &flag, &err));
    assert_true(flag);
    assert_ok(sl_gguf_get_bool_or(g, "no.such", true, &flag, &err));
    assert_true(flag);
    assert_refused(sl_gguf_get_bool_or(g, "t.u8", true, &flag, &err), SL_ERR_FORMAT,
                   "is u8 255, expected true or false");
    assert_refused(sl_gguf_get_bool_or(g, "t.f32", true, &flag, &err), SL_ERR_FORMAT, "is f32");
    sl_gguf_free(g);
    sl_gguf_build_free(&b);
}

static void test_strings(void **state)
{
    (void)state;
    sl_gguf_build b;
    build_everything(&b);
    sl_gguf *g = parse(&b);
    sl_error err;
    sl_str s;
    assert_ok(sl_gguf_get_string(g, "general.architecture", &s, &err));
    assert_true(sl_str_is(s, "qwen35"));
    assert_ok(sl_gguf_get_string_or(g, "general.architecture", sl_str_of("x"), &s, &err));
    assert_true(sl_str_is(s, "qwen35"));
    assert_ok(sl_gguf_get_string_or(g, "no.such", sl_str_of("x"), &s, &err));
    assert_true(sl_str_is(s, "x"));
    assert_refused(sl_gguf_get_string(g, "no.such", &s, &err), SL_ERR_FORMAT, "is missing");
    assert_refused(sl_gguf_get_string(g, "t.u32", &s, &err), SL_ERR_FORMAT,
                   "is u32 4294967295, expected a string");
    assert_refused(sl_gguf_get_string_or(g, "a.string", sl_str_of(""), &s, &err), SL_ERR_FORMAT,
                   "is array of 6 strings [\"!\", \"\", \"nul\\u0000in\", \"more\", ...]");
    assert_true(sl_gguf_has(g, "t.u8"));
    assert_false(sl_gguf_has(g, "t.u"));
    assert_int_equal(sl_gguf_key_offset(g, "general.architecture"), 24);
    assert_int_equal(sl_gguf_key_offset(g, "no.such"), 0);
    sl_gguf_free(g);
    sl_gguf_build_free(&b);
}

static void test_arrays(void **state)
{
    (void)state;
    sl_gguf_build b;
    build_everything(&b);
    sl_gguf *g = parse(&b);
    sl_error err;
    sl_gguf_array a;
    int64_t n;
    assert_ok(sl_gguf_get_array_or_empty(g, "a.i32", &a, &err));
    assert_int_equal(a.type, SL_GGUF_I32);
    assert_int_equal(a.n_items, 4);
    assert_true(sl_gguf_array_int(&a, 0, &n) && n == 11);
    assert_true(sl_gguf_array_int(&a, 3, &n) && n == -7);
    assert_false(sl_gguf_array_int(&a, 4, &n));
    assert_true(isnan(sl_gguf_array_float(&a, 0)));
    assert_ok(sl_gguf_get_array_or_empty(g, "a.u64", &a, &err));
    assert_true(sl_gguf_array_int(&a, 0, &n) && n == INT64_MAX);
    assert_false(sl_gguf_array_int(&a, 1, &n));
    assert_ok(sl_gguf_get_array_or_empty(g, "a.i64", &a, &err));
    assert_true(sl_gguf_array_int(&a, 0, &n) && n == INT64_MIN);
    assert_ok(sl_gguf_get_array_or_empty(g, "a.bool", &a, &err));
    assert_true(sl_gguf_array_int(&a, 0, &n) && n == 1);
    assert_true(sl_gguf_array_int(&a, 1, &n) && n == 0);
    assert_false(sl_gguf_array_int(&a, 2, &n)); /* the byte 2 is no bool */
    assert_ok(sl_gguf_get_array_or_empty(g, "a.f32", &a, &err));
    assert_true(sl_gguf_array_float(&a, 9) == 1.5);
    assert_true(isnan(sl_gguf_array_float(&a, 10)));
    assert_false(sl_gguf_array_int(&a, 0, &n));
    assert_ok(sl_gguf_get_array_or_empty(g, "a.f64", &a, &err));
    assert_true(sl_gguf_array_float(&a, 0) == 2.5);

    assert_ok(sl_gguf_get_array_or_empty(g, "a.string", &a, &err));
    assert_int_equal(a.type, SL_GGUF_STRING);
    assert_int_equal(a.n_items, 6);
    assert_true(sl_str_is(a.strings[0], "!"));
    assert_true(sl_str_is(a.strings[1], ""));
    assert_true(sl_str_equal(a.strings[2], (sl_str){"nul\0in", 6}));
    assert_true(sl_str_is(a.strings[5], "more"));
    assert_false(sl_gguf_array_int(&a, 0, &n));
    assert_true(isnan(sl_gguf_array_float(&a, 0)));

    assert_ok(sl_gguf_get_array_or_empty(g, "a.none", &a, &err));
    assert_int_equal(a.type, SL_GGUF_STRING);
    assert_int_equal(a.n_items, 0);
    assert_ok(sl_gguf_get_array_or_empty(g, "no.such", &a, &err));
    assert_int_equal(a.type, SL_GGUF_TYPE_COUNT);
    assert_int_equal(a.n_items, 0);
    assert_refused(sl_gguf_get_array_or_empty(g, "a.nested", &a, &err), SL_ERR_FORMAT,
                   "is array of 2 arrays, expected an array of numbers or strings");
    assert_int_equal(a.n_items, 0);
    assert_refused(sl_gguf_get_array_or_empty(g, "t.u8", &a, &err), SL_ERR_FORMAT,
                   "is u8 255, expected an array");
    sl_gguf_free(g);
    sl_gguf_build_free(&b);
}

static void test_describe(void **state)
{
    (void)state;
    static const struct {
        const char *key, *text;
    } cases[] = {
        {"general.architecture", "string \"qwen35\""},
        {"t.u8", "u8 255"},
        {"t.i64", "i64 -9223372036854775808"},
        {"t.f32", "f32 1e-06"},
        {"t.f64", "f64 0.1"},
        {"t.bool", "bool true"},
        {"t.string", "string \"a\\\"b\\\\c\\n\\t\\u0001\xC3\xA9\\xff\""},
        {"a.i32", "array of 4 i32 [11, 10, 9, -7]"},
        {"a.bool", "array of 3 bool [true, false, 2]"},
        {"a.f32", "array of 10 f32 [1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, 1.5, ...]"},
        {"a.string", "array of 6 strings [\"!\", \"\", \"nul\\u0000in\", \"more\", ...]"},
        {"a.none", "array of 0 strings []"},
        {"a.nested", "array of 2 arrays"},
    };
    sl_gguf_build b;
    build_everything(&b);
    sl_gguf *g = parse(&b);
    size_t n_found = 0;
    for (size_t i = 0; i < sl_gguf_key_count(g); i++) {
        for (size_t k = 0; k < SL_COUNTOF(cases); k++) {
            if (!sl_str_is(sl_gguf_key_at(g, i), cases[k].key))
                continue;
            n_found++;
            char text[256];
            assert_int_equal(sl_gguf_describe(g, i, text, sizeof text), SL_OK);
            assert_string_equal(text, cases[k].text);
            /* Shorter buffers get a beginning of it, cut between characters. */
            for (size_t capacity = 1; capacity <= strlen(cases[k].text); capacity++) {
                char *exact = malloc(capacity);
                assert_non_null(exact);
                assert_int_equal(sl_gguf_describe(g, i, exact, capacity), SL_OK);
                assert_true(strlen(exact) < capacity);
                assert_int_equal(strncmp(exact, cases[k].text, strlen(exact)), 0);
                free(exact);
            }
        }
    }
    assert_int_equal(n_found, SL_COUNTOF(cases));
    char text[8];
    assert_int_equal(sl_gguf_describe(g, 26, text, sizeof text), SL_ERR_ARGUMENT);
    assert_int_equal(sl_gguf_describe(g, 0, text, 0), SL_ERR_ARGUMENT);
    sl_gguf_free(g);
    sl_gguf_build_free(&b);
}

static void test_long_string_is_cut(void **state)
{
    (void)state;
    char value[201];
    memset(value, 'x', 200);
    value[200] = '\0';
    sl_gguf_build b;
    sl_gguf_build_init(&b, 3);
    sl_gguf_build_key_string(&b, "k", value);
    sl_gguf *g = parse(&b);
    char text[256], expected[256];
    snprintf(expected, sizeof expected, "string \"%.60s\"...", value);
    assert_int_equal(sl_gguf_describe(g, 0, text, sizeof text), SL_OK);
    assert_string_equal(text, expected);
    sl_gguf_free(g);
    sl_gguf_build_free(&b);
}

/* Files that look odd but are good. */
static void test_oddities(void **state)
{
    (void)state;
    sl_gguf_build b;
    sl_gguf *g;

    sl_gguf_build_init(&b, 3); /* nothing at all */
    g = parse(&b);
    assert_int_equal(sl_gguf_key_count(g) + sl_gguf_tensor_count(g), 0);
    assert_false(sl_gguf_has(g, "x"));
    assert_null(sl_gguf_find_tensor(g, "x"));
    sl_gguf_free(g);
    sl_gguf_build_free(&b);

    /* Alignment 1 and the largest, names as long as allowed, tensors that touch and that leave a
     * gap, an unusable type as the last byte. */
    static const uint32_t alignments[] = {1, 8, 1 << 20};
    for (size_t i = 0; i < SL_COUNTOF(alignments); i++) {
        char *name = malloc(65536);
        assert_non_null(name);
        memset(name, 'n', 65535);
        name[65535] = '\0';
        sl_gguf_build_init(&b, 3);
        sl_gguf_build_key_u32(&b, "general.alignment", alignments[i]);
        sl_gguf_build_key_u32(&b, name, 1);
        name[255] = '\0';
        uint64_t step = alignments[i] > 8 ? alignments[i] : 8;
        sl_gguf_build_tensor(&b, name, 1, (const uint64_t[]){step / 4}, 0, 0);
        sl_gguf_build_tensor(&b, "touches", 1, (const uint64_t[]){1}, 0, step);
        sl_gguf_build_tensor(&b, "after a gap", 1, (const uint64_t[]){1}, 99, 3 * step);
        sl_gguf_build_data(&b, alignments[i], 3 * (size_t)step + 1);
        g = parse(&b);
        assert_non_null(sl_gguf_find_tensor(g, name));
        assert_int_equal(sl_gguf_find_tensor(g, name)->offset % alignments[i], 0);
        sl_gguf_free(g);
        sl_gguf_build_free(&b);
        free(name);
    }
}

static void test_long_path_leaves_room(void **state)
{
    (void)state;
    char path[2000];
    memset(path, 'p', sizeof path - 1);
    memcpy(path + sizeof path - 6, ".gguf", 6);
    sl_error err;
    sl_gguf *g = (sl_gguf *)(void *)path;
    assert_refused(sl_gguf_parse((const uint8_t *)"GGUF\3\0\0\0", 8, path, &g, &err), SL_ERR_FORMAT,
                   "p.gguf: the number of tensors needs 8 bytes");
    assert_null(g);
    assert_int_equal(sl_gguf_parse((const uint8_t *)"GGUF", 4, path, &g, NULL), SL_ERR_FORMAT);
}

/* A vocabulary as large as the real one. */
static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { N = 248320 };
    sl_gguf_build b;
    sl_gguf_build_init(&b, 3);
    char text[32];
    for (int pass = 0; pass < 2; pass++) {
        sl_gguf_build_key_array(&b, pass ? "merges" : "tokens", SL_GGUF_STRING, N);
        for (int i = 0; i < N; i++) {
            snprintf(text, sizeof text, "%x%s", (unsigned)i, pass ? " b" : "");
            sl_gguf_build_string(&b, text);
        }
    }
    sl_gguf *g = parse(&b);
    sl_error err;
    sl_gguf_array tokens, merges;
    assert_ok(sl_gguf_get_array_or_empty(g, "tokens", &tokens, &err));
    assert_ok(sl_gguf_get_array_or_empty(g, "merges", &merges, &err));
    assert_int_equal(tokens.n_items, N);
    for (int i = 0; i < N; i += 77) {
        snprintf(text, sizeof text, "%x", (unsigned)i);
        assert_true(sl_str_is(tokens.strings[i], text));
        snprintf(text, sizeof text, "%x b", (unsigned)i);
        assert_true(sl_str_is(merges.strings[i], text));
    }
    /* 16 bytes a string and little else. */
    assert_true(sl_mem_get_stats().bytes[SL_MEM_FORMAT] < 2u * N * 16 + 8192);
    sl_gguf_free(g);
    sl_gguf_build_free(&b);
}

static void test_many_tensors(void **state)
{
    (void)state;
    enum { N = 20000 };
    sl_gguf_build b;
    sl_gguf_build_init(&b, 3);
    char name[32];
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i * 7919 % N);
        sl_gguf_build_tensor(&b, name, 1, (const uint64_t[]){8}, 0, (uint64_t)i * 32);
    }
    sl_gguf_build_data(&b, 32, N * 32);
    sl_gguf *g = parse(&b);
    for (int i = 0; i < N; i++) {
        snprintf(name, sizeof name, "blk.%d.weight", i * 7919 % N);
        assert_ptr_equal(sl_gguf_find_tensor(g, name), sl_gguf_tensor_at(g, (size_t)i));
    }
    sl_gguf_free(g);
    sl_gguf_build_free(&b);
}

/* A file of a real converter. */
static void test_real_model(void **state)
{
    (void)state;
    sl_gguf_build b;
    sl_gguf_build_read(&b, "tests/data/models/rand-r1-q8_0.gguf");
    sl_gguf *g = parse(&b);
    sl_error err;
    sl_str s;
    uint64_t n;
    sl_gguf_array a;
    assert_ok(sl_gguf_get_string(g, "general.architecture", &s, &err));
    assert_true(sl_str_is(s, "qwen35"));
    assert_ok(sl_gguf_get_uint(g, "qwen35.block_count", 1, 512, &n, &err));
    assert_int_equal(n, 4);
    assert_ok(sl_gguf_get_array_or_empty(g, "tokenizer.ggml.tokens", &a, &err));
    assert_int_equal(a.n_items, 512);
    assert_ok(sl_gguf_get_array_or_empty(g, "qwen35.attention.recurrent_layers", &a, &err));
    assert_int_equal(a.n_items, 4);
    const sl_gguf_tensor *embedding = sl_gguf_find_tensor(g, "token_embd.weight");
    assert_non_null(embedding);
    assert_int_equal(embedding->dtype, SL_Q8_0);
    assert_int_equal(embedding->ne[0], 64);
    assert_int_equal(embedding->ne[1], 512);
    assert_int_equal(embedding->n_bytes, 512 * 64 / 32 * 34);
    sl_gguf_free(g);

    /* The builder's surgery on real files, which other tests rely on. */
    sl_gguf_build_change(&b, SL_FIELD_VALUE, "qwen35.block_count", 0, 7);
    sl_gguf_build_remove_key(&b, "general.name");
    sl_gguf_build_replace_key(&b, "qwen35.context_length", SL_GGUF_STRING, "\3\0\0\0\0\0\0\0abc",
                              11);
    g = parse(&b);
    assert_false(sl_gguf_has(g, "general.name"));
    assert_ok(sl_gguf_get_uint(g, "qwen35.block_count", 1, 512, &n, &err));
    assert_int_equal(n, 7);
    assert_ok(sl_gguf_get_string(g, "qwen35.context_length", &s, &err));
    assert_true(sl_str_is(s, "abc"));
    sl_gguf_free(g);
    sl_gguf_build_free(&b);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    sl_gguf_build b;
    build_everything(&b);
    size_t before = sl_mem_get_stats().blocks;
    for (int forever = 0; forever < 2; forever++) {
        int n_failures = 0;
        for (uint64_t n = 1;; n++) {
            sl_error err;
            sl_gguf *g = NULL;
            sl_mem_fail_at(n, forever);
            sl_status status = sl_gguf_parse(b.data, b.n_bytes, "f", &g, &err);
            sl_mem_fail_at(0, false);
            if (status == SL_OK) {
                sl_gguf_free(g);
                assert_int_equal(sl_mem_get_stats().blocks, before);
                break;
            }
            n_failures++;
            assert_refused(status, SL_ERR_MEMORY, "f: out of memory");
            assert_null(g);
            assert_int_equal(sl_mem_get_stats().blocks, before);
        }
        /* The handle, its name, keys, one table of strings and its last size, tensors, two indexes,
         * the overlaps. */
        assert_int_equal(n_failures, 9);
    }
    sl_gguf_build_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header),           cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_integers),         cmocka_unit_test(test_floats_and_bools),
        cmocka_unit_test(test_strings),          cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_describe),         cmocka_unit_test(test_long_string_is_cut),
        cmocka_unit_test(test_oddities),         cmocka_unit_test(test_long_path_leaves_room),
        cmocka_unit_test(test_large_vocabulary), cmocka_unit_test(test_many_tensors),
        cmocka_unit_test(test_real_model),       cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
