/* The table of routes: which one a path belongs to, and with which methods. */
#ifndef SL_SERVER_ROUTES_H
#define SL_SERVER_ROUTES_H

#include "http.h"

typedef struct sl_route_match {
    const sl_http_route *route; /* NULL: none; the index is n_routes then */
    size_t index;
    unsigned methods;     /* that the path has, SL_HTTP_OPTIONS among them; 0: no such path */
    sl_http_shape *shape; /* of the path's first route; NULL without one */
    sl_str params[SL_HTTP_MAX_PARAMS]; /* as sent, in the order of the route's path */
    size_t n_params;
} sl_route_match;

/* Checks the table: paths begin with '/', braces close, at most SL_HTTP_MAX_PARAMS names. */
sl_status sl_routes_check(const sl_http_route *routes, size_t n, sl_error *err);

sl_route_match sl_routes_find(const sl_http_route *routes, size_t n, unsigned method, sl_str path);

/* The i-th name in the braces of a route's path. */
sl_str sl_route_param_name(const sl_http_route *route, size_t i);

/* "GET, HEAD, OPTIONS" */
enum { SL_METHODS_BYTES = 64 };
const char *sl_methods_text(unsigned methods, char text[SL_METHODS_BYTES]);

#endif
