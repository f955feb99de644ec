/* Most text needs nothing: only a "changer" (see unicode_tables.h) can be changed by NFC, with the
 * character before it. So the text is copied, and runs of changers go through utf8proc's tables
 * together with that character. utf8proc's own driver is not used: it sorts marks in quadratic time
 * and allocates by itself. Which characters are changers is fixed by our tables, and what Unicode
 * says of those can never change, so another version of utf8proc gives the same text. */
#include "text/nfc.h"

#include <limits.h>
#include <string.h>
#include <utf8proc.h>

#include "base/utf8.h"
#include "text/unicode_tables.h"

enum {
    MAX_PARTS = 32,    /* room for the decomposition of one character; the longest has 4 */
    INSERTION_MAX = 16 /* longer runs of marks are sorted by counting */
};

/* Two arrays of the same capacity: the code points of a run, and space to sort in. */
typedef struct run {
    utf8proc_int32_t *codes, *sorted;
    size_t n, capacity;
} run;

static sl_status run_reserve(run *r, size_t n_more, sl_error *err)
{
    size_t wanted, bytes;
    if (!sl_size_add(r->n, n_more, &wanted))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for normalisation");
    if (wanted <= r->capacity)
        return SL_OK;
    size_t capacity = sl_max_size(wanted, r->capacity + r->capacity / 2);
    if (!sl_size_mul(capacity, sizeof *r->codes, &bytes))
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for normalisation");
    utf8proc_int32_t *codes = sl_realloc(SL_MEM_TEXT, r->codes, bytes);
    if (!codes)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for normalisation");
    r->codes = codes;
    utf8proc_int32_t *sorted = sl_realloc(SL_MEM_TEXT, r->sorted, bytes);
    if (!sorted)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for normalisation");
    r->sorted = sorted;
    r->capacity = capacity;
    return SL_OK;
}

static unsigned combining_class(utf8proc_int32_t code)
{
    return (unsigned)utf8proc_get_property(code)->combining_class;
}

static sl_status run_append(run *r, uint32_t code, sl_error *err)
{
    SL_TRY(run_reserve(r, MAX_PARTS, err));
    int last_class = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char((utf8proc_int32_t)code, r->codes + r->n, MAX_PARTS,
                                                 UTF8PROC_STABLE | UTF8PROC_COMPOSE, &last_class);
    if (n < 0 || n > MAX_PARTS)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "utf8proc cannot decompose U+%04X", (unsigned)code);
    r->n += (size_t)n;
    return SL_OK;
}

/* Stable sort of marks by combining class. */
static void sort_marks(utf8proc_int32_t *codes, utf8proc_int32_t *sorted, size_t n)
{
    if (n <= INSERTION_MAX) {
        for (size_t i = 1; i < n; i++) {
            utf8proc_int32_t code = codes[i];
            unsigned ccc = combining_class(code);
            size_t j = i;
            for (; j > 0 && combining_class(codes[j - 1]) > ccc; j--)
                codes[j] = codes[j - 1];
            codes[j] = code;
        }
        return;
    }
    size_t begin[UCHAR_MAX + 2] = {0};
    for (size_t i = 0; i < n; i++)
        begin[combining_class(codes[i]) + 1]++;
    for (size_t ccc = 1; ccc < SL_COUNTOF(begin); ccc++)
        begin[ccc] += begin[ccc - 1];
    for (size_t i = 0; i < n; i++)
        sorted[begin[combining_class(codes[i])]++] = codes[i];
    memcpy(codes, sorted, n * sizeof *codes);
}

/* Brings the decomposed run into order, composes it, appends it as UTF-8 and empties it. */
static sl_status run_flush(run *r, sl_buf *buf, sl_error *err)
{
    for (size_t i = 0; i < r->n;) {
        size_t begin = i;
        while (i < r->n && combining_class(r->codes[i]) != 0)
            i++;
        sort_marks(r->codes + begin, r->sorted, i - begin);
        i += i == begin;
    }
    utf8proc_ssize_t n = utf8proc_normalize_utf32(r->codes, (utf8proc_ssize_t)r->n,
                                                  UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    r->n = 0;
    for (utf8proc_ssize_t i = 0; i < n; i++) {
        char bytes[4];
        SL_TRY(sl_buf_append(buf, bytes, sl_utf8_encode((uint32_t)r->codes[i], bytes), err));
    }
    return SL_OK;
}

/* The offset of the first changer from pos on, or n; *before is the character in front of it, or
 * pos when it is the first. */
static size_t find_changer(const char *text, size_t n, size_t pos, size_t *before)
{
    *before = pos;
    while (pos < n) {
        uint32_t code;
        size_t used = sl_utf8_decode(text + pos, n - pos, &code);
        if (code >= 0x300 && (sl_unicode_flags(code) & SL_UNICODE_NFC_CHANGER))
            return pos;
        *before = pos;
        pos += used;
    }
    return n;
}

sl_status sl_nfc(const char *text, size_t n, sl_buf *buf, sl_str *result, sl_error *err)
{
    *result = (sl_str){text, n};
    size_t before, copied = 0;
    size_t pos = find_changer(text, n, 0, &before);
    if (pos == n)
        return SL_OK;

    run r = {0};
    sl_status status = SL_OK;
    sl_buf_clear(buf);
    while (pos < n) {
        uint32_t code;
        if (before < pos) {
            sl_utf8_decode(text + before, n - before, &code);
            if (sl_unicode_flags(code) & SL_UNICODE_NFC_BASE)
                SL_CHECK(run_append(&r, code, err));
            else
                before = pos;
        }
        SL_CHECK(sl_buf_append(buf, text + copied, before - copied, err));
        while (pos < n) {
            size_t used = sl_utf8_decode(text + pos, n - pos, &code);
            if (!(sl_unicode_flags(code) & SL_UNICODE_NFC_CHANGER))
                break;
            SL_CHECK(run_append(&r, code, err));
            pos += used;
        }
        SL_CHECK(run_flush(&r, buf, err));
        copied = pos;
        pos = find_changer(text, n, pos, &before);
    }
    SL_CHECK(sl_buf_append(buf, text + copied, n - copied, err));
    *result = (sl_str){buf->data, buf->n_bytes};
done:
    sl_free(r.codes);
    sl_free(r.sorted);
    return status;
}
