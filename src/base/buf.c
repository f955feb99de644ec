#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static char empty[1] = "";

void sl_buf_init(sl_buf *buf, sl_mem_tag tag, size_t limit)
{
    *buf = (sl_buf){.data = empty, .limit = limit, .tag = tag};
}

void sl_buf_free(sl_buf *buf)
{
    if (buf->data != empty)
        sl_free(buf->data);
    sl_buf_init(buf, buf->tag, buf->limit);
}

void sl_buf_clear(sl_buf *buf)
{
    if (buf->data != empty)
        buf->data[0] = '\0';
    buf->n_bytes = 0;
}

sl_status sl_buf_reserve(sl_buf *buf, size_t n_more, sl_error *err)
{
    size_t wanted;
    if (!sl_size_add(buf->n_bytes, n_more, &wanted) || wanted > buf->limit || wanted == SIZE_MAX)
        return sl_fail(err, SL_ERR_LIMIT, "text of more than %zu bytes", buf->limit);
    if (buf->data != empty && wanted <= buf->capacity)
        return SL_OK;
    size_t capacity = sl_max_size(wanted, sl_max_size(64, buf->capacity + buf->capacity / 2));
    capacity = sl_max_size(wanted, sl_min_size(capacity, buf->limit));
    char *data = sl_realloc(buf->tag, buf->data == empty ? NULL : buf->data, capacity + 1);
    if (!data)
        return sl_fail(err, SL_ERR_MEMORY, "out of memory for %zu bytes of text", capacity);
    data[buf->n_bytes] = '\0';
    buf->data = data;
    buf->capacity = capacity;
    return SL_OK;
}

sl_status sl_buf_append(sl_buf *buf, const void *bytes, size_t n, sl_error *err)
{
    SL_TRY(sl_buf_reserve(buf, n, err));
    if (n > 0)
        memcpy(buf->data + buf->n_bytes, bytes, n);
    buf->n_bytes += n;
    buf->data[buf->n_bytes] = '\0';
    return SL_OK;
}

sl_status sl_buf_append_str(sl_buf *buf, const char *s, sl_error *err)
{
    return sl_buf_append(buf, s, strlen(s), err);
}

sl_status sl_buf_append_char(sl_buf *buf, char c, sl_error *err)
{
    return sl_buf_append(buf, &c, 1, err);
}

sl_status sl_buf_printf(sl_buf *buf, sl_error *err, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    sl_status status = n < 0 ? sl_fail(err, SL_ERR_ARGUMENT, "text that cannot be formatted")
                             : sl_buf_reserve(buf, (size_t)n, err);
    if (status == SL_OK) {
        vsnprintf(buf->data + buf->n_bytes, (size_t)n + 1, format, again);
        buf->n_bytes += (size_t)n;
    }
    va_end(again);
    return status;
}

char *sl_buf_take(sl_buf *buf, size_t *n_bytes)
{
    char *data = buf->data == empty ? NULL : buf->data;
    *n_bytes = buf->n_bytes;
    sl_buf_init(buf, buf->tag, buf->limit);
    return data;
}
