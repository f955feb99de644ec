/* UTF-8: decoding that always advances, encoding, replacement of invalid bytes, and a stream
 * decoder that never hands out part of a character. Invalid sequences become U+FFFD by the
 * "maximal subpart" rule of the Unicode Standard (chapter 3, table 3-8), as Python and the
 * Hugging Face tokenizers do. */
#ifndef SL_BASE_UTF8_H
#define SL_BASE_UTF8_H

#include "base/base.h"

#define SL_UTF8_REPLACEMENT 0xFFFDu

/* Decodes one code point of s[0..n), n > 0, into *code and returns the bytes used (1 to 4).
 * An invalid or cut sequence gives U+FFFD and uses its maximal valid prefix, at least one byte. */
size_t sl_utf8_decode(const char *s, size_t n, uint32_t *code);

/* Writes code (a scalar value; anything else is written as U+FFFD) to out, returns 1 to 4. */
size_t sl_utf8_encode(uint32_t code, char out[4]);

/* True when s[0..n) is well-formed; otherwise *bad (may be NULL) is the first bad offset. */
bool sl_utf8_valid(const char *s, size_t n, size_t *bad);

/* Makes of a name from elsewhere what a terminal may be given: control characters and invalid bytes
 * become U+FFFD, and what does not fit into text ends in "...". capacity is at least 8. Returns
 * text, NUL-terminated. */
enum { SL_SHOWN_BYTES = 256 }; /* enough for most names */
const char *sl_utf8_show(const char *s, size_t n, char *text, size_t capacity);

/* A decoder for bytes that arrive in pieces. Zero-initialise it. */
typedef struct sl_utf8_stream {
    unsigned char held[4]; /* an incomplete but so far valid sequence */
    unsigned n_held;
} sl_utf8_stream;

/* Appends to out what is certain after n more bytes: whole characters, and U+FFFD for bytes that
 * can never become valid. out needs room for 3 * (n + 4) bytes. Returns the bytes written. */
size_t sl_utf8_stream_push(sl_utf8_stream *stream, const void *bytes, size_t n, char *out);

/* What remains at the end: U+FFFD for a held incomplete sequence. out needs 4 bytes. */
size_t sl_utf8_stream_finish(sl_utf8_stream *stream, char *out);

#endif
