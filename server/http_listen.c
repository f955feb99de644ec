/* Owns the sockets that listen: their addresses, accepting, and how many connections there may be.
 * Who is refused gets an answer before his connection closes. */
#include "http_internal.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/str.h"

enum { BACKLOG = 1024, ACCEPTS_A_TURN = 64, RETRY_MS = 100 };

/* ---- binding ---- */

static sl_status add_listener(sl_http *http, int fd, unsigned port, char *unix_path, sl_error *err)
{
    if (http->n_listeners == SL_HTTP_MAX_LISTENERS)
        return sl_fail(err, SL_ERR_LIMIT, "more than %d addresses to listen on",
                       SL_HTTP_MAX_LISTENERS);
    http->listeners[http->n_listeners++] = (sl_http_listener){fd, NULL, port, unix_path};
    return SL_OK;
}

/* A file that was left by a process that is gone gives way; one that somebody listens on does not.
 */
static void remove_stale(const struct sockaddr_un *address)
{
    struct stat st;
    if (stat(address->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return;
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return;
    if (connect(fd, (const struct sockaddr *)address, sizeof *address) != 0 &&
        errno == ECONNREFUSED)
        unlink(address->sun_path);
    close(fd);
}

static sl_status listen_unix(sl_http *http, const char *path, sl_error *err)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const size_t n = strlen(path);
    if (n == 0 || n >= sizeof address.sun_path)
        return sl_fail(err, SL_ERR_ARGUMENT, "unix:%s: a path of 1 to %zu bytes is needed", path,
                       sizeof address.sun_path - 1);
    memcpy(address.sun_path, path, n);
    char *copy = sl_strndup(SL_MEM_GENERAL, path, n);
    if (!copy)
        return sl_fail(err, SL_ERR_MEMORY, "unix:%s: out of memory", path);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    remove_stale(&address);
    bool bound = false;
    sl_status status = SL_OK;
    if (fd < 0 || bind(fd, (const struct sockaddr *)&address, sizeof address) != 0 ||
        (bound = true, chmod(path, 0600)) != 0 || listen(fd, BACKLOG) != 0)
        status = sl_fail(err, SL_ERR_IO, "unix:%s: %s", path, strerror(errno));
    else
        status = add_listener(http, fd, 0, copy, err);
    if (status != SL_OK) {
        if (bound)
            unlink(path);
        if (fd >= 0)
            close(fd);
        sl_free(copy);
    }
    return status;
}

/* The address without port as a Host header writes it. */
static void host_text(const struct sockaddr *address, char text[SL_PEER_TEXT_BYTES])
{
    char numeric[INET6_ADDRSTRLEN] = "";
    if (address->sa_family == AF_INET) {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)address;
        inet_ntop(AF_INET, &v4->sin_addr, numeric, sizeof numeric);
        snprintf(text, SL_PEER_TEXT_BYTES, "%s", numeric);
    } else {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)address;
        inet_ntop(AF_INET6, &v6->sin6_addr, numeric, sizeof numeric);
        snprintf(text, SL_PEER_TEXT_BYTES, "[%s]", numeric);
    }
}

static unsigned port_of(int fd)
{
    struct sockaddr_storage address;
    socklen_t n = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &n) != 0)
        return 0;
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)&address;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)&address;
    return ntohs(address.ss_family == AF_INET ? v4->sin_port : v6->sin6_port);
}

/* On SL_ERR_IO errno tells why. */
static sl_status listen_one(sl_http *http, const struct addrinfo *info, const char *name,
                            sl_error *err)
{
    const int fd = socket(info->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const int on = 1;
    sl_status status = SL_OK;
    char host[SL_PEER_TEXT_BYTES];
    host_text(info->ai_addr, host);
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
        (info->ai_family == AF_INET6 &&
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) != 0) ||
        bind(fd, info->ai_addr, info->ai_addrlen) != 0 || listen(fd, BACKLOG) != 0)
        status = sl_fail(err, SL_ERR_IO, "%s: %s", name, strerror(errno));
    const int failure = errno;
    if (status == SL_OK)
        status = sl_access_bound(http->access, host, err);
    if (status == SL_OK)
        status = add_listener(http, fd, port_of(fd), NULL, err);
    if (status != SL_OK && fd >= 0)
        close(fd);
    errno = failure;
    return status;
}

/* "host:port" or "[address]:port". */
static sl_status listen_tcp(sl_http *http, const char *name, sl_error *err)
{
    char host[256];
    const char *colon = strrchr(name, ':');
    const bool brackets = name[0] == '[';
    const size_t n = colon ? (size_t)(colon - name) : 0;
    if (!colon || n == 0 || n >= sizeof host || (brackets && (n < 3 || name[n - 1] != ']')) ||
        (!brackets && memchr(name, ':', n)))
        return sl_fail(err, SL_ERR_ARGUMENT,
                       "%s: an address is host:port, [IPv6 address]:port or unix:path", name);
    snprintf(host, sizeof host, "%.*s", (int)(brackets ? n - 2 : n), name + (brackets ? 1 : 0));
    const struct addrinfo hints = {.ai_family = AF_UNSPEC,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    const int failed = getaddrinfo(host, colon + 1, &hints, &list);
    if (failed)
        return sl_fail(err, SL_ERR_IO, "%s: %s", name, gai_strerror(failed));
    sl_status status = SL_OK;
    size_t n_bound = 0;
    for (const struct addrinfo *info = list; info && status == SL_OK; info = info->ai_next) {
        status = listen_one(http, info, name, err);
        n_bound += status == SL_OK;
        /* localhost has an IPv6 address also where there is no IPv6. */
        if (status == SL_ERR_IO && (n_bound > 0 || info->ai_next) &&
            (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT))
            status = SL_OK;
    }
    freeaddrinfo(list);
    if (status == SL_OK && n_bound == 0)
        status = sl_fail(err, SL_ERR_IO, "%s: none of its addresses can be used", name);
    return status;
}

sl_status sl_http_listen(sl_http *http, const sl_http_settings *settings, sl_error *err)
{
    static const char prefix[] = "unix:";
    for (size_t i = 0; i < settings->n_addresses; i++) {
        const char *name = settings->addresses[i];
        if (strncmp(name, prefix, sizeof prefix - 1) == 0)
            SL_TRY(listen_unix(http, name + sizeof prefix - 1, err));
        else
            SL_TRY(listen_tcp(http, name, err));
    }
    if (http->n_listeners == 0)
        return sl_fail(err, SL_ERR_ARGUMENT, "there is no address to listen on");
    return SL_OK;
}

/* ---- counting ---- */

static sl_http_peer_count **bucket_of(sl_http *http, const unsigned char address[16])
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < 16; i++)
        hash = (hash ^ address[i]) * 16777619u;
    return &http->peers[hash % SL_PEER_BUCKETS];
}

/* The entry of an address, with one more connection; NULL without memory. */
static sl_http_peer_count *count_peer(sl_http *http, const unsigned char address[16])
{
    sl_http_peer_count **bucket = bucket_of(http, address);
    sl_http_peer_count *count = *bucket;
    while (count && memcmp(count->address, address, 16) != 0)
        count = count->next;
    if (!count) {
        count = sl_alloc_zero(SL_MEM_GENERAL, sizeof *count);
        if (!count)
            return NULL;
        memcpy(count->address, address, 16);
        count->next = *bucket;
        *bucket = count;
    }
    count->n++;
    return count;
}

void sl_http_uncount(sl_http *http, sl_http_peer_count *count)
{
    if (!count || --count->n > 0)
        return;
    sl_http_peer_count **at = bucket_of(http, count->address);
    while (*at != count)
        at = &(*at)->next;
    *at = count->next;
    sl_free(count);
}

/* ---- accepting ---- */

/* One try to answer: the client may not even have sent its request. */
static void turn_away(sl_http *http, int fd, int status, const char *message)
{
    char body[256], text[640], id[SL_REQUEST_ID_BYTES];
    sl_http_make_id(http, id);
    const int n_body = snprintf(body, sizeof body,
                                "{\"error\": {\"message\": \"%s\", \"type\": \"%s\", \"param\": "
                                "null, \"code\": \"too_many_connections\"}}",
                                message, status == 429 ? "rate_limit_error" : "overloaded_error");
    const int n = snprintf(text, sizeof text,
                           "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\n"
                           "Content-Length: %d\r\nRetry-After: 1\r\nx-request-id: %s\r\n"
                           "Connection: close\r\n\r\n%s",
                           status, sl_http_phrase(status), n_body, id, body);
    char rest[4096];
    (void)send(fd, text, (size_t)n, MSG_DONTWAIT | MSG_NOSIGNAL);
    shutdown(fd, SHUT_WR);
    /* What is unread at a close makes the system drop the answer. */
    for (int i = 0; i < 4 && recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++)
        ;
    close(fd);
}

/* Events leave at once, and a client whose machine or network is gone is noticed within a minute,
 * also while there is nothing to write. Where an option is not to be had, the rest still works. */
static void set_options(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {
        {IPPROTO_TCP, TCP_NODELAY, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1},
        {IPPROTO_TCP, TCP_KEEPIDLE, 30}, {IPPROTO_TCP, TCP_KEEPINTVL, 10},
        {IPPROTO_TCP, TCP_KEEPCNT, 3},
    };
    for (size_t i = 0; i < SL_COUNTOF(options); i++)
        (void)setsockopt(fd, options[i].level, options[i].name, &options[i].value,
                         sizeof options[i].value);
}

static void admit(sl_http *http, int fd, const struct sockaddr_storage *from)
{
    const bool is_unix = from->ss_family == AF_UNIX;
    http->counters.connections++;
    if (http->counters.connections_open >= http->limits.connections) {
        http->counters.refused_all++;
        turn_away(http, fd, 503, "The server has as many connections as it may.");
        return;
    }
    char peer[SL_PEER_TEXT_BYTES] = "unix";
    sl_http_peer_count *count = NULL;
    if (!is_unix) {
        unsigned char address[16] = {0};
        if (from->ss_family == AF_INET) {
            const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)from;
            memcpy(address + 12, &v4->sin_addr, 4);
            inet_ntop(AF_INET, &v4->sin_addr, peer, sizeof peer);
        } else {
            const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)from;
            memcpy(address, &v6->sin6_addr, 8); /* one subscriber has a /64 */
            inet_ntop(AF_INET6, &v6->sin6_addr, peer, sizeof peer);
        }
        count = count_peer(http, address);
        if (!count) {
            http->counters.out_of_memory++;
            turn_away(http, fd, 503, "The server has no memory for another connection.");
            return;
        }
        if (count->n > http->limits.connections_per_address) {
            http->counters.refused_address++;
            sl_http_uncount(http, count);
            turn_away(http, fd, 429, "This address has as many connections as it may.");
            return;
        }
        set_options(fd);
    }
    sl_http_conn_open(http, fd, peer, count, http->tls && !is_unix);
}

static void pause_accepting(sl_http *http)
{
    if (!http->retry_accept)
        return; /* no more is accepted anyway */
    for (size_t i = 0; i < http->n_listeners; i++)
        event_del(http->listeners[i].event);
    const struct timeval tv = {0, RETRY_MS * 1000};
    event_add(http->retry_accept, &tv);
}

/* Accepts up to so many connections. */
static void accept_some(sl_http *http, int fd, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct sockaddr_storage from = {0};
        socklen_t size = sizeof from;
        const int accepted =
            accept4(fd, (struct sockaddr *)&from, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (accepted >= 0) {
            admit(http, accepted, &from);
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting(http);
            return;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return;
        } /* Others concern that connection alone: it was aborted. */
    }
}

static void on_accept(evutil_socket_t fd, short what, void *context)
{
    (void)what;
    accept_some(context, fd, ACCEPTS_A_TURN);
}

static void on_retry(evutil_socket_t fd, short what, void *context)
{
    (void)fd, (void)what;
    sl_http *http = context;
    for (size_t i = 0; i < http->n_listeners; i++)
        event_add(http->listeners[i].event, NULL);
}

sl_status sl_http_listen_start(sl_http *http, sl_error *err)
{
    http->retry_accept = evtimer_new(http->base, on_retry, http);
    bool good = http->retry_accept != NULL;
    for (size_t i = 0; i < http->n_listeners && good; i++) {
        sl_http_listener *listener = &http->listeners[i];
        listener->event =
            event_new(http->base, listener->fd, EV_READ | EV_PERSIST, on_accept, http);
        good = listener->event && event_add(listener->event, NULL) == 0;
    }
    return good ? SL_OK : sl_fail(err, SL_ERR_MEMORY, "out of memory for the events of sockets");
}

void sl_http_listen_stop(sl_http *http)
{
    if (http->retry_accept)
        event_free(http->retry_accept);
    http->retry_accept = NULL;
    const size_t n = http->n_listeners;
    http->n_listeners = 0;
    for (size_t i = 0; i < n; i++) {
        sl_http_listener *listener = &http->listeners[i];
        /* Those who have connected shall get an answer. */
        if (listener->event) {
            event_free(listener->event);
            accept_some(http, listener->fd, BACKLOG);
        }
        close(listener->fd);
        if (listener->unix_path)
            unlink(listener->unix_path);
        sl_free(listener->unix_path);
    }
}
