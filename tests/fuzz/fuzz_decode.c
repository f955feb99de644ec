/* Tokens to text, and stop strings over it. Byte 0 is a seed for the cuts, then come stop strings,
 * each a line, up to an empty one; the rest are bytes as tokens come. Pieces must be whole
 * characters, and no cut may change what comes out. */
#include "base/utf8.h"
#include "fuzz.h"
#include "text/stop.h"

enum { MAX_TEXT = 1 << 22 };

static size_t read_stops(sl_fuzz_input *in, sl_str *stops, size_t max)
{
    size_t n = 0;
    while (in->n > 0 && n < max) {
        const uint8_t *end = memchr(in->data, '\n', in->n);
        const size_t n_bytes = end ? (size_t)(end - in->data) : in->n;
        const sl_str line = {(const char *)in->data, n_bytes};
        in->data += n_bytes + (end != NULL);
        in->n -= n_bytes + (end != NULL);
        if (n_bytes == 0)
            break;
        stops[n++] = line;
    }
    return n;
}

/* Decodes bytes in pieces cut by the seed (0: all at once) and lets them through the stops. */
static bool decode(const sl_stops *stops, sl_fuzz_input in, uint8_t seed, sl_buf *out,
                   int16_t *found)
{
    sl_error err = {0};
    sl_utf8_stream utf8 = {0};
    sl_stop_stream stream = sl_stop_stream_of(stops);
    char *text = sl_alloc(SL_MEM_TEXT, 3 * (in.n + 4));
    bool ok = text != NULL;
    for (size_t pos = 0, state = seed; ok && pos < in.n;) {
        state = state * 29 + 7;
        const size_t n = seed == 0 ? in.n : sl_min_size(in.n - pos, 1 + state % 5);
        const size_t n_text = sl_utf8_stream_push(&utf8, in.data + pos, n, text);
        sl_fuzz_check(sl_utf8_valid(text, n_text, NULL));
        ok = sl_fuzz_ok(sl_stop_push(&stream, text, n_text, out, &err), &err);
        pos += n;
    }
    if (ok) {
        const size_t n_text = sl_utf8_stream_finish(&utf8, text);
        ok = sl_fuzz_ok(sl_stop_push(&stream, text, n_text, out, &err), &err);
    }
    *found = stream.found;
    ok = ok && sl_fuzz_ok(sl_stop_flush(&stream, out, &err), &err);
    sl_free(text);
    return ok;
}

static bool contains(const sl_buf *text, sl_str part)
{
    for (size_t i = 0; i + part.n_bytes <= text->n_bytes; i++) {
        if (memcmp(text->data + i, part.data, part.n_bytes) == 0)
            return true;
    }
    return false;
}

static void body(const uint8_t *data, size_t n)
{
    sl_fuzz_input in = {data, n};
    const uint8_t seed = sl_fuzz_byte(&in);
    sl_str texts[8];
    const size_t n_stops = read_stops(&in, texts, SL_COUNTOF(texts));
    sl_error err = {0};
    sl_stops *stops;
    if (!sl_fuzz_ok(sl_stops_create(texts, n_stops, &stops, &err), &err))
        return;
    sl_buf whole, pieces;
    int16_t found, found_in_pieces;
    sl_buf_init(&whole, SL_MEM_TEXT, MAX_TEXT);
    sl_buf_init(&pieces, SL_MEM_TEXT, MAX_TEXT);
    if (decode(stops, in, 0, &whole, &found) &&
        decode(stops, in, seed | 1, &pieces, &found_in_pieces)) {
        sl_fuzz_check(found == found_in_pieces);
        sl_fuzz_check(sl_str_equal((sl_str){whole.data, whole.n_bytes},
                                   (sl_str){pieces.data, pieces.n_bytes}));
        for (size_t i = 0; i < n_stops; i++)
            sl_fuzz_check(!contains(&whole, texts[i]));
    }
    sl_buf_free(&whole);
    sl_buf_free(&pieces);
    sl_stops_destroy(stops);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    return sl_fuzz_run(body, data, n);
}
