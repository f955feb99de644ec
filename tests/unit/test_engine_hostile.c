/* Any bytes as a model file, end to end: a file is refused with a sentence, or it opens and then
 * evaluates tokens without harm. Every integer field of the metadata takes every boundary value,
 * hyper-parameters take every wrong type. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf_build.h"
#include "models.h"

#include "base/mem.h"
#include "engine/engine.h"

static const uint64_t boundary_values[] = {
    0,
    1,
    2,
    3,
    7,
    8,
    127,
    128,
    255,
    256,
    32767,
    32768,
    65535,
    INT32_MAX,
    1ull << 31,
    UINT32_MAX,
    1ull << 32,
    (1ull << 32) + 1,
    (1ull << 53) + 1,
    INT64_MAX,
    1ull << 63,
    UINT64_MAX - 31,
    UINT64_MAX - 3,
    UINT64_MAX,
};

static char temp_path[] = "/tmp/sluice-hostile-XXXXXX";

static void write_file(const sl_gguf_build *b)
{
    FILE *file = fopen(temp_path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(b->data, 1, b->n_bytes, file), b->n_bytes);
    fclose(file);
}

/* True when the file was accepted; then it must also evaluate. */
static bool try_file(const char *what)
{
    sl_error err = {0};
    sl_engine_params params = sl_engine_params_default();
    params.n_threads = 1;
    params.max_rows = 4;
    sl_engine *engine = NULL;
    size_t blocks = sl_mem_get_stats().blocks;
    sl_status status = sl_engine_open(temp_path, &params, &engine, &err);
    if (status != SL_OK) {
        if (strlen(err.message) < 10 || !strstr(err.message, "sluice-hostile"))
            fail_msg("%s: the sentence does not name the file: %s", what, err.message);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
        return false;
    }
    sl_state *state = NULL;
    uint32_t context = sl_engine_config(engine)->context_length;
    if (sl_state_create(engine, context < 8 ? context : 8, &state, &err) == SL_OK) {
        static const int32_t tokens[4] = {0, 1, 2, 3};
        sl_eval_item item = {.state = state, .tokens = tokens, .n_tokens = 4};
        if (context < 4)
            item.n_tokens = context;
        status = sl_engine_eval(engine, &item, 1, NULL, &err);
        if (status != SL_OK && status != SL_ERR_NUMERIC)
            fail_msg("%s: evaluating: %s", what, err.message);
        sl_state_free(state);
    }
    sl_engine_close(engine);
    return true;
}

static void put(uint8_t *at, uint64_t value, size_t width)
{
    for (size_t i = 0; i < width; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static void check_model(const char *name, size_t *cases, size_t *accepted)
{
    sl_gguf_build b;
    sl_gguf_build_read(&b, sl_model_path(name));
    sl_gguf_fields fields;
    sl_gguf_fields_init(&fields, b.data, b.n_bytes);
    for (size_t i = 0; i < fields.n; i++) {
        const sl_gguf_field *field = &fields.at[i];
        /* Container fields are varied in test_gguf_hostile; here those that change meaning. */
        if (field->kind != SL_FIELD_VALUE && field->kind != SL_FIELD_VALUE_TYPE &&
            field->kind != SL_FIELD_NE && field->kind != SL_FIELD_GGML_TYPE)
            continue;
        uint8_t original[8];
        memcpy(original, b.data + field->offset, field->width);
        for (size_t v = 0; v < SL_COUNTOF(boundary_values); v++) {
            char what[160];
            snprintf(what, sizeof what, "%s: %.*s at %zu = %llu", name, (int)field->n_name,
                     field->name ? field->name : "", field->offset,
                     (unsigned long long)boundary_values[v]);
            put(b.data + field->offset, boundary_values[v], field->width);
            write_file(&b);
            *accepted += try_file(what);
            ++*cases;
        }
        memcpy(b.data + field->offset, original, field->width);
    }
    sl_gguf_fields_free(&fields);
    sl_gguf_build_free(&b);
}

static void test_fields_with_boundary_values(void **state)
{
    (void)state;
    size_t cases = 0, accepted = 0;
    check_model("rand-r1-q8_0.gguf", &cases, &accepted);
    check_model("rand-moe-q8_0.gguf", &cases, &accepted);
    print_message("%zu changed files, %zu of them harmless\n", cases, accepted);
    assert_true(cases > 3000);
    assert_true(accepted > 0 && accepted < cases);
}

/* Hyper-parameters under every value type. */
static void test_wrong_types(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "block_count",          "context_length",          "embedding_length",
        "feed_forward_length",  "attention.head_count",    "attention.head_count_kv",
        "attention.key_length", "attention.value_length",  "attention.layer_norm_rms_epsilon",
        "rope.freq_base",       "rope.dimension_count",    "ssm.conv_kernel",
        "ssm.state_size",       "ssm.group_count",         "ssm.time_step_rank",
        "ssm.inner_size",       "full_attention_interval", "attention.recurrent_layers",
    };
    static const uint8_t payload[32] = {1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    static const struct {
        uint32_t type;
        size_t n_bytes;
    } types[] = {{0, 1}, {1, 1}, {2, 2},  {3, 2},  {4, 4},  {5, 4}, {6, 4},
                 {7, 1}, {8, 9}, {9, 12}, {10, 8}, {11, 8}, {12, 8}};
    size_t refused = 0, cases = 0;
    for (size_t k = 0; k < SL_COUNTOF(keys); k++) {
        char key[64];
        snprintf(key, sizeof key, "qwen35.%s", keys[k]);
        for (size_t t = 0; t < SL_COUNTOF(types); t++) {
            sl_gguf_build b;
            sl_gguf_build_read(&b, sl_model_path("rand-r1-q8_0.gguf"));
            /* An array of type 0 with no items, a string of one byte, a one otherwise. */
            uint8_t value[32];
            memcpy(value, payload, sizeof value);
            if (types[t].type == 9)
                value[0] = 0;
            sl_gguf_build_replace_key(&b, key, types[t].type, value, types[t].n_bytes);
            write_file(&b);
            refused += !try_file(key);
            cases++;
            sl_gguf_build_free(&b);
        }
    }
    print_message("%zu of %zu wrong types refused\n", refused, cases);
    assert_true(refused > cases / 2);
}

static int make_temp(void **state)
{
    (void)state;
    int fd = mkstemp(temp_path);
    if (fd < 0)
        return -1;
    close(fd);
    return 0;
}

static int remove_temp(void **state)
{
    (void)state;
    return unlink(temp_path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields_with_boundary_values),
        cmocka_unit_test(test_wrong_types),
    };
    return cmocka_run_group_tests(tests, make_temp, remove_temp);
}
