/* `sluice logits`: the logits of a text, and layer values, as a safetensors file. */
#include "commands.h"
#include "common.h"
#include "ids.h"
#include "interrupt.h"
#include "model.h"
#include "out.h"
#include "prompt.h"
#include "taps.h"
#include "target.h"

typedef struct logits_options {
    sl_common_options common;
    const char *tokens, *text, *out;
    bool all, layers;
    sl_opt_count prefill_chunk;
} logits_options;

#define AT(member) offsetof(logits_options, member)
static const sl_opt options_table[] = {
    {.name = "tokens",
     .type = SL_OPT_TEXT,
     .offset = AT(tokens),
     .value_name = "IDS",
     .help = "token ids, separated by commas"},
    {.name = "text",
     .type = SL_OPT_TEXT,
     .offset = AT(text),
     .value_name = "TEXT",
     .help = "a text instead, - is standard input; control tokens in it count"},
    {.name = "out",
     .letter = 'o',
     .type = SL_OPT_TEXT,
     .offset = AT(out),
     .value_name = "FILE",
     .help = "the safetensors file to write: tokens [T] and logits [1, V] or [T, V]"},
    {.name = "all",
     .type = SL_OPT_FLAG,
     .offset = AT(all),
     .help = "the logits of every position, not of the last alone"},
    {.name = "layers",
     .type = SL_OPT_FLAG,
     .offset = AT(layers),
     .help = "also the values between the layers, [T, width] each"},
    {.name = "prefill-chunk",
     .type = SL_OPT_COUNT,
     .offset = AT(prefill_chunk),
     .value_name = "N",
     .min = 1,
     .max = 256,
     .help = "evaluate N tokens at a time; the result does not depend on it"},
};
#undef AT

static sl_status read_ids(const logits_options *options, const sl_engine *engine, sl_ids *ids,
                          sl_error *err)
{
    if (options->tokens) {
        SL_TRY(sl_parse_ids(options->tokens, sl_engine_vocab(engine), ids, err));
    } else {
        const sl_encode_options how = {.control = true, .user_defined = true};
        const sl_tokenizer *tokenizer;
        sl_buf bytes;
        SL_TRY(sl_engine_tokenizer(engine, &tokenizer, err));
        SL_TRY(sl_prompt_read(options->text, NULL, &bytes, err));
        const sl_status status =
            sl_tokenizer_encode(tokenizer, bytes.data, bytes.n_bytes, &how, ids, NULL, err);
        sl_buf_free(&bytes);
        SL_TRY(status);
    }
    return ids->n > 0 ? SL_OK : sl_fail(err, SL_ERR_ARGUMENT, "there are no tokens");
}

static sl_status write_file(const logits_options *options, const sl_ids *ids, const float *logits,
                            size_t vocab, const sl_taps *taps, sl_error *err)
{
    const sl_array_note notes[] = {
        {"about", "written by sluice logits: tokens, their logits (the last rows of the text), and "
                  "layer values by name"},
        {"kv", options->common.kv == 1 ? "f32" : "f16"},
        {"sluice", sl_version()},
    };
    sl_array *entries = sl_alloc_array(SL_MEM_GENERAL, taps->n + 2, sizeof *entries);
    if (!entries)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for the list of tensors");
    entries[0] = (sl_array){.name = "tokens", .type = SL_ARRAY_I32, .n_dims = 1, .data = ids->ids};
    entries[0].shape[0] = ids->n;
    entries[1] = (sl_array){.name = "logits", .type = SL_ARRAY_F32, .n_dims = 2, .data = logits};
    entries[1].shape[0] = options->all ? ids->n : 1;
    entries[1].shape[1] = vocab;
    for (size_t i = 0; i < taps->n; i++) {
        sl_array *entry = &entries[i + 2];
        *entry = (sl_array){.name = taps->items[i].name,
                            .type = SL_ARRAY_F32,
                            .n_dims = 2,
                            .data = taps->items[i].values};
        entry->shape[0] = taps->items[i].n_rows;
        entry->shape[1] = taps->items[i].n_cols;
    }
    const sl_status status =
        sl_arrays_write(options->out, entries, taps->n + 2, notes, SL_COUNTOF(notes), err);
    sl_free(entries);
    return status;
}

static bool on_progress(void *context, size_t done, size_t total)
{
    sl_progress_update(context, done, total);
    return sl_interrupted();
}

static sl_status evaluate(const logits_options *options, sl_engine *engine, const sl_ids *ids,
                          float *logits, sl_taps *taps, sl_error *err)
{
    sl_state *state = NULL;
    sl_progress progress = {.label = "evaluating"};
    const sl_eval_options how = {
        .max_rows = (uint32_t)options->prefill_chunk.value,
        .progress = on_progress,
        .progress_context = &progress,
    };
    sl_model_info model;
    sl_engine_model_info(engine, &model);
    if (ids->n > model.context_length)
        return sl_fail(err, SL_ERR_CONTEXT, "the text has %zu tokens, the model's context is %u",
                       ids->n, model.context_length);
    SL_TRY(sl_state_create(engine, (uint32_t)ids->n, &state, err));
    const sl_eval_item item = {.state = state,
                               .tokens = ids->ids,
                               .n_tokens = ids->n,
                               .all_logits = options->all,
                               .logits = logits};
    if (options->layers)
        sl_engine_set_tap(engine, sl_taps_collect, taps);
    sl_progress_update(&progress, 0, ids->n);
    sl_status status = sl_engine_eval(engine, &item, 1, &how, err);
    sl_progress_clear(&progress);
    sl_state_free(state);
    if (status == SL_OK)
        status = sl_taps_finish(taps, &model, err);
    return status;
}

static int compute(const logits_options *options, sl_engine *engine)
{
    sl_error err;
    sl_ids ids = {0};
    sl_taps taps = {0};
    float *logits = NULL;
    size_t n_logits;
    const size_t vocab = sl_engine_vocab(engine);
    sl_status status;
    SL_CHECK(read_ids(options, engine, &ids, &err));
    sl_taps_init(&taps, ids.n);
    if (!sl_size_mul(options->all ? ids.n : 1, vocab, &n_logits)) {
        status = sl_fail(&err, SL_ERR_LIMIT, "the logits of %zu tokens do not fit", ids.n);
        goto done;
    }
    logits = sl_alloc_array(SL_MEM_GENERAL, n_logits, sizeof *logits);
    if (!logits) {
        status = sl_fail(&err, SL_ERR_MEMORY, "out of memory for the logits of %zu tokens", ids.n);
        goto done;
    }
    SL_CHECK(evaluate(options, engine, &ids, logits, &taps, &err));
    SL_CHECK(write_file(options, &ids, logits, vocab, &taps, &err));
done:
    sl_free(logits);
    sl_taps_free(&taps);
    sl_ids_free(&ids);
    if (status == SL_OK)
        return SL_EXIT_DONE;
    if (status == SL_ERR_CANCELLED)
        return SL_EXIT_INTERRUPTED;
    return sl_fail_with(&err);
}

static int run_logits(int argc, char *const *argv)
{
    sl_args args;
    logits_options options = {0};
    int exit_status = sl_opts_parse(&sl_command_logits, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    if (!options.out)
        exit_status = sl_usage_error("logits", "--out FILE is missing");
    else if (!options.tokens == !options.text)
        exit_status = sl_usage_error("logits", "give either --tokens or --text");
    if (exit_status < 0)
        exit_status = sl_target_check("logits", "--out", options.out, args.items[0]);
    if (exit_status < 0) {
        sl_engine *engine = NULL;
        sl_engine_params params = sl_common_engine_params(&options.common);
        params.checkpoint_budget = 0; /* one pass, nothing goes back */
        sl_interrupt_install();
        exit_status = sl_model_open(args.items[0], &params, &engine);
        if (exit_status < 0)
            exit_status = compute(&options, engine);
        sl_engine_close(engine);
    }
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_logits = {
    .name = "logits",
    .usage = "MODEL (--tokens IDS | --text TEXT) --out FILE",
    .summary = "Writes logits, and layer values, to a safetensors file.",
    .details = "The file holds float32 tensors and can be given to 'sluice parity' later.",
    .opts = options_table,
    .n_opts = SL_COUNTOF(options_table),
    .common = SL_TAKES_COMPUTE | SL_TAKES_KV,
    .min_args = 1,
    .max_args = 1,
    .run = run_logits,
};
