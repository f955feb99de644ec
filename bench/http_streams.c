/* Many streams of events through the HTTP layer, with a stub in place of a model. Figures, not
 * assertions.
 * usage: bench/http_streams [STREAMS [EVENTS_A_SECOND [SECONDS]]]      (1000, 20, 10)
 *
 * A child process is the client: it opens the streams, reads everything and counts. In the server a
 * thread stands for the engine: twenty times a second it posts one task for each stream, which
 * writes an event of 200 bytes, as a token's chunk has. Prints events a second as the client counts
 * them, the share of a core that the loop's thread takes, what a request to another route takes
 * meanwhile, and the memory of a stream: growth of resident memory over the number of streams. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "http.h"

enum { MAX_STREAMS = 20000, EVENT_BYTES = 200 };

static sl_http_request *held[MAX_STREAMS];
static atomic_uint n_held;
static clockid_t loop_clock;
static sl_error err;

static void fail(const char *what)
{
    fprintf(stderr, "http_streams: %s\n", what);
    exit(1);
}

static void on_stream(void *context, sl_http_request *request)
{
    (void)context;
    const unsigned n = atomic_load(&n_held);
    if (n == MAX_STREAMS || !sl_http_stream_begin(request, SL_HTTP_SSE))
        fail("a stream did not begin");
    held[n] = sl_http_ref(request);
    atomic_store(&n_held, n + 1);
}

static void on_health(void *context, sl_http_request *request)
{
    (void)context;
    sl_http_reply(request, 200, "text/plain", "ok", 2);
}

static void *run(void *context)
{
    pthread_getcpuclockid(pthread_self(), &loop_clock);
    if (sl_http_run(context, &err) != SL_OK)
        fail(err.message);
    return NULL;
}

/* ---- the engine's part ---- */

typedef struct event_task {
    sl_http_task task;
    sl_http_request *request;
} event_task;

static char event_text[EVENT_BYTES];

static void write_event(sl_http_task *task)
{
    event_task *event = (event_task *)(void *)task;
    sl_http_stream_event(event->request, NULL, event_text, sizeof event_text);
    free(event);
}

static atomic_bool all_written;

static void note_all_written(void *argument)
{
    (void)argument;
    atomic_store(&all_written, true);
}

static void sleep_until(uint64_t ns)
{
    const struct timespec at = {(time_t)(ns / 1000000000), (long)(ns % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
}

/* Returns the seconds until the last event was written. */
static double post_events(sl_http *http, unsigned n_streams, unsigned rate, unsigned seconds)
{
    const uint64_t start = sl_clock_ns();
    for (uint64_t step = 0; step < (uint64_t)rate * seconds; step++) {
        sleep_until(start + step * 1000000000 / rate);
        for (unsigned i = 0; i < n_streams; i++) {
            event_task *event = malloc(sizeof *event);
            *event = (event_task){{NULL, write_event}, held[i]};
            sl_http_post_task(http, &event->task);
        }
    }
    sleep_until(start + (uint64_t)seconds * 1000000000);
    if (sl_http_post(http, note_all_written, NULL) != SL_OK)
        fail("out of memory");
    while (!atomic_load(&all_written))
        usleep(100);
    return (double)(sl_clock_ns() - start) / 1e9;
}

/* ---- the client ---- */

static int connect_to(unsigned port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) != 0)
        fail("a client cannot connect");
    return fd;
}

static int compare(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Reads all streams to their ends; beside them asks for /health over and over. */
static void be_client(unsigned port, unsigned n_streams, int results)
{
    static char bytes[1 << 16];
    static double took[1 << 16];
    const int all = epoll_create1(0);
    uint64_t n_events = 0;
    unsigned n_open = n_streams, n_took = 0;
    for (unsigned i = 0; i < n_streams; i++) {
        static const char request[] = "GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n";
        const int fd = connect_to(port);
        struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
        if (send(fd, request, sizeof request - 1, 0) < 0 ||
            epoll_ctl(all, EPOLL_CTL_ADD, fd, &event) != 0)
            fail("a client cannot send");
    }
    const int other = connect_to(port);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = other};
    epoll_ctl(all, EPOLL_CTL_ADD, other, &event);
    uint64_t asked = 0, next = sl_clock_ns();
    while (n_open > 0) {
        struct epoll_event ready[256];
        if (asked == 0 && sl_clock_ns() >= next) {
            static const char request[] = "GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n";
            asked = sl_clock_ns();
            if (send(other, request, sizeof request - 1, 0) < 0)
                fail("the other client cannot send");
        }
        const int n = epoll_wait(all, ready, 256, 5);
        for (int i = 0; i < n; i++) {
            const ssize_t got = recv(ready[i].data.fd, bytes, sizeof bytes, 0);
            if (ready[i].data.fd == other && got <= 0) {
                close(other);
                asked = UINT64_MAX; /* no more of this */
            } else if (ready[i].data.fd == other) {
                if (n_took < 1 << 16)
                    took[n_took++] = (double)(sl_clock_ns() - asked) / 1e6;
                asked = 0;
                next = sl_clock_ns() + 10000000;
            } else if (got <= 0) {
                close(ready[i].data.fd);
                n_open--;
            } else {
                /* No event's text has a line that begins so. */
                for (const char *at = bytes;
                     (at = memmem(at, (size_t)(bytes + got - at), "data: ", 6)) != NULL; at += 6)
                    n_events++;
            }
        }
    }
    qsort(took, n_took, sizeof *took, compare);
    double out[3] = {(double)n_events, n_took ? took[n_took / 2] : 0,
                     n_took ? took[n_took * 99 / 100] : 0};
    if (write(results, out, sizeof out) != sizeof out)
        fail("the client cannot report");
    _exit(0);
}

/* ---- */

static double resident_kib(void)
{
    double pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file || fscanf(file, "%*d %lf", &pages) != 1)
        pages = 0;
    if (file)
        fclose(file);
    return pages * (double)sysconf(_SC_PAGESIZE) / 1024;
}

static double seconds_of(clockid_t clock)
{
    struct timespec t = {0};
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    const unsigned n_streams = argc > 1 ? (unsigned)strtoul(argv[1], NULL, 10) : 1000;
    const unsigned rate = argc > 2 ? (unsigned)strtoul(argv[2], NULL, 10) : 20;
    const unsigned seconds = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 10;
    static const char *const addresses[] = {"127.0.0.1:0"};
    static const sl_http_route routes[] = {
        {SL_HTTP_GET, "/stream", 0, 0, NULL, on_stream, NULL},
        {SL_HTTP_GET, "/health", 0, 0, NULL, on_health, NULL},
    };
    if (n_streams == 0 || n_streams > MAX_STREAMS || rate == 0 || seconds == 0)
        fail("usage: http_streams [STREAMS [EVENTS_A_SECOND [SECONDS]]]");
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    sl_http_settings settings = sl_http_settings_default();
    settings.addresses = addresses;
    settings.routes = routes;
    settings.n_routes = 2;
    settings.limits.connections = settings.limits.connections_per_address = MAX_STREAMS + 10;
    sl_http *http;
    if (sl_http_create(&settings, &http, &err) != SL_OK)
        fail(err.message);
    int results[2];
    if (pipe(results) != 0)
        fail("no pipe");
    const pid_t client = fork();
    if (client == 0)
        be_client(sl_http_port(http, 0), n_streams, results[1]);
    memset(event_text, 'x', sizeof event_text);
    const double kib_before = resident_kib();
    pthread_t loop;
    pthread_create(&loop, NULL, run, http);
    while (atomic_load(&n_held) < n_streams)
        usleep(1000);
    usleep(100000);
    const double cpu_before = seconds_of(loop_clock);
    const double took = post_events(http, n_streams, rate, seconds);
    const double cpu = seconds_of(loop_clock) - cpu_before, kib = resident_kib() - kib_before;
    sl_http_stop(http);
    sl_http_stop(http);
    pthread_join(loop, NULL);
    double report[3] = {0};
    if (read(results[0], report, sizeof report) != sizeof report)
        fail("no report of the client");
    waitpid(client, NULL, 0);
    /* Each stream also got an error event at the end. */
    printf("%u streams x %u events/s, %u s: %.0f events/s arrived, %.1f %% of a core, "
           "%.1f KiB a stream, /health p50 %.2f ms, p99 %.2f ms\n",
           n_streams, rate, seconds, (report[0] - n_streams) / took, cpu / took * 100,
           kib / n_streams, report[1], report[2]);
    for (unsigned i = 0; i < n_streams; i++)
        sl_http_unref(held[i]);
    sl_http_free(http);
    return 0;
}
