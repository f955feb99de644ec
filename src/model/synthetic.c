/* Owns the list of shapes, the list of tensors of a model of each, and how their bytes are made.
 *
 * A model is described with sl_gguf_writer; the header that this gives and the tensors behind it
 * are then put into one block of memory, or into a file. Vectors come first, so that a model
 * without its matrices is a prefix of the whole. Every tensor has its own stream of random numbers,
 * made from the seed and its name: taking fewer layers changes none of the others.
 *
 * Refused: names that are not known, more layers than the shape has, types whose blocks do not
 * divide its rows. */
#include "model/synthetic.h"

#include <math.h>
#include <stdio.h>

#include "base/fpenv.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include "format/gguf_write.h"
#include "model/random_weights.h"
#include "model/synthetic_types.h"
#include "plan/dims.h"

/* What all models of the family share, beside the constants of plan/dims.h. */
enum { VOCAB = 248320, CONTEXT = 262144, INTERVAL = 4, ROPE_DIM = 64, FIRST_SPECIAL = 248044 };

#define FAMILY .vocab = VOCAB, .context_length = CONTEXT, .gdn_key_heads = 16
static const sl_shape shapes[] = {
    {.name = "0.8b",
     .title = "Qwen3.5-0.8B",
     .n_layers = 24,
     .hidden = 1024,
     .tied = true,
     .n_heads = 8,
     .n_kv_heads = 2,
     .gdn_value_heads = 16,
     .ffn = 3584,
     FAMILY},
    {.name = "2b",
     .title = "Qwen3.5-2B",
     .n_layers = 24,
     .hidden = 2048,
     .tied = true,
     .n_heads = 8,
     .n_kv_heads = 2,
     .gdn_value_heads = 16,
     .ffn = 6144,
     FAMILY},
    {.name = "4b",
     .title = "Qwen3.5-4B",
     .n_layers = 32,
     .hidden = 2560,
     .tied = true,
     .n_heads = 16,
     .n_kv_heads = 4,
     .gdn_value_heads = 32,
     .ffn = 9216,
     FAMILY},
    {.name = "9b",
     .title = "Qwen3.5-9B",
     .n_layers = 32,
     .hidden = 4096,
     .tied = false,
     .n_heads = 16,
     .n_kv_heads = 4,
     .gdn_value_heads = 32,
     .ffn = 12288,
     FAMILY},
    {.name = "27b",
     .title = "Qwen3.5-27B",
     .n_layers = 64,
     .hidden = 5120,
     .tied = false,
     .n_heads = 24,
     .n_kv_heads = 4,
     .gdn_value_heads = 48,
     .ffn = 17408,
     FAMILY},
    {.name = "35b-a3b",
     .title = "Qwen3.5-35B-A3B",
     .n_layers = 40,
     .hidden = 2048,
     .tied = false,
     .n_heads = 16,
     .n_kv_heads = 2,
     .gdn_value_heads = 32,
     .n_experts = 256,
     .top_k = 8,
     .expert_ffn = 512,
     .shared_ffn = 512,
     FAMILY},
    /* For trying things out. */
    {.name = "tiny",
     .title = "tiny",
     .n_layers = 4,
     .hidden = 256,
     .tied = true,
     .n_heads = 2,
     .n_kv_heads = 1,
     .gdn_value_heads = 4,
     .ffn = 512,
     .vocab = 512,
     .context_length = 4096,
     .gdn_key_heads = 2},
    {.name = "tiny-moe",
     .title = "tiny mixture",
     .n_layers = 4,
     .hidden = 256,
     .tied = false,
     .n_heads = 2,
     .n_kv_heads = 1,
     .gdn_value_heads = 4,
     .n_experts = 8,
     .top_k = 2,
     .expert_ffn = 256,
     .shared_ffn = 256,
     .vocab = 512,
     .context_length = 4096,
     .gdn_key_heads = 2},
};
#undef FAMILY

const sl_shape *sl_shape_find(const char *name)
{
    for (size_t i = 0; i < SL_COUNTOF(shapes); i++) {
        if (sl_same_name(shapes[i].name, name))
            return &shapes[i];
    }
    return NULL;
}

const char *sl_synthetic_shape_name(size_t i)
{
    return i < SL_COUNTOF(shapes) ? shapes[i].name : NULL;
}

/* ---- the tensors ---- */

typedef struct tensor {
    char name[48];
    sl_dtype dtype;
    uint32_t n_dims;
    uint64_t ne[3];
    sl_random_law law;
    double deviation;
} tensor;

enum { TENSORS_OUTSIDE = 3, TENSORS_OF_LAYER = 24 };

/* A model being described. */
typedef struct recipe {
    const sl_shape *shape;
    const sl_type_mix *mix;
    uint32_t n_layers;
    uint64_t seed;
    const char *type;
    char path[64]; /* how messages call it */
    tensor *tensors;
    size_t n_tensors;
    sl_gguf_writer *writer;
} recipe;

static tensor *add(recipe *r, int layer, const char *name)
{
    tensor *t = &r->tensors[r->n_tensors++];
    if (layer < 0)
        snprintf(t->name, sizeof t->name, "%s", name);
    else
        snprintf(t->name, sizeof t->name, "blk.%d.%s", layer, name);
    return t;
}

static void add_vector(recipe *r, int layer, const char *name, uint32_t n, sl_random_law law)
{
    tensor *t = add(r, layer, name);
    t->n_dims = 1;
    t->ne[0] = n;
    t->law = law;
    t->deviation = 1.0 / sqrt((double)n);
}

/* n_stack matrices; rows sum over n_cols inputs of deviation 1, and so do not change it. */
static void add_stack(recipe *r, int layer, const char *name, sl_dtype dtype, uint32_t n_stack,
                      uint32_t n_rows, uint32_t n_cols)
{
    tensor *t = add(r, layer, name);
    t->dtype = dtype;
    t->n_dims = n_stack > 1 ? 3 : 2;
    t->ne[0] = n_cols;
    t->ne[1] = n_rows;
    t->ne[2] = n_stack;
    t->deviation = 1.0 / sqrt((double)n_cols);
}

static void add_matrix(recipe *r, int layer, const char *name, sl_matrix_role role, uint32_t n_rows,
                       uint32_t n_cols)
{
    const sl_dtype dtype = sl_type_mix_of(r->mix, role, (uint32_t)layer, r->n_layers);
    add_stack(r, layer, name, dtype, 1, n_rows, n_cols);
}

static bool is_attention(uint32_t layer)
{
    return (layer + 1) % INTERVAL == 0;
}

static uint32_t channels_of(const sl_shape *s)
{
    return (2 * s->gdn_key_heads + s->gdn_value_heads) * SL_GDN_DIM;
}

/* The vectors of a layer, and its convolution: all that is always float32 and small. */
static void add_layer_vectors(recipe *r, int layer)
{
    const sl_shape *s = r->shape;
    add_vector(r, layer, "attn_norm.weight", s->hidden, SL_RANDOM_NORM);
    add_vector(r, layer, "post_attention_norm.weight", s->hidden, SL_RANDOM_NORM);
    if (is_attention((uint32_t)layer)) {
        add_vector(r, layer, "attn_q_norm.weight", SL_ATTN_DIM, SL_RANDOM_NORM);
        add_vector(r, layer, "attn_k_norm.weight", SL_ATTN_DIM, SL_RANDOM_NORM);
    } else {
        add_vector(r, layer, "ssm_a", s->gdn_value_heads, SL_RANDOM_A_COEF);
        add_vector(r, layer, "ssm_dt.bias", s->gdn_value_heads, SL_RANDOM_DT);
        add_vector(r, layer, "ssm_norm.weight", SL_GDN_DIM, SL_RANDOM_NORM);
        add_stack(r, layer, "ssm_conv1d.weight", SL_F32, 1, channels_of(s), SL_CONV_TAPS);
    }
    if (s->n_experts > 0) {
        add_vector(r, layer, "ffn_gate_inp_shexp.weight", s->hidden, SL_RANDOM_NORMAL);
    }
}

static void add_layer_matrices(recipe *r, int layer)
{
    const sl_shape *s = r->shape;
    const uint32_t h = s->hidden;
    if (is_attention((uint32_t)layer)) {
        const uint32_t width = s->n_heads * SL_ATTN_DIM, n_kv = s->n_kv_heads * SL_ATTN_DIM;
        add_matrix(r, layer, "attn_q.weight", SL_ROLE_OTHER, 2 * width, h);
        add_matrix(r, layer, "attn_k.weight", SL_ROLE_OTHER, n_kv, h);
        add_matrix(r, layer, "attn_v.weight", SL_ROLE_VALUES, n_kv, h);
        add_matrix(r, layer, "attn_output.weight", SL_ROLE_OTHER, h, width);
    } else {
        const uint32_t nv = s->gdn_value_heads;
        add_matrix(r, layer, "attn_qkv.weight", SL_ROLE_VALUES, channels_of(s), h);
        add_matrix(r, layer, "attn_gate.weight", SL_ROLE_OTHER, nv * SL_GDN_DIM, h);
        add_matrix(r, layer, "ssm_alpha.weight", SL_ROLE_OTHER, nv, h);
        add_matrix(r, layer, "ssm_beta.weight", SL_ROLE_OTHER, nv, h);
        add_matrix(r, layer, "ssm_out.weight", SL_ROLE_OTHER, h, nv * SL_GDN_DIM);
    }
    if (s->n_experts == 0) {
        add_matrix(r, layer, "ffn_gate.weight", SL_ROLE_OTHER, s->ffn, h);
        add_matrix(r, layer, "ffn_up.weight", SL_ROLE_OTHER, s->ffn, h);
        add_matrix(r, layer, "ffn_down.weight", SL_ROLE_FFN_DOWN, h, s->ffn);
        return;
    }
    const sl_dtype inner = sl_type_mix_of(r->mix, SL_ROLE_OTHER, (uint32_t)layer, r->n_layers);
    const sl_dtype down = sl_type_mix_of(r->mix, SL_ROLE_FFN_DOWN, (uint32_t)layer, r->n_layers);
    add_stack(r, layer, "ffn_gate_inp.weight", SL_F32, 1, s->n_experts, h);
    add_stack(r, layer, "ffn_gate_exps.weight", inner, s->n_experts, s->expert_ffn, h);
    add_stack(r, layer, "ffn_up_exps.weight", inner, s->n_experts, s->expert_ffn, h);
    add_stack(r, layer, "ffn_down_exps.weight", down, s->n_experts, h, s->expert_ffn);
    add_matrix(r, layer, "ffn_gate_shexp.weight", SL_ROLE_OTHER, s->shared_ffn, h);
    add_matrix(r, layer, "ffn_up_shexp.weight", SL_ROLE_OTHER, s->shared_ffn, h);
    add_matrix(r, layer, "ffn_down_shexp.weight", SL_ROLE_FFN_DOWN, h, s->shared_ffn);
}

static void list_tensors(recipe *r)
{
    const sl_shape *s = r->shape;
    add_vector(r, -1, "output_norm.weight", s->hidden, SL_RANDOM_NORM);
    for (uint32_t i = 0; i < r->n_layers; i++)
        add_layer_vectors(r, (int)i);
    add_matrix(r, -1, "token_embd.weight", s->tied ? SL_ROLE_HEAD : SL_ROLE_OTHER, s->vocab,
               s->hidden);
    for (uint32_t i = 0; i < r->n_layers; i++)
        add_layer_matrices(r, (int)i);
    if (!s->tied)
        add_matrix(r, -1, "output.weight", SL_ROLE_HEAD, s->vocab, s->hidden);
}

/* ---- the metadata ---- */

static void put_number(recipe *r, const char *suffix, uint32_t value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", r->shape->n_experts > 0 ? "qwen35moe" : "qwen35", suffix);
    sl_gguf_put_u32(r->writer, key, value);
}

static void put_real(recipe *r, const char *suffix, float value)
{
    char key[96];
    snprintf(key, sizeof key, "%s.%s", r->shape->n_experts > 0 ? "qwen35moe" : "qwen35", suffix);
    sl_gguf_put_f32(r->writer, key, value);
}

static void put_metadata(recipe *r)
{
    static const int32_t sections[4] = {11, 11, 10, 0};
    const sl_shape *s = r->shape;
    const bool moe = s->n_experts > 0;
    char name[96];
    snprintf(name, sizeof name, "%s shape, random weights", s->title);
    sl_gguf_put_string(r->writer, "general.architecture", sl_str_of(moe ? "qwen35moe" : "qwen35"));
    sl_gguf_put_string(r->writer, "general.name", sl_str_of(name));
    sl_gguf_put_string(r->writer, "general.type", sl_str_of("model"));
    sl_gguf_put_u32(r->writer, "general.quantization_version", 2);
    put_number(r, "block_count", r->n_layers);
    put_number(r, "context_length", s->context_length);
    put_number(r, "embedding_length", s->hidden);
    put_number(r, "attention.head_count", s->n_heads);
    put_number(r, "attention.head_count_kv", s->n_kv_heads);
    put_number(r, "attention.key_length", SL_ATTN_DIM);
    put_number(r, "attention.value_length", SL_ATTN_DIM);
    put_real(r, "attention.layer_norm_rms_epsilon", 1e-6f);
    put_real(r, "rope.freq_base", 1e7f);
    put_number(r, "rope.dimension_count", ROPE_DIM);
    sl_gguf_put_i32s(r->writer,
                     moe ? "qwen35moe.rope.dimension_sections" : "qwen35.rope.dimension_sections",
                     sections, SL_COUNTOF(sections));
    put_number(r, "ssm.conv_kernel", SL_CONV_TAPS);
    put_number(r, "ssm.state_size", SL_GDN_DIM);
    put_number(r, "ssm.group_count", s->gdn_key_heads);
    put_number(r, "ssm.time_step_rank", s->gdn_value_heads);
    put_number(r, "ssm.inner_size", s->gdn_value_heads * SL_GDN_DIM);
    put_number(r, "full_attention_interval", INTERVAL);
    if (!moe) {
        put_number(r, "feed_forward_length", s->ffn);
        return;
    }
    put_number(r, "expert_count", s->n_experts);
    put_number(r, "expert_used_count", s->top_k);
    put_number(r, "expert_feed_forward_length", s->expert_ffn);
    put_number(r, "expert_shared_feed_forward_length", s->shared_ffn);
}

/* ---- a vocabulary that programs accept ---- */

enum { TYPE_NORMAL = 1, TYPE_CONTROL = 3, TYPE_UNUSED = 5 };

static const char *const specials[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};

/* Where the special tokens lie: at the family's ids, or in a small vocabulary after the bytes and
 * the one merge. */
static uint32_t first_special(const sl_shape *s)
{
    return s->vocab >= VOCAB ? FIRST_SPECIAL : 257;
}

static bool is_printable(unsigned byte)
{
    return (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
}

/* The character that stands for a byte: itself when it is printable, else the next one from 256. */
static uint32_t byte_letter(unsigned byte)
{
    if (is_printable(byte))
        return byte;
    uint32_t letter = 256;
    for (unsigned b = 0; b < byte; b++)
        letter += !is_printable(b);
    return letter;
}

static sl_str token_text(const sl_shape *s, uint32_t id, char text[32], int32_t *type)
{
    const uint32_t special = first_special(s);
    *type = TYPE_NORMAL;
    if (id < 256)
        return (sl_str){text, sl_utf8_encode(byte_letter(id), text)};
    if (id == 256)
        return sl_str_of("ab");
    if (id >= special && id < special + SL_COUNTOF(specials)) {
        *type = TYPE_CONTROL;
        return sl_str_of(specials[id - special]);
    }
    *type = TYPE_UNUSED;
    return (sl_str){text, (size_t)snprintf(text, 32, "[PAD%u]", id)};
}

static sl_status put_vocabulary(recipe *r, sl_error *err)
{
    const sl_shape *s = r->shape;
    char text[32];
    int32_t *types = sl_alloc_array(SL_MEM_FORMAT, s->vocab, sizeof *types);
    if (!types)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for its vocabulary", r->path);
    sl_gguf_put_string(r->writer, "tokenizer.ggml.model", sl_str_of("gpt2"));
    sl_gguf_put_string(r->writer, "tokenizer.ggml.pre", sl_str_of("qwen35"));
    sl_gguf_put_strings(r->writer, "tokenizer.ggml.tokens", s->vocab);
    for (uint32_t id = 0; id < s->vocab; id++)
        sl_gguf_add_string(r->writer, token_text(s, id, text, &types[id]));
    sl_gguf_put_i32s(r->writer, "tokenizer.ggml.token_type", types, s->vocab);
    sl_free(types);
    sl_gguf_put_strings(r->writer, "tokenizer.ggml.merges", 1);
    sl_gguf_add_string(r->writer, sl_str_of("a b"));
    sl_gguf_put_u32(r->writer, "tokenizer.ggml.eos_token_id", first_special(s) + 2);
    sl_gguf_put_u32(r->writer, "tokenizer.ggml.padding_token_id", first_special(s));
    sl_gguf_put_bool(r->writer, "tokenizer.ggml.add_bos_token", false);
    return SL_OK;
}

/* ---- describing ---- */

static sl_status check_layers(recipe *r, const sl_synthetic *model, sl_error *err)
{
    if (model->n_layers > r->shape->n_layers)
        return sl_fail(err, SL_ERR_ARGUMENT, "%u layers: the shape %s has %u", model->n_layers,
                       r->shape->name, r->shape->n_layers);
    r->n_layers = model->n_layers ? model->n_layers : r->shape->n_layers;
    return SL_OK;
}

/* The tensors of the recipe and, in its writer, their header. */
static sl_status describe(recipe *r, const sl_shape *shape, const sl_synthetic *model,
                          const char *file, sl_error *err)
{
    SL_TRY(sl_check_reserved(model->reserved, SL_COUNTOF(model->reserved), "sl_synthetic", err));
    r->shape = shape;
    r->seed = model->seed;
    r->type = model->type;
    r->mix = sl_type_mix_find(model->type);
    if (!r->mix)
        return sl_fail(err, SL_ERR_ARGUMENT, "there is no type '%s' for random weights",
                       model->type);
    SL_TRY(check_layers(r, model, err));
    snprintf(r->path, sizeof r->path, "random weights (%s, %s)", shape->name, model->type);
    r->tensors = sl_alloc_array(SL_MEM_FORMAT, TENSORS_OUTSIDE + r->n_layers * TENSORS_OF_LAYER,
                                sizeof *r->tensors);
    if (!r->tensors)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for its tensors", r->path);
    list_tensors(r);
    SL_TRY(sl_gguf_writer_create(file ? file : r->path, &r->writer, err));
    put_metadata(r);
    if (file)
        SL_TRY(put_vocabulary(r, err));
    for (size_t i = 0; i < r->n_tensors; i++)
        sl_gguf_put_tensor(r->writer, r->tensors[i].name, r->tensors[i].dtype, r->tensors[i].n_dims,
                           r->tensors[i].ne);
    return sl_gguf_writer_finish(r->writer, err);
}

static void discard(recipe *r)
{
    sl_gguf_writer_free(r->writer);
    sl_free(r->tensors);
}

/* ---- the bytes ---- */

/* FNV-1a of the name, so that every tensor has numbers of its own. */
static uint64_t seed_of(const recipe *r, const char *name)
{
    uint64_t hash = 0xCBF29CE484222325u ^ r->seed;
    for (const char *c = name; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 0x100000001B3u;
    return hash;
}

static sl_status open_source(const recipe *r, size_t i, sl_random_source **out, sl_error *err)
{
    const tensor *t = &r->tensors[i];
    size_t n = 1;
    for (uint32_t d = 0; d < t->n_dims; d++)
        n *= (size_t)t->ne[d]; /* the writer has checked that the bytes fit */
    return sl_random_open(t->dtype, n, t->law, t->deviation, seed_of(r, t->name), out, err);
}

/* The first n tensors into block, behind the header. */
static sl_status fill(const recipe *r, uint8_t *block, size_t n, sl_error *err)
{
    const sl_str header = sl_gguf_writer_header(r->writer);
    memcpy(block, header.data, header.n_bytes);
    for (size_t i = 0; i < n; i++) {
        sl_random_source *source;
        SL_TRY(open_source(r, i, &source, err));
        sl_random_read(source, block + sl_gguf_writer_offset(r->writer, i),
                       sl_gguf_writer_bytes(r->writer, i));
        sl_random_close(source);
    }
    return SL_OK;
}

static size_t first_matrix(const recipe *r)
{
    size_t i = 0;
    while (strcmp(r->tensors[i].name, "token_embd.weight") != 0)
        i++;
    return i;
}

static sl_status build(recipe *r, bool headers_only, sl_weights **out, sl_error *err)
{
    const size_t total = sl_gguf_writer_total(r->writer);
    const size_t n = headers_only ? first_matrix(r) : r->n_tensors;
    const size_t n_bytes = headers_only ? sl_gguf_writer_offset(r->writer, n) : total;
    uint8_t *block = sl_alloc(SL_MEM_WEIGHTS, n_bytes);
    if (!block)
        return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory for %.1f MiB of weights", r->path,
                       (double)n_bytes / (1 << 20));
    const sl_status status = fill(r, block, n, err);
    if (status != SL_OK) {
        sl_free(block);
        return status;
    }
    return sl_weights_adopt(r->path, block, n_bytes, total, out, err);
}

/* ---- interface ---- */

sl_status sl_synthetic_weights_of(const sl_shape *shape, const sl_synthetic *model,
                                  bool headers_only, sl_weights **out, sl_error *err)
{
    recipe r = {0};
    *out = NULL;
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = describe(&r, shape, model, NULL, err);
    if (status == SL_OK)
        status = build(&r, headers_only, out, err);
    discard(&r);
    sl_fpenv_leave(env);
    return status;
}

static sl_status find_shape(const sl_synthetic *model, const sl_shape **out, sl_error *err)
{
    *out = sl_shape_find(model->shape);
    if (*out)
        return SL_OK;
    return sl_fail(err, SL_ERR_ARGUMENT, "there is no shape '%s'", model->shape);
}

sl_status sl_synthetic_weights(const sl_synthetic *model, bool headers_only, sl_weights **out,
                               sl_error *err)
{
    const sl_shape *shape;
    SL_TRY(find_shape(model, &shape, err));
    return sl_synthetic_weights_of(shape, model, headers_only, out, err);
}

/* A file being written: the tensor that is under way. */
typedef struct saving {
    const recipe *recipe;
    size_t tensor;
    sl_random_source *source;
    bool (*progress)(void *context, size_t done, size_t total);
    void *progress_context;
    size_t n_done;
} saving;

static sl_status next_piece(void *context, size_t i, uint8_t *bytes, size_t n, sl_error *err)
{
    saving *s = context;
    if (!s->source || s->tensor != i) {
        sl_random_close(s->source);
        s->source = NULL;
        s->tensor = i;
        SL_TRY(open_source(s->recipe, i, &s->source, err));
    }
    sl_random_read(s->source, bytes, n);
    s->n_done += n;
    if (s->progress &&
        s->progress(s->progress_context, s->n_done, sl_gguf_writer_total(s->recipe->writer)))
        return sl_fail(err, SL_ERR_CANCELLED, "%s: saving was stopped", s->recipe->path);
    return SL_OK;
}

sl_status sl_synthetic_save(const sl_synthetic *model, const char *path,
                            bool (*progress)(void *context, size_t done, size_t total),
                            void *progress_context, sl_error *err)
{
    const sl_shape *shape;
    recipe r = {0};
    saving s = {.recipe = &r, .progress = progress, .progress_context = progress_context};
    SL_TRY(find_shape(model, &shape, err));
    sl_fpenv env = sl_fpenv_enter();
    sl_status status = describe(&r, shape, model, path, err);
    if (status == SL_OK)
        status = sl_gguf_writer_save(r.writer, next_piece, &s, err);
    sl_random_close(s.source);
    discard(&r);
    sl_fpenv_leave(env);
    return status;
}
