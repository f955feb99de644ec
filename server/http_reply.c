/* Owns whole answers: their heads, and errors in the shapes of three APIs. Refuses headers that
 * could end a line, and second answers. */
#include "http_internal.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "base/str.h"

enum { MAX_HEAD_BYTES = 32 * 1024 };

const char *sl_http_phrase(int status)
{
    static const struct {
        int status;
        const char *phrase;
    } phrases[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {411, "Length Required"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < SL_COUNTOF(phrases); i++) {
        if (phrases[i].status == status)
            return phrases[i].phrase;
    }
    return "Status";
}

/* ---- heads ---- */

static bool is_value(const char *value)
{
    for (; *value != '\0'; value++) {
        if (((unsigned char)*value < 0x20 && *value != '\t') || *value == 0x7f)
            return false;
    }
    return true;
}

bool sl_http_add_header(sl_http_request *request, const char *name, const char *value)
{
    return request->status == 0 && !atomic_load(&request->over) &&
           sl_http_is_token(sl_str_of(name)) && is_value(value) &&
           sl_buf_printf(&request->headers, NULL, "%s: %s\r\n", name, value) == SL_OK;
}

/* "Sun, 06 Nov 1994 08:49:37 GMT", in any locale. */
static void http_date(char *text, size_t capacity)
{
    static const char *const days[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
    static const char *const months[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                         "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
    const time_t now = time(NULL);
    struct tm utc = {0};
    gmtime_r(&now, &utc);
    snprintf(text, capacity, "%s, %02d %s %d %02d:%02d:%02d GMT", days[utc.tm_wday], utc.tm_mday,
             months[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

/* What the head says of the body's length and of the connection. */
static sl_status put_framing(sl_buf *head, const sl_http_request *request, int status, bool streams,
                             size_t n_body)
{
    const sl_http_conn *conn = request->conn;
    if (streams) {
        if (request->chunked)
            SL_TRY(sl_buf_append_str(head, "Transfer-Encoding: chunked\r\n", NULL));
        SL_TRY(
            sl_buf_append_str(head, "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n", NULL));
    } else if (status != 204 && status != 304) {
        SL_TRY(sl_buf_printf(head, NULL, "Content-Length: %zu\r\n", n_body));
    }
    if (conn->close_after || request->server->stops_seen > 0)
        return sl_buf_append_str(head, "Connection: close\r\n", NULL);
    if (request->head.minor == 0)
        return sl_buf_append_str(head, "Connection: keep-alive\r\n", NULL);
    return SL_OK;
}

static sl_status put_head(sl_buf *head, const sl_http_request *request, int status,
                          const char *type, bool streams, size_t n_body)
{
    char date[64];
    http_date(date, sizeof date);
    SL_TRY(sl_buf_printf(head, NULL, "HTTP/1.1 %d %s\r\nDate: %s\r\nx-request-id: %s\r\n", status,
                         sl_http_phrase(status), date, request->id));
    if (type)
        SL_TRY(sl_buf_printf(head, NULL, "Content-Type: %s\r\nX-Content-Type-Options: nosniff\r\n",
                             type));
    SL_TRY(put_framing(head, request, status, streams, n_body));
    if (request->origin.data)
        SL_TRY(sl_buf_printf(head, NULL,
                             "Access-Control-Allow-Origin: %.*s\r\nVary: Origin\r\n"
                             "Access-Control-Expose-Headers: x-request-id, retry-after\r\n",
                             (int)request->origin.n_bytes, request->origin.data));
    SL_TRY(sl_buf_append(head, request->headers.data, request->headers.n_bytes, NULL));
    return sl_buf_append_str(head, "\r\n", NULL);
}

bool sl_http_write_head(sl_http_request *request, int status, const char *type, bool streams,
                        size_t n_body)
{
    sl_http_conn *conn = request->conn;
    sl_buf head;
    sl_buf_init(&head, SL_MEM_GENERAL, MAX_HEAD_BYTES);
    request->status = status;
    bool good = put_head(&head, request, status, type, streams, n_body) == SL_OK;
    if (!good)
        sl_http_conn_kill(conn, SL_HTTP_NO_MEMORY);
    else
        good = sl_http_conn_write(conn, head.data, head.n_bytes);
    request->bytes_out += good ? head.n_bytes : 0;
    sl_buf_free(&head);
    return good;
}

/* ---- whole answers ---- */

bool sl_http_reply(sl_http_request *request, int status, const char *type, const void *body,
                   size_t n)
{
    if (atomic_load(&request->over) || request->status != 0)
        return false;
    sl_http_conn *conn = request->conn;
    if (!sl_http_write_head(request, status, type, false, n))
        return false;
    if (n > 0 && !request->no_body) {
        if (!sl_http_conn_write(conn, body, n))
            return false;
        request->bytes_out += n;
    }
    request->closed = NULL;
    request->complete = true;
    sl_http_request_finish(request);
    sl_http_conn_answered(conn);
    return true;
}

bool sl_http_reply_json(sl_http_request *request, int status, sl_json_out *json)
{
    static const char type[] = "application/json";
    const bool good = json->status == SL_OK
                          ? sl_http_reply(request, status, type, json->buf.data, json->buf.n_bytes)
                          : sl_http_refuse(request, json->status == SL_ERR_MEMORY ? 503 : 500, NULL,
                                           "The answer could not be written.");
    sl_json_out_free(json);
    return good;
}

/* ---- errors ---- */

static const char *type_of(int status)
{
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 413:
        return "request_too_large";
    case 429:
        return "rate_limit_error";
    case 503:
        return "overloaded_error";
    default:
        return status >= 500 ? "api_error" : "invalid_request_error";
    }
}

void sl_http_shape_openai(sl_json_out *json, const sl_http_error *error, const char *request_id)
{
    (void)request_id;
    sl_json_open(json, NULL, '{');
    sl_json_open(json, "error", '{');
    sl_json_string(json, "message", error->message);
    sl_json_string(json, "type", error->type);
    sl_json_string(json, "param", error->param);
    sl_json_string(json, "code", error->code);
    sl_json_close(json, '}');
    sl_json_close(json, '}');
}

void sl_http_shape_anthropic(sl_json_out *json, const sl_http_error *error, const char *request_id)
{
    sl_json_open(json, NULL, '{');
    sl_json_string(json, "type", "error");
    sl_json_open(json, "error", '{');
    sl_json_string(json, "type", error->type);
    sl_json_string(json, "message", error->message);
    sl_json_close(json, '}');
    sl_json_string(json, "request_id", request_id);
    sl_json_close(json, '}');
}

void sl_http_shape_ollama(sl_json_out *json, const sl_http_error *error, const char *request_id)
{
    (void)request_id;
    sl_json_open(json, NULL, '{');
    sl_json_string(json, "error", error->message);
    sl_json_close(json, '}');
}

sl_status sl_http_error_text(sl_http_request *request, const sl_http_error *error,
                             sl_json_out *json)
{
    sl_http_error typed = *error;
    if (!typed.type)
        typed.type = type_of(error->status);
    sl_http_shape *shape =
        request->match.route ? request->match.route->shape : request->match.shape;
    (shape ? shape : sl_http_shape_openai)(json, &typed, request->id);
    return json->status;
}

bool sl_http_reply_error(sl_http_request *request, const sl_http_error *error)
{
    if (atomic_load(&request->over) || request->status != 0)
        return false;
    sl_json_out json;
    sl_json_out_init(&json);
    bool good = false;
    if (sl_http_error_text(request, error, &json) == SL_OK) {
        if (error->retry_after_s) {
            char seconds[16];
            snprintf(seconds, sizeof seconds, "%u", error->retry_after_s);
            sl_http_add_header(request, "Retry-After", seconds);
        }
        good = sl_http_reply(request, error->status, "application/json", json.buf.data,
                             json.buf.n_bytes);
    } else {
        /* Without memory for a sentence, a bare status. */
        static const char text[] = "{\"error\": {\"message\": \"out of memory\"}}";
        good = sl_http_reply(request, error->status, "application/json", text, sizeof text - 1);
    }
    sl_json_out_free(&json);
    return good;
}

bool sl_http_refuse(sl_http_request *request, int status, const char *code, const char *message)
{
    const sl_http_error error = {.status = status,
                                 .code = code,
                                 .message = message,
                                 .retry_after_s = status == 503 || status == 429 ? 1 : 0};
    return sl_http_reply_error(request, &error);
}

bool sl_http_reply_status(sl_http_request *request, const sl_error *err, const char *param)
{
    sl_http_error error = {.status = 500, .message = err->message, .param = param};
    switch (err->status) {
    case SL_ERR_ARGUMENT:
    case SL_ERR_FORMAT:
    case SL_ERR_LIMIT:
    case SL_ERR_UNSUPPORTED:
        error.status = 400;
        break;
    case SL_ERR_CONTEXT:
        error.status = 400;
        error.code = "context_length_exceeded";
        break;
    case SL_ERR_MEMORY:
    case SL_ERR_CANCELLED:
        error.status = 503;
        error.retry_after_s = 1;
        break;
    default:
        break;
    }
    return sl_http_reply_error(request, &error);
}
