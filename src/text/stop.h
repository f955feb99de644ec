/* Stop strings over a text that comes in pieces: lets through what certainly belongs to the answer,
 * holds back an end that may yet become a stop string, and never leaks a part of one.
 *
 * The first stop string to be complete ends the text, and of several that are complete with the
 * same byte the longest, so nothing ever waits once a stop string stands there. Everything from its
 * first byte on is dropped. The result does not depend on how the text is cut into pieces.
 *
 * Stop strings are bytes. Where they and the pieces are whole characters of UTF-8, so is what is
 * let through. The time is linear in the text for each stop string (Knuth, Morris, Pratt). */
#ifndef SL_TEXT_STOP_H
#define SL_TEXT_STOP_H

#include "base/buf.h"
#include "base/str.h"

/* A set of stop strings; unchanging, so any number of streams may share it. */
typedef struct sl_stops sl_stops;

/* Copies the strings. SL_ERR_ARGUMENT for an empty one, SL_ERR_LIMIT for too many or too long a
 * one, by its number; n may be 0. */
sl_status sl_stops_create(const sl_str *strings, size_t n, sl_stops **out, sl_error *err);
void sl_stops_destroy(sl_stops *stops);

/* A plain value: copy it to fork a text. */
typedef struct sl_stop_stream {
    const sl_stops *stops;
    uint16_t n_matched[SL_MAX_STOPS]; /* the end of the text that begins each stop string */
    uint16_t longest; /* the stop string of which most is matched: that part is held back */
    int16_t found;    /* the stop string that ended the text, or -1 */
} sl_stop_stream;

sl_stop_stream sl_stop_stream_of(const sl_stops *stops);

/* Appends to *out what is certain after this piece. Once a stop string is found (stream->found, its
 * number) nothing is appended any more. Errors: those of sl_buf; stream and *out are as before
 * then. */
sl_status sl_stop_push(sl_stop_stream *stream, const char *piece, size_t n, sl_buf *out,
                       sl_error *err);

/* The text ends here: appends what was held back and begins anew, or does nothing when a stop
 * string was found. Errors as above. */
sl_status sl_stop_flush(sl_stop_stream *stream, sl_buf *out, sl_error *err);

#endif
