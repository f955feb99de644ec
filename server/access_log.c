/* Owns the line that each request leaves: for people, or as JSON. The query is left out, since it
 * may hold what is nobody's business, and so are keys: only their number is told. */
#include "http_internal.h"

#include <stdio.h>
#include <time.h>

#include "base/clock.h"
#include "base/utf8.h"

static void timestamp(char *text, size_t capacity)
{
    struct timespec now = {0};
    struct tm utc = {0};
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    const size_t n = strftime(text, capacity, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(text + n, capacity - n, ".%03uZ", (unsigned)(now.tv_nsec / 1000000) % 1000);
}

static void write_json(sl_json_out *json, const sl_http_request *request, const char *time,
                       double ms)
{
    sl_json_open(json, NULL, '{');
    sl_json_string(json, "time", time);
    sl_json_string(json, "peer", request->peer);
    sl_json_string(json, "id", request->id);
    sl_json_text(json, "method", request->head.method_name.data, request->head.method_name.n_bytes);
    sl_json_text(json, "path", request->head.path.data, request->head.path.n_bytes);
    sl_json_string(json, "route", request->match.route ? request->match.route->path : NULL);
    sl_json_uint(json, "status", (uint64_t)request->status);
    sl_json_bool(json, "complete", request->complete);
    sl_json_uint(json, "bytes_in", request->bytes_in);
    sl_json_uint(json, "bytes_out", request->bytes_out);
    sl_json_double(json, "ms", ms);
    if (request->key >= 0)
        sl_json_uint(json, "key", (uint64_t)request->key);
    sl_json_close(json, '}');
}

void sl_http_log_request(const sl_http_request *request)
{
    const sl_http *http = request->server;
    if (http->log_format == SL_HTTP_LOG_NONE || !http->log_line)
        return;
    char time[40];
    timestamp(time, sizeof time);
    const double ms = (double)(sl_clock_ns() - request->begun_ns) / 1e6;
    sl_json_out json;
    sl_json_out_init(&json);
    if (http->log_format == SL_HTTP_LOG_JSON) {
        write_json(&json, request, time, ms);
    } else {
        char method[32], path[SL_SHOWN_BYTES];
        const sl_http_head *head = &request->head;
        const sl_str none = {"-", 1};
        const sl_str name = head->method_name.n_bytes ? head->method_name : none;
        const sl_str where = head->path.n_bytes ? head->path : none;
        sl_utf8_show(name.data, name.n_bytes, method, sizeof method);
        sl_utf8_show(where.data, where.n_bytes, path, sizeof path);
        json.status = sl_buf_printf(&json.buf, NULL, "%s %s %s %s %s %d %llu B %.1f ms%s", time,
                                    request->peer, request->id, method, path, request->status,
                                    (unsigned long long)request->bytes_out, ms,
                                    request->complete ? "" : " (cut off)");
    }
    /* Without memory there is no line; the answer matters more. */
    if (json.status == SL_OK)
        http->log_line(http->log_context, json.buf.data, json.buf.n_bytes);
    sl_json_out_free(&json);
}
