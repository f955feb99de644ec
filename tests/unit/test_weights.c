/* Opening models by path: both containers, split and sharded ones, what is refused, and what is
 * found beside the tensors. */
#include "support.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/mem.h"
#include "format/weights.h"
#include "gguf_build.h"
#include "model_build.h"

static const char gguf_path[] = "tests/data/models/rand-r1-bf16.gguf";
static const char hf_path[] = "tests/data/models/rand-r1";

static sl_weights *must_open(const char *path)
{
    sl_error err;
    sl_weights *weights;
    assert_ok(sl_weights_open(path, &weights, &err));
    assert_non_null(weights);
    return weights;
}

static void must_refuse(const char *path, sl_status status, const char *part)
{
    sl_error err;
    sl_weights *weights;
    size_t blocks = sl_mem_get_stats().blocks;
    assert_refused(sl_weights_open(path, &weights, &err), status, part);
    assert_null(weights);
    assert_int_equal(sl_mem_get_stats().blocks, blocks);
}

static void assert_why(const sl_weights *weights, const char *name, const char *part)
{
    char text[256];
    assert_null(sl_weights_find(weights, name));
    sl_weights_why_missing(weights, name, text, sizeof text);
    if (!strstr(text, part))
        print_error("%s: %s\n", name, text);
    assert_non_null(strstr(text, part));
}

/* A folder with a copy of the small Hugging Face model. */
static const char *make_hf(void)
{
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json", "chat_template.jinja"};
    const char *folder = sl_temp_make();
    for (size_t i = 0; i < SL_COUNTOF(names); i++)
        sl_copy_file(sl_path(hf_path, names[i]), sl_path(folder, names[i]));
    return folder;
}

/* ---- GGUF ---- */

static void check_gguf(const char *path)
{
    sl_weights *weights = must_open(path);
    assert_int_equal(sl_weights_container(weights), SL_CONTAINER_GGUF);
    assert_string_equal(sl_weights_path(weights), path);
    assert_int_equal(sl_weights_count(weights), 55);
    assert_null(sl_weights_at(weights, 55));
    const sl_tensor *conv = sl_weights_find(weights, "blk.2.ssm_conv1d.weight");
    assert_non_null(conv);
    assert_int_equal(conv->dtype, SL_F32);
    assert_int_equal(conv->n_dims, 2);
    assert_int_equal(conv->ne[0], 4);
    assert_int_equal(conv->ne[1], 768);
    assert_int_equal(conv->ne[2], 1);
    assert_int_equal(conv->n_bytes, 4 * 768 * sizeof(float));
    for (size_t i = 0; i < sl_weights_count(weights); i++) {
        const sl_tensor *tensor = sl_weights_at(weights, i);
        assert_non_null(tensor->data);
        assert_ptr_equal(sl_weights_find(weights, tensor->name), tensor);
        assert_true(sl_weights_has(weights, tensor->name));
    }
    assert_false(sl_weights_has(weights, "output.weight"));
    assert_why(weights, "output.weight", "is not in ");
    assert_why(weights, "", "is not in ");
    assert_non_null(sl_weights_gguf(weights));
    assert_null(sl_weights_config(weights));
    assert_null(sl_weights_generation_config(weights));
    assert_null(sl_weights_tokenizer(weights));
    assert_null(sl_weights_tokenizer_config(weights));
    assert_int_equal(sl_weights_chat_template(weights).n_bytes, 4729);
    sl_error err;
    assert_ok(sl_weights_check(weights, &err));
    sl_weights_close(weights);
}

static void test_gguf(void **state)
{
    (void)state;
    check_gguf(gguf_path);
    const char *folder = sl_temp_make();
    const char *blob = sl_path(folder, "sha256-0123456789abcdef");
    sl_copy_file(gguf_path, blob);
    check_gguf(blob);
    sl_temp_remove(folder);
}

static void test_unusable_types(void **state)
{
    (void)state;
    const char *folder = sl_temp_make(), *path = sl_path(folder, "x.gguf");
    sl_gguf_build b;
    sl_gguf_build_read(&b, gguf_path);
    sl_gguf_build_change(&b, SL_FIELD_GGML_TYPE, "blk.0.attn_qkv.weight", 0, 17);
    sl_gguf_build_change(&b, SL_FIELD_GGML_TYPE, "blk.1.attn_qkv.weight", 0, 9999);
    sl_write_file(path, b.data, b.n_bytes);
    sl_gguf_build_free(&b);
    sl_weights *weights = must_open(path);
    assert_int_equal(sl_weights_count(weights), 53);
    assert_true(sl_weights_has(weights, "blk.0.attn_qkv.weight"));
    assert_why(weights, "blk.0.attn_qkv.weight", "has type IQ2_XS, which sluice cannot use");
    assert_why(weights, "blk.1.attn_qkv.weight", "has the unknown type 9999");
    sl_weights_close(weights);
    sl_temp_remove(folder);

    sl_test_model model;
    sl_test_model_read(&model, hf_path);
    folder = sl_temp_make();
    snprintf(sl_test_model_get(&model, "model.language_model.layers.0.mlp.up_proj.weight")->type,
             16, "I16");
    uint64_t ne[5] = {2, 2, 2, 2, 2};
    sl_test_model_add(&model, "model.visual.patch_embed.proj.weight", SL_BF16, 5, ne);
    sl_test_model_write_hf(&model, folder);
    weights = must_open(folder);
    assert_int_equal(sl_weights_count(weights), 54);
    assert_why(weights, "model.language_model.layers.0.mlp.up_proj.weight",
               "has type I16, which sluice cannot use");
    assert_why(weights, "model.visual.patch_embed.proj.weight", "has 5 dimensions");
    sl_weights_close(weights);
    sl_temp_remove(folder);
    sl_test_model_free(&model);
}

/* ---- split GGUF ---- */

enum { N_PARTS = 3 };

static void part_name(char name[64], unsigned number, unsigned count)
{
    snprintf(name, 64, "m-%05u-of-%05u.gguf", number, count);
}

/* Splits the small model over three files, with split.* as metadata and a template in the first.
 * change(b, i) may spoil the metadata of part i. */
static const char *make_split(void (*change)(sl_gguf_build *b, unsigned i))
{
    const char *folder = sl_temp_make();
    sl_test_model whole;
    sl_test_model_read(&whole, gguf_path);
    for (unsigned i = 0; i < N_PARTS; i++) {
        size_t begin = whole.n_tensors * i / N_PARTS, end = whole.n_tensors * (i + 1) / N_PARTS;
        sl_test_model part = {.tensors = whole.tensors + begin, .n_tensors = end - begin};
        sl_gguf_build b;
        sl_gguf_build_init(&b, 3);
        sl_gguf_build_key_bits(&b, "split.no", SL_GGUF_U16, i);
        sl_gguf_build_key_bits(&b, "split.count", SL_GGUF_U16, N_PARTS);
        if (i == 0) {
            sl_gguf_build_key_bits(&b, "split.tensors.count", SL_GGUF_I32, whole.n_tensors);
            sl_gguf_build_key_string(&b, "tokenizer.chat_template", "hello");
        }
        if (change)
            change(&b, i);
        part.gguf = b.data;
        part.n_gguf = b.n_bytes;
        char name[64];
        part_name(name, i + 1, N_PARTS);
        sl_test_model_write_gguf(&part, sl_path(folder, name));
        sl_gguf_build_free(&b);
    }
    sl_test_model_free(&whole);
    return folder;
}

static void test_split(void **state)
{
    (void)state;
    const char *folder = make_split(NULL);
    for (unsigned opened = 1; opened <= N_PARTS; opened++) {
        char name[64];
        part_name(name, opened, N_PARTS);
        sl_weights *weights = must_open(sl_path(folder, name)), *whole = must_open(gguf_path);
        assert_int_equal(sl_weights_count(weights), sl_weights_count(whole));
        for (size_t i = 0; i < sl_weights_count(whole); i++) {
            const sl_tensor *expected = sl_weights_at(whole, i);
            const sl_tensor *found = sl_weights_find(weights, expected->name);
            assert_non_null(found);
            assert_int_equal(found->n_bytes, expected->n_bytes);
            assert_memory_equal(found->data, expected->data, expected->n_bytes);
        }
        assert_true(sl_str_is(sl_weights_chat_template(weights), "hello"));
        assert_true(sl_gguf_has(sl_weights_gguf(weights), "tokenizer.chat_template"));
        sl_weights_close(weights);
        sl_weights_close(whole);
    }
    sl_temp_remove(folder);
}

static void wrong_number(sl_gguf_build *b, unsigned i)
{
    if (i == 1)
        sl_gguf_build_change(b, SL_FIELD_VALUE, "split.no", 0, 2);
}

static void wrong_count(sl_gguf_build *b, unsigned i)
{
    if (i == 2)
        sl_gguf_build_change(b, SL_FIELD_VALUE, "split.count", 0, 2);
}

static void wrong_total(sl_gguf_build *b, unsigned i)
{
    if (i == 0)
        sl_gguf_build_change(b, SL_FIELD_VALUE, "split.tensors.count", 0, 54);
}

static void wrong_type(sl_gguf_build *b, unsigned i)
{
    if (i == 2)
        sl_gguf_build_replace_key(b, "split.no", SL_GGUF_F32, "\0\0\0\0", 4);
}

static void no_number(sl_gguf_build *b, unsigned i)
{
    if (i == 1)
        sl_gguf_build_remove_key(b, "split.no");
}

static void too_many(sl_gguf_build *b, unsigned i)
{
    if (i == 0)
        sl_gguf_build_change(b, SL_FIELD_VALUE, "split.count", 0, 1025);
}

static void test_split_refused(void **state)
{
    (void)state;
    static const struct refused {
        void (*change)(sl_gguf_build *b, unsigned i);
        sl_status status;
        const char *part;
    } cases[] = {
        {wrong_number, SL_ERR_FORMAT, "its name says part 2 of 3"},
        {wrong_count, SL_ERR_FORMAT, "split.count is 2, but its name says part 3 of 3"},
        {wrong_total, SL_ERR_FORMAT, "split.tensors.count is 54, but its 3 parts hold 55"},
        {wrong_type, SL_ERR_FORMAT, "split.no"},
        {no_number, SL_ERR_FORMAT, "split.no"},
        {too_many, SL_ERR_LIMIT, "split.count is 1025"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        const char *folder = make_split(cases[i].change);
        must_refuse(sl_path(folder, "m-00001-of-00003.gguf"), cases[i].status, cases[i].part);
        sl_temp_remove(folder);
    }

    const char *folder = make_split(NULL);
    sl_copy_file(sl_path(folder, "m-00002-of-00003.gguf"), sl_path(folder, "other.gguf"));
    must_refuse(sl_path(folder, "other.gguf"), SL_ERR_FORMAT,
                "one of 3 parts; its name must end in -00001-of-00003.gguf");
    sl_copy_file(sl_path(folder, "m-00002-of-00003.gguf"),
                 sl_path(folder, "m-00002-of-00004.gguf"));
    must_refuse(sl_path(folder, "m-00002-of-00004.gguf"), SL_ERR_FORMAT, "one of 3 parts");
    sl_copy_file(sl_path(folder, "m-00002-of-00003.gguf"),
                 sl_path(folder, "m-00004-of-00003.gguf"));
    must_refuse(sl_path(folder, "m-00004-of-00003.gguf"), SL_ERR_FORMAT, "one of 3 parts");
    sl_copy_file(sl_path(folder, "m-00002-of-00003.gguf"),
                 sl_path(folder, "m-0000x-of-00003.gguf"));
    must_refuse(sl_path(folder, "m-0000x-of-00003.gguf"), SL_ERR_FORMAT, "one of 3 parts");
    /* The same tensors twice. */
    sl_test_model model;
    sl_gguf_build b;
    sl_test_model_read(&model, gguf_path);
    sl_gguf_build_init(&b, 3);
    sl_gguf_build_key_bits(&b, "split.no", SL_GGUF_U16, 1);
    sl_gguf_build_key_bits(&b, "split.count", SL_GGUF_U16, N_PARTS);
    free(model.gguf);
    model.gguf = b.data;
    model.n_gguf = b.n_bytes;
    sl_test_model_write_gguf(&model, sl_path(folder, "m-00002-of-00003.gguf"));
    sl_test_model_free(&model);
    must_refuse(sl_path(folder, "m-00003-of-00003.gguf"), SL_ERR_FORMAT, "split.tensors.count");
    assert_int_equal(unlink(sl_path(folder, "m-00002-of-00003.gguf")), 0);
    must_refuse(sl_path(folder, "m-00003-of-00003.gguf"), SL_ERR_IO, "part 2 of 3: ");
    must_refuse(sl_path(folder, "m-00001-of-00003.gguf"), SL_ERR_IO, "m-00002-of-00003.gguf");
    sl_temp_remove(folder);
}

static void no_total(sl_gguf_build *b, unsigned i)
{
    if (i == 0)
        sl_gguf_build_remove_key(b, "split.tensors.count");
}

static void test_split_with_a_tensor_twice(void **state)
{
    (void)state;
    const char *folder = make_split(no_total);
    sl_test_model part;
    sl_test_model_read(&part, sl_path(folder, "m-00001-of-00003.gguf"));
    sl_gguf_build b;
    sl_gguf_build_init(&b, 3);
    sl_gguf_build_key_bits(&b, "split.no", SL_GGUF_U16, 2);
    sl_gguf_build_key_bits(&b, "split.count", SL_GGUF_U16, N_PARTS);
    free(part.gguf);
    part.gguf = b.data;
    part.n_gguf = b.n_bytes;
    sl_test_model_write_gguf(&part, sl_path(folder, "m-00003-of-00003.gguf"));
    sl_test_model_free(&part);
    must_refuse(sl_path(folder, "m-00001-of-00003.gguf"), SL_ERR_FORMAT, "occurs twice (");
    sl_temp_remove(folder);
}

/* ---- folders ---- */

static void test_folder(void **state)
{
    (void)state;
    sl_weights *weights = must_open(hf_path);
    assert_int_equal(sl_weights_container(weights), SL_CONTAINER_HF);
    assert_int_equal(sl_weights_count(weights), 55);
    const sl_tensor *conv =
        sl_weights_find(weights, "model.language_model.layers.2.linear_attn.conv1d.weight");
    assert_non_null(conv);
    assert_int_equal(conv->n_dims, 3);
    assert_int_equal(conv->ne[0], 4);
    assert_int_equal(conv->ne[1], 1);
    assert_int_equal(conv->ne[2], 768);
    assert_null(sl_weights_gguf(weights));
    assert_non_null(json_object_get(sl_weights_config(weights), "text_config"));
    assert_non_null(json_object_get(sl_weights_tokenizer(weights), "model"));
    assert_non_null(json_object_get(sl_weights_tokenizer_config(weights), "eos_token"));
    assert_null(sl_weights_generation_config(weights));
    assert_int_equal(sl_weights_chat_template(weights).n_bytes, 4729);
    sl_weights_close(weights);

    const char *folder = make_hf();
    char slashes[128];
    snprintf(slashes, sizeof slashes, "%s//", folder);
    weights = must_open(slashes);
    assert_int_equal(sl_weights_count(weights), 55);
    sl_weights_close(weights);
    sl_temp_remove(folder);
}

static void test_chat_template_sources(void **state)
{
    (void)state;
    const char *folder = make_hf();
    const char *config = sl_path(folder, "tokenizer_config.json");
    assert_int_equal(unlink(sl_path(folder, "chat_template.jinja")), 0);
    static const struct source {
        const char *config, *expected;
    } cases[] = {
        {"{}", ""},
        {"{\"chat_template\": \"one\"}", "one"},
        {"{\"chat_template\": \"one\", \"model_max_length\": 1000000000000000019884624838656}",
         "one"},
        {"{\"chat_template\": 12345678901234567890}", ""},
        {"{\"chat_template\": null}", ""},
        {"{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"two\"}, {\"name\": "
         "\"default\", \"template\": \"three\"}]}",
         "three"},
        {"{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"two\"}]}", ""},
        {"{\"chat_template\": [1, {\"name\": \"default\", \"template\": 5}]}", ""},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_write_text(config, cases[i].config);
        sl_weights *weights = must_open(folder);
        sl_str text = sl_weights_chat_template(weights);
        assert_non_null(text.data);
        assert_true(sl_str_is(text, cases[i].expected));
        sl_weights_close(weights);
    }
    assert_int_equal(unlink(config), 0);
    sl_weights *weights = must_open(folder);
    assert_null(sl_weights_tokenizer_config(weights));
    assert_int_equal(sl_weights_chat_template(weights).n_bytes, 0);
    sl_weights_close(weights);
    sl_temp_remove(folder);
}

/* Two shards; returns the folder. index == NULL writes the right index. */
static const char *make_shards(const char *index)
{
    const char *folder = sl_temp_make();
    sl_test_model model;
    sl_test_model_read(&model, hf_path);
    size_t half = model.n_tensors / 2;
    sl_copy_file(sl_path(hf_path, "config.json"), sl_path(folder, "config.json"));
    sl_test_model_write_shard(&model, 0, half, sl_path(folder, "a.safetensors"));
    sl_test_model_write_shard(&model, half, model.n_tensors, sl_path(folder, "b.safetensors"));
    json_t *map = json_object();
    for (size_t i = 0; i < model.n_tensors; i++)
        json_object_set_new(map, model.tensors[i].name,
                            json_string(i < half ? "a.safetensors" : "b.safetensors"));
    json_t *root = json_pack("{s:{s:i}, s:o}", "metadata", "total_size", 1, "weight_map", map);
    char *text = json_dumps(root, 0);
    sl_write_text(sl_path(folder, "model.safetensors.index.json"), index ? index : text);
    free(text);
    json_decref(root);
    sl_test_model_free(&model);
    return folder;
}

static void test_shards(void **state)
{
    (void)state;
    const char *folder = make_shards(NULL);
    sl_weights *weights = must_open(folder), *whole = must_open(hf_path);
    assert_int_equal(sl_weights_count(weights), sl_weights_count(whole));
    for (size_t i = 0; i < sl_weights_count(whole); i++) {
        const sl_tensor *expected = sl_weights_at(whole, i);
        const sl_tensor *found = sl_weights_find(weights, expected->name);
        assert_non_null(found);
        assert_int_equal(found->dtype, expected->dtype);
        assert_memory_equal(found->data, expected->data, expected->n_bytes);
    }
    sl_weights_close(weights);
    sl_weights_close(whole);
    assert_int_equal(unlink(sl_path(folder, "b.safetensors")), 0);
    must_refuse(folder, SL_ERR_IO, "b.safetensors");
    sl_temp_remove(folder);

    /* Tensors that the index does not name are not part of the model. */
    folder = make_shards("{\"weight_map\": {\"model.language_model.norm.weight\": "
                         "\"b.safetensors\"}}");
    weights = must_open(folder);
    assert_int_equal(sl_weights_count(weights), 1);
    sl_weights_close(weights);
    sl_temp_remove(folder);
}

static void test_index_refused(void **state)
{
    (void)state;
    static const struct refused {
        const char *index;
        sl_status status;
        const char *part;
    } cases[] = {
        {"", SL_ERR_FORMAT, "model.safetensors.index.json"},
        {"[]", SL_ERR_FORMAT, "is not a JSON object"},
        {"{}", SL_ERR_FORMAT, "weight_map is missing"},
        {"{\"weight_map\": 3}", SL_ERR_FORMAT, "weight_map is missing or not an object"},
        {"{\"weight_map\": {}}", SL_ERR_FORMAT, "weight_map is empty"},
        {"{\"weight_map\": {\"x\": 1}}", SL_ERR_FORMAT, "weight_map.x must be the name of a file"},
        {"{\"weight_map\": {\"x\": null}}", SL_ERR_FORMAT, "weight_map.x must be"},
        {"{\"weight_map\": {\"x\": 12345678901234567890}}", SL_ERR_FORMAT, "found no string"},
        {"{\"weight_map\": {\"x\": \"\"}}", SL_ERR_FORMAT, "weight_map.x must be"},
        {"{\"weight_map\": {\"x\": \"../evil\"}}", SL_ERR_FORMAT, "found ../evil"},
        {"{\"weight_map\": {\"x\": \"..\"}}", SL_ERR_FORMAT, "found .."},
        {"{\"weight_map\": {\"x\": \"/etc/passwd\"}}", SL_ERR_FORMAT, "found /etc/passwd"},
        {"{\"weight_map\": {\"x\": \"a\\\\b\"}}", SL_ERR_FORMAT, "found a\\b"},
        {"{\"weight_map\": {\"x\": \"sub/a.safetensors\"}}", SL_ERR_FORMAT, "found sub/"},
        {"{\"weight_map\": {\"x\": \"c.safetensors\"}}", SL_ERR_IO, "c.safetensors"},
        {"{\"weight_map\": {\"x\": \"config.json\"}}", SL_ERR_FORMAT, "config.json"},
        {"{\"weight_map\": {\"x\": \"a.safetensors\"}}", SL_ERR_FORMAT,
         "x lies in a.safetensors, which does not hold it"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        const char *folder = make_shards(cases[i].index);
        must_refuse(folder, cases[i].status, cases[i].part);
        sl_temp_remove(folder);
    }

    json_t *map = json_object();
    for (int i = 0; i <= 1024; i++) {
        char name[32];
        snprintf(name, sizeof name, "f%d", i);
        json_object_set_new(map, name, json_string(name));
    }
    json_t *root = json_pack("{s:o}", "weight_map", map);
    char *text = json_dumps(root, 0);
    const char *folder = make_shards(text);
    must_refuse(folder, SL_ERR_LIMIT, "more than 1024 files");
    sl_temp_remove(folder);
    free(text);
    json_decref(root);
}

static void test_folder_refused(void **state)
{
    (void)state;
    const char *folder = sl_temp_make();
    must_refuse(folder, SL_ERR_UNSUPPORTED, "is a folder without config.json; a GGUF file or");
    sl_write_text(sl_path(folder, "z.gguf"), "GGUF");
    sl_write_text(sl_path(folder, "y.gguf"), "GGUF");
    must_refuse(folder, SL_ERR_UNSUPPORTED, "it holds y.gguf: give that file itself");
    sl_write_text(sl_path(folder, "config.json"), "{}");
    must_refuse(folder, SL_ERR_UNSUPPORTED,
                "neither model.safetensors.index.json nor model.safetensors");
    sl_write_text(sl_path(folder, "model-00001-of-00002.safetensors"), "");
    must_refuse(folder, SL_ERR_UNSUPPORTED, "neither ");
    sl_write_text(sl_path(folder, "model.safetensors"), "12345678");
    must_refuse(folder, SL_ERR_FORMAT, "model.safetensors");
    assert_int_equal(mkdir(sl_path(folder, "model.safetensors.index.json"), 0700), 0);
    must_refuse(folder, SL_ERR_IO, "model.safetensors.index.json");
    sl_temp_remove(folder);

    static const char *const names[] = {"config.json", "generation_config.json", "tokenizer.json",
                                        "tokenizer_config.json"};
    static const char *const texts[] = {
        "", "[]", "7", "{\"a\": 1", "{\"a\": 1, \"a\": 2}", "{\"a\": \"\xff\"}"};
    folder = make_hf();
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        const char *path = sl_path(folder, names[i]);
        for (size_t t = 0; t < SL_COUNTOF(texts); t++) {
            sl_write_text(path, texts[t]);
            sl_error err;
            sl_weights *weights;
            sl_status status = sl_weights_open(folder, &weights, &err);
            assert_refused(status, texts[t][0] ? SL_ERR_FORMAT : status, names[i]);
            assert_int_not_equal(status, SL_OK);
        }
        sl_write_text(path, "{}");
    }
    sl_weights_close(must_open(folder));
    sl_temp_remove(folder);
}

/* What a download cut short leaves behind: a link to nothing. It is not the same as no file. */
static void test_links_to_nothing(void **state)
{
    (void)state;
    static const char *const names[] = {"config.json",         "model.safetensors.index.json",
                                        "tokenizer.json",      "generation_config.json",
                                        "chat_template.jinja", "tokenizer_config.json"};
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        const char *folder = make_hf(), *path = sl_path(folder, names[i]);
        unlink(path);
        assert_int_equal(symlink("../blobs/0123", path), 0);
        must_refuse(folder, SL_ERR_IO, names[i]);
        unlink(path);
        assert_int_equal(symlink(names[i], path), 0); /* to itself */
        must_refuse(folder, SL_ERR_IO, names[i]);
        unlink(path);
        sl_temp_remove(folder);
    }
}

/* 300 KB that would become 13 MB. */
static void test_too_many_settings(void **state)
{
    (void)state;
    enum { N = 100000 };
    char *text = malloc(3 * N + 16);
    size_t n = (size_t)sprintf(text, "{\"a\": [");
    for (int i = 0; i < N; i++, n += 3)
        memcpy(text + n, "[],", 3);
    memcpy(text + n, "0]}", 4);
    static const char *const names[] = {"config.json", "generation_config.json"};
    const char *folder = make_hf();
    for (size_t i = 2; i-- > 0;) {
        sl_write_text(sl_path(folder, names[i]), text);
        must_refuse(folder, SL_ERR_LIMIT, "more than 65536 values");
    }
    sl_temp_remove(folder);
    free(text);
}

static void test_file_refused(void **state)
{
    (void)state;
    must_refuse("tests/data/models/rand-r1/model.safetensors", SL_ERR_UNSUPPORTED,
                "give the folder that holds it and config.json");
    must_refuse("tests/data/models/rand-r1/config.json", SL_ERR_UNSUPPORTED,
                "begins with the bytes 7b 0a 20 22, not with \"GGUF\"");
    must_refuse("tests/data/models/nothing.gguf", SL_ERR_IO, "tests/data/models/nothing.gguf");
    must_refuse("/dev/null", SL_ERR_IO, "/dev/null");
    must_refuse("", SL_ERR_IO, "");
    const char *folder = sl_temp_make();
    sl_write_text(sl_path(folder, "short"), "GGU");
    must_refuse(sl_path(folder, "short"), SL_ERR_UNSUPPORTED, "it has 3 bytes");
    sl_write_text(sl_path(folder, "header"), "GGUF");
    must_refuse(sl_path(folder, "header"), SL_ERR_FORMAT, "header");
    sl_copy_file("tests/data/models/rand-r1/model.safetensors", sl_path(folder, "blob"));
    must_refuse(sl_path(folder, "blob"), SL_ERR_UNSUPPORTED, "is a safetensors file");
    sl_temp_remove(folder);
}

/* ---- both ---- */

/* cmocka takes SIGBUS for itself while a test runs; main() notes the library's handler. */
static struct sigaction guard;

static void test_lost_file(void **state)
{
    (void)state;
    struct sigaction of_cmocka;
    assert_int_equal(sigaction(SIGBUS, &guard, &of_cmocka), 0);
    const char *folder = make_hf(), *path = sl_path(folder, "model.safetensors");
    sl_weights *weights = must_open(folder);
    sl_error err;
    assert_ok(sl_weights_check(weights, &err));
    assert_int_equal(truncate(path, 4096), 0);
    const sl_tensor *last = sl_weights_find(weights, "model.language_model.norm.weight");
    volatile uint8_t byte = last->data[last->n_bytes - 1];
    (void)byte;
    assert_refused(sl_weights_check(weights, &err), SL_ERR_IO, "model.safetensors");
    sl_weights_close(weights);
    assert_int_equal(sigaction(SIGBUS, &of_cmocka, NULL), 0);
    sl_temp_remove(folder);
}

static void fail_every_allocation(const char *path)
{
    size_t blocks = sl_mem_get_stats().blocks;
    for (int forever = 0; forever <= 1; forever++) {
        sl_status status = SL_ERR_MEMORY;
        for (uint64_t n = 1; status == SL_ERR_MEMORY; n++) {
            sl_error err;
            sl_weights *weights;
            sl_mem_fail_at(n, forever);
            status = sl_weights_open(path, &weights, &err);
            sl_mem_fail_at(0, false);
            assert_true((status == SL_OK) == (weights != NULL));
            sl_weights_close(weights);
            assert_int_equal(sl_mem_get_stats().blocks, blocks);
        }
        assert_int_equal(status, SL_OK);
    }
}

static void test_out_of_memory(void **state)
{
    (void)state;
    fail_every_allocation(gguf_path);
    fail_every_allocation(hf_path);
    const char *folder = make_split(NULL);
    fail_every_allocation(sl_path(folder, "m-00002-of-00003.gguf"));
    sl_temp_remove(folder);
    folder = make_shards(NULL);
    fail_every_allocation(folder);
    sl_temp_remove(folder);
}

int main(void)
{
    sl_weights *weights;
    if (sl_weights_open(gguf_path, &weights, NULL) == SL_OK)
        sl_weights_close(weights);
    sigaction(SIGBUS, NULL, &guard);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_unusable_types),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_refused),
        cmocka_unit_test(test_split_with_a_tensor_twice),
        cmocka_unit_test(test_folder),
        cmocka_unit_test(test_chat_template_sources),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_index_refused),
        cmocka_unit_test(test_folder_refused),
        cmocka_unit_test(test_links_to_nothing),
        cmocka_unit_test(test_too_many_settings),
        cmocka_unit_test(test_file_refused),
        cmocka_unit_test(test_lost_file),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
