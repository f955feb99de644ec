/* A server in a thread of its own, and clients of raw sockets to talk to it. */
#ifndef SL_TESTS_HTTP_CLIENT_H
#define SL_TESTS_HTTP_CLIENT_H

#include <pthread.h>
#include <stdatomic.h>

#include "http.h"
#include "support.h"

enum { SL_TEST_MAX_HELD = 2048 };

/* Routes of the test server:
 *   GET /health         public, also while draining: "ok"
 *   POST /echo          needs a body; gives it back
 *   POST /json          the same with Content-Type: application/json
 *   GET, DELETE /items/{id}, GET /files/{path...}
 *                       the decoded parameter
 *   GET /query          the decoded value of q
 *   GET /big            1 MiB
 *   GET, POST /hold     held until sl_test_answer_held
 *   GET /stream         begins a stream of events and holds it
 *   GET /lines          the same with lines of JSON
 *   GET /events         three events, an end
 *   GET /late           answered by another thread
 *   GET /silent         the handler does nothing
 *   GET /openai, /api/ollama, /anthropic
 *                       an error 422 in that shape
 *   GET /broken, /api/broken, /anthropic/broken
 *                       a stream that ends in an error
 *   POST /small         a body of at most 10 bytes */
typedef struct sl_test_server {
    sl_http *http;
    pthread_t thread;
    bool running;
    unsigned port;
    sl_status result; /* of sl_http_run */
    /* Requests that are held; touched by the loop's thread only, except for the counts. */
    sl_http_request *held[SL_TEST_MAX_HELD];
    atomic_uint n_held;
    atomic_uint n_closed[4]; /* callbacks, by reason */
    atomic_uint n_log_lines;
    char last_line[1024]; /* of the log; read it when the server has stopped */
    char all_lines[8192];
} sl_test_server;

/* Settings with short linger and tick, long other times, and one loopback port. */
sl_http_settings sl_test_settings(void);

/* Descriptors and blocks of memory, before a server, and whether all of them are back. */
void sl_test_remember_resources(void);
void sl_test_assert_resources(void);

void sl_test_start(sl_test_server *server, const sl_http_settings *settings);
/* Tells it to stop, waits for the end, frees it. */
void sl_test_stop(sl_test_server *server);
void sl_test_restart(sl_test_server *server, const sl_http_settings *settings);
/* Waits for the end without telling. */
void sl_test_join(sl_test_server *server);
void sl_test_free(sl_test_server *server);

/* Runs a function on the loop's thread and waits until it has returned. */
void sl_test_on_loop(sl_test_server *server, void (*function)(void *), void *argument);
/* Answers what is held: whole answers with "held", streams with an end. */
void sl_test_answer_held(sl_test_server *server);
/* One event (or line) to every stream that is held. */
void sl_test_send_event(sl_test_server *server, const char *data);
sl_http_counters sl_test_counters(sl_test_server *server);

/* Waits, up to a minute, until *count is at least n; fails the test otherwise. */
void sl_test_wait(atomic_uint *count, unsigned n);

/* ---- clients ---- */

int sl_test_connect(const sl_test_server *server);
void sl_test_send(int fd, const char *text);
void sl_test_send_bytes(int fd, const void *bytes, size_t n);
void sl_test_close(int fd);
/* Descriptors of this process. */
unsigned sl_test_count_fds(void);

typedef struct sl_test_answer {
    int status; /* 0: the connection ended before a status line */
    char head[4096];
    char *body; /* sl_free it with sl_test_answer_free; decoded, NUL-terminated */
    size_t n_body;
    bool cut; /* the connection ended before the body did */
} sl_test_answer;

/* Reads one answer, past interim ones; no body after a HEAD request. */
sl_test_answer sl_test_read(int fd, bool head_only);
/* Reads what sl_test_answer_held gave. */
void sl_test_expect_held(int fd);
void sl_test_answer_free(sl_test_answer *answer);
/* The value of a header into text; false when there is none. */
bool sl_test_header(const sl_test_answer *answer, const char *name, char *text, size_t capacity);

/* Sends the request on a connection of its own, checks status and part of the body (may be NULL).
 */
void sl_test_expect(const sl_test_server *server, const char *request, int status,
                    const char *part);
/* Reads bytes until `text` has come, or the connection ended (false). */
bool sl_test_read_until(int fd, const char *text);
/* True when the connection has ended and nothing is left to read. */
bool sl_test_at_end(int fd);

#endif
