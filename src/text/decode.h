/* Token ids to text as they come, never a part of a character. */
#ifndef SL_TEXT_DECODE_H
#define SL_TEXT_DECODE_H

#include "base/utf8.h"
#include "text/tokenizer.h"

typedef struct sl_decoder {
    const sl_tokenizer *tokenizer;
    bool skip_control; /* control tokens give no text, and do not part the bytes around them */
    sl_utf8_stream stream;
} sl_decoder;

sl_decoder sl_decoder_of(const sl_tokenizer *tokenizer, bool skip_control);

/* Appends the text that is certain after this token: whole characters, U+FFFD for bytes that can
 * never become valid. Ids that are unused or out of range give none. Errors: those of sl_buf; the
 * decoder and *text are as before then. */
sl_status sl_decoder_push(sl_decoder *decoder, int32_t id, sl_buf *text, sl_error *err);

/* Appends U+FFFD for an unfinished character at the end; the decoder can be used again. */
sl_status sl_decoder_flush(sl_decoder *decoder, sl_buf *text, sl_error *err);

#endif
