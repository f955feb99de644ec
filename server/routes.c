/* Owns the matching of paths. Refuses nothing itself: it tells what there is. */
#include "routes.h"

#include <stdio.h>
#include <string.h>

#include "base/str.h"

/* The name that begins at a '{'; *rest is whether it takes the rest of the path. */
static sl_str braced(const char *at, bool *rest)
{
    const char *end = strchr(at, '}');
    sl_str name = {at + 1, end ? (size_t)(end - at) - 1 : 0};
    *rest = name.n_bytes > 3 && memcmp(name.data + name.n_bytes - 3, "...", 3) == 0;
    if (*rest)
        name.n_bytes -= 3;
    return name;
}

sl_status sl_routes_check(const sl_http_route *routes, size_t n, sl_error *err)
{
    for (size_t i = 0; i < n; i++) {
        const char *path = routes[i].path;
        size_t n_params = 0;
        if (path[0] != '/' || !routes[i].handler)
            return sl_fail(err, SL_ERR_ARGUMENT, "route %s: no path, or no handler", path);
        for (const char *at = path; (at = strchr(at, '{')) != NULL; at++) {
            bool rest;
            const sl_str name = braced(at, &rest);
            const char *end = strchr(at, '}');
            if (++n_params > SL_HTTP_MAX_PARAMS || name.n_bytes == 0 || at[-1] != '/' ||
                (end[1] != '\0' && (rest || end[1] != '/')))
                return sl_fail(err, SL_ERR_ARGUMENT, "route %s: a name in braces is wrong", path);
        }
    }
    return SL_OK;
}

/* Whether the path is one of the pattern; fills params as far as it matches. */
static bool matches(const char *pattern, sl_str path, sl_str *params, size_t *n_params)
{
    size_t i = 0;
    *n_params = 0;
    while (*pattern != '\0') {
        if (*pattern != '{') {
            if (i == path.n_bytes || path.data[i] != *pattern)
                return false;
            i++, pattern++;
            continue;
        }
        bool rest;
        braced(pattern, &rest);
        size_t end = rest ? path.n_bytes : i;
        while (end < path.n_bytes && path.data[end] != '/')
            end++;
        if (end == i)
            return false;
        params[(*n_params)++] = (sl_str){path.data + i, end - i};
        i = end;
        pattern = strchr(pattern, '}') + 1;
    }
    return i == path.n_bytes;
}

sl_route_match sl_routes_find(const sl_http_route *routes, size_t n, unsigned method, sl_str path)
{
    sl_route_match match = {.index = n};
    const unsigned wanted = method == SL_HTTP_HEAD ? SL_HTTP_GET : method;
    for (size_t i = 0; i < n; i++) {
        sl_str params[SL_HTTP_MAX_PARAMS];
        size_t n_params;
        if (!matches(routes[i].path, path, params, &n_params))
            continue;
        if (match.methods == 0)
            match.shape = routes[i].shape;
        match.methods |= routes[i].method | SL_HTTP_OPTIONS;
        if (routes[i].method == SL_HTTP_GET)
            match.methods |= SL_HTTP_HEAD;
        if (!match.route && routes[i].method == wanted) {
            match.route = &routes[i];
            match.index = i;
            match.n_params = n_params;
            for (size_t k = 0; k < n_params; k++)
                match.params[k] = params[k];
        }
    }
    return match;
}

sl_str sl_route_param_name(const sl_http_route *route, size_t i)
{
    const char *at = strchr(route->path, '{');
    while (at && i-- > 0)
        at = strchr(at + 1, '{');
    bool rest;
    return at ? braced(at, &rest) : (sl_str){NULL, 0};
}

const char *sl_methods_text(unsigned methods, char text[SL_METHODS_BYTES])
{
    static const char *const names[] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"};
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < SL_COUNTOF(names); i++) {
        if (methods & (1u << i))
            n += (size_t)snprintf(text + n, SL_METHODS_BYTES - n, "%s%s", n ? ", " : "", names[i]);
    }
    return text;
}
