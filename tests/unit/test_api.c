/* The public header as its users see it: engines opened in part, what they tell of their model,
 * messages and tools as text, opaque decoders and filters; every failing allocation; hosts with
 * other floating-point modes; threads. What the parts compute is tested where they are. */
#include "hostmode.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "model_build.h"
#include "models.h"

#include "base/json.h"
#include "base/mem.h"
#include "engine/text.h"

static const char tiny[] = "models/tiny-q8_0.gguf";

static sl_engine *open_at(const char *path, sl_open_level level)
{
    sl_error err;
    sl_engine *engine;
    sl_engine_params params = sl_engine_params_default();
    params.level = level;
    params.n_threads = 2;
    assert_ok(sl_engine_open(path, &params, &engine, &err));
    return engine;
}

static sl_str str(const char *s)
{
    return (sl_str){s, strlen(s)};
}

/* ---- engines ---- */

static void test_levels(void **state)
{
    (void)state;
    static const sl_open_level levels[] = {SL_OPEN_TEXT, SL_OPEN_HEADERS};
    for (size_t i = 0; i < SL_COUNTOF(levels); i++) {
        sl_error err;
        sl_engine *engine = open_at(tiny, levels[i]);
        const bool has_text = levels[i] == SL_OPEN_TEXT;
        sl_state *sequence;
        char *text;
        size_t n;
        uint8_t fingerprint[SL_FINGERPRINT_BYTES];
        assert_refused(sl_state_create(engine, 8, &sequence, &err), SL_ERR_ARGUMENT,
                       "tiny-q8_0.gguf was opened without its weights");
        assert_refused(sl_state_load(engine, tiny, 0, &sequence, NULL, NULL, &err), SL_ERR_ARGUMENT,
                       "without its weights");
        assert_refused(sl_engine_dump_plan(engine, 1, 0, &text, &n, &err), SL_ERR_ARGUMENT,
                       "without its weights");
        assert_refused(sl_engine_fingerprint(engine, fingerprint, &err), SL_ERR_ARGUMENT,
                       "without its weights");
        assert_int_equal(sl_engine_checkpoint_stats(engine).n_checkpoints, 0);

        const sl_tokenizer *tokenizer;
        sl_ids ids = {0};
        const sl_chat chat = {.messages = str("[{\"role\": \"user\", \"content\": \"Hi\"}]")};
        if (has_text) {
            assert_ok(sl_engine_tokenizer(engine, &tokenizer, &err));
            const int32_t end = sl_tokenizer_find(tokenizer, "<|im_end|>");
            assert_true(sl_engine_is_stop(engine, end));
            assert_ok(sl_engine_render(engine, &chat, &ids, NULL, &err));
            assert_true(ids.n > 5);
        } else {
            assert_refused(sl_engine_tokenizer(engine, &tokenizer, &err), SL_ERR_ARGUMENT,
                           "opened without its tokenizer");
            assert_false(sl_engine_is_stop(engine, 0));
            assert_refused(sl_engine_render(engine, &chat, &ids, NULL, &err), SL_ERR_ARGUMENT,
                           "opened without its tokenizer");
        }
        sl_ids_free(&ids);
        sl_engine_close(engine);
    }
    sl_engine_close(NULL);
}

/* A model without a tokenizer that can be used still evaluates ids, and says why it has none. */
static void test_no_tokenizer(void **state)
{
    (void)state;
    sl_error err;
    const char *source = sl_model_path("rand-r3"), *folder = sl_temp_make();
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (size_t i = 0; i < SL_COUNTOF(files); i++)
        sl_copy_file(sl_path(source, files[i]), sl_path(folder, files[i]));
    sl_engine *engine = open_at(folder, SL_OPEN_ALL);
    const sl_tokenizer *tokenizer;
    assert_refused(sl_engine_tokenizer(engine, &tokenizer, &err), SL_ERR_FORMAT,
                   "tokenizer.json is missing");
    assert_null(tokenizer);
    sl_model_info info;
    sl_engine_model_info(engine, &info);
    assert_string_equal(info.container, "safetensors");
    assert_false(info.has_tokenizer || info.has_template);
    sl_sampler *sampler;
    const sl_sampling greedy = sl_sampling_default();
    assert_ok(sl_engine_sampler(engine, &greedy, &sampler, &err)); /* with nothing to ban */
    sl_sampler_destroy(sampler);
    sl_state *sequence;
    const int32_t tokens[] = {1, 2, 3};
    assert_ok(sl_state_create(engine, 3, &sequence, &err));
    const sl_eval_item item = {.state = sequence, .tokens = tokens, .n_tokens = 3};
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    sl_state_free(sequence);
    sl_engine_close(engine);
    sl_temp_remove(folder);
}

static void test_refused_structs(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine;
    sl_engine_params params = sl_engine_params_default();
    params.level = (sl_open_level)7;
    assert_refused(sl_engine_open(tiny, &params, &engine, &err), SL_ERR_ARGUMENT, "7 is no level");
    params = sl_engine_params_default();
    params.reserved[2] = 1;
    assert_refused(sl_engine_open(tiny, &params, &engine, &err), SL_ERR_ARGUMENT,
                   "reserved[2] of sl_engine_params is not 0");
    assert_ok(sl_engine_open(tiny, NULL, &engine, &err));

    sl_state *sequence;
    const int32_t token = 1;
    assert_ok(sl_state_create(engine, 4, &sequence, &err));
    sl_eval_item item = {.state = sequence, .tokens = &token, .n_tokens = 1, .reserved = {0, 9}};
    assert_refused(sl_engine_eval(engine, &item, 1, NULL, &err), SL_ERR_ARGUMENT,
                   "reserved[1] of sl_eval_item");
    item.reserved[1] = 0;
    sl_eval_options options = {.reserved = {1}};
    assert_refused(sl_engine_eval(engine, &item, 1, &options, &err), SL_ERR_ARGUMENT,
                   "reserved[0] of sl_eval_options");
    assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err)); /* nothing had happened */
    sl_state_free(sequence);

    sl_sampling sampling = sl_engine_sampling(engine);
    sampling.reserved[2] = 1;
    assert_refused(sl_sampling_check(&sampling, &err), SL_ERR_ARGUMENT,
                   "reserved[2] of sl_sampling");
    sl_sampler *sampler;
    assert_refused(sl_engine_sampler(engine, &sampling, &sampler, &err), SL_ERR_ARGUMENT,
                   "reserved[2] of sl_sampling");
    sampling.reserved[2] = 0;
    assert_ok(sl_engine_sampler(engine, &sampling, &sampler, &err));
    const float logits[2] = {0, 1};
    const sl_sample_context context = {.reserved = {1}};
    int32_t chosen;
    assert_refused(sl_sample_next(sampler, logits, 2, &context, &chosen, &err), SL_ERR_ARGUMENT,
                   "reserved[0] of sl_sample_context");
    sl_sampler_destroy(sampler);

    sl_ids ids = {0};
    const sl_chat chat = {.messages = str("[]"), .reserved = {1}};
    assert_refused(sl_engine_render(engine, &chat, &ids, NULL, &err), SL_ERR_ARGUMENT,
                   "reserved[0] of sl_chat");
    sl_outparse *parser;
    const sl_outparse_params parse = {.reserved = {0, 1}};
    assert_refused(sl_outparse_create(&parse, NULL, NULL, &parser, &err), SL_ERR_ARGUMENT,
                   "reserved[1] of sl_outparse_params");
    sl_engine_close(engine);
}

/* ---- what is in the model ---- */

static void test_info(void **state)
{
    (void)state;
    sl_error err;
    sl_model_info all, headers;
    sl_engine *engine = open_at(tiny, SL_OPEN_ALL), *part = open_at(tiny, SL_OPEN_HEADERS);
    sl_engine_model_info(engine, &all);
    sl_engine_model_info(part, &headers);
    assert_string_equal(all.path, tiny);
    assert_string_equal(all.container, "gguf");
    assert_string_equal(all.arch, "qwen35");
    assert_string_equal(all.main_type, "Q8_0");
    assert_string_equal(all.name, ""); /* this file has none */
    assert_int_equal(all.vocab, sl_engine_vocab(engine));
    assert_int_equal(all.n_gdn_layers + all.n_attention_layers, all.n_layers);
    assert_in_range(all.n_parameters, 10000000, 12000000);
    assert_true(all.has_tokenizer && all.has_template && all.has_draft_head);
    assert_int_equal(all.n_threads, 2);
    assert_int_equal(headers.n_threads, 0);
    assert_false(headers.has_tokenizer);
    assert_int_equal(headers.n_parameters, all.n_parameters);
    assert_string_equal(headers.name, all.name);

    sl_memory_plan plan, same;
    assert_ok(sl_engine_memory_plan(engine, 100, &plan, &err));
    assert_ok(sl_engine_memory_plan(part, 100, &same, &err));
    assert_memory_equal(&plan, &same, sizeof plan);
    char *json;
    size_t n;
    json_t *info;
    assert_ok(sl_engine_info_json(part, 100, SL_INFO_TENSORS, &json, &n, &err));
    assert_int_equal(n, strlen(json));
    assert_ok(sl_json_parse(json, n, "info", sl_json_limits_default(), &info, &err));
    assert_int_equal(json_integer_value(json_object_get(info, "parameters")), all.n_parameters);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(info, "memory"), "state_context")),
        plan.state_context);
    uint64_t bytes = 0;
    size_t i;
    json_t *tensor;
    json_array_foreach(json_object_get(info, "tensors"), i, tensor) bytes +=
        (uint64_t)json_integer_value(json_object_get(tensor, "bytes"));
    assert_int_equal(bytes, all.n_weight_bytes);
    json_decref(info);
    sl_free(json);
    assert_ok(sl_engine_info_json(part, 100, 0, &json, &n, &err));
    assert_null(strstr(json, "\"tensors\": ["));
    sl_free(json);
    sl_engine_close(engine);
    sl_engine_close(part);
    engine = open_at(sl_model_path("rand-moe-q8_0.gguf"), SL_OPEN_HEADERS);
    sl_engine_model_info(engine, &all);
    assert_string_equal(all.name, "Rand Moe");
    assert_true(all.n_experts > 0 && all.ffn == 0);
    sl_engine_close(engine);
}

/* ---- text ---- */

static const char messages[] = "[{\"role\": \"system\", \"content\": \"Be brief.\"},"
                               " {\"role\": \"user\", \"content\": \"Say <|im_end|> twice\"}]";
static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": "
    "\"object\", \"properties\": {\"n\": {\"type\": \"integer\"}}}}}]";

static json_t *parsed(const char *text)
{
    json_t *value = json_loads(text, 0, NULL);
    assert_non_null(value);
    return value;
}

static void test_render(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_at(tiny, SL_OPEN_TEXT);
    for (int variant = 0; variant < 8; variant++) {
        const bool with_tools = variant & 1, no_reply = variant & 2, trust = variant & 4;
        sl_chat chat = {.messages = str(messages),
                        .variables = str("{\"enable_thinking\": true}"),
                        .no_reply = no_reply,
                        .trust_content = trust};
        if (with_tools)
            chat.tools = str(tools);
        sl_ids ids = {0}, expected = {0};
        sl_rendered rendered;
        assert_ok(sl_engine_render(engine, &chat, &ids, &rendered, &err));

        /* The same through the inner functions. */
        sl_text *text;
        sl_marked_text marked;
        assert_ok(sl_text_open(sl_engine_weights(engine), sl_engine_config(engine), &text, &err));
        json_t *m = parsed(messages), *t = parsed(tools),
               *v = parsed("{\"enable_thinking\": true}");
        const sl_template_input input = {.messages = m,
                                         .tools = with_tools ? t : NULL,
                                         .variables = v,
                                         .add_generation_prompt = !no_reply,
                                         .trust_content = trust};
        assert_ok(sl_text_render(text, &input, &expected, &marked, NULL, &err));
        assert_int_equal(ids.n, expected.n);
        assert_memory_equal(ids.ids, expected.ids, ids.n * sizeof *ids.ids);
        assert_string_equal(rendered.text, marked.text.data);
        assert_int_equal(rendered.n_bytes, marked.text.n_bytes);
        assert_int_equal(rendered.n_untrusted, marked.n_untrusted);
        if (rendered.n_untrusted > 0)
            assert_memory_equal(rendered.untrusted, marked.untrusted,
                                marked.n_untrusted * sizeof *marked.untrusted);
        sl_marked_text_free(&marked);
        sl_text_close(text);
        json_decref(m);
        json_decref(t);
        json_decref(v);
        sl_ids_free(&expected);
        sl_ids_free(&ids);
        sl_rendered_free(&rendered);
        assert_null(rendered.text);
    }
    sl_engine_close(engine);
}

static void test_render_refuses(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_at(tiny, SL_OPEN_TEXT);
    const struct {
        const char *messages, *tools, *variables;
        sl_status status;
        const char *sentence;
    } cases[] = {
        {"", "", "", SL_ERR_ARGUMENT, "there are no messages"},
        {"{}", "", "", SL_ERR_ARGUMENT, "messages must be a JSON array"},
        {"[", "", "", SL_ERR_FORMAT, "messages: line 1"},
        {messages, "{}", "", SL_ERR_ARGUMENT, "tools must be a JSON array"},
        {messages, "[1,", "", SL_ERR_FORMAT, "tools: line 1"},
        {messages, "", "[]", SL_ERR_ARGUMENT, "variables must be a JSON object"},
        {"[{\"role\": \"wizard\"}]", "", "", SL_ERR_ARGUMENT, "messages[0].role"},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        sl_ids ids = {0};
        sl_rendered rendered;
        const sl_chat chat = {.messages = str(cases[i].messages),
                              .tools = str(cases[i].tools),
                              .variables = str(cases[i].variables)};
        assert_refused(sl_engine_render(engine, &chat, &ids, &rendered, &err), cases[i].status,
                       cases[i].sentence);
        assert_int_equal(ids.n, 0);
        sl_ids_free(&ids);
    }
    sl_engine_close(engine);
}

static void test_quote(void **state)
{
    (void)state;
    sl_error err;
    const struct {
        const char *text, *json;
        size_t n;
    } cases[] = {
        {"", "\"\"", 0},
        {"a\"b\\c\n\x01", "\"a\\\"b\\\\c\\n\\u0001\"", 7},
        {"\xC3\xA9\xFFz\xE2\x82", "\"\xC3\xA9\xEF\xBF\xBDz\xEF\xBF\xBD\"", 6},
    };
    for (size_t i = 0; i < SL_COUNTOF(cases); i++) {
        char *json;
        size_t n;
        assert_ok(sl_json_quote(cases[i].text, cases[i].n, &json, &n, &err));
        assert_string_equal(json, cases[i].json);
        assert_int_equal(n, strlen(json));
        sl_free(json);
    }
}

static void test_detokenizer(void **state)
{
    (void)state;
    sl_error err;
    static const char text[] = "caf\xC3\xA9 \xF0\x9F\x98\x80<|im_end|>!";
    sl_engine *engine = open_at(tiny, SL_OPEN_TEXT);
    const sl_tokenizer *tokenizer;
    sl_ids ids = {0};
    const sl_encode_options how = {.control = true};
    assert_ok(sl_engine_tokenizer(engine, &tokenizer, &err));
    assert_ok(sl_tokenizer_encode(tokenizer, text, strlen(text), &how, &ids, NULL, &err));
    for (int hide = 0; hide < 2; hide++) {
        sl_detokenizer *detokenizer;
        char out[64] = "";
        sl_str piece;
        assert_ok(sl_detokenizer_create(tokenizer, hide, &detokenizer, &err));
        for (size_t i = 0; i < ids.n; i++) {
            assert_ok(sl_detokenizer_push(detokenizer, ids.ids[i], &piece, &err));
            strncat(out, piece.data, piece.n_bytes);
        }
        assert_ok(sl_detokenizer_finish(detokenizer, &piece, &err));
        assert_int_equal(piece.n_bytes, 0);
        assert_string_equal(out, hide ? "caf\xC3\xA9 \xF0\x9F\x98\x80!" : text);
        sl_detokenizer_free(detokenizer);
    }
    sl_detokenizer_free(NULL);
    sl_ids_free(&ids);
    sl_engine_close(engine);
}

static void test_stop_filter(void **state)
{
    (void)state;
    sl_error err;
    const sl_str strings[] = {{"END", 3}, {"stop!", 5}};
    sl_stop_filter *filter;
    sl_str certain;
    assert_ok(sl_stop_filter_create(strings, 2, &filter, &err));
    assert_int_equal(sl_stop_filter_found(filter), -1);
    assert_ok(sl_stop_filter_push(filter, "an EN", 5, &certain, &err));
    assert_int_equal(certain.n_bytes, 3);
    assert_ok(sl_stop_filter_finish(filter, &certain, &err));
    assert_int_equal(certain.n_bytes, 2);
    assert_memory_equal(certain.data, "EN", 2);
    assert_ok(sl_stop_filter_push(filter, "D sto", 5, &certain, &err)); /* it began anew */
    assert_memory_equal(certain.data, "D ", 2);
    assert_ok(sl_stop_filter_push(filter, "p!END", 5, &certain, &err));
    assert_int_equal(certain.n_bytes, 0);
    assert_int_equal(sl_stop_filter_found(filter), 1);
    sl_stop_filter_free(filter);
    sl_stop_filter_free(NULL);
    const sl_str empty = {"", 0};
    assert_refused(sl_stop_filter_create(&empty, 1, &filter, &err), SL_ERR_ARGUMENT, "");
}

/* ---- the parser with tools as text ---- */

static sl_status gather_arguments(void *user, const sl_outparse_event *event, sl_error *err)
{
    (void)err;
    char *out = user;
    if (event->kind == SL_OUTPARSE_CALL_ARGUMENTS)
        strncat(out, event->text.data, event->text.n_bytes);
    return SL_OK;
}

static void test_parser(void **state)
{
    (void)state;
    sl_error err;
    static const char answer[] = "<tool_call>\n<function=f>\n<parameter=n>\n7\n</parameter>\n"
                                 "</function>\n</tool_call>";
    for (int typed = 0; typed < 2; typed++) {
        sl_outparse *parser;
        char arguments[64] = "";
        char *text = strdup(typed ? tools : ""); /* not needed after the call */
        const sl_outparse_params params = {.tools = str(text)};
        assert_ok(sl_outparse_create(&params, gather_arguments, arguments, &parser, &err));
        memset(text, 'x', strlen(text));
        free(text);
        assert_ok(sl_outparse_push(parser, answer, strlen(answer), &err));
        assert_ok(sl_outparse_finish(parser, &err));
        assert_string_equal(arguments, typed ? "{\"n\":7}" : "{\"n\":\"7\"}");
        assert_int_equal(sl_outparse_n_calls(parser), 1);
        sl_outparse_free(parser);
    }
    sl_outparse *parser;
    sl_outparse_params params = {.tools = str("[{]")};
    assert_refused(sl_outparse_create(&params, NULL, NULL, &parser, &err), SL_ERR_FORMAT,
                   "tools: line 1");
    params.tools = str("{}");
    assert_refused(sl_outparse_create(&params, NULL, NULL, &parser, &err), SL_ERR_ARGUMENT,
                   "tools must be an array");
    assert_ok(sl_outparse_create(NULL, gather_arguments, (char[1]){0}, &parser, &err));
    sl_outparse_free(parser);
}

/* ---- the sampler of an engine ---- */

static void test_engine_sampler(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_at(tiny, SL_OPEN_TEXT);
    const sl_tokenizer *tokenizer;
    assert_ok(sl_engine_tokenizer(engine, &tokenizer, &err));
    const size_t vocab = sl_engine_vocab(engine);
    int32_t padding = -1;
    for (size_t id = 0; id < vocab && padding < 0; id++) {
        if (sl_tokenizer_kind(tokenizer, (int32_t)id) == SL_TOKEN_UNUSED)
            padding = (int32_t)id;
    }
    assert_true(padding >= 0);
    float *logits = sl_alloc_zero(SL_MEM_GENERAL, vocab * sizeof *logits);
    logits[padding] = 9;
    logits[5] = 1;
    sl_sampler *sampler;
    sl_sampling sampling = sl_sampling_default();
    int32_t token;
    assert_ok(sl_engine_sampler(engine, &sampling, &sampler, &err));
    assert_ok(sl_sample(sampler, logits, vocab, 0, &token, &err));
    assert_int_equal(token, 5);

    /* Loop breaking knows line ends from the start. */
    int32_t history[6];
    sl_ids ids = {0};
    assert_ok(sl_tokenizer_encode(tokenizer, "a\nb", 3, NULL, &ids, NULL, &err));
    assert_int_equal(ids.n, 3);
    for (size_t i = 0; i < 6; i++)
        history[i] = ids.ids[i % 3];
    logits[ids.ids[0]] = 2;
    sampling.dry_multiplier = 100;
    sampling.dry_allowed_length = 2;
    assert_ok(sl_sampler_set(sampler, &sampling, &err));
    const sl_sample_context context = {.history = {history, 6, 0}, .position = 6};
    assert_ok(sl_sample_next(sampler, logits, vocab, &context, &token, &err));
    assert_int_equal(token, ids.ids[0]); /* the span "a b" is cut by the line end */
    sl_sampler_set_breakers(sampler, NULL);
    assert_ok(sl_sample_next(sampler, logits, vocab, &context, &token, &err));
    assert_int_equal(token, 5);
    sl_ids_free(&ids);
    sl_sampler_destroy(sampler);
    sl_free(logits);

    const sl_sampling recommended = sl_engine_sampling(engine);
    assert_true(recommended.temperature > 0 && recommended.top_k > 0);
    sl_engine_close(engine);
}

/* ---- arrays ---- */

static void test_arrays(void **state)
{
    (void)state;
    sl_error err;
    const char *folder = sl_temp_make(), *path = sl_path(folder, "a.safetensors");
    const float floats[6] = {1, 2, 3, 4, 5, 0x1p-130f};
    const int32_t ids[2] = {7, -1};
    sl_array arrays[2] = {
        {.name = "x", .type = SL_ARRAY_F32, .n_dims = 2, .shape = {3, 2}, .data = floats},
        {.name = "ids", .type = SL_ARRAY_I32, .n_dims = 1, .shape = {2}, .data = ids},
    };
    const sl_array_note note = {"about", "a test"};
    assert_ok(sl_arrays_write(path, arrays, 2, &note, 1, &err));
    sl_arrays *file;
    assert_ok(sl_arrays_open(path, &file, &err));
    assert_int_equal(sl_arrays_count(file), 2);
    for (size_t i = 0; i < 2; i++) {
        const sl_array array = sl_arrays_at(file, i);
        assert_string_equal(array.name, arrays[i].name);
        assert_int_equal(array.type, arrays[i].type);
        assert_int_equal(array.n_dims, arrays[i].n_dims);
        for (uint32_t d = 0; d < array.n_dims; d++)
            assert_int_equal(array.shape[d], arrays[i].shape[d]);
        assert_memory_equal(array.data, arrays[i].data, i == 0 ? sizeof floats : sizeof ids);
    }
    assert_ok(sl_arrays_check(file, &err));
    sl_arrays_close(file);
    sl_arrays_close(NULL);

    arrays[1].type = SL_ARRAY_OTHER;
    assert_refused(sl_arrays_write(path, arrays, 2, NULL, 0, &err), SL_ERR_ARGUMENT,
                   "'ids' is neither of floats nor of ids");
    /* Other types are there, but not to be read; nor is what has more dimensions. */
    static const char header[] =
        "{\"h\":{\"dtype\":\"F16\",\"shape\":[2],\"data_offsets\":[0,4]},"
        "\"d\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1],\"data_offsets\":[4,8]}}";
    char bytes[8 + sizeof header - 1 + 8] = {(char)(sizeof header - 1)};
    memcpy(bytes + 8, header, sizeof header - 1);
    sl_write_file(path, bytes, sizeof bytes);
    assert_ok(sl_arrays_open(path, &file, &err));
    assert_int_equal(sl_arrays_count(file), 2);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(sl_arrays_at(file, i).type, SL_ARRAY_OTHER);
        assert_int_equal(sl_arrays_at(file, i).n_dims, 0);
    }
    sl_arrays_close(file);
    assert_refused(sl_arrays_open(sl_path(folder, "none"), &file, &err), SL_ERR_IO, "none");
    assert_refused(sl_arrays_open("README.md", &file, &err), SL_ERR_FORMAT, "README.md");
    sl_temp_remove(folder);
}

/* ---- failing allocations ---- */

typedef struct text_work {
    sl_engine *engine;
    sl_error err;
} text_work;

static sl_status do_text_work(text_work *w)
{
    sl_error *err = &w->err;
    const sl_tokenizer *tokenizer;
    sl_ids ids = {0};
    sl_rendered rendered = {0};
    sl_detokenizer *detokenizer = NULL;
    sl_stop_filter *filter = NULL;
    sl_outparse *parser = NULL;
    sl_sampler *sampler = NULL;
    char *json = NULL, *quoted = NULL, *plan = NULL, arguments[64] = "";
    size_t n;
    sl_str piece;
    sl_status status;
    const sl_chat chat = {.messages = str(messages), .tools = str(tools)};
    const sl_str stop = {"END", 3};
    const sl_outparse_params params = {.tools = str(tools)};
    const sl_sampling sampling = sl_engine_sampling(w->engine);
    SL_CHECK(sl_engine_tokenizer(w->engine, &tokenizer, err));
    SL_CHECK(sl_engine_render(w->engine, &chat, &ids, &rendered, err));
    SL_CHECK(sl_detokenizer_create(tokenizer, true, &detokenizer, err));
    for (size_t i = 0; i < 8; i++)
        SL_CHECK(sl_detokenizer_push(detokenizer, ids.ids[i], &piece, err));
    SL_CHECK(sl_stop_filter_create(&stop, 1, &filter, err));
    SL_CHECK(sl_stop_filter_push(filter, "text EN", 7, &piece, err));
    SL_CHECK(sl_outparse_create(&params, gather_arguments, arguments, &parser, err));
    SL_CHECK(sl_outparse_push(parser, "some text", 9, err));
    SL_CHECK(sl_engine_sampler(w->engine, &sampling, &sampler, err));
    SL_CHECK(sl_engine_info_json(w->engine, 64, SL_INFO_TENSORS, &json, &n, err));
    SL_CHECK(sl_engine_dump_plan(w->engine, 1, 0, &plan, &n, err));
    SL_CHECK(sl_json_quote("a\xFF", 2, &quoted, &n, err));
done:
    sl_free(json);
    sl_free(quoted);
    sl_free(plan);
    sl_sampler_destroy(sampler);
    sl_outparse_free(parser);
    sl_stop_filter_free(filter);
    sl_detokenizer_free(detokenizer);
    sl_rendered_free(&rendered);
    sl_ids_free(&ids);
    return status;
}

static void test_allocation_failures(void **state)
{
    (void)state;
    text_work work = {.engine = open_at(tiny, SL_OPEN_ALL)};
    const size_t blocks = sl_mem_get_stats().blocks;
    sl_status status = SL_ERR_MEMORY;
    uint64_t n = 0;
    while (status == SL_ERR_MEMORY) {
        sl_mem_fail_at(++n, false);
        status = do_text_work(&work);
        sl_mem_fail_at(0, false);
        assert_int_equal(sl_mem_get_stats().blocks, blocks);
    }
    if (status != SL_OK)
        print_error("%s\n", work.err.message);
    assert_int_equal(status, SL_OK);
    assert_true(n > 40);
    sl_engine_close(work.engine);
    assert_true(sl_mem_get_stats().blocks < blocks);
}

/* ---- hosts ---- */

/* Numbers in JSON and templates, typed arguments, memory plans: all alike, and the mode returns. */
static void test_host_modes(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_at(tiny, SL_OPEN_TEXT);
    static const char numbers[] =
        "[{\"role\": \"user\", \"content\": \"x\"}, {\"role\": \"assistant\", \"tool_calls\": "
        "[{\"function\": {\"name\": \"f\", \"arguments\": {\"x\": 0.1, \"y\": 1e-310}}}]}]";
    static const char call[] = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": "
                               "0.30000000000000004, \"y\": 5e-324}}\n</tool_call>";
    char *plain = NULL;
    for (size_t i = 0; i < SL_COUNTOF(sl_host_modes); i++) {
        sl_ids ids = {0};
        sl_rendered rendered;
        sl_outparse *parser;
        char *info, all[8192] = "", arguments[256] = "";
        size_t n;
        const sl_chat chat = {.messages = str(numbers), .no_reply = true};
        const sl_outparse_params params = {.tools = str(tools)};
        sl_set_host_mode(sl_host_modes[i]);
        assert_ok(sl_engine_render(engine, &chat, &ids, &rendered, &err));
        assert_ok(sl_outparse_create(&params, gather_arguments, arguments, &parser, &err));
        assert_ok(sl_outparse_push(parser, call, strlen(call), &err));
        assert_ok(sl_outparse_finish(parser, &err));
        assert_ok(sl_engine_info_json(engine, 64, 0, &info, &n, &err));
        const uint64_t mode = sl_host_mode();
        sl_set_host_mode(SL_HOST_PLAIN);
        assert_int_equal(mode & ~(uint64_t)SL_HOST_SEEN,
                         sl_host_modes[i] & ~(uint64_t)SL_HOST_SEEN);
        strncat(all, rendered.text, 3000);
        strncat(all, arguments, 1000);
        strncat(all, info, 4000);
        if (!plain) {
            plain = strdup(all);
            assert_non_null(strstr(plain, "0.1"));
            assert_non_null(strstr(plain, "0.30000000000000004"));
        }
        assert_string_equal(all, plain);
        sl_outparse_free(parser);
        sl_rendered_free(&rendered);
        sl_ids_free(&ids);
        sl_free(info);
    }
    free(plain);
    sl_engine_close(engine);
}

/* ---- threads ---- */

typedef struct reader {
    const sl_engine *engine;
    bool agreed;
} reader;

/* Renders, encodes and asks, while another thread evaluates. */
static void *read_engine(void *user)
{
    reader *r = user;
    const sl_chat chat = {.messages = str(messages), .tools = str(tools)};
    sl_ids first = {0};
    r->agreed = sl_engine_render(r->engine, &chat, &first, NULL, NULL) == SL_OK;
    for (int i = 0; i < 20 && r->agreed; i++) {
        sl_ids ids = {0};
        sl_model_info info;
        const sl_tokenizer *tokenizer;
        r->agreed = sl_engine_render(r->engine, &chat, &ids, NULL, NULL) == SL_OK &&
                    ids.n == first.n && memcmp(ids.ids, first.ids, ids.n * sizeof *ids.ids) == 0 &&
                    sl_engine_tokenizer(r->engine, &tokenizer, NULL) == SL_OK &&
                    sl_tokenizer_encode(tokenizer, "more text", 9, NULL, &ids, NULL, NULL) == SL_OK;
        sl_engine_model_info(r->engine, &info);
        sl_ids_free(&ids);
    }
    sl_ids_free(&first);
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    sl_error err;
    sl_engine *engine = open_at(tiny, SL_OPEN_ALL);
    reader readers[2] = {{engine, false}, {engine, false}};
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_engine, &readers[i]), 0);
    sl_state *sequence;
    assert_ok(sl_state_create(engine, 32, &sequence, &err));
    for (int32_t token = 0; token < 32; token++) {
        const sl_eval_item item = {.state = sequence, .tokens = &token, .n_tokens = 1};
        assert_ok(sl_engine_eval(engine, &item, 1, NULL, &err));
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
        assert_true(readers[i].agreed);
    }
    sl_state_free(sequence);
    sl_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_levels),
        cmocka_unit_test(test_no_tokenizer),
        cmocka_unit_test(test_refused_structs),
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_render),
        cmocka_unit_test(test_render_refuses),
        cmocka_unit_test(test_quote),
        cmocka_unit_test(test_detokenizer),
        cmocka_unit_test(test_stop_filter),
        cmocka_unit_test(test_parser),
        cmocka_unit_test(test_engine_sampler),
        cmocka_unit_test(test_arrays),
        cmocka_unit_test(test_allocation_failures),
        cmocka_unit_test(test_host_modes),
        cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
