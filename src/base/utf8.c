#include "base/utf8.h"

#include <string.h>

/* Bounds of the second byte after each lead byte; outside them the lead byte stands alone. */
static bool lead_byte(unsigned lead, unsigned *length, unsigned *low, unsigned *high)
{
    *low = 0x80;
    *high = 0xBF;
    if (lead >= 0xC2 && lead <= 0xDF) {
        *length = 2;
    } else if (lead >= 0xE0 && lead <= 0xEF) {
        *length = 3;
        if (lead == 0xE0)
            *low = 0xA0; /* shorter forms exist below */
        else if (lead == 0xED)
            *high = 0x9F; /* surrogates above */
    } else if (lead >= 0xF0 && lead <= 0xF4) {
        *length = 4;
        if (lead == 0xF0)
            *low = 0x90;
        else if (lead == 0xF4)
            *high = 0x8F;
    } else {
        return false;
    }
    return true;
}

/* Length of the longest valid prefix of a multi-byte sequence; *needed is its full length, or 0
 * when the lead byte is never valid. */
static size_t valid_prefix(const unsigned char *s, size_t n, unsigned *needed)
{
    unsigned length, low, high;
    if (!lead_byte(s[0], &length, &low, &high)) {
        *needed = 0;
        return 1;
    }
    *needed = length;
    size_t i = 1;
    if (i < n && s[i] >= low && s[i] <= high) {
        i++;
        while (i < length && i < n && s[i] >= 0x80 && s[i] <= 0xBF)
            i++;
    }
    return i;
}

size_t sl_utf8_decode(const char *s, size_t n, uint32_t *code)
{
    const unsigned char *u = (const unsigned char *)s;
    if (u[0] < 0x80) {
        *code = u[0];
        return 1;
    }
    unsigned needed;
    size_t used = valid_prefix(u, n, &needed);
    if (used != needed) {
        *code = SL_UTF8_REPLACEMENT;
        return used;
    }
    uint32_t c = u[0] & (0xFFu >> (needed + 1));
    for (size_t i = 1; i < used; i++)
        c = (c << 6) | (u[i] & 0x3Fu);
    *code = c;
    return used;
}

size_t sl_utf8_encode(uint32_t code, char out[4])
{
    if (code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF))
        code = SL_UTF8_REPLACEMENT;
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | (code >> 6));
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | (code >> 12));
        out[1] = (char)(0x80 | ((code >> 6) & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | (code >> 18));
    out[1] = (char)(0x80 | ((code >> 12) & 0x3F));
    out[2] = (char)(0x80 | ((code >> 6) & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

bool sl_utf8_valid(const char *s, size_t n, size_t *bad)
{
    const unsigned char *u = (const unsigned char *)s;
    size_t i = 0;
    while (i < n) {
        if (u[i] < 0x80) {
            i++;
            continue;
        }
        unsigned needed;
        size_t used = valid_prefix(u + i, n - i, &needed);
        if (used != needed) {
            if (bad)
                *bad = i;
            return false;
        }
        i += used;
    }
    return true;
}

size_t sl_utf8_stream_push(sl_utf8_stream *stream, const void *bytes, size_t n, char *out)
{
    const unsigned char *in = bytes;
    size_t written = 0;
    for (size_t i = 0; i < n; i++) {
        stream->held[stream->n_held++] = in[i];
        /* One new byte can settle two things: the bytes before it as invalid, and itself. */
        while (stream->n_held > 0) {
            unsigned char *h = stream->held;
            unsigned needed = 1;
            size_t used = h[0] < 0x80 ? 1 : valid_prefix(h, stream->n_held, &needed);
            if (used == needed) {
                memcpy(out + written, h, used);
                written += used;
            } else if (needed != 0 && used == stream->n_held) {
                break; /* still a prefix of something valid */
            } else {
                written += sl_utf8_encode(SL_UTF8_REPLACEMENT, out + written);
            }
            stream->n_held -= (unsigned)used;
            memmove(h, h + used, stream->n_held);
        }
    }
    return written;
}

size_t sl_utf8_stream_finish(sl_utf8_stream *stream, char *out)
{
    if (stream->n_held == 0)
        return 0;
    stream->n_held = 0;
    return sl_utf8_encode(SL_UTF8_REPLACEMENT, out);
}

const char *sl_utf8_show(const char *s, size_t n, char *text, size_t capacity)
{
    static const char gap[] = "...";
    size_t out = 0, cut = 0; /* cut: where the gap still fits behind */
    for (size_t i = 0; i < n;) {
        char bytes[4];
        uint32_t code;
        i += sl_utf8_decode(s + i, n - i, &code);
        const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
        const size_t length = sl_utf8_encode(control ? SL_UTF8_REPLACEMENT : code, bytes);
        if (out + length >= capacity) {
            memcpy(text + cut, gap, sizeof gap);
            return text;
        }
        memcpy(text + out, bytes, length);
        out += length;
        if (out + sizeof gap <= capacity)
            cut = out;
    }
    text[out] = '\0';
    return text;
}
