/* Owns the stop strings with their failure tables. What is held back needs no memory of its own: it
 * is the beginning of a stop string. */
#include "text/stop.h"

#include <string.h>

#include "base/mem.h"

typedef struct stop_string {
    char *bytes;
    size_t n_bytes;
    uint16_t *fallback; /* [n_bytes]: of the first i + 1 bytes, the longest end shorter than all of
                           them that is also a beginning */
} stop_string;

struct sl_stops {
    size_t n;
    stop_string strings[SL_MAX_STOPS];
};

/* How much of the string is matched after one more byte, when n_matched (not all of it) was. */
static uint16_t step(const stop_string *string, uint16_t n_matched, char byte)
{
    while (n_matched > 0 && string->bytes[n_matched] != byte)
        n_matched = string->fallback[n_matched - 1];
    return (uint16_t)(n_matched + (string->bytes[n_matched] == byte));
}

static bool build(stop_string *string, sl_str from)
{
    string->n_bytes = from.n_bytes;
    string->bytes = sl_strndup(SL_MEM_TEXT, from.data, from.n_bytes);
    string->fallback = sl_alloc_array(SL_MEM_TEXT, from.n_bytes, sizeof *string->fallback);
    if (!string->bytes || !string->fallback)
        return false;
    for (size_t i = 1; i < from.n_bytes; i++)
        string->fallback[i] = step(string, string->fallback[i - 1], string->bytes[i]);
    return true;
}

sl_status sl_stops_create(const sl_str *strings, size_t n, sl_stops **out, sl_error *err)
{
    *out = NULL;
    if (n > SL_MAX_STOPS)
        return sl_fail(err, SL_ERR_LIMIT, "%zu stop strings, there may be %d", n, SL_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        if (strings[i].n_bytes == 0)
            return sl_fail(err, SL_ERR_ARGUMENT, "stop string %zu is empty", i + 1);
        if (strings[i].n_bytes > SL_MAX_STOP_BYTES)
            return sl_fail(err, SL_ERR_LIMIT, "stop string %zu has %zu bytes, it may have %d",
                           i + 1, strings[i].n_bytes, SL_MAX_STOP_BYTES);
    }
    sl_stops *stops = sl_alloc_zero(SL_MEM_TEXT, sizeof *stops);
    if (!stops)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for stop strings");
    stops->n = n;
    for (size_t i = 0; i < n; i++) {
        if (build(&stops->strings[i], strings[i]))
            continue;
        sl_stops_destroy(stops);
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for stop strings");
    }
    *out = stops;
    return SL_OK;
}

void sl_stops_destroy(sl_stops *stops)
{
    if (!stops)
        return;
    for (size_t i = 0; i < stops->n; i++) {
        sl_free(stops->strings[i].bytes);
        sl_free(stops->strings[i].fallback);
    }
    sl_free(stops);
}

sl_stop_stream sl_stop_stream_of(const sl_stops *stops)
{
    return (sl_stop_stream){.stops = stops, .found = -1};
}

/* What the stream holds back. */
static sl_str held_back(const sl_stop_stream *stream)
{
    if (stream->stops->n == 0)
        return (sl_str){"", 0};
    return (sl_str){stream->stops->strings[stream->longest].bytes,
                    stream->n_matched[stream->longest]};
}

/* Takes in one byte. */
static void push_byte(sl_stop_stream *stream, char byte)
{
    const sl_stops *stops = stream->stops;
    stream->longest = 0;
    for (size_t i = 0; i < stops->n; i++) {
        const stop_string *string = &stops->strings[i];
        stream->n_matched[i] = step(string, stream->n_matched[i], byte);
        if (stream->n_matched[i] > stream->n_matched[stream->longest])
            stream->longest = (uint16_t)i;
        if (stream->n_matched[i] == string->n_bytes &&
            (stream->found < 0 || string->n_bytes > stops->strings[stream->found].n_bytes))
            stream->found = (int16_t)i;
    }
}

sl_status sl_stop_push(sl_stop_stream *stream, const char *piece, size_t n, sl_buf *out,
                       sl_error *err)
{
    if (stream->found >= 0)
        return SL_OK;
    sl_stop_stream next = *stream;
    size_t n_read = 0;
    while (n_read < n && next.found < 0)
        push_byte(&next, piece[n_read++]);

    /* What was held back and what was read, without the new end or the stop string. */
    const sl_str before = held_back(stream);
    const size_t n_kept =
        next.found >= 0 ? next.stops->strings[next.found].n_bytes : held_back(&next).n_bytes;
    const size_t n_certain = before.n_bytes + n_read - n_kept;
    const size_t n_before = sl_min_size(before.n_bytes, n_certain);
    SL_TRY(sl_buf_reserve(out, n_certain, err));
    SL_TRY(sl_buf_append(out, before.data, n_before, err));
    SL_TRY(sl_buf_append(out, piece, n_certain - n_before, err));
    *stream = next;
    return SL_OK;
}

sl_status sl_stop_flush(sl_stop_stream *stream, sl_buf *out, sl_error *err)
{
    if (stream->found >= 0)
        return SL_OK;
    const sl_str held = held_back(stream);
    SL_TRY(sl_buf_append(out, held.data, held.n_bytes, err));
    *stream = sl_stop_stream_of(stream->stops);
    return SL_OK;
}
