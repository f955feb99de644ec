/* Reads sl_config from both containers. Everything that later code divides by, indexes with or
 * multiplies into a size is checked in check_values, right after reading, whatever the source. */
#include "model/config.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "base/dmath.h"
#include "base/fpenv.h"
#include "plan/dims.h"

enum { MAX_VOCAB = 1 << 22 };

/* ---- the integers ---- */

enum field_id {
    N_BLOCKS,
    N_MTP,
    HIDDEN,
    CONTEXT,
    N_HEADS,
    N_KV_HEADS,
    KEY_LENGTH,
    VALUE_LENGTH,
    CONV_TAPS,
    GDN_KEY_DIM,
    GDN_VALUE_DIM,
    GDN_KEY_HEADS,
    GDN_VALUE_HEADS,
    GDN_INNER,
    INTERVAL,
    FFN,
    N_EXPERTS,
    TOP_K,
    EXPERT_FFN,
    SHARED_FFN,
    FIELD_COUNT
};

enum { REQUIRED = -1 };

/* Fallback, low and high of a field that has one value in the whole family. */
#define ALWAYS(value) (value), (value), (value)

/* gguf follows "ARCH."; NULL = the container has no such field. Fallbacks are the values of the
 * family that published files leave out. */
static const struct field {
    const char *gguf, *hf;
    int64_t gguf_fallback, hf_fallback;
    uint32_t low, high;
} fields[FIELD_COUNT] = {
    [N_BLOCKS] = {"block_count", "num_hidden_layers", REQUIRED, REQUIRED, 1, SL_MAX_LAYERS},
    [N_MTP] = {"nextn_predict_layers", "mtp_num_hidden_layers", 0, 0, 0, 1},
    [HIDDEN] = {"embedding_length", "hidden_size", REQUIRED, REQUIRED, 1, 1 << 17},
    [CONTEXT] = {"context_length", "max_position_embeddings", REQUIRED, REQUIRED, 1, 1 << 30},
    [N_HEADS] = {"attention.head_count", "num_attention_heads", REQUIRED, REQUIRED, 1, 1024},
    [N_KV_HEADS] = {"attention.head_count_kv", "num_key_value_heads", REQUIRED, REQUIRED, 1, 1024},
    [KEY_LENGTH] = {"attention.key_length", "head_dim", REQUIRED, ALWAYS(SL_ATTN_DIM)},
    [VALUE_LENGTH] = {"attention.value_length", NULL, REQUIRED, ALWAYS(SL_ATTN_DIM)},
    [CONV_TAPS] = {"ssm.conv_kernel", "linear_conv_kernel_dim", REQUIRED, ALWAYS(SL_CONV_TAPS)},
    [GDN_KEY_DIM] = {"ssm.state_size", "linear_key_head_dim", REQUIRED, ALWAYS(SL_GDN_DIM)},
    [GDN_VALUE_DIM] = {NULL, "linear_value_head_dim", SL_GDN_DIM, ALWAYS(SL_GDN_DIM)},
    [GDN_KEY_HEADS] = {"ssm.group_count", "linear_num_key_heads", REQUIRED, REQUIRED, 1, 1024},
    [GDN_VALUE_HEADS] = {"ssm.time_step_rank", "linear_num_value_heads", REQUIRED, REQUIRED, 1,
                         1024},
    [GDN_INNER] = {"ssm.inner_size", NULL, REQUIRED, 0, 0, 1024 * SL_GDN_DIM},
    [INTERVAL] = {"full_attention_interval", "full_attention_interval", 4, 4, 1, SL_MAX_LAYERS},
    [FFN] = {"feed_forward_length", "intermediate_size", 0, 0, 1, 1 << 20},
    [N_EXPERTS] = {"expert_count", "num_experts", 0, 0, 1, SL_MAX_EXPERTS},
    [TOP_K] = {"expert_used_count", "num_experts_per_tok", 0, 0, 1, SL_MAX_EXPERTS},
    [EXPERT_FFN] = {"expert_feed_forward_length", "moe_intermediate_size", 0, 0, 1, 1 << 20},
    [SHARED_FFN] = {"expert_shared_feed_forward_length", "shared_expert_intermediate_size", 0, 0, 1,
                    1 << 20},
};

static bool is_moe_field(enum field_id id)
{
    return id >= N_EXPERTS;
}

typedef struct reader {
    const sl_weights *weights;
    const char *arch;    /* prefix of GGUF keys */
    const sl_gguf *gguf; /* NULL: Hugging Face */
    const json_t *root, *text;
    char file[256]; /* named in messages */
    char keys[2][96];
    unsigned n_keys; /* alternates between the two, so that a message can hold two keys */
    uint32_t values[FIELD_COUNT];
    double rms_eps, rope_theta;
    sl_error *err;
} reader;

/* The file of the folder that is being read. */
static void name_file(reader *r, const char *name)
{
    snprintf(r->file, sizeof r->file, "%s/%s", sl_weights_path(r->weights), name);
}

/* "ARCH.suffix"; valid until the call after the next. */
static const char *gguf_key(reader *r, const char *suffix)
{
    char *key = r->keys[r->n_keys++ % 2];
    snprintf(key, sizeof r->keys[0], "%s.%s", r->arch, suffix);
    return key;
}

static const char *field_name(reader *r, enum field_id id)
{
    const struct field *field = &fields[id];
    if (r->gguf && field->gguf)
        return gguf_key(r, field->gguf);
    return field->hf ? field->hf : field->gguf;
}

static sl_status refuse(reader *r, sl_status status, const char *key, const char *format, ...)
    SL_PRINTF(4, 5);
static sl_status refuse(reader *r, sl_status status, const char *key, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return sl_fail(r->err, status, "%s: %s is %s", r->file, key, text);
}

/* ---- architecture ---- */

static const struct arch_names {
    const char *gguf;                 /* general.architecture */
    const char *multimodal, *textual; /* model_type of config.json */
} archs[] = {
    [SL_ARCH_QWEN35] = {"qwen35", "qwen3_5", "qwen3_5_text"},
    [SL_ARCH_QWEN35MOE] = {"qwen35moe", "qwen3_5_moe", "qwen3_5_moe_text"},
    [SL_ARCH_QWEN3NEXT] = {"qwen3next", "qwen3_next", "qwen3_next"},
};

static const struct refused_arch {
    const char *name, *reason;
} refused_archs[] = {
    {"qwen4exp", "it needs sparse attention, hyper-connections and n-gram embeddings"},
    {"qwen4_exp", "it needs sparse attention, hyper-connections and n-gram embeddings"},
    {"qwen4_exp_text", "it needs sparse attention, hyper-connections and n-gram embeddings"},
    {"clip", "it is a vision projector, not a language model"},
    {"mamba2", "its recurrent layers follow another rule than the gated delta rule"},
};

const char *sl_arch_name(sl_arch arch)
{
    return archs[arch].gguf;
}

static sl_status find_arch(reader *r, const char *key, sl_str name, sl_arch *out)
{
    for (size_t i = 0; i < SL_COUNTOF(archs); i++) {
        const struct arch_names *names = &archs[i];
        if (r->gguf ? sl_str_is(name, names->gguf)
                    : sl_str_is(name, names->multimodal) || sl_str_is(name, names->textual)) {
            *out = (sl_arch)i;
            r->arch = names->gguf;
            return SL_OK;
        }
    }
    const char *reason =
        "only the hybrids of gated delta rule and gated attention are implemented: "
        "qwen35, qwen35moe and qwen3next";
    for (size_t i = 0; i < SL_COUNTOF(refused_archs); i++) {
        if (sl_str_is(name, refused_archs[i].name))
            reason = refused_archs[i].reason;
    }
    return refuse(r, SL_ERR_UNSUPPORTED, key, "%.*s, which sluice cannot run: %s",
                  (int)sl_min_size(name.n_bytes, 64), name.data, reason);
}

/* ---- reading the integers ---- */

/* A scalar, or in older files one number per block with 0 for gated delta layers: the largest. */
static sl_status read_kv_heads(reader *r, uint64_t *out)
{
    const char *key = field_name(r, N_KV_HEADS);
    sl_gguf_array array;
    sl_status status = sl_gguf_get_uint(r->gguf, key, 0, UINT32_MAX, out, r->err);
    if (status != SL_ERR_FORMAT ||
        sl_gguf_get_array_or_empty(r->gguf, key, &array, NULL) != SL_OK || array.n_items == 0)
        return status;
    *out = 0;
    for (size_t i = 0; i < array.n_items; i++) {
        int64_t heads;
        if (!sl_gguf_array_int(&array, i, &heads) || heads < 0 || heads > UINT32_MAX)
            return refuse(r, SL_ERR_FORMAT, key, "an array whose entry %zu is not a count", i);
        if ((uint64_t)heads > *out)
            *out = (uint64_t)heads;
    }
    return SL_OK;
}

static sl_status read_field(reader *r, enum field_id id)
{
    const struct field *field = &fields[id];
    int64_t fallback = r->gguf ? field->gguf_fallback : field->hf_fallback;
    uint64_t value = (uint64_t)fallback;
    if (r->gguf && id == N_KV_HEADS) {
        SL_TRY(read_kv_heads(r, &value));
    } else if (r->gguf && field->gguf) {
        const char *key = gguf_key(r, field->gguf);
        if (fallback == REQUIRED)
            SL_TRY(sl_gguf_get_uint(r->gguf, key, 0, UINT32_MAX, &value, r->err));
        else
            SL_TRY(sl_gguf_get_uint_or(r->gguf, key, 0, UINT32_MAX, value, &value, r->err));
    } else if (!r->gguf && field->hf) {
        int64_t found;
        if (fallback == REQUIRED)
            SL_TRY(sl_json_get_int(r->text, field->hf, 0, UINT32_MAX, &found, r->file, r->err));
        else
            SL_TRY(sl_json_get_int_or(r->text, field->hf, 0, UINT32_MAX, fallback, &found, r->file,
                                      r->err));
        value = (uint64_t)found;
    }
    r->values[id] = (uint32_t)value;
    return SL_OK;
}

/* ---- checks ---- */

static sl_status check_divides(reader *r, enum field_id whole, enum field_id part)
{
    if (r->values[whole] % r->values[part] == 0)
        return SL_OK;
    return refuse(r, SL_ERR_FORMAT, field_name(r, whole), "%u, expected a multiple of %s, %u",
                  r->values[whole], field_name(r, part), r->values[part]);
}

/* NaN stands for a missing value: the getters give finite ones only. */
static sl_status check_real(reader *r, const char *key, double value, double low, double high)
{
    if (value >= low && value <= high)
        return SL_OK;
    if (isnan(value))
        return refuse(r, SL_ERR_FORMAT, key, "missing");
    return refuse(r, SL_ERR_FORMAT, key, "%g, expected %g to %g", value, low, high);
}

/* The list of what must hold between the numbers of a model of this family. */
static sl_status check_values(reader *r, sl_arch arch)
{
    bool moe = arch == SL_ARCH_QWEN35MOE || r->values[N_EXPERTS] != 0;
    if (arch == SL_ARCH_QWEN35 && moe)
        return refuse(r, SL_ERR_UNSUPPORTED, field_name(r, N_EXPERTS),
                      "%u, expected none in the dense architecture qwen35", r->values[N_EXPERTS]);
    for (enum field_id id = 0; id < FIELD_COUNT; id++) {
        const struct field *field = &fields[id];
        uint32_t value = r->values[id];
        if (is_moe_field(id) ? !moe : id == FFN && moe)
            continue;
        if (value >= field->low && value <= field->high)
            continue;
        if (field->low == field->high)
            return refuse(r, SL_ERR_UNSUPPORTED, field_name(r, id),
                          "%u, expected %u as in the whole family", value, field->low);
        return refuse(r, SL_ERR_FORMAT, field_name(r, id), "%u, expected %u to %u", value,
                      field->low, field->high);
    }
    SL_TRY(check_divides(r, N_HEADS, N_KV_HEADS));
    SL_TRY(check_divides(r, GDN_VALUE_HEADS, GDN_KEY_HEADS));
    if (r->gguf && r->values[GDN_INNER] != r->values[GDN_VALUE_HEADS] * SL_GDN_DIM)
        return refuse(r, SL_ERR_FORMAT, field_name(r, GDN_INNER), "%u, expected %d times %s, %u",
                      r->values[GDN_INNER], SL_GDN_DIM, field_name(r, GDN_VALUE_HEADS),
                      r->values[GDN_VALUE_HEADS] * SL_GDN_DIM);
    if (moe && r->values[TOP_K] > r->values[N_EXPERTS])
        return refuse(r, SL_ERR_FORMAT, field_name(r, TOP_K), "%u, expected at most %s, %u",
                      r->values[TOP_K], field_name(r, N_EXPERTS), r->values[N_EXPERTS]);
    if (r->gguf && r->values[N_MTP] >= r->values[N_BLOCKS])
        return refuse(r, SL_ERR_FORMAT, field_name(r, N_MTP), "%u, expected less than %s, %u",
                      r->values[N_MTP], field_name(r, N_BLOCKS), r->values[N_BLOCKS]);
    SL_TRY(check_real(r, r->gguf ? gguf_key(r, "attention.layer_norm_rms_epsilon") : "rms_norm_eps",
                      r->rms_eps, 1e-12, 1.0));
    return check_real(r, r->gguf ? gguf_key(r, "rope.freq_base") : "rope_theta", r->rope_theta, 2.0,
                      1e12);
}

static void set_values(const reader *r, sl_arch arch, sl_config *out)
{
    const uint32_t *v = r->values;
    bool moe = v[N_EXPERTS] != 0;
    out->arch = arch;
    out->n_mtp = v[N_MTP];
    out->n_layers = r->gguf ? v[N_BLOCKS] - v[N_MTP] : v[N_BLOCKS];
    out->hidden = v[HIDDEN];
    out->context_length = v[CONTEXT];
    out->rms_eps = (float)r->rms_eps;
    out->n_heads = v[N_HEADS];
    out->n_kv_heads = v[N_KV_HEADS];
    out->head_dim = v[KEY_LENGTH];
    out->gdn_key_heads = v[GDN_KEY_HEADS];
    out->gdn_value_heads = v[GDN_VALUE_HEADS];
    out->gdn_dim = v[GDN_KEY_DIM];
    out->conv_taps = v[CONV_TAPS];
    out->ffn = moe ? 0 : v[FFN];
    out->n_experts = v[N_EXPERTS];
    out->top_k = moe ? v[TOP_K] : 0;
    out->expert_ffn = moe ? v[EXPERT_FFN] : 0;
    out->shared_ffn = moe ? v[SHARED_FFN] : 0;
}

/* ---- layer pattern ---- */

static void set_kind(sl_config *out, uint32_t layer, sl_layer_kind kind)
{
    out->layer_kinds[layer] = (uint8_t)kind;
    if (kind == SL_LAYER_GDN)
        out->n_gdn_layers++;
    else
        out->n_attention_layers++;
}

static void set_kinds_by_interval(const reader *r, sl_config *out)
{
    for (uint32_t i = 0; i < out->n_layers; i++) {
        bool attention = (i + 1) % r->values[INTERVAL] == 0;
        set_kind(out, i, attention ? SL_LAYER_ATTENTION : SL_LAYER_GDN);
    }
}

/* `attention.recurrent_layers` (true = gated delta), else a head_count_kv array (0 = gated delta),
 * else the interval. */
static sl_status read_gguf_kinds(reader *r, sl_config *out)
{
    sl_gguf_array array;
    const char *key = gguf_key(r, "attention.recurrent_layers");
    bool flags = sl_gguf_has(r->gguf, key);
    if (flags) {
        SL_TRY(sl_gguf_get_array_or_empty(r->gguf, key, &array, r->err));
    } else {
        key = field_name(r, N_KV_HEADS);
        if (sl_gguf_get_array_or_empty(r->gguf, key, &array, NULL) != SL_OK) {
            set_kinds_by_interval(r, out);
            return SL_OK;
        }
    }
    if (array.n_items != r->values[N_BLOCKS] && array.n_items != out->n_layers)
        return refuse(r, SL_ERR_FORMAT, key, "an array of %zu entries, expected one per block, %u",
                      array.n_items, r->values[N_BLOCKS]);
    for (uint32_t i = 0; i < out->n_layers; i++) {
        int64_t value;
        if (!sl_gguf_array_int(&array, i, &value) || (flags && value != 0 && value != 1))
            return refuse(r, SL_ERR_FORMAT, key, "an array whose entry %u is not a truth value", i);
        if (!flags && value != 0 && value != out->n_kv_heads)
            return refuse(r, SL_ERR_UNSUPPORTED, key,
                          "an array whose entry %u is %lld; all attention layers must have the "
                          "same number, %u",
                          i, (long long)value, out->n_kv_heads);
        set_kind(out, i, (value != 0) == flags ? SL_LAYER_GDN : SL_LAYER_ATTENTION);
    }
    return SL_OK;
}

static sl_status read_hf_kinds(reader *r, sl_config *out)
{
    const json_t *types = json_object_get(r->text, "layer_types");
    if (!types || json_is_null(types)) {
        set_kinds_by_interval(r, out);
        return SL_OK;
    }
    if (json_array_size(types) != out->n_layers)
        return refuse(r, SL_ERR_FORMAT, "layer_types",
                      "not an array with an entry for each of num_hidden_layers, %u",
                      out->n_layers);
    for (uint32_t i = 0; i < out->n_layers; i++) {
        const json_t *entry = json_array_get(types, i);
        const char *type = json_string_value(entry);
        if (!sl_json_is_string(entry))
            return refuse(r, SL_ERR_FORMAT, "layer_types", "an array whose entry %u is no string",
                          i);
        if (strcmp(type, "linear_attention") == 0)
            set_kind(out, i, SL_LAYER_GDN);
        else if (strcmp(type, "full_attention") == 0)
            set_kind(out, i, SL_LAYER_ATTENTION);
        else
            return refuse(r, SL_ERR_UNSUPPORTED, "layer_types",
                          "%s at entry %u, expected linear_attention or full_attention", type, i);
    }
    return SL_OK;
}

/* ---- rope ---- */

typedef struct yarn {
    double factor, original, beta_fast, beta_slow;
    double attention_factor; /* 0 = the usual one, 0.1 ln(factor) + 1 */
} yarn;

static const double pi = 3.14159265358979323846;

/* The pair index at which a wave turns n times within the original context. */
static double yarn_pair(double dim, double theta, double original, double n)
{
    return dim * sl_log_f64(original / (2.0 * pi * n)) / (2.0 * sl_log_f64(theta));
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* Computed in double, rounded once. scaling is NULL without YaRN. */
static void set_frequencies(double theta, const yarn *scaling, sl_config *out)
{
    double dim = out->rope_dim, low = 0.0, high = 0.0;
    out->rope_scale = 1.0f;
    if (scaling) {
        low = floor(yarn_pair(dim, theta, scaling->original, scaling->beta_fast));
        high = ceil(yarn_pair(dim, theta, scaling->original, scaling->beta_slow));
        low = clamp(low, 0.0, dim - 1.0);
        high = clamp(high, 0.0, dim - 1.0);
        double factor = scaling->attention_factor;
        out->rope_scale = (float)(factor > 0.0 ? factor : 0.1 * sl_log_f64(scaling->factor) + 1.0);
    }
    for (uint32_t i = 0; i < out->rope_dim / 2; i++) {
        double frequency = sl_pow_f64(theta, -2.0 * (double)i / dim);
        if (scaling) {
            double width = high - low > 0.001 ? high - low : 0.001;
            double ramp = clamp(((double)i - low) / width, 0.0, 1.0);
            frequency *= (1.0 - ramp) + ramp / scaling->factor;
        }
        out->inv_freq[i] = (float)frequency;
    }
}

static sl_status set_rope(reader *r, const char *dim_key, double dim, const yarn *scaling,
                          const char *scaling_key, sl_config *out)
{
    if (!(dim >= 2.0 && dim <= out->head_dim && fmod(dim, 2.0) == 0.0))
        return refuse(r, SL_ERR_FORMAT, dim_key,
                      "%g rotated dimensions, expected an even number, 2 to %u", dim,
                      out->head_dim);
    out->rope_dim = (uint32_t)dim;
    if (scaling) {
        if (!(scaling->factor >= 1.0 && scaling->factor <= 1024.0 && scaling->original >= 1.0 &&
              scaling->original <= 1 << 30 && scaling->beta_slow > 0.0 &&
              scaling->beta_fast >= scaling->beta_slow && scaling->beta_fast <= 1e6 &&
              scaling->attention_factor >= 0.0 && scaling->attention_factor <= 1e3))
            return refuse(r, SL_ERR_FORMAT, scaling_key,
                          "YaRN with factor %g, original context %g, beta_fast %g, beta_slow %g, "
                          "attention factor %g; expected factor 1 to 1024, beta_fast >= beta_slow "
                          "> 0",
                          scaling->factor, scaling->original, scaling->beta_fast,
                          scaling->beta_slow, scaling->attention_factor);
        double stretched = scaling->factor * scaling->original;
        if (stretched > out->context_length && stretched <= 1 << 30)
            out->context_length = (uint32_t)stretched;
    }
    set_frequencies(r->rope_theta, scaling, out);
    return SL_OK;
}

static sl_status gguf_real(reader *r, const char *suffix, double fallback, double *out)
{
    return sl_gguf_get_float_or(r->gguf, gguf_key(r, suffix), fallback, out, r->err);
}

static sl_status read_gguf_rope(reader *r, sl_config *out)
{
    uint64_t dim;
    const char *dim_key = gguf_key(r, "rope.dimension_count");
    SL_TRY(sl_gguf_get_uint_or(r->gguf, dim_key, 0, UINT32_MAX, out->head_dim / 4, &dim, r->err));
    sl_str type;
    SL_TRY(sl_gguf_get_string_or(r->gguf, gguf_key(r, "rope.scaling.type"), sl_str_of("none"),
                                 &type, r->err));
    if (sl_str_is(type, "none"))
        return set_rope(r, gguf_key(r, "rope.dimension_count"), (double)dim, NULL, NULL, out);
    if (!sl_str_is(type, "yarn"))
        return refuse(r, SL_ERR_UNSUPPORTED, gguf_key(r, "rope.scaling.type"),
                      "%.*s, expected none or yarn", (int)sl_min_size(type.n_bytes, 64), type.data);
    yarn y;
    double multiplier, ext_factor, yarn_attn_factor;
    SL_TRY(gguf_real(r, "rope.scaling.factor", 0.0, &y.factor));
    SL_TRY(gguf_real(r, "rope.scaling.original_context_length", out->context_length, &y.original));
    SL_TRY(gguf_real(r, "rope.scaling.yarn_beta_fast", 32.0, &y.beta_fast));
    SL_TRY(gguf_real(r, "rope.scaling.yarn_beta_slow", 1.0, &y.beta_slow));
    SL_TRY(gguf_real(r, "rope.scaling.attn_factor", 1.0, &multiplier));
    SL_TRY(gguf_real(r, "rope.scaling.yarn_ext_factor", 1.0, &ext_factor));
    SL_TRY(gguf_real(r, "rope.scaling.yarn_attn_factor", 1.0, &yarn_attn_factor));
    if (ext_factor != 1.0 || yarn_attn_factor != 1.0)
        return refuse(r, SL_ERR_UNSUPPORTED, gguf_key(r, "rope.scaling.yarn_ext_factor"),
                      "%g with yarn_attn_factor %g, expected 1 and 1", ext_factor,
                      yarn_attn_factor);
    /* In GGUF the attention factor multiplies the usual one. */
    y.attention_factor = multiplier * (0.1 * sl_log_f64(y.factor) + 1.0);
    return set_rope(r, gguf_key(r, "rope.scaling.type"), (double)dim, &y,
                    gguf_key(r, "rope.scaling.type"), out);
}

/* Rope settings lie in rope_scaling, in rope_parameters, or (older files) beside the other values
 * of the configuration: the first that has the key. */
static const char *const rope_owners[] = {"rope_scaling", "rope_parameters"};

static bool has_member(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return value && !json_is_null(value);
}

static const json_t *rope_owner(const reader *r, const char *key)
{
    for (size_t i = 0; i < SL_COUNTOF(rope_owners); i++) {
        const json_t *owner = json_object_get(r->text, rope_owners[i]);
        if (has_member(owner, key))
            return owner;
    }
    return r->text;
}

static sl_status check_rope_owners(reader *r)
{
    for (size_t i = 0; i < SL_COUNTOF(rope_owners); i++) {
        if (has_member(r->text, rope_owners[i]) &&
            !json_is_object(json_object_get(r->text, rope_owners[i])))
            return refuse(r, SL_ERR_FORMAT, rope_owners[i], "not an object");
    }
    return SL_OK;
}

/* The kind of scaling, under its newer or older key, and that key. */
static sl_status read_rope_type(reader *r, const char **key, const char **type)
{
    *key = "rope_type";
    *type = "default";
    for (size_t i = 0; i < SL_COUNTOF(rope_owners); i++) {
        const json_t *owner = json_object_get(r->text, rope_owners[i]);
        if (has_member(owner, "rope_type") || has_member(owner, "type")) {
            *key = has_member(owner, "rope_type") ? "rope_type" : "type";
            return sl_json_get_string(owner, *key, type, r->file, r->err);
        }
    }
    return SL_OK;
}

static sl_status hf_rope_real(reader *r, const char *key, double fallback, double *out)
{
    return sl_json_get_number_or(rope_owner(r, key), key, fallback, out, r->file, r->err);
}

static sl_status read_hf_rope(reader *r, sl_config *out)
{
    const char *key, *type;
    SL_TRY(read_rope_type(r, &key, &type));
    double fraction;
    SL_TRY(hf_rope_real(r, "partial_rotary_factor", 0.25, &fraction));
    double dim = fraction * out->head_dim;
    if (strcmp(type, "default") == 0 || strcmp(type, "mrope") == 0)
        return set_rope(r, "partial_rotary_factor", dim, NULL, NULL, out);
    if (strcmp(type, "yarn") != 0)
        return refuse(r, SL_ERR_UNSUPPORTED, key, "%s, expected default or yarn", type);

    static const char *const variants[] = {"mscale", "mscale_all_dim"};
    for (size_t i = 0; i < SL_COUNTOF(variants); i++) {
        if (rope_owner(r, variants[i]) != r->text)
            return sl_fail(r->err, SL_ERR_UNSUPPORTED, "%s: YaRN with %s is not supported", r->file,
                           variants[i]);
    }
    /* The ramp's ends are whole numbers, which is what "truncate" means and the usual form. */
    bool truncate;
    SL_TRY(sl_json_get_bool_or(rope_owner(r, "truncate"), "truncate", true, &truncate, r->file,
                               r->err));
    if (!truncate)
        return sl_fail(r->err, SL_ERR_UNSUPPORTED,
                       "%s: YaRN with \"truncate\": false is not supported", r->file);
    yarn y;
    SL_TRY(hf_rope_real(r, "factor", 0.0, &y.factor));
    SL_TRY(hf_rope_real(r, "original_max_position_embeddings", out->context_length, &y.original));
    SL_TRY(hf_rope_real(r, "beta_fast", 32.0, &y.beta_fast));
    SL_TRY(hf_rope_real(r, "beta_slow", 1.0, &y.beta_slow));
    SL_TRY(hf_rope_real(r, "attention_factor", 0.0, &y.attention_factor));
    return set_rope(r, "partial_rotary_factor", dim, &y, key, out);
}

/* ---- sampling defaults and token ids ---- */

/* The recommended settings, by name in both containers. */
static sl_status read_sampling(reader *r, const json_t *json, sl_sampling_defaults *out)
{
    float top_k = 0.0f;   /* 0 or less = off */
    float window = -1.0f; /* of the penalties: -1 = all, 0 = they are off */
    const struct setting {
        const char *gguf, *hf;
        double low, high;
        bool *has;
        float *value;
    } settings[] = {
        {"general.sampling.temp", "temperature", 0.0, 100.0, &out->has_temperature,
         &out->temperature},
        {"general.sampling.top_k", "top_k", -1.0, 1 << 24, &out->has_top_k, &top_k},
        {"general.sampling.top_p", "top_p", 0.0, 1.0, &out->has_top_p, &out->top_p},
        {"general.sampling.min_p", "min_p", 0.0, 1.0, &out->has_min_p, &out->min_p},
        {NULL, "typical_p", 0.0, 1.0, &out->has_typical_p, &out->typical_p},
        {"general.sampling.penalty_repeat", "repetition_penalty", 0.0, 100.0,
         &out->has_repetition_penalty, &out->repetition_penalty},
        {NULL, "presence_penalty", -100.0, 100.0, &out->has_presence_penalty,
         &out->presence_penalty},
        {NULL, "frequency_penalty", -100.0, 100.0, &out->has_frequency_penalty,
         &out->frequency_penalty},
        {"general.sampling.penalty_last_n", NULL, -1.0, 1 << 24, &out->has_penalty_window, &window},
    };
    for (size_t i = 0; i < SL_COUNTOF(settings); i++) {
        const struct setting *s = &settings[i];
        double value = NAN; /* missing */
        if (json && s->hf)
            SL_TRY(sl_json_get_number_or(json, s->hf, NAN, &value, r->file, r->err));
        else if (!json && r->gguf && s->gguf && sl_gguf_has(r->gguf, s->gguf))
            SL_TRY(sl_gguf_get_float_or(r->gguf, s->gguf, NAN, &value, r->err));
        if (isnan(value))
            continue;
        SL_TRY(check_real(r, json ? s->hf : s->gguf, value, s->low, s->high));
        *s->has = true;
        *s->value = (float)value;
    }
    out->top_k = top_k > 0.0f ? (uint32_t)top_k : 0;
    out->penalty_window = window > 0.0f ? (uint32_t)window : 0;
    if (window == 0.0f)
        out->has_repetition_penalty = false;

    bool do_sample = true;
    if (json)
        SL_TRY(sl_json_get_bool_or(json, "do_sample", true, &do_sample, r->file, r->err));
    if (!do_sample) {
        out->has_temperature = true;
        out->temperature = 0.0f;
    }
    return SL_OK;
}

static sl_status check_id(reader *r, const char *key, int64_t id, const sl_config *out)
{
    if (id >= 0 && id < out->vocab)
        return SL_OK;
    return refuse(r, SL_ERR_FORMAT, key, "%lld, expected the id of a token, 0 to %u", (long long)id,
                  out->vocab - 1);
}

static sl_status add_stop_id(reader *r, const char *key, int64_t id, sl_config *out)
{
    SL_TRY(check_id(r, key, id, out));
    for (uint32_t i = 0; i < out->n_stop_ids; i++) {
        if (out->stop_ids[i] == id)
            return SL_OK;
    }
    if (out->n_stop_ids == SL_MAX_STOP_IDS)
        return sl_fail(r->err, SL_ERR_LIMIT, "%s: %s gives more than %d end tokens", r->file, key,
                       SL_MAX_STOP_IDS);
    out->stop_ids[out->n_stop_ids++] = (int32_t)id;
    return SL_OK;
}

/* -1 when the key is missing or holds 2^32 - 1, which some writers use for "none". */
static sl_status gguf_id(reader *r, const char *key, const sl_config *out, int32_t *id)
{
    uint64_t value;
    SL_TRY(sl_gguf_get_uint_or(r->gguf, key, 0, UINT32_MAX, UINT32_MAX, &value, r->err));
    *id = -1;
    if (value == UINT32_MAX)
        return SL_OK;
    SL_TRY(check_id(r, key, (int64_t)value, out));
    *id = (int32_t)value;
    return SL_OK;
}

static sl_status read_gguf_tokens(reader *r, sl_config *out)
{
    sl_gguf_array tokens;
    SL_TRY(sl_gguf_get_array_or_empty(r->gguf, "tokenizer.ggml.tokens", &tokens, r->err));
    if (tokens.n_items > out->vocab)
        return refuse(r, SL_ERR_FORMAT, "tokenizer.ggml.tokens",
                      "an array of %zu tokens, but the embedding has only %u rows", tokens.n_items,
                      out->vocab);
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id"};
    for (size_t i = 0; i < SL_COUNTOF(keys); i++) {
        int32_t id;
        SL_TRY(gguf_id(r, keys[i], out, &id));
        if (id >= 0)
            SL_TRY(add_stop_id(r, keys[i], id, out));
    }
    SL_TRY(gguf_id(r, "tokenizer.ggml.bos_token_id", out, &out->bos_id));
    SL_TRY(gguf_id(r, "tokenizer.ggml.padding_token_id", out, &out->pad_id));
    SL_TRY(
        sl_gguf_get_bool_or(r->gguf, "tokenizer.ggml.add_bos_token", false, &out->add_bos, r->err));
    return read_sampling(r, NULL, &out->sampling);
}

/* eos_token_id of one object: an id, a list of ids, or null. */
static sl_status read_hf_stop_ids(reader *r, const json_t *object, sl_config *out)
{
    const char *key = "eos_token_id";
    const json_t *value = json_object_get(object, key);
    if (!value || json_is_null(value))
        return SL_OK;
    size_t n = json_is_array(value) ? json_array_size(value) : 1;
    for (size_t i = 0; i < n; i++) {
        const json_t *id = json_is_array(value) ? json_array_get(value, i) : value;
        if (!json_is_integer(id))
            return refuse(r, SL_ERR_FORMAT, key, "neither an id nor a list of ids");
        SL_TRY(add_stop_id(r, key, json_integer_value(id), out));
    }
    return SL_OK;
}

static sl_status hf_id(reader *r, const char *key, const sl_config *out, int32_t *id)
{
    int64_t value;
    SL_TRY(sl_json_get_int_or(r->text, key, INT64_MIN, INT64_MAX, -1, &value, r->file, r->err));
    if (value == -1)
        SL_TRY(sl_json_get_int_or(r->root, key, INT64_MIN, INT64_MAX, -1, &value, r->file, r->err));
    if (value != -1)
        SL_TRY(check_id(r, key, value, out));
    *id = (int32_t)value;
    return SL_OK;
}

static sl_status read_hf_tokens(reader *r, sl_config *out)
{
    SL_TRY(hf_id(r, "bos_token_id", out, &out->bos_id));
    SL_TRY(hf_id(r, "pad_token_id", out, &out->pad_id));
    SL_TRY(read_hf_stop_ids(r, r->text, out));
    SL_TRY(read_hf_stop_ids(r, r->root, out));
    const json_t *generation = sl_weights_generation_config(r->weights);
    if (!generation)
        return SL_OK;
    name_file(r, "generation_config.json");
    SL_TRY(read_hf_stop_ids(r, generation, out));
    return read_sampling(r, generation, &out->sampling);
}

/* ---- what the tensors themselves tell ---- */

static sl_status read_vocab(reader *r, const char *name, sl_config *out)
{
    const sl_tensor *embedding = sl_weights_find(r->weights, name);
    if (!embedding) {
        char why[128];
        sl_weights_why_missing(r->weights, name, why, sizeof why);
        return sl_fail(r->err, SL_ERR_FORMAT, "%s: the embedding %s %s", r->file, name, why);
    }
    if (embedding->n_dims != 2 || embedding->ne[1] < 1 || embedding->ne[1] > MAX_VOCAB)
        return sl_fail(r->err, SL_ERR_FORMAT,
                       "%s: the embedding %s has %u dimensions and %llu rows, expected 2 and 1 to "
                       "%d",
                       embedding->file, name, embedding->n_dims,
                       (unsigned long long)embedding->ne[1], MAX_VOCAB);
    out->vocab = (uint32_t)embedding->ne[1];
    return SL_OK;
}

/* ---- GGUF ---- */

/* Files of the family are tiled, those of Qwen3-Next grouped, unless they say otherwise. One
 * converter writes Qwen3-Next (known by its vocabulary) as qwen35moe without saying so. */
static sl_status read_pairing(reader *r, sl_config *out)
{
    enum { QWEN3NEXT_VOCAB = 151936 };
    const char *key = gguf_key(r, "ssm.v_head_reordered");
    bool tiled = out->arch != SL_ARCH_QWEN3NEXT;
    if (!sl_gguf_has(r->gguf, key) && out->arch == SL_ARCH_QWEN35MOE &&
        out->vocab == QWEN3NEXT_VOCAB)
        return refuse(r, SL_ERR_UNSUPPORTED, key,
                      "missing, and the vocabulary of %u is that of Qwen3-Next: the order of the "
                      "value heads is unknown",
                      out->vocab);
    SL_TRY(sl_gguf_get_bool_or(r->gguf, key, tiled, &tiled, r->err));
    out->pairing = tiled ? SL_PAIRING_TILED : SL_PAIRING_GROUPED;
    return SL_OK;
}

static sl_status load_gguf(reader *r, sl_config *out)
{
    sl_str name;
    sl_arch arch;
    SL_TRY(sl_gguf_get_string(r->gguf, "general.architecture", &name, r->err));
    SL_TRY(find_arch(r, "general.architecture", name, &arch));
    for (enum field_id id = 0; id < FIELD_COUNT; id++)
        SL_TRY(read_field(r, id));
    SL_TRY(gguf_real(r, "attention.layer_norm_rms_epsilon", NAN, &r->rms_eps));
    SL_TRY(gguf_real(r, "rope.freq_base", NAN, &r->rope_theta));
    SL_TRY(check_values(r, arch));
    set_values(r, arch, out);

    double scale;
    SL_TRY(gguf_real(r, "expert_weights_scale", 1.0, &scale));
    if (scale != 1.0 && scale != 0.0)
        return refuse(r, SL_ERR_UNSUPPORTED, gguf_key(r, "expert_weights_scale"), "%g, expected 1",
                      scale);
    SL_TRY(read_gguf_kinds(r, out));
    SL_TRY(read_gguf_rope(r, out));
    SL_TRY(read_vocab(r, "token_embd.weight", out));
    out->tied = !sl_weights_has(r->weights, "output.weight");
    SL_TRY(read_pairing(r, out));
    return read_gguf_tokens(r, out);
}

/* ---- Hugging Face ---- */

/* Members with one accepted value; a missing one has it. */
static sl_status check_fixed_members(reader *r)
{
    static const struct fixed_bool {
        const char *key;
        bool value;
    } bools[] = {{"attention_bias", false}, {"attn_output_gate", true}, {"norm_topk_prob", true}};
    for (size_t i = 0; i < SL_COUNTOF(bools); i++) {
        bool value;
        SL_TRY(sl_json_get_bool_or(r->text, bools[i].key, bools[i].value, &value, r->file, r->err));
        if (value != bools[i].value)
            return refuse(r, SL_ERR_UNSUPPORTED, bools[i].key, "%s, expected %s",
                          value ? "true" : "false", value ? "false" : "true");
    }
    /* output_gate_type is the activation of the gated norm of linear attention; the gate of
     * softmax attention is always a sigmoid. */
    static const char *const activations[] = {"hidden_act", "output_gate_type"};
    for (size_t i = 0; i < SL_COUNTOF(activations); i++) {
        const char *value;
        SL_TRY(sl_json_get_string_or(r->text, activations[i], "silu", &value, r->file, r->err));
        if (strcmp(value, "silu") != 0 && strcmp(value, "swish") != 0)
            return refuse(r, SL_ERR_UNSUPPORTED, activations[i], "%s, expected silu", value);
    }
    int64_t step;
    SL_TRY(sl_json_get_int_or(r->text, "decoder_sparse_step", INT64_MIN, INT64_MAX, 1, &step,
                              r->file, r->err));
    const json_t *dense = json_object_get(r->text, "mlp_only_layers");
    if (step != 1 || json_array_size(dense) > 0)
        return refuse(r, SL_ERR_UNSUPPORTED, step != 1 ? "decoder_sparse_step" : "mlp_only_layers",
                      "given; all layers must be of one kind");
    return SL_OK;
}

static const sl_hf_names *find_hf_names(const sl_weights *weights)
{
    static const sl_hf_names names[] = {
        {"model.language_model.", ""},                /* multimodal checkpoints */
        {"model.", ""},                               /* text only */
        {"language_model.model.", "language_model."}, /* MLX */
    };
    char name[64];
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        snprintf(name, sizeof name, "%sembed_tokens.weight", names[i].model);
        if (sl_weights_has(weights, name))
            return &names[i];
    }
    return NULL;
}

/* The setting may stand in the root, in text_config, or in both. Files where they differ, or where
 * both are missing, are decided by whether a head is there. */
static sl_status read_tied(reader *r, sl_config *out)
{
    char head[64];
    snprintf(head, sizeof head, "%slm_head.weight", out->hf_names->outer);
    bool has_head = sl_weights_has(r->weights, head);
    const char *key = "tie_word_embeddings";
    bool root, text;
    SL_TRY(sl_json_get_bool_or(r->root, key, !has_head, &root, r->file, r->err));
    SL_TRY(sl_json_get_bool_or(r->text, key, root, &text, r->file, r->err));
    bool root_says = json_is_boolean(json_object_get(r->root, key));
    out->tied = root_says && root != text ? !has_head : text;
    return SL_OK;
}

/* MLX folders hold norm weights with the 1 added, and conv1d as [channels, 4, 1] instead of
 * [channels, 1, 4]. */
static sl_status read_norm_convention(reader *r, sl_config *out)
{
    out->norm_plus_one = true;
    for (uint32_t i = 0; i < out->n_layers; i++) {
        if (out->layer_kinds[i] != SL_LAYER_GDN)
            continue;
        char name[96];
        snprintf(name, sizeof name, "%slayers.%u.linear_attn.conv1d.weight", out->hf_names->model,
                 i);
        const sl_tensor *conv = sl_weights_find(r->weights, name);
        if (conv)
            out->norm_plus_one = !(conv->n_dims == 3 && conv->ne[0] == 1);
        return SL_OK; /* binding reports a missing or misshapen one */
    }
    return SL_OK;
}

static sl_status load_hf(reader *r, sl_config *out)
{
    r->root = sl_weights_config(r->weights);
    r->text = json_object_get(r->root, "text_config");
    if (!r->text || json_is_null(r->text))
        r->text = r->root;
    if (!json_is_object(r->text))
        return refuse(r, SL_ERR_FORMAT, "text_config", "not an object");
    const char *type;
    sl_arch arch;
    SL_TRY(sl_json_get_string_or(r->root, "model_type", NULL, &type, r->file, r->err));
    SL_TRY(sl_json_get_string_or(r->text, "model_type", type, &type, r->file, r->err));
    if (!type)
        return refuse(r, SL_ERR_FORMAT, "model_type", "missing");
    SL_TRY(find_arch(r, "model_type", sl_str_of(type), &arch));
    SL_TRY(check_fixed_members(r));
    for (enum field_id id = 0; id < FIELD_COUNT; id++)
        SL_TRY(read_field(r, id));
    SL_TRY(sl_json_get_number_or(r->text, "rms_norm_eps", 1e-6, &r->rms_eps, r->file, r->err));
    SL_TRY(check_rope_owners(r));
    SL_TRY(hf_rope_real(r, "rope_theta", NAN, &r->rope_theta));
    SL_TRY(check_values(r, arch));
    set_values(r, arch, out);
    SL_TRY(read_hf_kinds(r, out));
    SL_TRY(read_hf_rope(r, out));

    out->hf_names = find_hf_names(r->weights);
    if (!out->hf_names)
        return sl_fail(r->err, SL_ERR_FORMAT,
                       "%s holds no embedding: none of model.language_model.embed_tokens.weight, "
                       "model.embed_tokens.weight, language_model.model.embed_tokens.weight",
                       sl_weights_path(r->weights));
    char name[64];
    snprintf(name, sizeof name, "%sembed_tokens.weight", out->hf_names->model);
    SL_TRY(read_vocab(r, name, out));
    SL_TRY(read_tied(r, out));
    SL_TRY(read_norm_convention(r, out));
    out->a_log_raw = true;
    out->pairing = SL_PAIRING_GROUPED;
    return read_hf_tokens(r, out);
}

static sl_status load(reader *r, sl_config *out)
{
    *out = (sl_config){.bos_id = -1, .pad_id = -1};
    if (r->gguf) {
        snprintf(r->file, sizeof r->file, "%s", sl_gguf_file(r->gguf));
        return load_gguf(r, out);
    }
    name_file(r, "config.json");
    return load_hf(r, out);
}

sl_status sl_config_load(const sl_weights *weights, sl_config *out, sl_error *err)
{
    reader r = {.weights = weights, .gguf = sl_weights_gguf(weights), .err = err};
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = load(&r, out);
    sl_fpenv_leave(env);
    return status;
}
