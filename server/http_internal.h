/* What the files of the HTTP layer share: connections, requests and the server. A connection goes
 * through phases:
 *
 *   HANDSHAKE (TLS only) -> IDLE -> HEAD -> BODY -> HANDLING -> [STREAMING ->] FLUSHING -> IDLE ...
 *                                                                             -> LINGER -> DEAD
 *
 * and to DEAD from any of them. A dead connection is freed by the loop's next turn, never inside of
 * a call, so that whoever holds a pointer to it may still look at its phase. */
#ifndef SL_SERVER_HTTP_INTERNAL_H
#define SL_SERVER_HTTP_INTERNAL_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <openssl/ssl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

#include "access.h"
#include "http_head.h"
#include "routes.h"

typedef enum sl_http_phase {
    SL_PHASE_HANDSHAKE,
    SL_PHASE_IDLE,
    SL_PHASE_HEAD,
    SL_PHASE_BODY,
    SL_PHASE_HANDLING,  /* the handler has it; nothing of the answer is written */
    SL_PHASE_STREAMING, /* the head of the answer is written, more comes */
    SL_PHASE_FLUSHING,  /* the answer is complete, bytes of it may wait */
    SL_PHASE_LINGER,    /* sent everything; the client may close */
    SL_PHASE_DEAD,
} sl_http_phase;

/* Connections of one address (of a /64 with IPv6). */
typedef struct sl_http_peer_count {
    struct sl_http_peer_count *next;
    unsigned char address[16];
    unsigned n;
} sl_http_peer_count;

enum { SL_PEER_TEXT_BYTES = 48, SL_REQUEST_ID_BYTES = 65 };

typedef struct sl_http_conn {
    struct sl_http_conn *next, *prev; /* of the server's list */
    sl_http *server;
    struct bufferevent *bev;
    struct event *probe; /* asks whether the client of a half-closed connection is still there */
    unsigned n_probes;
    sl_http_peer_count *count; /* NULL on Unix sockets */
    sl_http_request *request;  /* from the end of its head to the end of its answer */
    sl_http_phase phase;
    sl_http_reason reason; /* of its death */
    bool tls;
    bool half_closed;     /* the client sends no more */
    bool has_asked;       /* there was a request */
    bool close_after;     /* this answer is the last */
    uint64_t deadline_ms; /* of the phase; 0: none */
    uint64_t body_end_ms; /* of the whole body */
    uint64_t spoke_ms;    /* when a stream last wrote */
    uint64_t n_added;     /* bytes put into the output so far, */
    uint64_t n_taken;     /* those of them that had left at the last look, */
    uint64_t taken_ms;    /* and when their number last grew */
    uint64_t body_left;
    sl_http_scan scan;
    sl_http_chunks chunks;
    char peer[SL_PEER_TEXT_BYTES];
} sl_http_conn;

struct sl_http_request {
    atomic_uint refs;
    atomic_bool over; /* nobody waits for (more of) an answer */
    sl_http *server;
    sl_http_conn *conn;   /* NULL once over */
    sl_route_match match; /* its texts point into head_bytes */
    sl_http_head head;
    char *head_bytes;
    sl_http_field *fields;
    char *decoded; /* params */
    sl_str params[SL_HTTP_MAX_PARAMS];
    sl_buf body;
    size_t body_limit;
    sl_buf headers; /* of the answer */
    sl_http_stream stream;
    bool chunked; /* the answer is */
    bool no_body; /* HEAD */
    bool handed;  /* a handler has it: counted as open */
    bool finished;
    bool complete;                 /* the whole answer was written */
    sl_http_request *next_stopped; /* of those whose end is to be told */
    int key;
    int status; /* of the answer; 0: none yet */
    uint64_t begun_ns;
    uint64_t bytes_in, bytes_out;
    sl_str origin; /* that the answer allows */
    void (*closed)(void *context, sl_http_request *, sl_http_reason);
    void *closed_context;
    char id[SL_REQUEST_ID_BYTES];
    char peer[SL_PEER_TEXT_BYTES];
};

enum { SL_HTTP_MAX_LISTENERS = 16, SL_PEER_BUCKETS = 256 };

typedef struct sl_http_listener {
    int fd;
    struct event *event;
    unsigned port;
    char *unix_path;
} sl_http_listener;

struct sl_http {
    sl_http_limits limits;
    const sl_http_route *routes;
    size_t n_routes;
    sl_http_log_format log_format;
    void (*log_line)(void *context, const char *line, size_t n);
    void *log_context;
    sl_access *access;
    SSL_CTX *tls;

    struct event_base *base;
    sl_http_listener listeners[SL_HTTP_MAX_LISTENERS];
    size_t n_listeners;
    struct event *retry_accept; /* after descriptors ran out */
    struct event *tick;
    struct event *reap;
    struct event *wake;
    int wake_fd; /* eventfd: tasks or a stop wait */
    bool ticking;
    uint32_t tick_ms;

    sl_http_conn *conns, *dead;
    sl_http_peer_count *peers[SL_PEER_BUCKETS];
    size_t bodies_bytes;
    uint64_t n_ids;
    unsigned char id_seed[8];

    pthread_mutex_t tasks_lock;
    sl_http_task *first_task, **last_task;
    atomic_int stops; /* how often it was told */
    int stops_seen;
    uint64_t drain_end_ms, flush_end_ms;
    bool cut; /* the drain is over */

    sl_http_counters counters;
    sl_http_route_counters *by_route; /* n_routes + 1 */
};

uint64_t sl_http_now_ms(void);

/* http_listen.c */
sl_status sl_http_listen(sl_http *http, const sl_http_settings *settings, sl_error *err);
sl_status sl_http_listen_start(sl_http *http, sl_error *err);
void sl_http_listen_stop(sl_http *http); /* takes what has come, then closes */
void sl_http_uncount(sl_http *http, sl_http_peer_count *count);

/* http_tls.c */
sl_status sl_http_tls_create(const char *certificate, const char *key, SSL_CTX **out,
                             sl_error *err);
struct bufferevent *sl_http_tls_bufferevent(sl_http *http, int fd);
void sl_http_tls_goodbye(struct bufferevent *bev);

/* http_conn.c */
/* Takes the descriptor over. */
void sl_http_conn_open(sl_http *http, int fd, const char *peer, sl_http_peer_count *count,
                       bool tls);
void sl_http_conn_kill(sl_http_conn *conn, sl_http_reason reason);
void sl_http_conn_answered(sl_http_conn *conn); /* the answer is complete in the output */
void sl_http_conn_tick(sl_http_conn *conn, uint64_t now_ms);
bool sl_http_conn_write(sl_http_conn *conn, const void *bytes, size_t n);
void sl_http_reap(sl_http *http);
/* Ends every connection that waits for nothing; with `cut` every one, saying so where it can. */
void sl_http_conns_drain(sl_http *http, bool cut);

/* http_request.c */
void sl_http_make_id(sl_http *http, char id[SL_REQUEST_ID_BYTES]);
sl_http_request *sl_http_request_create(sl_http *http, sl_http_conn *conn, size_t head_bytes);
/* Parses head_bytes and looks up the route. 0, or the status to refuse it with and why. */
int sl_http_request_parse(sl_http_request *request, size_t n, const char **why);
/* 0, 400 or 503. */
int sl_http_request_decode_params(sl_http_request *request);
/* The end of an answer, or of the wait for one: log, counters, `over`. */
void sl_http_request_finish(sl_http_request *request);

/* http_admit.c: what is refused, or answered, by the head alone. True: go on to the body. */
bool sl_http_admit(sl_http_request *request);

/* http_reply.c */
/* An error before there is a route, or from the server itself. */
bool sl_http_refuse(sl_http_request *request, int status, const char *code, const char *message);
const char *sl_http_phrase(int status);
bool sl_http_write_head(sl_http_request *request, int status, const char *type, bool streams,
                        size_t n_body);
/* The error as text in the request's shape. */
sl_status sl_http_error_text(sl_http_request *request, const sl_http_error *error,
                             sl_json_out *json);

/* access_log.c */
void sl_http_log_request(const sl_http_request *request);

#endif
