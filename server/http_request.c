/* Owns requests: their memory, which others may hold on to, and access to what the client sent. */
#include "http_internal.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/str.h"

void sl_http_make_id(sl_http *http, char id[SL_REQUEST_ID_BYTES])
{
    /* Where the system has no random numbers, those of the start and a count. */
    unsigned char bytes[12];
    if (getrandom(bytes, sizeof bytes, GRND_NONBLOCK) != (ssize_t)sizeof bytes) {
        memcpy(bytes, http->id_seed, 8);
        for (int i = 0; i < 4; i++)
            bytes[8 + i] = (unsigned char)(http->n_ids >> (8 * i));
    }
    http->n_ids++;
    size_t n = (size_t)snprintf(id, SL_REQUEST_ID_BYTES, "req_");
    for (size_t i = 0; i < sizeof bytes; i++)
        n += (size_t)snprintf(id + n, SL_REQUEST_ID_BYTES - n, "%02x", bytes[i]);
}

/* An id of the client's is taken over if it can stand in any log. */
static bool take_id(sl_http_request *request)
{
    const sl_str given = sl_http_head_find(&request->head, "x-request-id");
    if (!given.data || given.n_bytes == 0 || given.n_bytes >= SL_REQUEST_ID_BYTES)
        return false;
    for (size_t i = 0; i < given.n_bytes; i++) {
        const char c = given.data[i];
        if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'z') && !(c >= 'A' && c <= 'Z') &&
            c != '-' && c != '_' && c != '.')
            return false;
    }
    memcpy(request->id, given.data, given.n_bytes);
    request->id[given.n_bytes] = '\0';
    return true;
}

sl_http_request *sl_http_request_create(sl_http *http, sl_http_conn *conn, size_t head_bytes)
{
    sl_http_request *request = sl_alloc_zero(SL_MEM_GENERAL, sizeof *request);
    if (!request)
        return NULL;
    enum { HEADERS_BYTES = 16 * 1024 };
    atomic_init(&request->refs, 1);
    request->server = http;
    request->conn = conn;
    request->match.index = http->n_routes;
    request->key = -1;
    request->begun_ns = sl_clock_ns();
    sl_buf_init(&request->body, SL_MEM_GENERAL, SIZE_MAX - 1);
    sl_buf_init(&request->headers, SL_MEM_GENERAL, HEADERS_BYTES);
    memcpy(request->peer, conn->peer, sizeof request->peer);
    sl_http_make_id(http, request->id);
    if (head_bytes > 0) {
        request->head_bytes = sl_alloc(SL_MEM_GENERAL, head_bytes);
        request->fields =
            sl_alloc_array(SL_MEM_GENERAL, http->limits.headers, sizeof *request->fields);
        if (!request->head_bytes || !request->fields) {
            sl_http_unref(request);
            return NULL;
        }
    }
    return request;
}

int sl_http_request_parse(sl_http_request *request, size_t n, const char **why)
{
    sl_http *http = request->server;
    const int status = sl_http_head_parse(request->head_bytes, n, &http->limits, request->fields,
                                          &request->head, why);
    take_id(request);
    if (status)
        return status;
    request->no_body = request->head.method == SL_HTTP_HEAD;
    request->match =
        sl_routes_find(http->routes, http->n_routes, request->head.method, request->head.path);
    request->body_limit = http->limits.body_bytes;
    if (request->match.route && request->match.route->body_bytes)
        request->body_limit = request->match.route->body_bytes;
    return 0;
}

int sl_http_request_decode_params(sl_http_request *request)
{
    const sl_route_match *match = &request->match;
    if (match->n_params == 0)
        return 0;
    request->decoded = sl_alloc(SL_MEM_GENERAL, request->head.path.n_bytes);
    if (!request->decoded)
        return 503;
    char *at = request->decoded;
    for (size_t i = 0; i < match->n_params; i++) {
        size_t n;
        if (!sl_http_decode(match->params[i], false, at, &n))
            return 400;
        request->params[i] = (sl_str){at, n};
        at += n;
    }
    return 0;
}

void sl_http_request_finish(sl_http_request *request)
{
    if (request->finished)
        return;
    sl_http *http = request->server;
    request->finished = true;
    if (request->handed)
        http->counters.requests_open--;
    if (request->stream)
        http->counters.streams_open--;
    request->handed = false;
    atomic_store(&request->over, true);
    http->bodies_bytes -= request->body.n_bytes;
    http->counters.bytes_out += request->bytes_out;
    http->by_route[request->match.index].by_class[request->status / 100]++;
    sl_http_log_request(request);
}

sl_http_request *sl_http_ref(sl_http_request *request)
{
    atomic_fetch_add_explicit(&request->refs, 1, memory_order_relaxed);
    return request;
}

void sl_http_unref(sl_http_request *request)
{
    if (!request || atomic_fetch_sub_explicit(&request->refs, 1, memory_order_acq_rel) != 1)
        return;
    sl_buf_free(&request->body);
    sl_buf_free(&request->headers);
    sl_free(request->decoded);
    sl_free(request->fields);
    sl_free(request->head_bytes);
    sl_free(request);
}

bool sl_http_gone(const sl_http_request *request)
{
    return atomic_load_explicit(&request->over, memory_order_relaxed);
}

void sl_http_on_closed(sl_http_request *request,
                       void (*closed)(void *context, sl_http_request *, sl_http_reason),
                       void *context)
{
    request->closed = closed;
    request->closed_context = context;
}

const char *sl_http_id(const sl_http_request *request)
{
    return request->id;
}

sl_http_method sl_http_request_method(const sl_http_request *request)
{
    return request->head.method;
}

sl_str sl_http_path(const sl_http_request *request)
{
    return request->head.path;
}

sl_str sl_http_query(const sl_http_request *request)
{
    return request->head.query;
}

const char *sl_http_peer(const sl_http_request *request)
{
    return request->peer;
}

sl_str sl_http_header(const sl_http_request *request, const char *name)
{
    return sl_http_head_find(&request->head, name);
}

sl_str sl_http_param(const sl_http_request *request, const char *name)
{
    const sl_route_match *match = &request->match;
    for (size_t i = 0; match->route && i < match->n_params; i++) {
        if (sl_str_is(sl_route_param_name(match->route, i), name))
            return request->params[i];
    }
    return (sl_str){NULL, 0};
}

sl_status sl_http_query_value(const sl_http_request *request, const char *name, sl_buf *out,
                              bool *found, sl_error *err)
{
    sl_str rest = request->head.query;
    *found = false;
    while (rest.n_bytes > 0 && !*found) {
        const char *end = memchr(rest.data, '&', rest.n_bytes);
        const size_t n = end ? (size_t)(end - rest.data) : rest.n_bytes;
        const char *equal = memchr(rest.data, '=', n);
        const size_t n_name = equal ? (size_t)(equal - rest.data) : n;
        if (sl_str_is((sl_str){rest.data, n_name}, name)) {
            const sl_str value = {rest.data + n_name + (equal ? 1 : 0),
                                  n - n_name - (equal ? 1 : 0)};
            size_t n_decoded = 0;
            SL_TRY(sl_buf_reserve(out, value.n_bytes, err));
            if (value.n_bytes > 0 &&
                !sl_http_decode(value, true, out->data + out->n_bytes, &n_decoded))
                return sl_fail(err, SL_ERR_FORMAT, "%s: a wrong escape in the query", name);
            if (value.n_bytes > 0) {
                out->n_bytes += n_decoded;
                out->data[out->n_bytes] = '\0';
            }
            *found = true;
        }
        const size_t used = end ? n + 1 : n;
        rest.data += used;
        rest.n_bytes -= used;
    }
    return SL_OK;
}

sl_str sl_http_body(const sl_http_request *request)
{
    return (sl_str){request->body.data, request->body.n_bytes};
}

int sl_http_key(const sl_http_request *request)
{
    return request->key;
}

const sl_http_route *sl_http_request_route(const sl_http_request *request)
{
    return request->match.route;
}

sl_http *sl_http_request_server(const sl_http_request *request)
{
    return request->server;
}
