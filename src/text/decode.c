#include "text/decode.h"

sl_decoder sl_decoder_of(const sl_tokenizer *tokenizer, bool skip_control)
{
    return (sl_decoder){.tokenizer = tokenizer, .skip_control = skip_control};
}

enum { CHUNK = 64 };

sl_status sl_decoder_push(sl_decoder *decoder, int32_t id, sl_buf *text, sl_error *err)
{
    if (decoder->skip_control && sl_tokenizer_kind(decoder->tokenizer, id) == SL_TOKEN_CONTROL)
        return SL_OK;
    const sl_str bytes = sl_tokenizer_bytes(decoder->tokenizer, id);
    const sl_utf8_stream stream_before = decoder->stream;
    const size_t n_before = text->n_bytes;
    for (size_t i = 0; i < bytes.n_bytes; i += CHUNK) {
        char out[3 * (CHUNK + 4)];
        size_t n = sl_utf8_stream_push(&decoder->stream, bytes.data + i,
                                       sl_min_size(CHUNK, bytes.n_bytes - i), out);
        sl_status status = sl_buf_append(text, out, n, err);
        if (status != SL_OK) {
            decoder->stream = stream_before;
            if (text->n_bytes > n_before) {
                text->n_bytes = n_before;
                text->data[n_before] = '\0';
            }
            return status;
        }
    }
    return SL_OK;
}

sl_status sl_decoder_flush(sl_decoder *decoder, sl_buf *text, sl_error *err)
{
    char out[4];
    sl_utf8_stream stream = decoder->stream;
    SL_TRY(sl_buf_append(text, out, sl_utf8_stream_finish(&stream, out), err));
    decoder->stream = stream;
    return SL_OK;
}
