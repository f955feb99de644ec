/* The framing guard: request heads and chunked bodies, read strictly. What two readers could take
 * for two different things is refused: bare LF or CR, control bytes, folded lines, white space
 * before a colon, more than one Content-Length or Host, Content-Length beside Transfer-Encoding,
 * any coding but "chunked", numbers that are not digits. Pure functions of bytes. */
#ifndef SL_SERVER_HTTP_HEAD_H
#define SL_SERVER_HTTP_HEAD_H

#include "http.h"

/* Looks for the end of a head in bytes that arrive in pieces. Zero-initialise it. */
typedef struct sl_http_scan {
    size_t n_bytes; /* of the head so far */
    size_t n_line;  /* of its present line */
    bool cr;        /* the last byte was one */
    bool behind_first;
} sl_http_scan;

enum { SL_HTTP_MORE = 0, SL_HTTP_END = 1 };

/* Looks at n more bytes: SL_HTTP_MORE, SL_HTTP_END with *used of them belonging to the head, or the
 * status to refuse it with (400, 414, 431). */
int sl_http_scan_bytes(sl_http_scan *scan, const sl_http_limits *limits, const char *bytes,
                       size_t n, size_t *used);

typedef struct sl_http_field {
    sl_str name, value;
} sl_http_field;

typedef enum sl_http_framing { SL_HTTP_NO_BODY, SL_HTTP_LENGTH, SL_HTTP_CHUNKED } sl_http_framing;

/* Texts point into the bytes that were parsed. */
typedef struct sl_http_head {
    sl_http_method method; /* 0: one that is not known */
    sl_str method_name;
    sl_str path, query; /* of the target; path is "*" for the whole server */
    sl_str host;        /* without port */
    sl_str host_port;   /* as sent */
    int minor;          /* HTTP/1.minor, 0 or 1 */
    sl_http_framing framing;
    uint64_t length; /* with SL_HTTP_LENGTH */
    bool keep_alive;
    bool expects_continue;
    size_t n_fields;
    sl_http_field *fields; /* the caller's array */
} sl_http_head;

/* Parses the n bytes of a whole head, its empty line included. Returns 0, or the status to refuse
 * it with and a sentence in *why. fields has room for limits->headers. */
int sl_http_head_parse(const char *bytes, size_t n, const sl_http_limits *limits,
                       sl_http_field *fields, sl_http_head *head, const char **why);

/* The value of the first field of that name. */
sl_str sl_http_head_find(const sl_http_head *head, const char *name);

/* Whether a comma-separated list holds the token, in any case. */
bool sl_http_list_has(sl_str list, const char *token);

bool sl_http_is_token(sl_str text);

/* Reads %XX and, with plus, '+' as a space. False for a wrong escape, NUL or invalid UTF-8. out has
 * room for text.n_bytes. */
bool sl_http_decode(sl_str text, bool plus, char *out, size_t *n);

/* A chunked body. Zero-initialise it. */
typedef struct sl_http_chunks {
    int state;
    uint64_t left;      /* of the present chunk */
    unsigned digits;    /* of its size */
    size_t n_extension; /* bytes of extensions and trailers, which are ignored */
} sl_http_chunks;

/* Takes bytes: *used of them, of which *n_data at *data belong to the body (perhaps none).
 * SL_HTTP_MORE, SL_HTTP_END, or 400. Call again with what is left until all are used. */
int sl_http_chunks_take(sl_http_chunks *chunks, const char *bytes, size_t n, size_t *used,
                        const char **data, size_t *n_data);

#endif
