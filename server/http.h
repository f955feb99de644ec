/* The HTTP layer: a server that reads requests, holds them to their limits, hands them to the
 * handler of their route, and writes answers and streams. It knows nothing of models.
 *
 * Threads: one thread runs sl_http_run, the loop. Handlers, tasks and `closed` callbacks run there
 * and must not wait for anything; every function here is to be called there, except those that say
 * "any thread". A request answered later keeps a reference, does its work elsewhere and posts the
 * answer: a late answer to a client that has gone does nothing and returns false.
 *
 * docs/SERVER.md describes the design, the limits and what is left. */
#ifndef SL_SERVER_HTTP_H
#define SL_SERVER_HTTP_H

#include "base/buf.h"
#include "base/json_out.h"

typedef struct sl_http sl_http;
typedef struct sl_http_request sl_http_request;

/* One bit each, for sets of them. */
typedef enum sl_http_method {
    SL_HTTP_GET = 1,
    SL_HTTP_HEAD = 2,
    SL_HTTP_POST = 4,
    SL_HTTP_PUT = 8,
    SL_HTTP_DELETE = 16,
    SL_HTTP_OPTIONS = 32,
    SL_HTTP_PATCH = 64,
} sl_http_method;

/* ---- errors ---- */

typedef struct sl_http_error {
    int status;             /* 400 to 599 */
    const char *message;    /* a sentence for people */
    const char *type;       /* NULL: by the status ("invalid_request_error", ...) */
    const char *code;       /* may be NULL, as the next */
    const char *param;      /* the field of the request that is at fault */
    unsigned retry_after_s; /* 0: no Retry-After header */
} sl_http_error;

/* Writes one JSON object that tells the error; error->type is not NULL. */
typedef void sl_http_shape(sl_json_out *json, const sl_http_error *error, const char *request_id);

sl_http_shape sl_http_shape_openai;    /* {"error": {"message", "type", "param", "code"}} */
sl_http_shape sl_http_shape_anthropic; /* {"type": "error", "error": {...}, "request_id"} */
sl_http_shape sl_http_shape_ollama;    /* {"error": "..."} */

/* ---- routes ---- */

typedef void sl_http_handler(void *context, sl_http_request *request);

enum {
    SL_ROUTE_PUBLIC = 1,   /* needs no key */
    SL_ROUTE_BODY = 2,     /* 411 without Content-Length or chunks */
    SL_ROUTE_JSON = 4,     /* 415 unless Content-Type is application/json */
    SL_ROUTE_DRAINING = 8, /* is served while the server drains */
};

enum { SL_HTTP_MAX_PARAMS = 4 };

/* GET serves HEAD too; OPTIONS is answered by the server. In a path, {name} stands for one segment
 * of any text, and {name...} at the end for all that is left: sl_http_param. Of several that
 * match with its method, the first of the table counts. */
typedef struct sl_http_route {
    sl_http_method method;
    const char *path;
    unsigned flags;
    size_t body_bytes;    /* the longest body; 0: the limit of the server */
    sl_http_shape *shape; /* of its errors; NULL: OpenAI's */
    sl_http_handler *handler;
    void *context;
} sl_http_route;

/* ---- settings ---- */

/* Times are in milliseconds. */
typedef struct sl_http_limits {
    size_t target_bytes;              /* of path and query: 414 */
    size_t head_bytes;                /* request line and headers: 431 */
    unsigned headers;                 /* 431 */
    size_t body_bytes;                /* 413 */
    size_t bodies_bytes;              /* of all bodies in memory together: 503 */
    unsigned connections;             /* in all: 503 and close */
    unsigned connections_per_address; /* 429 and close; IPv6: for a /64; not on Unix sockets */
    uint32_t idle_ms;                 /* an open connection without a request: closed */
    uint32_t head_ms;       /* from the first byte of a head to its last, and TLS handshakes: 408 */
    uint32_t read_ms;       /* without a byte of a body: 408 */
    uint32_t body_ms;       /* from head to end of body: 408 */
    uint32_t write_ms;      /* bytes wait and the client takes none: closed */
    uint32_t linger_ms;     /* for the client to read the last answer before a close */
    size_t waiting_bytes;   /* of a stream, that the client has not taken: closed */
    uint32_t keep_alive_ms; /* a silent SSE stream gets a comment; 0: never */
    uint32_t drain_ms;      /* for requests in flight when the server is told to stop */
} sl_http_limits;

sl_http_limits sl_http_limits_default(void);

typedef enum sl_http_log_format {
    SL_HTTP_LOG_NONE,
    SL_HTTP_LOG_TEXT,
    SL_HTTP_LOG_JSON
} sl_http_log_format;

/* What the lists point to is used during sl_http_create only; routes must outlive the server. */
typedef struct sl_http_settings {
    /* "127.0.0.1:8080", "[::1]:8080", "localhost:8080" (each of its addresses), "unix:/path".
     * Port 0: any free one (sl_http_port). */
    const char *const *addresses;
    size_t n_addresses;
    const char *tls_certificate; /* PEM files; NULL: no TLS. Unix sockets never have it. */
    const char *tls_key;
    const char *const *keys; /* none at all: no key is asked for */
    size_t n_keys;
    const char *key_file; /* more keys, one a line; may be NULL */
    /* Names a Host header may hold, without port. "*" allows all. None: "localhost", loopback
     * addresses and the bound ones; where a wildcard address is bound, every IP address. */
    const char *const *hosts;
    size_t n_hosts;
    /* Pages of other origins ("https://example.org", or "*") that may call. Same origin always. */
    const char *const *origins;
    size_t n_origins;
    const sl_http_route *routes;
    size_t n_routes;
    sl_http_limits limits;
    sl_http_log_format log_format;
    /* A line without its newline, on the loop's thread. */
    void (*log_line)(void *context, const char *line, size_t n);
    void *log_context;
} sl_http_settings;

sl_http_settings sl_http_settings_default(void);

/* ---- the server ---- */

/* Binds and listens. Errors name the address, file or setting. */
sl_status sl_http_create(const sl_http_settings *settings, sl_http **out, sl_error *err);

/* Serves until it was told to stop and is done. Call it once. */
sl_status sl_http_run(sl_http *http, sl_error *err);

/* Tells the server to stop. The first call drains it: it accepts no more, closes idle connections,
 * waits for the requests in flight, after drain_ms ends their streams with an error event and
 * answers the others 503. A second call skips the waiting. Any thread, and signal handlers. */
void sl_http_stop(sl_http *http);

/* Frees the server; sl_http_run must have returned, or never been called. Tasks that were posted
 * and have not run are run, here. References to requests may outlive it. */
void sl_http_free(sl_http *http);

/* Any thread. */
bool sl_http_draining(const sl_http *http);

/* The port of the i-th socket that listens; 0 for a Unix socket or past the last. */
unsigned sl_http_port(const sl_http *http, size_t i);

/* Work for the loop's thread. The one who posts owns the memory, until run begins. */
typedef struct sl_http_task {
    struct sl_http_task *next;
    void (*run)(struct sl_http_task *task);
} sl_http_task;

/* Any thread. Tasks run in the order of posting. Never fails. */
void sl_http_post_task(sl_http *http, sl_http_task *task);
/* The same with memory of its own: SL_ERR_MEMORY. */
sl_status sl_http_post(sl_http *http, void (*function)(void *argument), void *argument);

/* ---- requests ---- */

/* Any thread. The server holds a reference of its own until the handler has returned and the
 * answer is complete or the client gone. */
sl_http_request *sl_http_ref(sl_http_request *request);
void sl_http_unref(sl_http_request *request);

/* True once nobody waits for the answer, or it is complete. Any thread: for those who compute. */
bool sl_http_gone(const sl_http_request *request);

typedef enum sl_http_reason {
    SL_HTTP_CLIENT_GONE,
    SL_HTTP_CLIENT_SLOW, /* did not take its bytes in time, or too many waited */
    SL_HTTP_STOPPED,     /* the server was told to stop and did not wait longer */
    SL_HTTP_NO_MEMORY,
} sl_http_reason;

/* Calls back once, from the loop and never from inside a reply function, when the answer ends
 * before it is complete; not at all when it completes. The request is valid in the call. */
void sl_http_on_closed(sl_http_request *request,
                       void (*closed)(void *context, sl_http_request *, sl_http_reason),
                       void *context);

/* All texts live as long as the request. */
const char *sl_http_id(const sl_http_request *request); /* x-request-id */
sl_http_method sl_http_request_method(const sl_http_request *request);
sl_str sl_http_path(const sl_http_request *request);      /* as sent, without the query */
sl_str sl_http_query(const sl_http_request *request);     /* behind the '?', as sent */
const char *sl_http_peer(const sl_http_request *request); /* numeric address, or "unix" */
/* The value of the first header of that name in any case; data is NULL when there is none. */
sl_str sl_http_header(const sl_http_request *request, const char *name);
/* A {name} of the route's path, decoded; data is NULL when the route has none. */
sl_str sl_http_param(const sl_http_request *request, const char *name);
/* Appends the decoded value of name=value in the query; *found says whether it was there.
 * SL_ERR_FORMAT for a wrong % escape. */
sl_status sl_http_query_value(const sl_http_request *request, const char *name, sl_buf *out,
                              bool *found, sl_error *err);
sl_str sl_http_body(const sl_http_request *request);
/* Which key it came with: its place in the list (those of the file behind those of the settings);
 * -1 when none was asked for. */
int sl_http_key(const sl_http_request *request);
const sl_http_route *sl_http_request_route(const sl_http_request *request);
sl_http *sl_http_request_server(const sl_http_request *request);

/* ---- answers ---- */

/* All of these return false, and do nothing, when nobody waits for an answer any more. */

/* One more header of the coming answer. False also without memory, or for a name or value that is
 * none. */
bool sl_http_add_header(sl_http_request *request, const char *name, const char *value);

/* The whole answer. type NULL: no body and no Content-Type. */
bool sl_http_reply(sl_http_request *request, int status, const char *type, const void *body,
                   size_t n);
/* A JSON answer of what was written; 500 when writing failed. Frees json's memory. */
bool sl_http_reply_json(sl_http_request *request, int status, sl_json_out *json);
/* In the shape of the route. */
bool sl_http_reply_error(sl_http_request *request, const sl_http_error *error);
/* The same from a status of the library: SL_ERR_ARGUMENT, _FORMAT, _LIMIT, _CONTEXT and
 * _UNSUPPORTED are 400, SL_ERR_CANCELLED and _MEMORY 503, the others 500. */
bool sl_http_reply_status(sl_http_request *request, const sl_error *err, const char *param);

/* ---- streams ---- */

typedef enum sl_http_stream {
    SL_HTTP_SSE = 1, /* text/event-stream */
    SL_HTTP_NDJSON,  /* application/x-ndjson: one JSON value a line */
} sl_http_stream;

bool sl_http_stream_begin(sl_http_request *request, sl_http_stream kind);
/* One event; name may be NULL. data is whole UTF-8 text: what is given together stays together. */
bool sl_http_stream_event(sl_http_request *request, const char *name, const char *data, size_t n);
/* A comment of SSE, which clients ignore; nothing in other streams. One line. */
bool sl_http_stream_comment(sl_http_request *request, const char *text);
/* One line of NDJSON. */
bool sl_http_stream_line(sl_http_request *request, const char *data, size_t n);
bool sl_http_stream_end(sl_http_request *request);
/* The end with an error event in the shape of the route; the connection closes. */
bool sl_http_stream_fail(sl_http_request *request, const sl_http_error *error);

/* Bytes of the answer that the client has not taken yet (as far as the system tells). */
size_t sl_http_waiting(const sl_http_request *request);

/* ---- counters ---- */

typedef struct sl_http_route_counters {
    uint64_t by_class[6]; /* [2] = answers of 200 to 299, ...; [0] = ended without an answer */
} sl_http_route_counters;

typedef struct sl_http_counters {
    uint64_t connections;      /* accepted so far */
    uint64_t connections_open; /* now */
    uint64_t refused_all;      /* over the limit of all connections */
    uint64_t refused_address;  /* over the limit of one address */
    uint64_t requests_open;    /* handed to a handler and not ended */
    uint64_t streams_open;
    uint64_t bytes_in, bytes_out; /* of heads and bodies; of answers */
    uint64_t malformed;           /* 400 for their framing */
    uint64_t timeouts;            /* 408 */
    uint64_t gone, slow;          /* clients that left, that did not read */
    uint64_t out_of_memory;
} sl_http_counters;

/* Valid until the server is freed; for the loop's thread. Entry n_routes: requests of no route. */
const sl_http_counters *sl_http_get_counters(const sl_http *http);
const sl_http_route_counters *sl_http_get_route_counters(const sl_http *http);

#endif
