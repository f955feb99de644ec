/* Hyper-parameters from both containers: right values, dialects, and the refusal of everything that
 * later code could divide by, index with or misread. */
#include "support.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gguf_build.h"
#include "model/config.h"
#include "model_build.h"
#include "numbers.h"

#define MODELS "tests/data/models/"

static sl_status load(const char *path, sl_config *config, sl_error *err)
{
    sl_weights *weights;
    sl_status status = sl_weights_open(path, &weights, err);
    if (status != SL_OK)
        return status;
    status = sl_config_load(weights, config, err);
    sl_weights_close(weights);
    return status;
}

static sl_config must_load(const char *path)
{
    sl_error err;
    sl_config config;
    assert_ok(load(path, &config, &err));
    return config;
}

/* ---- the models of the tree ---- */

static void check_pattern(const sl_config *config, const char *pattern)
{
    assert_int_equal(config->n_layers, strlen(pattern));
    uint32_t n_gdn = 0;
    for (uint32_t i = 0; i < config->n_layers; i++) {
        assert_int_equal(config->layer_kinds[i],
                         pattern[i] == 'G' ? SL_LAYER_GDN : SL_LAYER_ATTENTION);
        n_gdn += pattern[i] == 'G';
    }
    assert_int_equal(config->n_gdn_layers, n_gdn);
    assert_int_equal(config->n_attention_layers, config->n_layers - n_gdn);
}

/* 1e7^(-2i/64), rounded once. */
static const float plain_frequencies[32] = {
    0x1.000000p+0,  0x1.356656p-1,  0x1.75f034p-2,  0x1.c3f06cp-3,  0x1.111aeep-3,  0x1.4a12aep-4,
    0x1.8eec7ep-5,  0x1.e222ecp-6,  0x1.235a72p-6,  0x1.6020a4p-7,  0x1.a99428p-8,  0x1.012cfap-8,
    0x1.36d21ap-9,  0x1.77a7d8p-10, 0x1.c603c4p-11, 0x1.125c04p-11, 0x1.4b96bep-12, 0x1.90c182p-13,
    0x1.e459c6p-14, 0x1.24b0fep-14, 0x1.61bea2p-15, 0x1.ab8884p-16, 0x1.025b58p-16, 0x1.383f88p-17,
    0x1.796182p-18, 0x1.c8198cp-19, 0x1.139e96p-19, 0x1.4d1c98p-20, 0x1.9298acp-21, 0x1.e69338p-22,
    0x1.26091cp-22, 0x1.635e88p-23};

/* The same with YaRN: factor 4, original context 262144, beta 32 and 1 (computed in Python). */
static const float yarn_frequencies[32] = {
    0x1.000000p+0,  0x1.356656p-1,  0x1.75f034p-2,  0x1.c3f06cp-3,  0x1.111aeep-3,  0x1.4a12aep-4,
    0x1.8eec7ep-5,  0x1.e222ecp-6,  0x1.235a72p-6,  0x1.6020a4p-7,  0x1.a99428p-8,  0x1.012cfap-8,
    0x1.36d21ap-9,  0x1.77a7d8p-10, 0x1.c603c4p-11, 0x1.f146c8p-12, 0x1.0d6a7ap-12, 0x1.200b16p-13,
    0x1.2eb81cp-14, 0x1.36fc0cp-15, 0x1.3586cep-16, 0x1.25eddap-17, 0x1.025b58p-18, 0x1.383f88p-19,
    0x1.796182p-20, 0x1.c8198cp-21, 0x1.139e96p-21, 0x1.4d1c98p-22, 0x1.9298acp-23, 0x1.e69338p-24,
    0x1.26091cp-24, 0x1.635e88p-25};

static void check_common(const sl_config *c)
{
    assert_int_equal(c->hidden, 64);
    assert_int_equal(c->vocab, 512);
    assert_int_equal(c->context_length, 32768);
    assert_int_equal(c->n_mtp, 0);
    assert_int_equal(c->n_heads, 2);
    assert_int_equal(c->n_kv_heads, 1);
    assert_int_equal(c->head_dim, 256);
    assert_int_equal(c->rope_dim, 64);
    assert_int_equal(c->gdn_key_heads, 2);
    assert_int_equal(c->gdn_dim, 128);
    assert_int_equal(c->conv_taps, 4);
    assert_true(c->rms_eps == 1e-6f);
    assert_true(c->rope_scale == 1.0f);
    assert_same_floats(c->inv_freq, plain_frequencies, 32);
    check_pattern(c, "GGGA");
    assert_int_equal(c->n_stop_ids, 1);
    assert_int_equal(c->stop_ids[0], 505);
    assert_int_equal(c->bos_id, 503);
    assert_int_equal(c->pad_id, 503);
    assert_false(c->add_bos);
    const sl_sampling_defaults *s = &c->sampling;
    assert_false(s->has_temperature || s->has_top_k || s->has_top_p || s->has_min_p ||
                 s->has_typical_p || s->has_repetition_penalty || s->has_presence_penalty ||
                 s->has_frequency_penalty || s->has_penalty_window);
}

static void test_random_models(void **state)
{
    (void)state;
    static const struct expected {
        const char *path;
        sl_arch arch;
        uint32_t value_heads, ffn, n_experts, top_k, expert_ffn, shared_ffn;
        bool tied;
    } cases[] = {
        {MODELS "rand-r1", SL_ARCH_QWEN35, 2, 160, 0, 0, 0, 0, true},
        {MODELS "rand-r1-bf16.gguf", SL_ARCH_QWEN35, 2, 160, 0, 0, 0, 0, true},
        {MODELS "rand-r1-q8_0.gguf", SL_ARCH_QWEN35, 2, 160, 0, 0, 0, 0, true},
        {MODELS "rand-r3", SL_ARCH_QWEN35, 6, 128, 0, 0, 0, 0, false},
        {MODELS "rand-r3-bf16.gguf", SL_ARCH_QWEN35, 6, 128, 0, 0, 0, 0, false},
        {MODELS "rand-moe", SL_ARCH_QWEN35MOE, 4, 0, 8, 2, 32, 32, true},
        {MODELS "rand-moe-bf16.gguf", SL_ARCH_QWEN35MOE, 4, 0, 8, 2, 32, 32, true},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        const struct expected *e = &cases[i];
        sl_config c = must_load(e->path);
        bool gguf = strstr(e->path, ".gguf") != NULL;
        check_common(&c);
        assert_int_equal(c.arch, e->arch);
        assert_int_equal(c.gdn_value_heads, e->value_heads);
        assert_int_equal(sl_config_channels(&c), (4 + e->value_heads) * 128);
        assert_int_equal(c.ffn, e->ffn);
        assert_int_equal(c.n_experts, e->n_experts);
        assert_int_equal(c.top_k, e->top_k);
        assert_int_equal(c.expert_ffn, e->expert_ffn);
        assert_int_equal(c.shared_ffn, e->shared_ffn);
        assert_int_equal(c.tied, e->tied);
        assert_int_equal(c.pairing, gguf ? SL_PAIRING_TILED : SL_PAIRING_GROUPED);
        assert_int_equal(c.norm_plus_one, !gguf);
        assert_int_equal(c.a_log_raw, !gguf);
        assert_int_equal(c.hf_names == NULL, gguf);
    }
    assert_string_equal(must_load(MODELS "rand-r1").hf_names->model, "model.language_model.");
    assert_string_equal(must_load(MODELS "rand-r3").hf_names->model, "model.");
    assert_string_equal(sl_arch_name(SL_ARCH_QWEN35), "qwen35");
    assert_string_equal(sl_arch_name(SL_ARCH_QWEN35MOE), "qwen35moe");
    assert_string_equal(sl_arch_name(SL_ARCH_QWEN3NEXT), "qwen3next");
}

static void check_tiny(const char *path)
{
    sl_config c = must_load(path);
    check_pattern(&c, "GGGAGGGA");
    assert_int_equal(c.n_mtp, 1);
    assert_int_equal(c.hidden, 256);
    assert_int_equal(c.vocab, 2688);
    assert_int_equal(c.ffn, 768);
    assert_int_equal(c.stop_ids[0], 2652);
    assert_true(c.tied);
}

static void test_tiny(void **state)
{
    (void)state;
    check_tiny("models/tiny-q8_0.gguf");
    if (access("../shared/models/tiny-hf/config.json", R_OK) != 0)
        skip_because("../shared/models/tiny-hf is not there");
    check_tiny("../shared/models/tiny-hf");
}

/* ---- GGUF, changed ---- */

typedef struct gguf_case {
    sl_gguf_build b;
    const char *folder;
} gguf_case;

static gguf_case begin_gguf(const char *path)
{
    gguf_case c = {.folder = sl_temp_make()};
    sl_gguf_build_read(&c.b, path);
    return c;
}

static void set_u32(gguf_case *c, const char *key, uint32_t value)
{
    sl_gguf_build_replace_key(&c->b, key, SL_GGUF_U32, &value, sizeof value);
}

static void set_f32(gguf_case *c, const char *key, float value)
{
    sl_gguf_build_replace_key(&c->b, key, SL_GGUF_F32, &value, sizeof value);
}

/* The keys of a good file end where its first tensor begins; a new key is put in front of all. */
static void add_key(gguf_case *c, const char *key, uint32_t type, const void *value, size_t n_bytes)
{
    sl_gguf_build out;
    sl_gguf_fields fields;
    sl_gguf_fields_init(&fields, c->b.data, c->b.n_bytes);
    sl_gguf_build_copy(&out, c->b.data, 24);
    sl_gguf_build_key(&out, key, type);
    sl_gguf_build_bytes(&out, value, n_bytes);
    sl_gguf_build_bytes(&out, c->b.data + 24, fields.metadata_end - 24);
    sl_gguf_build_data(&out, fields.alignment, 0);
    sl_gguf_build_bytes(&out, c->b.data + fields.data_begin, c->b.n_bytes - fields.data_begin);
    sl_gguf_fields_free(&fields);
    sl_gguf_build_free(&c->b);
    c->b = out;
}

static void add_u32(gguf_case *c, const char *key, uint32_t value)
{
    add_key(c, key, SL_GGUF_U32, &value, sizeof value);
}

static void add_f32(gguf_case *c, const char *key, float value)
{
    add_key(c, key, SL_GGUF_F32, &value, sizeof value);
}

static void add_bool(gguf_case *c, const char *key, uint8_t value)
{
    add_key(c, key, SL_GGUF_BOOL, &value, 1);
}

/* A string of up to 64 bytes as the value of a new key, or of one that is replaced. */
static void put_string(gguf_case *c, const char *key, const char *value, bool replace)
{
    uint8_t bytes[8 + 64] = {(uint8_t)strlen(value)};
    memcpy(bytes + 8, value, strlen(value));
    if (replace)
        sl_gguf_build_replace_key(&c->b, key, SL_GGUF_STRING, bytes, 8 + strlen(value));
    else
        add_key(c, key, SL_GGUF_STRING, bytes, 8 + strlen(value));
}

static void set_array_u32(gguf_case *c, const char *key, const uint32_t *items, uint32_t n)
{
    uint32_t bytes[3 + 16] = {SL_GGUF_U32, n, 0};
    memcpy(bytes + 3, items, n * sizeof *items);
    sl_gguf_build_replace_key(&c->b, key, SL_GGUF_ARRAY, bytes, (3 + n) * sizeof *bytes);
}

static sl_status finish_gguf(gguf_case *c, sl_config *config, sl_error *err)
{
    const char *path = sl_path(c->folder, "x.gguf");
    sl_write_file(path, c->b.data, c->b.n_bytes);
    sl_gguf_build_free(&c->b);
    sl_status status = load(path, config, err);
    sl_temp_remove(c->folder);
    return status;
}

/* The key "ARCH.suffix" of the dense or the MoE model with that value is refused. */
static void test_gguf_values_refused(void **state)
{
    (void)state;
    static const struct refused {
        const char *path, *key;
        uint32_t value;
        sl_status status;
        const char *part;
    } cases[] = {
        {"r1", "block_count", 0, SL_ERR_FORMAT, "qwen35.block_count is 0, expected 1 to 1024"},
        {"r1", "block_count", 1025, SL_ERR_FORMAT, "qwen35.block_count is 1025"},
        {"r1", "block_count", UINT32_MAX, SL_ERR_FORMAT, "is 4294967295, expected 1 to 1024"},
        {"r1", "block_count", 5, SL_ERR_FORMAT, "recurrent_layers is an array of 4 entries"},
        {"r1", "context_length", 0, SL_ERR_FORMAT, "qwen35.context_length is 0"},
        {"r1", "context_length", UINT32_MAX, SL_ERR_FORMAT, "qwen35.context_length is"},
        {"r1", "embedding_length", 0, SL_ERR_FORMAT, "qwen35.embedding_length is 0"},
        {"r1", "embedding_length", 131073, SL_ERR_FORMAT, "expected 1 to 131072"},
        {"r1", "feed_forward_length", 0, SL_ERR_FORMAT, "qwen35.feed_forward_length is 0"},
        {"r1", "feed_forward_length", UINT32_MAX, SL_ERR_FORMAT, "feed_forward_length"},
        {"r1", "attention.head_count", 0, SL_ERR_FORMAT, "qwen35.attention.head_count is 0"},
        {"r1", "attention.head_count", 1025, SL_ERR_FORMAT, "attention.head_count is 1025"},
        {"r1", "attention.head_count_kv", 0, SL_ERR_FORMAT, "attention.head_count_kv is 0"},
        {"r1", "attention.head_count_kv", 3, SL_ERR_FORMAT,
         "qwen35.attention.head_count is 2, expected a multiple of qwen35.attention.head_count_kv, "
         "3"},
        {"r1", "attention.key_length", 128, SL_ERR_UNSUPPORTED,
         "qwen35.attention.key_length is 128, expected 256"},
        {"r1", "attention.value_length", 0, SL_ERR_UNSUPPORTED, "attention.value_length is 0"},
        {"r1", "ssm.conv_kernel", 3, SL_ERR_UNSUPPORTED, "qwen35.ssm.conv_kernel is 3, expected 4"},
        {"r1", "ssm.state_size", 0, SL_ERR_UNSUPPORTED, "qwen35.ssm.state_size is 0, expected 128"},
        {"r1", "ssm.state_size", 256, SL_ERR_UNSUPPORTED, "qwen35.ssm.state_size is 256"},
        {"r1", "ssm.group_count", 0, SL_ERR_FORMAT, "qwen35.ssm.group_count is 0"},
        {"r1", "ssm.group_count", 1025, SL_ERR_FORMAT, "qwen35.ssm.group_count is 1025"},
        {"r1", "ssm.group_count", 4, SL_ERR_FORMAT,
         "qwen35.ssm.time_step_rank is 2, expected a multiple of qwen35.ssm.group_count, 4"},
        {"r1", "ssm.time_step_rank", 0, SL_ERR_FORMAT, "qwen35.ssm.time_step_rank is 0"},
        {"r1", "ssm.time_step_rank", UINT32_MAX, SL_ERR_FORMAT, "ssm.time_step_rank is"},
        {"r1", "ssm.inner_size", 128, SL_ERR_FORMAT,
         "qwen35.ssm.inner_size is 128, expected 128 times qwen35.ssm.time_step_rank, 256"},
        {"r1", "ssm.inner_size", UINT32_MAX, SL_ERR_FORMAT, "qwen35.ssm.inner_size is"},
        {"r1", "full_attention_interval", 0, SL_ERR_FORMAT, "full_attention_interval is 0"},
        {"r1", "rope.dimension_count", 0, SL_ERR_FORMAT, "qwen35.rope.dimension_count is 0"},
        {"r1", "rope.dimension_count", 63, SL_ERR_FORMAT, "expected an even number, 2 to 256"},
        {"r1", "rope.dimension_count", 258, SL_ERR_FORMAT, "qwen35.rope.dimension_count is 258"},
        {"r1", "rope.dimension_count", UINT32_MAX, SL_ERR_FORMAT, "qwen35.rope.dimension_count"},
        {"moe", "expert_count", 0, SL_ERR_FORMAT, "qwen35moe.expert_count is 0, expected 1"},
        {"moe", "expert_count", 4097, SL_ERR_FORMAT, "qwen35moe.expert_count is 4097"},
        {"moe", "expert_used_count", 0, SL_ERR_FORMAT, "qwen35moe.expert_used_count is 0"},
        {"moe", "expert_used_count", 9, SL_ERR_FORMAT,
         "qwen35moe.expert_used_count is 9, expected at most qwen35moe.expert_count, 8"},
        {"moe", "expert_feed_forward_length", 0, SL_ERR_FORMAT, "expert_feed_forward_length is 0"},
        {"moe", "expert_feed_forward_length", UINT32_MAX, SL_ERR_FORMAT, "feed_forward_length"},
        {"moe", "expert_shared_feed_forward_length", 0, SL_ERR_FORMAT, "shared_feed_forward"},
        {"r1", "tokenizer.ggml.eos_token_id", 512, SL_ERR_FORMAT,
         "tokenizer.ggml.eos_token_id is 512, expected the id of a token, 0 to 511"},
        {"r1", "tokenizer.ggml.bos_token_id", 512, SL_ERR_FORMAT, "bos_token_id is 512"},
        {"r1", "tokenizer.ggml.padding_token_id", 1u << 31, SL_ERR_FORMAT, "padding_token_id is"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        bool moe = strcmp(cases[i].path, "moe") == 0;
        gguf_case c = begin_gguf(moe ? MODELS "rand-moe-q8_0.gguf" : MODELS "rand-r1-q8_0.gguf");
        char key[96];
        bool whole = strncmp(cases[i].key, "tokenizer.", 10) == 0;
        snprintf(key, sizeof key, "%s%s",
                 whole ? ""
                 : moe ? "qwen35moe."
                       : "qwen35.",
                 cases[i].key);
        set_u32(&c, key, cases[i].value);
        sl_config config;
        sl_error err;
        assert_refused(finish_gguf(&c, &config, &err), cases[i].status, cases[i].part);
        assert_non_null(strstr(err.message, "x.gguf"));
    }
}

static void test_gguf_reals_refused(void **state)
{
    (void)state;
    const struct refused {
        const char *key;
        float value;
    } cases[] = {
        {"qwen35.attention.layer_norm_rms_epsilon", 0.0f},
        {"qwen35.attention.layer_norm_rms_epsilon", -1e-6f},
        {"qwen35.attention.layer_norm_rms_epsilon", 1e30f},
        {"qwen35.attention.layer_norm_rms_epsilon", 1.0f / 0.0f},
        {"qwen35.attention.layer_norm_rms_epsilon", 0.0f / 0.0f},
        {"qwen35.rope.freq_base", 0.0f},
        {"qwen35.rope.freq_base", 1.0f},
        {"qwen35.rope.freq_base", -1e7f},
        {"qwen35.rope.freq_base", 1.0f / 0.0f},
        {"qwen35.rope.freq_base", 0.0f / 0.0f},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        gguf_case c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
        set_f32(&c, cases[i].key, cases[i].value);
        sl_config config;
        sl_error err;
        assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT, cases[i].key);
    }
}

/* Every key that is read, once missing and once with each kind of wrong type. Returns the number of
 * keys of which the absence is refused. */
static unsigned spoil_keys(const char *path, const char *const *keys, size_t n_keys)
{
    static const uint32_t array[] = {SL_GGUF_F32, 1, 0, 0}, strings[] = {SL_GGUF_STRING, 0, 0};
    static const struct wrong {
        uint32_t type;
        const void *value;
        size_t n_bytes;
    } wrongs[] = {
        {SL_GGUF_STRING, "\3\0\0\0\0\0\0\0one", 11},
        {SL_GGUF_ARRAY, array, sizeof array},
        {SL_GGUF_ARRAY, strings, sizeof strings},
        {SL_GGUF_I64, "\0\0\0\0\0\0\0\x80", 8},
        {SL_GGUF_I32, "\xfe\xff\xff\xff", 4},
        {SL_GGUF_U64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8},
        {SL_GGUF_F64, "\0\0\0\0\0\0\xf8\x7f", 8},
    };
    unsigned n_required = 0;
    for (size_t k = 0; k < n_keys; k++) {
        sl_config config;
        sl_error err;
        gguf_case c = begin_gguf(path);
        sl_gguf_build_remove_key(&c.b, keys[k]);
        sl_status status = finish_gguf(&c, &config, &err);
        if (status != SL_OK)
            assert_non_null(strstr(err.message, keys[k]));
        n_required += status != SL_OK;
        bool text = strcmp(keys[k], "general.architecture") == 0;
        for (size_t i = text ? 1 : 0; i < SL_COUNTOF(wrongs); i++) {
            c = begin_gguf(path);
            sl_gguf_build_replace_key(&c.b, keys[k], wrongs[i].type, wrongs[i].value,
                                      wrongs[i].n_bytes);
            status = finish_gguf(&c, &config, &err);
            if (status != SL_ERR_FORMAT)
                print_error("%s with value %zu: %s\n", keys[k], i, sl_status_name(status));
            assert_refused(status, SL_ERR_FORMAT, keys[k]);
        }
    }
    return n_required;
}

static void test_gguf_types_refused(void **state)
{
    (void)state;
    static const char *const dense[] = {
        "general.architecture",
        "qwen35.block_count",
        "qwen35.context_length",
        "qwen35.embedding_length",
        "qwen35.feed_forward_length",
        "qwen35.attention.head_count",
        "qwen35.attention.head_count_kv",
        "qwen35.rope.freq_base",
        "qwen35.attention.layer_norm_rms_epsilon",
        "qwen35.attention.key_length",
        "qwen35.attention.value_length",
        "qwen35.ssm.conv_kernel",
        "qwen35.ssm.state_size",
        "qwen35.ssm.group_count",
        "qwen35.ssm.time_step_rank",
        "qwen35.ssm.inner_size",
        "qwen35.full_attention_interval",
        "qwen35.rope.dimension_count",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.padding_token_id",
        "tokenizer.ggml.bos_token_id",
    };
    static const char *const moe[] = {
        "qwen35moe.expert_count",
        "qwen35moe.expert_used_count",
        "qwen35moe.expert_feed_forward_length",
        "qwen35moe.expert_shared_feed_forward_length",
    };
    assert_int_equal(spoil_keys(MODELS "rand-r1-q8_0.gguf", dense, SL_COUNTOF(dense)), 16);
    assert_int_equal(spoil_keys(MODELS "rand-moe-q8_0.gguf", moe, SL_COUNTOF(moe)), 4);
}

static void test_gguf_architectures(void **state)
{
    (void)state;
    static const struct refused {
        const char *name, *part;
    } cases[] = {
        {"qwen4exp", "qwen4exp, which sluice cannot run: it needs sparse attention"},
        {"llama", "general.architecture is llama, which sluice cannot run: only the hybrids"},
        {"qwen3", "qwen3, which"},
        {"qwen3moe", "qwen3moe, which"},
        {"qwen3_5", "qwen3_5, which"},
        {"qwen3", "qwen35, qwen35moe and qwen3next"},
        {"clip", "vision projector"},
        {"", "general.architecture is , which"},
        {"qwen35\n", "which sluice cannot run"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        gguf_case c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
        put_string(&c, "general.architecture", cases[i].name, true);
        sl_config config;
        sl_error err;
        assert_refused(finish_gguf(&c, &config, &err), SL_ERR_UNSUPPORTED, cases[i].part);
    }
    gguf_case c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    add_u32(&c, "qwen35.expert_count", 8);
    sl_config config;
    sl_error err;
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_UNSUPPORTED, "qwen35.expert_count is 8");
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    add_u32(&c, "qwen35.expert_count", 0);
    assert_ok(finish_gguf(&c, &config, &err));
    c = begin_gguf(MODELS "rand-moe-q8_0.gguf");
    add_f32(&c, "qwen35moe.expert_weights_scale", 2.5f);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_UNSUPPORTED,
                   "expert_weights_scale is 2.5");
}

static void test_gguf_layer_pattern(void **state)
{
    (void)state;
    static const char recurrent[] = "qwen35.attention.recurrent_layers";
    static const char kv[] = "qwen35.attention.head_count_kv";
    sl_config config;
    sl_error err;

    /* The interval alone, and none: every fourth layer. */
    gguf_case c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    sl_gguf_build_remove_key(&c.b, recurrent);
    set_u32(&c, "qwen35.full_attention_interval", 2);
    assert_ok(finish_gguf(&c, &config, &err));
    check_pattern(&config, "GAGA");
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    sl_gguf_build_remove_key(&c.b, recurrent);
    sl_gguf_build_remove_key(&c.b, "qwen35.full_attention_interval");
    assert_ok(finish_gguf(&c, &config, &err));
    check_pattern(&config, "GGGA");

    /* The flags win over the interval; they may count the MTP block or not. */
    c = begin_gguf("models/tiny-q8_0.gguf");
    set_u32(&c, "qwen35.full_attention_interval", 1);
    assert_ok(finish_gguf(&c, &config, &err));
    check_pattern(&config, "GGGAGGGA");
    static const uint32_t flags[] = {1, 0, 1, 0, 1, 0, 1, 0};
    c = begin_gguf("models/tiny-q8_0.gguf");
    set_array_u32(&c, recurrent, flags, 8);
    assert_ok(finish_gguf(&c, &config, &err));
    check_pattern(&config, "GAGAGAGA");
    c = begin_gguf("models/tiny-q8_0.gguf");
    set_array_u32(&c, recurrent, flags, 7);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT,
                   "recurrent_layers is an array of 7 entries, expected one per block, 9");
    static const uint32_t not_flags[] = {1, 0, 2, 0};
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    set_array_u32(&c, recurrent, not_flags, 4);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT, "entry 2 is not a truth value");
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    set_u32(&c, recurrent, 1);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT, recurrent);

    /* Heads per layer, as older files have them. */
    static const uint32_t heads[] = {0, 1, 0, 1}, unequal[] = {0, 1, 0, 2}, none[] = {0, 0, 0, 0};
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    sl_gguf_build_remove_key(&c.b, recurrent);
    set_array_u32(&c, kv, heads, 4);
    assert_ok(finish_gguf(&c, &config, &err));
    check_pattern(&config, "GAGA");
    assert_int_equal(config.n_kv_heads, 1);
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    set_array_u32(&c, kv, heads, 4);
    assert_ok(finish_gguf(&c, &config, &err));
    check_pattern(&config, "GGGA");
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    sl_gguf_build_remove_key(&c.b, recurrent);
    set_array_u32(&c, kv, unequal, 4);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_UNSUPPORTED, "must have the same number");
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    sl_gguf_build_remove_key(&c.b, recurrent);
    set_array_u32(&c, kv, heads, 3);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT, "an array of 3 entries");
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    set_array_u32(&c, kv, none, 4);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT, "head_count_kv is 0");
}

static void test_gguf_mtp_count(void **state)
{
    (void)state;
    sl_config config;
    sl_error err;
    gguf_case c = begin_gguf("models/tiny-q8_0.gguf");
    set_u32(&c, "qwen35.nextn_predict_layers", 0);
    assert_ok(finish_gguf(&c, &config, &err));
    assert_int_equal(config.n_layers, 9);
    assert_int_equal(config.n_mtp, 0);
    c = begin_gguf("models/tiny-q8_0.gguf");
    set_u32(&c, "qwen35.nextn_predict_layers", 2);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT,
                   "qwen35.nextn_predict_layers is 2, expected 0 to 1");
    c = begin_gguf("models/tiny-q8_0.gguf");
    set_u32(&c, "qwen35.block_count", 1);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT,
                   "expected less than qwen35.block_count, 1");
}

static void test_gguf_pairing(void **state)
{
    (void)state;
    sl_config config;
    sl_error err;
    for (uint8_t tiled = 0; tiled <= 1; tiled++) {
        gguf_case c = begin_gguf(MODELS "rand-r3-q8_0.gguf");
        add_bool(&c, "qwen35.ssm.v_head_reordered", tiled);
        assert_ok(finish_gguf(&c, &config, &err));
        assert_int_equal(config.pairing, tiled ? SL_PAIRING_TILED : SL_PAIRING_GROUPED);
    }
    gguf_case c = begin_gguf(MODELS "rand-r3-q8_0.gguf");
    add_u32(&c, "qwen35.ssm.v_head_reordered", 7);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT, "v_head_reordered");

    /* A mixture with the vocabulary of Qwen3-Next is ambiguous unless it says. */
    const char *folder = sl_temp_make(), *path = sl_path(folder, "next.gguf");
    const uint64_t ne[2] = {64, 151936};
    for (int with_key = 0; with_key <= 1; with_key++) {
        sl_test_model model;
        sl_test_model_read(&model, MODELS "rand-moe-q8_0.gguf");
        sl_test_model_remove(&model, "token_embd.weight");
        sl_test_model_add(&model, "token_embd.weight", SL_Q4_0, 2, ne);
        if (with_key) {
            gguf_case k = {.b = {model.gguf, model.n_gguf, model.n_gguf}};
            add_bool(&k, "qwen35moe.ssm.v_head_reordered", 0);
            model.gguf = k.b.data;
            model.n_gguf = k.b.n_bytes;
        }
        sl_test_model_write_gguf(&model, path);
        sl_test_model_free(&model);
        if (with_key) {
            assert_ok(load(path, &config, &err));
            assert_int_equal(config.pairing, SL_PAIRING_GROUPED);
            assert_int_equal(config.vocab, 151936);
        } else {
            assert_refused(load(path, &config, &err), SL_ERR_UNSUPPORTED,
                           "the order of the value heads is unknown");
        }
    }
    sl_temp_remove(folder);
}

static void test_gguf_embedding(void **state)
{
    (void)state;
    sl_config config;
    sl_error err;
    gguf_case c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    sl_gguf_build_change(&c.b, SL_FIELD_NE, "token_embd.weight", 1, 511);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT,
                   "tokenizer.ggml.tokens is an array of 512 tokens, but the embedding has only "
                   "511 rows");
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    sl_gguf_build_change(&c.b, SL_FIELD_GGML_TYPE, "token_embd.weight", 0, 17);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT,
                   "token_embd.weight has type IQ2_XS");

    sl_test_model model;
    const char *folder = sl_temp_make(), *path = sl_path(folder, "x.gguf");
    sl_test_model_read(&model, MODELS "rand-r1-q8_0.gguf");
    sl_test_model_rename(&model, "token_embd.weight", "other.weight");
    sl_test_model_write_gguf(&model, path);
    assert_refused(load(path, &config, &err), SL_ERR_FORMAT, "token_embd.weight is not in");
    const uint64_t flat[1] = {32768};
    sl_test_model_add(&model, "token_embd.weight", SL_F32, 1, flat);
    sl_test_model_write_gguf(&model, path);
    assert_refused(load(path, &config, &err), SL_ERR_FORMAT, "has 1 dimensions");
    sl_test_model_remove(&model, "token_embd.weight");
    const uint64_t tall[2] = {1, (1 << 22) + 1};
    sl_test_model_add(&model, "token_embd.weight", SL_F16, 2, tall);
    sl_test_model_write_gguf(&model, path);
    assert_refused(load(path, &config, &err), SL_ERR_FORMAT, "4194305 rows");
    sl_test_model_free(&model);
    sl_temp_remove(folder);
}

static void test_gguf_yarn(void **state)
{
    (void)state;
    sl_config config;
    sl_error err;
    gguf_case c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    put_string(&c, "qwen35.rope.scaling.type", "yarn", false);
    add_f32(&c, "qwen35.rope.scaling.factor", 4.0f);
    add_u32(&c, "qwen35.rope.scaling.original_context_length", 262144);
    assert_ok(finish_gguf(&c, &config, &err));
    assert_same_floats(config.inv_freq, yarn_frequencies, 32);
    assert_true(config.rope_scale == 0x1.237d38p+0f);
    assert_int_equal(config.context_length, 1048576);

    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    put_string(&c, "qwen35.rope.scaling.type", "none", false);
    assert_ok(finish_gguf(&c, &config, &err));
    assert_same_floats(config.inv_freq, plain_frequencies, 32);
    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    put_string(&c, "qwen35.rope.scaling.type", "linear", false);
    assert_refused(finish_gguf(&c, &config, &err), SL_ERR_UNSUPPORTED,
                   "qwen35.rope.scaling.type is linear, expected none or yarn");

    static const struct refused {
        const char *key;
        float value;
        sl_status status;
    } cases[] = {
        {"factor", 0.0f, SL_ERR_FORMAT},
        {"factor", 0.5f, SL_ERR_FORMAT},
        {"factor", -4.0f, SL_ERR_FORMAT},
        {"factor", 1e30f, SL_ERR_FORMAT},
        {"original_context_length", 0.0f, SL_ERR_FORMAT},
        {"original_context_length", 1e20f, SL_ERR_FORMAT},
        {"yarn_beta_fast", 0.5f, SL_ERR_FORMAT},
        {"yarn_beta_fast", 1e9f, SL_ERR_FORMAT},
        {"yarn_beta_slow", 0.0f, SL_ERR_FORMAT},
        {"yarn_beta_slow", -1.0f, SL_ERR_FORMAT},
        {"attn_factor", -1.0f, SL_ERR_FORMAT},
        {"attn_factor", 1e9f, SL_ERR_FORMAT},
        {"yarn_ext_factor", 0.0f, SL_ERR_UNSUPPORTED},
        {"yarn_attn_factor", 2.0f, SL_ERR_UNSUPPORTED},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        char key[96];
        snprintf(key, sizeof key, "qwen35.rope.scaling.%s", cases[i].key);
        c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
        put_string(&c, "qwen35.rope.scaling.type", "yarn", false);
        if (strcmp(cases[i].key, "factor") != 0)
            add_f32(&c, "qwen35.rope.scaling.factor", 4.0f);
        add_f32(&c, key, cases[i].value);
        assert_refused(finish_gguf(&c, &config, &err), cases[i].status, "qwen35.rope.scaling.");
    }
}

static void test_gguf_text_side(void **state)
{
    (void)state;
    sl_config config;
    sl_error err;
    gguf_case c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    add_u32(&c, "tokenizer.ggml.eot_token_id", 503);
    add_bool(&c, "tokenizer.ggml.add_bos_token", 1);
    set_u32(&c, "tokenizer.ggml.padding_token_id", UINT32_MAX);
    add_f32(&c, "general.sampling.temp", 0.6f);
    add_key(&c, "general.sampling.top_k", SL_GGUF_I32, "\x14\0\0\0", 4);
    add_f32(&c, "general.sampling.top_p", 0.95f);
    add_f32(&c, "general.sampling.min_p", 0.0f);
    add_f32(&c, "general.sampling.penalty_repeat", 1.1f);
    add_key(&c, "general.sampling.penalty_last_n", SL_GGUF_I32, "\x40\0\0\0", 4);
    assert_ok(finish_gguf(&c, &config, &err));
    assert_int_equal(config.n_stop_ids, 2);
    assert_int_equal(config.stop_ids[0], 505);
    assert_int_equal(config.stop_ids[1], 503);
    assert_true(config.add_bos);
    assert_int_equal(config.pad_id, -1);
    const sl_sampling_defaults *s = &config.sampling;
    assert_true(s->has_temperature && s->temperature == 0.6f);
    assert_true(s->has_top_k && s->top_k == 20);
    assert_true(s->has_top_p && s->top_p == 0.95f);
    assert_true(s->has_min_p && s->min_p == 0.0f);
    assert_true(s->has_repetition_penalty && s->repetition_penalty == 1.1f);
    assert_true(s->has_penalty_window && s->penalty_window == 64);
    assert_false(s->has_presence_penalty || s->has_frequency_penalty || s->has_typical_p);

    /* -1 tokens are all of them, and 0 tokens have no penalty. */
    for (int last_n = -1; last_n <= 0; last_n++) {
        c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
        add_f32(&c, "general.sampling.penalty_repeat", 1.1f);
        add_key(&c, "general.sampling.penalty_last_n", SL_GGUF_I32,
                last_n < 0 ? "\xff\xff\xff\xff" : "\0\0\0\0", 4);
        assert_ok(finish_gguf(&c, &config, &err));
        assert_int_equal(config.sampling.has_repetition_penalty, last_n < 0);
        assert_int_equal(config.sampling.penalty_window, 0);
    }

    c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
    add_u32(&c, "tokenizer.ggml.eot_token_id", 505);
    add_key(&c, "general.sampling.top_k", SL_GGUF_I32, "\xff\xff\xff\xff", 4);
    assert_ok(finish_gguf(&c, &config, &err));
    assert_int_equal(config.n_stop_ids, 1);
    assert_true(config.sampling.has_top_k && config.sampling.top_k == 0);

    static const struct refused {
        const char *key;
        float value;
    } cases[] = {
        {"general.sampling.temp", -1.0f},          {"general.sampling.temp", 1000.0f},
        {"general.sampling.top_k", 1e10f},         {"general.sampling.top_p", 1.5f},
        {"general.sampling.min_p", -0.1f},         {"general.sampling.penalty_repeat", -1.0f},
        {"general.sampling.penalty_last_n", -2.0f}};
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        c = begin_gguf(MODELS "rand-r1-q8_0.gguf");
        add_f32(&c, cases[i].key, cases[i].value);
        assert_refused(finish_gguf(&c, &config, &err), SL_ERR_FORMAT, cases[i].key);
    }
}

/* ---- Hugging Face, changed ---- */

/* Loads a model of the tree with one member of its configuration replaced (NULL removes it). where
 * is "root" or "text". */
static const char *hf_folder;

static sl_status load_changed(const char *model, const char *where, const char *key,
                              const char *value, sl_config *config, sl_error *err)
{
    char path[256];
    json_error_t ignored;
    snprintf(path, sizeof path, MODELS "%s/config.json", model);
    json_t *root = json_load_file(path, 0, &ignored);
    assert_non_null(root);
    json_t *text = json_object_get(root, "text_config");
    json_t *object = strcmp(where, "text") == 0 && text ? text : root;
    if (value) {
        json_t *json = json_loads(value, JSON_DECODE_ANY, &ignored);
        if (!json)
            print_error("bad value %s\n", value);
        assert_non_null(json);
        assert_int_equal(json_object_set_new(object, key, json), 0);
    } else {
        json_object_del(object, key);
    }
    char *dump = json_dumps(root, 0);
    /* jansson has no integers of this size. */
    for (char *big; (big = strstr(dump, "\"12345678901234567890\""));) {
        big[0] = ' ';
        big[21] = ' ';
    }
    sl_write_text(sl_path(hf_folder, "config.json"), dump);
    free(dump);
    json_decref(root);
    snprintf(path, sizeof path, MODELS "%s/model.safetensors", model);
    sl_copy_file(path, sl_path(hf_folder, "model.safetensors"));
    return load(hf_folder, config, err);
}

static int make_folder(void **state)
{
    (void)state;
    static char folder[64];
    snprintf(folder, sizeof folder, "%s", sl_temp_make());
    hf_folder = folder;
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    sl_temp_remove(hf_folder);
    return 0;
}

static void test_hf_values_refused(void **state)
{
    (void)state;
    static const struct refused {
        const char *model, *key, *value;
        sl_status status;
        const char *part;
    } cases[] = {
        {"rand-r1", "num_hidden_layers", "0", SL_ERR_FORMAT, "num_hidden_layers is 0"},
        {"rand-r1", "num_hidden_layers", "1025", SL_ERR_FORMAT, "expected 1 to 1024"},
        {"rand-r1", "num_hidden_layers", "5", SL_ERR_FORMAT, "layer_types is not an array with"},
        {"rand-r1", "hidden_size", "0", SL_ERR_FORMAT, "hidden_size is 0"},
        {"rand-r1", "intermediate_size", "0", SL_ERR_FORMAT, "intermediate_size is 0"},
        {"rand-r1", "intermediate_size", NULL, SL_ERR_FORMAT, "intermediate_size is 0"},
        {"rand-r1", "num_attention_heads", "0", SL_ERR_FORMAT, "num_attention_heads is 0"},
        {"rand-r1", "num_key_value_heads", "0", SL_ERR_FORMAT, "num_key_value_heads is 0"},
        {"rand-r1", "num_key_value_heads", "3", SL_ERR_FORMAT,
         "num_attention_heads is 2, expected a multiple of num_key_value_heads, 3"},
        {"rand-r1", "head_dim", "128", SL_ERR_UNSUPPORTED, "head_dim is 128, expected 256"},
        {"rand-r1", "linear_conv_kernel_dim", "2", SL_ERR_UNSUPPORTED, "linear_conv_kernel_dim"},
        {"rand-r1", "linear_key_head_dim", "64", SL_ERR_UNSUPPORTED, "linear_key_head_dim is 64"},
        {"rand-r1", "linear_value_head_dim", "0", SL_ERR_UNSUPPORTED, "linear_value_head_dim is 0"},
        {"rand-r1", "linear_num_key_heads", "0", SL_ERR_FORMAT, "linear_num_key_heads is 0"},
        {"rand-r1", "linear_num_value_heads", "3", SL_ERR_FORMAT,
         "linear_num_value_heads is 3, expected a multiple of linear_num_key_heads, 2"},
        {"rand-r1", "max_position_embeddings", "0", SL_ERR_FORMAT, "max_position_embeddings is 0"},
        {"rand-r1", "rms_norm_eps", "0", SL_ERR_FORMAT, "rms_norm_eps is 0"},
        {"rand-r1", "rms_norm_eps", "-1e-6", SL_ERR_FORMAT, "rms_norm_eps"},
        {"rand-r1", "mtp_num_hidden_layers", "2", SL_ERR_FORMAT, "mtp_num_hidden_layers is 2"},
        {"rand-r1", "num_experts", "8", SL_ERR_UNSUPPORTED, "num_experts is 8, expected none"},
        {"rand-r1", "hidden_act", "\"gelu\"", SL_ERR_UNSUPPORTED, "hidden_act is gelu"},
        {"rand-r1", "output_gate_type", "\"sigmoid\"", SL_ERR_UNSUPPORTED,
         "output_gate_type is sigmoid, expected silu"},
        {"rand-r1", "attention_bias", "true", SL_ERR_UNSUPPORTED, "attention_bias is true"},
        {"rand-r1", "attn_output_gate", "false", SL_ERR_UNSUPPORTED, "attn_output_gate is false"},
        {"rand-r1", "layer_types", "[1, 2, 3, 4]", SL_ERR_FORMAT, "entry 0 is no string"},
        {"rand-r1", "layer_types", "[\"12345678901234567890\", 2, 3, 4]", SL_ERR_FORMAT,
         "entry 0 is no string"},
        {"rand-r1", "num_hidden_layers", "\"12345678901234567890\"", SL_ERR_FORMAT,
         "12345678901234567890"},
        {"rand-r1", "eos_token_id", "\"12345678901234567890\"", SL_ERR_FORMAT, "neither an id nor"},
        {"rand-r1", "model_type", "\"12345678901234567890\"", SL_ERR_FORMAT, "model_type"},
        {"rand-r1", "layer_types",
         "[\"linear_attention\", \"sliding_attention\", \"full_attention\", \"full_attention\"]",
         SL_ERR_UNSUPPORTED, "layer_types is sliding_attention at entry 1"},
        {"rand-r1", "rope_parameters", "[]", SL_ERR_FORMAT, "rope_parameters is not an object"},
        {"rand-r1", "rope_parameters", NULL, SL_ERR_FORMAT, "rope_theta is missing"},
        {"rand-r1", "rope_parameters", "{\"rope_theta\": 1}", SL_ERR_FORMAT, "rope_theta is 1"},
        {"rand-r1", "rope_parameters", "{\"rope_theta\": 1e7, \"rope_type\": \"longrope\"}",
         SL_ERR_UNSUPPORTED, "rope_type is longrope, expected default or yarn"},
        {"rand-r1", "rope_parameters", "{\"rope_theta\": 1e7, \"rope_type\": 5}", SL_ERR_FORMAT,
         "rope_type"},
        {"rand-r1", "rope_parameters", "{\"rope_theta\": 1e7, \"partial_rotary_factor\": 0}",
         SL_ERR_FORMAT, "partial_rotary_factor is 0 rotated dimensions"},
        {"rand-r1", "rope_parameters", "{\"rope_theta\": 1e7, \"partial_rotary_factor\": 1.5}",
         SL_ERR_FORMAT, "partial_rotary_factor is 384"},
        {"rand-r1", "rope_parameters", "{\"rope_theta\": 1e7, \"partial_rotary_factor\": 0.26}",
         SL_ERR_FORMAT, "partial_rotary_factor"},
        {"rand-r1", "eos_token_id", "512", SL_ERR_FORMAT, "eos_token_id is 512"},
        {"rand-r1", "eos_token_id", "-1", SL_ERR_FORMAT, "eos_token_id is -1"},
        {"rand-r1", "eos_token_id", "[505, \"x\"]", SL_ERR_FORMAT, "eos_token_id is neither"},
        {"rand-r1", "eos_token_id", "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]",
         SL_ERR_LIMIT, "more than 16 end tokens"},
        {"rand-r1", "bos_token_id", "512", SL_ERR_FORMAT, "bos_token_id is 512"},
        {"rand-r1", "pad_token_id", "-2", SL_ERR_FORMAT, "pad_token_id is -2"},
        {"rand-r1", "model_type", "\"qwen4_exp\"", SL_ERR_UNSUPPORTED,
         "model_type is qwen4_exp, which sluice cannot run: it needs sparse attention"},
        {"rand-r1", "model_type", "\"llama\"", SL_ERR_UNSUPPORTED, "model_type is llama"},
        {"rand-r1", "model_type", "\"qwen3\"", SL_ERR_UNSUPPORTED, "model_type is qwen3"},
        {"rand-r1", "model_type", "\"qwen35\"", SL_ERR_UNSUPPORTED, "model_type is qwen35"},
        {"rand-r1", "model_type", "7", SL_ERR_FORMAT, "model_type"},
        {"rand-r3", "model_type", NULL, SL_ERR_FORMAT, "model_type is missing"},
        {"rand-r3", "text_config", "[]", SL_ERR_FORMAT, "text_config is not an object"},
        {"rand-moe", "num_experts", "0", SL_ERR_FORMAT, "num_experts is 0"},
        {"rand-moe", "num_experts", NULL, SL_ERR_FORMAT, "num_experts is 0"},
        {"rand-moe", "num_experts_per_tok", "9", SL_ERR_FORMAT,
         "num_experts_per_tok is 9, expected at most num_experts, 8"},
        {"rand-moe", "moe_intermediate_size", "0", SL_ERR_FORMAT, "moe_intermediate_size is 0"},
        {"rand-moe", "shared_expert_intermediate_size", "0", SL_ERR_FORMAT, "shared_expert_"},
        {"rand-moe", "norm_topk_prob", "false", SL_ERR_UNSUPPORTED, "norm_topk_prob is false"},
        {"rand-moe", "decoder_sparse_step", "2", SL_ERR_UNSUPPORTED, "decoder_sparse_step"},
        {"rand-moe", "mlp_only_layers", "[0]", SL_ERR_UNSUPPORTED, "mlp_only_layers"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_config config;
        sl_error err;
        assert_refused(
            load_changed(cases[i].model, "text", cases[i].key, cases[i].value, &config, &err),
            cases[i].status, cases[i].part);
        assert_non_null(strstr(err.message, "config.json"));
    }
}

/* Every member that is read, with values of every other type. */
static void test_hf_types_refused(void **state)
{
    (void)state;
    static const char *const integers[] = {
        "num_hidden_layers",      "mtp_num_hidden_layers",   "hidden_size",
        "num_attention_heads",    "num_key_value_heads",     "head_dim",
        "linear_conv_kernel_dim", "linear_key_head_dim",     "linear_value_head_dim",
        "linear_num_key_heads",   "linear_num_value_heads",  "full_attention_interval",
        "intermediate_size",      "max_position_embeddings", "decoder_sparse_step"};
    static const char *const moe_integers[] = {"num_experts", "num_experts_per_tok",
                                               "moe_intermediate_size",
                                               "shared_expert_intermediate_size"};
    static const char *const others[] = {
        "rms_norm_eps",    "tie_word_embeddings", "hidden_act",       "output_gate_type",
        "attention_bias",  "layer_types",         "attn_output_gate", "bos_token_id",
        "pad_token_id",    "eos_token_id",        "model_type",       "norm_topk_prob",
        "rope_parameters", "rope_scaling"};
    static const char *const not_integers[] = {
        "\"4\"", "[4]", "{}", "true", "4.0", "-1", "9223372036854775807"};
    static const char *const nothing[] = {"{\"a\": 1}", "[{}]", "-7.5", "\"\xE2\x82\xAC\""};
    sl_config config;
    sl_error err;
    for (size_t v = 0; v < SL_COUNTOF(not_integers); v++) {
        for (size_t i = 0; i < SL_COUNTOF(integers); i++) {
            sl_status status =
                load_changed("rand-r1", "text", integers[i], not_integers[v], &config, &err);
            if (status == SL_OK)
                print_error("%s = %s was accepted\n", integers[i], not_integers[v]);
            assert_true(status == SL_ERR_FORMAT || status == SL_ERR_UNSUPPORTED);
            assert_non_null(strstr(err.message, integers[i]));
        }
        for (size_t i = 0; i < SL_COUNTOF(moe_integers); i++)
            assert_refused(
                load_changed("rand-moe", "text", moe_integers[i], not_integers[v], &config, &err),
                SL_ERR_FORMAT, moe_integers[i]);
    }
    for (size_t v = 0; v < SL_COUNTOF(nothing); v++) {
        for (size_t i = 0; i < SL_COUNTOF(others); i++) {
            sl_status status =
                load_changed("rand-r1", "text", others[i], nothing[v], &config, &err);
            bool object = strncmp(others[i], "rope_", 5) == 0 && nothing[v][0] == '{';
            if (object && strcmp(others[i], "rope_scaling") == 0)
                assert_ok(status); /* has nothing that is read */
            else if (status == SL_OK)
                fail_msg("%s = %s was accepted", others[i], nothing[v]);
            else if (!object && !strstr(err.message, others[i]))
                fail_msg("%s = %s: %s", others[i], nothing[v], err.message);
        }
    }
}

static void test_hf_rope_places(void **state)
{
    (void)state;
    sl_config config;
    sl_error err;
    /* theta beside the model's other values, as older files have it; the factor has a default */
    assert_refused(load_changed("rand-r3", "root", "rope_parameters", "null", &config, &err),
                   SL_ERR_FORMAT, "rope_theta");
    assert_ok(
        load_changed("rand-r3", "root", "rope_parameters", "{\"rope_theta\": 1e7}", &config, &err));
    assert_int_equal(config.rope_dim, 64);
    assert_same_floats(config.inv_freq, plain_frequencies, 32);

    /* rope_scaling wins, and takes what it lacks from rope_parameters. */
    assert_ok(load_changed("rand-r3", "root", "rope_scaling",
                           "{\"type\": \"yarn\", \"factor\": 4.0, "
                           "\"original_max_position_embeddings\": 262144}",
                           &config, &err));
    assert_same_floats(config.inv_freq, yarn_frequencies, 32);
    assert_true(config.rope_scale == 0x1.237d38p+0f);
    assert_int_equal(config.context_length, 1048576);
    assert_ok(load_changed("rand-r3", "root", "rope_parameters",
                           "{\"rope_theta\": 1e7, \"rope_type\": \"yarn\", \"factor\": 4, "
                           "\"original_max_position_embeddings\": 262144, \"beta_fast\": 32, "
                           "\"beta_slow\": 1, \"attention_factor\": 1.5, \"truncate\": true}",
                           &config, &err));
    assert_same_floats(config.inv_freq, yarn_frequencies, 32);
    assert_true(config.rope_scale == 1.5f);
    assert_ok(load_changed("rand-r3", "root", "rope_scaling",
                           "{\"type\": \"mrope\", \"mrope_section\": [11, 11, 10]}", &config,
                           &err));
    assert_same_floats(config.inv_freq, plain_frequencies, 32);
    assert_refused(load_changed("rand-r3", "root", "rope_scaling",
                                "{\"rope_type\": \"yarn\", \"factor\": 0.0}", &config, &err),
                   SL_ERR_FORMAT, "YaRN with factor 0");
    assert_refused(load_changed("rand-r3", "root", "rope_scaling",
                                "{\"rope_type\": \"yarn\", \"factor\": 4, \"mscale\": 1}", &config,
                                &err),
                   SL_ERR_UNSUPPORTED, "YaRN with mscale");
    assert_refused(load_changed("rand-r3", "root", "rope_scaling",
                                "{\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": false}",
                                &config, &err),
                   SL_ERR_UNSUPPORTED, "YaRN with \"truncate\": false");
}

static void test_hf_layer_pattern(void **state)
{
    (void)state;
    sl_config config;
    sl_error err;
    assert_ok(load_changed("rand-r3", "root", "layer_types",
                           "[\"full_attention\", \"linear_attention\", \"linear_attention\", "
                           "\"full_attention\"]",
                           &config, &err));
    check_pattern(&config, "AGGA");
    assert_ok(load_changed("rand-r3", "root", "layer_types", "null", &config, &err));
    check_pattern(&config, "GGGA");
    assert_ok(load_changed("rand-r1", "text", "layer_types", NULL, &config, &err));
    check_pattern(&config, "GGGA");
}

static void test_hf_tying(void **state)
{
    (void)state;
    static const struct expected {
        const char *model, *where, *value;
        bool tied;
    } cases[] = {
        {"rand-r1", "root", NULL, true},    /* text says true */
        {"rand-r1", "text", NULL, true},    /* root says true */
        {"rand-r1", "root", "false", true}, /* they differ: there is no head */
        {"rand-r1", "text", "false", true},
        {"rand-r3", "root", NULL, false},  /* nobody says: there is a head */
        {"rand-r3", "root", "true", true}, /* a copy of the embedding is ignored */
        {"rand-r3", "root", "false", false},
        {"rand-moe", "root", NULL, true},
        {"rand-moe", "root", "false", false}, /* binding will miss the head */
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_config config;
        sl_error err;
        assert_ok(load_changed(cases[i].model, cases[i].where, "tie_word_embeddings",
                               cases[i].value, &config, &err));
        assert_int_equal(config.tied, cases[i].tied);
    }
}

static void test_hf_text_side(void **state)
{
    (void)state;
    sl_config config;
    sl_error err;
    assert_ok(load_changed("rand-r1", "text", "bos_token_id", "null", &config, &err));
    assert_int_equal(config.bos_id, -1);
    assert_ok(load_changed("rand-r1", "root", "eos_token_id", "[503, 505]", &config, &err));
    assert_int_equal(config.n_stop_ids, 2);
    assert_int_equal(config.stop_ids[0], 505);
    assert_int_equal(config.stop_ids[1], 503);
    assert_ok(load_changed("rand-r1", "text", "eos_token_id", NULL, &config, &err));
    assert_int_equal(config.n_stop_ids, 0);
    assert_ok(load_changed("rand-r1", "text", "output_gate_type", "\"swish\"", &config, &err));

    const char *generation = sl_path(hf_folder, "generation_config.json");
    sl_write_text(generation, "{\"eos_token_id\": [504, 505], \"temperature\": 0.7, \"top_k\": 20, "
                              "\"top_p\": 0.8, \"min_p\": 0, \"presence_penalty\": 1.5, "
                              "\"repetition_penalty\": 1.05, \"frequency_penalty\": 0.25, "
                              "\"typical_p\": 0.9, \"penalty_last_n\": \"not one of its keys\", "
                              "\"do_sample\": true}");
    assert_ok(load_changed("rand-r1", "text", "eos_token_id", "505", &config, &err));
    assert_int_equal(config.n_stop_ids, 2);
    assert_int_equal(config.stop_ids[1], 504);
    const sl_sampling_defaults *s = &config.sampling;
    assert_true(s->has_temperature && s->temperature == 0.7f);
    assert_true(s->has_top_k && s->top_k == 20);
    assert_true(s->has_top_p && s->top_p == 0.8f);
    assert_true(s->has_min_p && s->min_p == 0.0f);
    assert_true(s->has_presence_penalty && s->presence_penalty == 1.5f);
    assert_true(s->has_repetition_penalty && s->repetition_penalty == 1.05f);
    assert_true(s->has_frequency_penalty && s->frequency_penalty == 0.25f);
    assert_true(s->has_typical_p && s->typical_p == 0.9f);
    assert_false(s->has_penalty_window);

    sl_write_text(generation, "{\"do_sample\": false, \"temperature\": 0.7, \"top_p\": null}");
    assert_ok(load(hf_folder, &config, &err));
    assert_true(config.sampling.has_temperature && config.sampling.temperature == 0.0f);
    assert_false(config.sampling.has_top_p);

    static const char *const refused[] = {"{\"temperature\": -1}",
                                          "{\"temperature\": \"hot\"}",
                                          "{\"top_k\": 1e9}",
                                          "{\"top_p\": 2}",
                                          "{\"min_p\": []}",
                                          "{\"do_sample\": 1}",
                                          "{\"eos_token_id\": {}}",
                                          "{\"eos_token_id\": [512]}",
                                          "{\"presence_penalty\": 1000}",
                                          "{\"frequency_penalty\": -1000}",
                                          "{\"repetition_penalty\": -1}",
                                          "{\"typical_p\": 2}"};
    for (size_t i = 0; i < SL_COUNTOF(refused); i++) {
        sl_write_text(generation, refused[i]);
        assert_refused(load(hf_folder, &config, &err), SL_ERR_FORMAT, "generation_config.json");
    }
    assert_int_equal(unlink(generation), 0);
}

static void test_hf_names_and_conventions(void **state)
{
    (void)state;
    sl_config config;
    sl_error err;
    sl_test_model model;
    sl_test_model_read(&model, MODELS "rand-r1");
    /* MLX: another prefix, conv1d as [channels, 4, 1]. */
    for (size_t i = 0; i < model.n_tensors; i++) {
        sl_test_tensor *t = &model.tensors[i];
        char name[128];
        snprintf(name, sizeof name, "language_model.model.%s",
                 t->name + strlen("model.language_model."));
        snprintf(t->name, sizeof t->name, "%s", name);
        if (strstr(name, "conv1d")) {
            t->ne[0] = 1;
            t->ne[1] = 4;
        }
    }
    sl_test_model_write_hf(&model, hf_folder);
    assert_ok(load(hf_folder, &config, &err));
    assert_false(config.norm_plus_one);
    assert_true(config.a_log_raw);
    assert_string_equal(config.hf_names->model, "language_model.model.");
    assert_string_equal(config.hf_names->outer, "language_model.");

    sl_test_model_rename(&model, "language_model.model.embed_tokens.weight", "embed.weight");
    sl_test_model_write_hf(&model, hf_folder);
    assert_refused(load(hf_folder, &config, &err), SL_ERR_FORMAT, "holds no embedding");
    sl_test_model_free(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_random_models),
        cmocka_unit_test(test_tiny),
        cmocka_unit_test(test_gguf_values_refused),
        cmocka_unit_test(test_gguf_reals_refused),
        cmocka_unit_test(test_gguf_types_refused),
        cmocka_unit_test(test_gguf_architectures),
        cmocka_unit_test(test_gguf_layer_pattern),
        cmocka_unit_test(test_gguf_mtp_count),
        cmocka_unit_test(test_gguf_pairing),
        cmocka_unit_test(test_gguf_embedding),
        cmocka_unit_test(test_gguf_yarn),
        cmocka_unit_test(test_gguf_text_side),
        cmocka_unit_test(test_hf_values_refused),
        cmocka_unit_test(test_hf_types_refused),
        cmocka_unit_test(test_hf_rope_places),
        cmocka_unit_test(test_hf_layer_pattern),
        cmocka_unit_test(test_hf_tying),
        cmocka_unit_test(test_hf_text_side),
        cmocka_unit_test(test_hf_names_and_conventions),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
