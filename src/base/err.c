#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

static const char *const status_names[] = {
    [SL_OK] = "ok",
    [SL_ERR_MEMORY] = "memory",
    [SL_ERR_IO] = "io",
    [SL_ERR_FORMAT] = "format",
    [SL_ERR_UNSUPPORTED] = "unsupported",
    [SL_ERR_ARGUMENT] = "argument",
    [SL_ERR_LIMIT] = "limit",
    [SL_ERR_CONTEXT] = "context",
    [SL_ERR_NUMERIC] = "numeric",
    [SL_ERR_CANCELLED] = "cancelled",
};

const char *sl_status_name(sl_status status)
{
    size_t i = (size_t)status;
    return i < SL_COUNTOF(status_names) ? status_names[i] : "unknown";
}

#define STRINGIFY_(x) #x
#define STRINGIFY(x)  STRINGIFY_(x)

const char *sl_version(void)
{
    return STRINGIFY(SL_VERSION_MAJOR) "." STRINGIFY(SL_VERSION_MINOR) "." STRINGIFY(
        SL_VERSION_PATCH);
}

/* Of what is formatted, the first this many bytes count: a path of the greatest length and a
 * sentence. */
enum { RAW_BYTES = 4096 + SL_ERROR_MESSAGE_BYTES };

/* Writes what fits of src[0..n) to dst (or, with dst NULL, only measures it) and stops at a
 * character. A message may quote bytes of a hostile file and is shown on terminals and in JSON.
 * Returns the bytes written; *n_read tells how much of src that was. */
static size_t make_printable(char *dst, size_t capacity, const char *src, size_t n, size_t *n_read)
{
    size_t i = 0, out = 0;
    while (i < n) {
        uint32_t code;
        size_t used = sl_utf8_decode(src + i, n - i, &code);
        if (code < 0x20 || (code >= 0x7f && code < 0xa0))
            code = '?';
        char encoded[4];
        size_t length = sl_utf8_encode(code, encoded);
        if (length > capacity - out)
            break;
        if (dst)
            memcpy(dst + out, encoded, length);
        out += length;
        i += used;
    }
    *n_read = i;
    return out;
}

/* Puts the text into err->message. A long one, which has a long name in it, loses its middle: what
 * went wrong stands at the end. */
static void set_message(sl_error *err, const char *text)
{
    static const char gap[] = "...";
    enum { CAPACITY = SL_ERROR_MESSAGE_BYTES - 1 };
    const size_t n = strlen(text);
    size_t n_head, n_tail;
    size_t out = make_printable(err->message, CAPACITY, text, n, &n_head);
    if (n_head < n) {
        out = make_printable(err->message, CAPACITY / 2, text, n, &n_head);
        memcpy(err->message + out, gap, sizeof gap - 1);
        out += sizeof gap - 1;
        const size_t room = CAPACITY - out;
        size_t tail = sl_max_size(n_head, n > room ? n - room : 0);
        while (tail < n && ((unsigned char)text[tail] & 0xC0) == 0x80)
            tail++;
        for (uint32_t code; tail < n; tail += sl_utf8_decode(text + tail, n - tail, &code)) {
            make_printable(NULL, room, text + tail, n - tail, &n_tail);
            if (n_tail == n - tail)
                break;
        }
        out += make_printable(err->message + out, room, text + tail, n - tail, &n_tail);
    }
    err->message[out] = '\0';
}

sl_status sl_fail(sl_error *err, sl_status status, const char *format, ...)
{
    if (!err)
        return status;
    char raw[RAW_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(raw, sizeof raw, format, args);
    va_end(args);
    err->status = status;
    set_message(err, raw);
    return status;
}

sl_status sl_fail_within(sl_error *err, sl_status status, const char *format, ...)
{
    if (!err)
        return status;
    char raw[RAW_BYTES + SL_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(raw, RAW_BYTES, format, args);
    va_end(args);
    size_t used = n < 0 ? 0 : sl_min_size((size_t)n, RAW_BYTES - 1);
    snprintf(raw + used, sizeof raw - used, ": %s", err->message);
    err->status = status;
    set_message(err, raw);
    return status;
}

void sl_error_clear(sl_error *err)
{
    err->status = SL_OK;
    err->message[0] = '\0';
}

sl_status sl_check_reserved(const uint64_t *reserved, size_t n, const char *name, sl_error *err)
{
    for (size_t i = 0; i < n; i++) {
        if (reserved[i] != 0)
            return sl_fail(err, SL_ERR_ARGUMENT, "reserved[%zu] of %s is not 0", i, name);
    }
    return SL_OK;
}
