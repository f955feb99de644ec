/* Bad GGUF files: every known hole of GGUF loaders and its variants by name, then truncation,
 * boundary values in every field, wrong types and flipped bits. Each must be refused with a
 * sentence that names the place, or be a file that can be read without harm; run under sanitizers.
 */
#include "gguf_build.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/mem.h"
#include "format/gguf.h"

#define ALL    UINT64_MAX
#define BIT(n) (UINT64_C(1) << (n))

/* ---- the good file that is damaged ---- */

/* Tensors of the good file: "a" F32 {8,2} at 0 (64 bytes), "b" Q8_0 {32,3} at 64 (102 bytes),
 * "c" F16 {3,1,2,2} at 192 (24 bytes), "u" of the unusable type Q8_K at 224; the data has 225
 * bytes, so that no byte at the end is padding. */
enum { DATA_BYTES = 225 };

static void build_good(sl_gguf_build *b)
{
    sl_gguf_build_init(b, 3);
    sl_gguf_build_key_string(b, "general.architecture", "qwen35");
    sl_gguf_build_key_u32(b, "general.alignment", 32);
    sl_gguf_build_key_u32(b, "qwen35.block_count", 4);
    sl_gguf_build_key_f32(b, "qwen35.rope.freq_base", 1e7f);
    sl_gguf_build_key_bits(b, "u8", SL_GGUF_U8, 1);
    sl_gguf_build_key_bits(b, "i16", SL_GGUF_I16, 1);
    sl_gguf_build_key_bits(b, "flag", SL_GGUF_BOOL, 1);
    sl_gguf_build_key_bits(b, "u64", SL_GGUF_U64, 1);
    sl_gguf_build_key_bits(b, "f64", SL_GGUF_F64, 1);
    sl_gguf_build_key_array(b, "tokens", SL_GGUF_STRING, 5);
    for (int i = 0; i < 5; i++)
        sl_gguf_build_string(b, "token");
    sl_gguf_build_key_array(b, "types", SL_GGUF_I32, 5);
    for (uint32_t i = 0; i < 5; i++)
        sl_gguf_build_uint(b, 4, i);
    sl_gguf_build_key_array(b, "bytes", SL_GGUF_U8, 3);
    sl_gguf_build_bytes(b, "abc", 3);
    sl_gguf_build_key_array(b, "words", SL_GGUF_U64, 2);
    sl_gguf_build_uint(b, 8, 1);
    sl_gguf_build_uint(b, 8, 2);
    sl_gguf_build_key_array(b, "halves", SL_GGUF_U16, 2);
    sl_gguf_build_uint(b, 4, 1);
    sl_gguf_build_key_array(b, "nested", SL_GGUF_ARRAY, 1);
    sl_gguf_build_uint(b, 4, SL_GGUF_STRING);
    sl_gguf_build_uint(b, 8, 1);
    sl_gguf_build_string(b, "inner");
    sl_gguf_build_tensor(b, "a", 2, (const uint64_t[]){8, 2}, 0, 0);
    sl_gguf_build_tensor(b, "b", 2, (const uint64_t[]){32, 3}, 8, 64);
    sl_gguf_build_tensor(b, "c", 4, (const uint64_t[]){3, 1, 2, 2}, 1, 192);
    sl_gguf_build_tensor(b, "u", 1, (const uint64_t[]){256}, 15, 224);
    sl_gguf_build_data(b, 32, DATA_BYTES);
}

/* ---- what every file must stand ---- */

/* Uses all that a parsed file offers. Returns a number so that no read is optimised away. */
static uint64_t exercise(const sl_gguf *g, const uint8_t *data, size_t n_bytes)
{
    uint64_t sum = 0;
    char name[512], text[256];
    for (size_t i = 0; i < sl_gguf_tensor_count(g); i++) {
        const sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
        assert_true(t->n_dims >= 1 && t->n_dims <= 4 && t->offset < n_bytes);
        assert_true(t->n_bytes <= n_bytes - t->offset && t->usable == (t->n_bytes > 0));
        sum += data[t->offset] + data[t->offset + (t->usable ? t->n_bytes - 1 : 0)];
        memcpy(name, t->name.data, t->name.n_bytes);
        name[t->name.n_bytes] = '\0';
        assert_ptr_equal(sl_gguf_find_tensor(g, name), t);
    }
    for (size_t i = 0; i < sl_gguf_key_count(g); i++) {
        assert_int_equal(sl_gguf_describe(g, i, text, sizeof text), SL_OK);
        sum += strlen(text);
        sl_str key = sl_gguf_key_at(g, i);
        if (key.n_bytes >= sizeof name)
            continue;
        memcpy(name, key.data, key.n_bytes);
        name[key.n_bytes] = '\0';
        assert_true(sl_gguf_has(g, name));
        uint64_t u = 0;
        int64_t n = 0;
        double real = 0;
        bool flag = false;
        sl_str s = {"", 0};
        sl_gguf_array a;
        sl_gguf_get_uint(g, name, 1, 512, &u, NULL);
        sl_gguf_get_float_or(g, name, 0, &real, NULL);
        sl_gguf_get_bool_or(g, name, false, &flag, NULL);
        if (sl_gguf_get_string(g, name, &s, NULL) == SL_OK && s.n_bytes > 0)
            sum += (uint8_t)s.data[0] + (uint8_t)s.data[s.n_bytes - 1];
        if (sl_gguf_get_array_or_empty(g, name, &a, NULL) == SL_OK && a.n_items > 0) {
            size_t last = a.n_items - 1;
            sl_gguf_array_int(&a, last, &n);
            real = sl_gguf_array_float(&a, last);
            if (a.type == SL_GGUF_STRING && a.strings[last].n_bytes > 0)
                sum += (uint8_t)a.strings[last].data[a.strings[last].n_bytes - 1];
        }
        sum += u + (uint64_t)n + (real > 0.5) + flag;
    }
    return sum;
}

/* Parses a file that may be anything. A refusal must be one of the two statuses with a sentence
 * that names file and byte, and leave nothing allocated; an accepted file is exercised. */
static bool stands(const uint8_t *data, size_t n_bytes)
{
    size_t before = sl_mem_get_stats().blocks;
    sl_gguf *g = NULL;
    sl_error err;
    sl_status status = sl_gguf_parse(data, n_bytes, "f.gguf", &g, &err);
    if (status == SL_OK) {
        const uint64_t sum = exercise(g, data, n_bytes);
        assert_int_equal(exercise(g, data, n_bytes), sum);
        sl_gguf_free(g);
    } else {
        assert_null(g);
        assert_true(status == SL_ERR_FORMAT || status == SL_ERR_UNSUPPORTED);
        assert_int_equal(strncmp(err.message, "f.gguf: ", 8), 0);
        assert_non_null(strstr(err.message, "(byte "));
    }
    assert_int_equal(sl_mem_get_stats().blocks, before);
    return status == SL_OK;
}

/* A block of exactly the size, so that a sanitizer sees every read beyond the end. */
static uint8_t *exact_copy(const uint8_t *data, size_t n_bytes)
{
    uint8_t *copy = malloc(n_bytes > 0 ? n_bytes : 1);
    assert_non_null(copy);
    if (n_bytes > 0)
        memcpy(copy, data, n_bytes);
    return copy;
}

static bool stands_alone(const uint8_t *data, size_t n_bytes)
{
    uint8_t *copy = exact_copy(data, n_bytes);
    bool accepted = stands(copy, n_bytes);
    free(copy);
    return accepted;
}

static void test_good_file(void **state)
{
    (void)state;
    sl_gguf_build b;
    build_good(&b);
    assert_true(stands_alone(b.data, b.n_bytes));
    sl_gguf_build_free(&b);
}

/* ---- named cases: one field of the good file changed ---- */

typedef struct change {
    const char *what; /* what it stands for */
    sl_gguf_field_kind kind;
    const char *name; /* of the key or tensor */
    size_t i;
    uint64_t value;
    sl_status status; /* SL_OK: the file stays good */
    const char *part; /* of the sentence */
} change;

#define F SL_ERR_FORMAT
#define U SL_ERR_UNSUPPORTED

static const change changes[] = {
    /* The header. */
    {"version 0", SL_FIELD_VERSION, NULL, 0, 0, U, "GGUF version 0 cannot be read"},
    {"version 1", SL_FIELD_VERSION, NULL, 0, 1, U, "GGUF version 1 cannot be read"},
    {"version 2", SL_FIELD_VERSION, NULL, 0, 2, SL_OK, ""},
    {"version 4", SL_FIELD_VERSION, NULL, 0, 4, U, "GGUF version 4 cannot be read"},
    {"version -1", SL_FIELD_VERSION, NULL, 0, UINT32_MAX, U, "version 4294967295 cannot be read"},
    {"big-endian 3", SL_FIELD_VERSION, NULL, 0, 0x03000000, U, "big-endian"},
    {"big-endian 2", SL_FIELD_VERSION, NULL, 0, 0x02000000, U, "big-endian"},
    {"CVE-2024-21836: tensors * size wraps", SL_FIELD_TENSOR_COUNT, NULL, 0, ALL / 96 + 1, F,
     "the number of tensors is 192153584101141163, but only"},
    {"the same, 2^64-1", SL_FIELD_TENSOR_COUNT, NULL, 0, ALL, F, "the number of tensors is 18446"},
    {"the same, 2^63", SL_FIELD_TENSOR_COUNT, NULL, 0, BIT(63), F, "the number of tensors is 9223"},
    {"the same, 2^60", SL_FIELD_TENSOR_COUNT, NULL, 0, BIT(60), F, "the number of tensors is 115"},
    {"the same, 2^32", SL_FIELD_TENSOR_COUNT, NULL, 0, BIT(32), F, "the number of tensors is 429"},
    {"one tensor too many", SL_FIELD_TENSOR_COUNT, NULL, 0, 5, F, "tensor 5: "},
    {"CVE-2024-23605: keys * size wraps", SL_FIELD_KEY_COUNT, NULL, 0, ALL / 72 + 1, F,
     "the number of keys is 256204778801521551, but only"},
    {"the same, 2^64-1", SL_FIELD_KEY_COUNT, NULL, 0, ALL, F, "the number of keys is 18446"},
    {"the same, 2^63", SL_FIELD_KEY_COUNT, NULL, 0, BIT(63), F, "the number of keys is 9223"},
    {"the same, 2^58", SL_FIELD_KEY_COUNT, NULL, 0, BIT(58), F, "the number of keys is 288"},
    {"one key too many", SL_FIELD_KEY_COUNT, NULL, 0, 16, F, "tensor 1: the name needs"},
    {"one key too few", SL_FIELD_KEY_COUNT, NULL, 0, 14, F, "tensor 1 \"nested\": 9 dimensions"},

    /* Keys. */
    {"CVE-2024-23496: length 2^64-1", SL_FIELD_KEY_LENGTH, "u8", 0, ALL, F,
     "key 5: the name needs 18446744073709551615 bytes, but only"},
    {"the same, 2^64-8", SL_FIELD_KEY_LENGTH, "u8", 0, ALL - 7, F, "key 5: the name needs 18446"},
    {"the same, 2^63", SL_FIELD_KEY_LENGTH, "u8", 0, BIT(63), F, "key 5: the name needs 9223"},
    {"the same, 2^32+2", SL_FIELD_KEY_LENGTH, "u8", 0, BIT(32) + 2, F, "key 5: the name needs"},
    {"an empty key", SL_FIELD_KEY_LENGTH, "u8", 0, 0, F, "key 5: the name is empty"},
    {"a NUL byte in a key", SL_FIELD_KEY_LENGTH, "u8", 0, 4, F, "the name contains a NUL byte"},
    {"string length 2^64-1", SL_FIELD_STRING_LENGTH, "general.architecture", 0, ALL, F,
     "key 1 \"general.architecture\": the string needs 18446744073709551615 bytes"},
    {"string length 2^64-9", SL_FIELD_STRING_LENGTH, "general.architecture", 0, ALL - 8, F,
     "the string needs"},
    {"string length 2^63-1", SL_FIELD_STRING_LENGTH, "general.architecture", 0, INT64_MAX, F,
     "the string needs"},
    {"value type 13", SL_FIELD_VALUE_TYPE, "u8", 0, 13, F,
     "key 5 \"u8\": the value type is 13, which GGUF does not define"},
    {"value type -1", SL_FIELD_VALUE_TYPE, "u8", 0, UINT32_MAX, F, "the value type is 4294967295"},
    {"value type 2^31", SL_FIELD_VALUE_TYPE, "u8", 0, BIT(31), F, "the value type is 2147483648"},
    {"bool 2", SL_FIELD_VALUE, "flag", 0, 2, F, "key 7 \"flag\": the bool is 2, neither 0 nor 1"},
    {"bool 255", SL_FIELD_VALUE, "flag", 0, 255, F, "the bool is 255"},

    /* Arrays. */
    {"item type 13", SL_FIELD_ITEM_TYPE, "types", 0, 13, F, "the item type is 13"},
    {"item type -1", SL_FIELD_ITEM_TYPE, "types", 0, UINT32_MAX, F, "the item type is 4294967295"},
    {"inner item type 13", SL_FIELD_ITEM_TYPE, "nested", 1, 13, F, "the item type is 13"},
    {"CVE-2024-21825: n * 16 wraps", SL_FIELD_ITEM_COUNT, "tokens", 0, BIT(60), F,
     "key 10 \"tokens\": 1152921504606846976 items of type string do not fit in the "},
    {"the same, n * 8 wraps", SL_FIELD_ITEM_COUNT, "tokens", 0, BIT(61), F, "of type string"},
    {"the same, 2^64-1", SL_FIELD_ITEM_COUNT, "tokens", 0, ALL, F, "of type string do not fit"},
    {"the same, u64", SL_FIELD_ITEM_COUNT, "words", 0, BIT(61), F, "of type u64 do not fit"},
    {"the same, u64 + 1", SL_FIELD_ITEM_COUNT, "words", 0, BIT(61) + 1, F, "of type u64 do"},
    {"the same, i32", SL_FIELD_ITEM_COUNT, "types", 0, BIT(62), F, "of type i32 do not fit"},
    {"the same, u16", SL_FIELD_ITEM_COUNT, "halves", 0, BIT(63), F, "of type u16 do not fit"},
    {"the same, u8", SL_FIELD_ITEM_COUNT, "bytes", 0, ALL, F, "of type u8 do not fit"},
    {"GO-2025-3557: a billion strings", SL_FIELD_ITEM_COUNT, "tokens", 0, BIT(30), F,
     "1073741824 items of type string do not fit"},
    {"a billion inner arrays", SL_FIELD_ITEM_COUNT, "nested", 0, BIT(30), F,
     "1073741824 items of type array do not fit"},
    {"a billion inner strings", SL_FIELD_ITEM_COUNT, "nested", 1, BIT(30), F,
     "key 15 \"nested\": 1073741824 items of type string do not fit"},
    {"CVE-2024-32878: fails at the last item", SL_FIELD_STRING_LENGTH, "tokens", 2, ALL, F,
     "key 10 \"tokens\": a string of an array needs 18446744073709551615 bytes"},
    {"the same, wraps to itself", SL_FIELD_STRING_LENGTH, "tokens", 1, ALL - 12, F,
     "a string of an array needs"},
    {"inner string 2^63", SL_FIELD_STRING_LENGTH, "nested", 0, BIT(63), F,
     "a string of an array needs"},

    /* The alignment. */
    {"PR 24997, GO-2025-3559: alignment 0", SL_FIELD_VALUE, "general.alignment", 0, 0, F,
     "key 2 \"general.alignment\": 0 is not a power of two"},
    {"alignment 13", SL_FIELD_VALUE, "general.alignment", 0, 13, F, "13 is not a power of two"},
    {"alignment 3", SL_FIELD_VALUE, "general.alignment", 0, 3, F, "3 is not a power of two"},
    {"alignment 2^31", SL_FIELD_VALUE, "general.alignment", 0, BIT(31), F,
     "2147483648 is not a power of two from 1 to 1048576"},
    {"alignment 2^21", SL_FIELD_VALUE, "general.alignment", 0, BIT(21), F, "2097152 is not"},
    {"alignment 2^32-1", SL_FIELD_VALUE, "general.alignment", 0, UINT32_MAX, F, "is not a power"},
    {"alignment as i32", SL_FIELD_VALUE_TYPE, "general.alignment", 0, SL_GGUF_I32, F,
     "key 2 \"general.alignment\": the value has type i32, not u32"},
    {"alignment as f32", SL_FIELD_VALUE_TYPE, "general.alignment", 0, SL_GGUF_F32, F, "type f32"},
    {"offsets off a larger alignment", SL_FIELD_VALUE, "general.alignment", 0, 128, F,
     "tensor 2 \"b\": its offset 64 is not a multiple of the alignment 128"},

    /* Tensors. */
    {"tensor name 2^64-1", SL_FIELD_NAME_LENGTH, "b", 0, ALL, F, "tensor 2: the name needs 1844"},
    {"tensor name empty", SL_FIELD_NAME_LENGTH, "b", 0, 0, F, "tensor 2: the name is empty"},
    {"NUL byte in a tensor name", SL_FIELD_NAME_LENGTH, "b", 0, 4, F, "contains a NUL byte"},
    {"CVE-2024-21802: 5 dimensions", SL_FIELD_N_DIMS, "b", 0, 5, F,
     "tensor 2 \"b\": 5 dimensions, expected 1 to 4"},
    {"0 dimensions", SL_FIELD_N_DIMS, "b", 0, 0, F, "0 dimensions, expected 1 to 4"},
    {"gguf-tools 28: 8 dimensions", SL_FIELD_N_DIMS, "b", 0, 8, F, "8 dimensions"},
    {"-1 dimensions", SL_FIELD_N_DIMS, "b", 0, UINT32_MAX, F, "4294967295 dimensions"},
    {"2^31 dimensions", SL_FIELD_N_DIMS, "b", 0, BIT(31), F, "2147483648 dimensions"},
    {"9799: ne[0] = 0", SL_FIELD_NE, "b", 0, 0, F, "tensor 2 \"b\": dimension 0 is 0"},
    {"ne[1] = 0", SL_FIELD_NE, "b", 1, 0, F, "dimension 1 is 0"},
    {"ne[3] = 0", SL_FIELD_NE, "c", 3, 0, F, "dimension 3 is 0"},
    {"ne 0 of an unusable type", SL_FIELD_NE, "u", 0, 0, F, "dimension 0 is 0"},
    {"ne = -1", SL_FIELD_NE, "b", 0, ALL, F, "dimension 0 is 18446744073709551615: too many"},
    {"ne = 2^63", SL_FIELD_NE, "b", 0, BIT(63), F, "too many elements"},
    {"ne product wraps to 0", SL_FIELD_NE, "a", 1, BIT(61), F, "too many elements"},
    {"ne product wraps to 8", SL_FIELD_NE, "a", 1, BIT(61) + 1, F, "too many elements"},
    {"ne product wraps, 4 dimensions", SL_FIELD_NE, "c", 3, BIT(62), F, "dimension 3 is 46116"},
    {"GHSA-96jg: 4 * 2^62 wraps", SL_FIELD_NE, "a", 1, BIT(59), F, "the size in bytes overflows"},
    {"the same, to 32 bytes", SL_FIELD_NE, "a", 1, BIT(59) + 1, F, "the size in bytes overflows"},
    {"the same, in one row", SL_FIELD_NE, "a", 0, BIT(61), F, "the size in bytes overflows"},
    {"the same, of an unusable type", SL_FIELD_NE, "u", 0, BIT(63), F, "too many elements"},
    {"as many elements as there may be", SL_FIELD_NE, "u", 0, INT64_MAX, SL_OK, ""},
    {"2^56 rows", SL_FIELD_NE, "b", 1, BIT(56), F, "end past the file's"},
    {"one row too many", SL_FIELD_NE, "b", 1, BIT(4), F, "end past the file's"},
    {"Q8_0 rows of 33", SL_FIELD_NE, "b", 0, 33, F,
     "rows of 33 elements are not a whole number of Q8_0 blocks of 32"},
    {"Q4_K rows of 32", SL_FIELD_GGML_TYPE, "b", 0, 12, F, "a whole number of Q4_K blocks of 256"},
    {"PR 19856: ggml type -1", SL_FIELD_GGML_TYPE, "b", 0, UINT32_MAX, SL_OK, ""},
    {"ggml type 2^31", SL_FIELD_GGML_TYPE, "b", 0, BIT(31), SL_OK, ""},
    {"a removed ggml type", SL_FIELD_GGML_TYPE, "b", 0, 4, SL_OK, ""},
    {"a type that makes it larger", SL_FIELD_GGML_TYPE, "c", 0, 0, F,
     "\"c\": its 48 bytes at offset 192"},
    {"a row into the next tensor", SL_FIELD_NE, "a", 1, 3, F, "overlaps that of \"a\""},
    {"offset off the alignment", SL_FIELD_OFFSET, "b", 0, 65, F,
     "tensor 2 \"b\": its offset 65 is not a multiple of the alignment 32"},
    {"PR 24759: offset pads to 0", SL_FIELD_OFFSET, "b", 0, ALL - 3, F, "is not a multiple"},
    {"CVE-2026-7482: data outside", SL_FIELD_OFFSET, "b", 0, 4096, F,
     "its 102 bytes at offset 4096 of the data (from byte "},
    {"the same, ends outside", SL_FIELD_OFFSET, "b", 0, 128, F, "its 102 bytes at offset 128"},
    {"the same, offset + size wraps", SL_FIELD_OFFSET, "b", 0, ALL - 31, F,
     "its 102 bytes at offset 18446744073709551584"},
    {"the same, wraps into the file", SL_FIELD_OFFSET, "b", 0, ALL - 1023, F, "end past the file"},
    {"the same, 2^63", SL_FIELD_OFFSET, "b", 0, BIT(63), F, "end past the file"},
    {"unusable type outside", SL_FIELD_OFFSET, "u", 0, 256, F, "tensor 4 \"u\": its 1 bytes at"},
    {"unusable type far outside", SL_FIELD_OFFSET, "u", 0, ALL - 31, F, "tensor 4 \"u\": its 1"},
    {"same place", SL_FIELD_OFFSET, "b", 0, 0, F, "tensor 2 \"b\": its data at byte"},
    {"partial overlap", SL_FIELD_OFFSET, "b", 0, 32, F, "overlaps that of \"a\""},
    {"the earlier one moved", SL_FIELD_OFFSET, "a", 0, 160, F, "tensor 1 \"a\": its data at byte"},
    {"one inside another", SL_FIELD_OFFSET, "c", 0, 96, F, "overlaps that of \"b\""},
    {"an unusable type inside another", SL_FIELD_OFFSET, "u", 0, 96, F, "overlaps that of \"b\""},
    {"unusable and usable at one place", SL_FIELD_OFFSET, "u", 0, 192, F, "\"u\": its data at"},
};

static void assert_file(const sl_gguf_build *b, const char *what, sl_status expected,
                        const char *part)
{
    sl_error err;
    sl_gguf *g = NULL;
    uint8_t *copy = exact_copy(b->data, b->n_bytes);
    sl_status status = sl_gguf_parse(copy, b->n_bytes, "f.gguf", &g, &err);
    if (status != expected || (status != SL_OK && !strstr(err.message, part)))
        print_error("%s:\n", what);
    assert_refused(status, expected, part);
    sl_gguf_free(g);
    assert_int_equal(stands(copy, b->n_bytes), expected == SL_OK);
    free(copy);
}

static void test_changes(void **state)
{
    (void)state;
    for (size_t i = 0; i < SL_COUNTOF(changes); i++) {
        const change *c = &changes[i];
        sl_gguf_build b;
        build_good(&b);
        sl_gguf_build_change(&b, c->kind, c->name, c->i, c->value);
        assert_file(&b, c->what, c->status, c->part);
        sl_gguf_build_free(&b);
    }
}

/* ---- named cases: whole files ---- */

static void test_beginnings(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n_bytes;
        sl_status status;
        const char *part;
    } cases[] = {
        {"", 0, F, "f.gguf: the magic number of a GGUF file needs 4 bytes, but only 0 remain"},
        {"G", 1, F, "but only 1 remain in the file (byte 0)"},
        {"GGU", 3, F, "but only 3 remain"},
        {"GGUF", 4, F, "the version needs 4 bytes, but only 0 remain in the file (byte 4)"},
        {"GGUF\3\0\0", 7, F, "the version needs 4 bytes, but only 3 remain"},
        {"GGUF\3\0\0\0", 8, F, "the number of tensors needs 8 bytes, but only 0 remain"},
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16, F, "the number of keys needs 8 bytes"},
        {"GGUF\3\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 23, F, "the number of keys needs 8 bytes"},
        {"GGUF\3\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 24, F,
         "the number of tensors is 1, but only 0 bytes follow (byte 8)"},
        {"GGUF\1\0\0\0\1\0\0\0\1\0\0\0", 16, U, "GGUF version 1 cannot be read, only 2 and 3"},
        {"FUGG\0\0\0\3", 8, U, "this is a big-endian GGUF file (byte 0)"},
        {"GGUF\0\0\0\3\0\0\0\0\0\0\0\0", 16, U, "this is a big-endian GGUF file (byte 4)"},
        {"lmgg\1\0\0\0", 8, F, "this is not a GGUF file: it begins with bytes 6c 6d 67 67"},
        {"tjgg\3\0\0\0", 8, F, "this is not a GGUF file"},
        {"gguf\3\0\0\0", 8, F, "this is not a GGUF file"},
        {"PK\3\4\0\0\0\0", 8, F, "it begins with bytes 50 4b 03 04"},
        {"\0\0\0\0\0\0\0\0", 8, F, "it begins with bytes 00 00 00 00"},
        {"<!DOCTYPE html>", 15, F, "this is not a GGUF file"},
        {"version https://git-lfs.github.com/spec/v1\n", 43, F, "this is a Git LFS pointer"},
        {"version https://git-lf", 22, F, "this is not a GGUF file"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_gguf_build b;
        sl_gguf_build_copy(&b, (const uint8_t *)cases[i].bytes, cases[i].n_bytes);
        assert_file(&b, cases[i].part, cases[i].status, cases[i].part);
        sl_gguf_build_free(&b);
    }
}

/* The alignment under types whose values have other sizes. */
static void test_alignment_types(void **state)
{
    (void)state;
    static const struct {
        uint32_t type;
        size_t n_bytes;
    } values[] = {{SL_GGUF_U8, 1},  {SL_GGUF_I8, 1},     {SL_GGUF_U16, 2},  {SL_GGUF_I16, 2},
                  {SL_GGUF_I32, 4}, {SL_GGUF_F32, 4},    {SL_GGUF_BOOL, 1}, {SL_GGUF_U64, 8},
                  {SL_GGUF_I64, 8}, {SL_GGUF_STRING, 8}, {SL_GGUF_F64, 8},  {SL_GGUF_ARRAY, 12}};
    for (size_t i = 0; i < SL_COUNTOF(values); i++) {
        sl_gguf_build b;
        build_good(&b);
        sl_gguf_build_replace_key(&b, "general.alignment", values[i].type, (const uint8_t[12]){0},
                                  values[i].n_bytes);
        assert_file(&b, "alignment type", F, "key 2 \"general.alignment\": the value has type ");
        sl_gguf_build_free(&b);
    }
}

static void test_duplicates(void **state)
{
    (void)state;
    sl_gguf_build b;
    sl_gguf_build_init(&b, 3);
    sl_gguf_build_key_u32(&b, "x.first", 1);
    sl_gguf_build_key_u32(&b, "x.other", 1);
    sl_gguf_build_key_string(&b, "x.first", "again, as another type");
    assert_file(&b, "key twice", F,
                "key 3 \"x.first\": an earlier key has the same name (byte 70)");
    sl_gguf_build_free(&b);

    sl_gguf_build_init(&b, 3);
    sl_gguf_build_key_u32(&b, "general.alignment", 32);
    sl_gguf_build_key_u32(&b, "general.alignment", 64);
    assert_file(&b, "alignment twice", F, "key 2 \"general.alignment\": an earlier key");
    sl_gguf_build_free(&b);

    sl_gguf_build_init(&b, 3);
    for (int i = 0; i < 3; i++)
        sl_gguf_build_tensor(&b, i == 1 ? "y" : "x", 1, (const uint64_t[]){8}, 0, (uint64_t)i * 32);
    sl_gguf_build_data(&b, 32, 96);
    assert_file(&b, "tensor twice", F, "tensor 3 \"x\": an earlier tensor has the same name");
    sl_gguf_build_free(&b);
}

/* CVE-2025-53630, CVE-2026-27940, PR 24759 and 26318: loaders that add up padded sizes wrap. */
static void test_sums_of_sizes(void **state)
{
    (void)state;
    static const uint64_t rows[] = {BIT(55), BIT(56), BIT(58), (ALL >> 6) - 1, BIT(54) - 1};
    for (size_t i = 0; i < SL_COUNTOF(rows); i++) {
        sl_gguf_build b;
        sl_gguf_build_init(&b, 3);
        for (uint64_t t = 0; t < 16; t++) {
            const char name[] = {(char)('a' + t), '\0'};
            sl_gguf_build_tensor(&b, name, 2, (const uint64_t[]){8, rows[i]}, 0, t * rows[i] * 32);
        }
        sl_gguf_build_data(&b, 32, 4096);
        assert_file(&b, "sum of sizes", F, "tensor 1 \"a\": ");
        sl_gguf_build_free(&b);
    }
}

/* Arrays in arrays: four deep is the limit, and a file cannot choose how deep the parser goes. */
static void test_nesting(void **state)
{
    (void)state;
    static const int depths[] = {3, 4, 5, 6, 100000};
    for (size_t i = 0; i < SL_COUNTOF(depths); i++) {
        sl_gguf_build b;
        sl_gguf_build_init(&b, 3);
        sl_gguf_build_key(&b, "k", SL_GGUF_ARRAY);
        for (int d = 1; d < depths[i]; d++) {
            sl_gguf_build_uint(&b, 4, SL_GGUF_ARRAY);
            sl_gguf_build_uint(&b, 8, 1);
        }
        sl_gguf_build_uint(&b, 4, SL_GGUF_U8);
        sl_gguf_build_uint(&b, 8, 1);
        sl_gguf_build_uint(&b, 1, 7);
        assert_file(&b, "nesting", depths[i] <= 4 ? SL_OK : U,
                    "arrays are nested more than 4 deep");
        sl_gguf_build_free(&b);
    }
}

/* The limits that a large enough file could pass otherwise. */
static void test_limits(void **state)
{
    (void)state;
    enum { LIMIT = 4 << 20 };
    char *text = malloc(65537);
    assert_non_null(text);
    memset(text, 'n', 65536);
    text[65536] = '\0';
    sl_gguf_build b;
    sl_gguf_build_init(&b, 3);
    sl_gguf_build_key_u32(&b, text, 1);
    assert_file(&b, "long key", U, "key 1: the name has 65536 bytes, the limit is 65535");
    sl_gguf_build_free(&b);

    text[256] = '\0';
    sl_gguf_build_init(&b, 3);
    sl_gguf_build_tensor(&b, text, 1, (const uint64_t[]){8}, 0, 0);
    assert_file(&b, "long tensor name", U, "tensor 1: the name has 256 bytes, the limit is 255");
    sl_gguf_build_free(&b);
    free(text);

    /* Empty strings: 8 bytes each in the file, 16 in memory. */
    for (uint64_t n = LIMIT; n <= LIMIT + 1; n++) {
        sl_gguf_build_init(&b, 3);
        sl_gguf_build_key_array(&b, "k", SL_GGUF_STRING, n);
        sl_gguf_build_data(&b, 1, 0);
        uint8_t *zeros = calloc((size_t)n, 8);
        assert_non_null(zeros);
        sl_gguf_build_bytes(&b, zeros, (size_t)n * 8);
        free(zeros);
        sl_gguf *g = NULL;
        sl_error err;
        assert_refused(sl_gguf_parse(b.data, b.n_bytes, "f", &g, &err), n > LIMIT ? U : SL_OK,
                       "key 1 \"k\": the file has more than 4194304 strings in arrays");
        sl_gguf_free(g);
        sl_gguf_build_free(&b);
    }

    /* The limit is that of all arrays together, inner ones included. */
    static const char *const parts[] = {"k1", "k2"};
    uint8_t *zeros = calloc(LIMIT / 2, 8);
    assert_non_null(zeros);
    sl_gguf_build_init(&b, 3);
    for (int i = 0; i < 2; i++) {
        sl_gguf_build_key_array(&b, parts[i], SL_GGUF_ARRAY, 1);
        sl_gguf_build_uint(&b, 4, SL_GGUF_STRING);
        sl_gguf_build_uint(&b, 8, LIMIT / 2);
        sl_gguf_build_bytes(&b, zeros, LIMIT / 2 * 8);
    }
    free(zeros);
    sl_gguf *together = NULL;
    sl_error err;
    assert_refused(sl_gguf_parse(b.data, b.n_bytes, "f", &together, &err), U,
                   "key 2 \"k2\": the file has more than 4194304 strings in arrays");
    sl_gguf_build_free(&b);
}

/* Counts in the header at and beyond their limits, with room for them in the file. */
static void test_count_limits(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint64_t n;
        sl_status status;
        const char *part;
    } cases[] = {
        {8, 1 << 20, F, "tensor 1: the name is empty"},
        {8, (1 << 20) + 1, U, "the number of tensors is 1048577, the limit is 1048576"},
        {16, 1 << 20, F, "key 1: the name is empty"},
        {16, (1 << 20) + 1, U, "the number of keys is 1048577, the limit is 1048576"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_gguf_build b;
        sl_gguf_build_init(&b, 3);
        sl_gguf_build_set(&b, cases[i].at, 8, cases[i].n);
        uint8_t *zeros = calloc(1 << 20, 40);
        assert_non_null(zeros);
        sl_gguf_build_bytes(&b, zeros, 40u << 20);
        free(zeros);
        sl_gguf *g = NULL;
        sl_error err;
        assert_refused(sl_gguf_parse(b.data, b.n_bytes, "f", &g, &err), cases[i].status,
                       cases[i].part);
        sl_gguf_build_free(&b);
    }
}

/* ---- truncation ---- */

/* Where the last byte that belongs to a tensor lies. */
static size_t end_of_tensors(const uint8_t *data, size_t n_bytes)
{
    sl_gguf *g = NULL;
    sl_error err;
    assert_ok(sl_gguf_parse(data, n_bytes, "f", &g, &err));
    size_t end = 0;
    for (size_t i = 0; i < sl_gguf_tensor_count(g); i++) {
        const sl_gguf_tensor *t = sl_gguf_tensor_at(g, i);
        end = sl_max_size(end, (size_t)t->offset + (t->usable ? t->n_bytes : 1));
    }
    sl_gguf_free(g);
    return end;
}

static void test_truncation(void **state)
{
    (void)state;
    sl_gguf_build b;
    build_good(&b);
    assert_int_equal(end_of_tensors(b.data, b.n_bytes), b.n_bytes);
    for (size_t n = 0; n < b.n_bytes; n++)
        assert_false(stands_alone(b.data, n));
    sl_gguf_build_free(&b);

    /* The same with a real file: at every byte of its metadata, around every border of its data. */
    sl_gguf_build_read(&b, "tests/data/models/rand-r1-q8_0.gguf");
    size_t end = end_of_tensors(b.data, b.n_bytes);
    sl_gguf_fields fields;
    sl_gguf_fields_init(&fields, b.data, b.n_bytes);
    for (size_t n = 0; n <= fields.data_begin; n++)
        assert_false(stands_alone(b.data, n));
    for (size_t n = fields.data_begin; n < b.n_bytes; n += n + 64 < end ? 997 : 1)
        assert_int_equal(stands(b.data, n), n >= end);
    sl_gguf_fields_free(&fields);
    sl_gguf_build_free(&b);
}

/* ---- every field at every boundary ---- */

static const uint64_t boundaries[] = {
    0,           1,           2,           3,           7,           8,       127,         128,
    255,         256,         BIT(15) - 1, BIT(15) + 1, BIT(31) - 1, BIT(31), BIT(32) - 1, BIT(32),
    BIT(32) + 1, BIT(53) + 1, BIT(63) - 1, BIT(63),     ALL - 31, /* 2^64 - the alignment */
    ALL - 3,     ALL - 1,     ALL,
};

/* Whether a file with another value in such a field may be good: the values of keys, and what makes
 * tensors smaller, fewer or unusable. In all other fields only the right value is. */
static bool may_differ(sl_gguf_field_kind kind)
{
    switch (kind) {
    case SL_FIELD_VERSION:
    case SL_FIELD_VALUE_TYPE:
    case SL_FIELD_VALUE:
    case SL_FIELD_ITEM_TYPE:
    case SL_FIELD_ITEM:
    case SL_FIELD_TENSOR_COUNT:
    case SL_FIELD_NE:
    case SL_FIELD_GGML_TYPE:
        return true;
    default:
        return false;
    }
}

/* Overwrites each field with each value, in a block of exactly the file's size. Returns the number
 * of cases. */
static size_t sweep_boundaries(const sl_gguf_build *b)
{
    sl_gguf_fields fields;
    sl_gguf_fields_init(&fields, b->data, b->n_bytes);
    sl_gguf_build exact = {exact_copy(b->data, b->n_bytes), b->n_bytes, b->n_bytes};
    size_t n_cases = 0;
    for (size_t f = 0; f < fields.n; f++) {
        size_t offset = fields.at[f].offset, width = fields.at[f].width;
        for (size_t v = 0; v < SL_COUNTOF(boundaries); v++) {
            if (width < 8 && boundaries[v] >> 8 * width != 0)
                continue;
            sl_gguf_build_set(&exact, offset, width, boundaries[v]);
            bool accepted = stands(exact.data, exact.n_bytes);
            bool same = memcmp(exact.data + offset, b->data + offset, width) == 0;
            assert_true(same ? accepted : !accepted || may_differ(fields.at[f].kind));
            n_cases++;
        }
        memcpy(exact.data + offset, b->data + offset, width);
    }
    sl_gguf_build_free(&exact);
    sl_gguf_fields_free(&fields);
    return n_cases;
}

static void test_boundaries(void **state)
{
    (void)state;
    sl_gguf_build small, model;
    build_good(&small);
    sl_gguf_build_read(&model, "tests/data/models/rand-moe-q8_0.gguf");
    size_t n_cases = sweep_boundaries(&small) + sweep_boundaries(&model);
    assert_true(n_cases >= 10000);
    sl_gguf_build_free(&small);
    sl_gguf_build_free(&model);
}

/* Every key of a real file under every type, defined or not, with values of ones and of zeros. */
static void test_wrong_types(void **state)
{
    (void)state;
    static const uint32_t types[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, UINT32_MAX};
    static const size_t widths[] = {1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8, 0, 0};
    sl_gguf_build model;
    sl_gguf_build_read(&model, "tests/data/models/rand-r1-q8_0.gguf");
    sl_gguf *g = NULL;
    sl_error err;
    assert_ok(sl_gguf_parse(model.data, model.n_bytes, "f", &g, &err));
    size_t n_keys = sl_gguf_key_count(g);
    assert_true(n_keys > 30);
    for (size_t k = 0; k < n_keys; k++) {
        char name[256];
        sl_str key = sl_gguf_key_at(g, k);
        snprintf(name, sizeof name, "%.*s", (int)key.n_bytes, key.data);
        for (size_t t = 0; t < SL_COUNTOF(types); t++) {
            for (int ones = 0; ones < 2; ones++) {
                uint8_t value[12];
                memset(value, ones ? 0xff : 0, sizeof value);
                sl_gguf_build b;
                sl_gguf_build_copy(&b, model.data, model.n_bytes);
                sl_gguf_build_replace_key(&b, name, types[t], value, widths[t]);
                bool valid = types[t] < SL_GGUF_TYPE_COUNT &&
                             !(ones && (types[t] == SL_GGUF_BOOL || types[t] == SL_GGUF_STRING ||
                                        types[t] == SL_GGUF_ARRAY));
                assert_int_equal(stands(b.data, b.n_bytes), valid);
                sl_gguf_build_free(&b);
            }
        }
    }
    sl_gguf_free(g);
    sl_gguf_build_free(&model);
}

static void test_bit_flips(void **state)
{
    (void)state;
    sl_gguf_build b;
    build_good(&b);
    sl_gguf_fields fields;
    sl_gguf_fields_init(&fields, b.data, b.n_bytes);
    uint8_t *exact = exact_copy(b.data, b.n_bytes);
    for (size_t i = 0; i < fields.metadata_end; i++) {
        for (int bit = 0; bit < 8; bit++) {
            exact[i] = (uint8_t)(b.data[i] ^ 1u << bit);
            stands(exact, b.n_bytes);
        }
        exact[i] = b.data[i];
    }
    free(exact);
    sl_gguf_fields_free(&fields);
    sl_gguf_build_free(&b);
}

/* ---- memory ---- */

/* What a file claims must cost nothing: all named cases together stay within a few megabytes. */
static void test_claims_cost_nothing(void **state)
{
    (void)state;
    struct rusage before, after;
    getrusage(RUSAGE_SELF, &before);
    test_changes(state);
    test_beginnings(state);
    test_sums_of_sizes(state);
    getrusage(RUSAGE_SELF, &after);
    assert_true(after.ru_maxrss - before.ru_maxrss <= 64 * 1024); /* KiB */
    sl_mem_stats stats = sl_mem_get_stats();
    assert_int_equal(stats.blocks, 0);
    assert_int_equal(stats.bytes[SL_MEM_FORMAT], 0);
}

/* A refusal in the middle of an allocation failure, too, frees what it had. */
/* ---- a file that changes while it is read ---- */

typedef struct overwriter {
    uint8_t *at; /* a length */
    atomic_bool stop;
} overwriter;

static void *overwrite(void *context)
{
    overwriter *o = context;
    while (!atomic_load(&o->stop)) {
        for (int i = 0; i < 8; i++)
            ((volatile uint8_t *)o->at)[i] = 0xFF;
        for (int i = 0; i < 8; i++)
            ((volatile uint8_t *)o->at)[i] = i == 0 ? 5 : 0;
    }
    return NULL;
}

/* Another process may write over a mapped file. A length that was checked and then read again would
 * be another one: strings outside the file. */
static void test_overwritten_while_parsed(void **state)
{
    (void)state;
    sl_gguf_build b;
    sl_gguf_fields fields;
    build_good(&b);
    sl_gguf_fields_init(&fields, b.data, b.n_bytes);
    const sl_gguf_field *field = sl_gguf_fields_get(&fields, SL_FIELD_STRING_LENGTH, "tokens", 2);
    overwriter o = {.at = b.data + field->offset};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, overwrite, &o), 0);
    for (int i = 0; i < 20000; i++) {
        sl_gguf *gguf;
        if (sl_gguf_parse(b.data, b.n_bytes, "moving.gguf", &gguf, NULL) != SL_OK)
            continue;
        sl_gguf_array tokens;
        assert_int_equal(sl_gguf_get_array_or_empty(gguf, "tokens", &tokens, NULL), SL_OK);
        for (size_t k = 0; k < tokens.n_items; k++) {
            const char *end = tokens.strings[k].data + tokens.strings[k].n_bytes;
            assert_true(end > (const char *)b.data && end <= (const char *)b.data + b.n_bytes);
        }
        sl_gguf_free(gguf);
    }
    atomic_store(&o.stop, true);
    pthread_join(thread, NULL);
    sl_gguf_fields_free(&fields);
    sl_gguf_build_free(&b);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    sl_gguf_build b;
    build_good(&b);
    sl_gguf_build_change(&b, SL_FIELD_OFFSET, "c", 0, 96);
    for (int forever = 0; forever < 2; forever++) {
        sl_status status = SL_ERR_MEMORY;
        for (uint64_t n = 1; status == SL_ERR_MEMORY; n++) {
            sl_gguf *g = NULL;
            sl_error err;
            sl_mem_fail_at(n, forever);
            status = sl_gguf_parse(b.data, b.n_bytes, "f", &g, &err);
            sl_mem_fail_at(0, false);
            assert_null(g);
            assert_int_equal(sl_mem_get_stats().blocks, 0);
        }
        assert_int_equal(status, SL_ERR_FORMAT);
    }
    sl_gguf_build_free(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good_file),
        cmocka_unit_test(test_claims_cost_nothing), /* first: it looks at the process's peak */
        cmocka_unit_test(test_changes),
        cmocka_unit_test(test_beginnings),
        cmocka_unit_test(test_alignment_types),
        cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_sums_of_sizes),
        cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_count_limits),
        cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_boundaries),
        cmocka_unit_test(test_wrong_types),
        cmocka_unit_test(test_bit_flips),
        cmocka_unit_test(test_overwritten_while_parsed),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
