/* A growing byte buffer with a hard limit, always NUL-terminated. */
#ifndef SL_BASE_BUF_H
#define SL_BASE_BUF_H

#include "base/err.h"
#include "base/mem.h"

typedef struct sl_buf {
    char *data; /* n_bytes bytes and a NUL; never NULL ("" before the first append) */
    size_t n_bytes;
    size_t capacity;
    size_t limit; /* the most bytes it may hold */
    sl_mem_tag tag;
} sl_buf;

void sl_buf_init(sl_buf *buf, sl_mem_tag tag, size_t limit);
void sl_buf_free(sl_buf *buf);
void sl_buf_clear(sl_buf *buf); /* empties it and keeps its memory */

/* SL_ERR_LIMIT past the limit, SL_ERR_MEMORY; the old content stays in both cases. */
sl_status sl_buf_reserve(sl_buf *buf, size_t n_more, sl_error *err);
sl_status sl_buf_append(sl_buf *buf, const void *bytes, size_t n, sl_error *err);
sl_status sl_buf_append_str(sl_buf *buf, const char *s, sl_error *err);
sl_status sl_buf_append_char(sl_buf *buf, char c, sl_error *err);
sl_status sl_buf_printf(sl_buf *buf, sl_error *err, const char *format, ...) SL_PRINTF(3, 4);

/* Hands the block over to the caller (sl_free it; NULL when nothing was ever appended) and leaves
 * the buffer empty. */
char *sl_buf_take(sl_buf *buf, size_t *n_bytes);

#endif
