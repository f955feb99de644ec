/* Who may ask: API keys, the names a Host header may hold, and the origins of web pages. */
#ifndef SL_SERVER_ACCESS_H
#define SL_SERVER_ACCESS_H

#include "http_head.h"

typedef struct sl_access sl_access;

/* Copies keys (only their SHA-256 is kept), hosts and origins of the settings and reads the key
 * file: one key a line, empty lines and those that begin with '#' left out. */
sl_status sl_access_create(const sl_http_settings *settings, sl_access **out, sl_error *err);
void sl_access_free(sl_access *access);

/* One more allowed host: an address that is bound. A wildcard one allows every IP address. Nothing
 * when the settings name hosts. */
sl_status sl_access_bound(sl_access *access, const char *address, sl_error *err);

/* The number of the key in "Authorization: Bearer KEY" or "x-api-key: KEY", compared in a time that
 * does not depend on it. *key is -1 and the result true when the server has no keys. */
bool sl_access_key(const sl_access *access, const sl_http_head *head, int *key);

/* Whether the Host header holds one of the allowed names. */
bool sl_access_host(const sl_access *access, sl_str host);

typedef enum sl_origin {
    SL_ORIGIN_NONE,    /* no page is asking, or one that came from here */
    SL_ORIGIN_ALLOWED, /* of the list: the answer names it */
    SL_ORIGIN_FOREIGN, /* refused */
} sl_origin;

sl_origin sl_access_origin(const sl_access *access, const sl_http_head *head);

#endif
