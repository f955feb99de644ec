/* The text side of sluice.h: an engine's tokenizer, and the opaque forms of the decoder and the
 * stop strings. Messages are in api_chat.c. Owns nothing of its own. */
#include <string.h>

#include "base/utf8.h"
#include "engine/engine_internal.h"
#include "text/decode.h"
#include "text/stop.h"

/* Of one piece of text: far more than a token, less than anything is worth. */
enum { MAX_PIECE = 1 << 30 };

sl_status sl_engine_need_text(const sl_engine *engine, sl_error *err)
{
    return engine->text
               ? SL_OK
               : sl_fail(err, engine->why_no_text.status, "%s", engine->why_no_text.message);
}

sl_status sl_engine_tokenizer(const sl_engine *engine, const sl_tokenizer **out, sl_error *err)
{
    *out = engine->text ? sl_text_tokenizer(engine->text) : NULL;
    return sl_engine_need_text(engine, err);
}

bool sl_engine_is_stop(const sl_engine *engine, int32_t token)
{
    return engine->text && sl_text_is_stop(engine->text, token);
}

/* ---- JSON ---- */

/* Appends the text with U+FFFD for what is not UTF-8. */
static sl_status append_clean(sl_buf *out, const char *text, size_t n, sl_error *err)
{
    for (size_t i = 0; i < n;) {
        char bytes[4];
        uint32_t code;
        i += sl_utf8_decode(text + i, n - i, &code);
        SL_TRY(sl_buf_append(out, bytes, sl_utf8_encode(code, bytes), err));
    }
    return SL_OK;
}

sl_status sl_json_quote(const char *text, size_t n, char **json, size_t *n_bytes, sl_error *err)
{
    sl_buf clean, quoted;
    sl_status status;
    sl_buf_init(&clean, SL_MEM_TEXT, MAX_PIECE);
    sl_buf_init(&quoted, SL_MEM_TEXT, MAX_PIECE);
    SL_CHECK(append_clean(&clean, text, n, err));
    SL_CHECK(sl_json_append_string(&quoted, clean.data, clean.n_bytes, err));
    *json = sl_buf_take(&quoted, n_bytes);
done:
    sl_buf_free(&clean);
    sl_buf_free(&quoted);
    return status;
}

/* ---- decoder ---- */

struct sl_detokenizer {
    sl_decoder decoder;
    sl_buf piece;
};

sl_status sl_detokenizer_create(const sl_tokenizer *tokenizer, bool hide_control,
                                sl_detokenizer **out, sl_error *err)
{
    *out = sl_alloc(SL_MEM_TEXT, sizeof **out);
    if (!*out)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for a decoder");
    (*out)->decoder = sl_decoder_of(tokenizer, hide_control);
    sl_buf_init(&(*out)->piece, SL_MEM_TEXT, MAX_PIECE);
    return SL_OK;
}

void sl_detokenizer_free(sl_detokenizer *detokenizer)
{
    if (!detokenizer)
        return;
    sl_buf_free(&detokenizer->piece);
    sl_free(detokenizer);
}

sl_status sl_detokenizer_push(sl_detokenizer *detokenizer, int32_t id, sl_str *text, sl_error *err)
{
    sl_buf_clear(&detokenizer->piece);
    SL_TRY(sl_decoder_push(&detokenizer->decoder, id, &detokenizer->piece, err));
    *text = (sl_str){detokenizer->piece.data, detokenizer->piece.n_bytes};
    return SL_OK;
}

sl_status sl_detokenizer_finish(sl_detokenizer *detokenizer, sl_str *text, sl_error *err)
{
    sl_buf_clear(&detokenizer->piece);
    SL_TRY(sl_decoder_flush(&detokenizer->decoder, &detokenizer->piece, err));
    *text = (sl_str){detokenizer->piece.data, detokenizer->piece.n_bytes};
    return SL_OK;
}

/* ---- stop strings ---- */

struct sl_stop_filter {
    sl_stops *stops;
    sl_stop_stream stream;
    sl_buf certain;
};

sl_status sl_stop_filter_create(const sl_str *strings, size_t n, sl_stop_filter **out,
                                sl_error *err)
{
    *out = NULL;
    sl_stop_filter *filter = sl_alloc_zero(SL_MEM_TEXT, sizeof *filter);
    if (!filter)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu stop strings", n);
    const sl_status status = sl_stops_create(strings, n, &filter->stops, err);
    if (status != SL_OK) {
        sl_free(filter);
        return status;
    }
    filter->stream = sl_stop_stream_of(filter->stops);
    sl_buf_init(&filter->certain, SL_MEM_TEXT, MAX_PIECE);
    *out = filter;
    return SL_OK;
}

void sl_stop_filter_free(sl_stop_filter *filter)
{
    if (!filter)
        return;
    sl_buf_free(&filter->certain);
    sl_stops_destroy(filter->stops);
    sl_free(filter);
}

sl_status sl_stop_filter_push(sl_stop_filter *filter, const char *text, size_t n, sl_str *certain,
                              sl_error *err)
{
    sl_buf_clear(&filter->certain);
    SL_TRY(sl_stop_push(&filter->stream, text, n, &filter->certain, err));
    *certain = (sl_str){filter->certain.data, filter->certain.n_bytes};
    return SL_OK;
}

sl_status sl_stop_filter_finish(sl_stop_filter *filter, sl_str *certain, sl_error *err)
{
    sl_buf_clear(&filter->certain);
    SL_TRY(sl_stop_flush(&filter->stream, &filter->certain, err));
    *certain = (sl_str){filter->certain.data, filter->certain.n_bytes};
    return SL_OK;
}

int sl_stop_filter_found(const sl_stop_filter *filter)
{
    return filter->stream.found;
}
