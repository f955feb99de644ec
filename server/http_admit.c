/* Owns what is decided by the head of a request alone, before a byte of its body is taken: who may
 * ask, whether there is such a route, and whether its body would be accepted. */
#include "http_internal.h"

#include <string.h>

#include "base/str.h"

static bool has_json_type(const sl_http_request *request)
{
    sl_str type = sl_http_header(request, "content-type");
    const char *end = type.n_bytes > 0 ? memchr(type.data, ';', type.n_bytes) : NULL;
    if (end)
        type.n_bytes = (size_t)(end - type.data);
    return sl_http_list_has(type, "application/json");
}

/* Names and methods of a page's question before its request, given back if they are harmless. */
static bool answer_preflight(sl_http_request *request)
{
    char methods[SL_METHODS_BYTES], headers[512] = "authorization, content-type, x-api-key";
    const sl_str asked = sl_http_header(request, "access-control-request-headers");
    if (asked.data && asked.n_bytes > 0 && asked.n_bytes < sizeof headers) {
        bool good = true;
        for (size_t i = 0; i < asked.n_bytes; i++) {
            const char c = asked.data[i];
            good = good && (sl_http_is_token((sl_str){&c, 1}) || c == ',' || c == ' ');
        }
        if (good) {
            memcpy(headers, asked.data, asked.n_bytes);
            headers[asked.n_bytes] = '\0';
        }
    }
    sl_http_add_header(request, "Access-Control-Allow-Methods",
                       sl_methods_text(request->match.methods, methods));
    sl_http_add_header(request, "Access-Control-Allow-Headers", headers);
    sl_http_add_header(request, "Access-Control-Max-Age", "600");
    sl_http_reply(request, 204, NULL, NULL, 0);
    return false;
}

static bool answer_options(sl_http_request *request)
{
    char methods[SL_METHODS_BYTES];
    if (request->origin.data && sl_http_header(request, "access-control-request-method").data)
        return answer_preflight(request);
    unsigned all = request->match.methods;
    if (sl_str_is(request->head.path, "*"))
        all = SL_HTTP_GET | SL_HTTP_HEAD | SL_HTTP_POST | SL_HTTP_DELETE | SL_HTTP_OPTIONS;
    sl_http_add_header(request, "Allow", sl_methods_text(all, methods));
    sl_http_reply(request, 204, NULL, NULL, 0);
    return false;
}

/* Refused because of who asks, or from where. */
static bool admit_client(sl_http_request *request)
{
    const sl_access *access = request->server->access;
    const sl_http_head *head = &request->head;
    /* A page of a stranger whose name points to this machine (DNS rebinding) sends that name. */
    if (head->host.data && request->conn->count && !sl_access_host(access, head->host)) {
        sl_http_refuse(request, 403, "host_not_allowed",
                       "The Host header names none of the hosts that this server answers for.");
        return false;
    }
    switch (sl_access_origin(access, head)) {
    case SL_ORIGIN_FOREIGN:
        sl_http_refuse(request, 403, "origin_not_allowed",
                       "Pages of this origin may not call this server.");
        return false;
    case SL_ORIGIN_ALLOWED:
        request->origin = sl_http_head_find(head, "origin");
        break;
    case SL_ORIGIN_NONE:
        break;
    }
    if (head->method == SL_HTTP_OPTIONS)
        return true; /* browsers ask without a key; nothing is told but methods */
    const bool known = sl_access_key(access, head, &request->key);
    const sl_http_route *route = request->match.route;
    if (!known && !(route && (route->flags & SL_ROUTE_PUBLIC))) {
        sl_http_add_header(request, "WWW-Authenticate", "Bearer");
        sl_http_refuse(request, 401, "invalid_api_key",
                       "A valid API key is needed: Authorization: Bearer KEY.");
        return false;
    }
    return true;
}

static bool admit_route(sl_http_request *request)
{
    char methods[SL_METHODS_BYTES];
    if (request->match.route)
        return true;
    if (request->match.methods == 0) {
        sl_http_refuse(request, 404, "not_found", "There is no such route.");
        return false;
    }
    sl_http_add_header(request, "Allow", sl_methods_text(request->match.methods, methods));
    sl_http_refuse(request, 405, "method_not_allowed",
                   "This route does not have that method; the Allow header tells which.");
    return false;
}

bool sl_http_admit(sl_http_request *request)
{
    const sl_http_head *head = &request->head;
    if (!admit_client(request))
        return false;
    if (head->method == SL_HTTP_OPTIONS &&
        (request->match.methods != 0 || sl_str_is(head->path, "*")))
        return answer_options(request);
    if (!admit_route(request))
        return false;
    const sl_http_route *route = request->match.route;
    if (request->server->stops_seen > 0 && !(route->flags & SL_ROUTE_DRAINING)) {
        const sl_http_error draining = {.status = 503,
                                        .code = "stopping",
                                        .message = "The server is stopping.",
                                        .retry_after_s = 1};
        sl_http_reply_error(request, &draining);
        return false;
    }
    if (head->framing == SL_HTTP_LENGTH && head->length > request->body_limit) {
        sl_http_refuse(request, 413, "body_too_long", "The body of the request is too long.");
        return false;
    }
    if ((route->flags & SL_ROUTE_BODY) && head->framing == SL_HTTP_NO_BODY) {
        sl_http_refuse(request, 411, "length_required",
                       "This route needs a body, with Content-Length or in chunks.");
        return false;
    }
    if ((route->flags & SL_ROUTE_JSON) && head->framing != SL_HTTP_NO_BODY &&
        !has_json_type(request)) {
        sl_http_refuse(request, 415, "unsupported_media_type",
                       "This route reads Content-Type: application/json.");
        return false;
    }
    return true;
}
