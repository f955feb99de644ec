/* `sluice tokenize`: text to token ids and back. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/utf8.h"
#include "commands.h"
#include "common.h"
#include "ids.h"
#include "model.h"
#include "out.h"
#include "prompt.h"

typedef struct tokenize_options {
    sl_common_options common;
    int special; /* 0 = on, 1 = off */
    bool decode, pieces;
} tokenize_options;

#define AT(member) offsetof(tokenize_options, member)
static const sl_opt options_table[] = {
    {.name = "special",
     .type = SL_OPT_CHOICE,
     .offset = AT(special),
     .value_name = "on|off",
     .help = "read <|im_start|> and other control tokens in the text as such (default: on)"},
    {.name = "decode",
     .type = SL_OPT_FLAG,
     .offset = AT(decode),
     .help = "the arguments are ids; print their text"},
    {.name = "pieces",
     .type = SL_OPT_FLAG,
     .offset = AT(pieces),
     .help = "one token a line, with its text"},
};
#undef AT

/* The bytes of all ids, exactly. */
static sl_status join_bytes(const sl_tokenizer *tokenizer, const sl_ids *ids, sl_buf *out,
                            sl_error *err)
{
    for (size_t i = 0; i < ids->n; i++) {
        const sl_str bytes = sl_tokenizer_bytes(tokenizer, ids->ids[i]);
        SL_TRY(sl_buf_append(out, bytes.data, bytes.n_bytes, err));
    }
    return SL_OK;
}

/* The bytes as valid text: parts of characters show as U+FFFD. */
static sl_status clean_piece(sl_str bytes, sl_buf *clean, sl_error *err)
{
    size_t n_replaced;
    sl_buf_init(clean, SL_MEM_TEXT, SIZE_MAX / 2);
    return sl_clean_utf8(bytes.data, bytes.n_bytes, clean, &n_replaced, err);
}

static void json_piece(sl_json_out *json, const char *key, sl_str bytes)
{
    sl_buf clean;
    if (json->status == SL_OK)
        json->status = clean_piece(bytes, &clean, &json->err);
    if (json->status != SL_OK)
        return;
    sl_json_text(json, key, clean.data, clean.n_bytes);
    sl_buf_free(&clean);
}

static sl_status append_line(sl_buf *out, int32_t id, sl_str bytes, sl_error *err)
{
    sl_buf clean;
    sl_status status = clean_piece(bytes, &clean, err);
    if (status == SL_OK)
        status = sl_buf_printf(out, err, "%8d  ", id);
    if (status == SL_OK)
        status = sl_json_append_string(out, clean.data, clean.n_bytes, err);
    if (status == SL_OK)
        status = sl_buf_append_char(out, '\n', err);
    sl_buf_free(&clean);
    return status;
}

static int print_json(const sl_tokenizer *tokenizer, const sl_ids *ids)
{
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    sl_json_uint(&json, "n", ids->n);
    sl_json_open(&json, "ids", '[');
    for (size_t i = 0; i < ids->n; i++)
        sl_json_uint(&json, NULL, (uint64_t)ids->ids[i]);
    sl_json_close(&json, ']');
    sl_json_open(&json, "pieces", '[');
    for (size_t i = 0; i < ids->n; i++)
        json_piece(&json, NULL, sl_tokenizer_bytes(tokenizer, ids->ids[i]));
    sl_json_close(&json, ']');
    sl_json_close(&json, '}');
    return sl_json_finish(&json);
}

static int print_ids(const tokenize_options *options, const sl_tokenizer *tokenizer,
                     const sl_ids *ids)
{
    if (options->common.json)
        return print_json(tokenizer, ids);
    sl_buf out;
    sl_error err;
    sl_status status = SL_OK;
    sl_buf_init(&out, SL_MEM_TEXT, (size_t)1 << 32);
    for (size_t i = 0; i < ids->n && status == SL_OK; i++) {
        if (options->pieces)
            status =
                append_line(&out, ids->ids[i], sl_tokenizer_bytes(tokenizer, ids->ids[i]), &err);
        else
            status = sl_buf_printf(&out, &err, "%s%d", i > 0 ? " " : "", ids->ids[i]);
    }
    if (status == SL_OK && !options->pieces)
        status = sl_buf_append_char(&out, '\n', &err);
    return sl_out_finish(&out, status, &err);
}

/* Plain output is exactly the bytes, so that encoding and decoding can be chained; only a terminal
 * gets a line end of its own. */
static int print_text(const tokenize_options *options, const sl_tokenizer *tokenizer,
                      const sl_ids *ids)
{
    sl_buf bytes;
    sl_error err;
    sl_buf_init(&bytes, SL_MEM_TEXT, (size_t)1 << 32);
    sl_status status = join_bytes(tokenizer, ids, &bytes, &err);
    if (!options->common.json) {
        if (status == SL_OK && sl_out_is_terminal())
            status = sl_buf_append_char(&bytes, '\n', &err);
        return sl_out_finish(&bytes, status, &err);
    }
    sl_json_out json;
    sl_json_out_init(&json);
    sl_json_open(&json, NULL, '{');
    json_piece(&json, "text", (sl_str){bytes.data, bytes.n_bytes});
    sl_json_close(&json, '}');
    sl_buf_free(&bytes);
    if (status == SL_OK)
        return sl_json_finish(&json);
    sl_json_out_free(&json);
    return sl_fail_with(&err);
}

static int decode(const tokenize_options *options, const sl_tokenizer *tokenizer,
                  const sl_args *args)
{
    sl_ids ids = {0};
    sl_error err;
    sl_status status = SL_OK;
    const size_t n_vocab = sl_tokenizer_count(tokenizer);
    if (args->n > 1) {
        for (size_t i = 1; i < args->n && status == SL_OK; i++)
            status = sl_parse_ids(args->items[i], n_vocab, &ids, &err);
    } else {
        sl_buf text;
        status = sl_prompt_read(NULL, options->common.file, &text, &err);
        if (status == SL_OK) {
            status = sl_parse_ids(text.data, n_vocab, &ids, &err);
            sl_buf_free(&text);
        }
    }
    const int exit_status =
        status == SL_OK ? print_text(options, tokenizer, &ids) : sl_fail_with(&err);
    sl_ids_free(&ids);
    return exit_status;
}

static int encode(const tokenize_options *options, const sl_tokenizer *tokenizer,
                  const char *argument)
{
    sl_buf text;
    sl_error err;
    sl_status status = sl_prompt_read(argument, options->common.file, &text, &err);
    if (status != SL_OK)
        return sl_fail_with(&err);
    sl_ids ids = {0};
    const sl_encode_options how = {.control = options->special == 0, .user_defined = true};
    status = sl_tokenizer_encode(tokenizer, text.data, text.n_bytes, &how, &ids, NULL, &err);
    sl_buf_free(&text);
    const int exit_status =
        status == SL_OK ? print_ids(options, tokenizer, &ids) : sl_fail_with(&err);
    sl_ids_free(&ids);
    return exit_status;
}

static int run_tokenize(int argc, char *const *argv)
{
    sl_args args;
    tokenize_options options = {0};
    int exit_status = sl_opts_parse(&sl_command_tokenize, argc, argv, &options, &args);
    if (exit_status >= 0)
        return exit_status;
    sl_engine *engine = NULL;
    const sl_tokenizer *tokenizer = NULL;
    sl_engine_params params = sl_engine_params_default();
    params.level = SL_OPEN_TEXT;
    if (args.n > 1 && options.common.file)
        exit_status = sl_usage_error("tokenize", "give the text as an argument or as a file");
    else if (args.n > 2 && !options.decode)
        exit_status = sl_usage_error("tokenize",
                                     "'%s' is one argument too many; put the text in "
                                     "quotes",
                                     args.items[2]);
    else if (args.n < 2 && !options.common.file && !sl_prompt_on_stdin())
        exit_status = sl_usage_error("tokenize", "give the text as an argument, with --file or on "
                                                 "standard input");
    else
        exit_status = sl_model_open_text(args.items[0], &params, &engine, &tokenizer);
    if (exit_status < 0)
        exit_status = options.decode
                          ? decode(&options, tokenizer, &args)
                          : encode(&options, tokenizer, args.n > 1 ? args.items[1] : NULL);
    sl_engine_close(engine);
    sl_args_free(&args);
    return exit_status;
}

const sl_command sl_command_tokenize = {
    .name = "tokenize",
    .usage = "MODEL [TEXT | --decode ID...]",
    .summary = "Turns text into token ids, or ids into text.",
    .details = "The text comes from the argument, from --file, or from standard input. The weights "
               "are not loaded.",
    .opts = options_table,
    .n_opts = SL_COUNTOF(options_table),
    .common = SL_TAKES_FILE | SL_TAKES_JSON,
    .min_args = 1,
    .max_args = SL_ARGS_UNLIMITED,
    .run = run_tokenize,
};
