/* Owns the life of a connection: reading heads and bodies, its times, half-closes, and its end.
 *
 * A client that closes its socket and one that merely sends no more look the same: end of file. The
 * server tells them apart by writing something that means nothing (100 Continue, or a comment of a
 * stream): the system of a client that has gone answers it with a reset. */
#include "http_internal.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"

/* What is read ahead while a request is being answered: then the reading waits. */
enum { READ_AHEAD = 64 * 1024 };

/* While the server drains, for the first request of a connection. */
enum { FIRST_REQUEST_MS = 1000 };

/* Empty lines that are forgiven before a request. */
enum { MAX_EMPTY_LINES = 2 };

uint64_t sl_http_now_ms(void)
{
    return sl_clock_ns() / 1000000;
}

static void advance(sl_http_conn *conn);

static struct evbuffer *input_of(const sl_http_conn *conn)
{
    return bufferevent_get_input(conn->bev);
}

static size_t waiting(const sl_http_conn *conn)
{
    return evbuffer_get_length(bufferevent_get_output(conn->bev));
}

static void enter(sl_http_conn *conn, sl_http_phase phase, uint32_t within_ms)
{
    conn->phase = phase;
    conn->deadline_ms = within_ms ? sl_http_now_ms() + within_ms : 0;
}

/* ---- the end ---- */

void sl_http_conn_kill(sl_http_conn *conn, sl_http_reason reason)
{
    if (conn->phase == SL_PHASE_DEAD)
        return;
    sl_http *http = conn->server;
    conn->phase = SL_PHASE_DEAD;
    conn->reason = reason;
    if (conn->request && conn->request->handed) {
        if (reason == SL_HTTP_CLIENT_GONE)
            http->counters.gone++;
        else if (reason == SL_HTTP_CLIENT_SLOW)
            http->counters.slow++;
    }
    if (reason == SL_HTTP_NO_MEMORY)
        http->counters.out_of_memory++;
    if (conn->request)
        atomic_store(&conn->request->over, true);
    bufferevent_disable(conn->bev, EV_READ | EV_WRITE);
    if (conn->prev)
        conn->prev->next = conn->next;
    else
        http->conns = conn->next;
    if (conn->next)
        conn->next->prev = conn->prev;
    conn->prev = NULL;
    conn->next = http->dead;
    http->dead = conn;
    event_active(http->reap, 0, 0);
}

static void destroy(sl_http_conn *conn)
{
    sl_http *http = conn->server;
    sl_http_request *request = conn->request;
    if (request) {
        conn->request = NULL;
        request->conn = NULL;
        sl_http_request_finish(request);
        if (request->closed)
            request->closed(request->closed_context, request, conn->reason);
        sl_http_unref(request);
    }
    if (conn->probe)
        event_free(conn->probe);
    bufferevent_free(conn->bev);
    sl_http_uncount(http, conn->count);
    http->counters.connections_open--;
    sl_free(conn);
}

void sl_http_reap(sl_http *http)
{
    while (http->dead) {
        sl_http_conn *conn = http->dead;
        http->dead = conn->next;
        destroy(conn);
    }
}

/* Everything is sent: nothing more comes from here. What the client may still be sending is read
 * and dropped for a while, since closing over unread bytes would drop the answer on its way. */
static void linger(sl_http_conn *conn)
{
    if (conn->half_closed) {
        if (conn->tls)
            sl_http_tls_goodbye(conn->bev);
        sl_http_conn_kill(conn, SL_HTTP_CLIENT_GONE);
        return;
    }
    if (conn->tls)
        sl_http_tls_goodbye(conn->bev);
    shutdown(bufferevent_getfd(conn->bev), SHUT_WR);
    enter(conn, SL_PHASE_LINGER, conn->server->limits.linger_ms);
    advance(conn);
}

/* ---- reading ---- */

/* An error from the head alone, or amid a body: the connection ends with the answer. */
static void refuse(sl_http_conn *conn, int status, const char *why)
{
    sl_http *http = conn->server;
    conn->close_after = true;
    if (status == 400)
        http->counters.malformed++;
    if (status == 408)
        http->counters.timeouts++;
    if (!conn->request) {
        conn->request = sl_http_request_create(http, conn, 0);
        if (!conn->request) {
            sl_http_conn_kill(conn, SL_HTTP_NO_MEMORY);
            return;
        }
    }
    conn->phase = SL_PHASE_HANDLING;
    sl_http_refuse(conn->request, status, NULL, why);
}

/* Hands the whole request to its handler. */
static void handle(sl_http_conn *conn)
{
    sl_http_request *request = conn->request;
    sl_http *http = conn->server;
    enter(conn, SL_PHASE_HANDLING, 0);
    bufferevent_setwatermark(conn->bev, EV_READ, 0, READ_AHEAD);
    const int status = sl_http_request_decode_params(request);
    if (status) {
        sl_http_refuse(request, status, NULL,
                       status == 400 ? "The path holds a wrong escape."
                                     : "The server has no memory for this request at present.");
        return;
    }
    request->handed = true;
    http->counters.requests_open++;
    sl_http_ref(request);
    request->match.route->handler(request->match.route->context, request);
    /* Without an answer, and without anybody who could give one. */
    if (!atomic_load(&request->over) && request->status == 0 && atomic_load(&request->refs) == 2)
        sl_http_refuse(request, 500, NULL, "The handler of this route gave no answer.");
    sl_http_unref(request);
}

/* The head is whole and read; what does the client get, or what is to be read now? */
static void begin_body(sl_http_conn *conn)
{
    sl_http_request *request = conn->request;
    const sl_http_limits *limits = &conn->server->limits;
    const uint64_t now = sl_http_now_ms();
    conn->chunks = (sl_http_chunks){0};
    conn->body_left = request->head.framing == SL_HTTP_LENGTH ? request->head.length : 0;
    conn->body_end_ms = now + limits->body_ms;
    enter(conn, SL_PHASE_BODY, limits->read_ms);
    if (request->head.expects_continue && evbuffer_get_length(input_of(conn)) == 0 &&
        (request->head.framing == SL_HTTP_CHUNKED || conn->body_left > 0)) {
        static const char go_on[] = "HTTP/1.1 100 Continue\r\n\r\n";
        sl_http_conn_write(conn, go_on, sizeof go_on - 1);
    }
}

static void head_complete(sl_http_conn *conn, size_t n)
{
    sl_http *http = conn->server;
    sl_http_request *request = sl_http_request_create(http, conn, n);
    if (!request) {
        sl_http_conn_kill(conn, SL_HTTP_NO_MEMORY);
        return;
    }
    conn->request = request;
    conn->has_asked = true;
    evbuffer_remove(input_of(conn), request->head_bytes, n);
    request->bytes_in += n;
    http->counters.bytes_in += n;
    const char *why = "";
    const int status = sl_http_request_parse(request, n, &why);
    if (status) {
        refuse(conn, status, why);
        return;
    }
    conn->close_after = !request->head.keep_alive;
    conn->phase = SL_PHASE_HANDLING;
    const bool has_body = request->head.framing == SL_HTTP_CHUNKED ||
                          (request->head.framing == SL_HTTP_LENGTH && request->head.length > 0);
    /* An answer now leaves the body unread, and where the next request begins unknown. */
    const bool close_after = conn->close_after;
    conn->close_after = close_after || has_body;
    if (!sl_http_admit(request))
        return;
    conn->close_after = close_after;
    begin_body(conn);
}

/* Skips the empty lines that some clients send between requests. False: more must come first. */
static bool skip_empty_lines(sl_http_conn *conn)
{
    for (int i = 0; i < MAX_EMPTY_LINES; i++) {
        char two[2];
        const ev_ssize_t n = evbuffer_copyout(input_of(conn), two, 2);
        if (n <= 0 || (n == 1 && two[0] == '\r'))
            return false;
        if (n < 2 || two[0] != '\r' || two[1] != '\n')
            return true;
        evbuffer_drain(input_of(conn), 2);
    }
    return evbuffer_get_length(input_of(conn)) > 0;
}

/* Looks at the bytes that have come since the last look. True when something happened. */
static bool read_head(sl_http_conn *conn)
{
    struct evbuffer *input = input_of(conn);
    if (conn->phase == SL_PHASE_IDLE) {
        if (!skip_empty_lines(conn))
            return false;
        conn->scan = (sl_http_scan){0};
        enter(conn, SL_PHASE_HEAD, conn->server->limits.head_ms);
    }
    while (conn->scan.n_bytes < evbuffer_get_length(input)) {
        struct evbuffer_ptr at;
        struct evbuffer_iovec piece;
        if (evbuffer_ptr_set(input, &at, conn->scan.n_bytes, EVBUFFER_PTR_SET) != 0 ||
            evbuffer_peek(input, -1, &at, &piece, 1) < 1) {
            sl_http_conn_kill(conn, SL_HTTP_NO_MEMORY);
            return true;
        }
        size_t used = 0;
        const int result = sl_http_scan_bytes(&conn->scan, &conn->server->limits, piece.iov_base,
                                              piece.iov_len, &used);
        if (result == SL_HTTP_END) {
            head_complete(conn, conn->scan.n_bytes);
            return true;
        }
        if (result != SL_HTTP_MORE) {
            refuse(conn, result,
                   result == 414   ? "The request target is too long."
                   : result == 431 ? "The headers are too long."
                                   : "The request holds a byte that no head of a request has.");
            return true;
        }
    }
    return false;
}

/* Puts n bytes of the body where they belong. False: they were refused. */
static bool keep_body(sl_http_conn *conn, const char *bytes, size_t n)
{
    sl_http *http = conn->server;
    sl_http_request *request = conn->request;
    if (n > request->body_limit - request->body.n_bytes) {
        refuse(conn, 413, "The body of the request is too long.");
        return false;
    }
    if (n > http->limits.bodies_bytes - http->bodies_bytes ||
        sl_buf_append(&request->body, bytes, n, NULL) != SL_OK) {
        conn->close_after = true;
        sl_http_refuse(request, 503, "no_memory",
                       "The server has no memory for the body of this request at present.");
        return false;
    }
    http->bodies_bytes += n;
    request->bytes_in += n;
    http->counters.bytes_in += n;
    return true;
}

/* Reads one piece of the body. True when the body is at its end, or was refused. */
static bool read_piece(sl_http_conn *conn, const char *bytes, size_t n)
{
    const char *data = bytes;
    size_t used, n_data;
    int result = SL_HTTP_MORE;
    if (conn->request->head.framing == SL_HTTP_CHUNKED) {
        result = sl_http_chunks_take(&conn->chunks, bytes, n, &used, &data, &n_data);
    } else {
        n_data = used = conn->body_left < n ? (size_t)conn->body_left : n;
        conn->body_left -= n_data;
        if (conn->body_left == 0)
            result = SL_HTTP_END;
    }
    if (result == 400) {
        refuse(conn, result, "The chunks of the body are malformed.");
        return true;
    }
    if (n_data > 0 && !keep_body(conn, data, n_data))
        return true;
    evbuffer_drain(input_of(conn), used);
    if (result == SL_HTTP_END)
        handle(conn);
    return result == SL_HTTP_END;
}

static bool read_body(sl_http_conn *conn)
{
    struct evbuffer *input = input_of(conn);
    if (conn->request->head.framing != SL_HTTP_CHUNKED && conn->body_left == 0) {
        handle(conn);
        return true;
    }
    bool came = false;
    while (evbuffer_get_length(input) > 0) {
        struct evbuffer_iovec piece;
        if (evbuffer_peek(input, -1, NULL, &piece, 1) < 1) {
            sl_http_conn_kill(conn, SL_HTTP_NO_MEMORY);
            return true;
        }
        came = true;
        if (read_piece(conn, piece.iov_base, piece.iov_len))
            return true;
    }
    if (came) {
        const uint64_t soon = sl_http_now_ms() + conn->server->limits.read_ms;
        conn->deadline_ms = soon < conn->body_end_ms ? soon : conn->body_end_ms;
    }
    return false;
}

/* Does what the bytes that have come allow. */
static void advance(sl_http_conn *conn)
{
    for (bool again = true; again;) {
        switch (conn->phase) {
        case SL_PHASE_IDLE:
        case SL_PHASE_HEAD:
            again = read_head(conn);
            break;
        case SL_PHASE_BODY:
            again = read_body(conn);
            break;
        case SL_PHASE_LINGER:
            evbuffer_drain(input_of(conn), evbuffer_get_length(input_of(conn)));
            return;
        default: /* A request at a time: the next one waits. */
            return;
        }
    }
    /* The client said that no more comes, and this is not all. */
    if (conn->half_closed && conn->phase <= SL_PHASE_BODY)
        sl_http_conn_kill(conn, SL_HTTP_CLIENT_GONE);
}

static void on_read(struct bufferevent *bev, void *context)
{
    (void)bev;
    advance(context);
}

/* ---- writing ---- */

bool sl_http_conn_write(sl_http_conn *conn, const void *bytes, size_t n)
{
    if (conn->phase == SL_PHASE_DEAD)
        return false;
    if (waiting(conn) == 0)
        conn->taken_ms = sl_http_now_ms();
    if (evbuffer_add(bufferevent_get_output(conn->bev), bytes, n) != 0) {
        sl_http_conn_kill(conn, SL_HTTP_NO_MEMORY);
        return false;
    }
    conn->n_added += n;
    return true;
}

/* The answer has left: on to the next request, or the end. */
static void next_request(sl_http_conn *conn)
{
    sl_http_request *request = conn->request;
    conn->request = NULL;
    request->conn = NULL;
    sl_http_unref(request);
    if (conn->close_after || conn->server->stops_seen > 0) {
        linger(conn);
        return;
    }
    bufferevent_setwatermark(conn->bev, EV_READ, 0, 0);
    enter(conn, SL_PHASE_IDLE, conn->server->limits.idle_ms);
    advance(conn);
}

static void on_written(struct bufferevent *bev, void *context)
{
    (void)bev;
    sl_http_conn *conn = context;
    if (conn->phase == SL_PHASE_FLUSHING && waiting(conn) == 0)
        next_request(conn);
}

void sl_http_conn_answered(sl_http_conn *conn)
{
    if (conn->phase != SL_PHASE_DEAD)
        enter(conn, SL_PHASE_FLUSHING, 0);
}

/* ---- the client's end ---- */

/* Whether the system knows that nothing can be sent any more. */
static bool is_cut(const sl_http_conn *conn)
{
    struct pollfd state = {.fd = bufferevent_getfd(conn->bev)};
    return poll(&state, 1, 0) == 1 && (state.revents & (POLLERR | POLLHUP)) != 0;
}

/* Whether so much was sent ahead of an answer that nothing is read, not even the client's end. */
static bool is_stuffed(const sl_http_conn *conn)
{
    return conn->phase > SL_PHASE_BODY && conn->phase < SL_PHASE_LINGER &&
           evbuffer_get_length(input_of(conn)) >= READ_AHEAD;
}

/* Writes something that means nothing. Interim answers are few: some clients count them. */
static void write_probe(sl_http_conn *conn)
{
    static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
    if (waiting(conn) > 0)
        return; /* what is on its way does the same */
    if (conn->phase == SL_PHASE_STREAMING)
        sl_http_stream_comment(conn->request, "");
    else if (conn->phase == SL_PHASE_HANDLING && conn->request->head.minor == 1)
        sl_http_conn_write(conn, interim, sizeof interim - 1);
}

/* Looks often at first; a reset takes as long as the way to the client and back. Probes are written
 * at the beginning and after about 1, 5 and 25 seconds. */
static void probe(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    sl_http_conn *conn = context;
    if (conn->phase == SL_PHASE_DEAD)
        return;
    if (is_cut(conn)) {
        sl_http_conn_kill(conn, SL_HTTP_CLIENT_GONE);
        return;
    }
    if (!conn->half_closed && !is_stuffed(conn)) {
        event_free(conn->probe); /* it is read again, which tells */
        conn->probe = NULL;
        conn->n_probes = 0;
        return;
    }
    const unsigned n = conn->n_probes++;
    if (n == 0 || n == 12 || n == 28 || n == 108)
        write_probe(conn);
    const struct timeval later = {0, n < 4 ? 2000 : n < 8 ? 20000 : 250000};
    event_add(conn->probe, &later);
}

static void begin_probing(sl_http_conn *conn)
{
    if (conn->probe)
        return;
    conn->probe = evtimer_new(conn->server->base, probe, conn);
    if (!conn->probe)
        sl_http_conn_kill(conn, SL_HTTP_NO_MEMORY);
    else
        probe(-1, 0, conn);
}

static void on_event(struct bufferevent *bev, short what, void *context)
{
    (void)bev;
    sl_http_conn *conn = context;
    if (conn->phase == SL_PHASE_DEAD)
        return;
    if (what & BEV_EVENT_CONNECTED) {
        enter(conn, SL_PHASE_IDLE, conn->server->limits.idle_ms);
        return;
    }
    if (!(what & BEV_EVENT_EOF) || (what & BEV_EVENT_WRITING)) {
        sl_http_conn_kill(conn, SL_HTTP_CLIENT_GONE);
        return;
    }
    switch (conn->phase) {
    case SL_PHASE_HANDLING:
    case SL_PHASE_STREAMING:
    case SL_PHASE_FLUSHING:
        conn->half_closed = true;
        begin_probing(conn);
        break;
    default:
        sl_http_conn_kill(conn, SL_HTTP_CLIENT_GONE);
        break;
    }
}

/* ---- the beginning, and time ---- */

void sl_http_conn_open(sl_http *http, int fd, const char *peer, sl_http_peer_count *count, bool tls)
{
    sl_http_conn *conn = sl_alloc_zero(SL_MEM_GENERAL, sizeof *conn);
    struct bufferevent *bev = !conn ? NULL
                              : tls ? sl_http_tls_bufferevent(http, fd)
                                    : bufferevent_socket_new(http->base, fd, BEV_OPT_CLOSE_ON_FREE);
    if (!bev) {
        http->counters.out_of_memory++;
        sl_http_uncount(http, count);
        sl_free(conn);
        evutil_closesocket(fd);
        return;
    }
    conn->server = http;
    conn->bev = bev;
    conn->count = count;
    conn->tls = tls;
    memcpy(conn->peer, peer, sizeof conn->peer);
    conn->next = http->conns;
    if (conn->next)
        conn->next->prev = conn;
    http->conns = conn;
    http->counters.connections_open++;
    enter(conn, tls ? SL_PHASE_HANDSHAKE : SL_PHASE_IDLE,
          tls ? http->limits.head_ms : http->limits.idle_ms);
    bufferevent_setcb(bev, on_read, on_written, on_event, conn);
    bufferevent_enable(bev, EV_READ | EV_WRITE);
    if (!http->ticking) {
        const struct timeval every = {http->tick_ms / 1000,
                                      (suseconds_t)(http->tick_ms % 1000) * 1000};
        http->ticking = event_add(http->tick, &every) == 0;
    }
}

/* The time of the phase is up. */
static void expire(sl_http_conn *conn)
{
    switch (conn->phase) {
    case SL_PHASE_HEAD:
        refuse(conn, 408, "The head of the request did not come in time.");
        break;
    case SL_PHASE_BODY:
        refuse(conn, 408, "The body of the request did not come in time.");
        break;
    default:
        sl_http_conn_kill(conn, SL_HTTP_CLIENT_GONE);
        break;
    }
}

void sl_http_conn_tick(sl_http_conn *conn, uint64_t now_ms)
{
    const sl_http_limits *limits = &conn->server->limits;
    const size_t n_waiting = waiting(conn);
    if (conn->n_added - n_waiting != conn->n_taken) {
        conn->n_taken = conn->n_added - n_waiting;
        conn->taken_ms = now_ms;
    }
    if (n_waiting > 0 && now_ms >= conn->taken_ms + limits->write_ms) {
        sl_http_conn_kill(conn, SL_HTTP_CLIENT_SLOW);
    } else if (conn->deadline_ms && now_ms >= conn->deadline_ms) {
        expire(conn);
    } else if (conn->phase == SL_PHASE_STREAMING && limits->keep_alive_ms &&
               now_ms >= conn->spoke_ms + limits->keep_alive_ms) {
        sl_http_stream_comment(conn->request, "keep-alive");
        conn->spoke_ms = now_ms;
    } else if (is_stuffed(conn)) {
        begin_probing(conn);
    }
}

/* Whether bytes of a request wait to be read. */
static bool has_come(const sl_http_conn *conn)
{
    struct pollfd state = {.fd = bufferevent_getfd(conn->bev), .events = POLLIN};
    return poll(&state, 1, 0) == 1 && state.revents == POLLIN;
}

/* Ends the answer that is being given. */
static void cut_answer(sl_http_conn *conn)
{
    static const sl_http_error stopped = {
        .status = 503,
        .code = "stopping",
        .message = "The server was told to stop and could not finish this answer.",
        .retry_after_s = 1};
    conn->close_after = true;
    if (conn->phase == SL_PHASE_STREAMING)
        sl_http_stream_fail(conn->request, &stopped);
    else
        sl_http_reply_error(conn->request, &stopped);
}

void sl_http_conns_drain(sl_http *http, bool cut)
{
    sl_http_request *told = NULL;
    sl_http_conn *next;
    for (sl_http_conn *conn = http->conns; conn; conn = next) {
        next = conn->next;
        switch (conn->phase) {
        case SL_PHASE_IDLE:
            /* One that has just connected is about to ask, and shall get an answer. */
            if (!cut && (!conn->has_asked || has_come(conn)))
                enter(conn, SL_PHASE_IDLE, FIRST_REQUEST_MS);
            else
                sl_http_conn_kill(conn, SL_HTTP_STOPPED);
            break;
        case SL_PHASE_HANDSHAKE:
            sl_http_conn_kill(conn, SL_HTTP_STOPPED);
            break;
        case SL_PHASE_HEAD:
        case SL_PHASE_BODY:
            if (cut)
                refuse(conn, 503, "The server was told to stop.");
            break;
        case SL_PHASE_HANDLING:
        case SL_PHASE_STREAMING:
            if (cut) {
                sl_http_request *request = conn->request;
                void (*closed)(void *, sl_http_request *, sl_http_reason) = request->closed;
                cut_answer(conn);
                if (closed && conn->phase != SL_PHASE_DEAD) {
                    request->closed = closed;
                    request->next_stopped = told;
                    told = sl_http_ref(request);
                }
            }
            break;
        default:
            break;
        }
    }
    /* Their callbacks may do anything, to other connections also. */
    while (told) {
        sl_http_request *request = told;
        void (*closed)(void *, sl_http_request *, sl_http_reason) = request->closed;
        told = request->next_stopped;
        request->closed = NULL;
        closed(request->closed_context, request, SL_HTTP_STOPPED);
        sl_http_unref(request);
    }
}
