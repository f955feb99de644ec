/* Answers of a model: the cuts must change nothing, events must come in order, arguments must be
 * JSON and what comes out may not outgrow what went in. Byte 0 has the options, byte 1 is a seed
 * for the cuts; the rest is the answer. */
#include "base/utf8.h"
#include "fuzz.h"
#include "text/outparse.h"

enum {
    MAX_LOG = 1 << 24,
    STARTS_IN_THINKING = 1,
    IGNORE_CALLS = 2,
    NOT_IN_THINKING = 4,
    TOOLS = 8,
    LIMITED = 16
};

static const char tools_text[] =
    "[{\"name\": \"f\", \"parameters\": {\"properties\": {\"s\": {\"type\": \"string\"},"
    " \"i\": {\"type\": \"integer\"}, \"n\": {\"type\": [\"number\", \"null\"]}, \"b\": {\"type\":"
    " \"boolean\"}, \"o\": {\"type\": [\"object\", \"array\"]}, \"a\": {}}}}]";

/* The events as one text: neighbours of a kind are one. */
typedef struct event_log {
    sl_buf text;
    size_t arguments_at, n_calls;
    bool in_call, is_utf8;
    sl_outparse_kind kind;
} event_log;

static void check_arguments(const event_log *log)
{
    json_error_t problem;
    json_t *value = json_loadb(log->text.data + log->arguments_at,
                               log->text.n_bytes - log->arguments_at, JSON_ALLOW_NUL, &problem);
    if (!value) { /* Digits and keys are kept, also where jansson has no room for them. */
        const enum json_error_code code = json_error_code(&problem);
        sl_fuzz_check(code == json_error_numeric_overflow || code == json_error_null_byte_in_key);
        return;
    }
    sl_fuzz_check(json_is_object(value));
    json_decref(value);
}

static sl_status note(void *user, const sl_outparse_event *event, sl_error *err)
{
    static const char letters[] = "TCBAE";
    event_log *log = user;
    const bool begins = event->kind == SL_OUTPARSE_CALL_BEGIN;
    const bool ends = event->kind == SL_OUTPARSE_CALL_END;
    sl_fuzz_check(log->in_call == (ends || event->kind == SL_OUTPARSE_CALL_ARGUMENTS));
    sl_fuzz_check((event->name.n_bytes > 0) == begins);
    sl_fuzz_check((event->text.n_bytes > 0) == !(begins || ends));
    if (ends && log->is_utf8)
        check_arguments(log);
    if (begins || ends || event->kind != log->kind)
        SL_TRY(sl_buf_append_char(&log->text, letters[event->kind], err));
    if (begins) {
        sl_fuzz_check(event->index == log->n_calls);
        log->n_calls++;
    }
    if (event->kind == SL_OUTPARSE_CALL_ARGUMENTS && log->kind == SL_OUTPARSE_CALL_BEGIN)
        log->arguments_at = log->text.n_bytes;
    log->in_call = begins || (log->in_call && !ends);
    log->kind = event->kind;
    const sl_str text = begins ? event->name : event->text;
    return sl_buf_append(&log->text, text.data, text.n_bytes, err);
}

/* Pieces are cut by the seed; 0: all at once. */
static bool parse(const sl_outparse_options *options, sl_fuzz_input in, uint8_t seed,
                  event_log *log, unsigned *flags)
{
    sl_error err = {0};
    sl_outparse *parser;
    if (!sl_fuzz_ok(sl_outparse_new(options, note, log, &parser, &err), &err))
        return false;
    bool ok = true;
    for (size_t pos = 0, state = seed; ok && pos < in.n;) {
        state = state * 29 + 7;
        const size_t n = seed == 0 ? in.n : sl_min_size(in.n - pos, 1 + state % 9);
        char *piece = sl_fuzz_copy(in.data + pos, n);
        ok = piece && sl_fuzz_ok(sl_outparse_push(parser, piece, n, &err), &err);
        sl_free(piece);
        pos += n;
    }
    ok = ok && sl_fuzz_ok(sl_outparse_finish(parser, &err), &err);
    *flags = sl_outparse_flags_of(parser);
    sl_fuzz_check(!ok || (!log->in_call && sl_outparse_n_calls(parser) == log->n_calls));
    sl_outparse_free(parser);
    return ok;
}

static void body(const uint8_t *data, size_t n)
{
    sl_fuzz_input in = {data, n};
    const uint8_t choice = sl_fuzz_byte(&in), seed = sl_fuzz_byte(&in);
    json_error_t problem;
    json_t *tools = choice & TOOLS ? json_loads(tools_text, 0, &problem) : NULL;
    const sl_outparse_options options = {
        .tools = tools,
        .max_call_bytes = choice & LIMITED ? 100 : 0,
        .starts_in_thinking = choice & STARTS_IN_THINKING,
        .ignore_calls = choice & IGNORE_CALLS,
        .ignore_calls_in_thinking = choice & NOT_IN_THINKING,
    };
    const bool is_utf8 = sl_utf8_valid((const char *)in.data, in.n, NULL);
    event_log whole = {.is_utf8 = is_utf8}, pieces = {.is_utf8 = is_utf8};
    unsigned flags, flags_of_pieces;
    sl_buf_init(&whole.text, SL_MEM_TEXT, MAX_LOG);
    sl_buf_init(&pieces.text, SL_MEM_TEXT, MAX_LOG);
    if (parse(&options, in, 0, &whole, &flags) &&
        parse(&options, in, seed | 1, &pieces, &flags_of_pieces)) {
        sl_fuzz_check(flags == flags_of_pieces);
        sl_fuzz_check(sl_str_equal((sl_str){whole.text.data, whole.text.n_bytes},
                                   (sl_str){pieces.text.data, pieces.text.n_bytes}));
        sl_fuzz_check(whole.text.n_bytes <= 16 + 6 * in.n);
    }
    sl_buf_free(&whole.text);
    sl_buf_free(&pieces.text);
    json_decref(tools);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return sl_fuzz_run(body, data, n);
}
