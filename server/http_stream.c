/* Owns answers that come piece by piece: Server-Sent Events and lines of JSON. Ends a stream whose
 * client does not take its bytes. */
#include "http_internal.h"

#include <stdio.h>
#include <string.h>

bool sl_http_stream_begin(sl_http_request *request, sl_http_stream kind)
{
    if (atomic_load(&request->over) || request->status != 0)
        return false;
    sl_http_conn *conn = request->conn;
    request->chunked = request->head.minor == 1 && !request->no_body;
    if (!request->chunked)
        conn->close_after = true; /* only the close tells the end */
    request->stream = kind;
    request->server->counters.streams_open++;
    if (!sl_http_write_head(request, 200,
                            kind == SL_HTTP_SSE ? "text/event-stream; charset=utf-8"
                                                : "application/x-ndjson",
                            true, 0))
        return false;
    conn->phase = SL_PHASE_STREAMING;
    conn->spoke_ms = sl_http_now_ms();
    return true;
}

/* Writes pieces as one chunk. */
static bool write_pieces(sl_http_request *request, struct evbuffer_iovec *pieces, int n_pieces)
{
    sl_http_conn *conn = request->conn;
    struct evbuffer *output = bufferevent_get_output(conn->bev);
    if (request->no_body)
        return true;
    size_t n = 0;
    for (int i = 1; i < n_pieces - 1; i++)
        n += pieces[i].iov_len;
    const size_t n_before = evbuffer_get_length(output);
    if (n_before + n > request->server->limits.waiting_bytes) {
        sl_http_conn_kill(conn, SL_HTTP_CLIENT_SLOW);
        return false;
    }
    /* The first and the last piece are the chunk's. */
    char size[24];
    if (request->chunked) {
        pieces[0].iov_base = size;
        pieces[0].iov_len = (size_t)snprintf(size, sizeof size, "%zx\r\n", n);
        pieces[n_pieces - 1] = (struct evbuffer_iovec){"\r\n", 2};
    } else {
        pieces[0].iov_len = pieces[n_pieces - 1].iov_len = 0;
    }
    size_t n_all = 0;
    for (int i = 0; i < n_pieces; i++)
        n_all += pieces[i].iov_len;
    const uint64_t now = sl_http_now_ms();
    if (n_before == 0)
        conn->taken_ms = now;
    conn->spoke_ms = now;
    if (evbuffer_add_iovec(output, pieces, n_pieces) != n_all) {
        sl_http_conn_kill(conn, SL_HTTP_NO_MEMORY);
        return false;
    }
    conn->n_added += n_all;
    request->bytes_out += n_all;
    return true;
}

static bool streams(const sl_http_request *request, sl_http_stream kind)
{
    return !atomic_load(&request->over) && request->stream == kind;
}

static struct evbuffer_iovec piece_of(const char *s, size_t n)
{
    union {
        const char *in;
        void *out; /* the type of the library has no const */
    } bytes = {s};
    return (struct evbuffer_iovec){bytes.out, n};
}

/* Text of several lines: each gets the name of the field anew, as the format wants it. */
static bool write_lines(sl_http_request *request, const char *name, const char *data, size_t n)
{
    sl_buf event;
    sl_buf_init(&event, SL_MEM_GENERAL, request->server->limits.waiting_bytes);
    sl_status status = name ? sl_buf_printf(&event, NULL, "event: %s\ndata: ", name)
                            : sl_buf_append_str(&event, "data: ", NULL);
    for (size_t i = 0; i < n && status == SL_OK; i++) {
        if (data[i] == '\n' || data[i] == '\r') {
            status = sl_buf_append_str(&event, "\ndata: ", NULL);
            i += data[i] == '\r' && i + 1 < n && data[i + 1] == '\n';
        } else {
            status = sl_buf_append_char(&event, data[i], NULL);
        }
    }
    if (status == SL_OK)
        status = sl_buf_append_str(&event, "\n\n", NULL);
    bool good = false;
    if (status == SL_OK) {
        struct evbuffer_iovec pieces[3] = {
            {NULL, 0}, piece_of(event.data, event.n_bytes), {NULL, 0}};
        good = write_pieces(request, pieces, 3);
    } else {
        sl_http_conn_kill(request->conn,
                          status == SL_ERR_LIMIT ? SL_HTTP_CLIENT_SLOW : SL_HTTP_NO_MEMORY);
    }
    sl_buf_free(&event);
    return good;
}

bool sl_http_stream_event(sl_http_request *request, const char *name, const char *data, size_t n)
{
    if (!streams(request, SL_HTTP_SSE))
        return false;
    if (n > 0 && (memchr(data, '\n', n) || memchr(data, '\r', n)))
        return write_lines(request, name, data, n);
    struct evbuffer_iovec pieces[7] = {
        {NULL, 0},
        piece_of("event: ", name ? 7 : 0),
        piece_of(name, name ? strlen(name) : 0),
        piece_of(name ? "\ndata: " : "data: ", name ? 7 : 6),
        piece_of(data, n),
        piece_of("\n\n", 2),
        {NULL, 0},
    };
    return write_pieces(request, pieces, 7);
}

bool sl_http_stream_comment(sl_http_request *request, const char *text)
{
    if (atomic_load(&request->over) || !request->stream)
        return false;
    if (request->stream != SL_HTTP_SSE)
        return true;
    struct evbuffer_iovec pieces[5] = {{NULL, 0},
                                       piece_of(": ", 2),
                                       piece_of(text, strcspn(text, "\r\n")),
                                       piece_of("\n\n", 2),
                                       {NULL, 0}};
    return write_pieces(request, pieces, 5);
}

bool sl_http_stream_line(sl_http_request *request, const char *data, size_t n)
{
    if (!streams(request, SL_HTTP_NDJSON))
        return false;
    struct evbuffer_iovec pieces[4] = {{NULL, 0}, piece_of(data, n), piece_of("\n", 1), {NULL, 0}};
    return write_pieces(request, pieces, 4);
}

static bool end_stream(sl_http_request *request, bool complete)
{
    if (atomic_load(&request->over) || !request->stream)
        return false;
    sl_http_conn *conn = request->conn;
    static const char last[] = "0\r\n\r\n";
    if (request->chunked) {
        if (!sl_http_conn_write(conn, last, sizeof last - 1))
            return false;
        request->bytes_out += sizeof last - 1;
    }
    request->closed = NULL;
    request->complete = complete;
    sl_http_request_finish(request);
    sl_http_conn_answered(conn);
    return true;
}

bool sl_http_stream_end(sl_http_request *request)
{
    return end_stream(request, true);
}

bool sl_http_stream_fail(sl_http_request *request, const sl_http_error *error)
{
    if (atomic_load(&request->over) || !request->stream)
        return false;
    sl_json_out json;
    sl_json_out_init(&json);
    bool good = sl_http_error_text(request, error, &json) == SL_OK;
    request->conn->close_after = true;
    if (!good)
        sl_http_conn_kill(request->conn, SL_HTTP_NO_MEMORY);
    else if (request->stream == SL_HTTP_NDJSON)
        good = sl_http_stream_line(request, json.buf.data, json.buf.n_bytes);
    else /* Anthropic's streams name their events. */
        good = sl_http_stream_event(
            request,
            request->match.route && request->match.route->shape == sl_http_shape_anthropic ? "error"
                                                                                           : NULL,
            json.buf.data, json.buf.n_bytes);
    sl_json_out_free(&json);
    return good && end_stream(request, false);
}

size_t sl_http_waiting(const sl_http_request *request)
{
    return request->conn && !atomic_load(&request->over)
               ? evbuffer_get_length(bufferevent_get_output(request->conn->bev))
               : 0;
}
